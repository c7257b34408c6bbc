"""Shared by the tests of mixtures: points, first mixtures, and altered messages."""

import numpy as np
import pytest

from fedlib.clustering.mixtures.client import GaussianMixtureClient
from fedlib.datasets.partition import split_rows

COVARIANCE_TYPES = ["full", "tied", "diag", "spherical"]
METHODS = ["average", "em"]
EYE = np.eye(2)
each_covariance_type = pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
each_method = pytest.mark.parametrize("method", METHODS)

# A first mixture of two components so far apart that each point belongs to one of them only.
START = {"weights_init": [0.5, 0.5], "means_init": [[0.0], [100.0]]}
ONES = {
    "full": np.ones((2, 1, 1)),
    "tied": np.ones((1, 1)),
    "diag": np.ones((2, 1)),
    "spherical": np.ones(2),
}


def blobs(n=240, d=2, seed=0, apart=4.0):
    """Return points of three clusters of different shapes."""
    rng = np.random.default_rng(seed)
    shapes = rng.normal(size=(3, d, d)) + np.eye(d)
    centres = apart * rng.normal(size=(3, d))
    cluster = rng.integers(3, size=n)
    return np.einsum("nij,nj->ni", shapes[cluster], rng.normal(size=(n, d))) + centres[cluster]


def divided(X, n_clients=3, seed=0):
    """Return one part of the points per client, divided at random."""
    return [X[rows] for rows in split_rows(X, n_clients, how="uniform", random_state=seed)]


def draw_start(X, k, covariance_type, rng):
    """Draw a first mixture; return it as scikit-learn's parameters."""
    d = X.shape[1]
    unit = {"full": np.eye(d), "tied": np.eye(d), "diag": np.ones(d), "spherical": 1.0}
    one = unit[covariance_type]
    scale = rng.uniform(0.5, 2, size=k)
    precisions = np.multiply.outer(scale, one) if covariance_type != "tied" else scale[0] * one
    return {
        "weights_init": rng.dirichlet(np.full(k, 5.0)),
        "means_init": X[rng.choice(len(X), k, replace=False)],
        "precisions_init": precisions,
    }


def clients_with(last, parts):
    """Return the clients A and B with the first two parts, and C."""
    return {"A": GaussianMixtureClient(parts[0]), "B": GaussianMixtureClient(parts[1]), "C": last}


def float64(*values):
    """Return an array of float64 in the form that a message contains."""
    array = np.array(values, float)
    return ["float64", list(array.shape), array.tobytes()]


def int64(*values):
    """Return an array of int64 in the form that a message contains."""
    return ["int64", [len(values)], np.array(values, np.int64).tobytes()]
