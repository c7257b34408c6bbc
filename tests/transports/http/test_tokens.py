"""Tokens: they are found by their digests, and invalid digests are refused without being shown."""

import pytest

from fedlib.transports.http import digest, new_token
from fedlib.transports.http.wire import Tokens

SECRETS = {name: new_token() for name in ("north", "south", "west")}
DIGESTS = {name: digest(token) for name, token in SECRETS.items()}


def test_a_token_identifies_its_client():
    tokens = Tokens(DIGESTS)
    assert {name: tokens.client(token) for name, token in SECRETS.items()} == {
        name: name for name in SECRETS
    }
    for token in ("", "Bearer", new_token(), DIGESTS["north"], SECRETS["north"] + " "):
        assert tokens.client(token) is None


@pytest.mark.parametrize(
    ("digests", "message"),
    [
        ({"a": "my-secret"}, "tokens must contain digests, that of 'a' is not a digest"),
        ({"a": "0" * 64, "b": "0" * 64}, "tokens must differ between clients"),
        ({"server": "0" * 64}, "tokens must not contain a client called 'server'"),
    ],
)
def test_invalid_digests_are_refused(digests, message):
    with pytest.raises(ValueError, match=message) as raised:
        Tokens(digests)
    assert "my-secret" not in str(raised.value)
