"""The base class of the boosted estimators: their common parameters, attributes and methods."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from fedlib.boosting.data import check_rows
from fedlib.boosting.export import to_booster
from fedlib.boosting.flow import boosting
from fedlib.boosting.growers import Settings
from fedlib.boosting.objectives import OBJECTIVES
from fedlib.boosting.trees import BoostedTrees
from fedlib.federated import Federated
from fedlib.protocol import Flow
from fedlib.validation import Interval, StrOptions, feature_names

if TYPE_CHECKING:
    from xgboost import Booster

__all__ = ["Boosted"]

POISSON_STEP = 0.7  # XGBoost's default of max_delta_step for count:poisson


class Boosted(Federated):
    """Base class of `FederatedXGBClassifier` and `FederatedXGBRegressor`."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_trees": [Interval(Integral, 1, None, closed="left")],
        "n_candidates": [Interval(Integral, 1, 2**16, closed="both")],
        "method": [StrOptions({"top_splits", "union", "histogram"})],
        "max_depth": [Interval(Integral, 1, 30, closed="both")],
        "learning_rate": [Interval(Real, 0, 1, closed="right")],
        "reg_lambda": [Interval(Real, 0, 1e30, closed="both")],
        "gamma": [Interval(Real, 0, 1e30, closed="both")],
        "min_child_weight": [Interval(Real, 0, 1e30, closed="both")],
        "max_bin": [Interval(Integral, 2, 2**15, closed="both")],
        "tol": [Interval(Real, None, None, closed="neither"), None],
        "base_score": [Interval(Real, None, None, closed="neither"), None],
        "reg_alpha": [Interval(Real, 0, 1e30, closed="both")],
        "max_delta_step": [Interval(Real, 0, 1e30, closed="both"), None],
        "subsample": [Interval(Real, 0, 1, closed="right")],
        "random_state": ["random_state"],
    }
    objective: str
    method: Literal["top_splits", "union", "histogram"]
    n_trees: int
    n_candidates: int
    max_depth: int
    learning_rate: float
    reg_lambda: float
    gamma: float
    min_child_weight: float
    max_bin: int
    tol: float | None
    base_score: float | None
    reg_alpha: float
    max_delta_step: float | None
    subsample: float
    random_state: Any

    def _flow(self) -> Flow[BoostedTrees]:
        return boosting(self._settings())

    def _settings(self, **others: Any) -> Settings:
        """Return the settings of a run; ``others`` are those that only some estimators have."""
        self._check_base_score()
        is_poisson = self.objective == "count:poisson"
        step = self.max_delta_step
        step = (POISSON_STEP if is_poisson else 0.0) if step is None else step
        draws = self.subsample < 1
        seed = check_random_state(self.random_state).randint(2**31 - 1) if draws else 0
        defaults = {"leaf": "all", "huber_slope": 1.0, "scale_pos_weight": 1.0}
        return Settings(
            **{
                "objective": self.objective,
                "n_trees": int(self.n_trees),
                "n_candidates": int(self.n_candidates),
                "method": self.method,
                "max_depth": int(self.max_depth),
                "learning_rate": float(self.learning_rate),
                "reg_lambda": float(np.float32(self.reg_lambda)),
                "gamma": float(np.float32(self.gamma)),
                "min_child_weight": float(np.float32(self.min_child_weight)),
                "max_bin": int(self.max_bin),
                "tol": self.tol,
                "base_score": self.base_score,
                "reg_alpha": float(np.float32(self.reg_alpha)),
                "max_delta_step": float(np.float32(step)),
                "subsample": float(self.subsample),
                "seed": int(seed),
                **defaults,
                **others,
            }
        )

    def _check_base_score(self) -> None:
        """Raise ValueError when the objective cannot start from ``base_score``."""
        objective = OBJECTIVES[self.objective]
        if self.base_score is not None and not objective.check_score(self.base_score):
            raise ValueError(
                f"base_score must be {objective.valid_scores} for objective={self.objective!r};"
                f" got {self.base_score}"
            )

    def _set_model(self, model: BoostedTrees) -> None:
        super()._set_model(model)
        self.trees_ = model.trees
        self.losses_ = model.losses
        self.learning_rate_ = model.learning_rate
        self.n_features_in_ = model.n_features
        if model.features:
            self.feature_names_in_ = np.array(model.features, dtype=object)

    def to_xgboost(self) -> Booster:
        """Return an `xgboost.Booster` with the same predictions as this model.

        Use it to save, plot or explain the model with XGBoost's tools. Its gains and covers are
        those over all clients' rows.

        Returns
        -------
        booster : xgboost.Booster
            For two classes, it predicts the second class's probability. XGBoost accepts no ``[``,
            ``]`` or ``<`` in a feature's name, so these characters become ``(``, ``)`` and ``_``;
            see its ``feature_names``.

        Raises
        ------
        ImportError
            When xgboost is not installed.
        """
        check_is_fitted(self, "model_")
        return to_booster(self.model_)

    def _check_rows(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return new rows for the model; raise ValueError when their names differ from fit's."""
        check_is_fitted(self, "model_")
        rows = check_rows(X)
        given, known = feature_names(X), self.model_.features
        if given and known and len(given) == len(known) and given != known:
            raise ValueError(f"X must have the features {list(known)}; got {list(given)}")
        return rows
