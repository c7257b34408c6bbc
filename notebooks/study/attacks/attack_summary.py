"""All attacks on all replies of all protocols, in one table."""

import secrets
from collections.abc import Iterator
from unittest import mock

import msgspec
import numpy as np
import pandas as pd

from fedlib import (
    DBDC,
    PPDBDC,
    SDBDC,
    AlignedRows,
    ApproximateDBSCAN,
    DensitySuggestion,
    FederatedClusteringScore,
    FederatedEvaluation,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedPCA,
    FederatedPipeline,
    FederatedRegressionScore,
    FederatedSummary,
    FederatedXGBClassifier,
    FederatedXGBRegressor,
    GaussianMixtureDBSCAN,
    GaussianMixtureSelection,
    HorizontalDBSCAN,
    KMeansSelection,
    VerticalDBSCAN,
)
from fedlib.cli.inspect import messages_of
from fedlib.clustering.density.vertical import VerticalDBSCANClient
from fedlib.core.client import Client
from fedlib.core.estimator import Federated
from fedlib.core.messages import Done, Message, decode
from fedlib.core.registry import protocols, wrappers
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.protection.secure.fixed_point import WordSums, from_words
from fedlib.protection.secure.messages import MaskedValues
from fedlib.testing import seeded_noise
from study.attacks import attacks
from study.measuring import fault_study

SECURE = "secure sums"
COLUMNS = [
    *("protocol", "message", "secret", "guesses"),
    *("located", "by guessing", "exactly", "smallest group"),
]


def systems(known, eps, min_samples, n_clusters, n_components) -> dict[str, Federated]:
    """Return every protocol with settings in which it sends all of its replies.

    Parameters
    ----------
    known : array (n_known, n_features)
        Points between 0 and 1 that the server knows; some of them are starting points.
    eps, min_samples, n_clusters, n_components
        Parameters of the estimators.
    """
    density = {"eps": eps, "min_samples": min_samples}
    seed = {"random_state": 0}
    bounds = [[0.0] * known.shape[1], [1.0] * known.shape[1]]
    clusters = {"n_clusters": n_clusters, "max_iter": 5, **seed}
    lloyd = {"method": "lloyd", "init": known[:n_clusters]}
    start = {
        "weights_init": np.full(n_components, 1 / n_components),
        "means_init": known[:n_components],
        "precisions_init": np.tile(100 * np.eye(known.shape[1]), (n_components, 1, 1)),
    }
    components = {"n_components": n_components, "max_rounds": 3, "tol": 0.0, **seed}
    trees = {"n_trees": 1, "max_depth": 3, "tol": None}
    packed, dense = ({"method": "histogram", "histograms": how} for how in ("packed", "dense"))
    secure_trees = {**trees, "method": "histogram", "secure": True, "bounds": bounds}
    private = {"epsilon": 1.0, "delta": 1e-6}
    bounded = {"quantiles": (), "bounds": {str(j): (0.0, 1.0) for j in range(known.shape[1])}}
    private_trees = {**secure_trees, **private, "secure": False}
    targets = {"base_score": 0.5, "max_gradient": 0.5}
    return {
        "HorizontalDBSCAN": HorizontalDBSCAN(eps, min_samples),
        "HorizontalDBSCAN, secure": HorizontalDBSCAN(eps, min_samples, secure=True, bounds=bounds),
        "HorizontalDBSCAN, ε = 1": HorizontalDBSCAN(eps, min_samples, bounds=bounds, epsilon=1.0),
        "ApproximateDBSCAN, ρ = 1": ApproximateDBSCAN(**density, rho=1.0),
        "ApproximateDBSCAN, ρ = 0.1": ApproximateDBSCAN(**density, rho=0.1),
        "ApproximateDBSCAN, bounded, ρ = 0.1": ApproximateDBSCAN(**density, rho=0.1, bounds=bounds),
        "ApproximateDBSCAN, secure, ρ = 1": ApproximateDBSCAN(
            **density, rho=1.0, bounds=bounds, secure=True
        ),
        "ApproximateDBSCAN, ε = 1": ApproximateDBSCAN(
            **density, rho=1.0, bounds=bounds, epsilon=1.0
        ),
        "ApproximateDBSCAN, secure, ε = 1": ApproximateDBSCAN(
            **density, rho=1.0, bounds=bounds, secure=True, **private
        ),
        "VerticalDBSCAN": VerticalDBSCAN(**density),
        "AlignedRows": AlignedRows(VerticalDBSCAN(**density)),
        "DBDC, core points": DBDC(**density),
        "DBDC, k-means": DBDC(**density, local_model="kmeans"),
        "SDBDC": SDBDC(**density),
        "PPDBDC": PPDBDC(**density),
        "FederatedKMeans, one shot": FederatedKMeans(**clusters, method="one_shot"),
        "FederatedKMeans, Lloyd": FederatedKMeans(**clusters, **lloyd),
        "FederatedKMeans, Lloyd from k-means++": FederatedKMeans(
            **clusters, method="lloyd", n_init=1
        ),
        "FederatedKMeans, Lloyd, secure": FederatedKMeans(
            **clusters, **lloyd, secure=True, bounds=bounds
        ),
        "FederatedKMeans, Lloyd, ε = 1": FederatedKMeans(
            **clusters, **lloyd, **private, bounds=bounds
        ),
        "FederatedGaussianMixture, average": FederatedGaussianMixture(
            **components, method="average"
        ),
        "FederatedGaussianMixture, EM": FederatedGaussianMixture(**components, method="em"),
        "FederatedGaussianMixture, EM, secure": FederatedGaussianMixture(
            **components, **start, method="em", secure=True, bounds=bounds
        ),
        "FederatedGaussianMixture, EM, ε = 1": FederatedGaussianMixture(
            **components, **start, **private, method="em", bounds=bounds
        ),
        "GaussianMixtureDBSCAN": GaussianMixtureDBSCAN(
            **density, n_components=n_components, **seed
        ),
        "FederatedXGBClassifier, top splits": FederatedXGBClassifier(**trees, method="top_splits"),
        "FederatedXGBClassifier, union": FederatedXGBClassifier(**trees, method="union"),
        "FederatedXGBClassifier, histogram": FederatedXGBClassifier(**trees, **dense),
        "FederatedXGBClassifier, packed": FederatedXGBClassifier(**trees, **packed),
        "FederatedXGBClassifier, secure": FederatedXGBClassifier(**secure_trees, classes=[0, 1]),
        "FederatedXGBClassifier, ε = 1": FederatedXGBClassifier(**private_trees, classes=[0, 1]),
        "FederatedXGBRegressor, top splits": FederatedXGBRegressor(**trees, method="top_splits"),
        "FederatedXGBRegressor, union": FederatedXGBRegressor(**trees, method="union"),
        "FederatedXGBRegressor, histogram": FederatedXGBRegressor(**trees, **dense),
        "FederatedXGBRegressor, packed": FederatedXGBRegressor(**trees, **packed),
        "FederatedXGBRegressor, secure": FederatedXGBRegressor(**secure_trees, max_target=1.0),
        "FederatedXGBRegressor, ε = 1": FederatedXGBRegressor(**private_trees, **targets),
        "FederatedSummary": FederatedSummary(n_bins=10),
        "FederatedSummary, secure": FederatedSummary(**bounded, secure=True),
        "FederatedSummary, ε = 1": FederatedSummary(**bounded, **private),
        "FederatedPCA": FederatedPCA(),
        "FederatedPCA, ε = 1": FederatedPCA(**private, bounds=bounds),
        "FederatedPipeline": FederatedPipeline(
            FederatedKMeans(**clusters, method="one_shot"), scale="minmax", impute="median"
        ),
        "FederatedPipeline, standard": FederatedPipeline(
            FederatedKMeans(**clusters, method="one_shot"), scale="standard", impute="mean"
        ),
        "DensitySuggestion": DensitySuggestion(min_samples),
        "KMeansSelection": KMeansSelection(3, n_init=1, max_iter=3, **seed),
        "GaussianMixtureSelection": GaussianMixtureSelection(3, max_rounds=3, tol=0.0, **seed),
        "FederatedClusteringScore": FederatedClusteringScore(),
        "FederatedRegressionScore": FederatedRegressionScore(),
        "FederatedRegressionScore, ε = 1": FederatedRegressionScore(
            **private, bounds=[[0.0], [1.0]]
        ),
        "FederatedEvaluation": FederatedEvaluation(n_bins=100),
        "FederatedEvaluation, classes": FederatedEvaluation(n_bins=100, classes=[0, 1]),
        "FederatedEvaluation, secure": FederatedEvaluation(classes=[0, 1], secure=True),
        "FederatedEvaluation, ε = 1": FederatedEvaluation(n_bins=100, classes=[0, 1], **private),
    }


def expected() -> dict[tuple[str, type[Message]], None]:
    """Return every protocol with every class of its replies, in order, from the code."""
    found: dict[tuple[str, type[Message]], None] = {}
    everywhere = {**protocols(), **{f"{prefix}…": one for prefix, one in wrappers().items()}}
    for name, estimator in everywhere.items():
        found |= {(name, reply): None for _, reply in messages_of(estimator) if reply is not Done}
    steps = [request.reply for request in SecureClient.handlers]
    return found | {(SECURE, reply): None for reply in steps}


def missing() -> list[str]:
    """Return the names of the replies that have neither an attack nor a reason for none."""
    known = {**attacks.ATTACKS, **attacks.WITHOUT_ATTACK, MaskedValues: None}
    return sorted({kind.__name__ for _, kind in expected() if kind not in known})


def listed(estimator: Federated) -> str:
    """Return the name under which `expected` lists the protocol of an estimator."""
    for prefix in wrappers():
        if estimator.name.startswith(prefix):
            return f"{prefix}…"
    return estimator.name


def summary(
    X, y, known, known_y, n_clients, tolerance, *, rng, **settings
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Run and attack all protocols.

    Parameters
    ----------
    X, y : array (n_points, n_features), (n_points,)
        Points between 0 and 1 and their classes, split among the clients. The first client that
        sends a reply of some kind is attacked.
    known, known_y : array
        Points of the same distribution that the server knows, and their classes.
    n_clients : int
    tolerance : float
    rng : Generator
    **settings
        Arguments of `systems`.

    Returns
    -------
    attacked, others : DataFrame
        One row per system and kind of reply that is attacked, and one row per protocol and kind of
        reply that is not, with the reason.

    Raises
    ------
    KeyError
        When a reply has neither an attack nor a reason, or no system sends one that has an attack.
    """
    parts = list(zip(np.array_split(X, n_clients), np.array_split(y, n_clients), strict=True))
    rows, seen, smallest, replied = [], set(), {}, expected()
    for name, estimator in systems(known, **settings).items():
        clients = dict(_clients(estimator, parts))
        names, sizes = list(clients), {name: {} for name in clients}
        plain = [_witnessed(one, sizes[name]) for name, one in clients.items()]
        if getattr(estimator, "secure", False):
            identities = simulated_identities(names)
            clients = {n: SecureClient(one, identities[n]) for n, one in clients.items()}
        # Masks are drawn anew for each system, and are the same in every build.
        masks = mock.patch.object(secrets, "token_bytes", np.random.default_rng(0).bytes)
        with seeded_noise(0), masks:
            answers = attacks.recorded(estimator, clients)
        kinds = {type(reply): client for client in reversed(names) for _, reply in answers[client]}
        for kind, victim in kinds.items():  # the first client that sends such a reply
            if (listed(estimator), kind) not in replied and kind is not MaskedValues:
                continue  # a reply of the protocol that is wrapped
            of_kind = attacks.by_kind(answers[victim])[kind]
            situation = _situation(
                estimator, answers[victim], parts, int(victim), (known, known_y), tolerance, rng
            )
            group = _smallest(sizes[victim].get(kind, [None]))
            seen.add((SECURE if kind is MaskedValues else listed(estimator), kind))
            if kind is MaskedValues:
                rows += _masked(name, listed(estimator), of_kind, situation, plain, seen)
            elif kind in attacks.ATTACKS:
                rows.append(_row(name, kind.__name__, kind, situation, of_kind, group))
            else:
                key = listed(estimator), kind
                smallest[key] = np.fmin(smallest.get(key, np.nan), group)
    others = [
        (protocol, kind.__name__, _reason(kind, seen), smallest.get((protocol, kind), np.nan))
        for protocol, kind in replied
        if (protocol, kind) not in seen or kind in attacks.WITHOUT_ATTACK
    ]
    columns = ["protocol", "message", "why", "smallest group"]
    return pd.DataFrame(rows, columns=COLUMNS), pd.DataFrame(others, columns=columns)


def _reason(kind, seen):
    """Return why there is no attack on a reply of a protocol.

    A client also knows the requests of the protocol from which its own is derived, although the
    server never sends them. The attacks on these replies are those of the other protocol.
    """
    if kind in attacks.ATTACKS and any(one is kind for _, one in seen):
        return "this server never asks for it; measured for another protocol"
    return attacks.WITHOUT_ATTACK[kind]


def _clients(estimator, parts) -> Iterator[tuple[str, Client]]:
    """Yield the name and the client of each part; of columns if the protocol needs them."""
    aligned = estimator.name.startswith("aligned/")
    if not aligned and estimator.name != "vertical-dbscan":
        for i, (X, y) in enumerate(parts):
            yield str(i), fault_study.make_client(estimator, *_with_classes(estimator, X, y))
        return
    X = _rows_of_columns(parts)
    for i in range(X.shape[1]):
        ids = np.arange(len(X)) + i * len(X) // 3
        options = {"client_class": VerticalDBSCANClient, "ids": ids, "key": bytes(32)}
        yield str(i), estimator.client_class(X[:, [i]], **(options if aligned else {}))


def _rows_of_columns(parts):
    """Return the rows of which each client of a vertical protocol has one column."""
    return np.concatenate([X for X, _ in parts[:2]])


def _with_classes(estimator, X, y):
    """Return the part of a client; a regression learns the first feature instead of the class."""
    return (X, X[:, 0]) if estimator.name == "xgb-regressor" else (X, y)


def _situation(estimator, replies, parts, number, known, tolerance, rng):
    """Return the situation of an attack on the client with this number."""
    client_X, client_y = _with_classes(estimator, *parts[number])
    if estimator.name == "vertical-dbscan":
        client_X = _rows_of_columns(parts)[:, [number]]
    known_X, known_y = _with_classes(estimator, *known)
    if estimator.name in ("evaluation", "regression-score"):
        client_X, known_X = (fault_study.expit(one[:, :1]) for one in (client_X, known_X))
    return attacks.Situation(replies, client_X, client_y, known_X, known_y, tolerance, rng)


def _row(name, message, kind, situation, replies, group):
    score = attacks.ATTACKS[kind].measure(situation, replies)
    row = [name, message, attacks.ATTACKS[kind].secret, *score, group]
    return dict(zip(COLUMNS, row, strict=True))


def _smallest(sizes):
    """Return the fewest rows that a number describes; NaN if a reply does not say."""
    known = [one[one > 0].min() for one in sizes if one is not None and (one > 0).any()]
    return min(known) if len(known) == len(sizes) else np.nan


def _witnessed(client, sizes):
    """Return a list that grows by each request that the client answers, with its reply.

    ``sizes`` gets, for each class of replies, the sizes of the groups of rows behind each of them.
    """
    answered, handle = [], client.handle

    def witness(request):
        reply = plain = handle(request)
        if isinstance(reply, WordSums):  # behind masks
            plain = from_words(request, reply.words.copy(), client.sum_digits(request))
        answered.append((request, plain))
        groups = client.partition(request, singly=True)
        counted = None if groups is None else [np.bincount(one[one >= 0]) for one in groups]
        of_kind = sizes.setdefault(type(plain), [])
        of_kind.append(None if counted is None else np.concatenate([np.zeros(1, int), *counted]))
        return reply

    client.handle = witness
    return answered


def _masked(name, protocol, replies, situation, plain, seen):
    """Return the rows of secure sums: the masked values of the client, and the sums of all.

    ``plain`` has what the clients of the protocol answered before the values were masked.
    """
    inner: dict[type[Message], list] = {}
    for request, reply in replies:
        inner.setdefault(decode(request.request).reply, []).append(reply)
    rows = []
    for kind, of_kind in inner.items():
        seen.add((protocol, kind))
        if kind in attacks.ATTACKS:
            secret = attacks.ATTACKS[kind].secret
            score = attacks.masked_values(situation, of_kind, secret)
            row = [name, f"{kind.__name__}, masked", secret, *score, np.nan]
            rows.append(dict(zip(COLUMNS, row, strict=True)))
            answered = [attacks.by_kind(one)[kind] for one in plain]
            sums = [
                (same[0][0], _total([r for _, r in same])) for same in zip(*answered, strict=True)
            ]
            message = f"{kind.__name__}, sum of all clients"
            rows.append(_row(name, message, kind, situation, sums, np.nan))
    return rows


def _total(replies):
    """Return the sum of replies, field by field."""
    fields = replies[0].__struct_fields__
    sums = {field: sum(getattr(reply, field) for reply in replies) for field in fields}
    return msgspec.structs.replace(replies[0], **sums)
