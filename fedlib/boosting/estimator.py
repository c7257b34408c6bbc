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

import warnings
from collections.abc import Iterator
from functools import partial
from numbers import Real
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin

from fedlib.boosting.base import (
    EXAMPLE_OF_SUMS,
    AnyNumber,
    Boosted,
    CandidateCount,
    Levels,
    Method,
    Metrics,
    OptionalPenalty,
    Penalty,
    RowLimit,
    Share,
    Single,
)
from fedlib.boosting.classes import Class, check_known, given_classes
from fedlib.boosting.client import BoostingClient, RegressionClient
from fedlib.boosting.data import check_allowed, check_labels, check_size, row_limit
from fedlib.boosting.flow import boosting
from fedlib.boosting.objectives import DISTRIBUTIONS, OBJECTIVES
from fedlib.boosting.secure import MAX_GRADIENT, default_gradient
from fedlib.boosting.settings import Settings
from fedlib.boosting.trees import BoostedTrees
from fedlib.core.array_types import Floats, Floats32
from fedlib.core.client import Client
from fedlib.core.estimator import Example
from fedlib.core.parameters import KW_ONLY, Flag, Interval, OptionalPositiveFloat, StrOptions
from fedlib.core.protocol import Flow
from fedlib.core.targets import read_classes, read_targets, read_weights

OF_NUMBERS = {name for name in OBJECTIVES if name.startswith(("reg:", "count:", "survival:"))}
MAX_LEVELS = 2**10


class FederatedXGBClassifier(ClassifierMixin, Boosted):
    """Boosted trees for two or more classes, over clients that hold rows of the same features.

    Attributes
    ----------
    model_ : BoostedTrees
        The model, with everything that predictions need.
    trees_ : list of Tree
        The trees, in the order in which they were grown.
    classes_ : array (n_classes,)
        The classes of all clients in ascending order; of two, the second one is the positive class.
    labels_ : list of array
        The predicted classes (n_rows,) of each client's rows; None for a client that was lost. Only
        if the parts were given to `fit`.
    ended_by_ : str
        The parameter that ended the last run: ``"n_trees"``, ``"tol"``,
        ``"early_stopping_rounds"`` or ``"callback"``.
    losses_ : list of float
        The mean log-loss over all rows before the first round of the last `fit` and after each of
        its rounds but the last.
    base_share_ : float
        The fraction of the positive class, from which the log-odds start. Two classes only.
    evals_result_ : dict
        The values of each metric after each round, under ``"validation_0"`` or the names of
        `eval_sets`. This and the next attributes up to the errors exist only with validation.
    best_iteration_ : int or None
        The round with the best value of the last metric of the last set, the first of which is 0.
    best_score_ : float
        That value. Without rows of two classes, ``"auc"`` and ``"aucpr"`` are NaN, and these
        are None and NaN.
    auc_error_, aucpr_error_ : list of float
        The error bounds of ``"auc"`` and of ``"aucpr"`` after each round, for the last set, if they
        are metrics: they come from histograms of 1,024 intervals of probability.
    learning_rate_ : float
        The learning rate on which the clients agreed, or the first one of several.
    n_features_in_ : int
        The count of features.
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
    FederatedXGBRegressor : the same for numbers.
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

    Columns of a DataFrame can be pandas categories or texts, with ``method="histogram"``. The
    clients count their rows with each category, and the server tells them the categories of all
    clients; `fedlib.boosting.categories` describes how texts become numbers. With `schema`, the
    categories are those of the schema (`fedlib.boosting.from_schema`): no client describes or
    counts them, and ``secure=True`` and `epsilon` take columns of text, too. Splits are those of
    XGBoost with ``enable_categorical``. A category that no client has named goes left at every
    split, as in XGBoost, unless clients withhold rare categories: then it goes where their rows
    go. A text column that contains only numbers is read as numbers.

    With ``secure=True``, the server sees the sums of all clients: the weight of each class, the
    histograms and the loss. Weights are clipped to `max_weight`. Histograms are integers, so the
    trees are exactly those of the plain run with the same bins, if the
    weights of the classes are exact; without sample weights, they are. Fractional weights are
    rounded to ``2**-61 * n_clients * n_rows`` of `max_weight`. Categories are the same
    in the plain run if the schema declares ``"outside": "other"`` for all columns of text; else a
    run with secure sums has ``"other"`` as one category more. A client that sends false sums
    cannot be found: if they are impossible, the run ends.

    With `epsilon`, the server sees clipped gradients with noise in every bin, and the guarantee
    holds for each row of each client. Rows of a class that is not among `classes` count as rows of
    the first one, and a text that is no number as a missing value: an error of one client would
    disclose that it has such a row. In a feature of text, a row is in the bin of one category.

    Without ``secure`` and `epsilon`, no method hides classes or rare values from the server,
    although F states that classes are not disclosed: sums over few rows disclose how many belong to
    each class, and thresholds and counts in bins disclose values. A client that sends no feature
    names is assumed to have the features of the others.

    Cost: one exchange per level of a tree, two for ``"union"``, and one more per tree except for
    ``"histogram"``.

    Source: F, chapter 3.

    Examples
    --------
    >>> from fedlib import FederatedXGBClassifier
    >>> first = [[1.0], [2.0], [3.0]], ["no", "no", "yes"]
    >>> second = [[4.0], [5.0], [0.0]], ["yes", "yes", "no"]
    >>> model = FederatedXGBClassifier(20, min_child_weight=0)
    >>> model.fit([first, second]).predict([[0.5], [4.5]])
    array(['no', 'yes'], dtype='<U3')
    >>> model.trees_[0].to_frame()[["feature", "threshold", "left", "right"]].loc[0].tolist()
    [0.0, 2.50048828125, 1.0, 2.0]
    """

    name = "xgboost"
    example = Example(
        "classes",
        {"n_trees": 3, "n_candidates": 4, "method": "top_splits", "tol": 0.004},
        EXAMPLE_OF_SUMS | {"classes": [0, 1]},
        masked={"max_weight": 2.0},
    )
    client_class = BoostingClient
    n_candidates: Annotated[
        CandidateCount,
        """
        The count of splits per node that each client proposes, in 1..65536 (F's S). Not used by
        ``"histogram"``.
        """,
    ] = 10
    _: KW_ONLY
    method: Annotated[
        Method,
        """
        The method, which determines the data that clients send for each node.

        - ``"histogram"``: sums for bins agreed on beforehand. They give the trees of XGBoost's
          ``hist`` on the pooled rows and the same bins, for any distribution of the rows, by the
          `xgboost_rules` (``tests/boosting/test_exact_grid.py``).
        - ``"top_splits"``: their own best splits (F).
        - ``"union"``: these, and then sums for every split that any client proposed, so that the
          server knows the gain of each over all rows.
        """,
    ] = "histogram"
    reg_lambda: Annotated[
        OptionalPenalty,
        """
        λ of (3.1), in 0..1e30; by default 1, and with `epsilon` more, in proportion to the noise
        (`fedlib.boosting.secure.penalty`).
        """,
    ] = None
    gamma: Annotated[
        Penalty,
        """
        The minimum gain of a split as XGBoost defines it, twice the γ of (3.1), in 0..1e30.
        """,
    ] = 0.0
    min_child_weight: Annotated[
        Penalty,
        """
        The minimum sum of hessians on either side of a split, in 0..1e30. It applies to all rows
        together, except for ``"top_splits"``: there it applies to the rows of each proposing
        client, so it excludes more splits if the rows are divided over more clients. For
        ``"union"``, clients propose splits with at least the n-th part of it on either side, n
        being the count of clients with rows.
        """,
    ] = 1.0
    tol: Annotated[
        AnyNumber,
        """
        Stop after a tree that lowers the mean log-loss of all rows by less than this, such as 0.004
        (F's example), which is too much for rare classes and small learning rates. None: grow all
        trees. In F, each client stops independently, and the merged model has as many trees as
        the client that stops last.
        """,
    ] = None
    leaf: Annotated[
        Literal["all", "ended", "parent"],
        StrOptions({"all", "ended", "parent"}),
        """
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
        """,
    ] = "all"
    objective: Annotated[
        Literal["binary:logistic", "multi:softprob"] | None,
        StrOptions({"binary:logistic", "multi:softprob"}),
        None,
        """
        XGBoost's name of the objective; by default the first one for two classes at all clients
        together, and the second one for more. ``"binary:logistic"`` needs exactly two, so that a
        mistyped class is noticed. ``"multi:softprob"`` takes any number of classes and grows one
        tree per class in each round, side by side. A client need not have all classes.
        """,
    ] = None
    base_score: Annotated[
        AnyNumber,
        """
        The initial probability of the second class, above 0 and below 1; for
        ``"multi:softprob"``, the initial margin of all classes. By default it is estimated as in
        XGBoost, from the fractions of the classes.
        """,
    ] = None
    max_delta_step: Annotated[
        OptionalPenalty,
        """
        The maximum size of the weight of a leaf before it is multiplied with the learning rate, in
        0..1e30; 0 and None: no limit.
        """,
    ] = None
    scale_pos_weight: Annotated[
        float,
        Single(Real, 0, 2**40, closed="right"),
        """
        The factor on the weight of the rows of the second class, above 0 and at most 2**40. Two
        classes only.
        """,
    ] = 1.0
    subsample: Annotated[
        Share,
        """
        The fraction of the rows that the trees of a round use, above 0 and at most 1. Whether a row
        is used depends on its features, ``random_state`` and the round, and not on its client.
        XGBoost draws other rows with the same seed. It must be 1 with `epsilon`, because equal rows
        are drawn one by one: one row more changes which of the others are used.
        """,
    ] = 1.0
    eval_metric: Annotated[
        Metrics,
        """
        The metrics: ``"logloss"``, ``"error"``, ``"auc"`` and ``"aucpr"`` for two classes,
        ``"mlogloss"``, ``"merror"`` and ``"auc"`` for several; by default the first one. The AUC of
        several classes is XGBoost's: the mean of each class against the others, weighted by its
        rows, except that classes without rows do not count. The areas have error bounds. Given
        without rows for validation, it is an error.
        """,
    ] = None
    warm_start: Annotated[
        Flag,
        """
        Whether `fit` continues the fitted model until it has ``n_trees`` rounds. Its objective,
        classes, initial prediction and seed stay. On the same rows, the result is that of one run:
        rounds, samples and the values for early stopping count through. Not for the command line,
        where each process starts without a model.
        """,
    ] = False
    secure: Annotated[
        Flag,
        """
        Whether the server sees sums over the clients and no client's reply; see
        `fedlib.protection.secure` for what remains open. It needs ``method="histogram"``,
        `bounds` and `classes`, or a `schema` with them, and allows no validation. Columns of text
        need a `schema`. The trees are those of the run without it.
        """,
    ] = False
    classes: Annotated[
        ArrayLike | None,
        "array-like",
        list,
        None,
        """
        For ``secure=True`` and `epsilon`: all classes, on which the clients agree before the run;
        by default those of the `schema`, the enum of its target.
        """,
    ] = None
    epsilon: Annotated[
        OptionalPositiveFloat,
        """
        The run is differentially private; see `fedlib.protection.privacy`. It needs the same
        parameters as ``secure``, with which it can be combined, and ``tol=None``, ``subsample=1``
        and ``grow_policy="depthwise"``. The noise grows with ``n_trees * max_depth``, and its sum
        in a node with ``max_bin``, so few shallow trees with few bins are best. A row has a weight
        of at most 1. Without `base_score`, the first probabilities are equal. There is no loss, and
        the learning rate is the server's.
        """,
    ] = None

    def _flow(self) -> Flow[BoostedTrees]:
        start, classes = self._start, self._given_classes()
        if self.objective is None and (start is not None or classes):  # known before the run
            by_classes = "multi:softprob" if len(classes) > 2 else "binary:logistic"
            self.objective = by_classes if start is None else start.objective  # type: ignore[assignment]
        if self.leaf != "all" and self.method != "top_splits":
            raise ValueError(f"leaf must be 'all' for method={self.method!r}; got {self.leaf!r}")
        return boosting(self._settings(base_score=self._first_score()), start)

    def _first_score(self) -> float | None:
        """Return the given ``base_score``; with noise, one that does not depend on the data."""
        if self.base_score is not None or self.epsilon is None:
            return self.base_score
        return 0.5 if self.objective == "binary:logistic" else 0.0

    def _lacking(self) -> list[str]:
        lacking = super()._lacking()
        if self.are_summed and self.classes is None and self.schema is None:
            lacking.append("classes, those that the labels may have (got classes=None)")
        return lacking

    def _given_classes(self) -> tuple[Class, ...]:
        """Return the classes of the parameter or the schema; none if they follow from the data."""
        classes = self.classes
        if not self.are_summed:
            if classes is not None:
                raise ValueError(f"classes need secure=True or epsilon; got classes={classes!r}")
            return ()
        if classes is None and self.schema is not None:
            classes = self.schema.classes
        return given_classes(classes, only_two=self.objective == "binary:logistic")

    def _check_clients(self, clients: dict[str, Client]) -> None:
        super()._check_clients(clients)
        if self.are_summed:
            check_labels(clients, partial(check_known, classes=self._given_classes()))

    def _set_model(self, model: BoostedTrees) -> None:
        super()._set_model(model)
        self.classes_ = np.array(model.classes)
        if model.n_outputs == 1:
            self.base_share_ = model.base_scores[0]

    def _labels_of(self, client: Client) -> NDArray[Any] | None:
        codes = super()._labels_of(client)
        return None if codes is None else np.array(self.model_.classes)[codes]

    def decision_function(self, X: ArrayLike, *, base_margin: ArrayLike | None = None) -> Floats32:
        """Return the log-odds of the second class, or the margin of each of several classes.

        Parameters
        ----------
        X : array-like (n_rows, n_features)
        base_margin : array-like (n_rows,), or (n_rows, n_classes), optional
            As for `predict_proba`.

        Returns
        -------
        margins : array (n_rows,) of float32, or (n_rows, n_classes) for ``"multi:softprob"``
        """
        margins = self._margins(X, base_margin)
        return margins[:, 0] if margins.shape[1] == 1 else margins

    def predict_proba(self, X: ArrayLike, *, base_margin: ArrayLike | None = None) -> Floats:
        """Return the probability of each class.

        Parameters
        ----------
        X : array-like (n_rows, n_features)
            Numbers within ±2**127; NaN is a missing value. Text where the model has categories.
        base_margin : array-like (n_rows,), or (n_rows, n_classes), optional
            Where the margins of these rows start. If the parts of `fit` had it, so must new rows;
            otherwise they start from the margin of ``base_score``, with a warning.

        Returns
        -------
        probabilities : array (n_rows, n_classes) of float64
            The columns are in the order of ``classes_``.

        Raises
        ------
        ValueError
            When the rows contain infinite values, their features differ from those of `fit`, or
            ``base_margin`` has another shape.

        Warns
        -----
        UserWarning
            When rows lack the ``base_margin`` that the model needs, or have categories that it does
            not know.
        """
        margins = self._margins(X, base_margin)
        return self.model_.predictions(margins)

    def staged_predict_proba(
        self, X: ArrayLike, *, base_margin: ArrayLike | None = None
    ) -> Iterator[Floats]:
        """Yield the probabilities of the classes after each round; see `predict_proba`."""
        for margins in self._margins(X, base_margin, staged=True):
            yield self.model_.predictions(margins)

    def predict(self, X: ArrayLike, *, base_margin: ArrayLike | None = None) -> NDArray[Any]:
        """Return the most probable class; ties go to the first class.

        Parameters
        ----------
        X : array-like (n_rows, n_features)
        base_margin : array-like (n_rows,), or (n_rows, n_classes), optional
            As for `predict_proba`.

        Returns
        -------
        classes : array (n_rows,)
        """
        margins = self.decision_function(X, base_margin=base_margin)
        codes = (margins > 0).astype(int) if margins.ndim == 1 else margins.argmax(axis=1)
        return np.array(self.model_.classes)[codes]

    def score(
        self, X: ArrayLike, y: Any, sample_weight: Any = None, *, base_margin: Any = None
    ) -> float:
        """Return the share of the rows whose class is predicted right.

        Parameters
        ----------
        X : array-like (n_rows, n_features)
            As for `predict`.
        y : array-like (n_rows,)
            The classes, which are read as those of a part: no class may be missing. A row with an
            integer or a text that no class of the fit is, counts as predicted wrong.
        sample_weight : array-like (n_rows,), optional
        base_margin : array-like, optional
            As for `predict`.

        Raises
        ------
        ValueError
            When ``y`` is text and the classes are numbers, or vice versa, or contains a number that
            is neither an integer nor a class.
        """
        predicted = self.predict(X, base_margin=base_margin)
        true = read_classes(y, n_rows=len(predicted))
        mixed = (true.dtype.kind == "U") != (predicted.dtype.kind == "U")
        fractions = true.dtype.kind == "f" and bool((true % 1 != 0).any())
        if mixed or fractions:  # perhaps targets of a regression, or probabilities
            check_known(true, self.model_.classes)
        return float(np.average(true == predicted, weights=_weights(sample_weight, len(true))))


class FederatedXGBRegressor(RegressorMixin, Boosted):
    """Boosted trees for numbers, over clients that hold rows of the same features.

    Attributes
    ----------
    model_ : BoostedTrees
        The model, with everything that predictions need.
    trees_ : list of Tree
        The trees, in the order in which they were grown.
    labels_ : list of array
        The predictions (n_rows,) for each client's rows, (n_rows, n_levels) for several quantiles
        or expectiles; None for a client that was lost. Only if the parts were given to `fit`.
    ended_by_ : str
        The parameter that ended the last run: ``"n_trees"``, ``"tol"``,
        ``"early_stopping_rounds"`` or ``"callback"``.
    losses_ : list of float
        The mean loss over all rows before the first tree of the last `fit` and after each of its
        trees but the last: the squared error, the pseudo-Huber loss, the log-loss, half the
        deviance of the gamma, Tweedie or Poisson distribution, the absolute error, the mean pinball
        loss of all quantiles, the mean asymmetric squared error of all expectiles, or the negative
        log-likelihood of survival times, for an exact time less its smallest value.
    base_score_ : float or list of float
        The initial prediction; a list for several quantiles or expectiles.
    evals_result_ : dict
        The values of each metric after each round, under ``"validation_0"`` or the names of
        `eval_sets`. This and the next attributes up to the errors exist only with validation.
    best_iteration_ : int
        The round with the best value of the last metric of the last set, the first of which is 0.
    best_score_ : float
        That value.
    learning_rate_ : float
        The learning rate on which the clients agreed, or the first one of several.
    n_features_in_ : int
        The count of features.
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
    the same bins, by the `xgboost_rules` (``tests/boosting/test_exact_grid.py``).

    The server learns the mean and the variance of each client's targets. The first sums of the
    squared error are a count of rows and a sum of targets for every bin of every node; a bin with
    one row discloses its target. With ``secure=True`` it learns both for all clients together; see
    `FederatedXGBClassifier`. The gradients of ``"reg:quantileerror"`` and ``"reg:absoluteerror"``
    have a scale, the squared mean root of all absolute residuals (`fedlib.kernels.forests`), which
    costs one exchange per round: the server learns the mean root of each client's residuals, or
    with ``secure=True`` that of all clients together. Targets are clipped to ±`max_target`, and
    each is rounded to ``2**-61 * n_clients * n_rows`` of the largest target and weight.

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
    example = Example(
        "numbers",
        {"n_trees": 2, "max_depth": 2},
        EXAMPLE_OF_SUMS,
        masked={"max_target": 16.0},
        noisy={"base_score": 2.0, "max_gradient": 1.0},
    )
    client_class = RegressionClient
    n_candidates: Annotated[
        CandidateCount,
        """
        The count of splits per node that each client proposes, in 1..65536. Not used by
        ``"histogram"``.
        """,
    ] = 10
    _: KW_ONLY
    method: Annotated[
        Method,
        """
        The method, which determines the data that clients send for each node; see
        `FederatedXGBClassifier`.
        """,
    ] = "histogram"
    objective: Annotated[
        Literal[
            "reg:squarederror",
            "reg:pseudohubererror",
            "reg:logistic",
            "reg:gamma",
            "reg:tweedie",
            "reg:quantileerror",
            "reg:absoluteerror",
            "reg:expectileerror",
            "count:poisson",
            "survival:aft",
        ],
        StrOptions(OF_NUMBERS),
        """
        XGBoost's name of the objective. ``"reg:logistic"`` needs targets in 0..1, such as
        fractions, ``"reg:gamma"`` targets above 0, ``"reg:tweedie"`` and ``"count:poisson"``
        targets of at least 0. As in XGBoost, a leaf of ``"reg:gamma"`` or ``"reg:tweedie"`` with
        targets far below the prediction takes a huge step; ``max_delta_step=0.7`` limits it.
        ``"reg:quantileerror"`` needs `quantile_alpha` and ``"reg:expectileerror"``
        `expectile_alpha`. ``"survival:aft"`` predicts times, of which ``y`` (n_rows, 2) has the
        earliest and the latest one: they are equal if a time is known, and the latter is infinite
        if the time is only known to be later (right-censored).
        """,
    ] = "reg:squarederror"
    reg_lambda: Annotated[
        OptionalPenalty,
        """
        The L2 penalty on the weight of a leaf, in 0..1e30; by default 1, and with `epsilon` more,
        in proportion to the noise (`fedlib.boosting.secure.penalty`).
        """,
    ] = None
    gamma: Annotated[
        Penalty,
        "The minimum gain of a split, in 0..1e30.",
    ] = 0.0
    min_child_weight: Annotated[
        Penalty,
        """
        The minimum sum of hessians on either side of a split, in 0..1e30; see
        `FederatedXGBClassifier`. For the squared error it is a weight of rows.
        """,
    ] = 1.0
    tol: Annotated[
        AnyNumber,
        """
        Stop after a tree that lowers the mean loss of all rows by less than this. None: grow all
        trees.
        """,
    ] = None
    huber_slope: Annotated[
        float,
        Single(Real, 1e-6, 1e6, closed="both"),
        """
        The residual at which the pseudo-Huber loss changes from a square to a straight line, in
        1e-6..1e6.
        """,
    ] = 1.0
    tweedie_variance_power: Annotated[
        float,
        Single(Real, 1.001, 1.999, closed="both"),
        """
        For ``"reg:tweedie"``: the variance of a target is proportional to this power of its mean,
        in 1.001..1.999. Near 1 it is that of counts, near 2 that of a gamma distribution.
        """,
    ] = 1.5
    quantile_alpha: Annotated[
        Levels,
        """
        For ``"reg:quantileerror"``: the fractions of the targets that lie below the predictions, in
        0..1 in ascending order. Each grows a tree per round, and `predict` returns one column per
        quantile, sorted where they would cross.
        """,
    ] = None
    expectile_alpha: Annotated[
        Levels,
        """
        For ``"reg:expectileerror"``: the weights of the squared errors of targets above the
        predictions, those of targets below being 1 less it, in 0..1 in ascending order. 0.5 is the
        mean. Each grows a tree per round, and `predict` returns one column per expectile.
        """,
    ] = None
    aft_loss_distribution: Annotated[
        Literal["normal", "logistic", "extreme"],
        StrOptions(set(DISTRIBUTIONS)),
        """
        For ``"survival:aft"``: the distribution of the logarithm of a time around the prediction.
        """,
    ] = "normal"
    aft_loss_distribution_scale: Annotated[
        float,
        Single(Real, 1e-6, 1e6, closed="both"),
        'For ``"survival:aft"``: the scale of this distribution, in 1e-6..1e6.',
    ] = 1.0
    base_score: Annotated[
        AnyNumber,
        """
        The initial prediction; above 0 for ``"count:poisson"``, ``"reg:gamma"``, ``"reg:tweedie"``
        and ``"survival:aft"``, and also below 1 for ``"reg:logistic"``. By default it is estimated
        as in XGBoost: the mean of the targets, a Newton step from 0 for the pseudo-Huber loss, one
        from the mean for expectiles and the absolute error, the quantiles of the targets, which
        cost four exchanges, or 0.5 for survival times; see `fedlib.boosting.first_scores`.
        """,
    ] = None
    max_delta_step: Annotated[
        OptionalPenalty,
        """
        The maximum size of the weight of a leaf before it is multiplied with the learning rate, in
        0..1e30; 0: no limit. None: 0.7 for ``"count:poisson"``, otherwise 0.
        """,
    ] = None
    subsample: Annotated[
        Share,
        """
        The fraction of the rows that a tree uses, above 0 and at most 1; 1 with `epsilon`. See
        `FederatedXGBClassifier`.
        """,
    ] = 1.0
    eval_metric: Annotated[
        Metrics,
        """
        The metrics: ``"rmse"``, ``"mae"``, ``"mape"`` (as a fraction; huge for a target of 0, where
        XGBoost divides by it), and for their objectives ``"mphe"``,
        ``"poisson-nloglik"``, ``"gamma-nloglik"``, ``"gamma-deviance"``, ``"tweedie-nloglik"``
        (with the variance power of the run), ``"quantile"``, ``"expectile"`` (both the mean over
        all levels, and the only metric of several), ``"aft-nloglik"`` and
        ``"interval-regression-accuracy"``, the fraction of predicted times within their limits,
        which early stopping maximises, while XGBoost minimises it unless its callback has
        ``maximize=True``. By default the one of the objective, ``"rmse"`` for ``"reg:logistic"``
        and ``"mae"`` for ``"reg:absoluteerror"``. Given without rows for validation, it is an
        error.
        """,
    ] = None
    warm_start: Annotated[
        Flag,
        """
        Whether `fit` continues the fitted model until it has ``n_trees`` trees; see
        `FederatedXGBClassifier`. The parameters of the objective, such as its levels, stay those of
        the model.
        """,
    ] = False
    secure: Annotated[
        Flag,
        """
        Whether the server sees sums over the clients and no client's reply; see
        `fedlib.protection.secure` for what remains open. It needs ``method="histogram"``,
        `bounds` and `max_target`, or a `schema` with limits, and allows no validation. Columns of
        text need a `schema`. The trees are those of the run without it.
        """,
    ] = False
    epsilon: Annotated[
        OptionalPositiveFloat,
        """
        The run is differentially private; see `fedlib.protection.privacy`. It needs the same
        parameters as ``secure``, with which it can be combined, `base_score`, `max_gradient` (or a
        `schema` with the limits of the target), ``tol=None``,
        ``subsample=1`` and ``grow_policy="depthwise"``. The noise grows with ``n_trees *
        max_depth``, and its sum in a node with ``max_bin``, so few shallow trees with few bins are
        best. A row has a weight of at most 1. Not for ``"count:poisson"``, ``"reg:gamma"`` and
        ``"reg:tweedie"``, whose hessians have no bound, and not for ``"reg:quantileerror"`` and
        ``"reg:absoluteerror"``, whose scale is a sum over all rows; several levels of
        ``"reg:expectileerror"`` need a run each. There is no loss, and the learning rate is the
        server's.
        """,
    ] = None
    max_gradient: Annotated[
        float | None,
        Interval(Real, 0, MAX_GRADIENT, closed="right"),
        None,
        """
        For `epsilon`: the gradient of a row, which for the squared error is the prediction minus
        the target, is clipped to ±max_gradient; above 0 and at most 1e6. The noise is proportional
        to it, and a smaller one needs more trees: each moves a prediction by at most
        ``learning_rate * max_gradient``. By default the largest difference of `base_score` to the
        limits of the target in the `schema`, without which the squared error needs it, and
        `huber_slope` for ``"reg:pseudohubererror"``. Not used by ``"reg:logistic"``, whose
        gradients lie within ±1, and ``"survival:aft"``, whose gradients lie within ±15.
        """,
    ] = None

    max_target: Annotated[
        RowLimit,
        """
        For ``secure=True``: the largest absolute value of a target, on which the clients agree
        before the run, above 0 and at most 2**40. By default that of the `schema`, and 1 for
        ``"reg:logistic"``. Targets are clipped to ±max_target. Not for ``"survival:aft"``, no
        sum of which depends on the size of times.
        """,
    ] = None

    def _lacking(self) -> list[str]:
        lacking = super()._lacking()
        chosen = OBJECTIVES[self.objective]
        needs_target = self.secure and self.epsilon is None and self.schema is None
        if needs_target and self.max_target is None and chosen.needs_size:
            lacking.append("max_target, the largest absolute value of a target (got None)")
        if self.epsilon is not None and chosen.row_limits is None:
            bounded = sorted(name for name in OF_NUMBERS if OBJECTIVES[name].row_limits is not None)
            lacking.append(
                f"objective={', '.join(map(repr, bounded[:-1]))} or {bounded[-1]!r}, because"
                f" {chosen.unbounded} (got {self.objective!r})"
            )
        name = chosen.parameter_name
        if self.epsilon is not None and chosen.has_levels and np.size(getattr(self, name)) > 1:
            lacking.append(
                f"one level, in one run for each, because all would start from the same base_score"
                f" and hardly move apart (got {name}={getattr(self, name)!r})"
            )
        # The first prediction of times does not depend on rows.
        if self.epsilon is not None and self.base_score is None and chosen.n_columns == 1:
            lacking.append("base_score, a guess of the mean (got None)")
        elif self.epsilon is not None and self.max_gradient is None and not self._gradient():
            lacking.append(
                "max_gradient, about the largest difference of a target to base_score, or a schema"
                " with the limits of the target (got max_gradient=None)"
            )
        return lacking

    def _target_limits(self) -> tuple[float, float] | None:
        """Return the limits of the target in the schema; None if it has none."""
        columns = () if self.schema is None else self.schema.columns
        return next((one.limits for one in columns if one.role == "target"), None)

    def _gradient(self) -> float | None:
        """Return the largest gradient of a row; None if nothing determines it."""
        if self.max_gradient is not None:
            return self.max_gradient
        limits, score = self._target_limits(), self.base_score
        return default_gradient(self.objective, self.huber_slope, score or 0.0, limits)

    def _check_reach(self, settings: Settings) -> None:
        """Warn when trees cannot reach the targets of the schema, because gradients are clipped."""
        limits, score = self._target_limits(), settings.base_score
        if self.epsilon is None or self.max_gradient is None or limits is None:
            return
        if self.objective != "reg:squarederror":
            return
        rates = settings.learning_rates or (settings.learning_rate,) * settings.n_trees
        reach = sum(rates) * settings.max_gradient  # a leaf is a mean of gradients, or less
        distance = max(abs(end - (score or 0.0)) for end in limits)
        if reach < distance:
            warnings.warn(
                f"max_gradient must be larger or the trees more: {settings.n_trees} trees move a"
                f" prediction by at most {reach:g} from base_score={score:g}, and the schema's"
                f" targets lie between {limits[0]:g} and {limits[1]:g}; got"
                f" max_gradient={settings.max_gradient:g}",
                stacklevel=2,
            )

    def _check_start(self, settings: Settings) -> None:
        """Warn when several expectiles start at one score, because they then stay nearly equal."""
        if len(settings.expectile_alpha) > 1 and settings.base_score is not None:
            warnings.warn(
                f"all expectiles start at base_score={settings.base_score:g} and stay nearly equal,"
                f" also in XGBoost; got expectile_alpha={self.expectile_alpha!r}: leave base_score"
                " out, so that each has a start of its own, or fit one level at a time",
                stacklevel=2,
            )

    def _levels(self, name: str) -> tuple[float, ...]:
        """Return the levels of the outputs as float32 numbers; none for other objectives.

        Raises
        ------
        ValueError
            When the objective needs them and there are none, or they are not in ascending order.
        """
        given = getattr(self, name)
        needed = OBJECTIVES[self.objective].parameter_name == name
        wanted = f"{name} must be a number in 0..1, or a list of them in ascending order"
        if needed != (given is not None):
            objective = next(key for key, one in OBJECTIVES.items() if one.parameter_name == name)
            if needed:
                raise ValueError(f"{wanted}, for objective={objective!r}; got None")
            raise ValueError(
                f"{name} needs objective={objective!r}; got objective={self.objective!r}"
            )
        levels = np.ravel(given).tolist() if needed else []
        numbers = all(isinstance(one, Real) and 0 <= float(one) <= 1 for one in levels)
        if needed and not (numbers and 0 < len(levels) <= MAX_LEVELS and levels == sorted(levels)):
            raise ValueError(f"{wanted}, at most {MAX_LEVELS}; got {given!r}")
        return tuple(float(np.float32(level)) for level in levels)

    def _flow(self) -> Flow[BoostedTrees]:
        if self.max_target is not None and OBJECTIVES[self.objective].n_columns > 1:
            raise ValueError(
                f"max_target must be None for objective={self.objective!r}, no sum of which depends"
                f" on the size of times; got {self.max_target!r}"
            )
        settings = self._settings(
            quantile_alpha=self._levels("quantile_alpha"),
            expectile_alpha=self._levels("expectile_alpha"),
            max_gradient=self._gradient() or 1.0,  # without noise it has no effect
            max_target=row_limit(self, "target"),
        )
        self._check_reach(settings)
        self._check_start(settings)
        return boosting(settings, self._start)

    def _check_clients(self, clients: dict[str, Client]) -> None:
        super()._check_clients(clients)
        check_labels(clients, partial(check_allowed, objective=self.objective))
        check_labels(clients, partial(check_size, row_limit(self, "target")))

    def _set_model(self, model: BoostedTrees) -> None:
        super()._set_model(model)
        self.base_score_ = (
            model.base_scores[0] if len(model.base_scores) == 1 else model.base_scores
        )

    def predict(self, X: ArrayLike, *, base_margin: ArrayLike | None = None) -> Floats:
        """Return the predicted numbers.

        Parameters
        ----------
        X : array-like (n_rows, n_features)
            Numbers within ±2**127; NaN is a missing value. Text where the model has categories.
        base_margin : array-like (n_rows,) or (n_rows, n_levels), optional
            Where the margins of these rows start. If the parts of `fit` had it, so must new rows;
            otherwise they start from the margin of ``base_score``, with a warning.

        Returns
        -------
        predictions : array (n_rows,) of float64
            For several quantiles or expectiles (n_rows, n_levels). For ``"survival:aft"``, times.

        Raises
        ------
        ValueError
            When the rows contain infinite values, their features differ from those of `fit`, or
            ``base_margin`` has another shape.

        Warns
        -----
        UserWarning
            When rows lack the ``base_margin`` that the model needs, or have categories that it does
            not know.
        """
        margins = self._margins(X, base_margin)
        return _squeezed(self.model_.predictions(margins))

    def score(
        self, X: ArrayLike, y: Any, sample_weight: Any = None, *, base_margin: Any = None
    ) -> float:
        """Return R², as ``sklearn.metrics.r2_score``.

        Parameters
        ----------
        X : array-like (n_rows, n_features)
            As for `predict`.
        y : array-like (n_rows,)
            Finite numbers.
        sample_weight : array-like (n_rows,), optional
            Finite numbers from 0.
        base_margin : array-like (n_rows,), optional
            As for `predict`.

        Raises
        ------
        ValueError
            When a row has no valid target or weight, or the objective has two times per row or
            several levels, for which R² is not defined.
        """
        predicted = self.predict(X, base_margin=base_margin)
        if (predicted.ndim > 1 or np.shape(y)[1:] == (2,)) and self._unscored:
            raise ValueError(f"score is R², {self._unscored}")
        from sklearn.metrics import r2_score  # which takes a while to import

        targets = read_targets(y, n_rows=len(predicted))
        weights = _weights(sample_weight, len(targets))
        return float(r2_score(targets, predicted, sample_weight=weights))

    @property
    def _unscored(self) -> str:
        """Why scores of one number per row do not apply to the objective; empty if they do."""
        chosen = OBJECTIVES[self.objective]
        levels = np.size(getattr(self, chosen.parameter_name)) if chosen.has_levels else 1
        if chosen.n_columns == 1 and levels == 1:
            return ""
        several = "two times per row" if chosen.n_columns > 1 else f"{levels} levels"
        return (
            f"which needs one target and one prediction per row; got objective={self.objective!r}"
            f" with {several}: use rows for validation and"
            f" eval_metric={chosen.default_metric!r}, whose values are evals_result_"
        )

    def staged_predict(
        self, X: ArrayLike, *, base_margin: ArrayLike | None = None
    ) -> Iterator[Floats]:
        """Yield the predictions after each tree; see `predict`."""
        for margins in self._margins(X, base_margin, staged=True):
            yield _squeezed(self.model_.predictions(margins))


def _squeezed(predictions: Floats) -> Floats:
    """Return predictions (n_rows, n_levels), of one level as (n_rows,)."""
    return predictions[:, 0] if predictions.shape[1] == 1 else predictions


def _weights(sample_weight: Any, n_rows: int) -> Floats | None:
    """Return the weights of rows that are scored, or None if there are none."""
    return None if sample_weight is None else read_weights(sample_weight, n_rows=n_rows)
