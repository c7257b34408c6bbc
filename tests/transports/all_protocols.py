"""What the tests of all transports share: every protocol with small data, and how to compare."""

from dataclasses import is_dataclass

import numpy as np

from fedlib.federated import Federated, protocols
from fedlib.messages import Message, encode


def _blobs(n_parts=3):
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    X = np.concatenate([c + rng.normal(scale=0.4, size=(40, 2)) for c in centres])
    return np.array_split(X[rng.permutation(len(X))], n_parts)


def _columns():
    X = np.concatenate(_blobs())
    return [X[:, :1], X[:, 1:], X.sum(axis=1, keepdims=True)]


def _supervised():
    return [(X, (X[:, 0] > 2).astype(int)) for X in _blobs()]


def _numbers():
    return [(X, X[:, 0] + X[:, 1]) for X in _blobs()]


def _predictions():
    return [(X[:, 0] % 1, y) for X, y in _supervised()]


# A protocol's parameters and the function that makes its parts; one row per protocol.
PROTOCOLS = {
    "horizontal-dbscan": ({"cell_size": 0.5, "min_samples": 4}, _blobs),
    "approximate-dbscan": ({"eps": 0.5, "min_samples": 4, "rho": 0.5}, _blobs),
    "vertical-dbscan": ({"eps": 0.5, "min_samples": 4}, _columns),
    "dbdc": ({"eps": 0.5, "min_samples": 4}, _blobs),
    "sdbdc": ({"eps": 0.5, "min_samples": 4}, _blobs),
    "ppdbdc": ({"eps": 0.5, "min_samples": 4, "random_state": 0}, _blobs),
    "kmeans": ({"n_clusters": 3, "random_state": 0}, _blobs),
    "gaussian-mixture": ({"n_components": 3, "random_state": 0}, _blobs),
    "gaussian-mixture-dbscan": (
        {"eps": 0.5, "min_samples": 4, "n_components": 3, "random_state": 0},
        _blobs,
    ),
    "clustering-score": ({}, _supervised),
    "evaluation": ({"n_bins": 5}, _predictions),
    "summary": ({"quantiles": [0.5]}, _blobs),
    "suggest": ({"min_samples": 4}, _blobs),
    "kmeans-selection": ({"max_clusters": 3, "n_init": 1, "random_state": 0}, _blobs),
    "gaussian-mixture-selection": ({"max_components": 2, "random_state": 0}, _blobs),
    "xgboost": ({"n_trees": 3, "n_candidates": 4}, _supervised),
    "xgb-regressor": ({"n_trees": 2, "max_depth": 2}, _numbers),
}
OURS = [name for name, kind in protocols().items() if kind.__module__.startswith("fedlib.")]


def frozen(value):
    """Return a value as bytes and tuples that are equal only if every bit is."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Message):
        return encode(value)
    if isinstance(value, dict):
        return tuple((key, frozen(v)) for key, v in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if is_dataclass(value) or isinstance(value, Federated):
        return type(value), frozen(vars(value))
    return value


def fitted(estimator):
    """Return the fitted attributes except the labels, which stay with the clients."""
    attributes = {k: v for k, v in vars(estimator).items() if k.endswith("_")}
    return frozen({k: v for k, v in sorted(attributes.items()) if k not in {"labels_", "ledger_"}})
