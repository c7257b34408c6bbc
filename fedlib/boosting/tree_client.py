"""The base class of the clients of boosting while trees grow."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.categories import unknown_categories
from fedlib.boosting.cuts import Cuts, coarse_features
from fedlib.boosting.descriptions import DescribeTraining
from fedlib.boosting.first_scores import ResidualSums, SumRoots
from fedlib.boosting.histograms import (
    BuildHistograms,
    BuildPackedHistograms,
    Histograms,
    NoisyHistograms,
    PackedHistograms,
    SumHistograms,
    SummableHistograms,
    SumNoisyHistograms,
    pack,
)
from fedlib.boosting.messages import (
    BeginBoosting,
    CandidateSums,
    EvaluateSplits,
    Growing,
    HeldOut,
    KeepTrees,
    LeafSums,
    ProposeSplits,
    SplitProposals,
    StartTrees,
    SumLeaves,
    unchecked_copy,
)
from fedlib.boosting.objectives import OBJECTIVES, sum_in_order
from fedlib.boosting.row_client import ROWS_PER_VALUE, GrowingRows, finite, roots
from fedlib.boosting.rules import split_rule
from fedlib.boosting.scores import RowScores, ScoreRows, score_rows
from fedlib.boosting.secure import clipped, gradient_limits, row_sensitivity
from fedlib.boosting.trees import add_margins
from fedlib.core.array_types import Bools, Floats32, Ints, Ints32
from fedlib.core.client import BadRequest, handles, partitions
from fedlib.core.messages import Done, Message
from fedlib.kernels import splits
from fedlib.kernels.forests import weighted_roots
from fedlib.kernels.gains import SplitRule
from fedlib.kernels.histograms import (
    move_and_sum,
    open_slots,
)
from fedlib.kernels.packing import move_and_pack
from fedlib.kernels.proposals import (
    have_hessians,
    propose_by_values,
    weigh_slots,
)
from fedlib.protection.privacy import add_noise
from fedlib.protection.secure.fixed_point import add_rows, summed
from fedlib.protection.secure.points import DescribeFeatures

SumRows = Callable[[Growing, BuildHistograms, splits.Decisions, Ints], tuple[Ints32, Any, bool]]


class TreeClient(GrowingRows):
    """Base class of the clients: their rows while trees grow.

    A subclass says which labels there are and what it predicts.
    """

    open_requests = (DescribeFeatures, BeginBoosting, StartTrees)

    def _description(self, request: DescribeTraining, trains: Bools) -> dict[str, Any]:
        """Return the fields of a `Description`; kinds of columns that are agreed are left out."""
        return {
            "n_features": self.n_features,
            "n_rows": int(trains.sum()),
            "learning_rate": self._rate(request.learning_rate),
            "features": self.features,
            "kinds": b"" if request.agreed else self.table.rows(self._counted).kinds,
            "has_margins": self.has_margins,
            "has_weights": self.has_weights,
            "n_margins": self.n_margins,
        }

    @handles(BeginBoosting)
    def begin_boosting(self, request: BeginBoosting) -> Done:
        if (n_levels := len(request.levels)) not in (0, self.n_features):
            raise BadRequest(f"levels must be those of {self.n_features} features; got {n_levels}")
        if len(request.thresholds):
            self._warn_of_coarse_features(Cuts(request.offsets, request.thresholds))
        self._cache.pop("_sorted_keys", None)  # not needed any more
        n, n_outputs = len(self.X), len(request.first_margins)
        before = self.state
        held_out = (0.0, 0)
        if isinstance(before, HeldOut):  # after a request that draws rows for validation
            held_out = before.validation_fraction, before.seed
        self.state = Growing(
            **msgspec.structs.asdict(request),
            held_out=held_out,
            n_nodes=n_outputs,
            n_rounds=0,
            margins=self._first_margins(request.first_margins),
            node=roots(n_outputs, n),
            ended=np.full((n_outputs, n), -1, np.int32),
        )
        return Done()

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

    @handles(ProposeSplits)
    def propose_splits(self, request: ProposeSplits) -> SplitProposals:
        state = self._update(request)
        n_open, weights = request.n_open, self._weights(state)
        all_rows = self._rows(state, request.first, n_open)
        proposals = self._propose(all_rows, state, request)
        if request.may_end:
            ended = state.ended.copy()
            for k, (slot, _) in enumerate(all_rows):
                # A row in no open node has the slot -1, which reads the entry appended here.
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
        self, all_rows: Sequence[splits.Rows], state: Growing, request: ProposeSplits
    ) -> splits.Proposals:
        """Return the best splits of each open node; a node belongs to the tree of one output."""
        rule = split_rule(2.0**-state.bits, state, request)
        per_output = [self._best_splits(rows, request, rule) for rows in all_rows]
        proposals: splits.Proposals = per_output[0]
        for others in per_output[1:]:  # no two outputs have a proposal for the same node
            filled = others.counts > 0
            arrays: list[tuple[NDArray[Any], NDArray[Any]]] = list(
                zip(proposals, others, strict=True)
            )
            for array, other in arrays:
                array[filled] = other[filled]
        return proposals

    def _best_splits(
        self, rows: splits.Rows, request: ProposeSplits, rule: SplitRule
    ) -> splits.Proposals:
        """Return the best splits of each open node, by the faster one of two ways."""
        ranked, n_open, n_candidates = self._ranked_columns(), request.n_open, request.n_candidates
        proposals: splits.Proposals
        if (
            ranked is not None
            and ROWS_PER_VALUE * n_open * len(ranked.values) <= ranked.ranks.size
            and have_hessians(rows)
        ):
            proposals = propose_by_values(ranked, rows, n_open, n_candidates, rule)
        else:
            totals = splits.sum_by_slot(rows, n_open)
            columns = self._sorted_columns()
            proposals = splits.propose_splits(columns, rows, totals, n_candidates, rule)
        return proposals

    @handles(SumRoots)
    def sum_roots(self, request: SumRoots) -> ResidualSums:
        state = self._update(request)
        if not OBJECTIVES[state.objective].scaled or state.margins.shape[1] != request.n_outputs:
            raise BadRequest(f"{state.objective} has no scales of {request.n_outputs} outputs")
        weights, digits = self._weights(state), self.row_digits(request)
        roots = weighted_roots(state.margins, self._targets(state), weights)
        nothing = np.empty((0, 2))
        if digits is None:
            weight = float(weights.sum(dtype=np.float64))
            return ResidualSums(weight, sum_in_order(roots), nothing)
        # Not clipped: behind masks, a limit on a site's own sum would be a threshold.
        weight_of_rows = add_rows(weights[:, None], digits, "weight")[0, 0]
        sums = add_rows(roots, digits, "roots")[0]
        return summed(ResidualSums, digits, weight=weight_of_rows, roots=sums, gradients=nothing)

    @handles(EvaluateSplits)
    def evaluate_splits(self, request: EvaluateSplits) -> CandidateSums:
        state = self.recall(Growing)
        start = np.append(0, np.cumsum(request.count))
        if start[-1] != len(request.feature):
            raise ValueError(f"{len(request.feature)} splits, but the counts sum to {start[-1]}")
        candidates = splits.Candidates(start, request.feature, request.threshold)
        all_rows = self._rows(state, request.first, len(request.count))
        sums = [
            splits.sum_candidates(self._coded(state.levels), rows, candidates) for rows in all_rows
        ]
        left, missing, totals = (sum(arrays) for arrays in zip(*sums, strict=True))
        return CandidateSums(left, missing, totals)

    @handles(SumLeaves)
    def sum_leaves(self, request: SumLeaves) -> LeafSums:
        state = self._update(request)
        if state.n_nodes != request.n_nodes:
            raise BadRequest(f"{request.n_nodes} nodes of a tree that has {state.n_nodes}")
        # A row whose proposals ended stays in that node, even if the other clients split it.
        node = np.where(state.ended >= 0, state.ended, state.node)
        node[:, ~self._drawn(state)] = -1
        return LeafSums(
            sum(
                splits.sum_by_slot(splits.Rows(slot, gradients), request.n_nodes)
                for slot, gradients in zip(node, self._gradients(state), strict=True)
            )
        )

    @handles(BuildHistograms)
    def build_histograms(self, request: BuildHistograms) -> Histograms:
        sums = self._sum_bins(request, self._gradients)
        return Histograms(sums, self._loss(self.recall(Growing)))

    @handles(BuildPackedHistograms)
    def build_packed_histograms(self, request: BuildPackedHistograms) -> PackedHistograms:
        pairs, bits, measured = self._move_rows(request, self._gradients, self._move_and_pack)
        n_bits = int(np.count_nonzero(request.wanted)) * request.n_bins
        return pack(bits, n_bits, pairs, measured, self._loss(self.recall(Growing)))

    def _sum_bins(self, request: BuildHistograms, gradients: Callable[[Growing], Ints]) -> Ints:
        """Apply a request's decisions; return the sums of gradients in bins of the wanted nodes."""
        sums: Ints = self._move_rows(request, gradients, self._move_and_sum)
        return sums

    def _move_rows(
        self, request: BuildHistograms, gradients: Callable[[Growing], Ints], sum_rows: SumRows
    ) -> Any:
        """Apply a request's decisions; return the sums of gradients by one of two functions."""
        state, wanted = self._scaled(request), request.wanted
        if len(wanted) != request.n_open:
            raise BadRequest(f"{len(wanted)} entries of wanted for {request.n_open} open nodes")
        if request.n_bins != len(state.thresholds):
            raise BadRequest(f"{request.n_bins} bins requested; there are {len(state.thresholds)}")
        if not (len(request.values) or request.parents):  # the splits of one level, nothing else
            # Then one pass over the rows moves and sums them.
            decisions, n_nodes = state.new_splits(request)
            node, sums, is_possible = sum_rows(state, request, decisions, gradients(state))
            if is_possible:
                self.state = unchecked_copy(state, node=node, n_nodes=n_nodes)
                return sums
        state = self._update(request)
        nothing = request.decisions.take(slice(0))
        return sum_rows(state, request, nothing, gradients(state))[1]

    def _move_and_sum(
        self,
        state: Growing,
        request: BuildHistograms,
        decisions: splits.Decisions,
        gradients: Ints,
    ) -> tuple[Ints32, Ints, bool]:
        """Return the nodes of rows after splits and the sums in the bins of the wanted nodes.

        Also return whether the splits are between bins; otherwise the result is useless.
        """
        sums = np.empty((np.count_nonzero(request.wanted), request.n_bins, 2), np.int64)
        arguments = self._arguments(state, request, decisions)
        node, is_possible = move_and_sum(*arguments, gradients, sums)
        return node, sums, is_possible

    def _move_and_pack(
        self,
        state: Growing,
        request: BuildHistograms,
        decisions: splits.Decisions,
        gradients: Ints,
    ) -> tuple[Ints32, Any, bool]:
        """Do the same as `_move_and_sum` with the sums that are not 0; see `move_and_pack`."""
        n_sums = int(np.count_nonzero(request.wanted)) * request.n_bins
        pairs = np.empty((min(n_sums, gradients[..., 0].size * self.n_features) + 1, 2), np.int64)
        bits = np.zeros(-(-n_sums // 64), np.uint64)
        arguments = self._arguments(state, request, decisions)
        node, is_possible, measured = move_and_pack(*arguments, gradients, bits, pairs)
        return node, (pairs, bits, measured), is_possible

    def _arguments(
        self, state: Growing, request: BuildHistograms, decisions: splits.Decisions
    ) -> tuple[Any, Any, Any, Any, Any]:
        """Return the first arguments of `move_and_sum` and `move_and_pack`."""
        return (
            self._binned(state),
            (state.offsets, state.thresholds),
            (state.node, state.ended, self._drawn(state)),
            (request.decided, decisions, state.first_child(request)),
            (request.first, request.wanted),
        )

    @partitions(
        *(BuildHistograms, BuildPackedHistograms, SumHistograms), singly=True, counts=True, terms=()
    )
    def rows_of_bins(self, request: BuildHistograms) -> Iterable[Ints]:
        """Yield the node and the bin of each row, for each tree and each feature."""
        state, n = self.recall(Growing), request.n_bins
        for node, ended in zip(state.node, state.ended, strict=True):
            slots = open_slots(node, ended, self._drawn(state), request.first, request.wanted)
            for bins in self._binned(state).T:
                yield np.where(slots >= 0, slots.astype(np.int64) * n + bins, -1)

    @partitions(SumRoots, singly=True, counts=True, terms=())
    def rows_of_roots(self, request: SumRoots) -> Iterable[Ints]:
        yield self._trains(*self.recall(Growing).held_out).astype(np.int64) - 1

    @partitions(SumLeaves, singly=True, counts=True, terms=())
    def rows_of_leaves(self, request: SumLeaves) -> Iterable[Ints]:
        state = self.recall(Growing)
        for node in np.where(state.ended >= 0, state.ended, state.node):
            yield np.where(self._drawn(state), node, -1).astype(np.int64)

    @handles(SumHistograms)
    def sum_histograms(self, request: SumHistograms) -> SummableHistograms:
        sums, state = self._sum_bins(request, self._unchecked_gradients), self.recall(Growing)
        digits, losses = self.row_digits(request), self._losses(state)[:, None]
        loss = add_rows(np.clip(losses, 0.0, request.max_loss), digits, "loss")
        weight = add_rows(self._weights(state)[:, None], digits, "weight")
        fields = {"sums": sums, "loss": loss[0, 0], "weight": weight[0, 0]}
        return summed(SummableHistograms, digits, **fields)

    def sum_digits(self, request: Message) -> Mapping[str, tuple[int, ...]] | None:
        if isinstance(request, SumNoisyHistograms):  # the handler checks that these are the bits
            return {"sums": (self.recall(Growing).bits,)}
        return super().sum_digits(request)

    @handles(SumNoisyHistograms)
    def sum_noisy_histograms(self, request: SumNoisyHistograms) -> NoisyHistograms:
        # What is refused here follows from the requests and the features, whatever the rows are.
        state = self.recall(Growing)
        if state.subsample < 1 or state.held_out[0] > 0:
            raise BadRequest(
                "sums with noise must be over all rows, because one row more changes which of its"
                f" equals are drawn; got subsample={state.subsample} and"
                f" validation_fraction={state.held_out[0]}"
            )
        limits = gradient_limits(state.objective, request.max_gradient, state.parameter)
        sensitivity = row_sensitivity(limits, self.n_features, state.margins.shape[1])
        if state.bits != sensitivity.digits:
            raise BadRequest(f"bits must be {sensitivity.digits}, got {state.bits}")

        def gradients(state: Growing) -> Ints:
            return clipped(self._unchecked_gradients(state), limits, state.bits)

        values = np.ldexp(self._sum_bins(request, gradients).astype(np.float64), -state.bits)
        return NoisyHistograms(add_noise(values, sensitivity, request.privacy, self.n_shares))

    @handles(StartTrees)
    def start_trees(self, request: StartTrees) -> Done:
        state = self.recall(Growing)
        margins = self._margins(request)
        if margins.shape != state.margins.shape:
            n, expected = margins.shape[1], state.margins.shape[1]
            raise ValueError(f"trees with {n} outputs in a run with {expected}")
        n_rounds = len(request.sizes) // margins.shape[1]
        self.state = unchecked_copy(state, margins=margins, n_rounds=n_rounds)
        return Done()

    def _margins(self, request: KeepTrees) -> Floats32:
        """Return the margins (n_rows, n_outputs) of the rows by the trees of a request."""
        margins = self._first_margins(request.base_margins or (request.base_margin,))
        X, trees = self._coded(request.levels), request.trees()
        n_outputs = margins.shape[1]
        for k in range(n_outputs):
            margins[:, k] = add_margins(trees[k::n_outputs], margins[:, k], X)
        return finite(margins)

    @handles(ScoreRows)
    def score_rows(self, request: ScoreRows) -> RowScores:
        state = self._update(request)
        held = self._rows_for_validation(request.eval_set, self._trains(*state.held_out))
        predictions = OBJECTIVES[state.objective].response(state.margins[held])
        targets = self._targets(state)[held]
        return score_rows(request.metrics, predictions, targets, self.weight[held], state.parameter)

    @handles(KeepTrees)
    def keep_trees(self, request: KeepTrees) -> Done:
        margins = self._margins(request)
        self.state = self._predict(margins[: self.n_training], request.objective)
        for problem in self._problems(request):
            warnings.warn(problem, stacklevel=2)
        return Done()

    def _problems(self, request: KeepTrees) -> list[str]:
        """Return what the model lacks to predict rows that had no part in the training."""
        new = self.table.rows(~self._trains(0.0, 0) | self.passive)
        problems = unknown_categories(new, request.levels)
        if request.has_margins and self.base_margin is None:
            problems.append(
                "the model was fitted with base_margin, which these rows need, too; they have none,"
                " so that all start from the margin of base_score"
            )
        return problems
