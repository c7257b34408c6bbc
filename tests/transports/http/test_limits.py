"""The limits are checked."""

import pytest

from fedlib.transports.http.limits import Limits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"join_timeout": 0}, r"'join_timeout'.*\(0.0, inf\]. Got 0"),
        ({"request_timeout": -1}, "'request_timeout'.*Got -1"),
        ({"gone_after": float("nan")}, "'gone_after'.*Got nan"),
        ({"silent_after": 0}, "'silent_after'.*Got 0"),
        ({"rejoin_timeout": -1}, r"'rejoin_timeout'.*\[0.0, inf\]. Got -1"),
        ({"max_seconds": 0}, "'max_seconds'.*Got 0"),
        ({"max_bytes": 0}, "'max_bytes'.*Got 0"),
        ({"max_strangers": 1.5}, "'max_strangers'.*Got 1.5"),
        ({"body_seconds": 0}, "'body_seconds'.*Got 0"),
    ],
)
def test_limits_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        Limits(**options)
