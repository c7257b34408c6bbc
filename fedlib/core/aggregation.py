"""Sums over the clients: in the clear, behind masks, with noise, or both.

A sum of the clients' replies is all that most methods need. The estimator chooses an `Aggregation`
from its parameters ``secure`` and ``epsilon``, and hands it to a flow, which asks it for totals and
is written once::

    replies = yield from aggregation.describe(DescribeFeatures())
    total, clients = yield from aggregation.sum(SumClusters(centres), check)

The class in this module sums in the clear. `fedlib.protection.sums` has the others.

Agreement: what must be equal at all clients, and what happens to those that differ.

A client can send a reply that is valid by itself and yet impossible next to the others' replies: it
has another count of features, or a class that no other client knows. `settle` compares such
replies. The larger side stays in the run, and the others leave it like clients that have failed. If
too few clients would remain, or no side is larger, the run ends with `Disagreement`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from math import fsum
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedlib.core.column_names import difference, listed
from fedlib.core.columns import EMPTY, KIND_NAMES, as_categories
from fedlib.core.messages import Message, MessageError, Privacy
from fedlib.core.protocol import Flow, Reject, Replies, TooFewClients
from fedlib.core.wording import printable

MAX_SHOWN = 500  # characters of a client's value in the text of an error


class Disagreement(ValueError):
    """The clients disagree.

    Attributes
    ----------
    minority : sequence of str
        The clients that are not on the largest side; empty if no side is larger than all others.
    """

    def __init__(self, text: str, minority: Sequence[str] = ()):
        super().__init__(printable(text))  # it contains names that clients have sent
        self.minority = list(minority)


class NoMinority(Disagreement, MessageError):
    """The replies of all clients together allow no next request, and no client differs."""


def agree(values_of: str, values: Mapping[str, Any], show: Callable[[Any], str] = str) -> Any:
    """Return the value on which all clients agree.

    Parameters
    ----------
    values_of : str
        A name for the compared values, for the text of the error.
    values : mapping of str to object
        One value per client; at least one.
    show : callable, default=str
        Turns a value into text for the error.

    Raises
    ------
    Disagreement
        When the values differ; the text names the clients.

    Examples
    --------
    >>> agree("the count of features", {"A": 2, "B": 2, "C": 3})
    Traceback (most recent call last):
    ...
    fedlib.core.aggregation.Disagreement: clients disagree on the count of features: 2 at \
'A', 'B'; 3 at 'C'
    """
    sides: dict[Any, list[str]] = {}
    for client, value in values.items():
        sides.setdefault(value, []).append(client)
    if len(sides) > 1:
        described = (
            f"{printable(show(v), MAX_SHOWN)} at {', '.join(map(repr, at))}"
            for v, at in sides.items()
        )
        raise Disagreement(
            f"clients disagree on {values_of}: {'; '.join(described)}",
            minority(list(sides.values())),
        )
    return next(iter(sides))


def agree_on_kind(what: str, label: object, kinds: Mapping[str, int]) -> int:
    """Return the kind of a column on which all clients agree, `fedlib.core.columns.EMPTY` if none.

    Parameters
    ----------
    what : {"column", "feature"}
    label : str or int
        The name of the column, or its position.
    kinds : mapping of str to int
        The kind at each client. A client without values agrees with every kind.

    Raises
    ------
    Disagreement
        When the column contains numbers at one client and text at another.
    """
    known = {client: kind for client, kind in kinds.items() if kind != EMPTY}
    try:
        content = f"the content of {what} {label!r}"
        return int(agree(content, known, KIND_NAMES.__getitem__)) if known else EMPTY
    except Disagreement as error:
        text = f"{error}; where codes look like numbers, declare them: {as_categories(label)}"
        raise Disagreement(text, error.minority) from None


def minority(sides: Sequence[Sequence[str]]) -> list[str]:
    """Return the clients that are not on the largest side; none if the largest is not unique.

    Examples
    --------
    >>> minority([["A", "C"], ["B"]]), minority([["A"], ["B"]])
    (['B'], [])
    """
    sizes = sorted(map(len, sides))
    if len(sizes) < 2 or sizes[-1] == sizes[-2]:
        return []
    return [client for side in sides if len(side) < sizes[-1] for client in side]


def agree_on_features(described: Mapping[str, Any]) -> int:
    """Return the count of features on which all clients agree.

    Names are compared before numbers, so that the error names the missing column. A client without
    names is assumed to have the features of the others. If clients with different names are equally
    many, those without names stay, provided that they are more.

    Parameters
    ----------
    described : mapping of str to object
        One object per client with ``n_features`` and ``features``, the names or an empty tuple:
        replies of one class, or clients.

    Raises
    ------
    Disagreement
        When the clients disagree.
    ValueError
        When they have no features.

    Examples
    --------
    >>> from types import SimpleNamespace as Reply
    >>> agree_on_features({"A": Reply(n_features=1, features=("age",)),
    ...                    "B": Reply(n_features=1, features=("weight",))})
    Traceback (most recent call last):
    ...
    fedlib.core.aggregation.Disagreement: clients disagree on the features: 'age' at 'A'; \
'age' is missing, and 'weight' is additional at 'B'
    """
    names = {client: tuple(one.features) for client, one in described.items() if one.features}
    if wrong := [client for client in names if len(names[client]) != described[client].n_features]:
        which = ", ".join(map(repr, wrong))
        raise Disagreement(f"there must be one name per feature, but not at {which}", wrong)
    if names:
        counts = Counter(names.values())
        most = max(counts, key=lambda one: counts[one])
        try:
            agree("the features", names, lambda one: difference(most, one) or listed(one))
        except Disagreement as error:
            if not error.minority and len(described) - len(names) > counts[most]:
                error.minority = list(names)
            raise
    n_features = agree(
        "the number of features", {client: one.n_features for client, one in described.items()}
    )
    if n_features == 0:
        raise ValueError("the clients' points have no features")
    return int(n_features)


def exclude(
    replies: Replies, reasons: Mapping[str, str], error: Exception | None = None
) -> Generator[Reject, Replies, Replies]:
    """Exclude clients whose replies cannot be right; return the replies of the others.

    A flow calls it as ``replies = yield from exclude(replies, reasons)``.

    Parameters
    ----------
    replies : Replies
    reasons : mapping of str to str
        Why each excluded client's reply is rejected, for the log of the server. If it is empty, no
        client leaves.
    error : Exception, optional
        Raised when too few clients remain; by default `TooFewClients`.
    """
    if not reasons:
        return replies
    rest = yield Reject(reasons, error)
    return replies.without(reasons, rest.lost)


def settle(
    replies: Replies, check: Callable[[Replies], object]
) -> Generator[Reject, Replies, Replies]:
    """Exclude the clients that disagree with most of the others; return the others' replies.

    A flow calls it as ``replies = yield from settle(replies, agree_on_features)``.

    Parameters
    ----------
    replies : Replies
    check : callable
        Raises `Disagreement` as long as the replies do not fit together.

    Raises
    ------
    Disagreement
        When no side is larger than all others, or too few clients would remain.
    """
    while True:
        try:
            check(replies)
        except Disagreement as error:
            if not error.minority:
                raise
            reasons = dict.fromkeys(error.minority, str(error))
            replies = yield from exclude(replies, reasons, error)
        else:
            return replies


def require_all(replies: Replies) -> Replies:
    """Return the replies if all clients replied, for a protocol that needs every client.

    Raises
    ------
    ValueError
        When a client declined.
    TooFewClients
        When a client is lost.
    """
    if replies.declined:
        raise ValueError(
            f"every client is needed, but these are passive or decline: {replies.declined}"
        )
    if replies.lost:
        raise TooFewClients(f"every client is needed, but these are lost: {replies.lost}")
    return replies


class AgreedColumns:
    """The interface of `fedlib.Schema` for estimators.

    Attributes
    ----------
    columns : tuple of fedlib.tables.schema.cells.Column
        All columns that are read.
    features : tuple of str
        The names of the features, in their order.
    limits : dict of str to tuple
        The smallest and the largest number of each column that has a limit.
    weight : str or None
        The name of the column with the weights of the rows.
    classes : list or None
        The classes that the target may have.
    digest : str
        The SHA-256 of what matters for a run.
    """

    columns: tuple[Any, ...]
    features: tuple[str, ...]
    limits: dict[str, tuple[float, float]]
    weight: str | None
    classes: list[Any] | None
    digest: str

    def lacking(self) -> list[str]:
        """Return everything that a protected run needs and the schema does not declare."""
        raise NotImplementedError

    def clients(self, client_class: Any, protected: bool, roles: tuple[str, ...] = ()) -> Any:
        """Return what makes a client of a raw part: it brings the part into the agreed form."""
        raise NotImplementedError

    def rows(self, X: Any, protected: bool) -> Any:
        """Return new rows with the agreed features; an array is returned as it is."""
        raise NotImplementedError

    def to_json(self) -> bytes:
        """Return the descriptor as JSON text."""
        raise NotImplementedError


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
        The count of clients of the run; 0 before `describe`.
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
            Further functions for `fedlib.core.aggregation.settle`.

        Returns
        -------
        Replies
            Those of the clients that agree.

        Raises
        ------
        fedlib.core.aggregation.Disagreement
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
