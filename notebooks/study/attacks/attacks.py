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

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.neighbors import KDTree

from fedlib.boosting.categories import LevelCounts
from fedlib.boosting.cuts import RowsPerBucket
from fedlib.boosting.descriptions import (
    ClassSums,
    TargetDescription,
    TargetSums,
    TrainingDescription,
)
from fedlib.boosting.first_scores import ResidualSums, TargetCounts
from fedlib.boosting.histograms import (
    Histograms,
    NoisyHistograms,
    PackedHistograms,
    SummableHistograms,
    unpack,
)
from fedlib.boosting.messages import BeginBoosting, CandidateSums, LeafSums, SplitProposals
from fedlib.boosting.scores import RowScores
from fedlib.clustering.density.bounded_cells import GridCounts, NoisyCounts
from fedlib.clustering.density.dbdc import LocalModel
from fedlib.clustering.density.horizontal import CellCounts
from fedlib.clustering.density.ppdbdc import BlurredRepresentatives
from fedlib.clustering.density.sdbdc import WeightedRepresentatives
from fedlib.clustering.density.vertical import NeighbourBlock, RowDescription
from fedlib.clustering.kmeans.flow import NoisyClusterSums
from fedlib.clustering.kmeans.messages import (
    ClusterSums,
    GroupMeans,
    Inertia,
    LocalCentres,
    WeightedClusterSums,
)
from fedlib.clustering.mixtures.dbscan import ClusterMixtures
from fedlib.clustering.mixtures.messages import (
    ImprovedMixture,
    Likelihood,
    LocalMixture,
    PointsIntroduction,
    ResponsibilitySums,
    WeightedImprovedMixture,
    WeightedResponsibilitySums,
)
from fedlib.clustering.mixtures.private import NoisyResponsibilitySums
from fedlib.core.messages import Message
from fedlib.evaluation.messages import (
    ClassCounts,
    ClassScoreTotals,
    ClusterDistances,
    ErrorSums,
    LabelledMoments,
    ScoreCounts,
)
from fedlib.evaluation.selection.density import PointsMagnitude
from fedlib.protection.secure.messages import (
    Confirmation,
    EncryptedShares,
    RevealedShares,
    SignedKeys,
)
from fedlib.protection.secure.points import (
    Features,
    PointCount,
    PointSums,
    WeightedPointSums,
)
from fedlib.protection.sums import RowTotals
from fedlib.tables.alignment import Pseudonyms
from fedlib.tables.components import Scatter
from fedlib.tables.summary.from_schema import KnownCategoryCounts, ValueCounts
from fedlib.tables.summary.messages import (
    BinCounts,
    CategoryCounts,
    ColumnDescription,
    ColumnSums,
    Extremes,
    ValueMoments,
)
from fedlib.tables.summary.private import NoisyColumnSums
from fedlib.testing import Recorder
from study.attacks import neighbour_attack
from study.attacks.attack_guesses import (
    as_values,
    bin_middles,
    block_centres,
    buckets,
    cell_centres,
    cluster_means,
    component_means,
    extremes,
    fullest_cells,
    noisy_bin_middles,
    noisy_means,
    pairs,
    probabilities,
    probabilities_of_the_last_class,
)

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
    p = expit(begin.first_margins[0])
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
    guesses = begin.first_margins[0] - gradients[np.rint(hessians) == 1]
    return situation.score(situation.y[:, None], guesses[:, None], situation.known_y[:, None])


def noisy_bins(situation, replies):
    """Measure the classes or targets of the rows that the server guesses from noisy histograms.

    In each bin of the first tree, it guesses the class with more rows, or the mean target. The
    score is the mean over the features, because the noise hides which one tells most.
    """
    begin = next(r for r, _ in situation.replies if isinstance(r, BeginBoosting))
    gradients, hessians = replies[0][1].sums[0].T
    if begin.objective != "binary:logistic":
        filled = hessians >= 0.5
        guesses = begin.first_margins[0] - gradients[filled] / hessians[filled]
        return situation.score(situation.y[:, None], guesses[:, None], situation.known_y[:, None])
    p, is_second = expit(begin.first_margins[0]), situation.y == max(begin.classes)
    in_second = gradients < hessians / (p * (1 - p)) * (p - 0.5)
    right = []
    for j, (first, stop) in enumerate(pairwise(begin.offsets)):
        bins = np.searchsorted(begin.thresholds[first:stop], situation.X[:, j], side="right")
        right.append(
            np.mean(in_second[first:stop][np.minimum(bins, stop - first - 1)] == is_second)
        )
    most = max(is_second.mean(), 1 - is_second.mean())
    return Score(len(situation.X), float(np.mean(right)), float(most), 0.0)


def bins_of_features(request, reply, begin):
    """Return the sums in the bins of the root, feature by feature."""
    if isinstance(reply, PackedHistograms):
        reply = unpack(reply, request)
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
    NoisyColumnSums: Attack("values", values(noisy_bin_middles)),
    RowsPerBucket: Attack("values", values(buckets)),
    ScoreCounts: Attack("values", values(probabilities)),
    ClassScoreTotals: Attack("values", values(probabilities_of_the_last_class)),
    SplitProposals: Attack("values", values(_thresholds)),
    CandidateSums: Attack("classes or targets", classes(sides_of_splits)),
    LeafSums: Attack("classes or targets", classes(leaves)),
    Histograms: Attack("classes or targets", classes(bins_of_features)),
    SummableHistograms: Attack("classes or targets", classes(bins_of_features)),
    NoisyHistograms: Attack("classes or targets", noisy_bins),
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
    KnownCategoryCounts: SIZES,
    ValueCounts: SIZES,
    LevelCounts: SIZES,
    TrainingDescription: SIZES,
    ColumnDescription: SIZES,
    RowDescription: WHOLE,
    TargetDescription: WHOLE,
    TargetSums: WHOLE,
    ResidualSums: WHOLE,
    TargetCounts: "as RowsPerBucket, whose attack takes the middles of buckets: here of targets",
    ClassSums: SIZES,
    ColumnSums: WHOLE,
    Scatter: WHOLE,
    RowTotals: WHOLE,
    ErrorSums: WHOLE,
    PointCount: WHOLE,
    PointSums: WHOLE,
    WeightedPointSums: WHOLE,
    WeightedClusterSums: "as ClusterSums, whose attack divides by counts instead of weights",
    WeightedResponsibilitySums: "as ResponsibilitySums, whose attack divides by counts",
    WeightedImprovedMixture: "as ImprovedMixture: its attack does not use the number of points",
    Inertia: WHOLE,
    Likelihood: WHOLE,
    RowScores: WHOLE,
    ClusterDistances: "a sum over all rows of a cluster",
    PointsIntroduction: NO_ROWS,
    PointsMagnitude: NO_ROWS,
    Features: NO_ROWS,
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
