"""Points, radii and comparisons for the page on the engine of DBSCAN."""

import numpy as np


def uniform(rng, n, d):
    """Return points spread evenly over the unit cube."""
    return rng.random((n, d))


def blobs(rng, n, d):
    """Return points of fifty round clouds of different widths on a thin background."""
    centres, widths = rng.random((50, d)), rng.uniform(0.002, 0.03, 50)
    cloud = rng.integers(0, 50, n)
    X = centres[cloud] + rng.normal(size=(n, d)) * widths[cloud, None]
    X[: n // 20] = rng.random((n // 20, d))
    return X


def repeated(rng, n, d):
    """Return blobs with coordinates rounded to hundredths: many points are equal."""
    return np.round(blobs(rng, n, d), 2)


def radius(n, d, expected):
    """Return the radius of a ball that holds this many of n points spread over the unit cube."""
    volume = {2: np.pi, 3: 4 / 3 * np.pi}[d]
    return (expected / n / volume) ** (1 / d)


def same_clusters(labels, other, core):
    """Return whether the core points are grouped alike, whatever the numbers of the clusters.

    Examples
    --------
    >>> core = np.array([True, True, True, False])
    >>> same_clusters(np.array([0, 0, 1, 1]), np.array([5, 5, 3, 5]), core)
    True
    >>> same_clusters(np.array([0, 0, 1, 1]), np.array([5, 5, 5, 5]), core)
    False
    """
    pairs = np.unique(np.column_stack([labels[core], other[core]]), axis=0)
    return len(pairs) == len(np.unique(pairs[:, 0])) == len(np.unique(pairs[:, 1]))


def from_package(found, package):
    """Return how the package's labels and core points differ."""
    (labels, core), (package_labels, package_core) = found, package
    package_core = np.asarray(package_core, bool)
    return {
        "cores differ": (core != package_core).sum(),
        "same clusters": same_clusters(labels, package_labels, core & package_core),
    }


def from_sklearn(found, sklearn):
    """Return how labels and cores differ from scikit-learn's."""
    (labels, core), (their_labels, their_core) = found, sklearn
    return {
        "cores differ": (core != their_core).sum(),
        "core labels differ": (labels[core] != their_labels[core]).sum(),
        "noise differs": ((labels < 0) != (their_labels < 0)).sum(),
        "borders elsewhere": (labels != their_labels)[~core].sum(),
    }
