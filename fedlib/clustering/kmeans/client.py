"""The client of federated k-means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedlib.clustering.kmeans.flow import (
    NoisyClusterSums,
    SumClustersNoisily,
    sum_noisily,
)
from fedlib.clustering.kmeans.local import (
    are_means,
    assign,
    child_clusters,
    group_means,
    leaf_groups,
    mean_and_squares,
    sum_clusters,
)
from fedlib.clustering.kmeans.messages import (
    AssignCentres,
    ClusterSums,
    FindCentres,
    GroupMeans,
    Inertia,
    LocalCentres,
    MeasureInertia,
    SumClippedClusters,
    SumClippedWeightedClusters,
    SumClusters,
    SummariseGroups,
    SumWeightedClusters,
    WeightedClusterSums,
)
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import BadRequest, handles, partitions
from fedlib.core.messages import Done, Labels
from fedlib.protection.privacy import clipped
from fedlib.protection.secure.fixed_point import Reply, add_rows, summed
from fedlib.protection.secure.points import SummablePoints

# The last iteration of scikit-learn assigns the points again, and moves no centre.
NOT_CONVERGED = (
    "k-means has stopped before each centre was the mean of its points, so that the groups behind"
    " the centres are unknown: use tol=0 and a larger max_iter, or let the site lower min_count"
)


class FederatedKMeansClient(SummablePoints):
    """A client that holds points; for the parameter see `fedlib.core.points.PointsClient`.

    Raises
    ------
    ValueError
        When the points are not a table of finite numbers within ±1e100, or a weight is not valid.
    """

    takes_weights = True

    @handles(FindCentres)
    def find_centres(self, request: FindCentres) -> LocalCentres:
        X, weights = self.weighted_points
        _, centres, labels = child_clusters(X, weights, **_settings(request))
        counts = np.bincount(labels[labels >= 0], minlength=len(centres)).astype(np.int64)
        if weights is None:
            return LocalCentres(centres, counts, self.features)
        of_centres = np.bincount(labels[labels >= 0], weights[labels >= 0], len(centres))
        return LocalCentres(centres, counts, self.features, tuple(of_centres.tolist()))

    @partitions(FindCentres, terms=())
    def groups_of_centres(self, request: FindCentres) -> Iterable[Ints]:
        X, weights = self.weighted_points
        _, centres, labels = child_clusters(X, weights, **_settings(request))
        yield self.groups_of_all(labels)
        if not are_means(X, weights, centres, labels):
            self.note(NOT_CONVERGED)
            yield np.arange(len(self.X))

    @handles(SummariseGroups)
    def summarise_groups(self, request: SummariseGroups) -> GroupMeans:
        X, weights = self.weighted_points
        mean, squares = mean_and_squares(X, weights)
        means, counts, of_groups = group_means(X, request.n_groups, weights)
        first = len(X), mean, squares, means, counts, self.features
        if weights is None:
            return GroupMeans(*first)
        return GroupMeans(*first, float(weights.sum()), tuple(of_groups.tolist()))

    @partitions(SummariseGroups, terms=())
    def groups_of_means(self, request: SummariseGroups) -> Iterable[Ints]:
        X, weights = self.weighted_points
        yield self.groups_of_all(np.zeros(len(X), np.int64))
        if request.n_groups:
            yield self.groups_of_all(leaf_groups(X, request.n_groups, weights))

    @partitions(SumClusters, SumWeightedClusters, terms=())
    def clusters(self, request: SumClusters) -> Iterable[Ints]:
        X, _ = self.weighted_points
        for centres in request.centres:
            yield self.groups_of_all(assign(X, centres)[0])

    @handles(SumClusters)
    def sum_clusters(self, request: SumClusters) -> ClusterSums:
        self.check_unweighted()
        return ClusterSums(*_sum_clusters(self.X, request))

    @handles(SumWeightedClusters)
    def sum_weighted_clusters(self, request: SumWeightedClusters) -> WeightedClusterSums:
        X, weights = self.counted_points()
        return WeightedClusterSums(*_sum_clusters(X, request, weights))

    @handles(SumClippedClusters)
    def sum_clipped_clusters(self, request: SumClippedClusters) -> ClusterSums:
        self.check_unweighted()
        return self._sum_by_rows(ClusterSums, request)

    @handles(SumClippedWeightedClusters)
    def sum_clipped_weighted_clusters(
        self, request: SumClippedWeightedClusters
    ) -> WeightedClusterSums:
        weights = self.clipped_weight(request.max_weight)
        return self._sum_by_rows(WeightedClusterSums, request, weights)

    def _sum_by_rows(
        self, reply: type[Reply], request: SumClippedClusters, weights: Floats | None = None
    ) -> Reply:
        """Return the sums of `sum_clusters` for each start, of rounded rows."""
        X, k, digits = clipped(self.X, request.bounds), request.n_clusters, self.row_digits(request)
        weight = (np.ones(len(X)) if weights is None else weights)[:, np.newaxis]
        sums, counts, squares = [], [], []
        for centres in _starts(request):
            labels, _ = assign(X, centres)
            sums.append(add_rows(weight * X, digits, "sums", labels, k))
            counts.append(
                np.bincount(labels, minlength=k).astype(np.int64)
                if weights is None
                else add_rows(weight, digits, "counts", labels, k)[:, 0]
            )
            squares.append(np.square(X - centres[labels]).sum(axis=1))
        inertias = add_rows(weight * np.column_stack(squares), digits, "inertias")[0]
        arrays = {"sums": np.array(sums), "counts": np.array(counts)}
        return summed(reply, digits, **arrays, inertias=inertias)

    @handles(SumClustersNoisily)
    def sum_clusters_noisily(self, request: SumClustersNoisily) -> NoisyClusterSums:
        if request.max_weight is None:
            self.check_unweighted()
            return sum_noisily(self.X, request, self.n_shares)
        weight = self.clipped_weight(request.max_weight) / request.max_weight
        return sum_noisily(self.X, request, self.n_shares, weight)

    @handles(MeasureInertia)
    def measure_inertia(self, request: MeasureInertia) -> Inertia:
        X, weights = self.weighted_points
        if weights is None:
            return Inertia(assign(X, request.centres)[1])
        return Inertia(sum_clusters(X, request.centres, weights)[2])

    @handles(AssignCentres)
    def assign_centres(self, request: AssignCentres) -> Done:
        self.state = Labels(assign(self.X, request.centres)[0])
        return Done()


def _sum_clusters(
    X: Floats, request: SumClusters, weights: Floats | None = None
) -> tuple[NDArray[Any], ...]:
    """Return the sums of points by their nearest centre, for the centres of each start."""
    of_starts = [sum_clusters(X, centres, weights) for centres in _starts(request)]
    return tuple(map(np.array, zip(*of_starts, strict=True)))


def _starts(request: SumClusters) -> Floats:
    """Return the centres of all starts.

    Raises
    ------
    BadRequest
        When there are no starts.
    """
    if not len(request.centres):
        raise BadRequest("there must be the centres of at least one start, got none")
    return request.centres


def _settings(request: FindCentres) -> dict[str, Any]:
    """Return the arguments of `child_centres` in a request."""
    settings = msgspec.structs.asdict(request)
    return settings | {"random_state": settings.pop("seed")}
