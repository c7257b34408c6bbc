"""The base class of clients that prepare their data and then hand it to a protocol's client."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import NDArray

from fedlib.messages import Message, decode, encode
from fedlib.protocol import Client, LostState

__all__ = ["WrappingClient"]


class WrappingClient(Client):
    """A client that answers some requests itself and passes all others to the client it wraps.

    Attributes
    ----------
    inner : Client or None
        The protocol's client; None until `prepares` has arrived.
    prepares : message class
        The request after which the wrapped client exists.
    """

    inner: Client | None = None
    prepares: ClassVar[type[Message]]

    @property
    def omissible(self) -> tuple[type[Message], ...]:  # type: ignore[override]
        """The replies of the wrapped client from which groups of few rows may be left out."""
        return () if self.inner is None else self.inner.omissible

    def handle(self, request: Message) -> Message:
        """Return the reply of this client's handler, or else that of the wrapped client.

        Raises
        ------
        LostState
            When the wrapped client is asked before it exists.
        """
        if type(request) in self.handlers:
            return super().handle(request)
        return self._prepared().handle(request)

    def group_sizes(self, request: Message, reply: Message) -> NDArray[Any] | None:
        """Return how many rows each of the values in a reply describes; None if not known."""
        if type(request) in self.handlers:
            return super().group_sizes(request, reply)
        return self._prepared().group_sizes(request, reply)

    def _prepared(self) -> Client:
        if self.inner is None:
            raise LostState(f"{type(self).__name__} has no {self.prepares.__name__}")
        return self.inner

    def _inner_state(self) -> bytes:
        """Return the encoded state of the wrapped client; empty if it has none."""
        state: Any = self._prepared().state
        return b"" if state is None else encode(state)

    def _restore_inner(self, state: bytes) -> None:
        """Give the wrapped client a state that `_inner_state` has returned."""
        if state:
            self._prepared().state = decode(state)
