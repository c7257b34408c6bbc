"""The rows of a client of boosting and their labels, before trees grow.

Rows drawn by their values, so that a sample does not depend on which client has a row.

Whether a row is drawn follows from its features, a seed and the index of the round. Equal rows of
one client are drawn independently of each other: they are numbered. One row more changes the
numbers of its equals, so a sample cannot be combined with noise. The stream of random numbers is
our own: with the same seed, XGBoost draws other rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlib.boosting.categories import (
    CountLevels,
    LevelCounts,
    check_least_count,
    count_categories,
    fingerprints,
    read_table,
)
from fedlib.boosting.cuts import (
    CountBuckets,
    RowsPerBucket,
    SortedKeys,
    bucket_counts,
    groups_of_buckets,
    sorted_keys,
    sorted_weights,
)
from fedlib.boosting.data import NO_MARGINS, check_margins, check_weights
from fedlib.boosting.descriptions import DescribeTargets, DescribeTraining
from fedlib.boosting.messages import BeginBoosting, Growth
from fedlib.core.array_types import Bools, Floats32, Ints, Ints32, Words
from fedlib.core.client import Client, Unanswerable, handles, partitions
from fedlib.core.columns import category_groups, present
from fedlib.core.messages import Array, Message
from fedlib.core.names import feature_names, in_order
from fedlib.core.points import eval_sets_of
from fedlib.kernels.splits import Decisions
from fedlib.protection.secure.points import CountPoints, DescribeFeatures, Features, PointCount


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
    `fedlib.boosting.secure.row_sensitivity`. If the children exist, the request is repeated and
    the rows have moved: there are no new splits.
    """
    decisions, parents = request.decisions, getattr(request, "parents", ())
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


MASK = 2**64 - 1


def row_keys(X: Floats32) -> Words:
    """Return one number per row of ``X`` (n_rows, n_features), different for different rows.

    Examples
    --------
    >>> keys = row_keys(np.array([[1, 2], [2, 1], [1, 2]], np.float32))
    >>> len(np.unique(keys))  # equal rows are numbered
    3
    """
    keys = np.zeros(len(X), np.uint64)
    for column in X.T:
        bits = np.where(np.isnan(column), np.float32(np.nan), column + np.float32(0))
        keys = _mix(keys ^ bits.astype(np.float32).view(np.uint32).astype(np.uint64))
    order = np.argsort(keys, kind="stable")
    new = np.append(True, keys[order][1:] != keys[order][:-1])[: len(X)]
    first = np.maximum.accumulate(np.where(new, np.arange(len(X)), 0))
    copy = np.empty(len(X), np.uint64)
    copy[order] = np.arange(len(X)) - first
    return _mix(keys ^ _mix(copy))


def drawn_rows(keys: Words, fraction: float, seed: int, n_round: int) -> Bools:
    """Return which rows a round draws; each with the probability ``fraction``.

    Examples
    --------
    >>> keys = row_keys(np.arange(1000, dtype=np.float32)[:, None])
    >>> bool(450 < drawn_rows(keys, 0.5, seed=1, n_round=0).sum() < 550)
    True
    """
    stream = _mix(np.array([(seed * 2**20 + n_round) & MASK], np.uint64))
    uniform = _mix(keys ^ stream) >> np.uint64(11)
    return uniform.astype(np.float64) * 2.0**-53 < fraction


def _mix(keys: Words) -> Words:
    """Return well-mixed bits: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    keys = keys + np.uint64(0x9E3779B97F4A7C15)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


Value = TypeVar("Value")
VALIDATION = 2**19  # the index of the draw of rows for validation, beyond all rounds


class RowsClient(Client):
    """Base class of the clients: it reads rows and labels, and describes them."""

    supervised: ClassVar[bool] = True
    gaps_allowed: ClassVar[bool] = True
    max_feature: ClassVar[float] = 2.0**127
    raw: ClassVar[bool] = True
    validates: ClassVar[bool] = True
    takes_margins: ClassVar[bool] = True

    def __init__(
        self,
        part: Sequence[Any],
        learning_rate: float | None = None,
        min_category_count: int = 1,
    ):
        if not isinstance(part, tuple | list) or len(part) not in (2, 3, 4, 5):
            raise ValueError("a part must be (X, y) or (X, y, sample_weight)")
        X, y, weights, eval_sets, margins = (*part, None, None, None)[:5]
        if isinstance(weights, tuple):
            raise ValueError(
                "sample_weight must be one weight per row or None; got a tuple: rows for validation"
                " come after it, (X, y, None, (X_eval, y_eval))"
            )
        self.features = feature_names(X)
        self.table = read_table(X, ensure_min_samples=0)
        self.X = self.table.numbers
        self.n_training = len(self.X)  # further rows are for validation only
        self.y = None if y is None else self._check_labels(y, len(self.X))
        self.weight = check_weights(weights, len(self.X))
        self.has_weights = weights is not None
        self.has_margins = margins is not None
        self.base_margin = None if margins is None else check_margins(margins, len(self.X))
        self._cache: dict[str, tuple[Any, Any]] = {}
        self.eval_sets: dict[str, slice] = {}  # the rows of each set for validation
        for name, eval_set in eval_sets_of(eval_sets).items():
            n_before = len(self.X)
            self._add_eval_set(name, *eval_set)
            self.eval_sets[name] = slice(n_before, len(self.X))
        if learning_rate is not None and not 0 < learning_rate <= 1:
            raise ValueError(f"learning_rate must be above 0 and at most 1; got {learning_rate}")
        self.learning_rate = learning_rate
        self.min_category_count = check_least_count(min_category_count)

    def _add_eval_set(
        self, name: str, X: Any, y: Any, weights: Any = None, margins: Any = None
    ) -> None:
        """Add rows for validation."""
        if self.y is None:
            raise ValueError("an eval_set needs a y of the rows for training; got None")
        X = in_order(X, self.features, "eval_set")
        more = read_table(X, self.table.texts, ensure_min_samples=0)
        n_rows, n_features = more.numbers.shape
        if n_features != self.n_features:
            raise ValueError(f"eval_set must have {self.n_features} features; got {n_features}")
        try:
            labels = self._check_labels(y, n_rows)
        except ValueError as error:
            raise ValueError(f"eval_set {name!r}: {error}") from error
        if len(labels) and len(self.y) and (labels.dtype.kind == "U") != (self.y.dtype.kind == "U"):
            raise ValueError(
                "the y of an eval_set must be text or numbers like the other y; got"
                f" {labels[0].item()!r} next to {self.y[0].item()!r}"
            )
        self.y = np.concatenate([self.y, _like(labels, self.y)])
        self.weight = np.append(self.weight, check_weights(weights, n_rows))
        self._add_margins(n_rows, margins)
        self.table = self.table.followed_by(more)
        self.X = self.table.numbers

    @property
    def n_margins(self) -> int:
        """The count of columns of base margins; 0 without any."""
        return 0 if self.base_margin is None else int(self.base_margin.shape[1])

    def _add_margins(self, n_rows: int, given: Any) -> None:
        """Add the base margins of further rows; without any, they are NaN, as are those before."""
        before = self.base_margin
        if before is None and given is None:
            return
        if given is None and n_rows:
            warnings.warn(
                "an eval_set needs a base_margin like the other rows, (X, y, sample_weight,"
                " base_margin); got none, so that its rows start from the margin of base_score",
                stacklevel=2,
            )
        n_columns = None if before is None else before.shape[1]
        more = None if given is None else check_margins(given, n_rows, n_columns)
        width = next(one.shape[1] for one in (before, more) if one is not None)
        both = [(before, len(self.X)), (more, n_rows)]
        self.base_margin = np.concatenate(
            [np.full((n, width), np.nan, np.float32) if one is None else one for one, n in both]
        )

    def _first_margins(self, margins: Sequence[float]) -> Floats32:
        """Return the margins (n_rows, n_outputs) before the first tree.

        They are the rows' base margins, and for rows without them those of the model.
        """
        first, given = np.tile(finite(margins), (len(self.X), 1)), self.base_margin
        if given is None:
            return first
        if given.shape != first.shape:
            raise ValueError(
                f"base_margin must have {first.shape[1]} column(s), one per class or level if"
                f" there are several; got {given.shape[1]}"
            )
        return np.where(np.isnan(given), first, given)

    def _rows_for_validation(self, eval_set: str, trains: Bools) -> Bools:
        """Return which rows belong to a set; without a name, all that are not for training."""
        if not eval_set:
            return ~trains
        rows = np.zeros(len(self.X), bool)
        rows[self.eval_sets.get(eval_set, slice(0))] = True
        return rows

    def _trains(self, fraction: float, seed: int) -> Bools:
        """Return which rows have a weight and are not for validation."""
        trains = (np.arange(len(self.X)) < self.n_training) & self._counted
        if fraction:
            trains &= ~drawn_rows(self._keys(), fraction, seed, VALIDATION)
        return trains

    @property
    def _counted(self) -> Bools:
        """Which rows have a weight above 0: the others are predicted, and shape nothing."""
        return self.weight > 0

    def _limited_weight(self, max_weight: float) -> Floats32:
        """Return the weights (n_rows,), none above ``max_weight``."""
        largest = float(self.weight.max(initial=0))
        if largest <= max_weight:
            return self.weight
        self.note(
            f"sample_weight must be at most max_weight={max_weight:g} in sums over all clients; got"
            f" {largest:g}; larger weights count as max_weight"
        )
        return np.minimum(self.weight, np.float32(max_weight))

    def _kinds(self, agreed: bool) -> bytes:
        """Return the kinds of the columns; empty if they are agreed."""
        return b"" if agreed else self.table.rows(self._counted).kinds

    def _rows_with_values(self, agreed: bool) -> Iterable[Ints]:
        """Yield the rows with a value in each column, of which its kind tells whether there are."""
        for f in range(0 if agreed else self.n_features):
            column = self.table.texts.get(f, self.table.numbers[:, f])
            yield np.where(present(column) & self._counted, 0, -1)

    def _hold_out(self, request: DescribeTraining | DescribeTargets) -> Bools:
        """Draw the rows for validation; return the others."""
        self.state = HeldOut(request.validation_fraction, request.seed)
        return self._trains(request.validation_fraction, request.seed)

    def _rate(self, learning_rate: float) -> float:
        """Return the learning rate that the client prefers."""
        return learning_rate if self.learning_rate is None else float(self.learning_rate)

    def _shift(self, learning_rate: float) -> float:
        """Return the difference of the preferred learning rate to another one."""
        return self._rate(learning_rate) - learning_rate

    def _labels(self) -> NDArray[Any]:
        """Return the labels of the rows; raise ValueError if there are none."""
        if self.y is None:
            raise ValueError("a client without labels (y=None) must be passive")
        return self.y

    def _keys(self) -> Words:
        """Return the rows' keys, by which rows are drawn."""
        return self._cached("keys", self.table, self._make_keys)

    def _make_keys(self) -> Words:
        keys, counted = np.zeros(len(self.X), np.uint64), self._counted
        keys[counted] = row_keys(fingerprints(self.table.rows(counted)))
        return keys

    def _training_rows(self) -> Bools:
        """Return the rows of `_trains` before trees grow."""
        state = self.state
        if not isinstance(state, HeldOut):
            return self._trains(0.0, 0)
        return self._trains(state.validation_fraction, state.seed)

    @handles(DescribeFeatures)
    def describe_features(self, request: DescribeFeatures) -> Features:
        if self.base_margin is not None:  # only runs with masks or noise begin like this
            raise Unanswerable(NO_MARGINS)
        return Features(self.n_features, self.features)

    @handles(CountPoints)
    def count_points(self, request: CountPoints) -> PointCount:
        return PointCount(int(self._training_rows().sum()))

    @handles(CountLevels)
    def count_levels(self, request: CountLevels) -> LevelCounts:
        rows = self.table.rows(self._training_rows())
        return count_categories(rows, request, self.min_category_count)

    @partitions(CountLevels, counts=True, terms=())
    def rows_of_levels(self, request: CountLevels) -> Iterable[Ints]:
        """Yield the category of each row; those that are withheld are one group."""
        trains, least = self._training_rows(), max(self.min_category_count, request.min_count)
        for f in request.features.tolist():
            texts = self.table.texts.get(f, np.full(len(trains), None, object)).copy()
            texts[~trains] = None
            yield category_groups(texts, least)

    @partitions(CountBuckets, counts=True, terms=())
    def rows_of_buckets(self, request: CountBuckets) -> Iterable[Ints]:
        trains = self._training_rows()
        for buckets in groups_of_buckets(self.X, request):
            yield np.where(trains, buckets, -1)

    @handles(CountBuckets)
    def count_buckets(self, request: CountBuckets) -> RowsPerBucket:
        bits = request.weight_bits
        weights = None if bits is None else self._sorted_weights(bits)
        return bucket_counts(self._sorted_keys(), request, weights)

    def _sorted_weights(self, bits: int) -> Ints:
        """Return the sorted weights of the training rows in units of 2**-bits, kept likewise."""
        source = self.table if self.state is None else self.state
        by_unit: dict[int, Ints] = self._cached("sorted weights", source, dict)
        if bits not in by_unit:
            trains = self._training_rows()
            by_unit[bits] = sorted_weights(self.X[trains], self.weight[trains], bits)
        return by_unit[bits]

    def _sorted_keys(self) -> SortedKeys:
        """Return the sorted keys of the training rows, kept until trees grow."""
        source = self.table if self.state is None else self.state
        return self._cached("keys of values", source, self._sort_keys)

    def _sort_keys(self) -> SortedKeys:
        return sorted_keys(self.X[self._training_rows()])

    def _cached(self, name: str, source: Any, compute: Callable[[], Value]) -> Value:
        """Return the cached value, computed again when it was made from another ``source``."""
        previous, value = self._cache.get(name, (None, None))
        if previous is not source:
            value = compute()
            self._cache[name] = source, value
        return value

    def _check_labels(self, y: Any, n_rows: int) -> NDArray[Any]:
        """Return the labels (n_rows,); raise ValueError when they are of another kind."""
        raise NotImplementedError


def _like(labels: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Return labels with the type of the ``others``, if it has the same values."""
    if "U" in (labels.dtype.kind, others.dtype.kind) or not len(others):
        return labels
    with np.errstate(invalid="ignore"):
        converted = labels.astype(others.dtype)
    return converted if (converted == labels).all() else labels
