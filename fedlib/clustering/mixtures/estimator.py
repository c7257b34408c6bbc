"""Federated Gaussian mixtures: clients hold different rows of the same features.

The server and the clients fit a mixture in rounds. There are two methods:

- ``"em"``, the default: a round is one step of expectation-maximisation (EM) over all points.
  Each client computes the responsibilities of the components for its points and sends their sums,
  the weighted sums of the points and of their outer products. The server adds the sums up. The
  resulting mixture is that of EM on the pooled points.
- ``"average"``: a round is federated averaging (FedAvg). Each client improves the mixture on its
  points and sends it back. The server averages the mixtures.

Source: F, §5.1, for ``"average"``. The notes of `FederatedGaussianMixture` list the choices that F
leaves open.
"""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import numpy as np
import sklearn
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from fedlib.clustering.mixtures.checks import degenerate
from fedlib.clustering.mixtures.client import GaussianMixtureClient, secure_em
from fedlib.clustering.mixtures.em import Start, given_start
from fedlib.clustering.mixtures.flow import MixtureModel, check_start, federated_gaussian_mixture
from fedlib.clustering.mixtures.messages import CovarianceType, sklearn_shape
from fedlib.clustering.mixtures.private import private_em
from fedlib.core.array_types import Floats, Ints
from fedlib.core.column_names import check_names
from fedlib.core.estimator import EXAMPLE_BOUNDS, Clusterer, Example
from fedlib.core.parameters import (
    KW_ONLY,
    Flag,
    Fraction,
    Kind,
    NonNegativeFloat,
    OptionalArray,
    OptionalPositiveFloat,
    PositiveInt,
    RandomSource,
    StrOptions,
)
from fedlib.core.protocol import Flow
from fedlib.protection.estimator import WeightedFederated, is_protected
from fedlib.protection.sums import NoisySums


class FederatedGaussianMixture(Clusterer, WeightedFederated):
    """A Gaussian mixture fitted over clients that hold different rows of the same features.

    Attributes
    ----------
    weights_ : array (n_components,)
        The weights of the components.
    means_ : array (n_components, n_features)
        The means of the components.
    covariances_ : array
        The covariances, of shape (n_components, n_features, n_features) for ``"full"``,
        (n_features, n_features) for ``"tied"``, (n_components, n_features) for ``"diag"`` and
        (n_components,) for ``"spherical"``.
    converged_ : bool
        Whether the rounds stopped by ``tol``.
    n_rounds_ : int
        The count of rounds.
    lower_bound_ : float
        The mean log-likelihood of all clients' points at the start of the last round, as in
        scikit-learn.
    lower_bounds_ : list of float
        The same for each round.
    labels_ : list of array of int64
        One array per client with the component of each point. Only if `fit` received a list.
    model_ : MixtureModel
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
        When a parameter is out of range; when no client has ``n_components`` distinct points (at
        least two) to fit the first mixture to; when a covariance is not positive definite.

    Warns
    -----
    ConvergenceWarning
        When ``tol`` is above 0 and was not reached within ``max_rounds``; when a component has no
        points, or two components are equal; when ``"average"`` runs without weights and a client
        has too few points for its covariances: for full ones, fewer than
        ``n_components * (n_features + 1)``.
    UserWarning
        With `epsilon`, when the noise of each round is large for the rows: it names a smaller
        ``max_rounds``.

    See Also
    --------
    fedlib.clustering.mixtures.dbscan.GaussianMixtureDBSCAN : DBSCAN on points drawn from mixtures.
    sklearn.mixture.GaussianMixture : the same model on pooled data.

    Notes
    -----
    *Results.* With ``"em"``, the mixture after each round equals scikit-learn's after the same
    count of iterations on the pooled points from the same start, up to rounding, for any division
    of the rows between the clients. Sums are taken about the current means, because second moments
    about the origin lose digits when the means are large. With one client, ``"average"`` is EM on
    that client's points. A component without points keeps its mean and covariance, and its weight
    becomes almost 0.

    *Weights.* A part is a table, or ``(X, sample_weight)``. A row with an integer weight counts as
    so many equal rows in every round; a row of weight 0 gets a label, but has no influence. With
    ``"average"``, the mixtures are averaged in proportion to the clients' weights. With `secure` or
    `epsilon`, a weight is clipped to `max_weight`.

    *Cost.* A round is one request and one reply per client. Each message holds one mixture or sums
    of the same size: about ``n_components * n_features**2`` numbers for full covariances. The
    likelihood of the mixture at the start of a round comes with the reply of that round.

    *Choices that F leaves open.* F does not state how far a client improves the mixture in a round.
    Here it continues to scikit-learn's default criterion: 100 steps, or a change of the
    log-likelihood below 1e-3. F runs a fixed count of rounds. A client with fewer points than
    components, fewer than two, or collinear columns and ``reg_covar=0``, contributes to the
    likelihood but not to the average. If the first mixture at a client would be singular, one
    millionth of the mean variance of its points is added to each variance. The
    components of different clients match because all clients start from the same mixture. An
    average of positive definite covariances is positive definite.

    *Lost and false clients.* A client that is lost before the rounds leaves no trace, unless it has
    fitted the first mixture. Later the rounds continue without it, from the mixture that it has
    helped to fit; with `n_init`, the results of earlier starts are dropped, because likelihoods
    are comparable only if they are of the same points. A client whose points are more than 2**26
    times as large as typical ones leaves the run, and so does one whose replies do not fit the
    magnitude, the number or the mean of its points. Invented points cannot be detected: points far
    away take a component for themselves.

    *Disclosure.* Each client discloses the order of magnitude of its largest coordinate. With
    ``"em"`` a client discloses the number, mean and covariance of its points per
    component; if it has one point, this is the point itself. With ``"average"`` it discloses a
    mixture of its own points in every round. With both methods, the client that fits the first
    mixture discloses that mixture. With ``secure=True``, the server sees the sums over all clients,
    whose points are clipped to `bounds`. What a row adds is in fixed point: the error of a sum is
    below ``n_clients * n_points * 2**-61`` times the largest possible sum.

    Source: F, §5.1.

    Examples
    --------
    >>> from fedlib import FederatedGaussianMixture
    >>> first, second = [[0.0], [1.0], [9.0], [10.0]], [[2.0], [3.0], [8.0], [11.0]]
    >>> model = FederatedGaussianMixture(2, random_state=0).fit([first, second])
    >>> sorted(model.means_.ravel().round(3).tolist())
    [1.5, 9.5]
    >>> bool(model.predict([[1.5]])[0] == model.labels_[0][0])
    True
    """

    name = "gaussian-mixture"
    example = Example(
        "rows",
        {"n_components": 3, "method": "average", "random_state": 0},
        {"method": "em", "max_rounds": 2, "tol": 0.0, "bounds": EXAMPLE_BOUNDS},
        masked={
            "weights_init": (1 / 3, 1 / 3, 1 / 3),
            "means_init": ((0.0, 0.0), (4.0, 0.0), (0.0, 4.0)),
            "precisions_init": (((4.0, 0.0), (0.0, 4.0)),) * 3,
        },
    )
    client_class = GaussianMixtureClient
    n_components: Annotated[
        PositiveInt,
        "The count of components, at least 1.",
    ]
    method: Annotated[
        str,
        StrOptions({"average", "em"}),
        """
        How a round improves the mixture. ``"em"``: one step of EM over the points of all clients,
        with the result of pooled data. ``"average"``: each client runs EM on its points from the
        common mixture, and the server averages the clients' weights, means and covariances in
        proportion to their numbers of points (FedAvg, as F).
        """,
    ] = "em"
    _: KW_ONLY
    covariance_type: Annotated[
        CovarianceType,
        StrOptions({"full", "tied", "diag", "spherical"}),
        """
        One covariance matrix per component, one matrix for all components, one variance per
        feature and component, or one variance per component.
        """,
    ] = "full"
    reg_covar: Annotated[
        NonNegativeFloat,
        """
        Added to every variance at each step of EM, at least 0, in squared units of the features.
        """,
    ] = 1e-6
    weights_init: Annotated[
        OptionalArray,
        Kind("array-like (n_components,)"),
        "The weights of the first mixture, at least 0; their sum is 1.",
    ] = None
    means_init: Annotated[
        OptionalArray,
        Kind("array-like (n_components, n_features)"),
        "The means of the first mixture.",
    ] = None
    precisions_init: Annotated[
        OptionalArray,
        """
        The inverse covariances of the first mixture, in the shape of ``covariances_``. Unless the
        weights, means and precisions are all given, one client drawn at random fits a mixture to
        its own points, starting from the parameters that are given. The result is the first mixture
        (F, §5.1).
        """,
    ] = None
    max_rounds: Annotated[
        PositiveInt,
        "The maximum count of rounds, at least 1.",
    ] = 100
    tol: Annotated[
        NonNegativeFloat,
        """
        The rounds stop when the mean log-likelihood of all points changes by less than this from
        one round to the next, with the same clients in both. At least 0; with 0, all rounds run.
        """,
    ] = 1e-3
    max_local_iter: Annotated[
        PositiveInt,
        """
        For ``"average"``: the maximum count of steps of EM at a client in one round, at least 1.
        The steps also stop by ``tol``.
        """,
    ] = 100
    n_init: Annotated[
        PositiveInt,
        """
        The count of first mixtures, each fitted by a client that is drawn, at least 1. The result
        is that of the largest ``lower_bound_``, as in scikit-learn. Each start takes its own rounds
        and discloses another mixture of a single client. It must be 1 for a complete first mixture,
        and so with ``secure=True``, and with `epsilon`.
        """,
    ] = 1
    random_state: Annotated[
        RandomSource,
        """
        Draws the clients that fit the first mixtures, and the seeds of these fits.
        """,
    ] = None
    warm_start: Annotated[
        Flag,
        """
        Whether `fit` continues the fitted mixture for up to ``max_rounds`` further rounds, as in
        scikit-learn. No client fits a first mixture: `n_init` and the given first mixture do not
        count. Its first round has no likelihood to compare with, so it takes at least two. The
        columns must be the same. It must be False with `epsilon`. Not for the command line, where
        each process starts without a model.
        """,
    ] = False
    secure: Annotated[
        Flag,
        """
        For ``"em"`` from a complete first mixture: whether the server sees sums over the clients
        and no client's reply; see `fedlib.protection.secure` for what remains open. It needs
        `bounds`. Each sum takes five requests per client.
        """,
    ] = False
    epsilon: Annotated[
        OptionalPositiveFloat,
        """
        For ``"em"``: the run is differentially private; see `fedlib.protection.privacy`. It needs
        `bounds`. The noise grows with `max_rounds`, so a few rounds are best. All of them run:
        `tol` has no effect, and there are no likelihoods. Parameters of the first mixture that are
        not given do not depend on the data: the means are spread between the bounds.
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
        if self.epsilon is not None and self.method != "em":
            lacking.append(
                "method='em', because the mixture of one client's points cannot have little noise"
                f" (got method={self.method!r})"
            )
        if self.n_init > 1 and is_protected(self):
            noisy = "runs with noise have no likelihoods to compare"
            reason = "all starts would be equal" if self.epsilon is None else noisy
            lacking.append(f"n_init=1, because {reason} (got n_init={self.n_init})")
        if self.epsilon is not None and self.warm_start:
            lacking.append(
                "warm_start=False, because the fitted mixture may depend on rows without noise (got"
                " True)"
            )
        if self.epsilon is None and self.secure and self._start is None:
            names = ("weights_init", "means_init", "precisions_init")
            given = [f"method={self.method!r}", *(n for n in names if getattr(self, n) is not None)]
            if len(given) < 4 or self.method != "em":
                lacking.append(
                    "method='em', weights_init, means_init and precisions_init, because a single"
                    f" client would fit the first mixture (got {', '.join(given)})"
                )
        return lacking

    def _flow(self) -> Flow[MixtureModel]:
        start = given_start(
            self.n_components,
            self.covariance_type,
            self.weights_init,
            self.means_init,
            self.precisions_init,
        )
        n_init, names = self.n_init, ()
        if self._start is not None:
            names = tuple(getattr(self, "feature_names_in_", ()))
            start = self._start.as_start(self.n_components, self.covariance_type)
            n_init = 1
        if n_init > 1 and start.complete:
            raise ValueError(
                "n_init must be 1 with weights_init, means_init and precisions_init, because all"
                f" starts would be equal; got {n_init}"
            )
        if is_protected(self):
            return self._protected_flow(start, names)
        self._refuse_limits()
        return federated_gaussian_mixture(
            self.n_components,
            self.method,
            self.covariance_type,
            self.reg_covar,
            start,
            self.max_rounds,
            self.tol,
            self.max_local_iter,
            n_init,
            self.random_state,
            names,
        )

    def _protected_flow(self, start: Start, names: tuple[str, ...]) -> Flow[MixtureModel]:
        bounds, max_rounds = self._bounds(), self.max_rounds
        check_start(start, bounds.limits.shape[1], self.covariance_type)
        aggregation = self._aggregation(max_rounds, bounds)
        check_names(aggregation.features, names)
        aggregation.features = aggregation.features or names
        of_both = self.covariance_type, self.reg_covar, start, bounds.limits, max_rounds
        weight = self._largest_weight()
        if not isinstance(aggregation, NoisySums):
            return secure_em(*of_both, self.tol, aggregation, weight)
        seed = int(check_random_state(self.random_state).randint(2**31))
        return private_em(self.n_components, *of_both, seed, aggregation, weight)

    def _fit(self, *arguments: Any, **options: Any) -> FederatedGaussianMixture:
        super()._fit(*arguments, **options)
        # Not in `_set_model`, which loading also calls.
        if problem := degenerate(self.model_.mixture):
            warnings.warn(problem, ConvergenceWarning, stacklevel=3)
        if not self.converged_ and self.tol > 0 and self.epsilon is None:
            warnings.warn(
                f"not converged to tol={self.tol} within max_rounds={self.max_rounds}",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self

    def _set_model(self, model: MixtureModel) -> None:
        super()._set_model(model)
        mixture = model.mixture
        self.weights_ = mixture.weights
        self.means_ = mixture.means
        self.covariances_ = sklearn_shape(mixture.covariances, mixture.covariance_type)
        self.n_features_in_ = model.n_features
        self.n_rounds_ = len(model.log_likelihoods)
        self.lower_bounds_ = model.log_likelihoods
        self.lower_bound_ = model.log_likelihoods[-1]
        self.converged_ = model.converged

    def predict(self, X: ArrayLike) -> Ints:
        """Return the most probable component of each point; ties go to the first.

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

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Return the probability (n_points, n_components) of each component for each point.

        Parameters
        ----------
        X : array-like (n_points, n_features)
        """
        points = self._new_points(X)
        if not len(points):  # scikit-learn takes no empty table
            return np.empty((0, len(self.weights_)))
        return self.to_sklearn().predict_proba(points)

    def score_samples(self, X: ArrayLike) -> Floats:
        """Return the log-likelihood (n_points,) of each point.

        Parameters
        ----------
        X : array-like (n_points, n_features)

        Raises
        ------
        ValueError
            When the points are not finite or have a different count of features.
        NotFittedError
            When called before `fit`.
        """
        points = self._new_points(X)
        if not len(points):  # scikit-learn takes no empty table
            return np.empty(0)
        return np.asarray(self.to_sklearn().score_samples(points))

    def sample(self, n_samples: int = 1, random_state: Any = None) -> tuple[Floats, Ints]:
        """Draw points from the mixture.

        Parameters
        ----------
        n_samples : int, default=1
            At least 1.
        random_state : int, RandomState or None, default=None
            An int gives the same points at each call.

        Returns
        -------
        X : array (n_samples, n_features)
            The points, by component.
        y : array (n_samples,) of int64
            The component of each point.

        Raises
        ------
        ValueError
            When ``n_samples`` is below 1.
        NotFittedError
            When called before `fit`.

        Examples
        --------
        >>> from fedlib import FederatedGaussianMixture
        >>> model = FederatedGaussianMixture(1, random_state=0).fit([[[0.0], [1.0], [2.0]]])
        >>> X, y = model.sample(5, random_state=0)
        >>> X.shape, y
        ((5, 1), array([0, 0, 0, 0, 0]))
        """
        model = self.to_sklearn()
        model.random_state = random_state
        points, components = model.sample(n_samples)
        return points, components.astype(np.int64)

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Return the mean log-likelihood of points.

        Parameters
        ----------
        X : array-like (n_points, n_features)
        y : ignored
        """
        points = self._new_points(X)
        return float(self.to_sklearn().score(points))

    def bic(self, X: ArrayLike) -> float:
        """Return the Bayesian information criterion on points; lower is better.

        Parameters
        ----------
        X : array-like (n_points, n_features)
        """
        points = self._new_points(X)
        return float(self.to_sklearn().bic(points))

    def aic(self, X: ArrayLike) -> float:
        """Return Akaike's information criterion on points; lower is better.

        Parameters
        ----------
        X : array-like (n_points, n_features)
        """
        points = self._new_points(X)
        return float(self.to_sklearn().aic(points))

    def to_sklearn(self) -> sklearn.mixture.GaussianMixture:
        """Return a fitted `sklearn.mixture.GaussianMixture` with copies of the arrays.

        Raises
        ------
        NotFittedError
            When called before `fit`.

        Examples
        --------
        >>> from fedlib import FederatedGaussianMixture
        >>> model = FederatedGaussianMixture(1, random_state=0).fit([[[0.0], [1.0], [2.0]]])
        >>> model.to_sklearn().means_
        array([[1.]])
        """
        check_is_fitted(self, "model_")
        return self.model_.to_sklearn()
