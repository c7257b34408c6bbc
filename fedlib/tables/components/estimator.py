"""The estimator of principal components."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from fedlib.core.array_types import Floats
from fedlib.core.column_names import as_table, by_client
from fedlib.core.estimator import EXAMPLE_BOUNDS, Example
from fedlib.core.parameters import KW_ONLY, Flag
from fedlib.core.protocol import Flow, Transport
from fedlib.protection.estimator import ProtectedFederated, is_protected
from fedlib.tables.components.flow import Components, PCAClient, PCAModel, check_n_components, pca

if TYPE_CHECKING:
    from sklearn.decomposition import PCA


class FederatedPCA(ProtectedFederated):
    """Principal components over clients that hold different rows of the same features.

    The result is that of scikit-learn's `PCA` on the pooled rows, up to rounding.
    `FederatedPipeline` with ``pca=`` computes the components in the same run as a protocol on the
    transformed rows.

    Attributes
    ----------
    components_ : array (n_components, n_features)
        Orthogonal rows of length 1, by falling variance. The largest entry of each is positive.
    explained_variance_ : array (n_components,)
        The variance along each component, divided by the count of rows less 1.
    explained_variance_ratio_ : array (n_components,)
        These as fractions of the variance of all features; 0 if all rows are equal.
    intervals_ : dict of str to array (n_components, 2)
        With `epsilon`, the ends of the intervals that contain the true ``"variance"`` and
        ``"fraction"`` of each component with a probability of 99%. A variance or a fraction is NaN,
        with a warning, if the noise hides it: its interval begins at 0, or no rows can have it.
    singular_values_ : array (n_components,)
        The singular values of the centred rows.
    mean_ : array (n_features,)
        The mean of all rows.
    n_components_ : int
        The count of components.
    n_samples_ : int
        The count of rows of all clients; with noise, an estimate.
    noise_variance_ : float
        The mean variance along the components that are left out, 0 if there are none; NaN if noise
        hides it.
    n_features_in_ : int
        The count of features.
    feature_names_in_ : array (n_features,) of str
        The names of the columns; only if the clients' columns have names.
    model_ : PCAModel
        The fitted model, from which the attributes above are derived.
    ledger_ : Ledger
        The messages of the run and their sizes.

    Raises
    ------
    ValueError
        When a parameter is out of range, there are fewer features or rows than components, or fewer
        than two rows.

    See Also
    --------
    FederatedPipeline : has principal components as one of its steps.
    sklearn.decomposition.PCA : principal components of pooled data.

    Notes
    -----
    The explained variances are those of the pooled rows up to the rounding of the largest one.
    Where two variances are nearly equal, their components can be any two directions of one plane.
    Features of other units have other variances: scale them first, as a pipeline does with
    ``scale="standard"``.

    *Disclosure.* A client discloses its count of rows, its mean and its covariance; of a client
    with one row, the row. With ``secure=True``, the server sees their sums over all clients, whose
    rows are clipped to the bounds. With `epsilon`, the sums have noise. It grows with the number of
    pairs of features and with the width of the bounds, so narrow bounds give better components.
    With ``whiten=True``, the coordinates along a component whose variance is NaN are NaN.

    *Cost.* Two requests for data, or one with `epsilon`. A reply has a number for each
    pair of features: 40 kB for 100 features. The time is O(n_rows n_features²) per client and
    O(n_features³) at the server.

    Source: K. Pearson, On lines and planes of closest fit to systems of points in space, 1901.

    Examples
    --------
    Rows of two clients near a line.

    >>> from fedlib import FederatedPCA
    >>> parts = [[[0.0, 0.0], [1.0, 2.1]], [[2.0, 3.9], [3.0, 6.0]]]
    >>> model = FederatedPCA(1).fit(parts)
    >>> model.components_.round(2), model.explained_variance_ratio_.round(3)
    (array([[0.45, 0.89]]), array([1.]))
    >>> model.transform([[1.5, 3.0]]).round(6)
    array([[0.]])
    """

    name = "pca"
    example = Example("rows", {"n_components": 1}, {"bounds": EXAMPLE_BOUNDS})
    client_class = PCAClient
    has_labels = False
    n_components: Annotated[
        Components,
        """
        The count of components, at least 1; or, in (0, 1), the fraction of the variance that they
        explain at least. By default all.
        """,
    ] = None
    _: KW_ONLY
    whiten: Annotated[
        Flag,
        "Whether `transform` divides by the deviations, so that all components have variance 1.",
    ] = False

    def _flow(self) -> Flow[PCAModel]:
        if not is_protected(self):
            self._refuse_limits()
            return pca(self.n_components, self.whiten, self._sums())
        bounds = self._bounds()
        check_n_components(self.n_components, bounds.limits.shape[1])
        aggregation = self._aggregation(1, bounds)
        return pca(self.n_components, self.whiten, aggregation, bounds.limits)

    def _set_model(self, model: PCAModel) -> None:
        super()._set_model(model)
        self.mean_, self.components_ = model.mean, model.components
        self.explained_variance_ = model.variances
        self.explained_variance_ratio_ = model.variances / (model.total_variance or 1.0)
        if model.intervals.size:  # with noise
            self.intervals_ = dict(zip(("variance", "fraction"), model.intervals, strict=True))
            impossible = self.explained_variance_ratio_ > 1
            self.explained_variance_ratio_[impossible] = np.nan
        self.singular_values_ = np.sqrt(model.variances * (model.n_rows - 1))
        self.n_components_, self.n_features_in_ = model.components.shape
        self.n_samples_ = model.n_rows
        n_others = min(model.n_rows, model.n_features) - self.n_components_
        rest = model.total_variance - float(model.variances.sum())
        if rest < 0:
            rest = np.nan if model.intervals.size else 0.0
        self.noise_variance_ = rest / n_others if n_others > 0 else 0.0

    def transform(self, X: ArrayLike) -> Floats:
        """Return the coordinates of rows along the components.

        Parameters
        ----------
        X : array-like (n_rows, n_features)
            Finite numbers.

        Returns
        -------
        array (n_rows, n_components)

        Raises
        ------
        ValueError
            When the rows are not finite or have other features than those of `fit`.
        NotFittedError
            When called before `fit`.
        """
        points = self._new_points(X)
        return self.model_.transform(points)

    def inverse_transform(self, X: ArrayLike) -> Floats:
        """Return the rows of these coordinates; the components that are left out count as 0.

        Parameters
        ----------
        X : array-like (n_rows, n_components)

        Returns
        -------
        array (n_rows, n_features)

        Raises
        ------
        ValueError
            When there is another count of components.
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        coordinates = np.asarray(as_table(X), np.float64)
        if coordinates.ndim != 2 or coordinates.shape[1] != self.n_components_:
            raise ValueError(
                f"X must have {self.n_components_} columns, one per component, got the shape"
                f" {coordinates.shape}"
            )
        rows: Floats = (coordinates * self.model_.scale) @ self.components_ + self.mean_
        return rows

    def fit_transform(self, parts: Any, **options: Any) -> list[Floats]:
        """Fit the components to a list of parts, and return the coordinates of each part.

        Parameters
        ----------
        parts : list, mapping or Series
            As for `fit`.
        **options
            Those of `fit`.

        Returns
        -------
        list of array (n_rows, n_components)

        Raises
        ------
        ValueError
            When ``parts`` is a transport, before any message; and as `fit`.
        """
        if isinstance(parts, Transport):
            raise ValueError(
                "fit_transform needs the data of all clients as a list of parts: over a transport"
                f" the rows stay at the sites; got {type(parts).__name__}"
            )
        self.fit(parts, **options)
        return [self.transform(part) for part in by_client(parts).values()]

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the components: ``pca0``, ``pca1`` and so on.

        Parameters
        ----------
        input_features : ignored

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        return np.array(self.model_.names, dtype=object)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per component: its variance, the fraction of all variance, and entries.

        With `epsilon`, the ends of the intervals of the variance and the fraction follow.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        names = getattr(self, "feature_names_in_", range(self.n_features_in_))
        described = {
            "variance": self.explained_variance_,
            "fraction": self.explained_variance_ratio_,
            **{str(name): column for name, column in zip(names, self.components_.T, strict=True)},
        }
        for name, ends in getattr(self, "intervals_", {}).items():
            described |= {f"{name} (low)": ends[:, 0], f"{name} (high)": ends[:, 1]}
        return pd.DataFrame(described, index=pd.Index(self.model_.names, dtype=object))

    def to_sklearn(self) -> PCA:
        """Return a fitted `sklearn.decomposition.PCA` that transforms in the same way.

        Raises
        ------
        NotFittedError
            When called before `fit`.

        Examples
        --------
        >>> from fedlib import FederatedPCA
        >>> model = FederatedPCA(1).fit([[[0.0, 0.0], [1.0, 2.0]], [[4.0, 3.0]]])
        >>> bool(np.allclose(model.to_sklearn().transform([[1, 1]]), model.transform([[1, 1]])))
        True
        """
        check_is_fitted(self, "model_")
        from sklearn.decomposition import PCA

        fitted = PCA(self.n_components_, whiten=self.model_.whiten)
        for name in (
            "mean_", "components_", "explained_variance_", "explained_variance_ratio_",
            "singular_values_", "n_components_", "n_samples_", "noise_variance_", "n_features_in_",
            "feature_names_in_",
        ):  # fmt: skip
            if hasattr(self, name):
                setattr(fitted, name, getattr(self, name))
        return fitted
