"""The base class of the clients of boosting while trees grow."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.cuts import Cuts, coarse_features
from fedlib.boosting.messages import (
    MAX_SUM,
    BeginBoosting,
    BuildHistograms,
    CandidateSums,
    EvaluateSplits,
    Growth,
    Histograms,
    KeepTrees,
    LeafSums,
    Levels,
    NoisyHistograms,
    ProposeSplits,
    SplitProposals,
    StartTrees,
    SumHistograms,
    SumLeaves,
    SummableHistograms,
    SumNoisyHistograms,
    unchecked_copy,
)
from fedlib.boosting.objectives import OBJECTIVES
from fedlib.boosting.packing import BuildPackedHistograms, PackedHistograms, pack
from fedlib.boosting.private import clipped, gradient_limits, row_sensitivity
from fedlib.boosting.row_client import RowsClient
from fedlib.boosting.sampling import drawn_rows
from fedlib.boosting.scores import RowScores, ScoreRows, score_rows
from fedlib.boosting.states import Growing, HeldOut, finite, first_child, new_splits, roots
from fedlib.boosting.trees import add_margins
from fedlib.client import handles
from fedlib.kernels import splits as kernels
from fedlib.kernels.gains import SplitRule
from fedlib.kernels.histograms import (
    absolute_sums,
    add_values,
    left_children,
    move_and_sum,
    move_rows_by_bins,
    open_slots,
)
from fedlib.kernels.proposals import (
    RankedColumns,
    count_values,
    have_hessians,
    propose_by_values,
    rank_values,
    weigh_slots,
)
from fedlib.messages import Done, Message
from fedlib.privacy import add_noise
from fedlib.secure.points import DescribeFeatures

__all__ = ["TreeClient"]

logger = logging.getLogger(__name__)

ROWS_PER_VALUE = 2  # with fewer rows per distinct value of a node, ranks do not pay


class TreeClient(RowsClient):
    """Base class of the clients: their rows while trees grow.

    A subclass says which labels there are and what it predicts.
    """

    open_requests = (DescribeFeatures, BeginBoosting, StartTrees)

    @handles(BeginBoosting)
    def begin_boosting(self, request: BeginBoosting) -> Done:
        if len(request.thresholds):
            self._warn_of_coarse_features(Cuts(request.offsets, request.thresholds))
        self._cache.pop("keys of values", None)  # not needed any more
        n, n_outputs = len(self.X), len(request.margins)
        before = self.state
        held_out = (0.0, 0)
        if isinstance(before, HeldOut):
            held_out = before.validation_fraction, before.seed
        self.state = Growing(
            held_out=held_out,
            n_nodes=n_outputs,
            classes=request.classes,
            bits=request.bits,
            offsets=request.offsets,
            thresholds=request.thresholds,
            objective=request.objective,
            parameter=request.parameter,
            scale_pos_weight=request.scale_pos_weight,
            subsample=request.subsample,
            seed=request.seed,
            reg_alpha=request.reg_alpha,
            max_delta_step=request.max_delta_step,
            levels=request.levels,
            n_rounds=0,
            margins=np.tile(finite(request.margins), (n, 1)),
            node=roots(n_outputs, n),
            ended=np.full((n_outputs, n), -1, np.int32),
        )
        return Done()

    @handles(ProposeSplits)
    def propose_splits(self, request: ProposeSplits) -> SplitProposals:
        state = self._update(request)
        n_open, weights = request.n_open, self._weights(state)
        all_rows = self._rows(state, request.first, n_open)
        proposals = self._propose(all_rows, state, request)
        if request.may_end:
            ended = state.ended.copy()
            for k, (slot, _) in enumerate(all_rows):
                ends = (slot >= 0) & (np.append(proposals.counts, 1)[slot] == 0)
                ended[k, ends] = state.node[k, ends]
            self.state = unchecked_copy(state, ended=ended)
        weight = sum(weigh_slots(slot, weights, n_open) for slot, _ in all_rows)
        filled = np.arange(request.n_candidates) < proposals.counts[:, None]
        return SplitProposals(
            weight=weight,
            count=proposals.counts,
            feature=proposals.feature[filled],
            threshold=proposals.threshold[filled],
            direction=proposals.direction[filled],
            gain=proposals.gain[filled],
            loss=self._loss(state),
        )

    def _propose(
        self, all_rows: Sequence[kernels.Rows], state: Growing, request: ProposeSplits
    ) -> kernels.Proposals:
        """Return the best splits of each open node; a node belongs to the tree of one output."""
        rule = SplitRule(
            2.0**-state.bits,
            request.reg_lambda,
            request.gamma,
            request.min_child_weight,
            state.reg_alpha,
            state.max_delta_step,
        )
        per_output = [self._best_splits(rows, request, rule) for rows in all_rows]
        proposals: kernels.Proposals = per_output[0]
        for others in per_output[1:]:
            filled = others.counts > 0
            arrays: list[tuple[NDArray[Any], NDArray[Any]]] = list(
                zip(proposals, others, strict=True)
            )
            for array, other in arrays:
                array[filled] = other[filled]
        return proposals

    def _best_splits(
        self, rows: kernels.Rows, request: ProposeSplits, rule: SplitRule
    ) -> kernels.Proposals:
        """Return the best splits of each open node, by the faster one of two ways."""
        ranked, n_open, n_candidates = self._ranked_columns(), request.n_open, request.n_candidates
        proposals: kernels.Proposals
        if (
            ranked is not None
            and ROWS_PER_VALUE * n_open * len(ranked.values) <= ranked.ranks.size
            and have_hessians(rows)
        ):
            proposals = propose_by_values(ranked, rows, n_open, n_candidates, rule)
        else:
            totals = kernels.sum_by_slot(rows, n_open)
            columns = self._sorted_columns()
            proposals = kernels.propose_splits(columns, rows, totals, n_candidates, rule)
        return proposals

    @handles(EvaluateSplits)
    def evaluate_splits(self, request: EvaluateSplits) -> CandidateSums:
        state = self.recall(Growing)
        self._check_features(request.feature)
        start = np.append(0, np.cumsum(request.count))
        if start[-1] != len(request.feature):
            raise ValueError(f"{len(request.feature)} splits, but the counts sum to {start[-1]}")
        candidates = kernels.Candidates(start, request.feature, request.threshold)
        all_rows = self._rows(state, request.first, len(request.count))
        sums = [
            kernels.sum_candidates(self._coded(state.levels), rows, candidates) for rows in all_rows
        ]
        left, missing, totals = (sum(arrays) for arrays in zip(*sums, strict=True))
        return CandidateSums(left, missing, totals)

    @handles(SumLeaves)
    def sum_leaves(self, request: SumLeaves) -> LeafSums:
        state = self._update(request)
        if state.n_nodes > request.n_nodes:
            raise ValueError(f"{request.n_nodes} nodes of a tree that has {state.n_nodes}")
        node = np.where(state.ended >= 0, state.ended, state.node)
        node[:, ~self._drawn(state)] = -1
        return LeafSums(
            sum(
                kernels.sum_by_slot(kernels.Rows(slot, gradients), request.n_nodes)
                for slot, gradients in zip(node, self._gradients(state), strict=True)
            )
        )

    @handles(BuildHistograms)
    def build_histograms(self, request: BuildHistograms) -> Histograms:
        sums = self._sum_bins(request, self._gradients)
        return Histograms(sums, self._loss(self.recall(Growing)))

    def _sum_bins(
        self, request: BuildHistograms, gradients: Callable[[Growing], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """Apply a request's decisions; return the sums of gradients in bins of the wanted nodes."""
        state, wanted = self.recall(Growing), request.wanted
        if len(wanted) != request.n_open:
            raise ValueError(f"{len(wanted)} entries of wanted for {request.n_open} open nodes")
        if request.n_bins != len(state.thresholds):
            raise ValueError(f"{request.n_bins} bins requested; there are {len(state.thresholds)}")
        if not (len(request.values) or request.parents):  # the splits of one level, nothing else
            decisions, n_nodes = new_splits(state, request)
            node, sums, is_possible = self._move_and_sum(
                state, request, decisions, gradients(state)
            )
            if is_possible:
                self.state = unchecked_copy(state, node=node, n_nodes=n_nodes)
                return sums
        state = self._update(request)
        nothing = request.decisions.take(slice(0))
        return self._move_and_sum(state, request, nothing, gradients(state))[1]

    def _move_and_sum(
        self,
        state: Growing,
        request: BuildHistograms,
        decisions: kernels.Decisions,
        gradients: NDArray[np.int64],
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], bool]:
        """Return the nodes of rows after splits and the sums in the bins of the wanted nodes.

        Also return whether the splits are between bins; otherwise the result is useless.
        """
        moved: tuple[NDArray[np.int32], NDArray[np.int64], bool] = move_and_sum(
            self._binned(state),
            request.n_bins,
            (state.node, state.ended, self._drawn(state)),
            (request.decided, decisions, first_child(state, request)),
            (request.first, request.wanted),
            gradients,
            (state.offsets, state.thresholds),
        )
        return moved

    @handles(SumHistograms)
    def sum_histograms(self, request: SumHistograms) -> SummableHistograms:
        histograms = self.build_histograms(request)
        weight = float(self._weights(self.recall(Growing)).sum(dtype=np.float64))
        return SummableHistograms(histograms.sums, histograms.loss, weight)

    def sum_digits(self, request: Message) -> Mapping[str, tuple[int, ...]] | None:
        if isinstance(request, SumNoisyHistograms):  # the handler checks that these are the bits
            return {"sums": (self.recall(Growing).bits,)}
        return super().sum_digits(request)

    @handles(SumNoisyHistograms)
    def sum_noisy_histograms(self, request: SumNoisyHistograms) -> NoisyHistograms:
        # What is refused here follows from the requests and the features, whatever the rows are.
        state = self.recall(Growing)
        if state.subsample < 1 or state.held_out[0] > 0:
            raise ValueError(
                "sums with noise must be over all rows, because one row more changes which of its"
                f" equals are drawn; got subsample={state.subsample} and"
                f" validation_fraction={state.held_out[0]}"
            )
        limits = gradient_limits(state.objective, request.max_gradient)
        sensitivity = row_sensitivity(limits, self.n_features, state.margins.shape[1])
        if state.bits != sensitivity.digits:
            raise ValueError(f"bits must be {sensitivity.digits}, got {state.bits}")

        def gradients(state: Growing) -> NDArray[np.int64]:
            return clipped(self._unchecked_gradients(state), limits, state.bits)

        values = np.ldexp(self._sum_bins(request, gradients).astype(np.float64), -state.bits)
        return NoisyHistograms(add_noise(values, sensitivity, request.privacy, self.n_shares))

    @handles(BuildPackedHistograms)
    def build_packed_histograms(self, request: BuildPackedHistograms) -> PackedHistograms:
        histograms = self.build_histograms(request)
        return pack(histograms.sums, histograms.loss)

    @handles(StartTrees)
    def start_trees(self, request: StartTrees) -> Done:
        self._check_features(request.feature)
        state = self.recall(Growing)
        margins = self._margins(request)
        if margins.shape != state.margins.shape:
            n, expected = margins.shape[1], state.margins.shape[1]
            raise ValueError(f"trees with {n} outputs in a run with {expected}")
        self.state = unchecked_copy(state, margins=margins)
        return Done()

    def _margins(self, request: KeepTrees) -> NDArray[np.float32]:
        """Return the margins (n_rows, n_outputs) of the rows by the trees of a request."""
        first = finite(request.base_margins or (request.base_margin,))
        X = self._coded(request.levels)
        margins, trees = np.tile(first, (len(X), 1)), request.trees()
        n_outputs = margins.shape[1]
        for k in range(n_outputs):
            margins[:, k] = add_margins(trees[k::n_outputs], margins[:, k], X)
        return finite(margins)

    @handles(ScoreRows)
    def score_rows(self, request: ScoreRows) -> RowScores:
        state = self._update(request)
        held = ~self._trains(*state.held_out)
        predictions = OBJECTIVES[state.objective].response(state.margins[held])
        targets = self._targets(state)[held]
        return score_rows(request.metrics, predictions, targets, self.weight[held], state.parameter)

    @handles(KeepTrees)
    def keep_trees(self, request: KeepTrees) -> Done:
        self._check_features(request.feature)
        margins = self._margins(request)
        self.state = self._predict(margins[: self.n_training], request.objective)
        return Done()

    def _update(self, request: Growth) -> Growing:
        """Apply the decisions that a request reports; begin a new round if one is finished."""
        state = self.recall(Growing)
        self._check_features(request.feature)
        if len(request.values) and getattr(request, "n_rounds", state.n_rounds) < state.n_rounds:
            return state  # this request has been answered before
        node, ended, margins, n_rounds = state.node, state.ended, state.margins, state.n_rounds
        decisions, n_nodes = new_splits(state, request)
        if len(decisions.feature):
            node = self._moved(state, request)
        if len(request.values):
            if len(request.values) < n_nodes:
                raise ValueError(f"{len(request.values)} values for {n_nodes} nodes")
            margins = finite(add_values(margins, node, request.values))
            node, ended = roots(*node.shape), np.full_like(ended, -1)
            n_nodes, n_rounds = len(node), n_rounds + 1
        self.state = unchecked_copy(
            state, margins=margins, node=node, ended=ended, n_nodes=n_nodes, n_rounds=n_rounds
        )
        return self.state

    def _moved(self, state: Growing, request: Growth) -> NDArray[np.int32]:
        """Return the nodes of rows (n_outputs, n_rows) after the splits that a request reports."""
        node, decisions, next_node = state.node, request.decisions, first_child(state, request)
        parents = getattr(request, "parents", ())
        if not parents:
            return self._split(node, request.decided, decisions, next_node)
        for j, parent in enumerate(parents):
            node = self._split(node, parent, decisions.take(slice(j, j + 1)), next_node + 2 * j)
        return node

    def _split(
        self, node: NDArray[np.int32], first: int, decisions: kernels.Decisions, next_node: int
    ) -> NDArray[np.int32]:
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
        return np.stack([kernels.move_rows(X, row, first, decisions, left) for row in node])

    def _rows(self, state: Growing, first: int, n_open: int) -> list[kernels.Rows]:
        """Return, per output, the rows with their slots among the open nodes from ``first`` on."""
        drawn, wanted = self._drawn(state), np.ones(n_open, bool)
        return [
            kernels.Rows(open_slots(node, ended, drawn, first, wanted), gradients)
            for node, ended, gradients in zip(
                state.node, state.ended, self._gradients(state), strict=True
            )
        ]

    def _drawn(self, state: Growing) -> NDArray[np.bool_]:
        """Return which rows the trees of this round use."""
        return self._cached("drawn", state.margins, lambda: self._draw(state))

    def _draw(self, state: Growing) -> NDArray[np.bool_]:
        trains = self._cached("trains", state.thresholds, lambda: self._trains(*state.held_out))
        if state.subsample == 1:
            return trains
        return trains & drawn_rows(self._keys(), state.subsample, state.seed, state.n_rounds)

    def _gradients(self, state: Growing) -> NDArray[np.int64]:
        """Return the gradients (n_outputs, n_rows, 2)."""
        return self._cached("gradients", state.margins, lambda: self._compute_gradients(state))

    def _compute_gradients(self, state: Growing) -> NDArray[np.int64]:
        gradients = self._unchecked_gradients(state)
        if any(max(absolute_sums(of_output)) > MAX_SUM for of_output in gradients):
            raise ValueError("the gradients became too large: use a smaller learning_rate")
        return gradients

    def _unchecked_gradients(self, state: Growing) -> NDArray[np.int64]:
        return OBJECTIVES[state.objective].gradients(
            state.margins, self._targets(state), self._weights(state), state.parameter, state.bits
        )

    def _loss(self, state: Growing) -> float:
        return self._cached(
            "loss",
            state.margins,
            lambda: float(
                OBJECTIVES[state.objective].loss(
                    state.margins, self._targets(state), self._weights(state), state.parameter
                )
            ),
        )

    def _targets(self, state: Growing) -> NDArray[Any]:
        """Return the labels as the objective takes them."""
        return self._cached("targets", state.classes, lambda: self._compute_targets(state))

    def _weights(self, state: Growing) -> NDArray[np.float32]:
        """Return the rows' weights in training, 0 for the rows for validation.

        Those of the second class are multiplied by ``scale_pos_weight``. They are the same in all
        rounds of a run, whose thresholds are an object of their own.
        """
        return self._cached("weights", state.thresholds, lambda: self._compute_weights(state))

    def _compute_weights(self, state: Growing) -> NDArray[np.float32]:
        trains = self._trains(*state.held_out)
        weights = self.weight if trains.all() else self.weight * trains
        if state.scale_pos_weight == 1:
            return weights
        factors = np.where(self._targets(state), np.float32(state.scale_pos_weight), np.float32(1))
        return weights * factors

    def _binned(self, state: Growing) -> NDArray[np.uint16 | np.uint32]:
        return self._cached("bins", state.thresholds, lambda: self._bins(state))

    def _bins(self, state: Growing) -> NDArray[np.uint16 | np.uint32]:
        """Return each value's bin among those of all features.

        Raises
        ------
        ValueError
            When the bins do not fit the features.
        """
        offsets, n_bins = state.offsets, len(state.thresholds)
        fit = len(offsets) == self.n_features + 1 and offsets[0] == 0 and offsets[-1] == n_bins
        if not fit or (np.diff(offsets) < 1).any():
            raise ValueError("the bins do not fit the features")
        bins = Cuts(offsets, state.thresholds).bins(self._coded(state.levels))
        narrow = np.uint16 if n_bins <= 2**16 else np.uint32
        return (bins + offsets[:-1]).astype(narrow)

    def _coded(self, levels: Levels) -> NDArray[np.float32]:
        """Return the rows with the numbers of these categories, whatever the rows contain."""
        return self._cached("coded", levels, lambda: self._code(levels))

    def _code(self, levels: Levels) -> NDArray[np.float32]:
        coded = self.table.coded(levels)
        if problem := self.table.problem_of(levels):
            logger.warning("%s; such values count as missing, or as another category", problem)
        return coded

    def _sorted_columns(self) -> kernels.SortedColumns:
        return self._cached("sorted columns", self.table, self._sort_columns)

    def _sort_columns(self) -> kernels.SortedColumns:
        columns = self.X.T
        order = np.argsort(columns, axis=1, kind="stable").astype(np.int32)
        values = np.take_along_axis(columns, order, axis=1)
        return kernels.SortedColumns(order, values, (~np.isnan(columns)).sum(axis=1))

    def _ranked_columns(self) -> RankedColumns | None:
        """Return the ranks of the rows' values; None if features have many different ones."""
        return self._cached("ranked columns", self.table, self._rank_columns)

    def _rank_columns(self) -> RankedColumns | None:
        columns = self._sorted_columns()
        offsets = np.append(0, np.cumsum(count_values(columns) + 1))
        if ROWS_PER_VALUE * offsets[-1] > self.X.size:
            return None
        ranks = np.empty(self.X.shape, np.uint16 if offsets[-1] <= 2**16 else np.uint32)
        return RankedColumns(ranks, offsets, rank_values(columns, offsets, ranks))

    def _check_features(self, feature: NDArray[np.int32]) -> None:
        if feature.size and feature.max() >= self.n_features:
            raise ValueError(f"feature {feature.max()} of a client with {self.n_features} features")

    def _warn_of_coarse_features(self, cuts: Cuts) -> None:
        if len(cuts.offsets) != self.n_features + 1:
            return
        if coarse := coarse_features(self._sorted_keys(), cuts):
            names = self.features or range(self.n_features)
            shown = ", ".join(repr(names[f]) for f in coarse)
            warnings.warn(
                f"features {shown}: many values fall into one bin, because they differ by less than"
                " one part in 2**11; let all clients subtract the same number from them",
                stacklevel=2,
            )

    def _compute_targets(self, state: Growing) -> NDArray[Any]:
        """Return the labels as the objective takes them: truth values, codes or numbers."""
        raise NotImplementedError

    def _predict(self, margins: NDArray[np.float32], objective: str) -> Message:
        """Return the state with the predictions of margins (n_rows, n_outputs)."""
        raise NotImplementedError
