"""The states of the clients of boosting, and how requests change them."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from fedlib.boosting.messages import BeginBoosting, Growth
from fedlib.core.array_types import Floats32, Ints32
from fedlib.core.messages import Array, Message
from fedlib.kernels.splits import Decisions


class HeldOut(Message):
    """The state of a client before the first tree: how it draws its rows for validation."""

    discloses = "nothing: it stays with the client"
    validation_fraction: float
    seed: int


class Growing(BeginBoosting, kw_only=True):
    """The state of a client while trees grow: what `BeginBoosting` says, and its rows.

    ``margins`` are the rows' log-odds by all finished trees, or what the objective has in their
    place. ``node`` is each row's node in the growing tree of each output, below ``n_nodes``, which
    follows from the requests alone. ``ended`` is the node in which the client found no split for
    the row, or -1. ``held_out`` is how it draws its rows for validation, as in `HeldOut`.
    """

    discloses = "nothing: it stays with the client"
    n_rounds: int
    held_out: tuple[float, int]
    n_nodes: int
    margins: Annotated[np.ndarray, Array("float32", ("rows", "outputs"))]
    node: Annotated[np.ndarray, Array("int32", ("outputs", "rows"))]
    ended: Annotated[np.ndarray, Array("int32", ("outputs", "rows"))]


class Predictions(Message):
    """The state of a client at the end: the index of each row's class, and the probabilities.

    For two classes, ``probabilities`` has one column, that of the second class.
    """

    discloses = "nothing: it stays with the client"
    labels: Annotated[np.ndarray, Array("int64", ("rows",), ge=0, le=2**10)]
    probabilities: Annotated[np.ndarray, Array("float64", ("rows", "columns"), ge=0, le=1)]


class PredictedTargets(Message):
    """The state of a client at the end of a regression: the prediction for each row."""

    discloses = "nothing: it stays with the client"
    labels: Annotated[np.ndarray, Array("float64", ("rows",))]


class PredictedLevels(Message):
    """The state of a client at the end of a regression with several outputs per row."""

    discloses = "nothing: it stays with the client"
    labels: Annotated[np.ndarray, Array("float64", ("rows", "outputs"))]


def first_child(state: Growing, request: Growth) -> int:
    """Return the first child of the splits that a request reports."""
    if getattr(request, "parents", ()):
        return request.decided
    return request.decided + len(request.feature) if request.decided else len(state.node)


def new_splits(state: Growing, request: Growth) -> tuple[Decisions, int]:
    """Return the splits that a request reports, and the number of nodes after them.

    The children of each split are nodes that did not exist before. Otherwise the rows of two
    outputs could meet in a node, and a row could change a histogram by more than
    `fedlib.boosting.private.row_sensitivity`. If the children exist, the request is repeated and
    the rows have moved: there are no new splits.
    """
    decisions, parents = request.decisions, getattr(request, "parents", ())
    if len(parents) not in (0, len(request.feature)):
        raise ValueError(f"{len(parents)} parents for {len(request.feature)} splits")
    child, n_splits = first_child(state, request), np.count_nonzero(request.feature >= 0)
    if not len(request.feature) or child < state.n_nodes:
        return decisions.take(slice(0)), state.n_nodes
    return decisions, child + 2 * (len(parents) or int(n_splits))


def finite(margins: ArrayLike) -> Floats32:
    """Return margins as float32 without infinite ones, with which no state could be kept.

    They come from leaves with huge values. An error would disclose that a row is in such a leaf.
    """
    with np.errstate(over="ignore"):
        return np.nan_to_num(np.asarray(margins, np.float32))


def roots(n_outputs: int, n_rows: int) -> Ints32:
    """Return the root of each output's tree for every row, (n_outputs, n_rows)."""
    nodes = np.empty((n_outputs, n_rows), np.int32)
    nodes[:] = np.arange(n_outputs)[:, None]
    return nodes
