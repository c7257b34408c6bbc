"""Checks of a client's replies against what it has reported before.

A client declares its rows before the first tree. From then on its rows only move: from a node to
the node's children. So the sums of two siblings are exactly the sum of their parent, the bins of
every feature have the same sum, and the sums at the root belong to the declared weights. A reply
that breaks such a rule excludes its client.

A client can still invent rows, as long as it invents the same rows in all its replies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.label_sums import LabelSums
from fedlib.boosting.messages import SplitProposals
from fedlib.boosting.objectives import Objective, Parameter
from fedlib.core.array_types import Bools, Ints
from fedlib.kernels.histograms import absolute_sums, subtract_siblings

ROUNDING = 1e-5  # of a client's weight; gradients are float32


@dataclass(frozen=True)
class DeclaredRows:
    """The rows that a client has declared, and what their sums can be.

    Attributes
    ----------
    n_rows : int
    sums : LabelSums
        The sums over the rows' labels.
    objective : Objective
    parameter : float or tuple of float
        The parameter of the objective, with the scales of the round.
    n_outputs : int
        The number of trees per round.
    is_sampled : bool
        Whether each tree uses a part of the rows only.
    """

    n_rows: int
    sums: LabelSums
    objective: Objective
    parameter: Parameter
    n_outputs: int
    is_sampled: bool

    def problem_of_first(self, margins: Sequence[float], unit: float, sums: Ints) -> str | None:
        """Return why rows cannot have these sums (n_outputs, 2) before the first tree, or None.

        All rows then have the same margins. Each row is rounded to a whole ``unit``.
        """
        expected = self.objective.first_sums(self.sums, margins, self.parameter)
        if expected is None or self.is_sampled:
            return None
        g, h = self.objective.largest_sums(self.sums, max(map(abs, margins)), self.parameter)
        margin = (ROUNDING * max(g, h) + 1e-15) / unit + self.n_rows
        if (np.abs(sums - expected / unit) > margin).any():
            return "the sums of the first tree are not those of the declared rows"
        return None

    def problem(self, unit: float, sums: Ints, largest_margin: float) -> str | None:
        """Return why rows cannot have these sums (n_nodes, 2) in disjoint nodes; None if they can.

        No margin of a row is larger than ``largest_margin``.
        """
        least_h, g, h = absolute_sums(sums)
        if least_h < 0:
            return "a negative sum of hessians"
        largest_g, largest_h = self.objective.largest_sums(
            self.sums, largest_margin, self.parameter
        )
        scale, rounded = self.n_outputs * (1 + ROUNDING) / unit, self.n_outputs * self.n_rows
        if g > scale * largest_g + rounded or h > scale * largest_h + rounded:
            return "the sums exceed what the declared rows can have"
        return None

    def problem_of_gains(
        self, unit: float, reg_lambda: float, proposed: SplitProposals, largest_margin: float
    ) -> str | None:
        """Return why no rows of the reported weights have such gains; None if some have.

        With |G| at most w in a node, G²/(H + λ) is at most w²/λ, and the scores of two children
        together are not more. If an objective's gradients are larger than weights, w is the bound
        for all rows.
        """
        if reg_lambda == 0:
            return None
        largest, _ = self.objective.largest_sums(self.sums, largest_margin, self.parameter)
        weight = np.repeat(proposed.weight, proposed.count)
        weight = np.where(largest > self.sums.weight, largest, weight) + self.n_rows * unit
        if (proposed.gain > (1 + ROUNDING) * weight * (weight / reg_lambda)).any():
            return "the gains exceed what the declared rows can have"
        return None


class NodeHistory:
    """What each client has reported about the nodes that were split last.

    Attributes
    ----------
    open : dict of str to array (n_open, …)
        Per client, the sums or weights in the open nodes.
    parents : dict of str to array (n_parents, …)
        The same in the nodes of the level before that were split.
    """

    def __init__(self) -> None:
        self.open: dict[str, NDArray[Any]] = {}
        self.parents: dict[str, NDArray[Any]] = {}

    def begin_tree(self) -> None:
        """Forget the tree before: the next level is the root."""
        self.parents = {}

    def begin_level(self) -> None:
        """Forget the nodes of the level before."""
        self.open = {}

    def split(self, which: Bools) -> None:
        """Note which of the open nodes are split."""
        self.parents = {name: reported[which] for name, reported in self.open.items()}

    def complete(self, name: str, wanted: Bools, reported: Ints) -> Ints:
        """Return the sums in all open nodes, from those in the ``wanted`` ones of two siblings."""
        parents = self.parents.get(name)
        sums = np.zeros((len(wanted), 2), np.int64)
        sums[wanted] = reported
        if parents is not None and len(reported) < len(wanted):
            subtract_siblings(sums, wanted, parents, np.arange(len(parents)))
        return sums

    def problem(
        self, name: str, reported: NDArray[Any], tolerance: float = 0.0, may_fall: bool = False
    ) -> str | None:
        """Record a client's sums in the open nodes; return why they do not fit their parents'.

        Parameters
        ----------
        name : str
            The client.
        reported : array (n_open, …)
            At the root one node, else the children of the nodes that were split, in pairs.
        tolerance : float
            The rounding errors, as a fraction of the parents' values.
        may_fall : bool
            Whether rows may have stayed in the parents.
        """
        self.open[name] = reported
        parents = self.parents.get(name)
        if parents is None or len(reported) != 2 * len(parents):
            return None
        excess = reported[0::2] + reported[1::2] - parents
        if not np.count_nonzero(excess):
            return None
        outside = excess if may_fall else np.abs(excess)
        if (outside > tolerance * np.abs(parents)).any():
            return "the children of a node do not add up to the node"
        return None


def reasons(problems: Mapping[str, str | None]) -> dict[str, str]:
    """Return the clients with a problem, and the problem of each."""
    return {name: problem for name, problem in problems.items() if problem is not None}
