"""The limits of a run: of the sessions, and of the connections that carry their calls."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = [
    "Limits",
]

POSITIVE = ("join_timeout", "request_timeout", "gone_after", "silent_after")


@dataclass(frozen=True)
class Limits:
    """The time limits of a run, in seconds.

    Parameters
    ----------
    join_timeout : float, default=600
        How long the first exchange waits for clients to join, above 0.
    request_timeout : float, default=3600
        How long a client may take to reply, above 0.
    gone_after : float, default=4
        How long a process may be silent without an open connection, above 0.
    silent_after : float, default=30
        How long a process with an open connection may be silent, above 0. A call that the server
        holds is a sign of life.
    rejoin_timeout : float, default=0
        How long the server waits for a client whose process is silent or has left, at least 0.
    max_seconds : float, optional
        How long joining and the run may last together, above 0.

    Raises
    ------
    ValueError
        When a limit is out of range.
    """

    join_timeout: float = 600
    request_timeout: float = 3600
    gone_after: float = 4
    silent_after: float = 30
    rejoin_timeout: float = 0
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in (*POSITIVE, "max_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if not self.rejoin_timeout >= 0:
            raise ValueError(f"rejoin_timeout must be at least 0, got {self.rejoin_timeout}")


@dataclass(frozen=True)
class ConnectionLimits:
    """The limits of connections. Times are in seconds.

    A caller is a stranger until it sends a valid token.

    Parameters
    ----------
    stranger_seconds : float, default=10
        How long a stranger's connection may last, from the first byte of a handshake to the last
        byte of an answer.
    idle_seconds : float, default=75
        How long a known caller may take from an answer to the end of the headers of its next call.
    body_seconds : float, default=30
        How long the body of a reply may take, in addition to the time that its size requires.
    bytes_per_second : float, default=10_000
        The lowest transfer rate at which a body of any size arrives in time.
    max_strangers : int, default=128
        The maximum number of strangers, in addition to one per client. When there are more, the
        oldest is closed.
    max_per_address : int, default=64
        The same for strangers with the same address.

    Raises
    ------
    ValueError
        When a limit is not positive.
    """

    stranger_seconds: float = 10
    idle_seconds: float = 75
    body_seconds: float = 30
    bytes_per_second: float = 10_000
    max_strangers: int = 128
    max_per_address: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"{field.name} must be positive, got {value}")
