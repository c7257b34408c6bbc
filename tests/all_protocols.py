"""Every protocol of fedlib with small data, and how to compare its results."""

from dataclasses import is_dataclass

import numpy as np

from fedlib.core.estimator import Federated
from fedlib.core.messages import Message, encode
from fedlib.core.registry import protocols
from fedlib.sites.site import make_estimator


def _blobs(n_parts=3):
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    X = np.concatenate([c + rng.normal(scale=0.4, size=(40, 2)) for c in centres])
    return np.array_split(X[rng.permutation(len(X))], n_parts)


def _weighted(n_parts=3):
    return [(X, np.arange(len(X)) % 4 / 2) for X in _blobs(n_parts)]


def _columns(n_parts=3):
    x, y = np.concatenate(_blobs()).T
    return [column[:, np.newaxis] for column in (x, y, x + y, x - y, 2 * x)[:n_parts]]


def _supervised(n_parts=3):
    return [(X, (X[:, 0] > 2).astype(int)) for X in _blobs(n_parts)]


def _margins(n_parts=3):
    return [(X, y, None, None, X[:, 1] - 1) for X, y in _supervised(n_parts)]


def _margins_of_classes(n_parts=3):
    return [(X, y, None, None, X - 1) for X, y in _supervised(n_parts)]


def _margins_of_numbers(n_parts=3):
    return [(X, y, None, None, 10 * X[:, 0]) for X, y in _numbers(n_parts)]


def _times(n_parts=3):
    """Return rows with times: known ones, and ones that are only known to be later or earlier."""
    return [
        (
            X,
            np.exp(
                np.column_stack([np.where(X[:, 1] < 0, -np.inf, y), np.where(y > 1, np.inf, y)])
            ),
        )
        for X, y in ((X, X[:, 0] / 2) for X in _blobs(n_parts))
    ]


def _numbers(n_parts=3):
    return [(X, X[:, 0] + X[:, 1]) for X in _blobs(n_parts)]


def _predictions(n_parts=3):
    return [(X[:, 0] % 1, y) for X, y in _supervised(n_parts)]


def _estimates(n_parts=3):
    return [(X[:, 0], y) for X, y in _numbers(n_parts)]


PARTS = {
    "rows": _blobs,
    "columns": _columns,
    "classes": _supervised,
    "numbers": _numbers,
    "probabilities": _predictions,
    "estimates": _estimates,
}
OURS = [name for name, kind in protocols().items() if kind.__module__.startswith("fedlib.")]
EXAMPLES = {name: protocols()[name].example for name in OURS}
# The parameters of each protocol, and the function that makes its parts, by default three.
PROTOCOLS = {name: (one.parameters, PARTS[one.parts]) for name, one in EXAMPLES.items()}


def frozen(value):
    """Return a value as bytes and tuples that are equal only if every bit is."""
    if isinstance(value, np.ndarray):
        content = value.tolist() if value.dtype.hasobject else value.tobytes()
        return value.dtype.str, value.shape, repr(content)
    if isinstance(value, Message):
        return encode(value)
    if isinstance(value, dict):
        return tuple((key, frozen(v)) for key, v in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if is_dataclass(value) or isinstance(value, Federated):
        return type(value), frozen(vars(value))
    return value.hex() if isinstance(value, float) else value  # NaN is not equal to itself


def fitted(estimator):
    """Return the fitted attributes except the labels, which stay with the clients."""
    attributes = {k: v for k, v in vars(estimator).items() if k.endswith("_")}
    return frozen({k: v for k, v in sorted(attributes.items()) if k not in {"labels_", "ledger_"}})


def replies_in_clear(recorder):
    """Return the bytes of the replies before the first masked values, by client, per exchange."""
    first = []
    for exchange in recorder.exchanges:
        if any("AdvertiseKeys" in str(request) for request in exchange.requests.values()):
            break
        first.append({name: bytes(reply) for name, reply in exchange.reply_bytes.items()})
    return first


# The protocols with their options ----------------------------------------------------------------

BOUNDS = np.array([[-3.0, -3.0], [7.0, 7.0]])
MASKED = {"secure": True}
NOISY = {"epsilon": 9.0, "delta": 1e-6}
LLOYD = {"method": "lloyd", "init": [[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]], "max_iter": 3}
EM = {"method": "em", "max_rounds": 2, "tol": 0.0}
HISTOGRAMS = {"method": "histogram", "max_bin": 8, "tol": None, "bounds": BOUNDS}
HELD_OUT = {"validation_fraction": 0.3, "random_state": 0}
CONSTRAINED = {
    "method": "histogram",
    "learning_rate": [0.5, 0.3, 0.1],
    "monotone_constraints": {0: 1},
    "interaction_constraints": [[0], [1]],
}
OPTIONS = {
    "horizontal-dbscan": ({"border": "absorb", "random_state": 0},),
    "approximate-dbscan": ({"rho": 1.0, "bounds": BOUNDS},),
    "kmeans": (LLOYD, {"method": "lloyd", "n_init": 2}),
    "pca": ({"n_components": 0.9, "whiten": True},),
    "gaussian-mixture": (EM, {"covariance_type": "diag"}, EM | {"n_init": 2}),
    "evaluation": ({"classes": [0, 1]},),
    "xgboost": (
        {"method": "histogram", "histograms": "dense"},
        {"method": "union"},
        {"objective": "multi:softprob"},
        CONSTRAINED,
        {"method": "histogram", "eval_metric": ["auc", "aucpr"]} | HELD_OUT,
    ),
    "xgb-regressor": (
        {"method": "top_splits"},
        {"eval_metric": "mape"} | HELD_OUT,
        {"objective": "reg:quantileerror", "quantile_alpha": [0.25, 0.75]} | HELD_OUT,
        {"objective": "reg:absoluteerror", "method": "union"},
        {"objective": "reg:expectileerror", "expectile_alpha": [0.25, 0.75]},
    ),
}
# Validation over sites: the protocol around another one, and its parameters.
VALIDATED = {
    "leave-one-site-out/kmeans": (LLOYD | {"n_clusters": 3, "max_iter": 1}, _blobs),
    "leave-one-site-out/xgboost": (
        {"n_trees": 1, "max_depth": 1, "method": "histogram", "n_bins": 5},
        _supervised,
    ),
    "leave-one-site-out/xgboost, noisy": (
        HISTOGRAMS | NOISY | {"n_trees": 1, "max_depth": 1, "classes": [0, 1], "n_bins": 5},
        _supervised,
    ),
}

# Protocols of which rows may have weights, and what they need beside the options above.
WEIGHTED = {
    "kmeans": LLOYD,
    "gaussian-mixture": EM,
    "summary": {"quantiles": (), "bounds": [[-3, -3], [7, 7]], "max_weight": 2.0},
}
# Options that need parts of their own: rows with base margins, and limits of times.
OTHER_PARTS = {
    "xgboost": (
        ({}, _margins),
        ({"method": "histogram", "objective": "multi:softprob"}, _margins_of_classes),
    ),
    "xgb-regressor": (({}, _margins_of_numbers), ({"objective": "survival:aft"}, _times)),
}


def _cases():
    """Yield a name, the protocol, its parameters, and the function that makes its parts."""
    for name, (parameters, parts) in PROTOCOLS.items():
        yield name, (name, parameters, parts)
        for i, more in enumerate(OPTIONS.get(name, ())):
            yield f"{name}, option {i}", (name, parameters | more, parts)
        example = EXAMPLES[name]
        if example.protected is not None:
            masked, noisy = example.protected | example.masked, example.protected | example.noisy
            yield f"{name}, masked", (name, parameters | masked | MASKED, parts)
            yield f"{name}, noisy", (name, parameters | noisy | NOISY, parts)
            yield f"{name}, masked and noisy", (name, parameters | noisy | NOISY | MASKED, parts)
        for i, (more, other_parts) in enumerate(OTHER_PARTS.get(name, ())):
            yield f"{name}, parts {i}", (name, parameters | more, other_parts)
        if name in WEIGHTED:
            weighted, limit = parameters | WEIGHTED[name], {"max_weight": 2.0}
            yield f"{name}, weights", (name, weighted, _weighted)
            yield f"{name}, weights, masked", (name, weighted | masked | MASKED | limit, _weighted)
            yield f"{name}, weights, noisy", (name, weighted | noisy | NOISY | limit, _weighted)


CASES = dict(_cases())
CASES |= {name: (name.partition(",")[0], *case) for name, case in VALIDATED.items()}


def estimator_of(case):
    """Return the estimator of a case; it has not been fitted."""
    name, parameters, _ = CASES[case]
    return make_estimator(name, parameters)


def make_client(estimator, part):
    """Return a client of an estimator; what it draws follows from a seed."""
    seed = {"random_state": 0} if estimator.name == "ppdbdc" else {}
    make, (options,) = estimator._client_factory([seed])
    return make(part, **options)
