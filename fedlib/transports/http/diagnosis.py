"""What keeps a site from joining a run: `diagnose` tries the way to the server, without joining."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from fedlib import __version__
from fedlib.transports.http.client import connect, other_scheme, reason_of
from fedlib.transports.http.wire import Welcome

MAX_CLOCK_ERROR = 60.0  # seconds
MIN_VALIDITY = 7  # days that the server's certificate should still be valid
DAY = 86400.0  # seconds


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes
    ----------
    subject : str
        What was checked.
    ok : bool
    text : str
        What was found; if it is not ok, also how to repair it.
    """

    subject: str
    ok: bool
    text: str


def diagnose(
    url: str,
    token: str,
    *,
    ca: str | None = None,
    insecure: bool = False,
    proxy: str | None = None,
    welcomes: list[Welcome] | None = None,
) -> Iterator[Finding]:
    """Check the way from a site to the server, the token, the clocks and the versions.

    The server is called once. The run is not affected, also if the site is taking part in it.

    Parameters
    ----------
    url, token, ca, insecure, proxy
        As for `fedlib.transports.http.join`.
    welcomes : list, optional
        Receives the server's answer, if there is one.

    Yields
    ------
    Finding
        One per check, up to the first that makes the others impossible.

    Raises
    ------
    ValueError
        When a parameter is out of range, or plain HTTP would leave this machine.
    OSError
        When the file of the authority cannot be read.

    Examples
    --------
    >>> from fedlib.transports.http import new_token
    >>> [finding] = diagnose("http://127.0.0.1:1", new_token())
    >>> finding.subject, finding.ok
    ('reachability', False)
    """
    with connect(url, token, ca=ca, insecure=insecure, proxy=proxy) as link:
        try:
            with link.stream("GET", "/check") as response:
                response.read()
                certificate = _certificate(response)
        except httpx.TransportError as error:
            yield _unreachable(error, proxy, other_scheme(link.base_url, error))
            return
    way = f" through {proxy}" if proxy else ""
    yield Finding("reachability", True, f"{url} answers{way}")
    if certificate:
        yield _validity(certificate)
    yield from _clock(response)
    yield from _answer(response, [] if welcomes is None else welcomes)


def _unreachable(error: httpx.TransportError, proxy: str | None, scheme: str) -> Finding:
    """Return what an error on the way to the server means."""
    text = f"{type(error).__name__}: {error}"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        if "expired" in text or "not yet valid" in text:
            remedy = "correct this machine's clock, or let the server's operator renew it"
        elif "ostname mismatch" in text or "IP address mismatch" in text:
            remedy = "call the server by a name that is in its certificate"
        else:
            remedy = "name the file of the authority that has signed it with --ca"
        return Finding("certificate", False, f"{text}; {remedy}")
    if scheme:
        remedy = scheme
    elif isinstance(error, httpx.ProxyError):
        remedy = f"ask who runs the proxy {proxy} to allow calls to the server"
    elif isinstance(error, httpx.ConnectTimeout):
        remedy = "ask for outgoing connections to the server's port in the firewall, or use --proxy"
    elif isinstance(error, httpx.ConnectError) and ("Name or service" in text or "Errno -" in text):
        remedy = "check the server's name in the URL, and the name service of this machine"
    elif isinstance(error, httpx.ConnectError):
        remedy = "check the port in the URL, and whether the server runs"
    else:
        remedy = "check that the URL is that of a fedlib server, with https:// if it uses TLS"
    return Finding("reachability", False, f"{text}; {remedy}")


def _certificate(response: httpx.Response) -> str:
    """Return until when the server's certificate is valid; empty without TLS."""
    stream = response.extensions["network_stream"]
    connection = stream.get_extra_info("ssl_object")
    return str(connection.getpeercert()["notAfter"]) if connection else ""


def _validity(not_after: str) -> Finding:
    end = ssl.cert_time_to_seconds(not_after)
    date = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%d")
    if end - time.time() > MIN_VALIDITY * DAY:
        return Finding("certificate", True, f"valid until {date}")
    return Finding(
        "certificate", False, f"valid until {date} only; let the server's operator renew it"
    )


def _clock(response: httpx.Response) -> Iterator[Finding]:
    """Compare the clocks of both machines, if the server states its time."""
    with suppress(KeyError, ValueError):
        there = parsedate_to_datetime(response.headers["Date"]).timestamp()
        ahead = time.time() - there
        if abs(ahead) <= MAX_CLOCK_ERROR:
            yield Finding("clock", True, "as the server's, to a minute")
        else:
            direction = "ahead of" if ahead > 0 else "behind"
            yield Finding(
                "clock",
                False,
                f"{abs(ahead):.0f} s {direction} the server's; synchronise both with a time server",
            )


def _answer(response: httpx.Response, welcomes: list[Welcome]) -> Iterator[Finding]:
    """Check what the server thinks of the token and the version."""
    reason = reason_of(response)
    if response.status_code == 401:
        text = f"{reason}; ask the server's operator for a new one (fedlib token NAME --renew)"
        yield Finding("token", False, text)
        return
    if response.status_code == 400 and "fedlib" in reason:
        yield Finding("token", True, "the server knows it")
        yield Finding("version", False, reason)
        return
    try:
        welcome = Welcome.read(response.content)
    except ValueError:
        text = f"{reason}; check that the URL is that of a server of fedlib {__version__}"
        yield Finding("version", False, text)
        return
    welcomes.append(welcome)
    yield Finding("token", True, f"that of {welcome.client!r}")
    yield Finding("version", True, f"fedlib {__version__} fits the server's")
