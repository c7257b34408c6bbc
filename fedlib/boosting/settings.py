"""The settings of a run of boosting as plain values, their defaults, and which go together.

Constraints on the features of trees, which are given by the features' names or their indices.

They restrict the splits that the server chooses. No message differs, so they need nothing from
clients and apply to every kind of sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Annotated, Any, Literal

import numpy as np

from fedlib.boosting.agreed import AgreedFeatures, Callback
from fedlib.boosting.cuts import Cuts
from fedlib.boosting.messages import (
    Class,
    ObjectiveName,
)
from fedlib.boosting.objectives import OBJECTIVES, Parameter, n_outputs_of, parameter_of
from fedlib.boosting.rules import RulesName
from fedlib.core.aggregation import Aggregation
from fedlib.core.parameters import KW_ONLY, Kind
from fedlib.core.texts import composed
from fedlib.protection.estimator import ProtectedFederated

Feature = int | str


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


class Constrained(ProtectedFederated):
    """Base class of estimators whose trees can be constrained."""

    _: KW_ONLY
    monotone_constraints: Annotated[
        Any,
        dict,
        "array-like",
        None,
        Kind("dict of str or int to int, or array-like (n_features,) of int"),
        """
        1 for a feature in which predictions may only increase, -1 if they may only decrease, else
        0: one entry per feature, or a mapping of features' names or indices, such as ``{"age":
        1}``. The command line takes JSON. ``"histogram"`` only.
        """,
    ] = None
    interaction_constraints: Annotated[
        Any,
        list,
        tuple,
        None,
        Kind("list of lists of str or int"),
        """
        Groups of features, by name or index, that may be on one path of a tree: after a split, the
        path continues with the features that it has, and with those of every group that contains
        all of these. A feature of no group is alone on its paths. None: all may be together. The
        command line takes JSON, such as ``[["age", "sex"], ["bmi"]]``. ``"histogram"`` only.
        """,
    ] = None

    def _constraints(self) -> Constraints:
        """Return the constraints.

        Raises
        ------
        ValueError
            When they are malformed.
        """
        return Constraints(self._monotone(), self._interactions())

    def _monotone(self) -> tuple[int, ...] | dict[Feature, int]:
        given = self.monotone_constraints
        if given is None:
            return ()
        by_feature = isinstance(given, dict)
        directions = np.asarray(list(given.values()) if by_feature else given)
        if directions.ndim != 1 or not np.isin(directions, [-1, 0, 1]).all():
            raise ValueError(
                f"monotone_constraints must contain one of -1, 0 and 1 per feature; got {given!r}"
            )
        plain = tuple(map(int, directions))
        if not by_feature:
            return plain
        features = (_feature(one, "monotone_constraints", given) for one in given)
        return dict(zip(features, plain, strict=True))

    def _interactions(self) -> tuple[tuple[Feature, ...], ...]:
        given, name = self.interaction_constraints, "interaction_constraints"
        groups = () if given is None else given
        if not all(isinstance(group, list | tuple) for group in groups):
            raise ValueError(
                f"{name} must be a list of lists of features, such as [[0, 1], [2]]; got {given!r}"
            )
        return tuple(tuple(_feature(one, name, given) for one in group) for group in groups)


def _feature(given: Any, parameter: str, value: Any) -> Feature:
    """Return the name or the index of a feature as a plain value."""
    if isinstance(given, str):
        return composed(given)
    if isinstance(given, Integral) and not isinstance(given, bool | np.bool_):
        return int(given)
    raise ValueError(f"{parameter} must contain names or indices of features; got {value!r}")


HISTOGRAM_ONLY: dict[str, Any] = {
    "colsample_bytree": 1.0,
    "colsample_bylevel": 1.0,
    "colsample_bynode": 1.0,
    "monotone_constraints": None,
    "interaction_constraints": None,
    "grow_policy": "depthwise",
    "max_leaves": 0,
    "max_cat_to_onehot": 4,
    "max_cat_threshold": 64,
    "histograms": "packed",
    "bounds": None,
}  # with their defaults
NOT_SECURE: dict[str, Any] = {
    "validation_fraction": 0,
    "eval_metric": None,
    "eval_sets": None,
    "early_stopping_rounds": None,
}  # what sums over all clients need
NOT_PRIVATE: dict[str, Any] = {
    "tol": None,
    "grow_policy": "depthwise",
    "scale_pos_weight": 1.0,
    "subsample": 1.0,
    "warm_start": False,
}  # what noise needs, too
METRICS_OF = {
    "binary:logistic": ("logloss", "error", "auc", "aucpr"),
    "multi:softprob": ("mlogloss", "merror", "auc"),
    "reg:gamma": ("rmse", "mae", "mape", "gamma-nloglik", "gamma-deviance"),
    "survival:aft": ("aft-nloglik", "interval-regression-accuracy"),
}  # for another regression: rmse, mae, mape and that of the objective
# The parameters whose best values depend on whether sums have noise: by default without and with
# it. The page "How much accuracy does differential privacy cost?" measures how they were chosen.
DEFAULTS: dict[str, tuple[Any, Any]] = {
    "n_trees": (100, 10),
    "max_depth": (6, 2),
    "max_bin": (256, 4),
    "reg_lambda": (1.0, None),  # None: from the noise, see `fedlib.boosting.secure.penalty`
}
POISSON_STEP = 0.7  # XGBoost's default of max_delta_step for count:poisson


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parameters of a run; for their meaning see `FederatedXGBClassifier`.

    ``reg_lambda``, ``reg_alpha``, ``gamma``, ``min_child_weight`` and ``max_delta_step`` must be
    float32 numbers, as in XGBoost.
    """

    objective: ObjectiveName
    xgboost_rules: RulesName
    by_classes: bool  # whether the number of classes decides on the objective, see `decided`
    n_trees: int
    n_candidates: int
    method: Literal["top_splits", "union", "histogram"]
    max_depth: int
    learning_rate: float
    learning_rates: tuple[float, ...]  # of each round; empty if it is the same in all
    callback: Callback | None
    reg_lambda: float | None  # None: it depends on the noise
    gamma: float
    min_child_weight: float
    max_bin: int
    tol: float | None
    leaf: Literal["all", "ended", "parent"]
    huber_slope: float
    tweedie_variance_power: float
    quantile_alpha: tuple[float, ...]
    expectile_alpha: tuple[float, ...]
    aft_loss_distribution: str
    aft_loss_distribution_scale: float
    base_score: float | None
    reg_alpha: float
    max_delta_step: float
    scale_pos_weight: float
    subsample: float
    colsample_bytree: float
    colsample_bylevel: float
    colsample_bynode: float
    constraints: Constraints  # as they were given
    monotone_constraints: tuple[int, ...] = ()  # of each feature, see `constrained`
    interaction_constraints: tuple[tuple[int, ...], ...] = ()
    grow_policy: Literal["depthwise", "lossguide"]
    max_leaves: int
    max_cat_to_onehot: int
    max_cat_threshold: int
    min_category_count: int
    histograms: Literal["dense", "packed"]
    validation_fraction: float
    eval_metric: tuple[str, ...] | None  # None: by default; empty without validation
    eval_sets: tuple[str, ...]  # empty: all rows for validation are one set
    early_stopping_rounds: int | None
    seed: int
    aggregation: Aggregation
    bounds: Cuts | None  # the bins between them; None if bins follow from the data
    agreed: AgreedFeatures | None  # the features of a schema; None if the clients describe them
    max_gradient: float
    max_weight: float  # of a row; so large that it has no effect unless sums are only masked
    max_target: float  # the same of targets
    classes: tuple[Class, ...]  # on which they have agreed; empty if they follow from the data

    def decided(self, n_classes: int = 0) -> Settings:
        """Return the settings with the objective for a number of classes, and its metrics.

        Raises
        ------
        ValueError
            When other parameters do not fit the objective.
        """
        name: ObjectiveName = self.objective
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
        return replace(self, objective=name, eval_metric=metrics, by_classes=False)

    def constrained(self, n_features: int, names: Sequence[str]) -> Settings:
        """Return the settings with the constraints of these features.

        Raises
        ------
        ValueError
            When a constraint does not fit the features.
        """
        return replace(
            self,
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
        """The number of margins of a row, if it does not depend on the data."""
        return n_outputs_of(self.objective, self.parameter, len(self.classes))
