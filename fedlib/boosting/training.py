"""What the server knows during training: bins, sums and losses, and what contradicts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.checks import DeclaredRows
from fedlib.boosting.cuts import Cuts
from fedlib.boosting.described import Described
from fedlib.boosting.label_sums import LabelSums
from fedlib.boosting.messages import Levels
from fedlib.boosting.objectives import OBJECTIVES, Objective, Parameter
from fedlib.boosting.rules import RULES
from fedlib.core.array_types import Bools
from fedlib.kernels.gains import Categories, SplitRule

if TYPE_CHECKING:  # a site does not need the estimators' parameters
    from fedlib.boosting.settings import Settings


@dataclass(kw_only=True)
class Training:
    """The state of the server while trees grow.

    Attributes
    ----------
    settings : Settings
    described : Described
        The clients' rows at the beginning. With masked sums or noise, there is one client then,
        `EVERYONE`.
    base_scores : list of float
        The prediction before the first tree, one per output.
    base_margins : list of float
        The margins of these predictions.
    bits : int
        Gradients are multiples of 2**-bits.
    weights : dict of str to float
        The total weight of each remaining client's rows, as it reported; 0 for passive clients.
    declared : dict of str to DeclaredRows
        The rows of each client that is not passive, as it reported them.
    cuts : Cuts
        The bins of all features; for histograms only.
    levels : tuple of tuple of str or None
        The categories of each feature, None for a feature of numbers; empty if all features are
        numbers.
    losses : list of float
        The mean loss before the first round and after each round but the last.
    client_losses : dict of str to float
        The sum of each client's losses, as it reported last.
    n_rounds : int
        The number of finished rounds of the model, with those that the run continues.
    scales : tuple of float
        The scale of each output's residuals in this round; empty if the objective has none.
    """

    settings: Settings
    described: Described
    base_scores: list[float]
    base_margins: list[float]
    bits: int
    weights: dict[str, float]
    declared: dict[str, DeclaredRows]
    cuts: Cuts
    levels: Levels
    losses: list[float] = field(default_factory=list)
    client_losses: dict[str, float] = field(default_factory=dict)
    n_rounds: int = 0
    scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.objective.scaled:  # 0 until the first round has measured them
            self.scales = (0.0,) * self.n_outputs

    @property
    def parameter(self) -> Parameter:
        """The parameter of the objective, with the scales of this round at its end."""
        own = self.settings.parameter
        return own + self.scales if isinstance(own, tuple) else own

    @cached_property
    def unit(self) -> float:
        """The unit of gradients and hessians."""
        return 2.0**-self.bits

    @cached_property
    def rule(self) -> SplitRule:
        """The rule for splits by the sums of all clients."""
        settings = self.settings
        penalty = settings.reg_lambda
        return SplitRule(
            self.unit,
            self.described.reg_lambda if penalty is None else penalty,
            settings.gamma,
            settings.min_child_weight,
            settings.reg_alpha,
            settings.max_delta_step,
            any(settings.monotone_constraints),
            RULES[settings.xgboost_rules].by_weight,
        )

    @cached_property
    def monotone(self) -> NDArray[np.int8]:
        """The monotone constraint of each feature."""
        constraints = self.settings.monotone_constraints or (0,) * self.described.n_features
        return np.array(constraints, np.int8)

    @cached_property
    def interactions(self) -> Bools:
        """Which features (n_groups, n_features) each group that may interact has."""
        groups = self.settings.interaction_constraints
        members = np.zeros((len(groups), self.described.n_features if groups else 0), bool)
        for i, group in enumerate(groups):
            members[i, list(group)] = True
        return members

    @property
    def categories(self) -> Categories:
        """The features with categories, and how to split them."""
        is_category = np.array(
            [known is not None for known in self.levels or (None,) * self.described.n_features]
        )
        n_bins = np.diff(self.cuts.offsets) if len(self.cuts.thresholds) else is_category * 1
        return Categories(
            is_category,
            self.settings.max_cat_to_onehot,
            self.settings.max_cat_threshold,
            n_bytes=int((max(n_bins[is_category], default=0) + 7) // 8),
        )

    @property
    def withheld(self) -> tuple[int, ...]:
        """The features with a bin for texts that are none of their categories."""
        n_bins = np.diff(self.cuts.offsets) - 1  # without that of missing values
        return tuple(
            f for f, known in enumerate(self.levels) if known is not None and n_bins[f] > len(known)
        )

    @property
    def objective(self) -> Objective:
        """The objective of the run."""
        return OBJECTIVES[self.settings.objective]

    @property
    def n_outputs(self) -> int:
        """The number of trees per round."""
        return len(self.base_margins)

    def learning_rate(self, n_round: int) -> float:
        """Return the learning rate of the round with this index."""
        rates = self.settings.learning_rates
        return rates[n_round] if rates else self.described.learning_rate

    def remove(self, lost: Sequence[str]) -> None:
        """Remove the clients that are lost."""
        for name in lost:
            self.weights.pop(name, None)

    def rows_of(self, name: str) -> DeclaredRows:
        """Return the rows that a client has declared; none for a passive one."""
        if name in self.declared:
            rows = self.declared[name]
            return replace(rows, parameter=self.parameter) if self.scales else rows
        nothing = LabelSums(0.0, (0.0,) * len(self.described.classes))
        return DeclaredRows(0, nothing, self.objective, self.parameter, self.n_outputs, False)

    def has_converged(self, losses: Mapping[str, float]) -> bool:
        """Record the clients' losses; return whether the last tree lowered the mean by too little.

        Only clients that are still there count, before the tree as well as after it.
        """
        reported = {name: loss for name, loss in losses.items() if name in self.weights}
        weight = sum(self.weights[name] for name in reported) or 1.0
        before = sum(self.client_losses.get(name, 0.0) for name in reported) / weight
        after = sum(reported.values()) / weight
        is_first = not self.client_losses
        self.client_losses = reported
        self.losses.append(after)
        tol = self.settings.tol
        return not is_first and tol is not None and not before - after >= tol
