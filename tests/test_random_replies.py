"""Random replies: whatever a client sends, only that client leaves the run.

The replies are generated from the annotations of the message classes. They are valid by their types
and shapes, and their values are often extreme. One or two clients send them, a majority is honest.
"""

import os
import sys
import types
import typing
from contextlib import contextmanager
from unittest import mock

import msgspec
import numpy as np
import pandas as pd
import pytest
from all_protocols import CASES, estimator_of, make_client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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
from fedlib.core.agreement import Disagreement
from fedlib.core.messages import Declined, Failure, arrays, decode, encode
from fedlib.core.protocol import TooFewClients
from fedlib.protection.secure import ImpossibleSum, SecureClient, primitives, simulated_identities
from fedlib.protection.secure.flow import SumStaysClosed
from fedlib.tables.alignment import AlignedClient
from fedlib.testing import Recorder, seeded_noise

# A liar's names of features, and its points, can be a reason to warn.
pytestmark = [
    pytest.mark.filterwarnings("ignore:no feature names from:UserWarning"),
    pytest.mark.filterwarnings("ignore:feature .* extends over:UserWarning"),
    pytest.mark.filterwarnings("ignore:Number of distinct clusters"),
    pytest.mark.filterwarnings("ignore:.*not converged"),  # of a few rounds
    pytest.mark.filterwarnings("ignore:.*one class only"),
    pytest.mark.filterwarnings("ignore:.*clusters have no points"),
    pytest.mark.filterwarnings("ignore:.*have fewer than"),  # points at a client that lies
]

RNG = np.random.default_rng(0)
HONEST = ["A", "B", "C"]
POINTS = {
    name: np.concatenate([RNG.normal(0, 0.5, (7, 2)), RNG.normal(4, 0.5, (7, 2))])
    for name in [*HONEST, "liar", "other liar"]
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

# Strategies from annotations ---------------------------------------------------------------------


def bounds(hint):
    """Return the smallest and largest value that `msgspec.Meta` or `Array` allows, or None."""
    marks = getattr(hint, "__metadata__", ())
    lows = [m.ge if m.ge is not None else getattr(m, "gt", None) for m in marks]
    highs = [m.le if m.le is not None else getattr(m, "lt", None) for m in marks]
    return next(iter(lows), None), next(iter(highs), None)


def numbers(hint, kind, honest):
    """Return a strategy for one number: often an extreme one, or one near the honest value."""
    low, high = bounds(hint)
    if kind is int:
        low, high = -(2**63) if low is None else low, 2**63 - 1 if high is None else high
        near = {0, 1, 2, 3, 7, 2**20, 2**31, 2**40, 2**53, low, high, low + 1, high - 1}
        near |= {honest + d for d in (-1, 0, 1)} | {2 * honest, -honest}
    else:
        low, high = -sys.float_info.max if low is None else low, high
        high = sys.float_info.max if high is None else high
        near = {0.0, 1e-300, 1e-9, 1.0, 1e6, 4e99, 1e100, 1e200, sys.float_info.max}
        near |= {-x for x in near} | {low, high, 0.5 * low, 0.5 * high}
        near |= {f * honest for f in (1, 1 + 1e-9, 1.001, 2, 0.5, 1e7, -1)}
    return st.sampled_from(sorted(x for x in near if low <= x <= high))


@st.composite
def altered_arrays(draw, mark, shape, honest):
    """Return an array of this shape with the honest values, altered in one of several ways."""
    kind = honest.dtype.kind
    size = int(np.prod(shape))
    if kind == "b":
        return draw(st.sampled_from([np.resize(honest, shape), np.zeros(shape, bool)]))
    info = np.iinfo(mark.dtype) if kind in "iu" else np.finfo(mark.dtype)
    low = info.min if mark.ge is None else max(mark.ge, info.min)
    high = info.max if mark.le is None else min(mark.le, info.max)
    number = int if kind in "iu" else float
    low, high = number(low), number(high)
    hint = typing.Annotated[int, msgspec.Meta(ge=low, le=high)]
    flat = np.zeros(size, mark.dtype)
    if honest.size:
        flat = np.resize(honest, size).copy()
    values = numbers(hint, number, flat[0].item() if size else 0)
    how = draw(st.sampled_from(["same", "one", "all", "scaled", "shuffled", "moved"]))
    if how == "one" and size:
        flat[draw(st.integers(0, size - 1))] = draw(values)
    elif how == "all":
        flat[:] = draw(values)
    elif how in ("scaled", "moved"):
        factor = draw(st.sampled_from([-1.0, 0.5, 2.0, 3.0, 1 + 1e-9, 1e3, 1e9, 1e80]))
        with np.errstate(all="ignore"):
            wide = flat.astype(np.float64)
            wide = wide * factor if how == "scaled" else wide + factor
            flat = np.clip(np.nan_to_num(wide), float(low), float(high))
            flat = np.clip(flat, -(2.0**62), 2.0**62) if kind in "iu" else flat
            flat = flat.astype(mark.dtype)
    elif how == "shuffled" and size:
        flat = flat[draw(st.permutations(range(size)))] if size < 50 else flat[::-1].copy()
    return flat.reshape(shape)


TEXTS = st.sampled_from(["", "x", "ill", "well", "mad", "full", "bits", "\x00", "é" * 20])


@st.composite
def altered_fields(draw, message):
    """Return some fields of a message with other values of their types."""
    cls = type(message)
    hints = typing.get_type_hints(cls, include_extras=True)
    marks = arrays(cls)
    names = [*cls.__struct_fields__]
    chosen = draw(st.sets(st.sampled_from(names), min_size=1)) if names else set()
    resized = {}
    if draw(st.integers(0, 3)) == 0:
        axes = sorted({axis for mark in marks.values() for axis in mark.axes})
        for axis in draw(st.sets(st.sampled_from(axes))) if axes else ():
            resized[axis] = draw(st.sampled_from([0, 1, 2, 3, 4, 8, 15, 40]))
    fields = {}
    for name in names:
        hint, honest = hints[name], getattr(message, name)
        if name in marks:
            mark = marks[name]
            pairs = zip(mark.axes, honest.shape, strict=True)
            shape = tuple(resized.get(axis, length) for axis, length in pairs)
            if name in chosen:
                fields[name] = draw(altered_arrays(mark, shape, honest))
            elif shape != honest.shape:
                n = int(np.prod(shape))
                values = np.resize(honest, n) if honest.size else np.ones(n, honest.dtype)
                fields[name] = values.reshape(shape)
        elif name in chosen:
            fields[name] = draw(altered(hint, honest))
    return fields


def altered(hint, honest):
    """Return a strategy for a field that is not an array."""
    bare = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
    origin, args = typing.get_origin(bare), typing.get_args(bare)
    if origin in (typing.Union, types.UnionType):
        kept = next(part for part in args if part is not type(None))
        return st.none() | altered(kept, 0 if honest is None else honest)
    if bare is bool:
        return st.booleans()
    if bare in (int, float):
        return numbers(hint, bare, honest)
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin is tuple:
        element = TEXTS if args[0] is str else TEXTS | st.integers(0, 3) | st.floats(0, 1)
        lists = st.lists(element, max_size=4)
        if args[0] is not str:
            lists |= st.lists(TEXTS, max_size=4)
        return lists | st.permutations(honest).map(list)
    if bare is bytes:
        return st.binary(max_size=3) | st.just(bytes(reversed(honest)))
    if bare is str:
        return TEXTS | st.just("0" * 64)
    raise NotImplementedError(f"a field of {hint}")


def packed(value):
    if not isinstance(value, np.ndarray):
        return value
    return [value.dtype.name, value.shape, value.tobytes()]


def random_reply(draw, reply):
    """Return the bytes of a random reply, for the bytes of an honest one."""
    how = draw(st.integers(0, 9))
    if how == 0:
        return encode(draw(st.sampled_from([Declined(), Failure("OSError")])))
    if how < 4:
        return reply
    message = decode(reply)
    fields = msgspec.msgpack.decode(reply)
    for name in type(message).__struct_fields__:
        fields.setdefault(name, getattr(message, name))
    changed = draw(altered_fields(message))
    return msgspec.msgpack.encode(fields | {k: packed(v) for k, v in changed.items()})


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

    Hypothesis repeats a run to find the simplest lie, and refuses replies that change meanwhile.
    """
    draw = np.random.default_rng(0).bytes

    def new_seed():
        return draw(primitives.SEED)

    with (
        mock.patch.object(primitives, "new_seed", new_seed),
        mock.patch("Crypto.Protocol.SecretSharing.rng", draw),
    ):
        yield


def check(name, data):
    """Fit with random replies of the liars; the honest clients stay to the end."""
    estimator = clone(ESTIMATORS[name])
    needs_all = name.endswith("vertical-dbscan")
    is_secure = getattr(estimator, "secure", False)
    liars = ["liar", "other liar"][: 1 if is_secure else data.draw(st.integers(1, 2))]
    names = [*liars[:1], *HONEST, *liars[1:]]
    clients = {client: client_of(name, estimator, client) for client in names}
    if is_secure:
        identities = simulated_identities(names)
        clients = {client: SecureClient(one, identities[client]) for client, one in clients.items()}

    def tamper(request, reply):
        return random_reply(data.draw, reply)

    transport, lost = Recorder(clients, dict.fromkeys(liars, tamper)), liars
    try:
        with seeded_secrets(), seeded_noise(0):
            estimator.fit(transport, min_clients=None if needs_all else len(HONEST))
    except TooFewClients:  # sites refuse what follows from a false sum
        assert needs_all or is_secure
        lost = liars if needs_all else names
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
            "both classes need rows with a weight",
        )
        if not str(error).startswith(known if needs_all else rounded if is_secure else ()):
            raise
    assert set(transport.ledger.lost) <= set(lost)
    for exchange in transport.exchanges:
        for client, request in exchange.requests.items():
            if client not in liars:  # an honest reply is within the limit of its size
                assert len(exchange.reply_bytes[client]) <= request.reply_limit()


def run_examples(name, **options):
    @settings(deadline=None, suppress_health_check=list(HealthCheck), database=None, **options)
    @given(st.data())
    def examples(data):
        check(name, data)

    examples()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_few_random_replies(name):
    n_examples = 1 if "masked" in name else 3
    run_examples(name, max_examples=n_examples, derandomize=True)


def test_a_request_that_knows_the_shapes_bounds_its_reply_tightly():
    request = SumClusters(np.zeros((2, 30, 7)))
    largest = ClusterSums(np.zeros((2, 30, 7)), np.zeros((2, 30), np.int64), np.zeros(2))
    assert 0 <= request.reply_limit() - len(encode(largest)) < 200


@pytest.mark.liars
@pytest.mark.parametrize("name", ESTIMATORS)
def test_many_random_replies(name):
    run_examples(name, max_examples=int(os.environ.get("LIARS_EXAMPLES", "1000")))
