"""Scores of a clustering that need no true classes, and profiles of its clusters.

Clients hold different rows of the same features, and the cluster of each row. The first round sums
each cluster's rows, which gives the centroids, the spreads and the Calinski-Harabasz index. The
second round measures distances to the centroids, which gives the simplified silhouette and the
Davies-Bouldin index. No round compares two rows.

Sources: T. Caliński, J. Harabasz, A dendrite method for cluster analysis, Communications in
Statistics 3, 1974. D. Davies, D. Bouldin, A cluster separation measure, IEEE Transactions on
Pattern Analysis and Machine Intelligence 1, 1979. E. Hruschka, L. de Castro, R. Campello,
Evolutionary algorithms for clustering gene-expression data, ICDM 2004, for the simplified
silhouette.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist
from sklearn.utils.validation import check_is_fitted

from fedlib.core.aggregation import agree_on_features, settle
from fedlib.core.array_fields import MAX_COUNT, Array, Checked
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import Client, handles, partitions
from fedlib.core.columns import MAX_NUMBER
from fedlib.core.estimator import Example, Federated
from fedlib.core.parameters import KW_ONLY, Interval, StrOptions
from fedlib.core.points import PointsClient
from fedlib.core.protocol import Flow, GroupsTooSmall, Replies
from fedlib.core.targets import read_labels
from fedlib.evaluation.messages import (
    MAX_CLUSTERS,
    ClusterDistances,
    LabelledMoments,
    MeasureDistances,
    Noise,
    SumLabelledRows,
)
from fedlib.tables.summary.messages import MAX_ROWS, ask, repeat

if TYPE_CHECKING:
    from matplotlib.figure import Figure


BLOCK = 2**22  # distances that a client computes at once
ROUNDING, SLACK = 1e-6, 1e-9  # relative errors of distances and of points due to rounding


@dataclass(frozen=True)
class ClusterScores(Checked):
    """The scores of a clustering and the profiles of its clusters.

    Attributes
    ----------
    features : tuple of str
        The names of the features; empty if they have none.
    labels, counts : array (n_clusters,) of int64
        The clusters, sorted, and the count of rows in each.
    means, stds : array (n_clusters, n_features)
        The mean and the standard deviation of each cluster, divided by ``counts - 1``.
    silhouettes : array (n_clusters,)
        The mean simplified silhouette of each cluster's rows.
    mean, std : array (n_features,)
        Those of all rows that count.
    silhouette, davies_bouldin, calinski_harabasz : float
        The scores; NaN if there are fewer than two clusters.
    n_noise, n_withheld : int
        The count of rows that are noise, and of rows in clusters that clients have withheld.
    """

    features: tuple[str, ...]
    labels: Annotated[Ints, Array("int64", ("clusters",), -1, MAX_COUNT)]
    counts: Annotated[Ints, Array("int64", ("clusters",), 0, MAX_COUNT)]
    means: Floats
    stds: Floats
    silhouettes: Floats
    mean: Floats
    std: Floats
    silhouette: float
    davies_bouldin: float
    calinski_harabasz: float
    n_noise: int
    n_withheld: int


def clustering_score(noise: Noise, min_group_size: int, max_clusters: int) -> Flow[ClusterScores]:
    """Return the server flow; for the parameters see `FederatedClusteringScore`."""

    def attempt() -> Flow[ClusterScores]:
        replies = yield SumLabelledRows(noise, min_group_size, max_clusters)
        replies = yield from settle(replies, agree_on_features)
        labels, counts, means, squares = _pool(replies)
        mean, total = np.full((2, means.shape[1]), np.nan)
        rows, enough = counts.sum(), len(labels) > 1
        if len(labels):
            _, (mean,), (total,) = _combine(np.zeros_like(labels), counts, means, squares)
        distances, silhouettes = np.full((2, len(labels)), np.nan)
        if enough:
            request = MeasureDistances(noise, min_group_size, labels, means)
            try:
                distances, silhouettes = yield from _measure(request, replies, counts)
            except GroupsTooSmall as error:
                warnings.warn(f"only Calinski-Harabasz is known: {error}", stacklevel=2)
        return ClusterScores(
            next((tuple(one.features) for one in replies.values() if one.features), ()),
            labels,
            counts,
            means,
            _std(squares, counts[:, np.newaxis]),
            silhouettes,
            mean,
            _std(total, rows),
            float((counts * silhouettes).sum() / rows) if enough else np.nan,
            _davies_bouldin(means, distances) if enough else np.nan,
            _calinski_harabasz(counts, means - mean, squares.sum()) if enough else np.nan,
            sum(reply.n_noise for reply in replies.values()),
            sum(reply.n_withheld for reply in replies.values()),
        )

    return (yield from repeat(attempt))


def _pool(replies: Mapping[str, LabelledMoments]) -> tuple[Ints, Ints, Floats, Floats]:
    """Return the clusters of all clients: labels, counts, means and squared deviations."""
    parts = list(replies.values())
    labels, codes = np.unique(np.concatenate([one.labels for one in parts]), return_inverse=True)
    counts, means, squares = (
        np.concatenate([getattr(one, name) for one in parts])
        for name in ("counts", "means", "squares")
    )
    return labels, *_combine(codes, counts, means, squares)


def _combine(
    codes: Ints, counts: Ints, means: Floats, squares: Floats
) -> tuple[Ints, Floats, Floats]:
    """Return counts, means and squared deviations of unions of groups; ``codes`` are the unions."""
    n_unions = int(codes.max(initial=-1)) + 1
    n = np.zeros(n_unions, np.int64)
    np.add.at(n, codes, counts)
    mean, square = np.zeros((2, n_unions, means.shape[1]))
    np.add.at(mean, codes, counts[:, np.newaxis] * means)
    mean /= n[:, np.newaxis]
    np.add.at(square, codes, squares + counts[:, np.newaxis] * np.square(means - mean[codes]))
    return n, mean, square


def _measure(
    request: MeasureDistances, described: Replies, counts: Ints
) -> Flow[tuple[Floats, Floats]]:
    """Return each cluster's mean distance from the centroid and its mean silhouette."""

    def contradiction(name: str, reply: ClusterDistances) -> str | None:
        return _contradiction(request, described[name], reply)

    replies = yield from ask(request, described, contradiction)
    distances = np.sum([reply.distances for reply in replies.values()], axis=0) / counts
    silhouettes = np.sum([reply.silhouettes for reply in replies.values()], axis=0) / counts
    return distances, np.where(counts > 1, silhouettes, 0.0)


def _contradiction(
    request: MeasureDistances, moments: LabelledMoments, reply: ClusterDistances
) -> str | None:
    """Return why distances contradict the client's moments, or None.

    The mean distance is at least the distance of the mean, and at most the root of the mean square.
    """
    places = np.searchsorted(request.labels, moments.labels)
    others = np.ones(len(request.labels), bool)
    others[places] = False
    if reply.distances[others].any() or reply.silhouettes[others].any():
        return " must be 0 for a cluster without rows"
    n = moments.counts
    if (np.abs(reply.silhouettes[places]) > n * (1 + ROUNDING)).any():
        return ".silhouettes must be at most the number of rows"
    centres = request.centres[places]
    shift = np.linalg.norm(moments.means - centres, axis=1)
    mean_square = moments.squares.sum(axis=1) / n + np.square(shift)
    size = np.linalg.norm(moments.means, axis=1) + np.linalg.norm(centres, axis=1)
    low = shift * (1 - ROUNDING) - SLACK * size
    high = np.sqrt(mean_square) * (1 + ROUNDING) + SLACK * size
    mean = reply.distances[places] / n
    if ((mean < low) | (mean > high)).any():
        return ".distances must fit the means and the spreads reported before"
    return None


def _std(squares: Floats, counts: Any) -> Floats:
    """Return standard deviations; NaN for fewer than two rows."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt(np.where(counts > 1, squares / (counts - 1.0), np.nan))


def _davies_bouldin(centres: Floats, distances: Floats) -> float:
    """Return the index of Davies and Bouldin, with the conventions of scikit-learn."""
    between = cdist(centres, centres)
    if np.allclose(distances, 0) or np.allclose(between, 0):
        return 0.0
    between[between == 0] = np.inf
    return float(np.max((distances[:, np.newaxis] + distances) / between, axis=1).mean())


def _calinski_harabasz(counts: Ints, shifts: Floats, within: float) -> float:
    """Return the index of Caliński and Harabasz, with the conventions of scikit-learn."""
    n, k = int(counts.sum()), len(counts)
    if n == k:
        return np.nan
    between = (counts * np.square(shifts).sum(axis=1)).sum()
    return float(between * (n - k) / (within * (k - 1))) if within else 1.0


class ClusteringScoreClient(PointsClient):
    """A client that holds points and the cluster of each.

    Parameters
    ----------
    part : tuple (X, labels)
        ``X`` (n_points, n_features): numbers within ±1e100. ``labels`` (n_points,): the clusters,
        integers from -1; -1 is noise. Clusters with the same number belong together at all
        clients.

    Attributes
    ----------
    supervised : bool
        True: a site's labels are in the column that it names as the target.

    Raises
    ------
    ValueError
        When the part is not such a tuple.
    """

    supervised: ClassVar[bool] = True

    def __init__(self, part: tuple[ArrayLike, ArrayLike]):
        if not isinstance(part, tuple | list) or len(part) != 2:
            raise ValueError("a part must be (X, labels), without weights")
        super().__init__(part[0])
        if np.abs(self.X).max(initial=0) > MAX_NUMBER:
            raise ValueError(f"X must lie within ±{MAX_NUMBER:g}")
        self.labels = read_labels(part[1], n_rows=len(self.X))

    def _groups(self, request: SumLabelledRows | MeasureDistances) -> tuple[Floats, Ints, int]:
        """Return the rows that count, their labels, and the count of rows that are withheld."""
        counted = np.ones(len(self.X), bool)
        if request.noise == "exclude":
            counted = self.labels >= 0
        X, labels = self.X[counted], self.labels[counted]
        codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)[1:]
        large = (sizes >= request.min_group_size)[codes]
        return X[large], labels[large], int((~large).sum())

    def _placed(self, request: MeasureDistances) -> tuple[Floats, Ints]:
        """Return the rows that count, and the place of each one's cluster in the request."""
        X, clusters, _ = self._groups(request)
        if not np.isin(clusters, request.labels).all():
            raise ValueError("MeasureDistances.labels must contain all clusters described before")
        return X, np.searchsorted(request.labels, clusters)

    @handles(SumLabelledRows)
    def sum_labelled_rows(self, request: SumLabelledRows) -> LabelledMoments:
        X, clusters, n_withheld = self._groups(request)
        labels, codes, counts = np.unique(clusters, return_inverse=True, return_counts=True)
        means = _sums(codes, X, len(labels)) / counts[:, np.newaxis]
        error = _sums(codes, X - means[codes], len(labels)) / counts[:, np.newaxis]
        rounding = np.finfo(float).eps * np.abs(X).max(axis=0, initial=0)
        means += np.where(np.abs(error) > rounding, error, 0)  # equal centroids stay equal
        squares = _sums(codes, np.square(X - means[codes]), len(labels))
        n_noise = int((self.labels < 0).sum())
        if n_noise < request.min_group_size:  # they are among the rows that are withheld
            n_withheld += n_noise if request.noise == "exclude" else 0
            n_noise = 0
        return LabelledMoments(labels, counts, means, squares, n_noise, n_withheld, self.features)

    @partitions(SumLabelledRows, terms=())
    def clusters(self, request: SumLabelledRows) -> Iterable[Ints]:
        sizes = np.unique(self.labels, return_inverse=True, return_counts=True)[1:]
        large = sizes[1][sizes[0]] >= request.min_group_size
        withheld = self.labels.max(initial=-1) + 2
        yield np.where(large, self.labels + 1, withheld)

    @handles(MeasureDistances)
    def measure_distances(self, request: MeasureDistances) -> ClusterDistances:
        X, codes = self._placed(request)
        n_clusters = len(request.labels)
        distances, silhouettes = np.zeros((2, len(X)))
        step = max(1, BLOCK // n_clusters)
        for first in range(0, len(X), step):
            rows = slice(first, first + step)
            apart = cdist(X[rows], request.centres)
            places = np.arange(len(apart)), codes[rows]
            near = apart[places]
            apart[places] = np.inf
            other = apart.min(axis=1)
            largest = np.maximum(near, other)
            distances[rows] = near
            silhouettes[rows] = (other - near) / np.where(largest > 0, largest, 1.0)
        sums = _sums(codes, np.column_stack([distances, silhouettes]), n_clusters)
        return ClusterDistances(sums[:, 0].copy(), sums[:, 1].copy())


def _sums(codes: Ints, values: Floats, n_groups: int) -> Floats:
    """Return the sum of the rows of each group (n_groups, n_features)."""
    columns = [np.bincount(codes, column, n_groups) for column in values.T]
    return np.array(columns, np.float64).reshape(values.shape[1], n_groups).T.copy()


class FederatedClusteringScore(Federated):
    """Scores of a clustering without true classes, and profiles of its clusters.

    Attributes
    ----------
    model_ : ClusterScores
        All scores and profiles.
    scores_ : dict of str to float
        ``"simplified silhouette"``, in [-1, 1], larger is better; ``"Davies-Bouldin"``, at least 0,
        smaller is better; ``"Calinski-Harabasz"``, at least 0, larger is better. NaN if there are
        fewer than two clusters, or the last one also if every row is a cluster. The first two are
        also NaN, with a warning, if a site has a minimum count (`fedlib.protection.policy`).
    n_noise_, n_withheld_ : int
        The count of rows that are noise, and of rows that clients have withheld.
    n_features_in_ : int
        The count of features.
    feature_names_in_ : array (n_features,) of str
        The names of the columns; only if the clients' columns have names.
    ledger_ : Ledger
        The messages of the run and their sizes.

    Raises
    ------
    ValueError
        When a parameter is out of range.

    See Also
    --------
    FederatedEvaluation : scores of predictions, when the true classes are known.
    FederatedPipeline : scales the features first; then the scores are those of the scaled rows.

    Notes
    -----
    A part is ``(X, labels)``. The labels can come from any clustering whose clusters have the same
    numbers at all clients.

    The simplified silhouette of a row is ``(b - a) / max(a, b)``, where ``a`` is the distance from
    the centroid of its cluster, and ``b`` from the nearest other centroid. It is 0 in a cluster
    with one row. The score is the mean over all rows. The other scores equal those of
    scikit-learn on the pooled rows.

    *Disclosure.* The mean and the spread of each cluster at each client. Set `min_group_size` so
    that no mean is of a few rows.

    *Cost.* Two rounds; a client needs O(n_points * n_clusters * n_features) time. If a client is
    lost between them, everything is computed again without it.

    Examples
    --------
    Cluster 0 has the rows 0, 2 and 4, so its centroid is 2. Cluster 1 has the rows 11 and 13.

    >>> from fedlib import FederatedClusteringScore
    >>> first = [[0.0], [2.0], [50.0]], [0, 0, -1]
    >>> second = [[4.0], [11.0], [13.0]], [0, 1, 1]
    >>> model = FederatedClusteringScore().fit([first, second])
    >>> model.to_frame()[["count", "0 mean", "0 std"]].round(3).values.tolist()
    [[3.0, 2.0, 2.0], [2.0, 12.0, 1.414]]
    >>> {name: round(score, 3) for name, score in model.scores_.items()}
    {'simplified silhouette': 0.876, 'Davies-Bouldin': 0.233, 'Calinski-Harabasz': 36.0}
    >>> model.n_noise_
    1
    """

    name = "clustering-score"
    example = Example("classes", {})
    client_class = ClusteringScoreClient
    has_labels = False
    _: KW_ONLY
    noise: Annotated[
        Noise,
        StrOptions({"exclude", "cluster"}),
        """
        ``"exclude"``: rows with the label -1 are left out; their number is ``n_noise_``.
        ``"cluster"``: they count as one cluster, as in scikit-learn.
        """,
    ] = "exclude"
    min_group_size: Annotated[
        int,
        Interval(Integral, 1, MAX_ROWS, closed="both"),
        """
        A client withholds its clusters with fewer rows, at least 1. These rows are left out of all
        scores and profiles; their number is ``n_withheld_``. With 1, nothing is withheld, and the
        scores are those of the pooled rows.
        """,
    ] = 1
    max_clusters: Annotated[
        int,
        Interval(Integral, 1, MAX_CLUSTERS, closed="both"),
        """
        The maximum count of clusters of a client, in 1..2**20. A client with more leaves the run.
        """,
    ] = 1000

    def _flow(self) -> Flow[ClusterScores]:
        return clustering_score(self.noise, self.min_group_size, self.max_clusters)

    def _check_clients(self, clients: dict[str, Client]) -> None:
        super()._check_clients(clients)
        for name, client in clients.items():
            n_clusters = len(np.unique(client.labels))  # type: ignore[attr-defined]
            if n_clusters > self.max_clusters:
                raise ValueError(
                    f"client {name!r} must have at most max_clusters={self.max_clusters} clusters,"
                    f" got {n_clusters}"
                )

    def _set_model(self, model: ClusterScores) -> None:
        super()._set_model(model)
        self.n_features_in_ = len(model.mean)
        self.n_noise_, self.n_withheld_ = model.n_noise, model.n_withheld
        self.scores_ = {
            "simplified silhouette": model.silhouette,
            "Davies-Bouldin": model.davies_bouldin,
            "Calinski-Harabasz": model.calinski_harabasz,
        }

    def to_frame(self) -> pd.DataFrame:
        """Return the profiles: one row per cluster.

        Returns
        -------
        DataFrame
            With the columns ``count``, ``share`` (of the rows that count), ``silhouette`` (the mean
            of the cluster), and two per feature, such as ``age mean`` and ``age std``.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        model = self.model_
        columns = {
            "count": model.counts,
            "share": model.counts / model.counts.sum(),
            "silhouette": model.silhouettes,
        }
        for j, name in enumerate(model.features or range(len(model.mean))):
            columns |= {f"{name} mean": model.means[:, j], f"{name} std": model.stds[:, j]}
        return pd.DataFrame(columns, index=pd.Index(model.labels, name="cluster"))

    def plot(self) -> Figure:
        """Draw the profiles as a heat map: how far each mean is from the mean of all rows.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        from fedlib.figures.scores import profiles

        model = self.model_
        names = [
            f"cluster {label} (n={count:,})"
            for label, count in zip(model.labels.tolist(), model.counts.tolist(), strict=True)
        ]
        features = model.features or [str(j) for j in range(model.means.shape[1])]
        return profiles(model.means, model.mean, model.std, names, features)

    def report(self) -> str:
        """Return the scores and the profiles as text."""
        lines = [f"{name}: {score:.4f}" for name, score in self.scores_.items()]
        lines.append(f"noise: {self.n_noise_} rows, withheld: {self.n_withheld_} rows")
        table = self.to_frame().T.to_string(float_format="{:.4g}".format)
        return "\n".join([*lines, "", table])
