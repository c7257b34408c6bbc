"""What an honest-but-curious server recovers of one client's rows from its replies.

The server follows the protocol and guesses where the points of one client are. A point is *located*
if a guess is within a tolerance. Many guesses locate points by chance, so every attack is compared
with the same number of guesses drawn from points of the same distribution that the server knows.

`ATTACKS` has the attack on each kind of reply, and `WITHOUT_ATTACK` the reason why there is none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import neighbour_attack
import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.neighbors import KDTree

from fedlib.alignment import Pseudonyms
from fedlib.boosting.categories import LevelCounts
from fedlib.boosting.cuts import RowsPerBucket
from fedlib.boosting.descriptions import (
    ClassSums,
    LabelMagnitudes,
    TargetDescription,
    TargetSums,
    TrainingDescription,
)
from fedlib.boosting.messages import (
    BeginBoosting,
    CandidateSums,
    Histograms,
    LeafSums,
    SplitProposals,
    SummableHistograms,
)
from fedlib.boosting.packing import PackedHistograms, unpack
from fedlib.boosting.scores import RowScores
from fedlib.bounded_cells import GridCounts, NoisyCounts
from fedlib.horizontal_dbscan import CellCounts
from fedlib.kmeans.messages import ClusterSums, GroupMeans, Inertia, LocalCentres
from fedlib.kmeans.private import NoisyClusterSums
from fedlib.messages import Message
from fedlib.mixtures.dbscan import ClusterMixtures
from fedlib.mixtures.messages import (
    ImprovedMixture,
    Likelihood,
    LocalMixture,
    PointsIntroduction,
    ResponsibilitySums,
)
from fedlib.mixtures.private import NoisyResponsibilitySums
from fedlib.near_cells import cell_side
from fedlib.privacy.bounds import from_unit
from fedlib.representatives.dbdc import LocalModel
from fedlib.representatives.ppdbdc import BlurredRepresentatives
from fedlib.representatives.sdbdc import WeightedRepresentatives
from fedlib.scores.messages import ClassCounts, ClusterDistances, LabelledMoments, ScoreCounts
from fedlib.secure.messages import Confirmation, EncryptedShares, RevealedShares, SignedKeys
from fedlib.secure.points import Features, MagnitudeCounts, PointSums
from fedlib.selection.density import PointsMagnitude
from fedlib.summary.keys import from_key, sub_interval
from fedlib.summary.messages import (
    BinCounts,
    CategoryCounts,
    ColumnDescription,
    ColumnKinds,
    ColumnMagnitudes,
    ColumnSums,
    Extremes,
    ValueMoments,
)
from fedlib.testing import Recorder
from fedlib.vertical_dbscan import NeighbourBlock, RowDescription

EXACT = 1e-9  # a secret is known exactly if a guess is within this distance


class Score(NamedTuple):
    """The number of guesses, and the shares of secrets that they locate.

    ``chance`` is the share that as many guesses locate without the reply, and ``exact`` the share
    that is known exactly.
    """

    guesses: int
    located: float
    chance: float
    exact: float


@dataclass(frozen=True)
class Situation:
    """What an attack on one client is judged by.

    Attributes
    ----------
    replies : list of (Message, Message)
        The requests to the client and its replies, in order.
    X, y : array (n_points, n_features), (n_points,)
        The client's points, and their classes or targets if there are any.
    known, known_y : array
        Points of the same distribution that the server knows; guessing draws from them.
    tolerance : float
    rng : Generator
    """

    replies: list
    X: np.ndarray
    y: np.ndarray | None
    known: np.ndarray
    known_y: np.ndarray | None
    tolerance: float
    rng: np.random.Generator

    def score(self, secrets, guesses, known):
        """Return how many secrets are located, and how many by as many draws from ``known``."""
        chance = known[self.rng.integers(0, len(known), len(guesses))]
        return Score(
            len(guesses),
            located(secrets, guesses, self.tolerance),
            located(secrets, chance, self.tolerance),
            located(secrets, guesses, EXACT),
        )


def replies_of(estimator, parts, client_options=None):
    """Return the pairs of requests and replies of the first client in a run."""
    options = client_options or {}
    clients = {str(i): estimator.client_class(X, **options) for i, X in enumerate(parts)}
    return recorded(estimator, clients)["0"]


def recorded(estimator, clients):
    """Return the pairs of requests and replies of each client in a run."""
    recorder = Recorder(clients)
    estimator.fit(recorder)
    answers: dict[str, list] = {name: [] for name in clients}
    for exchange in recorder.exchanges:
        requests, replies = exchange.requests, exchange.replies
        for name, reply in replies.items():
            answers[name].append((requests[name], reply))
    return answers


def located(X, guesses, tolerance):
    """Return the share of the points X that have a guess within the tolerance."""
    if not len(guesses):
        return 0.0
    distance, _ = KDTree(guesses).query(X)
    return float((distance[:, 0] <= tolerance).mean())


# Guesses of points ------------------------------------------------------------------------------


def cell_centres(request, reply):
    """Guess that points are in the middle of their cells."""
    side = getattr(request, "cell_size", None)
    if side is None:
        side = cell_side(request.eps, request.rho, reply.n_features)
    return (reply.cells + 0.5) * side


def block_centres(request, reply):
    """Guess that points are in the middle of the occupied blocks of a bounded grid."""
    keys = request.keys if len(request.keys) else np.arange(request.n_blocks)
    occupied = keys[reply.counts > 0]
    blocks = np.stack(np.unravel_index(occupied, request.grid.blocks(request.side)), axis=1)
    return (request.low + (blocks + 0.5) * request.side) * request.cell_size


def fullest_cells(request, reply):
    """Guess the middle of the cells with the largest noisy counts, as many as there are points."""
    n_points = int(np.clip(np.rint(reply.counts.sum()), 1, len(reply.counts)))
    fullest = np.sort(np.argsort(-reply.counts, kind="stable")[:n_points])
    cells = np.stack(np.unravel_index(fullest, tuple(request.shape)), axis=1)
    return (request.low + cells + 0.5) * request.cell_size


def noisy_means(request, reply):
    """Guess the mean of each cluster or component from noisy sums of scaled points."""
    if isinstance(reply, NoisyResponsibilitySums):
        counts, sums = np.split(reply.moments[:, : 1 + request.means.shape[1]], [1], axis=1)
    else:
        counts, sums = reply.counts[:, np.newaxis], reply.sums
    filled = counts[:, 0] >= 1
    return from_unit(sums[filled] / counts[filled], request.bounds)


def cluster_means(request, reply):
    """Guess the mean of each cluster; that of a single point is the point."""
    filled = reply.counts > 0
    return reply.sums[filled] / reply.counts[filled][:, np.newaxis]


def component_means(request, reply):
    """Guess the mean of each component, and both points of a component that has only two."""
    if isinstance(reply, ResponsibilitySums):
        filled = reply.counts > 1e-6
        shift = reply.sums[filled] / reply.counts[filled][:, np.newaxis]
        return request.means[filled] + shift
    return reply.means


def both_points(means, covariances):
    """Return the two points behind each mean and covariance matrix: mean ± the half distance.

    Two points at mean ± v have the covariance matrix v·vᵀ, so its largest eigenvalue is the square
    of the length of v, and the eigenvector its direction.
    """
    values, vectors = np.linalg.eigh(covariances)
    half = vectors[..., -1] * np.sqrt(values[..., -1])[:, np.newaxis]
    return np.concatenate([means + half, means - half])


def moved_points(replies):
    """Return points that moved from one cluster to another between two sums of the same rows.

    If exactly one point has left one cluster and joined another, the changes of both sums are the
    point, with opposite signs.

    Parameters
    ----------
    replies : list of ClusterSums
    """
    found = [np.empty((0, replies[0].sums.shape[-1]))]
    for before, after in pairwise(replies):
        if before.sums.shape != after.sums.shape:
            continue
        for counts, sums in zip(
            after.counts - before.counts, after.sums - before.sums, strict=True
        ):
            gained, lost = sums[counts == 1], -sums[counts == -1]
            if len(gained) and len(lost):
                distance, _ = KDTree(lost).query(gained)
                found.append(gained[distance[:, 0] < 1e-9])
    return np.concatenate(found)


# Guesses of values: pairs of a column's number and a value ---------------------------------------

COLUMN = 1e6  # a column's number is multiplied by this, so that values of others are never near


def as_values(X):
    """Return all values of a table as rows (column, value)."""
    columns = np.repeat(COLUMN * np.arange(X.shape[1]), len(X))
    return np.column_stack([columns, X.T.ravel()])


def pairs(columns, values):
    """Return guesses of values as rows (column, value)."""
    return np.column_stack([COLUMN * np.asarray(columns), values])


def extremes(request, reply):
    """Guess the smallest and the largest value of each column."""
    columns = np.tile(request.columns, 2)
    return pairs(columns, np.concatenate([reply.minima, reply.maxima]))


def bin_middles(request, reply):
    """Guess the middle of each occupied part of an interval."""
    rows, bins = np.nonzero(reply.counts)
    middles = []
    for row, i in zip(rows.tolist(), bins.tolist(), strict=True):
        ends = sub_interval(int(request.low[row]), int(request.high[row]), request.n_bins, i)
        middles.append(sum(map(from_key, ends)) / 2)
    return pairs(request.columns[rows], middles)


def buckets(request, reply):
    """Guess the middle of each occupied bucket, which is an interval of float32 numbers."""
    shift = 32 - request.depth
    low = reply.keys.astype(np.uint64) << np.uint64(shift)
    ends = []
    for key in (low, low + np.uint64(2**shift - 1)):
        key = key.astype(np.uint32)
        sign = np.uint32(2**31)
        ends.append(np.where(key & sign, key ^ sign, ~key).view(np.float32))
    columns = np.repeat(np.arange(len(reply.sizes)), reply.sizes)
    return pairs(columns, np.mean(ends, axis=0))


def probabilities(request, reply):
    """Guess the middle of each occupied bin of the probabilities."""
    bins = np.flatnonzero(reply.counts.sum(axis=0))
    return pairs(np.zeros(len(bins)), (bins + 0.5) / reply.counts.shape[1])


# Measures ---------------------------------------------------------------------------------------


def points(guess):
    """Return the measure of an attack on points."""

    def measure(situation, replies):
        guesses = np.concatenate([guess(*pair) for pair in replies])
        return situation.score(situation.X, guesses, situation.known)

    return measure


def values(guess):
    """Return the measure of an attack on the values of columns."""

    def measure(situation, replies):
        guesses = np.concatenate([guess(*pair) for pair in replies])
        return situation.score(as_values(situation.X), guesses, as_values(situation.known))

    return measure


def order_of_rows(situation, replies):
    """Measure the values of one column that the server computes from the neighbours of rows."""
    request, _ = replies[0]
    matrix = neighbour_attack.matrix_of(replies)
    true = situation.X[:, 0]
    guesses = neighbour_attack.values_of_rows(matrix, request.eps, true)
    drawn = situation.rng.choice(situation.known[:, 0], len(true))
    errors = np.abs(guesses - true), np.abs(drawn - true), np.abs(guesses - true)
    tolerances = situation.tolerance, situation.tolerance, EXACT
    shares = [float((e <= t).mean()) for e, t in zip(errors, tolerances, strict=True)]
    return Score(len(true), *shares)


def masked_values(situation, replies, secret):
    """Measure masked values: the server takes the words as numbers between 0 and 1.

    That is the range of the features, and the words are all that it has.
    """
    words = np.concatenate([reply.words for reply in replies]) / 2.0**64
    if secret == "classes or targets":
        return _masked_labels(situation, words)
    if secret == "values":
        guesses = pairs(np.arange(len(words)) % situation.X.shape[1], words)[: situation.X.size]
        return situation.score(as_values(situation.X), guesses, as_values(situation.known))
    n_features = situation.X.shape[1]
    guesses = words[: len(words) // n_features * n_features].reshape(-1, n_features)
    return situation.score(situation.X, guesses[: len(situation.X)], situation.known)


def _masked_labels(situation, words):
    """Return the score of the words as the classes of the rows (0 below 1/2), or as targets."""
    n, y = len(situation.X), situation.y
    begin = next(r for r, _ in situation.replies if isinstance(r, BeginBoosting))
    if begin.objective != "binary:logistic":
        return situation.score(y[:, None], words[:n, None], situation.known_y[:, None])
    is_second = y == max(begin.classes)
    right = np.mean((words[:n] >= 0.5) == is_second)
    return Score(n, float(right), float(max(is_second.mean(), 1 - is_second.mean())), 0.0)


def overlap(situation, replies):
    """Measure whether the server knows which rows another client has, too: it knows it of all."""
    (_, reply), *_ = replies
    shared = next(r.kept for r, _ in situation.replies if hasattr(r, "kept"))
    return Score(len(reply.pseudonyms), 1.0, max(shared.mean(), 1 - shared.mean()), 1.0)


def classes(groups):
    """Return the measure of an attack on the classes or targets of rows, from the first tree.

    ``groups`` returns the sums of gradients in groups of rows: one array (n_groups, 2) for each
    division of the rows into groups. The server uses the division that tells most.
    """

    def measure(situation, replies):
        begin = next(r for r, _ in situation.replies if isinstance(r, BeginBoosting))
        of_group = score_of_classes if begin.objective == "binary:logistic" else score_of_targets
        scores = [of_group(situation, sums, begin) for sums in groups(*replies[0], begin)]
        return max(scores, key=lambda score: score.located)

    return measure


def score_of_classes(situation, sums, begin):
    """Return how many classes the server knows if it guesses the most frequent one of each group.

    It knows those exactly that are the only ones of their group.
    All predictions are p, so n rows of which n₁ are positive have G = n·p - n₁, H = n·p·(1 - p).
    """
    p = expit(begin.margins[0])
    gradients, hessians = np.ldexp(np.asarray(sums, float), -begin.bits).T
    n = np.rint(hessians / (p * (1 - p)))
    positive = np.rint(n * p - gradients)
    known, total = np.maximum(positive, n - positive).sum(), n.sum()
    most = max(positive.sum(), total - positive.sum())
    certain = n[(positive == 0) | (positive == n)].sum()
    return Score(int(total), *(float(one / total) for one in (known, most, certain)))


def score_of_targets(situation, sums, begin):
    """Return how many targets the server knows from the groups with one row.

    For the squared error, n rows have G = n·b - Σy and H = n, if b is the prediction.
    """
    gradients, hessians = np.ldexp(np.asarray(sums, float), -begin.bits).T
    guesses = begin.margins[0] - gradients[np.rint(hessians) == 1]
    return situation.score(situation.y[:, None], guesses[:, None], situation.known_y[:, None])


def bins_of_features(request, reply, begin):
    """Return the sums in the bins of the root, feature by feature."""
    if isinstance(reply, PackedHistograms):
        reply = unpack(reply, int(request.wanted.sum()), request.n_bins)
    return np.split(reply.sums[0], begin.offsets[1:-1])


def sides_of_splits(request, reply, begin):
    """Return the sums left and right of each split of the root."""
    first = slice(int(request.count[0]))
    return [np.stack([left, reply.totals[0] - left]) for left in reply.left[first]]


def leaves(request, reply, begin):
    """Return the sums in the leaves."""
    return [reply.sums[reply.sums[:, 1] > 0]]


class Attack(NamedTuple):
    """What the server guesses from a kind of reply, and the function that measures its success.

    The function takes a `Situation` and the pairs of requests and replies of this kind, and returns
    a `Score`.
    """

    secret: str
    measure: Callable[[Situation, list], Score]


def _means(request, reply):
    return reply.means


def _means(request, reply):
    return reply.means


def _representatives(request, reply):
    return reply.representatives


def _column_means(request, reply):
    return pairs(request.columns, reply.means)


def _thresholds(request, reply):
    return pairs(reply.feature, reply.threshold)


# What the server guesses from each kind of reply, and the measure of its success.
ATTACKS: dict[type[Message], Attack] = {
    CellCounts: Attack("points", points(cell_centres)),
    GridCounts: Attack("points", points(block_centres)),
    NoisyCounts: Attack("points", points(fullest_cells)),
    LocalModel: Attack("points", points(_representatives)),
    WeightedRepresentatives: Attack("points", points(_representatives)),
    BlurredRepresentatives: Attack("points", points(_representatives)),
    LocalCentres: Attack("points", points(lambda _, reply: reply.centres)),
    GroupMeans: Attack("points", points(_means)),
    ClusterSums: Attack("points", points(cluster_means)),
    NoisyClusterSums: Attack("points", points(noisy_means)),
    NoisyResponsibilitySums: Attack("points", points(noisy_means)),
    LabelledMoments: Attack("points", points(_means)),
    LocalMixture: Attack("points", points(component_means)),
    ImprovedMixture: Attack("points", points(component_means)),
    ResponsibilitySums: Attack("points", points(component_means)),
    ClusterMixtures: Attack("points", points(component_means)),
    Extremes: Attack("values", values(extremes)),
    ValueMoments: Attack("values", values(_column_means)),
    BinCounts: Attack("values", values(bin_middles)),
    RowsPerBucket: Attack("values", values(buckets)),
    ScoreCounts: Attack("values", values(probabilities)),
    SplitProposals: Attack("values", values(_thresholds)),
    CandidateSums: Attack("classes or targets", classes(sides_of_splits)),
    LeafSums: Attack("classes or targets", classes(leaves)),
    Histograms: Attack("classes or targets", classes(bins_of_features)),
    SummableHistograms: Attack("classes or targets", classes(bins_of_features)),
    PackedHistograms: Attack("classes or targets", classes(bins_of_features)),
    NeighbourBlock: Attack("values of rows", order_of_rows),
    Pseudonyms: Attack("rows in common", overlap),
}

SIZES = "the reply states sizes of groups; a group of one row is that row's"
WHOLE = "a sum over all rows of a client"
NO_ROWS = "the reply does not depend on single rows"
# Replies that no attack on single rows uses, and why.
WITHOUT_ATTACK: dict[type[Message], str] = {
    ClassCounts: SIZES,
    CategoryCounts: SIZES,
    LevelCounts: SIZES,
    TrainingDescription: SIZES,
    ColumnDescription: SIZES,
    RowDescription: WHOLE,
    TargetDescription: WHOLE,
    TargetSums: WHOLE,
    ClassSums: SIZES,
    LabelMagnitudes: WHOLE,
    ColumnMagnitudes: WHOLE,
    ColumnSums: WHOLE,
    MagnitudeCounts: WHOLE,
    PointSums: WHOLE,
    Inertia: WHOLE,
    Likelihood: WHOLE,
    RowScores: WHOLE,
    ClusterDistances: "a sum over all rows of a cluster",
    PointsIntroduction: NO_ROWS,
    PointsMagnitude: NO_ROWS,
    Features: NO_ROWS,
    ColumnKinds: NO_ROWS,
    SignedKeys: "random numbers and signatures",
    EncryptedShares: "random numbers that only other clients can open",
    Confirmation: "a signature",
    RevealedShares: "shares of random numbers",
}


def attack(name, estimator, parts, known, tolerance, rng, client_options=None):
    """Return one row per kind of reply: the share of the first client's points that are located.

    Parameters
    ----------
    name : str
    estimator : Federated
    parts : list of array
        The points of each client; the first one is attacked.
    known : array (n_known, n_features)
        Points of the same distribution that the server knows; guessing draws from them.
    tolerance : float
    rng : Generator
    client_options : dict, optional
        Arguments of the clients.
    """
    replies = replies_of(estimator, parts, client_options)
    situation = Situation(replies, parts[0], None, known, None, tolerance, rng)
    rows = []
    for kind, of_kind in by_kind(replies).items():
        if kind in ATTACKS:
            score = ATTACKS[kind].measure(situation, of_kind)
            rows.append(
                {
                    "protocol": name,
                    "message": kind.__name__,
                    "guesses": score.guesses,
                    "located": score.located,
                    "by guessing": score.chance,
                    "exactly": score.exact,
                }
            )
    return pd.DataFrame(rows)


def by_kind(replies):
    """Return the pairs of requests and replies by the class of the reply."""
    kinds: dict[type[Message], list] = {}
    for request, reply in replies:
        kinds.setdefault(type(reply), []).append((request, reply))
    return kinds


def membership_advantage(cells, side, members, others):
    """Return the advantage of guessing that a row is a client's if its cell is occupied.

    It is the share of members that are recognised less the share of others that are taken for
    members: 1 if the server knows, and 0 if it guesses.
    """
    occupied = set(map(tuple, cells.tolist()))

    def recognised(X):
        return np.mean(
            [tuple(cell) in occupied for cell in np.floor(X / side).astype(int).tolist()]
        )

    return float(recognised(members) - recognised(others))


def remove_noise(first, second, factor):
    """Return the means behind two replies with the same noise, the second times ``factor``."""
    return (factor * first.representatives - second.representatives) / (factor - 1)
