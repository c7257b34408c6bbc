"""Tokens: every digest is compared, and invalid digests are refused without being shown."""

import hmac

import pytest

from fedlib.transports.http import digest, new_token
from fedlib.transports.http.tokens import Tokens

SECRETS = {name: new_token() for name in ("north", "south", "west")}
DIGESTS = {name: digest(token) for name, token in SECRETS.items()}


def test_a_token_identifies_its_client():
    tokens = Tokens(DIGESTS)
    assert {name: tokens.client(token) for name, token in SECRETS.items()} == {
        name: name for name in SECRETS
    }
    for token in ("", "Bearer", new_token(), DIGESTS["north"], SECRETS["north"] + " "):
        assert tokens.client(token) is None


def test_every_digest_is_compared_in_constant_time(monkeypatch):
    compared = []

    def compare(a, b):
        compared.append((a, b))
        return real(a, b)

    real = hmac.compare_digest
    tokens = Tokens(DIGESTS)
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for token in (*SECRETS.values(), new_token()):
        compared.clear()
        tokens.client(token)
        assert compared == [(digest(token), kept) for kept in DIGESTS.values()]


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
