"""Growth of time, memory and messages of the protocols, for the page on growth."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.ticker import NullFormatter

import study
from fedlib import (
    PPDBDC,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedXGBClassifier,
    HorizontalDBSCAN,
    VerticalDBSCAN,
)
from fedlib.clustering.density.engine.dbscan import dbscan
from fedlib.core.in_process import InProcess
from study.boosting import RULES
from study.measuring.performance_study import exponent, medians, radius, stamped
from study.shared.timing import peak_bytes

QUANTITIES = {"seconds": "seconds", "memory": "memory, bytes", "messages": "messages, bytes"}
N_CLOUDS = 8
WARM_UP = 500, 2, 2


def clouds(n, d):
    """Return points of eight round clouds, in random order."""
    rng = np.random.default_rng(0)
    return rng.random((N_CLOUDS, d))[rng.integers(0, N_CLOUDS, n)] + 0.1 * rng.normal(size=(n, d))


def horizontal(n, n_clients, d):
    """Return the estimator and the parts: evenly spread points in about 4,000 cells."""
    X = np.random.default_rng(0).random((n, d))
    cell_size = 4_000 ** (-1 / d)
    return HorizontalDBSCAN(cell_size, max(2, n // 8_000)), np.array_split(X, n_clients)


def vertical(n, n_clients, d):
    """Return the estimator and the parts: about 50 neighbours; every client has d features."""
    X = np.random.default_rng(0).random((n, n_clients * d))
    reach = radius(n, d, 50 ** (1 / n_clients) * n ** (1 - 1 / n_clients))
    return VerticalDBSCAN(min(reach, 1.0), 25), np.split(X, n_clients, axis=1)


def representatives(n, n_clients, d):
    """Return the estimator and the parts: evenly spread points, about twenty within a radius."""
    X = np.random.default_rng(0).random((n, d))
    eps = radius(n, d, 20)
    return PPDBDC(eps, 10, eps_rep=0.5 * eps, random_state=0), np.array_split(X, n_clients)


def lloyd(n, n_clients, d):
    """Return the estimator and the parts: eight centres and ten rounds, which do not converge."""
    X = np.random.default_rng(0).random((n, d))
    model = FederatedKMeans(N_CLOUDS, method="lloyd", init=X[:N_CLOUDS], max_iter=10, tol=0)
    return model, np.array_split(X, n_clients)


def em(n, n_clients, d):
    """Return the estimator and the parts: eight components and ten rounds."""
    X = clouds(n, d)
    start = {
        "weights_init": np.full(N_CLOUDS, 1 / N_CLOUDS),
        "means_init": X[:N_CLOUDS],
        "precisions_init": np.repeat(np.eye(d)[np.newaxis] / 0.04, N_CLOUDS, axis=0),
    }
    model = FederatedGaussianMixture(N_CLOUDS, method="em", max_rounds=10, tol=0, **start)
    return model, np.array_split(X, n_clients)


def boosting(n, n_clients, d):
    """Return the estimator and the parts: ten trees of depth six from histograms."""
    X = clouds(n, d)
    y = (np.sin(9 * X[:, 0]) + X[:, -1] > 0.5).astype(int)
    parts = zip(np.array_split(X, n_clients), np.array_split(y, n_clients), strict=True)
    model = FederatedXGBClassifier(10, max_depth=6, histograms="dense", xgboost_rules=RULES)
    return model, list(parts)


PROTOCOLS = {
    "HorizontalDBSCAN": horizontal,
    "VerticalDBSCAN": vertical,
    "PPDBDC": representatives,
    "Lloyd": lloyd,
    "EM": em,
    "boosting": boosting,
}


def measure(protocol, n_points, n_clients, n_features, n_repeats):
    """Return the median time of a run, its peak memory beyond the data, and all its messages.

    The memory is that of the server and of all clients together, because they share a process. It
    is measured in a run of its own, because this takes time.
    """
    model, parts = PROTOCOLS[protocol](n_points, n_clients, n_features)
    time = medians({"": partial(model.fit, parts)}, n_repeats)[""]
    memory = peak_bytes(model.fit, parts)
    return {"seconds": time, "memory": memory, "messages": model.ledger_.bytes}


def grow(against, sizes, points, clients, features, shares, n_repeats):
    """Return one row per protocol and size.

    Parameters
    ----------
    against : {"points", "clients", "features"}
        What grows.
    sizes : list of int
        Its values.
    points, clients, features : int
        The values of the other two.
    shares : mapping of str to float
        The share of the points that a protocol gets, if not all.
    n_repeats : int
    """
    rows = []
    for protocol, make in PROTOCOLS.items():
        model, parts = make(*WARM_UP)
        model.fit(parts)  # compiles the kernels
        for size in sizes:
            shape = {"points": points, "clients": clients, "features": features, against: size}
            shape["points"] = round(shape["points"] * shares.get(protocol, 1))
            measured = measure(protocol, *shape.values(), n_repeats)
            rows.append({"protocol": protocol, "against": against} | shape | measured)
    return pd.DataFrame(rows)


def slopes(grown):
    """Return the fitted slope of each quantity per protocol; 1 means in proportion."""
    rows = []
    for protocol, runs in grown.groupby("protocol", sort=False):
        sizes = runs[runs["against"].iloc[0]]
        rows.append(
            {"protocol": protocol} | {name: exponent(sizes, runs[name]) for name in QUANTITIES}
        )
    return pd.DataFrame(rows)


def threads(sizes, n_cluster, n_clients, n_repeats):
    """Return the time of the engine and of the protocols with one and with two threads.

    Parameters
    ----------
    sizes : mapping of str to int
        The number of points of each protocol.
    n_cluster : int
        The number of points of the engine.
    n_clients : int
        The clients of a protocol, of which as many work at a time as there are threads.
    n_repeats : int
    """
    works = []
    for d in (2, 3, 5):
        X = np.random.default_rng(0).random((n_cluster, d))
        function = partial(_cluster, X, radius(n_cluster, d, 12))
        works.append((f"dbscan, {d} features", n_cluster, function))
    for protocol, n_points in sizes.items():
        d = 1 if protocol == "VerticalDBSCAN" else 3
        model, parts = PROTOCOLS[protocol](n_points, n_clients, d)
        works.append((protocol, n_points, partial(_fit, model, parts)))
    rows = []
    for work, n_points, function in works:
        function(2)  # kernels of two threads are compiled or read from their files
        times = medians({n: partial(function, n) for n in (1, 2)}, n_repeats)
        rows.append((work, n_points, times[1], times[2], times[1] / times[2]))
    columns = ["work", "points", "one thread, s", "two threads, s", "gain"]
    return stamped(pd.DataFrame(rows, columns=columns))


def _cluster(X, eps, n_threads):
    dbscan(X, eps, 10, n_jobs=n_threads)


def _fit(model, parts, n_threads):
    clients = {str(i): model.client_class(part) for i, part in enumerate(parts)}
    model.fit(InProcess(clients, n_jobs=n_threads))


def draw(grown):
    """Draw the time, the memory and the messages of each protocol in one panel each."""
    against = grown["against"].iloc[0]
    figure, axes = study.panels(3, width=2.5, height=3.2)
    for ax, (name, label) in zip(axes, QUANTITIES.items(), strict=True):
        each = grown.groupby("protocol", sort=False)
        for (protocol, runs), marker in zip(each, "os^Dv*", strict=True):
            ax.loglog(runs[against], runs[name], marker=marker, ms=5, label=protocol)
        ax.set(xlabel=against, title=label)
        if against != "points":  # few sizes, which deserve ticks of their own
            ticks = sorted(set(grown[against]))
            ax.set_xticks(ticks, map(str, ticks))
            ax.xaxis.set_minor_formatter(NullFormatter())
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
