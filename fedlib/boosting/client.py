"""The client of federated boosting: it keeps its rows and answers with sums and proposals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedlib.boosting.cuts import (
    CountBuckets,
    Cuts,
    RowsPerBucket,
    bucket_counts,
    coarse_features,
)
from fedlib.boosting.data import check_classes, check_rows, check_weights
from fedlib.boosting.messages import (
    BeginBoosting,
    BuildHistograms,
    CandidateSums,
    DescribeTraining,
    EvaluateSplits,
    Growing,
    Growth,
    Histograms,
    KeepTrees,
    LeafSums,
    Predictions,
    ProposeSplits,
    SplitProposals,
    SumLeaves,
    TrainingDescription,
)
from fedlib.boosting.trees import children, predict_margins
from fedlib.kernels import splits as kernels
from fedlib.messages import Done
from fedlib.protocol import Client, handles
from fedlib.validation import feature_names

__all__ = ["BoostingClient"]

Value = TypeVar("Value")


class BoostingClient(Client):
    """A client and its rows.

    Parameters
    ----------
    part : tuple (X, y) or (X, y, sample_weight)
        ``X`` (n_rows, n_features): numbers within ±2**127; NaN is a missing value. There may be no
        rows, but there must be columns. ``y`` (n_rows,): the classes, text or numbers, or None for
        a client that stays passive. ``sample_weight`` (n_rows,): at least 0, in sum at most 2**40;
        by default 1 for each row.
    learning_rate : float, optional
        The learning rate that this client prefers, above 0 and at most 1; by default the server's.
        The run uses the clients' mean, weighted by their rows.

    Attributes
    ----------
    supervised : bool
        True: the client needs classes.
    gaps_allowed : bool
        True: rows may have missing values.

    Raises
    ------
    ValueError
        When the part or the learning rate is invalid.

    Examples
    --------
    >>> client = BoostingClient(([[1.0], [2.0], [4.0]], ["ill", "well", "ill"]))
    >>> client.handle(DescribeTraining(learning_rate=0.3)).weights
    array([2., 1.])
    """

    supervised: ClassVar[bool] = True
    gaps_allowed: ClassVar[bool] = True

    def __init__(self, part: Sequence[Any], learning_rate: float | None = None):
        if not isinstance(part, tuple | list) or len(part) not in (2, 3):
            raise ValueError("a part must be (X, y) or (X, y, sample_weight)")
        self.features = feature_names(part[0])
        self.X = check_rows(part[0], ensure_min_samples=0)
        self.y = None if part[1] is None else check_classes(part[1], len(self.X))
        self.weight = check_weights(part[2] if len(part) == 3 else None, len(self.X))
        if learning_rate is not None and not 0 < learning_rate <= 1:
            raise ValueError(f"learning_rate must be above 0 and at most 1; got {learning_rate}")
        self.learning_rate = learning_rate
        self._cache: dict[str, tuple[Any, Any]] = {}

    @handles(DescribeTraining)
    def describe_training(self, request: DescribeTraining) -> TrainingDescription:
        if self.y is None:
            raise ValueError("a client without classes (y=None) must be passive")
        classes, codes = np.unique(self.y, return_inverse=True)
        weights = np.bincount(codes, self.weight, len(classes))
        rate = request.learning_rate if self.learning_rate is None else float(self.learning_rate)
        return TrainingDescription(
            n_features=self.n_features,
            n_rows=len(self.X),
            classes=tuple(classes.tolist()),
            weights=weights.astype(np.float64),
            learning_rate=rate,
            features=self.features,
        )

    @handles(CountBuckets)
    def count_buckets(self, request: CountBuckets) -> RowsPerBucket:
        return bucket_counts(self.X, request)

    @handles(BeginBoosting)
    def begin_boosting(self, request: BeginBoosting) -> Done:
        if len(request.thresholds):
            self._warn_of_coarse_features(request.offsets)
        n = len(self.X)
        self.state = Growing(
            positive=request.classes[1],
            bits=request.bits,
            offsets=request.offsets,
            thresholds=request.thresholds,
            margins=np.full(n, request.base_margin, np.float32),
            node=np.zeros(n, np.int32),
            ended=np.full(n, -1, np.int32),
        )
        return Done()

    @handles(ProposeSplits)
    def propose_splits(self, request: ProposeSplits) -> SplitProposals:
        state = self._update(request)
        rows = self._rows(state, request.first, request.n_open)
        rule = kernels.SplitRule(
            2.0**-state.bits, request.reg_lambda, request.gamma, request.min_child_weight
        )
        totals = kernels.sum_by_slot(rows, request.n_open)
        proposals = kernels.propose_splits(
            self._sorted_columns(), rows, totals, request.n_candidates, rule
        )
        is_open = rows.slot >= 0
        if request.may_end:
            ends = is_open & (np.append(proposals.counts, 1)[rows.slot] == 0)
            ended = np.where(ends, state.node, state.ended)
            self.state = msgspec.structs.replace(state, ended=ended)
        weight = np.bincount(rows.slot[is_open], self.weight[is_open], request.n_open)
        filled = np.arange(request.n_candidates) < proposals.counts[:, None]
        return SplitProposals(
            weight=weight.astype(np.float64),
            count=proposals.counts,
            feature=proposals.feature[filled],
            threshold=proposals.threshold[filled],
            direction=proposals.direction[filled],
            gain=proposals.gain[filled],
            loss=self._loss(state),
        )

    @handles(EvaluateSplits)
    def evaluate_splits(self, request: EvaluateSplits) -> CandidateSums:
        state = self.recall(Growing)
        self._check_features(request.feature)
        start = np.append(0, np.cumsum(request.count))
        if start[-1] != len(request.feature):
            raise ValueError(f"{len(request.feature)} splits, but the counts sum to {start[-1]}")
        candidates = kernels.Candidates(start, request.feature, request.threshold)
        rows = self._rows(state, request.first, len(request.count))
        return CandidateSums(*kernels.sum_candidates(self.X, rows, candidates))

    @handles(SumLeaves)
    def sum_leaves(self, request: SumLeaves) -> LeafSums:
        state = self._update(request)
        node = np.where(state.ended >= 0, state.ended, state.node)
        if node.max(initial=-1) >= request.n_nodes:
            raise ValueError(f"a row is in node {node.max()}, the tree has {request.n_nodes}")
        rows = kernels.Rows(node, self._gradients(state))
        return LeafSums(kernels.sum_by_slot(rows, request.n_nodes))

    @handles(BuildHistograms)
    def build_histograms(self, request: BuildHistograms) -> Histograms:
        state = self._update(request)
        wanted = request.wanted
        if len(wanted) != request.n_open:
            raise ValueError(f"{len(wanted)} entries of wanted for {request.n_open} open nodes")
        if request.n_bins != len(state.thresholds):
            raise ValueError(f"{request.n_bins} bins requested; there are {len(state.thresholds)}")
        rows = self._rows(state, request.first, request.n_open)
        among_wanted = np.where(wanted, np.cumsum(wanted) - 1, -1).astype(np.int32)
        rows = rows._replace(slot=np.append(among_wanted, np.int32(-1))[rows.slot])
        bins = self._cached("bins", state.thresholds, lambda: self._bins(state))
        sums = kernels.sum_histograms(bins, state.offsets, rows, int(wanted.sum()))
        return Histograms(sums, self._loss(state))

    @handles(KeepTrees)
    def keep_trees(self, request: KeepTrees) -> Done:
        self._check_features(request.feature)
        margins = predict_margins(request.trees(), request.base_margin, self.X)
        self.state = Predictions((margins > 0).astype(np.int64), expit(margins.astype(np.float64)))
        return Done()

    def _update(self, request: Growth) -> Growing:
        """Apply the decisions that a request reports; begin a new tree if one is finished."""
        state = self.recall(Growing)
        self._check_features(request.feature)
        node, ended, margins = state.node, state.ended, state.margins
        if len(request.feature):
            node = node.copy()
            decisions = kernels.Decisions(request.feature, request.threshold, request.missing_left)
            child = children(request.feature, request.decided)
            kernels.move_rows(self.X, node, request.decided, decisions, child)
        if len(request.values):
            if node.max(initial=-1) >= len(request.values):
                raise ValueError(f"{len(request.values)} values, but a row in node {node.max()}")
            margins = margins + request.values[node]
            node, ended = np.zeros_like(node), np.full_like(ended, -1)
        self.state = msgspec.structs.replace(state, margins=margins, node=node, ended=ended)
        return self.state

    def _rows(self, state: Growing, first: int, n_open: int) -> kernels.Rows:
        """Return the rows with their numbers among the open nodes."""
        slot = state.node - np.int32(first)
        slot[(slot < 0) | (slot >= n_open) | (state.ended >= 0)] = -1
        return kernels.Rows(slot, self._gradients(state))

    def _gradients(self, state: Growing) -> NDArray[np.int64]:
        return self._cached(
            "gradients",
            state.margins,
            lambda: kernels.compute_gradients(
                state.margins, self._positive(state), self.weight, state.bits
            ),
        )

    def _loss(self, state: Growing) -> float:
        return self._cached(
            "loss",
            state.margins,
            lambda: float(kernels.sum_losses(state.margins, self._positive(state), self.weight)),
        )

    def _positive(self, state: Growing) -> NDArray[np.bool_]:
        """Return which rows are of the positive class."""
        return self._cached("positive", self.y, lambda: np.asarray(self.y == state.positive))

    def _bins(self, state: Growing) -> NDArray[np.uint16]:
        """Return each value's bin; raise ValueError if the bins do not fit the features."""
        offsets, n_bins = state.offsets, len(state.thresholds)
        fit = len(offsets) == self.n_features + 1 and offsets[0] == 0 and offsets[-1] == n_bins
        if not fit or (np.diff(offsets) < 1).any():
            raise ValueError("the bins do not fit the features")
        return Cuts(offsets, state.thresholds).bins(self.X)

    def _sorted_columns(self) -> kernels.SortedColumns:
        return self._cached("sorted columns", self.X, self._sort_columns)

    def _sort_columns(self) -> kernels.SortedColumns:
        columns = self.X.T
        order = np.argsort(columns, axis=1, kind="stable").astype(np.int32)
        values = np.take_along_axis(columns, order, axis=1)
        return kernels.SortedColumns(order, values, (~np.isnan(columns)).sum(axis=1))

    def _cached(self, name: str, source: Any, compute: Callable[[], Value]) -> Value:
        """Return the cached value, computed again when it was made from another ``source``."""
        previous, value = self._cache.get(name, (None, None))
        if previous is not source:
            value = compute()
            self._cache[name] = source, value
        return value

    def _check_features(self, feature: NDArray[np.int32]) -> None:
        if feature.max(initial=-1) >= self.n_features:
            raise ValueError(f"feature {feature.max()} of a client with {self.n_features} features")

    def _warn_of_coarse_features(self, offsets: NDArray[np.int64]) -> None:
        if len(offsets) != self.n_features + 1:
            return
        if coarse := coarse_features(self.X, offsets):
            names = self.features or range(self.n_features)
            shown = ", ".join(repr(names[f]) for f in coarse)
            warnings.warn(
                f"features {shown}: many values fall into one bin, because they differ by less than"
                " one part in 2**11; let all clients subtract the same number from them",
                stacklevel=2,
            )
