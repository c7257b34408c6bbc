"""The columns of all clients, and requests to the clients that have described theirs.

Every statistic must describe the same rows. So a client that is lost between two requests ends the
attempt with `ClientLost`, and `repeat` starts again with the clients that remain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedlib.core.agreement import agree_on_features, agree_on_kind, exclude, settle
from fedlib.core.array_types import Bytes, Ints
from fedlib.core.columns import EMPTY
from fedlib.core.messages import Message
from fedlib.core.protocol import Flow, Replies
from fedlib.tables.summary.messages import ColumnDescription, DescribeColumns, TableView


class ClientLost(Exception):
    """A client that has contributed to a statistic is lost."""


class Columns(NamedTuple):
    """The columns of all clients.

    Attributes
    ----------
    names : tuple of str
        The names; their positions 0, 1 and so on if they have none.
    named : bool
        Whether the columns have names.
    kinds : array (n_columns,) of uint8
        `NUMBER`, `TEXT` or `EMPTY` for each column.
    n_rows : int
        The number of rows.
    counts : array (n_columns,) of int64
        The number of values.
    """

    names: tuple[str, ...]
    named: bool
    kinds: Bytes
    n_rows: int
    counts: Ints

    def of_kind(self, *kinds: int) -> Ints:
        """Return the positions of the columns of these kinds."""
        return np.flatnonzero(np.isin(self.kinds, kinds)).astype(np.int64)


def repeat(attempt: Callable[[], Flow[Any]]) -> Flow[Any]:
    """Run a flow again, without the lost clients, until no client is lost during it."""
    while True:
        try:
            return (yield from attempt())
        except ClientLost:
            continue


def describe(view: TableView) -> Flow[Replies]:
    """Ask for the columns; return the descriptions of the clients that agree on them."""
    replies = yield DescribeColumns(*view)
    replies = yield from settle(replies, agree_on_features)
    return (yield from settle(replies, agree_on_columns))


def agree_on_columns(described: Mapping[str, ColumnDescription]) -> Columns:
    """Return the columns on whose kinds all clients agree.

    Raises
    ------
    Disagreement
        When a column contains numbers at one client and text at another.
    """
    return columns_of(*agree_on_kinds(described), described)


def columns_of(names: tuple[str, ...], kinds: Bytes, described: Mapping[str, Any]) -> Columns:
    """Return the columns of clients that have counted their rows and values."""
    named = any(one.features for one in described.values())
    n_rows = sum(reply.n_rows for reply in described.values())
    counts = np.sum([reply.counts for reply in described.values()], axis=0)
    return Columns(names, named, kinds, n_rows, counts.astype(np.int64))


def agree_on_kinds(described: Mapping[str, Any]) -> tuple[tuple[str, ...], Bytes]:
    """Return the names of the columns, or their positions, and the kinds on which clients agree.

    A column without values at a client agrees with every kind.

    Raises
    ------
    Disagreement
        When a column contains numbers at one client and text at another.
    """
    first = next(iter(described.values()))
    kinds = np.full(first.n_features, EMPTY, np.uint8)
    names = next((one.features for one in described.values() if one.features), ())
    labels = names or tuple(map(str, range(first.n_features)))
    for j, label in enumerate(labels):
        of_clients = {client: int(reply.kinds[j]) for client, reply in described.items()}
        kinds[j] = agree_on_kind("column", label, of_clients)
    return labels, kinds


def ask(
    request: Message, described: Replies, contradiction: Callable[[str, Any], str | None]
) -> Flow[Replies]:
    """Send a request; return the replies of the described clients.

    Parameters
    ----------
    request : Message
    described : Replies
        The descriptions of the clients whose statistics are combined.
    contradiction : callable
        Returns why a client's reply contradicts what it has sent before, or None.

    Raises
    ------
    ClientLost
        When the reply of a described client is missing.
    """
    replies = yield request
    reasons: dict[str, str] = {}
    for name, reply in replies.items():
        if name not in described:
            reasons[name] = f"{type(reply).__name__} from a client that declined to describe"
        elif reason := contradiction(name, reply):
            reasons[name] = f"{type(reply).__name__}{reason}"
    replies = yield from exclude(replies, reasons)
    if set(replies) != set(described):
        raise ClientLost
    return replies


def n_columns(described: Replies) -> int:
    return int(next(iter(described.values())).n_features)
