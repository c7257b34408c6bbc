"""Federated XGBoost for numbers; see `fedlib.boosting.estimator` for the methods."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from numbers import Real
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin

from fedlib.boosting.base import Boosted, check_labels
from fedlib.boosting.client import RegressionClient
from fedlib.boosting.flow import boosting
from fedlib.boosting.objectives import check_smallest
from fedlib.boosting.trees import BoostedTrees
from fedlib.client import Client
from fedlib.protocol import Flow
from fedlib.validation import Interval, StrOptions

__all__ = ["FederatedXGBRegressor"]


class FederatedXGBRegressor(RegressorMixin, Boosted):
    """Boosted trees for numbers, over clients that hold rows of the same features.

    Parameters
    ----------
    n_trees : int, default=100
        The maximum number of trees, at least 1.
    n_candidates : int, default=10
        The number of splits per node that each client proposes, in 1..65536. Not used by
        ``"histogram"``.
    method : {"top_splits", "union", "histogram"}, default="histogram"
        The method, which determines the data that clients send for each node; see
        `FederatedXGBClassifier`.
    objective : {"reg:squarederror", "reg:pseudohubererror", "count:poisson"}, \
default="reg:squarederror"
        XGBoost's name of the objective. ``"count:poisson"`` needs targets of at least 0.
    max_depth : int, default=6
        The maximum number of splits on the path to a leaf, in 1..30; 0 with ``max_leaves`` and
        ``grow_policy="lossguide"``: no limit.
    learning_rate : float, default=0.3
        The factor on the weight of a leaf, above 0 and at most 1. A client may prefer another one;
        the run uses the clients' mean, weighted by rows.
    reg_lambda : float, default=1.0
        The L2 penalty on the weight of a leaf, in 0..1e30.
    gamma : float, default=0.0
        The minimum gain of a split, in 0..1e30.
    min_child_weight : float, default=1.0
        The minimum sum of hessians on either side of a split, in 0..1e30; see
        `FederatedXGBClassifier`. For the squared error it is a weight of rows.
    max_bin : int, default=256
        The maximum number of bins per feature, in 2..32768. Used by ``"histogram"`` only.
    tol : float or None, default=None
        Stop after a tree that lowers the mean loss of all rows by less than this. None: grow all
        trees.
    huber_slope : float, default=1.0
        The residual at which the pseudo-Huber loss changes from a square to a straight line, in
        1e-6..1e6.
    base_score : float, optional
        The initial prediction; above 0 for ``"count:poisson"``. By default it is estimated as in
        XGBoost: the mean of the targets, or a Newton step from 0 for the pseudo-Huber loss.
    reg_alpha : float, default=0.0
        The L1 penalty on the weight of a leaf, in 0..1e30.
    max_delta_step : float, optional
        The maximum size of the weight of a leaf before it is multiplied with the learning rate, in
        0..1e30; 0: no limit. None: 0.7 for ``"count:poisson"``, otherwise 0.
    subsample : float, default=1.0
        The share of the rows that a tree uses, above 0 and at most 1; 1 with `epsilon`. See
        `FederatedXGBClassifier`.
    random_state : int, RandomState instance or None, default=None
        Draws the rows and the features.
    colsample_bytree, colsample_bylevel, colsample_bynode : float, default=1.0
        The share of the features, above 0 and at most 1, that the server draws for each tree, of
        these for each level, and of these for each node. XGBoost draws other features with the same
        seed. ``"histogram"`` only.
    monotone_constraints : array-like (n_features,) of int, optional
        1 for a feature in which predictions may only increase, -1 if they may only decrease, else
        0. ``"histogram"`` only.
    grow_policy : {"depthwise", "lossguide"}, default="depthwise"
        ``"lossguide"`` splits the leaf with the largest gain first, which costs one exchange per
        split instead of one per level. ``"histogram"`` only.
    max_leaves : int, default=0
        The maximum number of leaves of a tree, in 0..2**20; 0: no limit. ``"histogram"`` only.
    max_cat_to_onehot : int, default=4
        A feature with fewer categories is split into one category and the others, at least 1.
        ``"histogram"`` only.
    max_cat_threshold : int, default=64
        For a feature with more categories, one side of a split has fewer than this number of them,
        at least 1. ``"histogram"`` only.
    min_category_count : int, default=1
        A client withholds the names of categories with fewer rows, at least 1.
    histograms : {"dense", "packed"}, default="dense"
        How histograms travel. ``"packed"`` leaves out empty bins and sends integers as wide as they
        need to be: the same trees for fewer bytes. ``"histogram"`` only.
    validation_fraction : float, default=0.0
        The share of its rows that each client keeps from training, in 0..1 without 1. After each
        round, the clients send the metrics of these rows as sums, which costs one exchange. Which
        rows are kept does not depend on the client. Instead or in addition, a part can be ``(X, y,
        sample_weight, (X_eval, y_eval))``, with None for no weights.
    eval_metric : str or list of str, optional
        The metrics: ``"rmse"``, ``"mae"``, and ``"mphe"`` or ``"poisson-nloglik"`` for its
        objective; by default the one of the objective. Given without rows for validation, it is an
        error.
    early_stopping_rounds : int, optional
        End when the last metric has not become better for this number of rounds, at least 1, and
        keep the trees up to the best round. Independent of ``tol``.
    warm_start : bool, default=False
        Whether `fit` continues the fitted model until it has ``n_trees`` trees. Its objective,
        classes and initial prediction stay.
    secure : bool, default=False
        Whether the server sees sums over the clients and no client's reply; see `fedlib.secure` for
        what remains open. It needs ``method="histogram"``, `feature_bounds` and features of
        numbers, and allows neither validation nor packed histograms. The trees are those of the run
        without it.
    feature_bounds : array-like (2, n_features), default=None
        The lower and the upper bound of each feature, on which the clients agree before the run.
        The range between them is divided into ``max_bin`` bins of equal width, the outer of which
        also contain the values beyond. By default the bins follow from the data, so that they have
        about equally many rows. ``"histogram"`` only.
    epsilon : float, default=None
        The run is differentially private; see `fedlib.privacy`. It needs the same parameters as
        ``secure``, with which it can be combined, and `base_score`, ``tol=None``, ``subsample=1``
        and ``grow_policy="depthwise"``. The noise grows with ``n_trees * max_depth``, and its sum
        in a node with ``max_bin``, so few shallow trees with few bins are best. A row has a weight
        of at most 1. Not for ``"count:poisson"``. There is no loss, and the learning rate is the
        server's.
    delta : float, default=0.0
        The second parameter of the guarantee, at least 0 and below 1. With a small positive value,
        such as 1e-6, the noise is Gaussian and smaller over several requests.
    max_gradient : float, default=1.0
        For `epsilon`: the gradient of a row, which for the squared error is the prediction minus
        the target, is clipped to ±max_gradient; above 0 and at most 1e6.

    Attributes
    ----------
    model_ : BoostedTrees
        The model, with everything that predictions need.
    trees_ : list of Tree
        The trees, in the order in which they were grown.
    labels_ : list of array
        The predictions (n_rows,) for each client's rows; None for a client that was lost. Only if
        the parts were given to `fit`.
    losses_ : list of float
        The mean loss over all rows before the first tree and after each tree but the last: the
        squared error, the pseudo-Huber loss or half the Poisson deviance.
    base_score_ : float
        The initial prediction.
    evals_result_ : dict
        The values of each metric after each round, under ``"validation_0"``. This and the next
        three attributes exist only with validation.
    best_iteration_ : int
        The round with the best value of the last metric, the first of which is 0.
    best_score_ : float
        That value.
    auc_error_ : list of float
        The error bound of ``"auc"`` after each round, if it is a metric: it comes from histograms.
    learning_rate_ : float
        The learning rate on which the clients agreed.
    n_features_in_ : int
        The number of features.
    feature_names_in_ : array (n_features,) of str
        The features' names. Only if the clients' features have names.
    ledger_ : Ledger
        All messages of the run.

    Raises
    ------
    ValueError
        When a parameter is out of range.

    See Also
    --------
    FederatedXGBClassifier : the same for classes, with notes on clients and their messages.
    fedlib.boosting.client.RegressionClient : one client and the form of its part of the data.

    Notes
    -----
    With ``method="histogram"``, every split is that of XGBoost's ``hist`` on the pooled rows and
    the same bins.

    The server learns the mean and the variance of each client's targets. The first sums of the
    squared error are a number of rows and a sum of targets for every bin of every node; a bin with
    one row discloses its target. With ``secure=True`` it learns both for all clients together; see
    `FederatedXGBClassifier`. Sums of targets are rounded to ``2**-62 * n_clients * n_rows`` of the
    largest target and weight.

    Examples
    --------
    >>> from fedlib import FederatedXGBRegressor
    >>> first = [[1.0], [2.0], [3.0]], [10.0, 10.0, 30.0]
    >>> second = [[4.0], [5.0], [0.0]], [30.0, 30.0, 10.0]
    >>> model = FederatedXGBRegressor(30, min_child_weight=0).fit([first, second])
    >>> model.predict([[0.5], [4.5]]).round().tolist()
    [10.0, 30.0]
    """

    name = "xgb-regressor"
    client_class = RegressionClient
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **Boosted._parameter_constraints,
        "objective": [StrOptions({"reg:squarederror", "reg:pseudohubererror", "count:poisson"})],
        "huber_slope": [Interval(Real, 1e-6, 1e6, closed="both")],
        "max_gradient": [Interval(Real, 0, 1e6, closed="right")],
    }

    def __init__(
        self,
        n_trees: int = 100,
        n_candidates: int = 10,
        *,
        method: Literal["top_splits", "union", "histogram"] = "histogram",
        objective: Literal[
            "reg:squarederror", "reg:pseudohubererror", "count:poisson"
        ] = "reg:squarederror",
        max_depth: int = 6,
        learning_rate: float = 0.3,
        reg_lambda: float = 1.0,
        gamma: float = 0.0,
        min_child_weight: float = 1.0,
        max_bin: int = 256,
        tol: float | None = None,
        huber_slope: float = 1.0,
        base_score: float | None = None,
        reg_alpha: float = 0.0,
        max_delta_step: float | None = None,
        subsample: float = 1.0,
        random_state: Any = None,
        colsample_bytree: float = 1.0,
        colsample_bylevel: float = 1.0,
        colsample_bynode: float = 1.0,
        monotone_constraints: Any = None,
        grow_policy: Literal["depthwise", "lossguide"] = "depthwise",
        max_leaves: int = 0,
        max_cat_to_onehot: int = 4,
        max_cat_threshold: int = 64,
        min_category_count: int = 1,
        histograms: Literal["dense", "packed"] = "dense",
        validation_fraction: float = 0.0,
        eval_metric: str | list[str] | None = None,
        early_stopping_rounds: int | None = None,
        warm_start: bool = False,
        secure: bool = False,
        feature_bounds: ArrayLike | None = None,
        epsilon: float | None = None,
        delta: float = 0.0,
        max_gradient: float = 1.0,
    ):
        self.n_trees = n_trees
        self.n_candidates = n_candidates
        self.method = method
        self.objective = objective
        self.max_depth = max_depth
        self.learning_rate = learning_rate
        self.reg_lambda = reg_lambda
        self.gamma = gamma
        self.min_child_weight = min_child_weight
        self.max_bin = max_bin
        self.tol = tol
        self.huber_slope = huber_slope
        self.base_score = base_score
        self.reg_alpha = reg_alpha
        self.max_delta_step = max_delta_step
        self.subsample = subsample
        self.random_state = random_state
        self.colsample_bytree = colsample_bytree
        self.colsample_bylevel = colsample_bylevel
        self.colsample_bynode = colsample_bynode
        self.monotone_constraints = monotone_constraints
        self.grow_policy = grow_policy
        self.max_leaves = max_leaves
        self.max_cat_to_onehot = max_cat_to_onehot
        self.max_cat_threshold = max_cat_threshold
        self.min_category_count = min_category_count
        self.histograms = histograms
        self.validation_fraction = validation_fraction
        self.eval_metric = eval_metric
        self.early_stopping_rounds = early_stopping_rounds
        self.warm_start = warm_start
        self.secure = secure
        self.feature_bounds = feature_bounds
        self.epsilon = epsilon
        self.delta = delta
        self.max_gradient = max_gradient

    def _flow(self) -> Flow[BoostedTrees]:
        if self.epsilon is not None and self.objective == "count:poisson":
            raise ValueError(
                "epsilon needs objective='reg:squarederror' or 'reg:pseudohubererror', because the"
                f" hessians have no bound; got {self.objective!r}"
            )
        if self.epsilon is not None and self.base_score is None:
            raise ValueError("epsilon needs base_score, a guess of the mean; got None")
        settings = self._settings(
            huber_slope=float(np.float32(self.huber_slope)), max_gradient=float(self.max_gradient)
        )
        return boosting(settings, self._start())

    def _check_clients(self, clients: dict[str, Client]) -> None:
        super()._check_clients(clients)
        check_labels(clients, partial(check_smallest, objective=self.objective))

    def _set_model(self, model: BoostedTrees) -> None:
        super()._set_model(model)
        self.base_score_ = model.base_scores[0]

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the predicted numbers.

        Parameters
        ----------
        X : array-like (n_rows, n_features)
            Numbers within ±2**127; NaN is a missing value. Text where the model has categories.

        Returns
        -------
        predictions : array (n_rows,) of float64

        Raises
        ------
        ValueError
            When the rows contain infinite values, or their features differ from those of `fit`.
        """
        rows = self._check_rows(X)
        return self.model_.predictions(self.model_.margins(rows))[:, 0]

    def staged_predict(self, X: ArrayLike) -> Iterator[NDArray[np.float64]]:
        """Yield the predictions after each tree; see `predict`."""
        rows = self._check_rows(X)
        for margins in self.model_.staged_margins(rows):
            yield self.model_.predictions(margins)[:, 0]
