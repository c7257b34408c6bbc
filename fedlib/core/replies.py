"""The replies of one step of a run, as a flow receives them, and its way to reject some."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from fedlib.core.messages import Message


class Combined(Message):
    """Stands for a reply that the transport has added to the reply of another client.

    Only a transport that combines replies creates it. It may do so before the server reads them, if
    `Client.combinable` lists the class of the replies. ``combine`` of that class is a static method
    that takes the replies of several clients to one request, in the order of the clients, and
    returns one reply that stands for all of them, or raises ValueError if they do not fit together.
    Add integers: a sum of floats depends on how the replies are grouped.
    """

    discloses = "nothing by itself: it is part of a combined reply"
    into: Annotated[str, msgspec.Meta(max_length=2**16)]


class Replies(Mapping[str, Any]):
    """The replies of one step, by client, in the transport's order.

    Parameters
    ----------
    replies : mapping of str to Message
        The reply of each client, as returned by `Message.accept`.
    declined : sequence of str
        The clients that declined in this step.
    lost : sequence of str
        The clients that have left the run so far.
    combined : mapping of str to str
        The clients whose replies the transport has combined with those of others. For each, the
        client that has the combined reply.
    """

    def __init__(
        self,
        replies: Mapping[str, Any],
        declined: Sequence[str] = (),
        lost: Sequence[str] = (),
        combined: Mapping[str, str] | None = None,
    ):
        self._replies = dict(replies)
        self.declined = list(declined)
        self.lost = list(lost)
        self.combined = dict(combined or {})

    def __getitem__(self, client: str) -> Any:
        return self._replies[client]

    def __iter__(self) -> Iterator[str]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    def __repr__(self) -> str:
        return f"Replies({self._replies!r})"

    def without(self, clients: Collection[str], lost: Sequence[str]) -> Replies:
        """Return the replies of the other clients; ``lost`` are the clients lost so far."""
        kept = {name: reply for name, reply in self.items() if name not in clients}
        combined = {name: into for name, into in self.combined.items() if into not in clients}
        return Replies(kept, self.declined, lost, combined)

    @property
    def n_all(self) -> int:
        """The number of clients that have been in the run."""
        return len(self) + len(self.declined) + len(self.lost)

    def n_clients(self, client: str) -> int:
        """Return the number of clients whose data the reply of this client contains."""
        return 1 + list(self.combined.values()).count(client)


@dataclass(frozen=True)
class Reject:
    """Yielded by a flow instead of a request: these clients leave the run.

    Their replies are valid by themselves but cannot be right, as the flow has found out by
    comparing them with what it knows. The run sends nothing. It resumes the flow with `Replies`
    that contain only the lost clients, or throws the error. See `fedlib.core.agreement`.

    Attributes
    ----------
    reasons : mapping of str to str
        The reason for each client, for the server's log.
    error : Exception or None
        Thrown when too few clients remain; by default `TooFewClients`.
    """

    reasons: Mapping[str, str]
    error: Exception | None = None
