"""The messages of leave-one-site-out, and the state of its clients."""

from __future__ import annotations

from fedlib.core.messages import Message


class BeginFold(Message):
    """Begin another fold: forget the model of the one before."""

    discloses = "nothing"
    asks_for_data = False
    begins = True


class TakeModel(Message):
    """Predict your rows with this model, and answer requests about its scores from now on.

    Attributes
    ----------
    model : bytes
        The content of a model file (`fedlib.sites.models`).
    """

    discloses = "the model of all other sites, and the parameters of the estimator"
    asks_for_data = False
    model: bytes


class FoldState(Message):
    """The state of a client between two requests.

    Attributes
    ----------
    inner : bytes
        The state of the protocol's client, encoded; empty if it has none.
    model : bytes
        The model that is scored; empty before it arrives.
    """

    discloses = "nothing: it stays with the client"
    inner: bytes
    model: bytes
