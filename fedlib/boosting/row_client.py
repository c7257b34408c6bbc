"""The rows of a client of boosting: before trees grow, and where they are in growing trees."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlib.boosting.categories import (
    CountLevels,
    LevelCounts,
    check_least_count,
    count_categories,
    read_table,
    row_hashes,
)
from fedlib.boosting.cuts import (
    CountBuckets,
    Cuts,
    RowsPerBucket,
    SortedKeys,
    bucket_counts,
    groups_of_buckets,
    sorted_keys,
    sorted_weights,
)
from fedlib.boosting.data import NO_MARGINS, check_margins, check_weights, drawn_rows, row_keys
from fedlib.boosting.descriptions import DescribeTraining
from fedlib.boosting.messages import MAX_SUM, Growing, Growth, HeldOut, Levels, unchecked_copy
from fedlib.boosting.objectives import OBJECTIVES
from fedlib.core.array_types import Bools, Floats, Floats32, Ints, Ints32, Words
from fedlib.core.client import BadRequest, Client, handles, partitions
from fedlib.core.column_names import feature_names, in_order
from fedlib.core.columns import category_groups, present
from fedlib.core.messages import Message
from fedlib.core.points import eval_sets_of
from fedlib.kernels.histograms import (
    absolute_sums,
    add_values,
    left_children,
    move_rows_by_bins,
    open_slots,
)
from fedlib.kernels.proposals import RankedColumns, count_values, rank_values
from fedlib.kernels.splits import Decisions, Rows, SortedColumns, move_rows
from fedlib.protection.secure.points import CountPoints, DescribeFeatures, Features, PointCount


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


Method = TypeVar("Method", bound=Callable[..., Any])
VALIDATION = 2**19  # the index of the draw of rows for validation, beyond all rounds
ROWS_PER_VALUE = 2  # with fewer rows per distinct value of a node, ranks do not pay
logger = logging.getLogger(__name__)


def kept(source: Callable[..., Any]) -> Callable[[Method], Method]:
    """Keep what a method returns until its source is another object.

    ``source`` is called with the arguments of the method. The value is computed again after a
    restart of the client.
    """

    def decorate(method: Method) -> Method:
        @wraps(method)
        def found(self: RowsClient, *arguments: Any) -> Any:
            now = source(self, *arguments)
            before, value = self._cache.get(method.__name__, (None, None))
            if before is not now:
                value = method(self, *arguments)
                self._cache[method.__name__] = now, value
            return value

        return cast(Method, found)

    return decorate


# All rounds of a run have the same thresholds, which are an object of their own.
of_run = kept(lambda self, state: state.thresholds)
of_round = kept(lambda self, state: state.margins)
of_table = kept(lambda self: self.table)


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

    def _rows_with_values(self, agreed: bool) -> Iterable[Ints]:
        """Yield the rows with a value in each column, of which its kind tells whether there are."""
        for f in range(0 if agreed else self.n_features):
            column = self.table.texts.get(f, self.table.numbers[:, f])
            yield np.where(present(column) & self._counted, 0, -1)

    def _hold_out(self, request: DescribeTraining) -> Bools:
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

    @of_table
    def _keys(self) -> Words:
        """Return the rows' keys, by which rows are drawn."""
        keys, counted = np.zeros(len(self.X), np.uint64), self._counted
        keys[counted] = row_keys(row_hashes(self.table.rows(counted)))
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
            raise BadRequest(NO_MARGINS)
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

    @kept(lambda self: self.table if self.state is None else self.state)
    def _weights_by_unit(self) -> dict[int, Ints]:
        return {}

    def _sorted_weights(self, bits: int) -> Ints:
        """Return the sorted weights of the training rows in units of 2**-bits, kept likewise."""
        by_unit = self._weights_by_unit()
        if bits not in by_unit:
            trains = self._training_rows()
            by_unit[bits] = sorted_weights(self.X[trains], self.weight[trains], bits)
        return by_unit[bits]

    @kept(lambda self: self.table if self.state is None else self.state)
    def _sorted_keys(self) -> SortedKeys:
        """Return the sorted keys of the training rows, kept until trees grow."""
        return sorted_keys(self.X[self._training_rows()])

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


class GrowingRows(RowsClient):
    """A client with rows that move through growing trees.

    What follows from the rows and the last request is kept until another request changes it.
    """

    def _update(self, request: Growth) -> Growing:
        """Apply the decisions that a request reports; begin a new round if one is finished."""
        state = self._scaled(request)
        if len(request.values) and getattr(request, "n_rounds", state.n_rounds) < state.n_rounds:
            return state  # this request has been answered before
        node, ended, margins, n_rounds = state.node, state.ended, state.margins, state.n_rounds
        decisions, n_nodes = state.new_splits(request)
        if len(decisions.feature):
            node = self._moved(state, request)
        if len(request.values):
            if len(request.values) < n_nodes:
                raise BadRequest(f"{len(request.values)} values for {n_nodes} nodes")
            margins = add_values(margins, node, request.values)
            node, ended = roots(*node.shape), np.full_like(ended, -1)
            n_nodes, n_rounds = len(node), n_rounds + 1
        self.state = unchecked_copy(
            state, margins=margins, node=node, ended=ended, n_nodes=n_nodes, n_rounds=n_rounds
        )
        return self.state

    def _scaled(self, request: Growth) -> Growing:
        """Return the state, with the scales that a request reports at the end of the parameter."""
        state, scales = self.recall(Growing), getattr(request, "scales", ())
        if not scales:
            return state
        n_outputs, parameter = state.margins.shape[1], state.parameter
        is_scaled = OBJECTIVES[state.objective].scaled
        if not is_scaled or len(scales) != n_outputs or not isinstance(parameter, tuple):
            raise BadRequest(f"{len(scales)} scales for {state.objective}")
        for name in ("_gradients", "_unchecked_gradients"):  # which the other scales had
            self._cache.pop(name, None)
        self.state = unchecked_copy(state, parameter=(*parameter[:-n_outputs], *scales))
        return self.state

    def _moved(self, state: Growing, request: Growth) -> Ints32:
        """Return the nodes of rows (n_outputs, n_rows) after the splits that a request reports."""
        node, decisions, next_node = state.node, request.decisions, state.first_child(request)
        parents = getattr(request, "parents", ())
        if not parents:
            return self._split(node, request.decided, decisions, next_node)
        for j, parent in enumerate(parents):
            node = self._split(node, parent, decisions.take(slice(j, j + 1)), next_node + 2 * j)
        return node

    def _split(self, node: Ints32, first: int, decisions: Decisions, next_node: int) -> Ints32:
        """Return the nodes of rows after splits from ``first`` on, by their bins if possible."""
        state = self.recall(Growing)
        ranked = None if len(state.thresholds) or state.levels else self._ranked_columns()
        if len(state.thresholds) or ranked is not None:
            bins, offsets, bounds = ranked or (
                self._binned(state),
                state.offsets,
                state.thresholds,
            )
            moved, is_possible = move_rows_by_bins(
                bins, node, first, decisions, next_node, offsets, bounds, ranked is not None
            )
            if is_possible:
                return np.asarray(moved)
        X, left = self._coded(state.levels), left_children(decisions.feature, next_node)
        return np.stack([move_rows(X, row, first, decisions, left) for row in node])

    def _rows(self, state: Growing, first: int, n_open: int) -> list[Rows]:
        """Return, per output, the rows with their slots among the open nodes from ``first`` on."""
        drawn, wanted = self._drawn(state), np.ones(n_open, bool)
        return [
            Rows(open_slots(node, ended, drawn, first, wanted), gradients)
            for node, ended, gradients in zip(
                state.node, state.ended, self._gradients(state), strict=True
            )
        ]

    @of_run
    def _trained(self, state: Growing) -> Bools:
        return self._trains(*state.held_out)

    @of_round
    def _drawn(self, state: Growing) -> Bools:
        """Return which rows the trees of this round use."""
        trains = self._trained(state)
        if state.subsample == 1:
            return trains
        return trains & drawn_rows(self._keys(), state.subsample, state.seed, state.n_rounds)

    @of_round
    def _gradients(self, state: Growing) -> Ints:
        """Return the gradients (n_outputs, n_rows, 2)."""
        gradients = self._unchecked_gradients(state)
        if any(max(absolute_sums(of_output)) > MAX_SUM for of_output in gradients):
            raise ValueError("the gradients became too large: use a smaller learning_rate")
        return gradients

    @of_round
    def _unchecked_gradients(self, state: Growing) -> Ints:
        """Return gradients that may be too large: behind masks an error would disclose it."""
        return OBJECTIVES[state.objective].gradients(*self._measured(state), state.bits)

    @of_round
    def _loss(self, state: Growing) -> float:
        return OBJECTIVES[state.objective].loss(*self._measured(state))

    @of_round
    def _losses(self, state: Growing) -> Floats:
        """Return the loss of each row; 0 for one that is not a number."""
        return np.nan_to_num(OBJECTIVES[state.objective].losses(*self._measured(state)))

    def _measured(self, state: Growing) -> tuple[Any, ...]:
        return state.margins, self._targets(state), self._weights(state), state.parameter

    def _targets(self, state: Growing) -> NDArray[Any]:
        """Return the labels as the objective takes them: truth values, codes or numbers."""
        raise NotImplementedError

    @of_run
    def _weights(self, state: Growing) -> Floats32:
        """Return the rows' weights in training, 0 for the rows for validation.

        Those of the second class are multiplied by ``scale_pos_weight``.
        """
        trains = self._trains(*state.held_out)
        weights = self._limited_weight(state.max_weight)
        weights = weights if trains.all() else weights * trains
        if state.scale_pos_weight == 1:
            return weights
        factors = np.where(self._targets(state), np.float32(state.scale_pos_weight), np.float32(1))
        return weights * factors

    @of_run
    def _binned(self, state: Growing) -> NDArray[np.uint16 | np.uint32]:
        """Return each value's bin among those of all features.

        Raises
        ------
        ValueError
            When the bins do not fit the features.
        """
        offsets, n_bins = state.offsets, len(state.thresholds)
        fit = len(offsets) == self.n_features + 1 and offsets[0] == 0 and offsets[-1] == n_bins
        if not fit or (np.diff(offsets) < 1).any():
            raise BadRequest("the bins do not fit the features")
        bins = Cuts(offsets, state.thresholds).bins(self._coded(state.levels))
        narrow = np.uint16 if n_bins <= 2**16 else np.uint32
        return (bins + offsets[:-1]).astype(narrow)

    @kept(lambda self, levels: levels)
    def _coded(self, levels: Levels) -> Floats32:
        """Return the rows with the numbers of these categories, whatever the rows contain."""
        coded = self.table.coded(levels)
        if problem := self.table.problem_of(levels):
            logger.warning("%s; such values count as missing, or as another category", problem)
        return coded

    @of_table
    def _sorted_columns(self) -> SortedColumns:
        columns = self.X.T
        order = np.argsort(columns, axis=1, kind="stable").astype(np.int32)
        values = np.take_along_axis(columns, order, axis=1)
        return SortedColumns(order, values, (~np.isnan(columns)).sum(axis=1))

    @of_table
    def _ranked_columns(self) -> RankedColumns | None:
        """Return the ranks of the rows' values; None if features have many different ones."""
        columns = self._sorted_columns()
        offsets = np.append(0, np.cumsum(count_values(columns) + 1))
        if ROWS_PER_VALUE * offsets[-1] > self.X.size:
            return None
        ranks = np.empty(self.X.shape, np.uint16 if offsets[-1] <= 2**16 else np.uint32)
        return RankedColumns(ranks, offsets, rank_values(columns, offsets, ranks))

    def _predict(self, margins: Floats32, objective: str) -> Message:
        """Return the state with the predictions of margins (n_rows, n_outputs)."""
        raise NotImplementedError
