"""The estimator of federated k-means."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import Annotated, Any

import numpy as np
import sklearn
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from fedlib.clustering.kmeans.client import FederatedKMeansClient
from fedlib.clustering.kmeans.flow import (
    KMeansModel,
    lloyd,
    one_shot,
    private_lloyd,
)
from fedlib.clustering.kmeans.local import (
    assign,
    sum_clusters,
)
from fedlib.core.array_types import Floats, Ints
from fedlib.core.estimator import EXAMPLE_BOUNDS, Clusterer, Example
from fedlib.core.parameters import (
    KW_ONLY,
    Flag,
    Fraction,
    Interval,
    Kind,
    NonNegativeFloat,
    OptionalPositiveFloat,
    RandomSource,
    StrOptions,
)
from fedlib.core.points import check_coordinates, check_points, check_weights
from fedlib.core.protocol import Flow
from fedlib.protection.estimator import WeightedFederated, is_protected
from fedlib.protection.sums import NoisySums


class FederatedKMeans(Clusterer, WeightedFederated):
    """k-means over clients that hold different rows of the same features.

    A part is a table, or ``(X, sample_weight)`` with one weight per row.

    Attributes
    ----------
    cluster_centers_ : array (n_clusters, n_features)
        The centres.
    inertia_ : float
        The sum of the squared distances of the points to their nearest centres, over the clients
        that share data and remained to the end. Not a number with `epsilon`.
    n_iter_ : int
        The count of iterations of the best start. Only for ``"lloyd"``.
    local_centers_ : array (n_centers, n_features)
        The centres that the clients sent, one client after the other. Only for ``"one_shot"``.
    local_counts_ : array (n_centers,) of int64
        The count of points of each of these centres. Only for ``"one_shot"``.
    labels_ : list of array of int64
        One array per client with the cluster of each point. Only if `fit` received a list.
    model_ : KMeansModel
        The fitted model, from which `predict` and the attributes above are derived.
    ledger_ : Ledger
        The messages of the run and their sizes.
    n_features_in_ : int
        The count of features.
    feature_names_in_ : array (n_features,) of str
        The names of the columns; only if the clients' columns have names.

    Raises
    ------
    ValueError
        When a parameter is out of range; when there are fewer than `n_clusters` distinct local
        centres, or distinct means from which to draw a start.

    Warns
    -----
    ConvergenceWarning
        When clusters have no points. Only for ``"lloyd"`` without noise.
    UserWarning
        With `epsilon`, when the noise of each round is large for the rows: it names a smaller
        `max_iter`.

    See Also
    --------
    sklearn.cluster.KMeans : k-means on pooled data.

    Notes
    -----
    *Disclosure.* The centre of a cluster of one point is that point, and so is its sum. Neither
    method hides this: ``(local_counts_ == 1).sum()`` is the count of points disclosed by
    ``"one_shot"``.

    With ``secure=True``, the server sees the sums over all clients, whose points are clipped to
    `bounds`. What a row adds is in fixed point: a coordinate of a centre is wrong by at most
    ``n_clients * n_points**2 * 2**-62 * limit / count``, in addition to rounding, where ``limit``
    is the largest absolute bound of the feature, and ``count`` the count of points of the cluster.

    With `epsilon`, the server sees sums and counts with noise instead, also of clusters without
    points, and the guarantee holds for each row of each client.

    *Weights.* A row with an integer weight counts like as many equal rows, also for `tol`, where
    scikit-learn ignores weights. A row of weight 0 gets a label, but has no influence. A start is
    drawn by weight, too. Large weights disclose: the sum of a cluster in which one row has nearly
    all weight is nearly that row. With `secure` or `epsilon`, a weight is clipped to `max_weight`.
    The noise hides a row of this weight, so that rows with small weights cost accuracy.

    *Lost and false clients.* A client that is lost at its first request leaves no trace. Later, the
    centres keep its share with ``"one_shot"``, and only the inertia is without it; with ``"lloyd"``
    the rounds continue without it, from centres that it has helped to move. Invented centres or
    points cannot be detected: some far away take a cluster for themselves.

    *One shot.* A client with fewer distinct rows than `n_clusters` has one cluster per distinct
    row; a client without rows has none. The result depends on the order of the clients. A run takes
    three requests per client.

    *Lloyd.* A point with several nearest centres belongs to the first. A centre without points does
    not move; scikit-learn would move it to the farthest point, which would disclose that point. The
    server adds the clients' sums exactly, so the order of the clients does not affect the result,
    and the division of the rows between them affects it only by rounding. All starts are iterated
    in the same rounds; the size of a message is proportional to the count of starts still active.

    Sources: K, for ``"one_shot"``; S. Lloyd, Least squares quantization in PCM, 1982, for
    ``"lloyd"``.

    Examples
    --------
    Three clusters on a line. The first client has no point of the last cluster, the second has none
    of the first.

    >>> from fedlib import FederatedKMeans
    >>> parts = [[[0.0], [1.0], [10.0]], [[11.0], [20.0], [21.0]]]
    >>> start = [[0.0], [10.0], [20.0]]
    >>> model = FederatedKMeans(3, init=start).fit(parts)
    >>> model.cluster_centers_.ravel(), model.inertia_, model.n_iter_
    (array([ 0.5, 10.5, 20.5]), 1.5, 2)
    >>> model.labels_
    [array([0, 0, 1]), array([1, 2, 2])]
    >>> model.predict([[4.0], [30.0]])
    array([0, 2])
    """

    name = "kmeans"
    example = Example(
        "rows",
        {"n_clusters": 3, "method": "one_shot", "random_state": 0},
        {
            "method": "lloyd",
            "init": ((0.0, 0.0), (4.0, 0.0), (0.0, 4.0)),
            "max_iter": 3,
            "bounds": EXAMPLE_BOUNDS,
        },
    )
    client_class = FederatedKMeansClient
    n_clusters: Annotated[
        int,
        Interval(Integral, 1, 2**31, closed="left"),
        "The count of clusters, at least 1.",
    ]
    _: KW_ONLY
    method: Annotated[
        str,
        StrOptions({"one_shot", "lloyd"}),
        """
        ``"lloyd"``: Lloyd's iteration on the points of all clients, one request per round. The
        result is that of pooled data from the same start. ``"one_shot"``: each client clusters its
        points and the server clusters the centres (K); three requests, and a worse result.
        """,
    ] = "lloyd"
    init: Annotated[
        Any,
        StrOptions({"k-means++"}),
        "array-like",
        Kind('"k-means++" or array-like (n_clusters, n_features)'),
        """
        The start of ``"lloyd"``. ``"k-means++"`` draws it from means of at least three neighbouring
        points each, so that no client discloses a point. ``"one_shot"`` only accepts
        ``"k-means++"``, because each client starts separately.
        """,
    ] = "k-means++"
    n_init: Annotated[
        int,
        Interval(Integral, 1, 2**31, closed="left"),
        """
        The count of starts, at least 1. The result is that of the start with the smallest inertia.
        If `init` is an array, there is one start. For ``"one_shot"``, the count of starts of each
        k-means.
        """,
    ] = 10
    max_iter: Annotated[
        int,
        Interval(Integral, 1, 2**31, closed="left"),
        "The maximum count of iterations, at least 1.",
    ] = 300
    tol: Annotated[
        NonNegativeFloat,
        """
        The iteration stops when the sum of the centres' squared shifts is at most `tol` times the
        mean variance of the features, as in scikit-learn. At least 0; with 0 it stops when the
        centres do not move. Sites with a ``min_count`` need 0 for ``"one_shot"``: else the centres
        can be means of groups that no site knows, and a site sends none.
        """,
    ] = 1e-4
    update_fraction: Annotated[
        Fraction,
        """
        For ``"one_shot"``: the fraction of each client's rows, in [0, 1), that k-means leaves out.
        These are its first rows. They move the centres afterwards, one after the other.
        """,
    ] = 0.25
    weighted: Annotated[
        Flag,
        """
        For ``"one_shot"``: whether the server weights each centre by its count of points. K does
        not.
        """,
    ] = False
    random_state: Annotated[
        RandomSource,
        """
        For ``"one_shot"``, an int is the seed of every k-means, at the clients and at the server,
        as in K; otherwise this seed is drawn. For ``"lloyd"`` it draws the starts.
        """,
    ] = None
    secure: Annotated[
        Flag,
        """
        For ``"lloyd"`` from an array `init`: whether the server sees sums over the clients and no
        client's reply; see `fedlib.protection.secure` for what remains open. It needs `bounds`.
        Each sum takes five requests per client.
        """,
    ] = False
    epsilon: Annotated[
        OptionalPositiveFloat,
        """
        For ``"lloyd"``: the run is differentially private; see `fedlib.protection.privacy`. It
        needs `bounds`. The noise grows with `max_iter`, so a few rounds are best. All of them run:
        `tol` and `n_init` have no effect. The default of `max_iter` is too large for most data.
        """,
    ] = None
    delta: Annotated[
        Fraction,
        """
        The second parameter of the guarantee, at least 0 and below 1. With a small positive value,
        such as 1e-6, the noise is Gaussian and smaller over several rounds.
        """,
    ] = 0.0

    def _lacking(self) -> list[str]:
        lacking = super()._lacking()
        if self.epsilon is not None and self.method != "lloyd":
            lacking.append(
                "method='lloyd', because the centres of one client's clusters cannot have little"
                f" noise (got method={self.method!r})"
            )
        elif self.epsilon is None and self.secure and isinstance(self.init, str):
            lacking.append(
                "method='lloyd' and an array as init, because the server would draw a start from"
                f" means of single clients (got method={self.method!r} and init={self.init!r})"
            )
        return lacking

    def _flow(self) -> Flow[KMeansModel]:
        n_clusters = self.n_clusters
        init = self._check_init()
        if not is_protected(self):
            self._refuse_limits()
            stop = self.n_init, self.max_iter, self.tol, draw_seed(self.random_state)
            if self.method == "one_shot":
                return one_shot(n_clusters, self.update_fraction, self.weighted, *stop)
            return lloyd(n_clusters, init, *stop, self._sums())
        bounds, max_iter, seed = self._bounds(), self.max_iter, draw_seed(self.random_state)
        limits = bounds.limits
        if init is not None and init.shape[1] != limits.shape[1]:
            raise ValueError(
                f"bounds must have the {init.shape[1]} features of init, got {limits.shape[1]}"
            )
        aggregation = self._aggregation(max_iter, bounds)
        if isinstance(aggregation, NoisySums):
            return private_lloyd(
                n_clusters, init, limits, max_iter, seed, aggregation, self._largest_weight()
            )
        stop = self.n_init, max_iter, self.tol, seed
        return lloyd(n_clusters, init, *stop, aggregation, limits, self._largest_weight())

    def _check_init(self) -> Floats | None:
        """Return the given start, or None for k-means++; check what belongs to one method."""
        for name in ("update_fraction", "weighted"):
            value = getattr(self, name)
            if self.method != "one_shot" and value != getattr(FederatedKMeans, name):
                raise ValueError(
                    f"{name} needs method='one_shot'; got method={self.method!r} and {name}={value}"
                )
        if isinstance(self.init, str):
            return None
        if self.method == "one_shot":
            raise ValueError("init must be 'k-means++' for method='one_shot', got an array")
        init = check_coordinates("init", check_points(self.init))
        if len(init) != self.n_clusters:
            raise ValueError(f"init must have n_clusters={self.n_clusters} rows, got {len(init)}")
        return init

    def _set_model(self, model: KMeansModel) -> None:
        super()._set_model(model)
        self.cluster_centers_ = model.centres
        self.inertia_ = model.inertia
        self.n_features_in_ = model.n_features
        if model.n_iter is not None:
            self.n_iter_ = model.n_iter
        else:
            self.local_centers_, self.local_counts_ = model.local_centres, model.local_counts

    def predict(self, X: ArrayLike) -> Ints:
        """Return the nearest centre of each point; ties go to the first centre.

        Parameters
        ----------
        X : array-like (n_points, n_features)

        Returns
        -------
        array (n_points,) of int64

        Raises
        ------
        ValueError
            When the points are not finite or have a different count of features.
        NotFittedError
            When called before `fit`.
        """
        points = self._new_points(X)
        return self.model_.place(points)

    def transform(self, X: ArrayLike) -> Floats:
        """Return the distance of each point to each centre, as scikit-learn does.

        Parameters
        ----------
        X : array-like (n_points, n_features)

        Returns
        -------
        array (n_points, n_clusters)

        Raises
        ------
        ValueError
            When the points are not finite or have a different count of features.
        NotFittedError
            When called before `fit`.

        Examples
        --------
        >>> from fedlib import FederatedKMeans
        >>> start = [[0.0], [10.0]]
        >>> model = FederatedKMeans(2, init=start).fit([[[0.0]], [[10.0]]])
        >>> model.transform([[4.0]])
        array([[4., 6.]])
        """
        return np.asarray(
            sklearn.metrics.pairwise.euclidean_distances(self._placeable(X), self.cluster_centers_)
        )

    def score(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """Return minus the inertia of points: the sum of squared distances to nearest centres.

        Parameters
        ----------
        X : array-like (n_points, n_features)
        y : ignored
        sample_weight : array-like (n_points,), optional
            At least 0; by default 1 for each point.

        Raises
        ------
        ValueError
            When the points are not finite or have a different count of features, or a weight is
            not valid.
        NotFittedError
            When called before `fit`.
        """
        points = self._placeable(X)
        if sample_weight is None:
            return -assign(points, self.cluster_centers_)[1]
        weights = check_weights(sample_weight, len(points))
        return -sum_clusters(points, self.cluster_centers_, weights)[2]

    def _placeable(self, X: ArrayLike) -> Floats:
        """Return new points, which must have the features of the centres."""
        points = self._new_points(X)
        self.model_.place(points[:0])  # raises the error that `predict` raises
        return points

    def to_sklearn(self) -> sklearn.cluster.KMeans:
        """Return a fitted `sklearn.cluster.KMeans` with these centres and the same predictions.

        If this estimator has ``labels_``, the result has them too, one client after the other.

        Raises
        ------
        NotFittedError
            When called before `fit`.

        Examples
        --------
        >>> from fedlib import FederatedKMeans
        >>> model = FederatedKMeans(2, init=[[0.0], [9.0]]).fit([[[0.0], [1.0], [8.0], [9.0]]])
        >>> bool((model.to_sklearn().predict([[2.0]]) == model.predict([[2.0]])).all())
        True
        """
        check_is_fitted(self, "model_")
        centres = self.model_.centres
        fitted = sklearn.cluster.KMeans(len(centres), init=centres, n_init=1)
        with warnings.catch_warnings():  # scikit-learn warns when two centres coincide
            warnings.simplefilter("ignore")
            fitted.fit(centres)
        fitted.cluster_centers_ = centres.copy()
        fitted.inertia_ = self.inertia_
        fitted.n_iter_ = self.model_.n_iter or 0
        del fitted.labels_
        if hasattr(self, "labels_"):
            labels = [part for part in self.labels_ if part is not None]
            fitted.labels_ = np.concatenate(labels).astype(np.int32)
        return fitted


def draw_seed(random_state: Any) -> int:
    """Return an int unchanged, and otherwise a seed that is drawn."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))
