"""Points, radii and comparisons for the page on the engine of DBSCAN."""

import numpy as np

from study.measuring.performance_study import blobs


def repeated(n, d, rng):
    """Return blobs with coordinates rounded to hundredths: many points are equal."""
    return np.round(blobs(n, d, rng), 2)


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
