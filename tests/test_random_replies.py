"""Random replies: whatever a client sends, only that client leaves the run.

The replies are generated from the annotations of the message classes. They are valid by their types
and shapes, and their values are extreme, those of other replies, or near the honest ones. One of
five clients sends them.
"""

import os
import random
import sys
import types
import typing
from contextlib import contextmanager
from functools import cache
from unittest import mock

import msgspec
import numpy as np
import pandas as pd
import pytest
from all_protocols import CASES, estimator_of, make_client
from sklearn.base import clone

from fedlib import (
    DBDC,
    SDBDC,
    AlignedRows,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedPipeline,
    FederatedSummary,
    FederatedXGBClassifier,
    FederatedXGBRegressor,
    HorizontalDBSCAN,
    VerticalDBSCAN,
)
from fedlib.boosting.client import BoostingClient, RegressionClient
from fedlib.clustering.density.vertical import VerticalDBSCANClient
from fedlib.clustering.kmeans.messages import ClusterSums, SumClusters
from fedlib.core.aggregation import Disagreement
from fedlib.core.messages import Declined, Failure, arrays, decode, encode
from fedlib.core.protocol import TooFewClients
from fedlib.protection.secure import ImpossibleSum, SecureClient, simulated_identities
from fedlib.protection.secure import identities as primitives
from fedlib.protection.secure.flow import SumStaysClosed
from fedlib.tables.alignment import AlignedClient
from fedlib.testing import Recorder, seeded_noise

# A liar's names of features, and its points, can be a reason to warn.
pytestmark = [
    pytest.mark.filterwarnings("ignore:no feature names from:UserWarning"),
    pytest.mark.filterwarnings("ignore:feature .* extends over:UserWarning"),
    pytest.mark.filterwarnings("ignore:Number of distinct clusters"),
    pytest.mark.filterwarnings("ignore:.*not converged"),  # of a few rounds
    pytest.mark.filterwarnings("ignore:.*one class(,| only)"),
    pytest.mark.filterwarnings("ignore:the components .* are equal"),
    pytest.mark.filterwarnings("ignore:there is no score of site 'liar'"),
    pytest.mark.filterwarnings("ignore:.* (is|are) NaN, because"),
    pytest.mark.filterwarnings("ignore:.*(clusters|components .*) have no points"),
    pytest.mark.filterwarnings("ignore:.*have fewer than"),  # points at a client that lies
]

RNG = np.random.default_rng(0)
POINTS = {
    name: np.concatenate([RNG.normal(0, 0.5, (7, 2)), RNG.normal(4, 0.5, (7, 2))])
    for name in ["A", "liar", "B", "C", "D"]
}
CLASSES = np.repeat(["ill", "well"], 7)
TABLES = {  # with a gap and text
    name: pd.DataFrame(X, columns=["x", "y"]).mask(X[0, 0] == X).assign(kind=CLASSES)
    for name, X in POINTS.items()
}

DENSITY = {"eps": 1.0, "min_samples": 3}
MIXTURE = {"max_rounds": 3, "max_local_iter": 2, "tol": 0, "random_state": 0}
TREES = {"n_trees": 2, "max_depth": 2, "min_child_weight": 0.1}
# With these values of parameters no run takes long, whatever a liar sends.
SHORT = {"max_cells": 5000, "max_points": 100, "max_categories": 9, "max_bin": 8}
SHORT |= {"n_trees": 2, "max_depth": 2, "max_iter": 4, "max_rounds": 3, "max_local_iter": 2}


def short(estimator):
    """Return the estimator with the parameters of `SHORT` that it has."""
    known = estimator.get_params(deep=False)
    return estimator.set_params(**{name: SHORT[name] for name in SHORT.keys() & known.keys()})


# The table of all protocols, and options that only lies need.
OTHERS = {
    "horizontal-dbscan, absorb": HorizontalDBSCAN(
        0.5, 3, max_cells=1000, border="absorb", assign="cell", adjacency="full", random_state=0
    ),
    "aligned, vertical-dbscan": AlignedRows(VerticalDBSCAN(**DENSITY)),
    "dbdc, centroids": DBDC(**DENSITY, local_model="kmeans"),
    "sdbdc, few": SDBDC(**DENSITY, n_representatives=5, coverage=0.9),
    "kmeans, Lloyd from a drawn start": FederatedKMeans(
        2, method="lloyd", random_state=0, max_iter=4
    ),
    **{
        f"mixture, {method}, {kind}": FederatedGaussianMixture(
            2, method=method, covariance_type=kind, **MIXTURE
        )
        for method in ("em", "average")
        for kind in ("full", "tied", "diag", "spherical")
    },
    "xgboost, ended": FederatedXGBClassifier(**TREES, method="top_splits", leaf="ended"),
    "xgboost, softprob": FederatedXGBClassifier(**TREES, objective="multi:softprob"),
    "xgb-regressor, pseudo-Huber": FederatedXGBRegressor(
        **TREES, objective="reg:pseudohubererror", method="top_splits"
    ),
    "xgb-regressor, Poisson": FederatedXGBRegressor(
        **TREES, objective="count:poisson", method="union"
    ),
    "xgb-regressor, gamma": FederatedXGBRegressor(**TREES, objective="reg:gamma"),
    "xgb-regressor, Tweedie": FederatedXGBRegressor(
        **TREES, objective="reg:tweedie", method="top_splits"
    ),
    "xgb-regressor, logistic": FederatedXGBRegressor(
        **TREES, objective="reg:logistic", method="union"
    ),
    "xgb-regressor, absolute error": FederatedXGBRegressor(
        **TREES, objective="reg:absoluteerror", method="top_splits"
    ),
    "xgb-regressor, quantiles": FederatedXGBRegressor(
        **TREES, objective="reg:quantileerror", quantile_alpha=[0.3, 0.6]
    ),
    "xgb-regressor, expectiles": FederatedXGBRegressor(
        **TREES, objective="reg:expectileerror", expectile_alpha=[0.3, 0.6], method="union"
    ),
    "xgb-regressor, categories": FederatedXGBRegressor(**TREES, max_bin=8, max_cat_to_onehot=2),
    "summary of a table": FederatedSummary(
        quantiles=[0.5], rank_error=0.2, n_bins=3, max_categories=9
    ),
    "pipeline, standard": FederatedPipeline(
        FederatedKMeans(2, method="one_shot", random_state=0),
        scale="standard",
        impute="mean",
        encode="one_hot",
        max_categories=9,
    ),
    "pipeline, components": FederatedPipeline(
        FederatedKMeans(2, random_state=0), impute="mean", encode="one_hot", pca=0.9
    ),
    "pipeline, robust": FederatedPipeline(
        HorizontalDBSCAN(0.5, 3, max_cells=1000),
        scale="robust",
        impute="median",
        encode="one_hot",
        max_categories=9,
        unknown="ignore",
    ),
    "pipeline, min-max": FederatedPipeline(
        HorizontalDBSCAN(0.5, 3, max_cells=1000),
        scale="minmax",
        impute="drop",
        encode="one_hot",
        max_categories=9,
    ),
}
ESTIMATORS = {case: short(estimator_of(case)) for case in CASES} | OTHERS

# Lies from annotations ---------------------------------------------------------------------------

TEXTS = ["", "x", "ill", "well", "mad", "full", "bits", "\x00", "é" * 20, "0" * 64]
LABELS = [*TEXTS, 0, 1, 2, 3, 7, -1, 0.5, 1e300]
LENGTHS = [0, 1, 2, 3, 4, 8, 15, 40]
FACTORS = [-1.0, 0.5, 2.0, 3.0, 1 + 1e-9, 1e3, 1e9, 1e80]


def limits_of(hint):
    """Return the smallest and largest value that `msgspec.Meta` allows, or None."""
    marks = getattr(hint, "__metadata__", ())
    lows = [m.ge if m.ge is not None else getattr(m, "gt", None) for m in marks]
    highs = [m.le if m.le is not None else getattr(m, "lt", None) for m in marks]
    return next(iter(lows), None), next(iter(highs), None)


class Liar:
    """Replaces replies of a client by random ones that are valid by their types and shapes.

    In half of all runs it lies about everything, in the others once, about one field of one reply.

    Parameters
    ----------
    seed : str
    n_replies : int
        How many replies an honest client sends.
    others : mapping of str to list of Message
        The replies of the honest clients so far, by class; it takes values from them.
    """

    def __init__(self, seed, n_replies, others):
        self.random = random.Random(seed)
        self.others = others
        lies_once = self.random.random() < 0.7
        self.step = self.random.randrange(n_replies) if lies_once else None
        self.n_replies = self.n_lies = 0

    def __call__(self, request, reply):
        sent = self.answer(reply)
        self.n_lies += sent != reply
        return sent

    def answer(self, reply):
        """Return what is sent instead of an honest reply."""
        self.n_replies += 1
        if self.step is not None:
            return self.changed(reply, 1) if self.n_replies == self.step + 1 else reply
        how = self.random.random()
        if how < 0.1:
            return encode(self.random.choice([Declined(), Failure("OSError")]))
        return reply if how < 0.4 else self.changed(reply, self.random.randint(1, 4))

    def changed(self, reply, n_fields):
        """Return the bytes of a reply with other values of some fields."""
        message = decode(reply)
        cls = type(message)
        names = cls.__struct_fields__
        if not names:
            return reply
        fields = msgspec.msgpack.decode(reply)
        fields |= {name: packed(getattr(message, name)) for name in names}
        hints, marks = typing.get_type_hints(cls, include_extras=True), arrays(cls)
        chosen = self.random.sample(names, min(n_fields, len(names)))
        other = self.random.choice([*self.others.get(cls, ()), message])
        lengths = self.lengths(marks, other)
        for name in names:
            honest, mark = getattr(message, name), marks.get(name)
            if name in chosen and self.random.random() < 0.15:
                fields[name] = packed(getattr(other, name))
            elif mark is not None:
                shape = [
                    lengths.get(axis, n) for axis, n in zip(mark.axes, honest.shape, strict=True)
                ]
                is_changed = name in chosen or tuple(shape) != honest.shape
                if is_changed:
                    fields[name] = packed(self.array(mark, shape, honest, name in chosen))
            elif name in lengths and isinstance(honest, tuple):  # such as the classes of weights
                more = self.random.sample(LABELS, len(LABELS))
                kept = [one for one in honest if one not in more]
                fields[name] = [*kept, *more][: lengths[name]]
            elif name in chosen:
                fields[name] = self.value(hints[name], honest)
        return msgspec.msgpack.encode(fields)

    def lengths(self, marks, other):
        """Return other lengths of some axes: mostly one more or less, or those of another reply."""
        if self.random.random() < 0.7:
            return {}
        changed = {}
        for name, mark in marks.items():
            for axis, length in zip(mark.axes, getattr(other, name).shape, strict=True):
                near = [length, length, length + 1, max(length - 1, 0), self.random.choice(LENGTHS)]
                changed.setdefault(axis, self.random.choice(near))
        return changed

    def number(self, low, high, kind, honest):
        """Return one number: often an extreme one, or one near the honest value."""
        if kind is int:
            low, high = -(2**63) if low is None else low, 2**63 - 1 if high is None else high
            near = {0, 1, 2, 3, 7, 2**20, 2**31, 2**40, 2**53, low, high, low + 1, high - 1}
            near |= {honest + d for d in (-1, 0, 1)} | {2 * honest, -honest}
        else:
            largest = sys.float_info.max
            low, high = -largest if low is None else low, largest if high is None else high
            near = {0.0, 1e-300, 1e-9, 1.0, 1e6, 2.0**40, 4e99, 1e100, 1e150, 1e200, largest}
            near |= {-x for x in near} | {low, high, 0.5 * low, 0.5 * high}
            near |= {f * honest for f in (1, 1 + 1e-9, 1.001, 2, 0.5, 1e7, -1)}
        return self.random.choice(sorted(kind(x) for x in near if low <= x <= high))

    def array(self, mark, shape, honest, is_chosen):
        """Return an array of this shape with the honest values, altered in one of several ways."""
        size = int(np.prod(shape))
        flat = np.resize(honest, size) if honest.size else np.ones(size, mark.dtype)
        if not is_chosen or not size:
            return flat.reshape(shape)
        if flat.dtype.kind == "b":
            return (flat ^ (self.random.random() < 0.5)).reshape(shape)
        is_integer = flat.dtype.kind in "iu"
        info = np.iinfo(mark.dtype) if is_integer else np.finfo(mark.dtype)
        kind = int if is_integer else float
        low = kind(info.min if mark.ge is None else max(mark.ge, info.min))
        high = kind(info.max if mark.le is None else min(mark.le, info.max))
        flat, at = flat.copy(), self.random.randrange(size)
        new = self.number(low, high, kind, flat[at].item())
        how = self.random.choice(["one", "all", "scaled", "shuffled", "moved", "bordered"])
        if how == "one":
            flat[at] = new
        elif how == "all":
            flat[:] = new
        elif how == "bordered":
            flat[:] = self.random.choices([low, high, 0 if low <= 0 <= high else low], k=size)
        elif how == "shuffled":
            flat = flat[self.random.sample(range(size), size)]
        else:
            factor = self.random.choice(FACTORS)
            with np.errstate(all="ignore"):
                wide = flat.astype(np.float64)
                wide = wide * factor if how == "scaled" else wide + factor
                wide = np.clip(np.nan_to_num(wide), float(low), float(high))
                wide = np.clip(wide, -(2.0**62), 2.0**62) if is_integer else wide
                flat = wide.astype(mark.dtype)
        return flat.reshape(shape)

    def value(self, hint, honest):
        """Return another value of a field that is not an array."""
        bare = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
        origin, args = typing.get_origin(bare), typing.get_args(bare)
        if origin in (typing.Union, types.UnionType):
            kept = next(part for part in args if part is not type(None))
            is_none = self.random.random() < 0.3
            return None if is_none else self.value(kept, 0 if honest is None else honest)
        if bare is bool:
            return not honest
        if bare in (int, float):
            return self.number(*limits_of(hint), bare, honest)
        if origin is typing.Literal:
            return self.random.choice(args)
        if origin is tuple:
            if honest and self.random.random() < 0.5:
                return self.random.sample(honest, len(honest))
            elements = TEXTS if args[0] is str else LABELS
            return self.random.sample(elements, self.random.randint(0, 4))
        if bare is bytes:
            changed = bytearray(honest)
            if changed and self.random.random() < 0.5:
                changed[self.random.randrange(len(changed))] = self.random.randrange(256)
                return bytes(changed)
            return self.random.choice([b"", b"\x01", bytes(reversed(honest)), honest * 2])
        if bare is str:
            return self.random.choice(TEXTS)
        raise NotImplementedError(f"a field of {hint}")


def packed(value):
    if not isinstance(value, np.ndarray):
        return value
    return [value.dtype.name, value.shape, value.tobytes()]


# The runs ----------------------------------------------------------------------------------------


def client_of(case, estimator, name):
    """Return a client of one of the cases, with the data of this name."""
    if case in CASES:
        parts = CASES[case][2](len(POINTS))
        return make_client(estimator, parts[list(POINTS).index(name)])
    if estimator.name == "xgboost":
        return BoostingClient((POINTS[name], CLASSES))
    if estimator.name == "xgb-regressor":
        X = POINTS[name]
        if case.endswith("categories"):
            X = pd.DataFrame(X, columns=["x", "y"]).assign(
                town=["a", "b", "c", "a", "d", "b", None] * 2
            )
        y = np.abs(POINTS[name][:, 0])
        if case.endswith("logistic"):
            y = y / (1 + y)
        return RegressionClient((X, y + 0.1 * case.endswith("gamma")))
    if isinstance(estimator, FederatedSummary):
        return estimator.client_class(TABLES[name])
    if isinstance(estimator, FederatedPipeline):
        return estimator.client_class(TABLES[name], estimator.estimator.client_class)
    if isinstance(estimator, AlignedRows):
        return AlignedClient(POINTS[name], VerticalDBSCANClient, range(14), bytes(32))
    return estimator.client_class(POINTS[name])


@contextmanager
def seeded_secrets():
    """Make the secrets of all clients follow from a seed.

    So the same seed gives the same run.
    """
    draw = np.random.default_rng(0).bytes

    def new_seed():
        return draw(primitives.SEED)

    with (
        mock.patch.object(primitives, "new_seed", new_seed),
        mock.patch("Crypto.Protocol.SecretSharing.rng", draw),
    ):
        yield


def clients_of(name, estimator):
    """Return the clients of a run: one that lies, and four honest ones."""
    clients = {client: client_of(name, estimator, client) for client in POINTS}
    if getattr(estimator, "secure", False):
        identities = simulated_identities([*clients])
        clients = {client: SecureClient(one, identities[client]) for client, one in clients.items()}
    return clients


@cache
def honest_replies(name):
    """Return the replies of the honest clients in a run without lies, by class, and their count."""
    estimator, known = clone(ESTIMATORS[name]), {}
    recorder = Recorder(clients_of(name, estimator))
    with seeded_secrets(), seeded_noise(0):
        estimator.fit(recorder)
    for exchange in recorder.exchanges:
        for client, reply in exchange.replies.items():
            if client != "liar":
                known.setdefault(type(reply), []).append(reply)
    return known, len(recorder.exchanges)


def check(name, seed):
    """Fit with random replies of one client; the others stay to the end. Return its lies."""
    others, n_replies = honest_replies(name)
    estimator = clone(ESTIMATORS[name])
    clients = clients_of(name, estimator)
    liar = Liar(f"{name} {seed}", n_replies, others)
    transport = Recorder(clients, {"liar": liar})
    needs_all, is_secure = name.endswith("vertical-dbscan"), getattr(estimator, "secure", False)
    lost = {"liar"}
    try:
        with seeded_secrets(), seeded_noise(0):
            estimator.fit(transport, min_clients=None if needs_all else len(clients) - 1)
    except TooFewClients:  # sites refuse what follows from a false sum
        assert needs_all or is_secure
        lost = {"liar"} if needs_all else set(clients)
    except Disagreement:
        assert needs_all
    except (ImpossibleSum, SumStaysClosed):  # nobody knows which client is wrong
        assert is_secure
    except ValueError as error:
        known = ("every client is needed, but these are passive", "no row is at all clients")
        # A liar's huge values take the digits of the others, as huge values of an honest site do.
        rounded = (
            "Mixture.covariances must be positive definite",
            "at least one row must have",
            "principal components need at least 2 rows",
            "both classes need rows with a weight",
        )
        if not str(error).startswith(known if needs_all else rounded if is_secure else ()):
            raise
    assert set(transport.ledger.lost) <= lost
    for exchange in transport.exchanges:
        for client, request in exchange.requests.items():
            if client != "liar":  # an honest reply is within the limit of its size
                assert len(exchange.reply_bytes[client]) <= request.reply_limit()
    return liar.n_lies


def check_many(name, seeds):
    """Check runs, and return the count of lies; the error of one names its seed."""
    n_lies = 0
    for seed in seeds:
        try:
            n_lies += check(name, seed)
        except Exception as error:
            error.add_note(f"check({name!r}, {seed})")
            raise
    return n_lies


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_few_random_replies(name):
    check_many(name, range(1 if "masked" in name else 3))


def test_a_request_that_knows_the_shapes_bounds_its_reply_tightly():
    request = SumClusters(np.zeros((2, 30, 7)))
    largest = ClusterSums(np.zeros((2, 30, 7)), np.zeros((2, 30), np.int64), np.zeros(2))
    assert 0 <= request.reply_limit() - len(encode(largest)) < 200


@pytest.mark.liars
@pytest.mark.parametrize("name", ESTIMATORS)
def test_many_random_replies(name):
    first = int(os.environ.get("LIARS_SEED", "100"))
    n_runs = int(os.environ.get("LIARS_EXAMPLES", "1000"))
    assert check_many(name, range(first, first + n_runs)) >= n_runs // 5
