"""Agreement: what must be equal at all clients, and what happens to those that differ.

A client can send a reply that is valid by itself and yet impossible next to the others' replies: it
has another number of features, or a class that no other client knows. `settle` compares such
replies. The larger side stays in the run, and the others leave it like clients that have failed. If
too few clients would remain, or no side is larger, the run ends with `Disagreement`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from fedlib.core.columns import EMPTY, KIND_NAMES, as_categories
from fedlib.core.messages import MessageError
from fedlib.core.names import difference, listed, printable
from fedlib.core.protocol import Reject, Replies, TooFewClients

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
    >>> agree("the number of features", {"A": 2, "B": 2, "C": 3})
    Traceback (most recent call last):
    ...
    fedlib.core.agreement.Disagreement: clients disagree on the number of features: 2 at \
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
    """Return the number of features on which all clients agree.

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
    fedlib.core.agreement.Disagreement: clients disagree on the features: 'age' at 'A'; \
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
