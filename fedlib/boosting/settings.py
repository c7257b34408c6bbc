"""The settings of a run of boosting as plain values, which of them go together, and its reports.

The constraints on the features of trees are given by the features' names or their indices. They
restrict the splits that the server chooses. No message differs, hence they need nothing from
clients and apply to every kind of sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedlib.boosting.objectives import OBJECTIVES, Parameter, n_outputs_of, parameter_of

Feature = int | str
METRICS_OF = {
    "binary:logistic": ("logloss", "error", "auc", "aucpr"),
    "multi:softprob": ("mlogloss", "merror", "auc"),
    "reg:gamma": ("rmse", "mae", "mape", "gamma-nloglik", "gamma-deviance"),
    "survival:aft": ("aft-nloglik", "interval-regression-accuracy"),
}  # for another regression: rmse, mae, mape and that of the objective


@dataclass(frozen=True)
class RoundReport:
    """What the server knows after a round; the callback of a run receives it.

    Attributes
    ----------
    n_rounds : int
        The count of finished rounds, at least 1; a run that continues a model counts through.
    n_trees : int
        The maximum count of rounds.
    learning_rate : float
        The learning rate of the round.
    loss : float or None
        The mean training loss before the round; None if there is none, as with noise.
    evaluations : dict of str to dict of str to float
        The values of the metrics after the round, by set of rows for validation.
    """

    n_rounds: int
    n_trees: int
    learning_rate: float
    loss: float | None
    evaluations: dict[str, dict[str, float]]


def rates_of(given: Any, n_trees: int) -> tuple[float, ...]:
    """Return the learning rate of each round; empty if it is one number.

    Parameters
    ----------
    given : float, array-like or callable
        The parameter ``learning_rate``.
    n_trees : int
        The maximum count of rounds.

    Raises
    ------
    ValueError
        When there are fewer rates than rounds, or a rate is not above 0 and at most 1.

    Examples
    --------
    >>> rates_of([0.5, 0.25], 2), rates_of(lambda i: 0.5**i, 3), rates_of(0.3, 2)
    ((0.5, 0.25), (1.0, 0.5, 0.25), ())
    """
    if isinstance(given, Real):
        return ()
    rates = [given(i) for i in range(n_trees)] if callable(given) else np.asarray(given).tolist()
    if not isinstance(rates, list) or len(rates) < n_trees:
        raise ValueError(
            f"learning_rate must be a number, or one number per round, {n_trees} or more; got"
            f" {given!r}"
        )
    wrong = [rate for rate in rates if not (isinstance(rate, Real) and 0 < float(rate) <= 1)]
    if wrong:
        raise ValueError(
            f"learning_rate must be above 0 and at most 1 in each round; got {wrong[0]!r}"
        )
    return tuple(float(np.float32(rate)) for rate in rates[:n_trees])


@dataclass(frozen=True)
class Constraints:
    """The constraints of a run as they were given.

    Attributes
    ----------
    monotone : tuple of int or dict of int or str to int
        The direction of each feature, or of those that are named; empty if there is none.
    interactions : tuple of tuples of int or str
        The groups of features that may interact; empty if all may.
    """

    monotone: tuple[int, ...] | Mapping[Feature, int] = ()
    interactions: tuple[tuple[Feature, ...], ...] = ()

    def directions(self, n_features: int, names: Sequence[str]) -> tuple[int, ...]:
        """Return the monotone constraint of each feature; empty if there is none.

        Raises
        ------
        ValueError
            When a feature is unknown, or there is not one constraint per feature.

        Examples
        --------
        >>> Constraints({"age": 1}).directions(2, ("sex", "age"))
        (0, 1)
        """
        given = self.monotone
        if isinstance(given, Mapping):
            found = [0] * n_features
            for feature, direction in given.items():
                found[_index(feature, n_features, names, "monotone_constraints")] = direction
            return tuple(found)
        if len(given) not in (0, n_features):
            raise ValueError(
                f"monotone_constraints must have one entry per feature, {n_features}; got"
                f" {len(given)}"
            )
        return given

    def groups(self, n_features: int, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the indices of the features of each group that may interact.

        Raises
        ------
        ValueError
            When a feature is unknown.

        Examples
        --------
        >>> Constraints(interactions=(("age", "sex"), (2,))).groups(3, ("sex", "age", "bmi"))
        ((1, 0), (2,))
        """
        return tuple(
            tuple(_index(one, n_features, names, "interaction_constraints") for one in group)
            for group in self.interactions
        )


def _index(feature: Feature, n_features: int, names: Sequence[str], parameter: str) -> int:
    """Return the index of a feature that is given by its name or its index."""
    if isinstance(feature, str):
        if feature in names:
            return names.index(feature)
        known = f"the features {', '.join(map(repr, names))}" if names else (
            "indices, because the clients' features have no names"
        )  # fmt: skip
        raise ValueError(f"{parameter} must contain {known}; got {feature!r}")
    if not 0 <= feature < n_features:
        raise ValueError(
            f"{parameter} must contain indices of features, 0..{n_features - 1}; got {feature}"
        )
    return feature


class Settings(SimpleNamespace):
    """The parameters of a run as plain values, and what follows from them before the run.

    The attributes are the parameters of the estimator (`fedlib.boosting.base.Boosted` and its
    subclasses declare them), and those that `Boosted._settings` adds. Numbers that are declared
    with `fedlib.boosting.base.Single` are float32 numbers, as in XGBoost.
    """

    def replaced(self, **changed: Any) -> Settings:
        """Return the settings with some other values."""
        return Settings(**{**vars(self), **changed})

    def decided(self, n_classes: int = 0) -> Settings:
        """Return the settings with the objective for a count of classes, and its metrics.

        Raises
        ------
        ValueError
            When other parameters do not fit the objective.
        """
        name = self.objective
        if self.by_classes and n_classes > 2:
            name = "multi:softprob"
        objective, metrics, score = OBJECTIVES[name], self.eval_metric, self.base_score
        follows = f", which follows from {n_classes} classes" if self.by_classes else ""
        chosen = f"objective={name!r}{follows}"
        if self.scale_pos_weight != 1 and name != "binary:logistic":
            raise ValueError(
                f"scale_pos_weight must be 1 for {chosen}; got {self.scale_pos_weight}"
            )
        if self.xgboost_rules < objective.since:
            raise ValueError(
                f"xgboost_rules must be {objective.since!r} or later for {chosen}, because"
                f" {objective.before}; got {self.xgboost_rules!r}"
            )
        if score is not None and not objective.check_score(score):
            scores = objective.valid_scores
            raise ValueError(f"base_score must be {scores} for {chosen}; got {score}")
        if metrics is None:
            wanted = self.validation_fraction or self.early_stopping_rounds or self.eval_sets
            metrics = (objective.default_metric,) if wanted else ()
        allowed = METRICS_OF.get(name, ("rmse", "mae", "mape", objective.default_metric))
        if objective.has_levels and len(getattr(self, objective.parameter_name)) > 1:
            allowed = (objective.default_metric,)  # the others are those of one prediction
        if self.eval_metric == () or not set(metrics) <= set(allowed):
            raise ValueError(
                f"eval_metric must be among {', '.join(sorted(set(allowed)))} for {chosen}; got"
                f" {list(metrics)}"
            )
        return self.replaced(objective=name, eval_metric=metrics, by_classes=False)

    def constrained(self, n_features: int, names: Sequence[str]) -> Settings:
        """Return the settings with the constraints of these features.

        Raises
        ------
        ValueError
            When a constraint does not fit the features.
        """
        return self.replaced(
            monotone_constraints=self.constraints.directions(n_features, names),
            interaction_constraints=self.constraints.groups(n_features, names),
        )

    @property
    def is_regression(self) -> bool:
        """Whether the labels are numbers."""
        return self.objective not in ("binary:logistic", "multi:softprob")

    @property
    def parameter(self) -> Parameter:
        """The parameter of the objective."""
        return parameter_of(self.objective, vars(self))

    @property
    def n_outputs(self) -> int:
        """The count of margins of a row, if it does not depend on the data."""
        return n_outputs_of(self.objective, self.parameter, len(self.classes))
