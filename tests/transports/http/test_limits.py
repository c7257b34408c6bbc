"""The time limits are checked."""

import pytest

from fedlib.transports.http.limits import Limits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"join_timeout": 0}, "join_timeout must be positive, got 0"),
        ({"request_timeout": -1}, "request_timeout must be positive, got -1"),
        ({"gone_after": float("nan")}, "gone_after must be positive, got nan"),
        ({"rejoin_timeout": -1}, "rejoin_timeout must be at least 0, got -1"),
        ({"max_seconds": 0}, "max_seconds must be positive, got 0"),
    ],
)
def test_limits_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        Limits(**options)
