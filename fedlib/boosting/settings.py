"""The settings of a run of boosting, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedlib.boosting.agreed import AgreedFeatures
from fedlib.boosting.cuts import Cuts
from fedlib.boosting.messages import (
    Class,
    ObjectiveName,
)
from fedlib.core.aggregation import Aggregation


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parameters of a run; for their meaning see `FederatedXGBClassifier`.

    ``reg_lambda``, ``reg_alpha``, ``gamma``, ``min_child_weight`` and ``max_delta_step`` must be
    float32 numbers, as in XGBoost.
    """

    objective: ObjectiveName
    n_trees: int
    n_candidates: int
    method: Literal["top_splits", "union", "histogram"]
    max_depth: int
    learning_rate: float
    reg_lambda: float
    gamma: float
    min_child_weight: float
    max_bin: int
    tol: float | None
    leaf: Literal["all", "ended", "parent"]
    huber_slope: float
    base_score: float | None
    reg_alpha: float
    max_delta_step: float
    scale_pos_weight: float
    subsample: float
    colsample_bytree: float
    colsample_bylevel: float
    colsample_bynode: float
    monotone_constraints: tuple[int, ...]
    grow_policy: Literal["depthwise", "lossguide"]
    max_leaves: int
    max_cat_to_onehot: int
    max_cat_threshold: int
    min_category_count: int
    histograms: Literal["dense", "packed"]
    validation_fraction: float
    eval_metric: tuple[str, ...]
    early_stopping_rounds: int | None
    seed: int
    aggregation: Aggregation
    bounds: Cuts | None  # the bins between them; None if bins follow from the data
    agreed: AgreedFeatures | None  # the features of a schema; None if the clients describe them
    max_gradient: float
    classes: tuple[Class, ...]  # on which they have agreed; empty if they follow from the data

    @property
    def is_regression(self) -> bool:
        """Whether the labels are numbers."""
        return self.objective not in ("binary:logistic", "multi:softprob")

    @property
    def parameter(self) -> float:
        """The parameter of the objective."""
        if self.objective == "reg:pseudohubererror":
            return self.huber_slope
        return self.max_delta_step if self.objective == "count:poisson" else 0.0
