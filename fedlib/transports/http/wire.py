"""Shared by both sides of the HTTP transport: headers, the answer to a join, the need for TLS.

A client makes six kinds of calls:

========  ==========  =======================================================================
Method    Path        Answer
========  ==========  =======================================================================
POST      /join       200 and a `Welcome` in JSON
GET       /request    200 and the bytes of the next request, or 204 after `HOLD` seconds
POST      /reply      200 if the reply was accepted, now or before; with `NEXT`, what a call of
                      ``/request`` would get, so that a step costs one call
POST      /heartbeat  200, while the client works after at most `HOLD` seconds
POST      /leave      200; with `REASON` from a process that does not join
GET       /check      as for a join, but nothing changes: a site tests its token and its network
========  ==========  =======================================================================

Each carries the token (``Authorization: Bearer TOKEN``) and the identifier of the client's process
(`PROCESS`). A join and a check also carry the version of fedlib (`VERSION`), and the digest of the
site's schema if it has one (`SCHEMA`). A request and its
reply carry the request's number (`NUMBER`). A refused call is answered with ``{"error": reason}``
in JSON and one of these codes:

====  ====================================================================================
Code  Meaning
====  ====================================================================================
400   The call is malformed, or the versions of the site and the server are incompatible.
401   The token is unknown.
409   The call does not fit the session, for example because another process has joined.
410   The session is over; the reason is the outcome of the run, or why the client was lost.
413   The body is empty or too large, or its length is missing.
428   The server does not know this session, for example because it was started again: join.
429   Too many calls of this client are in progress.
431   The headers are too large.
====  ====================================================================================
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated

import msgspec

from fedlib import __version__
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


SHORTEST, LONGEST = 0.02, 3600.0  # seconds between two heartbeats


HOLD = 25.0  # seconds for which the server delays the answer when there is no request


NEXT = "Fedlib-Next"


NUMBER = "Fedlib-Sequence"


SCHEMA = "Fedlib-Schema"


PROCESS = "Fedlib-Session"


VERSION = "Fedlib-Version"


REASON = "Fedlib-Reason"


class CannotJoin(ValueError):
    """A site cannot take part in a run. The server learns the reason, in one word.

    Parameters
    ----------
    text : str
        For the site's operator.
    reason : str
        For the server, such as ``NoSecureKey``; it must not depend on the site's rows.
    """

    def __init__(self, text: str, reason: str):
        super().__init__(text)
        self.reason = reason


Name = Annotated[str, msgspec.Meta(max_length=1000)]


class Welcome(msgspec.Struct):
    """The answer to a client that has joined.

    Attributes
    ----------
    client : str
        The client's name.
    run : str
        An identifier of the run.
    protocol : str
        The protocol's name.
    heartbeat : float
        Seconds between two heartbeats.
    n_clients : int
        The count of clients that may take part; 0 if it is not known.
    schema : str
        The schema of the study in JSON, so that a site can compare its own; empty if the run has
        none, or a large one.
    digest : str
        The digest of the schema; empty if the run has none.
    protected : bool
        Whether the server sees only sums over the clients, or noise.
    secure : bool
        Whether the run has secure sums, for which each site needs its keys.
    """

    client: Name
    run: Name
    protocol: Name
    heartbeat: Annotated[float, msgspec.Meta(ge=SHORTEST, le=LONGEST)]
    n_clients: Annotated[int, msgspec.Meta(ge=0, le=10**7)] = 0
    schema: str = ""
    digest: Name = ""
    protected: bool = False
    secure: bool = False

    @classmethod
    def read(cls, data: bytes) -> Welcome:
        """Return the welcome in a server's answer.

        Raises
        ------
        ValueError
            When it is none, or a field is out of range.

        Examples
        --------
        >>> fields = '"client": "a", "run": "b", "protocol": "kmeans", "heartbeat"'
        >>> Welcome.read(f"{{{fields}: 1}}".encode()).protocol
        'kmeans'
        >>> Welcome.read(f"{{{fields}: 1e300}}".encode())
        Traceback (most recent call last):
        ...
        ValueError: Expected `float` <= 3600.0 - at `$.heartbeat`
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(str(error)) from error


def check_version(site: str, server: str = __version__) -> None:
    """Raise ValueError when a site's version is incompatible with the server's.

    Versions are compatible if their first two numbers are equal.

    Examples
    --------
    >>> check_version("1.2.3", "1.2.0")
    >>> check_version("1.2.3", "1.3.0")
    Traceback (most recent call last):
    ...
    ValueError: the site has fedlib '1.2.3', the server 1.3.0: install fedlib-study 1.3 at the site
    """
    wanted = server.split(".")[:2]
    if site.split(".")[:2] != wanted:
        raise ValueError(
            f"the site has fedlib {site[:20]!r}, the server {server}: install fedlib-study"
            f" {'.'.join(wanted)} at the site"
        )


def check_schema(site: str, server: str) -> None:
    """Raise ValueError when the digests of the schemas of a site and of the run differ.

    An empty digest means that there is no schema.

    Examples
    --------
    >>> check_schema("", "0123456789abcdef")
    Traceback (most recent call last):
    ...
    ValueError: the run has the schema 0123456789ab, and the site none: join with --schema
    """
    if site != server:
        here = f"the site {site[:12]!r}" if site else "the site none: join with --schema"
        there = f"the schema {server[:12]}" if server else "no schema"
        raise ValueError(f"the run has {there}, and {here}")


def require_tls(parameter: str, host: str, *, secure: bool, insecure: bool) -> None:
    """Raise ValueError when plain HTTP would leave this machine without permission.

    Examples
    --------
    >>> require_tls("url", "localhost", secure=False, insecure=False)
    >>> require_tls("url", "example.org", secure=False, insecure=False)
    Traceback (most recent call last):
    ...
    ValueError: url has the host 'example.org', beyond the loopback interface: use TLS, or allow \
plain HTTP with insecure
    """
    loopback = host == "localhost"
    with suppress(ValueError):
        loopback = loopback or ipaddress.ip_address(host).is_loopback
    if not (secure or loopback or insecure):
        raise ValueError(
            f"{parameter} has the host {host!r}, beyond the loopback interface: use TLS, or allow"
            " plain HTTP with insecure"
        )
