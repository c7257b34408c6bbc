"""Federated XGBoost: clients hold rows of the same features and grow the same trees.

Trees grow level by level. For each node of a level, the clients send what the server needs to
choose its split, receive the choice, and divide their rows by it. The ``method`` determines what
they send:

- ``"top_splits"`` (F): the splits that are best for their rows. The server takes the split with
  the largest sum of gains, each weighted by its client's rows in the node (3.3).
- ``"union"``: the same, and then sums for every split that any client proposed.
- ``"histogram"``: sums for bins agreed on beforehand, so that the result does not depend on how the
  rows are distributed over the clients.

F visits the nodes of a tree one by one, always the lexicographically first path of any client. A
client without rows on a path takes no part. Since no choice depends on another path, requests for
whole levels give the same trees with far fewer messages.

Source: F, chapter 3. Its log-odds grow against the gradients, a sign that its formula for a leaf
omits, and its γ is half of XGBoost's.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from fedlib.boosting.client import BoostingClient
from fedlib.boosting.data import check_rows
from fedlib.boosting.export import to_booster
from fedlib.boosting.flow import boosting
from fedlib.boosting.growers import Settings
from fedlib.boosting.trees import BoostedTrees
from fedlib.federated import Federated
from fedlib.protocol import Client, Flow
from fedlib.validation import Interval, StrOptions, feature_names

if TYPE_CHECKING:
    from xgboost import Booster

__all__ = ["FederatedXGBClassifier"]


class FederatedXGBClassifier(Federated):
    """Boosted trees for two classes, over clients that hold rows of the same features.

    Parameters
    ----------
    n_trees : int, default=100
        The maximum number of trees, at least 1.
    n_candidates : int, default=10
        The number of splits per node that each client proposes, in 1..65536 (F's S). Not used by
        ``"histogram"``.
    method : {"top_splits", "union", "histogram"}, default="top_splits"
        The method, which determines the data that clients send for each node.

        - ``"top_splits"``: their own best splits (F).
        - ``"union"``: these, and then sums for every split that any client proposed, so that the
          server knows the gain of each over all rows.
        - ``"histogram"``: sums for bins agreed on beforehand. They give the trees of XGBoost's
          ``hist`` on the pooled rows and the same bins, for any distribution of the rows.
    max_depth : int, default=6
        The maximum number of splits on the path to a leaf, in 1..30.
    learning_rate : float, default=0.3
        The factor on the weight of a leaf, above 0 and at most 1. A client may prefer another one;
        the run uses the clients' mean, weighted by rows.
    reg_lambda : float, default=1.0
        λ of (3.1), in 0..1e30.
    gamma : float, default=0.0
        The minimum gain of a split as XGBoost defines it, twice the γ of (3.1), in 0..1e30.
    min_child_weight : float, default=1.0
        The minimum sum of hessians on either side of a split, in 0..1e30. It applies to all rows
        together, except for ``"top_splits"``: there it applies to the rows of each proposing
        client, so it excludes more splits if the rows are divided over more clients. For
        ``"union"``, clients propose splits with at least the n-th part of it on either side, n
        being the number of clients with rows.
    max_bin : int, default=256
        The maximum number of bins per feature, in 2..32768. Used by ``"histogram"`` only.
    tol : float or None, default=0.004
        Stop after a tree that lowers the mean log-loss of all rows by less than this. None: grow
        all trees. In F, each client stops independently, and the merged model has as many trees as
        the client that stops last.
    leaf : {"all", "ended", "parent"}, default="all"
        Which rows determine the weight −G/(H + λ) of a leaf. The last two are for ``"top_splits"``
        only.

        - ``"all"``: all rows in the leaf, as in XGBoost.
        - ``"ended"``: the rows in the leaf, and the rows of its parent that belong to clients whose
          tree ended there because they found no split (F, Algorithms 1 and 2 as written). Rows that
          ended further up do not count.
        - ``"parent"``: all rows in the leaf, and again all rows of its parent (Algorithm 2 alone).

        On F's three small data sets ``"parent"``, which shrinks leaves, has the better mean AUC; in
        log-loss neither reading is always better. ``"all"`` is the default because with it the
        trees of one client are XGBoost's, and the three methods differ only in their splits.

    Attributes
    ----------
    model_ : BoostedTrees
        The model, with everything that predictions need.
    trees_ : list of Tree
        The trees, in the order in which they were grown.
    classes_ : array (2,)
        The classes of all clients in ascending order; the second one is the positive class.
    labels_ : list of array
        The predicted classes (n_rows,) of each client's rows; None for a client that was lost. Only
        if the parts were given to `fit`.
    losses_ : list of float
        The mean log-loss over all rows before the first tree and after each tree but the last.
    base_share_ : float
        The share of the positive class, from which the log-odds start.
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
    fedlib.boosting.client.BoostingClient : one client and the form of its part of the data.

    Notes
    -----
    A client may have no rows, or rows of one class only. A passive client receives the trees and
    predicts its rows; it needs no ``y``. When a client is lost, the others continue: its rows count
    for everything decided before, and for nothing after that. A client leaves the run when its
    replies do not fit the rows that it has declared, or what it sent before. Invented rows cannot
    be detected: many of one class turn the predictions at all clients.

    The arithmetic is XGBoost's, with features, thresholds, margins, gradients and gains in float32.
    Sums are integer multiples of about 2**-52 of the rows' weight, so they do not depend on any
    order.

    Splits with equal gains: the lower feature wins, then the lower threshold. With ``"histogram"``,
    whether a value is missing can be a split by itself. With the other two methods, it only decides
    the side of the rows without a value.

    The bins of ``"histogram"`` separate values that differ by at least one part in 2**11. A feature
    that varies little around a large number (days since 1900, identifiers) falls into few bins. A
    client with such a feature warns; all clients should then subtract the same number from it. The
    other methods can split between any two values of a client.

    No method hides classes or rare values from the server, although F states that classes are not
    disclosed: sums over few rows disclose how many belong to each class, and thresholds and counts
    in bins disclose values. A client that sends no feature names is assumed to have the features of
    the others.

    Cost: one exchange per level of a tree, two for ``"union"``, and one more per tree except for
    ``"histogram"``.

    Source: F, chapter 3.

    Examples
    --------
    >>> from fedlib import FederatedXGBClassifier
    >>> first = [[1.0], [2.0], [3.0]], ["no", "no", "yes"]
    >>> second = [[4.0], [5.0], [0.0]], ["yes", "yes", "no"]
    >>> model = FederatedXGBClassifier(20, method="histogram", min_child_weight=0)
    >>> model.fit([first, second]).predict([[0.5], [4.5]])
    array(['no', 'yes'], dtype='<U3')
    >>> model.trees_[0].to_frame()[["feature", "threshold", "left", "right"]].loc[0].tolist()
    [0.0, 2.50048828125, 1.0, 2.0]
    """

    name = "xgboost"
    client_class = BoostingClient
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
        "leaf": [StrOptions({"all", "ended", "parent"})],
    }

    def __init__(
        self,
        n_trees: int = 100,
        n_candidates: int = 10,
        *,
        method: Literal["top_splits", "union", "histogram"] = "top_splits",
        max_depth: int = 6,
        learning_rate: float = 0.3,
        reg_lambda: float = 1.0,
        gamma: float = 0.0,
        min_child_weight: float = 1.0,
        max_bin: int = 256,
        tol: float | None = 0.004,
        leaf: Literal["all", "ended", "parent"] = "all",
    ):
        self.n_trees = n_trees
        self.n_candidates = n_candidates
        self.method = method
        self.max_depth = max_depth
        self.learning_rate = learning_rate
        self.reg_lambda = reg_lambda
        self.gamma = gamma
        self.min_child_weight = min_child_weight
        self.max_bin = max_bin
        self.tol = tol
        self.leaf = leaf

    def _flow(self) -> Flow[BoostedTrees]:
        if self.leaf != "all" and self.method != "top_splits":
            raise ValueError(f"leaf must be 'all' for method={self.method!r}; got {self.leaf!r}")
        settings = Settings(
            n_trees=int(self.n_trees),
            n_candidates=int(self.n_candidates),
            method=self.method,
            max_depth=int(self.max_depth),
            learning_rate=float(self.learning_rate),
            reg_lambda=float(np.float32(self.reg_lambda)),
            gamma=float(np.float32(self.gamma)),
            min_child_weight=float(np.float32(self.min_child_weight)),
            max_bin=int(self.max_bin),
            tol=self.tol,
            leaf=self.leaf,
        )
        return boosting(settings)

    def _set_model(self, model: BoostedTrees) -> None:
        super()._set_model(model)
        self.trees_ = model.trees
        self.classes_ = np.array(model.classes)
        self.losses_ = model.losses
        self.base_share_ = model.share
        self.learning_rate_ = model.learning_rate
        self.n_features_in_ = model.n_features
        if model.features:
            self.feature_names_in_ = np.array(model.features, dtype=object)

    def _set_labels(self, clients: dict[str, Client]) -> None:
        super()._set_labels(clients)
        classes = np.array(self.model_.classes)
        self.labels_ = [None if codes is None else classes[codes] for codes in self.labels_]

    def decision_function(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the log-odds of the second class.

        Parameters
        ----------
        X : array-like (n_rows, n_features)
            Numbers within ±2**127; NaN is a missing value.

        Returns
        -------
        margins : array (n_rows,) of float32

        Raises
        ------
        ValueError
            When the rows contain infinite values, or their features differ from those of `fit`.
        """
        rows = self._check_rows(X)
        return self.model_.margins(rows)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each class.

        Parameters
        ----------
        X : array-like (n_rows, n_features)
            Numbers within ±2**127; NaN is a missing value.

        Returns
        -------
        probabilities : array (n_rows, 2) of float64
            The columns are in the order of ``classes_``.

        Raises
        ------
        ValueError
            When the rows contain infinite values, or their features differ from those of `fit`.
        """
        rows = self._check_rows(X)
        return self.model_.probabilities(rows)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the more probable class; ties go to the first class.

        Parameters
        ----------
        X : array-like (n_rows, n_features)
            Numbers within ±2**127; NaN is a missing value.

        Returns
        -------
        classes : array (n_rows,)

        Raises
        ------
        ValueError
            When the rows contain infinite values, or their features differ from those of `fit`.
        """
        positive = self.decision_function(X) > 0
        return np.array(self.model_.classes)[positive.astype(int)]

    def to_xgboost(self) -> Booster:
        """Return an `xgboost.Booster` with the same predictions: the second class's probabilities.

        Use it to save, plot or explain the model with XGBoost's tools. Its gains and covers are
        those over all clients' rows.

        Returns
        -------
        booster : xgboost.Booster
            XGBoost accepts no ``[``, ``]`` or ``<`` in a feature's name, so these characters become
            ``(``, ``)`` and ``_``; see its ``feature_names``.

        Raises
        ------
        ImportError
            When xgboost is not installed.
        """
        check_is_fitted(self, "model_")
        model = self.model_
        return to_booster(model.trees, model.share, model.n_features, model.features)

    def _check_rows(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return new rows for the model; raise ValueError when their names differ from fit's."""
        check_is_fitted(self, "model_")
        rows = check_rows(X)
        given, known = feature_names(X), self.model_.features
        if given and known and len(given) == len(known) and given != known:
            raise ValueError(f"X must have the features {list(known)}; got {list(given)}")
        return rows
