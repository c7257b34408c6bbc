"""The messages of federated boosting while trees grow, and the states of its clients.

Gradients and hessians travel as integer multiples of 2**-bits; `BeginBoosting` fixes ``bits``. The
messages before that are in `fedlib.boosting.descriptions`, `fedlib.boosting.categories` and
`fedlib.boosting.cuts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from math import isfinite
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np

from fedlib.boosting.classes import Class
from fedlib.boosting.objectives import OBJECTIVES, Parameter, check_parameter
from fedlib.boosting.rules import RulesName
from fedlib.boosting.trees import Tree, children, level_starts, no_sets
from fedlib.core.array_fields import MAX_COUNT, OF_CLIENT
from fedlib.core.array_types import Bytes, Ints
from fedlib.core.messages import Array, Message, MessageError
from fedlib.kernels.histograms import extremes
from fedlib.kernels.splits import Decisions
from fedlib.tables.summary.messages import Category

AnyMessage = TypeVar("AnyMessage", bound=Message)

MAX_SUM = 2**53  # of one client; the sums of a thousand clients fit an int64
MAX_NODES = 2**31 - 2
MAX_ROWS = 2**31 - 1  # of one client
MAX_WEIGHT = 2.0**40  # of one client's rows; squares of a thousand clients' sums fit a float32

ObjectiveName = Literal[
    "binary:logistic",
    "multi:softprob",
    "reg:squarederror",
    "reg:pseudohubererror",
    "count:poisson",
    "reg:logistic",
    "reg:gamma",
    "reg:tweedie",
    "reg:quantileerror",
    "reg:absoluteerror",
    "reg:expectileerror",
    "survival:aft",
]
MetricName = Literal[
    "logloss",
    "error",
    "auc",
    "aucpr",
    "mlogloss",
    "merror",
    "rmse",
    "mae",
    "mape",
    "mphe",
    "poisson-nloglik",
    "gamma-nloglik",
    "gamma-deviance",
    "tweedie-nloglik",
    "quantile",
    "expectile",
    "aft-nloglik",
    "interval-regression-accuracy",
]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]
Margins = Annotated[tuple[float, ...], msgspec.Meta(max_length=2**10)]  # one per output
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Scales = Annotated[tuple[NotNegative, ...], msgspec.Meta(max_length=2**10)]  # one per output
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_NODES)]
Weight = Annotated[float, msgspec.Meta(ge=0, le=MAX_SUM)]
RowLimit = Annotated[float, msgspec.Meta(gt=0, le=MAX_WEIGHT)]  # of a weight or a target
MAX_LOSS = 2.0**200
Loss = Annotated[float, msgspec.Meta(ge=0, le=MAX_LOSS)]
Features = Annotated[np.ndarray, Array("int32", ("nodes",), ge=-1, below=OF_CLIENT)]
Thresholds = Annotated[np.ndarray, Array("float32", ("nodes",))]
MissingLeft = Annotated[np.ndarray, Array("bool", ("nodes",))]
# The categories of each feature, None for a feature of numbers; empty if all features are numbers.
Levels = Annotated[
    tuple[Annotated[tuple[Category, ...], msgspec.Meta(max_length=2**16)] | None, ...],
    msgspec.Meta(max_length=2**16),
]
Sets = Annotated[bytes, msgspec.Meta(max_length=2**30)]  # of categories, one per node


class BeginBoosting(Message):
    """Start from these log-odds of the second class.

    Report gradients as multiples of 2**-bits. If histograms will be requested, ``offsets`` and
    ``thresholds`` are the bins of all features, as in `fedlib.boosting.cuts.Cuts`.

    For more than one margin per row, start from ``base_margins`` instead of ``base_margin``. A
    regression has no classes. ``parameter`` is that of the objective. The weight of the rows of the
    second class is multiplied by ``scale_pos_weight``. Each tree uses a fraction ``subsample`` of
    the rows, drawn with ``seed``. Proposals have the penalty ``reg_alpha`` and steps of at most
    ``max_delta_step``, if that is not 0. ``levels`` are the categories of each feature. Weights
    above ``max_weight`` and targets beyond ±``max_target`` count as these. Proposals follow the
    ``xgboost_rules``.
    """

    discloses = (
        "the classes, their shares, roughly the count of all rows, the cuts between bins, and the"
        " categories of all clients"
    )
    effortless = ("bits", "seed")
    classes: Annotated[tuple[Class, ...], msgspec.Meta(max_length=2**10)]
    base_margin: float
    bits: Annotated[int, msgspec.Meta(ge=-200, le=1000)]
    offsets: Annotated[np.ndarray, Array("int64", ("edges",), ge=0, le=MAX_COUNT)]
    thresholds: Annotated[np.ndarray, Array("float32", ("bins",))]
    objective: ObjectiveName = "binary:logistic"
    base_margins: Margins = ()
    parameter: Parameter = 0.0
    scale_pos_weight: Annotated[float, msgspec.Meta(gt=0, le=2.0**40)] = 1.0
    subsample: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    seed: Seed = 0
    reg_alpha: NotNegative = 0.0
    max_delta_step: NotNegative = 0.0
    levels: Levels = ()
    max_weight: RowLimit = MAX_WEIGHT
    max_target: RowLimit = MAX_WEIGHT
    xgboost_rules: RulesName = "3.2"  # the server of an earlier version does not send them

    def __post_init__(self) -> None:
        super().__post_init__()
        n_classes = len(self.classes)
        if self.objective == "binary:logistic" and n_classes != 2:
            raise MessageError(f"{n_classes} classes, binary:logistic has 2")
        check_parameter(self.objective, self.parameter, len(self.first_margins))
        several = self.objective == "multi:softprob"
        # Otherwise a kernel would read beyond an array.
        wanted = len(self.first_margins) if OBJECTIVES[self.objective].has_levels else 1
        wanted = max(n_classes, 1) if several else wanted
        if (several or self.base_margins) and len(self.base_margins) != wanted:
            raise MessageError(
                f"{self.objective} with {n_classes} classes has {wanted} margins, got"
                f" {len(self.base_margins)}"
            )
        check_finite(self.base_margins)

    @property
    def first_margins(self) -> tuple[float, ...]:
        """The margins of a row before the first tree."""
        return self.base_margins or (self.base_margin,)


class Growth(Message):
    """Base class of the requests that report decisions and ask about the next nodes.

    The nodes ``decided``, decided + 1, … are split by the given features and thresholds, or are
    leaves where the feature is -1. If there are ``values``, they are the values of all nodes of the
    finished tree, and a new tree begins. Then the nodes ``first`` to first + n_open - 1 are open.
    ``weight`` is the total weight that the client reported, in the unit of its reply; no reply may
    exceed it.

    With several outputs per row, the trees of a round grow side by side and are numbered together:
    their roots are the nodes 0, 1, …. All indices, those of the children of split nodes included,
    are at most 2**31 - 2.
    """

    discloses = "nothing by itself"
    # Of these, `memory` counts those on which the size of the reply depends.
    effortless = (
        *("decided", "first", "n_open", "n_features", "n_rounds", "n_bins", "n_candidates"),
        *("n_nodes", "n_outputs"),
    )
    decided: Count
    feature: Features
    threshold: Thresholds
    missing_left: MissingLeft
    values: Annotated[np.ndarray, Array("float32", ("tree",))]
    first: Count
    n_open: Count
    weight: Weight

    def __post_init__(self) -> None:
        super().__post_init__()
        n_splits = len(self.feature)
        if self.decided + 3 * n_splits > MAX_NODES:  # the nodes decided, and two children of each
            raise MessageError(f"the children of {n_splits} nodes from {self.decided} on")

    @property
    def decisions(self) -> Decisions:
        """The decisions that the request reports."""
        return Decisions(self.feature, self.threshold, self.missing_left, self._sets())

    def _sets(self) -> Bytes:
        """Return the nodes' sets of categories."""
        return no_sets(len(self.feature))


class SplitProposals(Message):
    """A client's best splits of each open node, the best first, and the weight of its rows there.

    ``direction`` is 0 if missing values go right, 1 if they go left and 2 if there are none. A
    threshold lies halfway between two values of the client; for integers, that discloses both.
    ``gain`` depends on the classes on either side and so discloses something about them.
    """

    discloses = (
        "the best splits for a client's rows, halfway between two of its values; its rows in each "
        "node; its log-loss"
    )
    weight: Annotated[np.ndarray, Array("float64", ("nodes",), ge=0, le=MAX_WEIGHT)]
    count: Annotated[np.ndarray, Array("int64", ("nodes",), ge=0)]
    feature: Annotated[np.ndarray, Array("int32", ("splits",), ge=0)]
    threshold: Annotated[np.ndarray, Array("float32", ("splits",))]
    direction: Annotated[np.ndarray, Array("uint8", ("splits",), le=2)]
    gain: Annotated[np.ndarray, Array("float32", ("splits",), ge=0)]
    loss: Loss


class ProposeSplits(Growth):
    """Propose the ``n_candidates`` best splits of each open node for your rows.

    With ``may_end``, a client that finds no split for a node keeps its rows there. At the first
    request of a round, ``scales`` are those of the outputs' residuals, if the objective has some.
    """

    discloses = "the splits chosen so far and the leaves of the finished tree"
    reply = SplitProposals
    n_features: Count
    n_candidates: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    reg_lambda: NotNegative
    gamma: NotNegative
    min_child_weight: NotNegative
    may_end: bool
    scales: Scales = ()

    def reply_lengths(self) -> dict[str, int]:
        return {"nodes": self.n_open, "splits": self.n_open * self.n_candidates}

    def accept(self, reply: Message) -> SplitProposals:
        """Raise MessageError unless the proposals fit the open nodes."""
        assert isinstance(reply, SplitProposals)
        check_length("nodes", len(reply.count), self.n_open)
        check_length("splits", len(reply.gain), int(reply.count.sum()))
        if reply.count.max(initial=0) > self.n_candidates:
            raise MessageError(
                f"{reply.count.max()} splits of a node, at most {self.n_candidates} were requested"
            )
        if reply.feature.max(initial=0) >= self.n_features:
            raise MessageError(f"feature {reply.feature.max()} of {self.n_features} features")
        if reply.weight.sum() > self.weight * (1 + 1e-6):  # the client adds in another order
            raise MessageError("the rows weigh more than the client reported before")
        return reply


class CandidateSums(Message):
    """Sums of gradients and hessians left of each split, of its missing values, and of each node.

    In the first tree all predictions are equal. For n rows, n₁ of them positive, G is then n·p − n₁
    and H is n·p(1 − p), which discloses both numbers. That holds for all sums in all replies.
    """

    discloses = (
        "sums that disclose a client's rows of each class on either side of every proposed split "
        "(tree 1: exactly)"
    )
    left: Annotated[np.ndarray, Array("int64", ("splits", "pair"), ge=-MAX_SUM, le=MAX_SUM)]
    missing: Annotated[np.ndarray, Array("int64", ("splits", "pair"), ge=-MAX_SUM, le=MAX_SUM)]
    totals: Annotated[np.ndarray, Array("int64", ("nodes", "pair"), ge=-MAX_SUM, le=MAX_SUM)]


class EvaluateSplits(Message):
    """Sum your gradients left of these splits of the open nodes, ``count`` per node."""

    discloses = "the splits that clients proposed, without their names"
    effortless = ("first",)
    reply = CandidateSums
    first: Count
    count: Annotated[np.ndarray, Array("int64", ("nodes",), ge=0, le=MAX_NODES)]
    feature: Annotated[np.ndarray, Array("int32", ("splits",), ge=0, below=OF_CLIENT)]
    threshold: Annotated[np.ndarray, Array("float32", ("splits",))]
    weight: Weight

    def reply_lengths(self) -> dict[str, int]:
        return {"nodes": len(self.count), "splits": len(self.feature), "pair": 2}

    def accept(self, reply: Message) -> CandidateSums:
        """Raise MessageError unless there is one pair of possible sums per split and node."""
        assert isinstance(reply, CandidateSums)
        check_length("splits", len(reply.left), len(self.feature))
        check_length("nodes", len(reply.totals), len(self.count))
        for sums in (reply.left, reply.missing, reply.totals):
            check_sums(sums, self.weight)
        node = np.repeat(np.arange(len(self.count)), self.count)
        if (reply.left + reply.missing > reply.totals[node])[:, 1].any():
            raise MessageError("the hessians of a split exceed those of its node")
        return reply


class LeafSums(Message):
    """The sums of gradients and hessians of a client's rows in each node of a tree."""

    discloses = "sums that disclose a client's rows of each class in every leaf (tree 1: exactly)"
    sums: Annotated[np.ndarray, Array("int64", ("tree", "pair"), ge=-MAX_SUM, le=MAX_SUM)]


class SumLeaves(Growth):
    """Sum your gradients in each of the ``n_nodes`` nodes of the finished tree."""

    discloses = "the splits chosen last"
    reply = LeafSums
    n_nodes: Count

    def reply_lengths(self) -> dict[str, int]:
        return {"tree": self.n_nodes, "pair": 2}

    def accept(self, reply: Message) -> LeafSums:
        """Raise MessageError unless there is one pair of possible sums per node."""
        assert isinstance(reply, LeafSums)
        check_length("nodes", len(reply.sums), self.n_nodes)
        check_sums(reply.sums, self.weight)
        return reply


class Splits(Growth):
    """A `Growth` that may report splits of any nodes.

    If there are ``parents``, they are the nodes that are split, one after the other, and
    ``decided`` is the first child. ``right`` are the nodes' sets of categories, of equally many
    bytes, if any feature has categories. For ``scales`` see `ProposeSplits`.
    """

    discloses = "nothing by itself"
    parents: Annotated[tuple[Count, ...], msgspec.Meta(max_length=2**20)] = ()
    right: Sets = b""
    scales: Scales = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.parents) not in (0, len(self.feature)):
            raise MessageError(f"{len(self.parents)} parents for {len(self.feature)} splits")
        _check_sets(self.right, len(self.feature))

    def _sets(self) -> Bytes:
        return _sets_of(self.right, len(self.feature))


class KeepTrees(Message):
    """Keep these trees and predict your rows; ``sizes`` is the count of nodes per tree.

    For more than one margin per row, ``base_margins`` replaces ``base_margin``, and the trees of a
    round follow each other. For ``right`` see `Splits`, for ``levels`` `BeginBoosting`. With
    ``has_margins``, the rows of the training had base margins, which all rows need.
    """

    discloses = "the model: its splits, their thresholds or categories, and the leaves' values"
    asks_for_data = False
    base_margin: float
    sizes: Annotated[np.ndarray, Array("int64", ("trees",), ge=1, le=MAX_NODES)]
    feature: Features
    threshold: Thresholds
    missing_left: MissingLeft
    value: Annotated[np.ndarray, Array("float32", ("nodes",))]
    objective: ObjectiveName = "binary:logistic"
    base_margins: Margins = ()
    levels: Levels = ()
    right: Sets = b""
    has_margins: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_finite(self.base_margins)
        _check_sets(self.right, len(self.feature))
        if self.sizes.sum() != len(self.feature):
            raise MessageError(f"{len(self.feature)} nodes for trees of {self.sizes.sum()}")

    def trees(self) -> list[Tree]:
        """Return the trees; their gains, covers and weights are 0, as they stay at the server.

        Raises
        ------
        ValueError
            When the nodes do not form trees.
        """
        trees = []
        right = _sets_of(self.right, len(self.feature))
        ends = np.cumsum(self.sizes)
        for low, high in zip(ends - self.sizes, ends, strict=True):
            feature, unknown = self.feature[low:high], np.zeros(high - low, np.float32)
            level_starts(feature)  # raises ValueError
            tree = Tree(
                feature=feature,
                threshold=self.threshold[low:high],
                missing_left=self.missing_left[low:high],
                left=children(feature),
                value=self.value[low:high],
                gain=unknown,
                cover=unknown,
                weight=unknown,
                right=right[low:high],
            )
            trees.append(tree)
        return trees


class StartTrees(KeepTrees):
    """Begin with these trees: add their values to the margins of your rows."""

    discloses = "the model from which the run continues"
    asks_for_data = True


# States of clients, which stay with them


class HeldOut(Message):
    """The state of a client before the first tree: how it draws its rows for validation."""

    discloses = "nothing: it stays with the client"
    validation_fraction: float
    seed: int


class Growing(BeginBoosting, kw_only=True):
    """The state of a client during training: the settings of `BeginBoosting`, and its rows.

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

    def first_child(self, request: Growth) -> int:
        """Return the first child of the splits that a request reports."""
        if getattr(request, "parents", ()):
            return request.decided
        return request.decided + len(request.feature) if request.decided else len(self.node)

    def new_splits(self, request: Growth) -> tuple[Decisions, int]:
        """Return the splits that a request reports, and the count of nodes after them.

        The children of each split are nodes that did not exist before. Otherwise the rows of two
        outputs could meet in a node, and a row could change a histogram by more than
        `fedlib.boosting.secure.row_sensitivity`. If the children exist, the request is repeated and
        the rows have moved: there are no new splits.
        """
        decisions, parents = request.decisions, getattr(request, "parents", ())
        child, n_splits = self.first_child(request), np.count_nonzero(request.feature >= 0)
        if not len(request.feature) or child < self.n_nodes:
            return decisions.take(slice(0)), self.n_nodes
        return decisions, child + 2 * (len(parents) or int(n_splits))


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


def unchecked_copy(message: AnyMessage, **fields: Any) -> AnyMessage:
    """Return a message with some other fields, without another check of its arrays.

    The caller knows that the new fields are valid, and the receiver checks the message.
    """
    changed = copy(message)
    for name, value in fields.items():
        msgspec.structs.force_setattr(changed, name, value)
    return changed


def check_finite(margins: Sequence[float]) -> None:
    """Raise MessageError unless all margins are finite."""
    if not all(map(isfinite, margins)):
        raise MessageError("a margin is not finite")


def _check_sets(sets: bytes, n_nodes: int) -> None:
    if len(sets) % max(n_nodes, 1) or (sets and not n_nodes):
        raise MessageError(f"{len(sets)} bytes of categories for {n_nodes} nodes")


def _sets_of(sets: bytes, n_nodes: int) -> Bytes:
    """Return sets (n_nodes, n_bytes)."""
    _check_sets(sets, n_nodes)
    return np.frombuffer(sets, np.uint8).reshape(n_nodes, -1) if sets else no_sets(n_nodes)


def check_length(what: str, n_received: int, n_requested: int) -> None:
    """Raise MessageError unless as many were received as were requested."""
    if n_received != n_requested:
        raise MessageError(f"{n_received} {what}, {n_requested} were requested")


def check_sums(sums: Ints, weight: float) -> None:
    """Raise MessageError unless rows of at most this weight can have the sums (…, 2).

    A row's gradient is at most its weight, its hessian a quarter of that. Rounding to an integer
    at most doubles either. Where the objective has other bounds, the weight is scaled to them.
    """
    check_length("sums", sums.shape[-1], 2)
    if problem := problem_of_extremes(extremes(sums.reshape(-1)), weight):
        raise MessageError(problem)


def problem_of_extremes(found: Sequence[int], weight: float) -> str | None:
    """Return why the smallest and the largest g, and the same of h, are impossible, or None.

    See `check_sums`.
    """
    least_g, most_g, least_h, most_h = found
    if least_h < 0:
        return "a negative sum of hessians"
    if most_g > 2 * weight or least_g < -2 * weight or most_h > weight / 2:
        return "the sums exceed the weight that the client reported before"
    return None
