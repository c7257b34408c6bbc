"""The time limits of a run."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """The time limits of a run, in seconds.

    Parameters
    ----------
    join_timeout : float, default=600
        How long the first exchange waits for clients to join, above 0.
    request_timeout : float, default=3600
        How long a client may take to reply, above 0.
    gone_after : float, default=5
        How long a process may be silent, above 0.
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
    gone_after: float = 5
    rejoin_timeout: float = 0
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("join_timeout", "request_timeout", "gone_after", "max_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if not self.rejoin_timeout >= 0:
            raise ValueError(f"rejoin_timeout must be at least 0, got {self.rejoin_timeout}")
