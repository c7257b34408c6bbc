"""The limits of a run: of the sessions, and of the connections that carry their calls."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, ClassVar

from fedlib.core.parameters import (
    Interval,
    PositiveFloat,
    PositiveInt,
    describe,
    validate_parameter_constraints,
)

Seconds = Annotated[float, Interval(Real, 0, None, closed="right")]  # may be infinite


@describe
@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a run over HTTP.

    A caller is a stranger until it sends a valid token.

    Raises
    ------
    ValueError
        When a limit is out of range.

    Examples
    --------
    >>> Limits(gone_after=2).request_timeout
    3600.0
    """

    join_timeout: Annotated[
        Seconds,
        "Seconds to wait for clients to join; then those that have not are lost (NeverJoined).",
    ] = 600.0
    request_timeout: Annotated[
        Seconds, "Seconds that a client may take to reply; then it is lost (TimedOut)."
    ] = 3600.0
    gone_after: Annotated[
        Seconds,
        "Seconds without a call and without an open connection after which a client is gone.",
    ] = 4.0
    silent_after: Annotated[
        Seconds,
        """Seconds without a call on an open connection after which a client is gone. A call that
        the server holds is a sign of life.""",
    ] = 30.0
    rejoin_timeout: Annotated[
        float,
        Interval(Real, 0, None, closed="both"),
        """Seconds in which a client that is gone or has left may join again before it is lost
        (Gone, Left).""",
    ] = 0.0
    max_seconds: Annotated[
        float | None,
        Interval(Real, 0, None, closed="right"),
        None,
        """The maximum count of seconds for joining and the run together. After them, all clients
        whose replies are missing are lost (TimedOut).""",
    ] = None
    max_bytes: Annotated[
        PositiveInt,
        """The maximum size of a reply, in bytes. A smaller maximum follows from the request for a
        reply whose class has one (`fedlib.core.messages.size_limit`).""",
    ] = 2**28
    stranger_seconds: Annotated[
        PositiveFloat,
        """Seconds that a stranger's connection may last, from the first byte of a handshake to the
        last byte of an answer.""",
    ] = 10.0
    idle_seconds: Annotated[
        PositiveFloat,
        """Seconds that a known caller may take from an answer to the end of the headers of its next
        call.""",
    ] = 75.0
    body_seconds: Annotated[
        PositiveFloat,
        "Seconds that the body of a reply may take, in addition to those that its size requires.",
    ] = 30.0
    bytes_per_second: Annotated[
        PositiveFloat, "The lowest transfer rate at which a body of any size arrives in time."
    ] = 10_000.0
    max_strangers: Annotated[
        PositiveInt,
        """The maximum count of strangers, in addition to one per client. When there are more, the
        oldest is closed.""",
    ] = 128
    max_per_address: Annotated[
        PositiveInt,
        "The maximum count of strangers with the same address, in addition to one per client.",
    ] = 64

    _parameter_constraints: ClassVar[dict[str, list[Any]]]

    def __post_init__(self) -> None:
        validate_parameter_constraints(self._parameter_constraints, vars(self), "Limits")
