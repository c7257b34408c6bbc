"""What an honest-but-curious server recovers of one client's points from its replies.

The server follows the protocol and guesses where the points of one client are. A point is *located*
if a guess is within a tolerance. Many guesses locate points by chance, so every attack is compared
with the same number of guesses drawn from points of the same distribution that the server knows.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from sklearn.neighbors import KDTree

from fedlib.horizontal_dbscan import CellCounts
from fedlib.kmeans.messages import ClusterSums, LocalCentres
from fedlib.mixtures.dbscan import ClusterMixtures
from fedlib.mixtures.messages import LocalMixture
from fedlib.near_cells import cell_side
from fedlib.representatives.dbdc import LocalModel
from fedlib.representatives.ppdbdc import BlurredRepresentatives
from fedlib.representatives.sdbdc import WeightedRepresentatives
from fedlib.testing import Recorder

VICTIM = "0"


def replies_of(estimator, parts, client_options=None):
    """Return the pairs of requests and replies of the first client in a run."""
    options = client_options or {}
    clients = {str(i): estimator.client_class(X, **options) for i, X in enumerate(parts)}
    recorder = Recorder(clients)
    estimator.fit(recorder)
    answered = [e for e in recorder.exchanges if VICTIM in e.reply_bytes]
    return [(e.requests[VICTIM], e.replies[VICTIM]) for e in answered]


def cell_centres(request, reply):
    """Guess that points are in the middle of their cells."""
    side = getattr(request, "cell_size", None)
    if side is None:
        side = cell_side(request.eps, request.rho, reply.n_features)
    return (reply.cells + 0.5) * side


def single_sums(request, reply):
    """Guess the points that are alone in a cluster: their sum is the point itself."""
    return reply.sums[reply.counts == 1]


# How the server guesses points from each kind of reply.
GUESSES: dict[type, Callable] = {
    CellCounts: cell_centres,
    LocalModel: lambda request, reply: reply.representatives,
    WeightedRepresentatives: lambda request, reply: reply.representatives,
    BlurredRepresentatives: lambda request, reply: reply.representatives,
    LocalCentres: lambda request, reply: reply.centres,
    ClusterSums: single_sums,
    ClusterMixtures: lambda request, reply: reply.means,
    LocalMixture: lambda request, reply: reply.means,
}


def located(X, guesses, tolerance):
    """Return the share of the points X that have a guess within the tolerance."""
    if not len(guesses):
        return 0.0
    distance, _ = KDTree(guesses).query(X)
    return float((distance[:, 0] <= tolerance).mean())


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
    guesses: dict[str, list] = {}
    for request, reply in replies_of(estimator, parts, client_options):
        if type(reply) in GUESSES:
            found = GUESSES[type(reply)](request, reply)
            guesses.setdefault(type(reply).__name__, []).append(found)
    rows = []
    for message, found in guesses.items():
        places = np.concatenate(found)
        chance = known[rng.integers(0, len(known), len(places))]
        rows.append(
            {
                "protocol": name,
                "message": message,
                "guesses": len(places),
                "located": located(parts[0], places, tolerance),
                "by guessing": located(parts[0], chance, tolerance),
            }
        )
    return pd.DataFrame(rows)


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
