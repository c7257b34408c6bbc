"""A client's rows while trees grow: where they are in the trees, and what follows from it."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.cuts import Cuts, coarse_features
from fedlib.boosting.messages import (
    MAX_SUM,
    Growth,
    Levels,
    unchecked_copy,
)
from fedlib.boosting.objectives import OBJECTIVES
from fedlib.boosting.row_client import (
    Growing,
    RowsClient,
    drawn_rows,
    first_child,
    new_splits,
    roots,
)
from fedlib.core.array_types import Bools, Floats, Floats32, Ints, Ints32
from fedlib.core.client import Unanswerable
from fedlib.core.messages import Message
from fedlib.kernels.histograms import (
    absolute_sums,
    add_values,
    left_children,
    move_rows_by_bins,
    open_slots,
)
from fedlib.kernels.proposals import (
    RankedColumns,
    count_values,
    rank_values,
)
from fedlib.kernels.splits import Decisions, Rows, SortedColumns, move_rows

logger = logging.getLogger(__name__)
ROWS_PER_VALUE = 2  # with fewer rows per distinct value of a node, ranks do not pay


class GrowingRows(RowsClient):
    """A client with rows that move through growing trees.

    What follows from the rows and the last request is kept until another request changes it
    (`RowsClient._cached`): it is computed again after a restart.
    """

    def _update(self, request: Growth) -> Growing:
        """Apply the decisions that a request reports; begin a new round if one is finished."""
        state = self._scaled(request)
        if len(request.values) and getattr(request, "n_rounds", state.n_rounds) < state.n_rounds:
            return state  # this request has been answered before
        node, ended, margins, n_rounds = state.node, state.ended, state.margins, state.n_rounds
        decisions, n_nodes = new_splits(state, request)
        if len(decisions.feature):
            node = self._moved(state, request)
        if len(request.values):
            if len(request.values) < n_nodes:
                raise Unanswerable(f"{len(request.values)} values for {n_nodes} nodes")
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
            raise Unanswerable(f"{len(scales)} scales for {state.objective}")
        for name in ("checked", "gradients"):  # which the other scales had
            self._cache.pop(name, None)
        self.state = unchecked_copy(state, parameter=(*parameter[:-n_outputs], *scales))
        return self.state

    def _moved(self, state: Growing, request: Growth) -> Ints32:
        """Return the nodes of rows (n_outputs, n_rows) after the splits that a request reports."""
        node, decisions, next_node = state.node, request.decisions, first_child(state, request)
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

    def _drawn(self, state: Growing) -> Bools:
        """Return which rows the trees of this round use."""
        return self._cached("drawn", state.margins, lambda: self._draw(state))

    def _draw(self, state: Growing) -> Bools:
        trains = self._cached("trains", state.thresholds, lambda: self._trains(*state.held_out))
        if state.subsample == 1:
            return trains
        return trains & drawn_rows(self._keys(), state.subsample, state.seed, state.n_rounds)

    def _gradients(self, state: Growing) -> Ints:
        """Return the gradients (n_outputs, n_rows, 2)."""
        return self._cached("checked", state.margins, lambda: self._check_gradients(state))

    def _check_gradients(self, state: Growing) -> Ints:
        gradients = self._unchecked_gradients(state)
        if any(max(absolute_sums(of_output)) > MAX_SUM for of_output in gradients):
            raise ValueError("the gradients became too large: use a smaller learning_rate")
        return gradients

    def _unchecked_gradients(self, state: Growing) -> Ints:
        """Return gradients that may be too large: behind masks an error would disclose it."""
        return self._cached("gradients", state.margins, lambda: self._compute_gradients(state))

    def _compute_gradients(self, state: Growing) -> Ints:
        return OBJECTIVES[state.objective].gradients(
            state.margins, self._targets(state), self._weights(state), state.parameter, state.bits
        )

    def _loss(self, state: Growing) -> float:
        return self._cached(
            "loss", state.margins, lambda: OBJECTIVES[state.objective].loss(*self._measured(state))
        )

    def _losses(self, state: Growing) -> Floats:
        """Return the loss of each row; 0 for one that is not a number."""

        def losses() -> Floats:
            return np.nan_to_num(OBJECTIVES[state.objective].losses(*self._measured(state)))

        return self._cached("losses", state.margins, losses)

    def _measured(self, state: Growing) -> tuple[Any, ...]:
        return state.margins, self._targets(state), self._weights(state), state.parameter

    def _targets(self, state: Growing) -> NDArray[Any]:
        """Return the labels as the objective takes them."""
        return self._cached("targets", state.thresholds, lambda: self._compute_targets(state))

    def _weights(self, state: Growing) -> Floats32:
        """Return the rows' weights in training, 0 for the rows for validation.

        Those of the second class are multiplied by ``scale_pos_weight``. They are the same in all
        rounds of a run, whose thresholds are an object of their own.
        """
        return self._cached("weights", state.thresholds, lambda: self._compute_weights(state))

    def _compute_weights(self, state: Growing) -> Floats32:
        trains = self._trains(*state.held_out)
        weights = self._limited_weight(state.max_weight)
        weights = weights if trains.all() else weights * trains
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
            raise Unanswerable("the bins do not fit the features")
        bins = Cuts(offsets, state.thresholds).bins(self._coded(state.levels))
        narrow = np.uint16 if n_bins <= 2**16 else np.uint32
        return (bins + offsets[:-1]).astype(narrow)

    def _coded(self, levels: Levels) -> Floats32:
        """Return the rows with the numbers of these categories, whatever the rows contain."""
        return self._cached("coded", levels, lambda: self._code(levels))

    def _code(self, levels: Levels) -> Floats32:
        coded = self.table.coded(levels)
        if problem := self.table.problem_of(levels):
            logger.warning("%s; such values count as missing, or as another category", problem)
        return coded

    def _sorted_columns(self) -> SortedColumns:
        return self._cached("sorted columns", self.table, self._sort_columns)

    def _sort_columns(self) -> SortedColumns:
        columns = self.X.T
        order = np.argsort(columns, axis=1, kind="stable").astype(np.int32)
        values = np.take_along_axis(columns, order, axis=1)
        return SortedColumns(order, values, (~np.isnan(columns)).sum(axis=1))

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

    def _predict(self, margins: Floats32, objective: str) -> Message:
        """Return the state with the predictions of margins (n_rows, n_outputs)."""
        raise NotImplementedError
