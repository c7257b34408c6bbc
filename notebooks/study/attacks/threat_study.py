"""What the page on the threat model reads from the code, and the attacks on one run."""

import inspect

import numpy as np
import pandas as pd

from fedlib import FederatedKMeans
from fedlib.cli.protocols import messages_of
from fedlib.clustering.kmeans import ClusterSums
from fedlib.core.messages import Done
from fedlib.core.registry import protocols
from fedlib.protection.privacy import NoisyRequest
from study.attacks import attacks

OPTIONS = ["secure", "epsilon", "noise", "rank_error", "min_category_count", "min_group_size"]


def options_of_protocols():
    """Return the options of each protocol that limit what is disclosed: one row per protocol."""
    rows = []
    for estimator in protocols().values():
        row = {"class": estimator.__name__}
        row |= {option: "yes" if has(estimator, option) else "–" for option in OPTIONS}
        rows.append(row | {"min_count of a policy": effect_of_min_count(estimator)})
    options = pd.DataFrame(rows)
    return options.drop(columns=[option for option in OPTIONS if (options[option] == "–").all()])


def has(estimator, option):
    """Return whether an estimator has an option; a text as default means something else.

    Examples
    --------
    >>> has(FederatedKMeans, "secure"), has(FederatedKMeans, "noise")
    (True, False)
    """
    parameter = inspect.signature(estimator).parameters.get(option)
    return parameter is not None and not isinstance(parameter.default, str)


def effect_of_min_count(estimator):
    """Return what a site with a minimum count does with the replies of a protocol."""
    effects = set()
    client = estimator.client_class
    for request, reply in messages_of(estimator):
        noisy = issubclass(request, NoisyRequest)
        if reply is Done or noisy or request in client.open_requests:
            continue
        singly = client.partitioners.get(request, ("", None))[1]
        if singly is None:
            effects.add("declined")
        elif reply.grouped_by:
            effects.add("left out")
        else:
            effects.add("singly only" if singly else "declined if small")
    return ", ".join(sorted(effects, reverse=True))


def located(exchanges, points, known, tolerance, rng):
    """Return the largest share of the first site's points that an attack locates.

    Parameters
    ----------
    exchanges : list of Exchange
        Of a `Recorder`.
    points, known : array (n, n_features)
        The points of the site, and those that the attacker has.
    tolerance : float
        A point is located if a guess is within this distance.
    rng : numpy.random.Generator
    """
    replies = [(one.requests["0"], one.replies["0"]) for one in exchanges]
    situation = attacks.Situation(replies, points, None, known, None, tolerance, rng)
    scores = []
    for kind, of_kind in attacks.by_kind(replies).items():
        if kind in attacks.ATTACKS:
            scores.append(attacks.ATTACKS[kind].measure(situation, of_kind))
        elif kind.__name__ == "MaskedValues":
            sent = [reply for _, reply in of_kind]
            scores.append(attacks.masked_values(situation, sent, "points"))
    return max(score.located for score in scores)


class Liar(FederatedKMeans.client_class):
    """A client of k-means that invents its sums."""

    def handle(self, request):
        reply = super().handle(request)
        if isinstance(reply, ClusterSums):
            counts = np.zeros_like(reply.counts)
            counts[..., 0] = 2 * len(self.X)
            sums = np.zeros_like(reply.sums)
            sums[..., 0, :] = 2 * len(self.X)
            return ClusterSums(sums, counts, reply.inertias)
        return reply
