"""Lloyd's iteration with secure sums: the server sees no client's sums."""

from __future__ import annotations

from itertools import count

import numpy as np
from numpy.typing import NDArray

from fedlib.kmeans.flow import ClusterTotals, KMeansModel, check_start, iterate_starts
from fedlib.kmeans.messages import AssignCentres, SumClusters
from fedlib.protocol import Flow
from fedlib.secure.flow import secure_sum
from fedlib.secure.points import agree_on_points, find_variance

__all__ = ["secure_lloyd"]

Points = NDArray[np.float64]


def secure_lloyd(init: Points, max_iter: int, tol: float) -> Flow[KMeansModel]:
    """Return the flow of Lloyd's iteration with secure sums.

    Parameters
    ----------
    init : array (n_clusters, n_features)
        The start.
    max_iter, tol
        As in `FederatedKMeans`.

    Raises
    ------
    ValueError
        When the clients disagree on the features or have no points, or ``init`` has another number
        of features.
    """
    numbers = count(1)
    points = yield from agree_on_points(numbers)
    check_start(init, points.n_features)
    tolerance = 0.0
    if tol:
        tolerance = tol * (yield from find_variance(points, numbers))

    def sum_clusters(centres: Points) -> Flow[ClusterTotals]:
        reach = points.limit + np.abs(centres).max()  # of a point from a centre
        digits = {
            "sums": points.digits(points.limit),
            "inertias": points.digits(points.n_features * reach**2),
        }
        total, _ = yield from secure_sum(SumClusters(centres), numbers, digits)
        return ClusterTotals(total.sums, total.counts, total.inertias)

    model = yield from iterate_starts(init[np.newaxis].copy(), sum_clusters, max_iter, tolerance)
    yield AssignCentres(model.centres)
    return model
