"""Sums over the clients: in the clear, behind masks, with noise, or both.

A sum of the clients' replies is all that most methods need. The estimator chooses an `Aggregation`
from its parameters ``secure`` and ``epsilon``, and hands it to a flow, which asks it for totals and
is written once::

    replies = yield from aggregation.describe(DescribeFeatures())
    total, clients = yield from aggregation.sum(SumClusters(centres), check)

The class in this module sums in the clear. `fedlib.protection.sums` has the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import fsum
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedlib.core.agreement import agree_on_features, exclude, settle
from fedlib.core.messages import Message, Privacy
from fedlib.core.names import difference
from fedlib.core.protocol import Flow, Replies


class Total(NamedTuple):
    """A sum over clients.

    Attributes
    ----------
    total : Message
        The sum of all fields of the replies, in a message of their class.
    clients : tuple of str
        The clients whose replies the sum contains. With masks, one that is lost after it has sent
        its values is among them.
    """

    total: Any
    clients: tuple[str, ...]


class Aggregation:
    """Sums the clients' replies in the clear: the server sees each of them.

    Attributes
    ----------
    masked : bool
        Whether the server sees totals only.
    privacy : Privacy or None
        The privacy loss of each request, if the replies have noise.
    n_clients : int
        The number of clients of the run; 0 before `describe`.
    features : tuple of str
        The names of the columns of which the server knows bounds; empty if they have none.

    Examples
    --------
    >>> from fedlib.clustering.kmeans import FederatedKMeansClient
    >>> from fedlib.clustering.kmeans.messages import MeasureInertia
    >>> from fedlib.core.in_process import InProcess
    >>> from fedlib.core.protocol import run
    >>> parts = {"A": [[1.0]], "B": [[2.0]], "C": [[0.5]]}
    >>> clients = InProcess({name: FederatedKMeansClient(X) for name, X in parts.items()})
    >>> run(Aggregation().sum(MeasureInertia(np.zeros((1, 1)))), clients)
    Total(total=Inertia(inertia=5.25), clients=('A', 'B', 'C'))
    """

    masked: ClassVar[bool] = False
    privacy: Privacy | None = None
    n_clients = 0
    features: tuple[str, ...] = ()

    def describe(
        self, request: Message, *agreements: Callable[[Mapping[str, Any]], object]
    ) -> Flow[Replies]:
        """Send the first request of a run, and let the clients agree on their features.

        Parameters
        ----------
        request : Message
            Its reply has ``n_features`` and ``features``.
        *agreements
            Further functions for `fedlib.core.agreement.settle`.

        Returns
        -------
        Replies
            Those of the clients that agree.

        Raises
        ------
        fedlib.core.agreement.Disagreement
            A ValueError: when too few clients agree.
        """
        replies = yield request
        self.n_clients = replies.n_all
        for agreement in (agree_on_features, *agreements):
            replies = yield from settle(replies, agreement)
        return (yield from self._with_known_features(replies))

    def _with_known_features(self, replies: Replies) -> Flow[Replies]:
        """Exclude the clients whose columns are not those of the bounds, in their order."""
        others = {
            name: f"bounds of other columns: {difference(self.features, reply.features)}"
            for name, reply in replies.items()
            if self.features and reply.features and reply.features != self.features
        }
        if 2 * len(others) >= len(replies) and others:
            client, problem = next(iter(others.items()))
            raise ValueError(f"{problem} at client {client!r}")
        return (yield from exclude(replies, others))

    def sum(
        self,
        request: Message,
        check: Callable[[Replies], Mapping[str, str]] | None = None,
    ) -> Flow[Total]:
        """Return the sum of the clients' replies to a request.

        Parameters
        ----------
        request : Message
            A request whose reply has only numbers and arrays of numbers. If the replies are masked
            or have noise, its ``reply_lengths`` determines the lengths of all axes, and its
            ``sum_digits`` the digits of all fields of floats.
        check : callable, optional
            Returns the reason to exclude each client whose reply cannot be right. It is called only
            if the server sees single replies.

        Notes
        -----
        In the clear, sums of floats are correctly rounded, so they do not depend on the order of
        the clients.
        """
        replies = yield request
        if check is not None:
            replies = yield from exclude(replies, check(replies))
        fields = request.reply.__struct_fields__
        added = {
            name: self._add([getattr(reply, name) for reply in replies.values()]) for name in fields
        }
        return Total(request.reply(**added), tuple(replies))

    def noise(self, request: Message, n_clients: int) -> Any:
        """Return the noise in the sum of so many replies; None if there is none."""
        return None

    def _add(self, terms: Sequence[Any]) -> Any:
        """Return the sum of numbers, or of arrays of the same shape."""
        stacked = np.array(terms)
        if stacked.dtype.kind != "f":
            total = stacked.sum(axis=0, dtype=np.int64)
        else:
            columns = stacked.reshape(len(stacked), -1).T.tolist()
            total = np.array([fsum(column) for column in columns]).reshape(stacked.shape[1:])
        return total if total.ndim else total.item()
