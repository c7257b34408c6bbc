"""Tokens: one secret per client. The server keeps only its digest."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping

from fedlib.core.ledger import SERVER


def new_token() -> str:
    """Return a new secret for one client.

    Examples
    --------
    >>> len(new_token())
    43
    """
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """Return the SHA-256 digest of a token in hexadecimal, which the server stores instead of it.

    Examples
    --------
    >>> digest("secret")[:16]
    '2bb80d537b1da3e3'
    """
    return hashlib.sha256(token.encode()).hexdigest()


class Tokens:
    """The digests of all clients' tokens.

    Parameters
    ----------
    digests : mapping of str to str
        The `digest` of each client's token, by the client's name.

    Raises
    ------
    ValueError
        When a digest is malformed, two clients share one, or a client has the server's name. The
        text contains no digest, since it could be a token that was passed by mistake.

    Examples
    --------
    >>> tokens = Tokens({"north": digest("secret")})
    >>> tokens.client("secret"), tokens.client("guess")
    ('north', None)
    """

    def __init__(self, digests: Mapping[str, str]):
        for name, kept in digests.items():
            if not re.fullmatch("[0-9a-f]{64}", kept):
                raise ValueError(f"tokens must contain digests, that of {name!r} is not a digest")
        if len(set(digests.values())) < len(digests):
            raise ValueError("tokens must differ between clients")
        if SERVER in digests:
            raise ValueError(f"tokens must not contain a client called {SERVER!r}")
        self._names = {kept: name for name, kept in digests.items()}

    def client(self, token: str) -> str | None:
        """Return the name of the client with this token, or None, in O(1).

        The time of a look-up may depend on the digest, but a caller cannot choose the digest of its
        guess, so it learns nothing about the token.
        """
        return self._names.get(digest(token))
