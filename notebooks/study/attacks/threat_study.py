"""What the page on the threat model reads from the code, and the attacks on one run."""

import inspect
import re

import numpy as np
import pandas as pd

from fedlib import PPDBDC, FederatedKMeans
from fedlib.cli.inspect import messages_of
from fedlib.clustering.kmeans import ClusterSums
from fedlib.core.messages import Done
from fedlib.core.registry import protocols
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import NoisyRequest
from fedlib.testing import Recorder
from study.attacks import attacks
from study.running.transports import secured

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


def run(estimator, parts, policy=None, random_state=0):
    """Fit an estimator; return the clients' labels together, and all exchanges.

    Parameters
    ----------
    estimator : estimator
    parts : list of array (n, n_features)
    policy : int, optional
        The ``min_count`` of the clients' policy.
    random_state : int
        The seed of clients that draw at random.
    """
    options = {"random_state": random_state} if isinstance(estimator, PPDBDC) else {}
    clients = {str(i): estimator.client_class(X, **options) for i, X in enumerate(parts)}
    if getattr(estimator, "secure", False):
        clients = secured(clients)
    if policy is not None:
        rules = Policy.from_dict({"min_count": policy})
        clients = {n: GuardedClient(one, rules, estimator.name) for n, one in clients.items()}
    recorder = Recorder(clients)
    estimator.fit(recorder)
    labels = np.concatenate([one.state.labels for one in clients.values()])
    return labels, recorder.exchanges


def seconds_of(exchanges):
    """Return the time of the server and of all clients together."""
    return sum(one.server_seconds + sum(one.client_seconds.values()) for one in exchanges)


def variants(estimator, parameters, options, needed):
    """Return an estimator per option; ``needed`` are parameters that the options need."""
    return {name: estimator(**parameters, **one, **needed) for name, one in options.items()}


def requests_of_protocols():
    """Return all requests for data: one row each, read from the code."""
    rows = {}
    for estimator in protocols().values():
        client = estimator.client_class
        for request, reply in messages_of(estimator):
            if not request.asks_for_data or reply is Done or request in rows:
                continue
            rows[request] = {
                "request": request.__name__,
                "reply": reply.__name__,
                "the reply has": kind_of_reply(request, reply),
                "work per row": formula(request.work),
                "with min_count": with_min_count(client, request, reply),
            }
    return pd.DataFrame(rows.values()).sort_values("request", ignore_index=True)


def with_min_count(client, request, reply):
    """Return what a site with a minimum count does with a request."""
    if request in client.open_requests or issubclass(request, NoisyRequest):
        return "answered"
    singly = client.partitioners.get(request, ("", None))[1]
    if singly is None:
        return "declined"
    if reply.grouped_by:
        return "small groups are left out"
    return "only if groups count singly" if singly else "declined if a group is small"


def kind_of_reply(request, reply):
    """Return what protects a reply, if anything does."""
    if issubclass(request, NoisyRequest):
        return "noise"
    return "extremes" if reply.extremes else "sums or values"


def formula(method):
    """Return the expression that a method returns.

    Examples
    --------
    >>> from fedlib.clustering.kmeans import SumClusters
    >>> formula(SumClusters.work)
    'n_init * n_clusters'
    """
    (line,) = re.findall(r"return (.+)", inspect.getsource(method))
    line = re.sub(r"^float\((.*)\)$", r"\1", line.replace("self.", ""))
    return "1" if line == "1.0" else line
