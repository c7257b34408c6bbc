"""Federated principal components: the mean and the scatter of all rows, and their eigenvectors.

Without protection there are two sums, so that no digits cancel out: the first finds the mean, and
the second adds up the products of the features about it. Rows of masked and noisy sums are clipped
to bounds and scaled, so that a single sum has both; the one before a masked sum finds its digits.
`fedlib.tables.pipeline` asks the same requests when the components are one of its steps.

Source: K. Pearson, On lines and planes of closest fit to systems of points in space, 1901.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from numbers import Integral, Real
from typing import Annotated, Any, cast

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.decomposition import PCA
from sklearn.utils.validation import check_is_fitted

from fedlib.core.aggregation import Aggregation
from fedlib.core.agreement import agree_on_features
from fedlib.core.array_types import Floats, Ints
from fedlib.core.bounds import MAX_BOUND
from fedlib.core.client import Unanswerable, handles, partitions
from fedlib.core.messages import Array, Message, MessageError
from fedlib.core.names import by_client
from fedlib.core.parameters import KW_ONLY, Flag, Kind
from fedlib.core.points import MAX_COORDINATE
from fedlib.core.protocol import Flow, Transport
from fedlib.core.replies import Replies
from fedlib.core.threads import one_thread
from fedlib.core.validation import Interval
from fedlib.core.work import MAX_WORK, problem_of_work
from fedlib.protection.estimator import ProtectedFederated, is_protected
from fedlib.protection.privacy import BoundsArray, Sensitivity, from_unit, to_unit
from fedlib.protection.row_sums import FIRST_ROWS, RowTotals, SumRows
from fedlib.protection.secure.points import (
    MAX_POINTS,
    MAX_SUM,
    DescribedPoints,
    DescribeFeatures,
    agree_on_bounded_features,
)

__all__ = ["FederatedPCA", "PCAModel", "find_scatter", "principal_components"]

ROUNDING = 1e-6  # relative, of the sums of an honest client
UNDERFLOW = 1e-150  # below it, the square of a difference is 0

# Messages ----------------------------------------------------------------------------------------


def n_pairs(n_features: int) -> int:
    """Return the count of pairs of features, each with itself, too."""
    return n_features * (n_features + 1) // 2


class Scatter(Message):
    """The number of a client's points, and the sums of differences from a centre and products."""

    discloses = (
        "the number of a client's points, and the sums of the features and of their products; of a"
        " single point, the point itself"
    )
    n_points: Annotated[int, msgspec.Meta(ge=0, le=MAX_POINTS)]
    sums: Annotated[np.ndarray, Array("float64", ("features",), -MAX_SUM, MAX_SUM)]
    products: Annotated[np.ndarray, Array("float64", ("pairs",), -MAX_SUM, MAX_SUM)]


class SumScatter(Message):
    """Sum your points' differences from a centre, and the products of each two features."""

    discloses = "the mean of all clients' points"
    reply = Scatter
    centre: Annotated[np.ndarray, Array("float64", ("features",), -4 * MAX_BOUND, 4 * MAX_BOUND)]

    def work(self) -> float:
        return float(len(self.centre))

    def reply_lengths(self) -> dict[str, int]:
        return {"features": len(self.centre), "pairs": n_pairs(len(self.centre))}

    def accept(self, reply: Message) -> Message:
        received = cast(Scatter, reply)
        lengths = {"features": len(received.sums), "pairs": len(received.products)}
        if lengths != self.reply_lengths():
            raise MessageError(f"Scatter must have {self.reply_lengths()}, got {lengths}")
        products, n = square(received.products, len(self.centre)), received.n_points
        squares, reach = np.diagonal(products), MAX_COORDINATE + np.abs(self.centre)
        if (squares < 0).any() or (squares > (1 + ROUNDING) * n * np.square(reach)).any():
            raise MessageError("Scatter.products must have squares of points within ±1e100")
        norms = np.sqrt(squares) + sqrt(n) * UNDERFLOW
        largest = (1 + ROUNDING) * norms
        if (np.abs(received.sums) > sqrt(n) * largest).any():
            raise MessageError("Scatter.sums must fit the squares in products")
        if (np.abs(products) > largest[:, np.newaxis] * norms).any():
            raise MessageError("Scatter.products must be at most those of the features' squares")
        return reply


class SumClippedScatter(SumRows):
    """Clip your points to bounds, scale them to [-1, 1], and sum them and the products."""

    discloses = "the bounds of the points"
    bounds: BoundsArray

    @property
    def n_values(self) -> int:
        n_features = self.bounds.shape[1]
        return 1 + n_features + n_pairs(n_features)

    def work(self) -> float:
        return float(self.bounds.shape[1])

    def sensitivity(self) -> Sensitivity:
        """Return the largest change: a row adds 1, and values and products within ±1."""
        return Sensitivity(float(self.n_values), sqrt(self.n_values), self.n_values)

    def terms(self, X: Floats) -> Floats:
        rows = to_unit(X, self.bounds)
        first, second = np.triu_indices(rows.shape[1])
        return np.hstack([np.ones((len(rows), 1)), rows, rows[:, first] * rows[:, second]])


def square(pairs: Floats, n_features: int) -> Floats:
    """Return the symmetric matrix from its upper triangle, row by row.

    Examples
    --------
    >>> square(np.array([1.0, 2.0, 3.0]), 2)
    array([[1., 2.],
           [2., 3.]])
    """
    matrix = np.empty((n_features, n_features))
    upper = np.triu_indices(n_features)
    matrix[upper] = pairs
    matrix.T[upper] = pairs
    return matrix


# Server ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PCAModel:
    """Principal components.

    Attributes
    ----------
    mean : array (n_features,)
    components : array (n_components, n_features)
        Orthogonal rows of length 1, by falling variance.
    variances : array (n_components,)
        The variance of the rows along each component, divided by ``n_rows - 1``.
    total_variance : float
        The sum of the variances of all features.
    n_rows : int
        The number of rows of all clients; with noise, an estimate.
    whiten : bool
        Whether transformed rows have variance 1.
    """

    mean: Annotated[Floats, Array("float64", ("features",))]
    components: Annotated[Floats, Array("float64", ("components", "features"))]
    variances: Annotated[Floats, Array("float64", ("components",), ge=0)]
    total_variance: float
    n_rows: int
    whiten: bool = False

    @property
    def n_features(self) -> int:
        """The number of features of the points."""
        return len(self.mean)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the components, ``pca0`` and so on."""
        return tuple(f"pca{i}" for i in range(len(self.components)))

    @property
    def scale(self) -> Floats:
        """What the coordinates along the components are divided by (n_components,)."""
        if not self.whiten:
            return np.ones(len(self.components))
        return np.maximum(np.sqrt(self.variances), np.finfo(np.float64).eps)

    @one_thread()
    def transform(self, X: Floats) -> Floats:
        """Return the coordinates (n_points, n_components) of points along the components.

        Raises
        ------
        ValueError
            When the points have a different number of features.
        """
        if X.shape[1] != self.n_features:
            raise ValueError(f"X must have {self.n_features} features, got {X.shape[1]}")
        coordinates: Floats = (X - self.mean) @ self.components.T / self.scale
        return coordinates

    def limits(self, low: Floats, high: Floats) -> Floats:
        """Return the limits (2, n_components) of the coordinates of points between limits."""
        ends = [self.components * (end - self.mean) for end in (low, high)]
        between: Floats = np.array([np.minimum(*ends).sum(axis=1), np.maximum(*ends).sum(axis=1)])
        return between / self.scale


def find_scatter(
    aggregation: Aggregation, n_features: int, bounds: Floats | None = None
) -> Flow[tuple[int, Floats, Floats]]:
    """Return the number of rows, their mean and their covariance, from sums over the clients.

    Parameters
    ----------
    aggregation : Aggregation
    n_features : int
    bounds : array (2, n_features), optional
        The limits of the rows, which masked and noisy sums need.

    Raises
    ------
    ValueError
        When there are too many features, or, without noise, fewer than two rows.
    """
    if bounds is not None:
        return (yield from _clipped_scatter(aggregation, bounds))
    centre = np.zeros(n_features)
    reported: dict[str, int] = {}

    def other_rows(replies: Replies) -> dict[str, str]:
        changed = {
            name: f"Scatter.n_points must be {n} as before, got {reply.n_points}"
            for name, reply in replies.items()
            if (n := reported.get(name, reply.n_points)) != reply.n_points
        }
        reported.update({name: reply.n_points for name, reply in replies.items()})
        return changed

    for _ in range(2):  # about 0, and then about the mean, so that no digits cancel out
        request = SumScatter(centre)
        _check_size(request)
        total, _ = yield from aggregation.sum(request, other_rows)
        _check_rows(total.n_points)
        shift = total.sums / total.n_points
        centre = centre + shift
    about_mean = square(total.products, n_features) - np.outer(total.sums, shift)
    return total.n_points, centre, about_mean / (total.n_points - 1)


def _clipped_scatter(aggregation: Aggregation, bounds: Floats) -> Flow[tuple[int, Floats, Floats]]:
    """Return the same from sums of rows that are clipped to bounds and scaled."""
    n_features, n_rows = bounds.shape[1], float(FIRST_ROWS)
    for _ in range(2 if aggregation.privacy is None else 1):  # the first one finds the digits
        privacy = aggregation.privacy
        request = SumClippedScatter(bounds, privacy=privacy, n_rows=round(n_rows))
        _check_size(request)
        total, _ = yield from aggregation.sum(request)
        count, sums, pairs = np.split(total.values, [1, 1 + n_features])
        n_rows = float(count[0])
        if privacy is None:
            _check_rows(n_rows)
    n_rows = max(n_rows, 2.0)
    mean, half = np.clip(sums / n_rows, -1, 1), (bounds[1] - bounds[0]) / 2
    about_mean = square(pairs, n_features) - n_rows * np.outer(mean, mean)
    covariance = about_mean / (n_rows - 1) * half[:, np.newaxis] * half
    return round(n_rows), from_unit(mean, bounds), covariance


def _check_size(request: Message) -> None:
    if problem := problem_of_work(request, MAX_WORK):
        raise ValueError(f"the features are too many for principal components: {problem}")


def _check_rows(n_rows: float) -> None:
    if n_rows < 2:
        raise ValueError(
            f"principal components need at least 2 rows of all clients, got {n_rows:.0f}"
        )


@one_thread()
def principal_components(
    n_rows: int, mean: Floats, covariance: Floats, n_components: float | None, whiten: bool = False
) -> PCAModel:
    """Return the principal components of rows with this mean and covariance.

    The largest entry of each component is positive, as in scikit-learn.

    Parameters
    ----------
    n_rows : int
    mean : array (n_features,)
    covariance : array (n_features, n_features)
    n_components : int, float or None
        As in `FederatedPCA`.
    whiten : bool, default=False

    Raises
    ------
    ValueError
        When there are fewer features or rows than components.

    Examples
    --------
    >>> covariance = np.array([[4.0, 0.0], [0.0, 9.0]])
    >>> principal_components(5, np.zeros(2), covariance, 1).components
    array([[0., 1.]])
    """
    most = min(n_rows, len(mean))
    if n_components is not None and n_components > most:
        raise ValueError(
            "n_components must be at most the number of features and of rows of all clients,"
            f" {most}, got {n_components}"
        )
    values, vectors = np.linalg.eigh(covariance)
    variances, components = np.maximum(values[::-1], 0.0), vectors.T[::-1]
    total = float(variances.sum())
    n_kept = most if n_components is None else int(n_components)
    if n_components is not None and n_components < 1:
        known = np.cumsum(variances) / total if total else np.ones(len(variances))
        n_kept = min(int(np.searchsorted(known, n_components, side="right")) + 1, most)
    kept = components[:n_kept]
    largest = np.take_along_axis(kept, np.abs(kept).argmax(axis=1)[:, np.newaxis], axis=1)
    kept = kept * np.where(largest < 0, -1.0, 1.0)
    return PCAModel(mean, kept, variances[:n_kept].copy(), total, n_rows, whiten)


def pca(
    n_components: float | None,
    whiten: bool,
    aggregation: Aggregation,
    bounds: Floats | None = None,
) -> Flow[PCAModel]:
    """Return the server flow; for the parameters see `FederatedPCA`."""
    if bounds is None:
        replies = yield from aggregation.describe(DescribeFeatures())
        n_features = agree_on_features(replies)
    else:
        n_features = bounds.shape[1]
        yield from agree_on_bounded_features(aggregation, n_features)
    check_n_components(n_components, n_features)
    found = yield from find_scatter(aggregation, n_features, bounds)
    return principal_components(*found, n_components, whiten)


def check_n_components(n_components: float | None, n_features: int) -> None:
    """Raise ValueError when there are fewer features than components."""
    if n_components is not None and n_components > n_features:
        raise ValueError(
            f"n_components must be at most the number of features, {n_features}, got {n_components}"
        )


# Client ------------------------------------------------------------------------------------------


def scatter(X: Floats, request: SumScatter) -> Scatter:
    """Return the sums of a client's points (n_points, n_features).

    Raises
    ------
    Unanswerable
        A ValueError: when the points have another number of features.
    """
    if X.shape[1] != len(request.centre):
        raise Unanswerable(
            f"centre must have the {X.shape[1]} features of the points, got {len(request.centre)}"
        )
    shifted = X - request.centre
    products = (shifted.T @ shifted)[np.triu_indices(X.shape[1])]
    return Scatter(len(X), shifted.sum(axis=0), products)


class PCAClient(DescribedPoints):
    """A client that holds points; for the parameter see `fedlib.core.estimator.PointsClient`.

    Raises
    ------
    ValueError
        When the points are not a table of finite numbers within ±1e100.
    """

    limited = True

    @handles(SumScatter)
    def sum_scatter(self, request: SumScatter) -> Scatter:
        return scatter(self.X, request)

    @handles(SumClippedScatter)
    def sum_clipped_scatter(self, request: SumClippedScatter) -> RowTotals:
        return request.total(self.X, self.n_shares)

    @partitions(SumScatter, SumClippedScatter)
    def all_points(self, request: SumScatter | SumClippedScatter) -> Sequence[Ints]:
        """Return one group of all points."""
        return [np.zeros(len(self.X), np.int64)]


# Estimator ---------------------------------------------------------------------------------------

Components = Annotated[
    float | None,
    Interval(Integral, 1, None, closed="left"),
    Interval(Real, 0, 1, closed="neither"),
    None,
    Kind("int, float or None"),
]


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
        The variance along each component, divided by the number of rows less 1.
    explained_variance_ratio_ : array (n_components,)
        These as fractions of the variance of all features; 0 if all rows are equal.
    singular_values_ : array (n_components,)
        The singular values of the centred rows.
    mean_ : array (n_features,)
        The mean of all rows.
    n_components_ : int
        The number of components.
    n_samples_ : int
        The number of rows of all clients; with noise, an estimate.
    noise_variance_ : float
        The mean variance along the components that are left out, 0 if there are none.
    n_features_in_ : int
        The number of features.
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

    *Disclosure.* A client discloses its number of rows, its mean and its covariance; of a client
    with one row, the row. With ``secure=True``, the server sees their sums over all clients, whose
    rows are clipped to the bounds. With `epsilon`, the sums have noise. It grows with the number of
    pairs of features and with the width of the bounds, so narrow bounds give better components.

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
    client_class = PCAClient
    has_labels = False
    n_components: Annotated[
        Components,
        """
        The number of components, at least 1; or, in (0, 1), the fraction of the variance that they
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
        self.singular_values_ = np.sqrt(model.variances * (model.n_rows - 1))
        self.n_components_, self.n_features_in_ = model.components.shape
        self.n_samples_ = model.n_rows
        n_others = min(model.n_rows, model.n_features) - self.n_components_
        rest = max(model.total_variance - float(model.variances.sum()), 0.0)
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
            When there is another number of components.
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        coordinates = np.asarray(X, np.float64)
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
        fitted = PCA(self.n_components_, whiten=self.model_.whiten)
        for name in (
            "mean_", "components_", "explained_variance_", "explained_variance_ratio_",
            "singular_values_", "n_components_", "n_samples_", "noise_variance_", "n_features_in_",
            "feature_names_in_",
        ):  # fmt: skip
            if hasattr(self, name):
                setattr(fitted, name, getattr(self, name))
        return fitted
