"""The count of clusters: federated inertia, BIC and AIC for a range of numbers in one run.

The server fits one model per number. Then it measures all models on the points of the same clients,
so that the values can be compared.

Sources: G. Schwarz, Estimating the dimension of a model, The Annals of Statistics 6, 1978, for BIC;
H. Akaike, A new look at the statistical model identification, IEEE Transactions on Automatic
Control 19, 1974, for AIC; `fedlib.evaluation.selection.grid_search` for the inertia.
"""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedlib.clustering.kmeans.client import FederatedKMeansClient
from fedlib.clustering.kmeans.estimator import FederatedKMeans, draw_seed
from fedlib.clustering.mixtures.client import GaussianMixtureClient
from fedlib.clustering.mixtures.em import log_joint
from fedlib.clustering.mixtures.estimator import FederatedGaussianMixture
from fedlib.clustering.mixtures.messages import CovarianceType, Likelihood, MeasureLikelihood
from fedlib.core.array_types import Ints
from fedlib.core.client import handles
from fedlib.core.estimator import Clusterer, Example, Federated
from fedlib.core.parameters import KW_ONLY, Interval, StrOptions
from fedlib.core.protocol import Flow
from fedlib.evaluation.selection.grid_search import (
    KMeansChoice,
    MixtureChoice,
    select_kmeans,
    select_mixture,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# The client


class GaussianMixtureSelectionClient(GaussianMixtureClient):
    """A client that holds points; for the parameter see `fedlib.core.points.PointsClient`."""

    takes_weights = False  # the criteria need the count of rows

    @handles(MeasureLikelihood)
    def measure_likelihood(self, request: MeasureLikelihood) -> Likelihood:
        log_likelihoods = np.logaddexp.reduce(log_joint(self.X, request), axis=1)
        return Likelihood(len(self.X), float(log_likelihoods.sum()))


# The estimators


class Selection(Clusterer, Federated):
    """Base class of estimators that fit a model for each count of clusters, and suggest one.

    A subclass states the class of the models' estimator, its method, and the parameter in which the
    models differ. Its other parameters with the same names are those of the suggested model.
    """

    of_model: ClassVar[type[Federated]]
    method: ClassVar[str]
    count: ClassVar[str]
    best_estimator_: Any

    def _set_model(self, model: Any) -> None:
        super()._set_model(model)
        suggested = int(getattr(model, self.count)[model.best])
        setattr(self, f"{self.count}_", suggested)
        known = self.of_model._parameter_constraints
        shared = {name: one for name, one in self.get_params(deep=False).items() if name in known}
        self.best_estimator_ = self.of_model(
            **{self.count: suggested, "method": self.method, **shared}
        )
        self.best_estimator_._set_model(model.models[model.best])
        self.n_features_in_ = self.best_estimator_.n_features_in_

    def predict(self, X: ArrayLike) -> Ints:
        """Return the cluster of each point in the suggested model.

        For parameters and errors see ``predict`` of the class of ``best_estimator_``.
        """
        check_is_fitted(self, "model_")
        labels: Ints = self.best_estimator_.predict(self._like_fit(X))
        return labels

    def report(self) -> str:
        """Return the suggested count and the criteria as text."""
        return f"suggested {self.count}: {getattr(self, f'{self.count}_')}\n\n{super().report()}"

    def _range(self) -> list[int]:
        """Return the counts from the smallest to the largest.

        Raises
        ------
        ValueError
            When there are none.
        """
        noun = self.count.removeprefix("n_")
        smallest, largest = getattr(self, f"min_{noun}"), getattr(self, f"max_{noun}")
        if smallest > largest:
            raise ValueError(f"min_{noun} must be at most max_{noun}={largest}, got {smallest}")
        return list(range(int(smallest), int(largest) + 1))


class KMeansSelection(Selection):
    """k-means for a range of numbers of clusters, and the number at the knee of the inertia.

    Attributes
    ----------
    n_clusters_ : int
        The suggested number: the knee of the inertia.
    best_estimator_ : FederatedKMeans
        The fitted k-means with this number.
    labels_ : list of array of int64
        Its cluster of each point, one array per client. Only if `fit` received a list.
    model_ : KMeansChoice
        All models with their inertias.
    n_features_in_ : int
        The count of features.
    feature_names_in_ : array (n_features,) of str
        The names of the columns; only if the clients' columns have names.
    ledger_ : Ledger
        The messages of the run and their sizes.

    Raises
    ------
    ValueError
        When a parameter is out of range, or there are too few distinct means to start from.

    See Also
    --------
    GaussianMixtureSelection : the count of components of a mixture, by BIC or AIC.
    DensitySuggestion : a radius or a cell size for the density methods.

    Notes
    -----
    The inertias equal those of scikit-learn on the pooled points with the same centres, up to
    rounding. They fall with every further cluster. The knee is the number whose inertia is farthest
    below the line between the first and the last one, so it depends on the range.

    The run consists of one run of Lloyd's iteration per count, and one request per count for the
    inertia. If a client is lost, the remaining ones measure all inertias. For what else lost and
    false clients can do, and for what is disclosed, see `FederatedKMeans`.

    Examples
    --------
    >>> from fedlib import KMeansSelection
    >>> low = [[0.0], [0.1], [0.2], [0.3], [5.0], [5.1]]
    >>> high = [[5.2], [5.3], [9.0], [9.1], [9.2], [9.3]]
    >>> model = KMeansSelection(max_clusters=2, n_init=1, random_state=0).fit([low, high])
    >>> model.to_frame()["inertia"].round(2).tolist()
    [162.82, 32.15]
    """

    name = "kmeans-selection"
    example = Example("rows", {"max_clusters": 3, "n_init": 1, "random_state": 0})
    client_class = FederatedKMeansClient
    of_model, method, count = FederatedKMeans, "lloyd", "n_clusters"
    max_clusters: Annotated[
        int,
        Interval(Integral, 1, 1000, closed="both"),
        "The largest count of clusters.",
    ] = 10
    _: KW_ONLY
    min_clusters: Annotated[
        int,
        Interval(Integral, 1, 1000, closed="both"),
        "The smallest count of clusters, at least 1.",
    ] = 1
    n_init: Annotated[
        int,
        Interval(Integral, 1, 2**31, closed="left"),
        """
        As in `FederatedKMeans` with ``method="lloyd"``.
        """,
    ] = 10
    max_iter: Annotated[
        int,
        Interval(Integral, 1, 2**31, closed="left"),
    ] = 300
    tol: Annotated[
        float,
        Interval(Real, 0, np.inf, closed="left"),
    ] = 1e-4
    random_state: Annotated[
        Any,
        "random_state",
    ] = None

    def _flow(self) -> Flow[KMeansChoice]:
        stop = self.n_init, self.max_iter, self.tol
        return select_kmeans(self._range(), *stop, draw_seed(self.random_state))

    def _set_model(self, model: KMeansChoice) -> None:
        super()._set_model(model)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per count of clusters, with its inertia.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        index = pd.Index(self.model_.n_clusters, name="n_clusters")
        return pd.DataFrame({"inertia": self.model_.inertias}, index)

    def plot(self) -> Figure:
        """Draw the inertia against the count of clusters, with the knee marked.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        from fedlib.figures.scores import criteria

        return criteria(self.to_frame(), {"inertia": self.model_.best})


class GaussianMixtureSelection(Selection):
    """Gaussian mixtures for a range of numbers of components, and the number with the best BIC.

    Attributes
    ----------
    n_components_ : int
        The suggested count of components.
    best_estimator_ : FederatedGaussianMixture
        The fitted mixture with this number.
    labels_ : list of array of int64
        Its component of each point, one array per client. Only if `fit` received a list.
    model_ : MixtureChoice
        All mixtures with their criteria.
    n_features_in_ : int
        The count of features.
    feature_names_in_ : array (n_features,) of str
        The names of the columns; only if the clients' columns have names.
    ledger_ : Ledger
        The messages of the run and their sizes.

    Raises
    ------
    ValueError
        When a parameter is out of range, when no client has ``max_components`` distinct points, or
        when a covariance is not positive definite.

    Warns
    -----
    ConvergenceWarning
        When ``tol`` is above 0 and mixtures did not reach it within ``max_rounds``.

    See Also
    --------
    KMeansSelection : the count of clusters of k-means, by the inertia.

    Notes
    -----
    BIC and AIC equal those of scikit-learn on the pooled points for the same mixtures, up to
    rounding. Both add a penalty for each free parameter to minus twice the log-likelihood.

    The run consists of one federated EM per count, and one request per count for the likelihood
    of the last mixture. If a client is lost, the remaining ones measure all likelihoods. For what
    else lost and false clients can do, and for what is disclosed, see `FederatedGaussianMixture`.

    Examples
    --------
    >>> from fedlib import GaussianMixtureSelection
    >>> first, second = [[0.0], [1.0], [9.0], [10.0]], [[2.0], [3.0], [8.0], [11.0]]
    >>> model = GaussianMixtureSelection(2, random_state=0).fit([first, second])
    >>> model.to_frame().round(1).values.tolist()
    [[49.6, 49.5], [46.0, 45.6]]
    >>> model.n_components_
    2
    """

    name = "gaussian-mixture-selection"
    example = Example("rows", {"max_components": 2, "random_state": 0})
    client_class = GaussianMixtureSelectionClient
    of_model, method, count = FederatedGaussianMixture, "em", "n_components"
    max_components: Annotated[
        int,
        Interval(Integral, 1, 1000, closed="both"),
        "The largest count of components.",
    ] = 10
    _: KW_ONLY
    min_components: Annotated[
        int,
        Interval(Integral, 1, 1000, closed="both"),
        "The smallest count of components, at least 1.",
    ] = 1
    criterion: Annotated[
        str,
        StrOptions({"bic", "aic"}),
        """
        The criterion whose minimum is the suggestion: Bayesian or Akaike's information criterion.
        """,
    ] = "bic"
    covariance_type: Annotated[
        CovarianceType,
        StrOptions({"full", "tied", "diag", "spherical"}),
        """
        As in `FederatedGaussianMixture` with ``method="em"``.
        """,
    ] = "full"
    reg_covar: Annotated[
        float,
        Interval(Real, 0, np.inf, closed="left"),
    ] = 1e-6
    max_rounds: Annotated[
        int,
        Interval(Integral, 1, None, closed="left"),
    ] = 100
    tol: Annotated[
        float,
        Interval(Real, 0, np.inf, closed="left"),
    ] = 1e-3
    random_state: Annotated[
        Any,
        "random_state",
    ] = None

    def _flow(self) -> Flow[MixtureChoice]:
        return select_mixture(
            self._range(),
            self.criterion,
            self.covariance_type,
            self.reg_covar,
            self.max_rounds,
            self.tol,
            self.random_state,
        )

    def _fit(self, *arguments: Any, **options: Any) -> GaussianMixtureSelection:
        super()._fit(*arguments, **options)
        model = self.model_
        late = [
            str(k)
            for k, fitted in zip(model.n_components, model.models, strict=True)
            if not fitted.converged
        ]
        if late and self.tol > 0:  # not in `_set_model`, which loading also calls
            warnings.warn(
                f"mixtures with {', '.join(late)} components have not converged to tol={self.tol}"
                f" within max_rounds={self.max_rounds}",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self

    def _set_model(self, model: MixtureChoice) -> None:
        super()._set_model(model)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per count of components, with its BIC and AIC.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        model = self.model_
        index = pd.Index(model.n_components, name="n_components")
        return pd.DataFrame({"BIC": model.bic, "AIC": model.aic}, index)

    def plot(self) -> Figure:
        """Draw BIC and AIC against the count of components, with their minima marked.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        from fedlib.figures.scores import criteria

        frame, model = self.to_frame(), self.model_
        best = {"BIC": int(model.bic.argmin()), "AIC": int(model.aic.argmin())}
        return criteria(frame, best)
