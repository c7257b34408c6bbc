"""The server flows of federated k-means, and the model that they return.

Lloyd's iteration with differential privacy: the sums have noise, and the start is no data.

A row is clipped to the bounds and scaled to [-1, 1], so it changes the sum of one cluster by at
most 1 per feature, and the count by 1. A weight is clipped to the largest one, as a part of which
it counts. The start, the count of rounds and the bounds do not depend
on the data.

Sources: A. Blum, C. Dwork, F. McSherry, K. Nissim, Practical privacy: the SuLQ framework, PODS
2005, for the noisy sums; D. Su, J. Cao, N. Li, E. Bertino, H. Jin, Differentially private k-means
clustering, CODASPY 2016, for a start that is spread over the bounds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import nan, sqrt
from typing import Annotated

import numpy as np
import sklearn
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from fedlib.clustering.kmeans.local import GROUP_SIZE, assign
from fedlib.clustering.kmeans.messages import (
    MAX_CENTRE,
    ROUNDING,
    AssignCentres,
    ClusterSums,
    FindCentres,
    GroupMeans,
    MeasureInertia,
    SumClippedClusters,
    SumClippedWeightedClusters,
    SumClusters,
    SummariseGroups,
    SumWeightedClusters,
    WeightedClusterSums,
)
from fedlib.core.aggregation import Aggregation, agree_on_features, settle
from fedlib.core.array_fields import MAX_COUNT, Checked
from fedlib.core.array_types import Floats, Ints
from fedlib.core.messages import Array, Message
from fedlib.core.protocol import Flow, GroupsTooSmall, Replies
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
from fedlib.protection.secure.points import (
    MaxWeight,
    agree_on_bounded_features,
    check_total_weight,
    count_bounded_points,
    find_variance,
)
from fedlib.protection.sums import NoisySums

GROUPS_PER_CLUSTER = 8  # the maximum count of means that a client sends per cluster


@dataclass(frozen=True)
class KMeansModel(Checked):
    """The centres of federated k-means, and details of the run.

    Attributes
    ----------
    centres : array (n_clusters, n_features)
    inertia : float
        The sum of the squared distances of the points to their nearest centres.
    n_iter : int or None
        The count of iterations; None for `one_shot`.
    local_centres : array (n_local_centres, n_features) or None
        The centres that the clients sent; None for `lloyd`.
    local_counts : array (n_local_centres,) of int64 or None
        The count of points of each of these centres; None for `lloyd`.
    """

    centres: Annotated[Floats, Array("float64", ("clusters", "features"))]
    inertia: float
    n_iter: int | None = None
    local_centres: Annotated[Floats | None, Array("float64", ("centres", "features"))] = None
    local_counts: Annotated[Ints | None, Array("int64", ("centres",), 0, MAX_COUNT)] = None

    @property
    def n_features(self) -> int:
        """The count of features of the points."""
        return int(self.centres.shape[1])

    def place(self, X: Floats) -> Ints:
        """Return the nearest centre of each point; ties go to the first centre.

        Parameters
        ----------
        X : array (n_points, n_features) of float64

        Raises
        ------
        ValueError
            When the points have a different count of features.
        """
        return assign(X, self.centres)[0]


def one_shot(
    n_clusters: int,
    update_fraction: float,
    weighted: bool,
    n_init: int,
    max_iter: int,
    tol: float,
    seed: int,
) -> Flow[KMeansModel]:
    """Return the flow of K's child and parent; for the parameters see `FederatedKMeans`.

    It sends three requests to each client.

    Raises
    ------
    ValueError
        When the clients disagree on the features, or send fewer than ``n_clusters`` distinct
        centres.
    """
    replies = yield FindCentres(n_clusters, update_fraction, n_init, max_iter, tol, seed)
    replies = yield from settle(replies, agree_on_features)
    local_centres = np.concatenate([reply.centres for reply in replies.values()])
    counts = np.concatenate([reply.counts for reply in replies.values()])
    _check_distinct(local_centres, n_clusters, "centres of the clients")
    parent = sklearn.cluster.KMeans(
        n_clusters, n_init=n_init, max_iter=max_iter, tol=tol, random_state=seed
    )
    of_centres = np.concatenate([reply.weights or reply.counts for reply in replies.values()])
    parent.fit(local_centres, sample_weight=of_centres if weighted else None)
    centres = parent.cluster_centers_
    inertia = yield from _inertia(centres)
    yield AssignCentres(centres)
    return KMeansModel(centres, inertia, None, local_centres, counts)


def _inertia(centres: Floats) -> Flow[float]:
    """Return the inertia of the centres; NaN if a site's policy forbids to measure it."""
    try:
        total, _ = yield from Aggregation().sum(MeasureInertia(centres))
    except GroupsTooSmall as error:
        warnings.warn(f"there is no inertia: {error}", stacklevel=2)
        return float("nan")
    inertia: float = total.inertia
    return inertia


def lloyd(
    n_clusters: int,
    init: Floats | None,
    n_init: int,
    max_iter: int,
    tol: float,
    seed: int,
    aggregation: Aggregation,
    bounds: Floats | None = None,
    max_weight: float | None = None,
) -> Flow[KMeansModel]:
    """Return the flow of Lloyd's iteration; for the parameters see `FederatedKMeans`.

    With sums in the clear, a client receives at most ``max_iter + 3`` requests.

    Raises
    ------
    ValueError
        As `iterate`.
    """
    model = yield from iterate(
        n_clusters, init, n_init, max_iter, tol, seed, aggregation, bounds, max_weight
    )
    yield AssignCentres(model.centres)
    return model


def iterate(
    n_clusters: int,
    init: Floats | None,
    n_init: int,
    max_iter: int,
    tol: float,
    seed: int,
    aggregation: Aggregation,
    bounds: Floats | None = None,
    max_weight: float | None = None,
) -> Flow[KMeansModel]:
    """Return the best model of Lloyd's iterations; the clients do not receive it.

    A start is drawn only if the server sees single replies. Masked sums need ``init`` and
    ``bounds`` (2, n_features); with weights also ``max_weight``, to which the clients clip them.

    Raises
    ------
    ValueError
        When the clients disagree on the features, have no points or only points of weight 0,
        ``init`` has another count of features, or there are fewer than ``n_clusters`` distinct
        means to draw a start from.
    """
    if aggregation.masked:
        assert init is not None
        assert bounds is not None
        n_points = yield from count_bounded_points(aggregation, bounds)
        found = 0.0
        if tol:
            found = yield from find_variance(aggregation, bounds, n_points, max_weight)
        request: Callable[[Floats], SumClusters]
        request = partial(SumClippedClusters, bounds=bounds, n_points=n_points)
        if max_weight is not None:
            request = partial(
                SumClippedWeightedClusters, bounds=bounds, n_points=n_points, max_weight=max_weight
            )
        sum_clusters = partial(_sum_clusters, aggregation, request)
        return (
            yield from _iterate_starts(init[np.newaxis].copy(), sum_clusters, max_iter, tol * found)
        )
    n_groups = 0 if init is not None else GROUPS_PER_CLUSTER * n_clusters
    described = yield from aggregation.describe(SummariseGroups(n_groups))
    tolerance = tol * _mean_variance(described)
    if init is None:
        centres = _draw_starts(described, n_clusters, n_init, seed)
    else:
        check_start(init, agree_on_features(described))
        centres = init[np.newaxis].copy()
    check = partial(_contradictions, described)
    weighted = any(reply.weight is not None for reply in described.values())
    asked = SumWeightedClusters if weighted else SumClusters
    sum_clusters = partial(_sum_clusters, aggregation, asked, check=check)
    model = yield from _iterate_starts(centres, sum_clusters, max_iter, tolerance)
    if init is None and (problem := _poor_starts(described, n_clusters, n_init, model.inertia)):
        warnings.warn(problem, ConvergenceWarning, stacklevel=2)
    return model


def _sum_clusters(
    aggregation: Aggregation,
    request: Callable[[Floats], SumClusters],
    centres: Floats,
    check: Callable[[Replies], Mapping[str, str]] | None = None,
) -> Flow[ClusterSums]:
    """Return the sums of the points of all clients by their nearest centres."""
    total, _ = yield from aggregation.sum(request(centres), check=check)
    sums: ClusterSums = total
    if isinstance(total, WeightedClusterSums):
        check_total_weight(float(total.counts.sum()))
    return sums


def check_start(init: Floats, n_features: int) -> None:
    """Raise ValueError when a start has another count of features than the points."""
    if init.shape[1] != n_features:
        raise ValueError(
            f"init must have the {n_features} features of the clients' points, got {init.shape[1]}"
        )


def _iterate_starts(
    centres: Floats,
    sum_clusters: Callable[[Floats], Flow[ClusterSums]],
    max_iter: int,
    tolerance: float,
) -> Flow[KMeansModel]:
    """Return the best model of Lloyd's iterations from some starts.

    Each round iterates all starts that have not ended. A start ends with the round in which its
    centres do not move. If ``tolerance`` or ``max_iter`` stops it earlier, it takes part in one
    more round, which measures the inertia of its last centres.

    Parameters
    ----------
    centres : array (n_starts, n_clusters, n_features)
        The starts. They are overwritten.
    sum_clusters : callable
        Returns the flow that sums the points of all clients by their nearest centres.
    max_iter : int
    tolerance : float
        The largest sum of squared shifts after which a start stops.
    """
    n_iter = np.zeros(len(centres), int)
    inertias = np.full(len(centres), np.inf)  # finite for the starts that have ended
    last = inertias.copy()  # of the centres before the last step
    empty = np.zeros(len(centres), int)  # the clusters without points
    moving = np.ones(len(centres), bool)
    while (active := np.flatnonzero(np.isinf(inertias))).size:
        try:
            total = yield from sum_clusters(centres[active])
        except GroupsTooSmall as error:
            return _last_model(centres, last, n_iter, error)
        last[active] = total.inertias
        sums, counts, measured = total.sums, total.counts, total.inertias
        for i, start in enumerate(active):
            shift = 0.0
            if moving[start]:
                n_iter[start] += 1
                shift = _move_to_means(centres[start], sums[i], counts[i])
                moving[start] = shift > tolerance and n_iter[start] < max_iter
            if shift == 0:
                inertias[start] = measured[i]
                empty[start] = np.count_nonzero(counts[i] == 0)
    best = inertias.argmin()
    if empty[best]:
        warnings.warn(
            f"{empty[best]} of n_clusters={centres.shape[1]} clusters have no points, because no"
            " point is nearest to their centres, or these are equal to others; fewer clusters or"
            " another init may help",
            ConvergenceWarning,
            stacklevel=2,
        )
    return KMeansModel(centres[best], float(inertias[best]), int(n_iter[best]))


def _last_model(
    centres: Floats, inertias: Floats, n_iter: Ints, error: GroupsTooSmall
) -> KMeansModel:
    """Return the best model so far, after a site has declined the next step.

    The inertia of its centres is not known: only that of the centres before them.
    """
    if np.isinf(inertias).all():
        raise GroupsTooSmall(
            f"{error}: give init as an array, and so n_init=1, or ask the site for"
            " groups = 'singly'"
        ) from error
    warnings.warn(f"the iteration ended early: {error}", stacklevel=2)
    best = inertias.argmin()
    return KMeansModel(centres[best], float("nan"), int(n_iter[best]))


def _contradictions(
    described: Mapping[str, GroupMeans], replies: Mapping[str, ClusterSums]
) -> dict[str, str]:
    """Return the reason to exclude each client whose sums contradict its first reply.

    The difference between the sum of some points and as many times the mean of all is bounded by
    the sum of squares, by Cauchy and Schwarz. Rounding gets a margin.
    """
    reasons = {}
    for name, reply in replies.items():
        first = described.get(name)
        if first is None:
            reasons[name] = "ClusterSums from a client that declined to describe its points"
            continue
        tolerance = ROUNDING if isinstance(reply, WeightedClusterSums) else 0
        declared = _weight(first)
        if (np.abs(reply.counts.sum(axis=1) - declared) > tolerance * declared).any():
            what = "n_points" if first.weight is None else "weight"
            reasons[name] = f"{type(reply).__name__}.counts must sum to {what}={declared}"
            continue
        counts = reply.counts[..., np.newaxis]
        shift = np.abs(reply.sums - counts * first.mean)
        margin = 1e-6 * counts * (np.abs(first.mean) + np.sqrt(first.squares))
        if (shift > np.sqrt(counts * first.squares) + margin).any():
            reasons[name] = (
                f"{type(reply).__name__}.sums are outside of the range of the client's points"
            )
    return reasons


def _weight(reply: GroupMeans) -> float:
    """Return the weight of all points of a client: their number, if they have no weights."""
    return reply.n_points if reply.weight is None else reply.weight


def _move_to_means(centres: Floats, sums: Floats, counts: Ints) -> float:
    """Move the centres that have points to their means; return the sum of the squared shifts."""
    occupied = counts > 0
    means = sums[occupied] / counts[occupied, np.newaxis]
    shift = float(np.square(means - centres[occupied]).sum())
    centres[occupied] = means
    return shift


def _draw_starts(
    replies: Mapping[str, GroupMeans], n_clusters: int, n_init: int, seed: int
) -> Floats:
    """Return starts (n_init, n_clusters, n_features), drawn by k-means++ from weighted means."""
    means = np.concatenate([reply.means for reply in replies.values()])
    of_groups = [reply.weights or reply.counts for reply in replies.values()]
    weights = np.concatenate(of_groups)
    what = f"means of {GROUP_SIZE} or more points at the clients (or pass init as an array)"
    _check_distinct(means, n_clusters, what)
    rng = check_random_state(seed)
    draw = sklearn.cluster.kmeans_plusplus
    starts = [
        draw(means, n_clusters, sample_weight=weights, random_state=rng)[0] for _ in range(n_init)
    ]
    return np.array(starts)


def _poor_starts(
    replies: Mapping[str, GroupMeans], n_clusters: int, n_init: int, inertia: float
) -> str | None:
    """Return why starts from these means may be poor; None if there is no reason.

    A client with few points sends the means of points of several clusters, which lie between them.
    The more points are at such clients, the less the means say: the sum of squares about the means
    of the groups is then larger than that about the centres of the clusters.
    """
    enough = GROUP_SIZE * n_clusters
    sizes = np.array([reply.n_points for reply in replies.values()])
    if sizes[sizes < enough].sum() <= sizes.sum() / 2:
        return None
    centre = np.average(
        [reply.mean for reply in replies.values()],
        axis=0,
        weights=[*map(_weight, replies.values())],
    )
    about_groups = 0.0
    for reply in replies.values():
        whole = reply.squares + _weight(reply) * np.square(reply.mean - centre)
        of_groups = np.array(reply.weights or reply.counts, float)
        between = (of_groups[:, np.newaxis] * np.square(reply.means - centre)).sum(axis=0)
        about_groups += float((whole - between).sum())
    if not about_groups > inertia:
        return None
    return (
        f"the starts may be poor: most points are at clients with fewer than {enough} points,"
        f" {GROUP_SIZE} per cluster, whose means lie between the clusters; a larger n_init (got"
        f" {n_init}), such as {10 * n_init}, or centres as init help"
    )


def _mean_variance(replies: Mapping[str, GroupMeans]) -> float:
    """Return the variance of all clients' points, averaged over the features."""
    weights = np.array([[_weight(reply)] for reply in replies.values()])
    if not weights.any():
        if any(reply.weight is not None for reply in replies.values()):
            check_total_weight(0.0)
        raise ValueError("the clients have no points")
    means = np.array([reply.mean for reply in replies.values()])
    centre = (weights * means).sum(axis=0) / weights.sum()
    squares = np.array([reply.squares for reply in replies.values()])
    squares = squares + weights * np.square(means - centre)
    return float(squares.sum(axis=0).mean() / weights.sum())


def _check_distinct(points: Floats, n_clusters: int, what: str) -> None:
    """Raise ValueError when there are fewer distinct points than clusters."""
    n_distinct = len(np.unique(points, axis=0))
    if n_distinct < n_clusters:
        raise ValueError(
            f"n_clusters must be in 1..{n_distinct}, the number of distinct {what};"
            f" got {n_clusters}"
        )


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
        """The count of centres."""
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
        When the points have another count of features.
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
        When the clients disagree on the features, or have another count of them.
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
