"""Lloyd's iteration with differential privacy: the sums have noise, and the start is no data.

A row is clipped to the bounds and scaled to [-1, 1], so it changes the sum of one cluster by at
most 1 per feature, and the count by 1. A weight is clipped to the largest one, as a part of which
it counts. The start, the number of rounds and the bounds do not depend
on the data.

Sources: A. Blum, C. Dwork, F. McSherry, K. Nissim, Practical privacy: the SuLQ framework, PODS
2005, for the noisy sums; D. Su, J. Cao, N. Li, E. Bertino, H. Jin, Differentially private k-means
clustering, CODASPY 2016, for a start that is spread over the bounds.
"""

from __future__ import annotations

import warnings
from math import nan, sqrt
from typing import Annotated

import numpy as np
import sklearn
from sklearn.utils import check_random_state

from fedlib.clustering.kmeans.flow import KMeansModel
from fedlib.clustering.kmeans.local import assign
from fedlib.clustering.kmeans.messages import MAX_CENTRE, AssignCentres
from fedlib.core.array_types import Floats
from fedlib.core.messages import Array, Message
from fedlib.core.protocol import Flow
from fedlib.protection.privacy import (
    NOISY,
    BoundsArray,
    NoisyRequest,
    Privacy,
    Sensitivity,
    add_noise,
    from_unit,
    quantise,
    to_unit,
)
from fedlib.protection.secure.points import MaxWeight, agree_on_bounded_features
from fedlib.protection.sums import NoisySums

PER_CLUSTER = 100  # points per cluster from which a start is computed
MOST_NOISE = 0.1  # as a fraction of the rows of an average cluster


class NoisyClusterSums(Message):
    """The sums of a client's scaled points by nearest centre, and their counts, with noise."""

    discloses = "a client's sum and count in each cluster, with noise"
    sums: Annotated[np.ndarray, Array("float64", ("clusters", "features"), -NOISY, NOISY)]
    counts: Annotated[np.ndarray, Array("float64", ("clusters",), -NOISY, NOISY)]


class SumClustersNoisily(NoisyRequest):
    """Clip your points to bounds, sum them by their nearest centre, and add noise."""

    discloses = "the centres, which have noise, and the bounds"
    reply = NoisyClusterSums
    privacy: Privacy
    bounds: BoundsArray
    centres: Annotated[
        np.ndarray, Array("float64", ("clusters", "features"), -MAX_CENTRE, MAX_CENTRE)
    ]
    max_weight: MaxWeight | None = None  # the weight of a row that counts as one; None: no weights

    @property
    def n_clusters(self) -> int:
        """The number of centres."""
        return len(self.centres)

    def work(self) -> float:
        return float(self.n_clusters)

    def reply_lengths(self) -> dict[str, int]:
        return dict(zip(("clusters", "features"), self.centres.shape, strict=True))

    def sensitivity(self) -> Sensitivity:
        return row_sensitivity(self.centres.shape[1])


def row_sensitivity(n_features: int) -> Sensitivity:
    """Return the largest change by one row: 1 per feature of a sum, and 1 of a count.

    Examples
    --------
    >>> row_sensitivity(3)
    Sensitivity(l1=4.0, l2=2.0, n_entries=4)
    """
    return Sensitivity(n_features + 1.0, sqrt(n_features + 1), n_features + 1)


def sum_noisily(
    X: Floats, request: SumClustersNoisily, n_shares: int, weight: Floats | None = None
) -> NoisyClusterSums:
    """Return the noisy sums of a client; ``weight`` has one number from 0 to 1 per row.

    Raises
    ------
    ValueError
        When the points have another number of features.
    """
    scaled, sensitivity = to_unit(X, request.bounds), row_sensitivity(X.shape[1])
    labels, _ = assign(from_unit(scaled, request.bounds), request.centres)
    values = np.zeros((len(request.centres), X.shape[1] + 1))
    if weight is None:
        np.add.at(values[:, :-1], labels, quantise(scaled, sensitivity))
        values[:, -1] = np.bincount(labels, minlength=len(values))
    else:
        terms = np.column_stack([weight[:, np.newaxis] * scaled, weight])
        np.add.at(values, labels, quantise(terms, sensitivity))
    noisy = add_noise(values, sensitivity, request.privacy, n_shares)
    return NoisyClusterSums(noisy[:, :-1].copy(), noisy[:, -1].copy())


def private_lloyd(
    n_clusters: int,
    init: Floats | None,
    bounds: Floats,
    max_iter: int,
    seed: int,
    aggregation: NoisySums,
    max_weight: float | None = None,
) -> Flow[KMeansModel]:
    """Return the flow of Lloyd's iteration with noise.

    A centre does not move in a round in which the count of its cluster is smaller than the standard
    deviation of its noise. Afterwards, `warn_of_noise` compares the noise with the rows.

    Parameters
    ----------
    n_clusters, init, max_iter
        As in `FederatedKMeans`.
    bounds : array (2, n_features)
    seed : int
        Draws the start, if there is no ``init``.
    aggregation : NoisySums
        With the loss of each round.
    max_weight : float, optional
        The largest weight of a row, if the rows have weights. They are divided by it, so that one
        row changes a sum by no more than without weights.

    Raises
    ------
    ValueError
        When the clients disagree on the features, or have another number of them.
    """
    sensitivity = row_sensitivity(bounds.shape[1])
    aggregation.scale(sensitivity)  # an epsilon that is too small is refused before any message
    yield from agree_on_bounded_features(aggregation, bounds.shape[1])
    smallest = aggregation.deviation(sensitivity)
    centres = spread_start(n_clusters, bounds, seed) if init is None else np.array(init)
    n_rows = 0.0
    for _ in range(max_iter):
        request = SumClustersNoisily(aggregation.privacy, bounds, centres, max_weight)
        total, _ = yield from aggregation.sum(request)
        n_rows += float(total.counts.sum()) / max_iter
        occupied = total.counts > max(smallest, 1.0)
        means = total.sums[occupied] / total.counts[occupied, np.newaxis]
        centres = centres.copy()
        centres[occupied] = from_unit(means, bounds)
    yield AssignCentres(centres)
    warn_of_noise("max_iter", max_iter, n_rows / n_clusters, smallest, aggregation.privacy)
    return KMeansModel(centres, nan, max_iter)


def warn_of_noise(
    name: str, n_rounds: int, n_rows: float, deviation: float, privacy: Privacy
) -> None:
    """Warn when the noise of each round is more than a tenth of the rows of an average cluster.

    A coordinate of a mean is a noisy sum divided by the count of the cluster, in units of half the
    width of the bounds. So this fraction is the error of a coordinate in each round.

    Parameters
    ----------
    name : str
        The parameter that sets the count of rounds.
    n_rounds : int
    n_rows : float
        The rows of an average cluster, from noisy counts.
    deviation : float
        The standard deviation of the noise in a sum of one round.
    privacy : Privacy
        The loss of one round. Fewer rounds have less noise: the deviation is proportional to their
        count, or with Gaussian noise to its square root.
    """
    if deviation <= MOST_NOISE * n_rows:
        return
    fraction = max(MOST_NOISE * n_rows, 0.0) / deviation
    fewer = int(n_rounds * fraction ** (2 if privacy.rho else 1))
    remedy = f"{name}={fewer} makes it less than {MOST_NOISE:.0%}; " if fewer else ""
    warnings.warn(
        f"the noise is too large for the rows: in each of the rounds ({name}={n_rounds}), a centre"
        f" misses the mean of an average cluster by {deviation / max(n_rows, 1.0):.0%} of half the"
        f" width of the bounds; {remedy}more rows, fewer clusters or a larger epsilon help",
        stacklevel=2,
    )


def spread_start(n_clusters: int, bounds: Floats, seed: int) -> Floats:
    """Return centres that are spread evenly between bounds, without looking at any data.

    They are those of k-means on uniform points.

    Examples
    --------
    >>> sorted(spread_start(2, np.array([[0.0], [4.0]]), seed=0).round().ravel().tolist())
    [1.0, 3.0]
    """
    rng = check_random_state(seed)
    uniform = rng.uniform(-1, 1, (PER_CLUSTER * n_clusters, bounds.shape[1]))
    fitted = sklearn.cluster.KMeans(n_clusters, n_init=1, random_state=rng).fit(uniform)
    return from_unit(fitted.cluster_centers_, bounds)
