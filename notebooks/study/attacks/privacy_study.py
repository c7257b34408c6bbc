"""Measurements of differential privacy: accuracy against epsilon, and a bound on epsilon."""

import numpy as np
from scipy.stats import beta
from sklearn.base import clone

from fedlib.clustering.density.bounded_cells import CountWithNoise
from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.clustering.kmeans import FederatedKMeansClient, SumClustersNoisily
from fedlib.protection.privacy import Privacy


def keys(methods, epsilons, n_runs):
    """Return the units of a comparison of methods with noise per client and in shares."""
    return [
        {"method": method, "noise": noise, "epsilon": epsilon, "run": run}
        for method in methods
        for noise in ("per client", "in shares")
        for epsilon in epsilons
        for run in range(n_runs)
    ]


def without_noise(estimator, parts):
    """Return the labels of all rows by an estimator without its guarantee and its bounds."""
    plain = clone(estimator).set_params(epsilon=None, delta=0.0, bounds=None)
    return np.concatenate(plain.fit(parts).labels_)


def medians(rows):
    """Return the median score of each method and epsilon, with noise per client."""
    chosen = rows[rows["noise"] == "per client"]
    return chosen.groupby(["method", "epsilon"])["score"].median()


def listed(values, form):
    """Return numbers as words of a sentence.

    Examples
    --------
    >>> listed([1.0, 3.0, 10.0], "{:g}")
    '1, 3 and 10'
    """
    *first, last = map(form.format, values)
    return f"{', '.join(first)} and {last}" if first else last


def lower_bound(with_row, without_row, delta=0.0, confidence=0.95):
    """Return an epsilon that replies must have at least, by testing which data they come from.

    A tester says "with the row" if a statistic is above a threshold. With (epsilon, delta), the
    rate at which it is right is at most ``exp(epsilon)`` times the rate at which it is wrong, plus
    delta. The first half of the replies determines the threshold, and the second half the rates,
    with the bounds of Clopper and Pearson.

    Parameters
    ----------
    with_row, without_row : array (n,)
        The statistic of replies to the same request, with and without one row.
    delta : float
    confidence : float
        Of both rates together.

    Returns
    -------
    float
    """
    half = len(with_row) // 2
    thresholds = np.quantile(np.concatenate([with_row[:half], without_row[:half]]), QUANTILES)
    best = max(
        thresholds, key=lambda t: _bound(with_row[:half] > t, without_row[:half] > t, delta, 0.5)
    )
    return _bound(with_row[half:] > best, without_row[half:] > best, delta, confidence)


QUANTILES = np.linspace(0.02, 0.98, 49)


def _bound(right, wrong, delta, confidence):
    level = (1 - confidence) / 2
    n, hits, errors = len(right), right.sum(), wrong.sum()
    least = beta.ppf(level, hits, n - hits + 1) if hits else 0.0
    most = beta.ppf(1 - level, errors + 1, n - errors) if errors < n else 1.0
    return float(max(0.0, np.log(max(least - delta, 1e-12) / most)))


def replies_to_counts(privacy, n_replies, flaw=1.0):
    """Return the noisy counts of the cell of one row, in replies with and without the row.

    ``flaw`` divides the noise, to show that the test finds a client that adds too little. The noise
    is that of real sites and has no seed.
    """
    request = CountWithNoise(1.0, np.array([0]), np.array([3]), _weaker(privacy, flaw))
    rows = np.array([[1.5], [0.5], [1.2]])
    clients = HorizontalDBSCANClient(rows), HorizontalDBSCANClient(rows[1:])
    return [
        np.array([client.handle(request).counts[1] for _ in range(n_replies)]) for client in clients
    ]


def replies_to_sums(privacy, n_replies, flaw=1.0):
    """Return the projections of noisy sums of k-means on the difference that one row makes.

    The row lies in a corner of the bounds, where it changes the sums most.
    """
    bounds, centres = np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([[0.1, 0.1], [0.9, 0.9]])
    request = SumClustersNoisily(_weaker(privacy, flaw), bounds, centres)
    rows = np.array([[1.0, 1.0], [0.2, 0.4], [0.8, 0.7]])
    clients = FederatedKMeansClient(rows), FederatedKMeansClient(rows[1:])

    def statistic(client):
        reply = client.handle(request)
        return reply.sums[1].sum() + reply.counts[1]

    return [np.array([statistic(client) for _ in range(n_replies)]) for client in clients]


def _weaker(privacy, flaw):
    return Privacy(epsilon=privacy.epsilon * flaw, rho=privacy.rho * flaw**2)


MECHANISMS = {"a count per cell": replies_to_counts, "a round of k-means": replies_to_sums}
