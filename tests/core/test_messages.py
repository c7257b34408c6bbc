import datetime
import importlib
import math
import pkgutil
import sys
import tracemalloc
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedlib
from fedlib import (
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
    Schema,
)
from fedlib.boosting.client import BoostingClient
from fedlib.boosting.histograms import BuildHistograms
from fedlib.boosting.messages import BeginBoosting, Growth, Splits
from fedlib.core import messages
from fedlib.core.array_fields import DTYPES, MAX_EMPTY_AXIS, PIECE
from fedlib.core.messages import (
    Array,
    Declined,
    Done,
    Failure,
    Message,
    MessageError,
    decode,
    encode,
)
from fedlib.protection.estimator import mask_clients
from fedlib.protection.privacy import Privacy, privacy_of
from fedlib.protection.secure.messages import MaskValues
from fedlib.testing import Recorder

# Messages of all kinds of fields ----------------------------------------------------------------


class ToyReadings(Message):
    discloses = "every reading"
    times: Annotated[np.ndarray, Array("int64", ("readings",), ge=0, le=100)]
    values: Annotated[np.ndarray, Array("float64", ("readings", "sensors"), ge=-5, le=5)]
    valid: Annotated[np.ndarray, Array("bool", ("readings",))]


class ToyFields(Message):
    discloses = "one of each"
    share: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    number: Annotated[int, msgspec.Meta(ge=-3, le=3)]
    kind: Literal["a", "b"]
    word: Annotated[str, msgspec.Meta(pattern=r"^[a-z]{1,5}\Z")]
    flag: bool
    raw: bytes
    maybe: Annotated[int, msgspec.Meta(gt=0)] | None
    several: Annotated[list[float], msgspec.Meta(max_length=3)]
    pair: tuple[int, str]
    table: dict[str, int]
    inner: Done


class ToyAnything(Message):
    discloses = "an array of any kind"
    array: np.ndarray


class ToySingle(Message):
    discloses = "one number"
    value: Annotated[np.ndarray, Array("float32", (), ge=0)]


def import_all():
    """Import all modules of the package, except those whose optional libraries are missing."""
    for module in pkgutil.walk_packages(fedlib.__path__, "fedlib."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name.partition(".")[0] == "fedlib":
                raise


def message_classes():
    """Return the message classes of the package and of this file, without those of doctests.

    A class that is registered but is not an attribute of its module was created inside a function.
    """
    import_all()
    return [
        c
        for name, c in sorted(messages.registry.items())
        if (c.__module__.startswith("fedlib.") or c.__module__ == __name__)
        and getattr(sys.modules[c.__module__], name, None) is c
        and name != "Mixture"  # the base class of other messages
    ]


every_class = pytest.mark.parametrize("message_class", message_classes())


def bounded(strategy, whole, bounds, step):
    """Return a strategy of numbers within the bounds of a msgspec.Meta."""
    low = bounds.ge if bounds.gt is None else step(bounds.gt, math.inf)
    high = bounds.le if bounds.lt is None else step(bounds.lt, -math.inf)
    low, high = (whole[0] if low is None else low), (whole[1] if high is None else high)
    return strategy(low, high)


def elements(array):
    """Return the strategy of one element of an array field."""
    dtype = np.dtype(array.dtype)
    if dtype.kind == "b":
        return st.booleans()
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        low = limits.min if array.ge is None else dtype.type(array.ge)
        high = limits.max if array.le is None else dtype.type(array.le)
        inside = st.floats(float(low), float(high), width=dtype.itemsize * 8)
        return inside.filter(lambda x: (array.ge or x) <= x <= (array.le or x))
    limits = np.iinfo(dtype)
    low = limits.min if array.ge is None else max(limits.min, math.ceil(array.ge))
    high = limits.max if array.le is None else min(limits.max, math.floor(array.le))
    return st.integers(low, high)


def field_values(hint, length):
    """Return the strategy of a field by its annotation; ``length`` gives the length of an axis."""
    rules = msgspec.Meta()
    if get_origin(hint) is Annotated:
        hint, *marks = get_args(hint)
        for mark in marks:
            if isinstance(mark, Array):
                return arrays(mark.dtype, tuple(map(length, mark.axes)), elements=elements(mark))
            if isinstance(mark, msgspec.Meta):
                rules = mark
    inner = partial(field_values, length=length)
    lengths = {"min_size": rules.min_length or 0, "max_size": rules.max_length or 5}
    kind, args = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return st.sampled_from(args)
    if kind in (Union, UnionType):
        return st.one_of(*map(inner, args))
    if kind is tuple:
        if args[-1] is Ellipsis:
            return st.lists(inner(args[0]), **lengths).map(tuple)
        return st.tuples(*map(inner, args))
    if kind is list:
        return st.lists(inner(args[0]), **lengths)
    if kind is dict:
        return st.dictionaries(inner(args[0]), inner(args[1]), **lengths)
    if kind is str and rules.pattern:
        return st.from_regex(rules.pattern)
    if kind in (str, bytes):
        return (st.text if kind is str else st.binary)(**lengths)
    if kind is float:
        whole = (-sys.float_info.max, sys.float_info.max)
        return bounded(st.floats, whole, rules, math.nextafter)
    if kind is int:
        whole = (-(2**63), 2**64 - 1)
        return bounded(st.integers, whole, rules, lambda x, to: x + (1 if to > 0 else -1))
    if kind is bool:
        return st.booleans()
    if kind is NoneType:
        return st.none()
    if kind is np.ndarray:
        dtypes = st.sampled_from(sorted(DTYPES))
        return dtypes.flatmap(lambda d: arrays(d, (2, 3), elements=elements(Array(d, ()))))
    if isinstance(kind, type) and issubclass(kind, Message):
        return instances(kind)
    raise TypeError(f"field_values has no strategy for {hint}")


NUMBER = {"type": "number", "constraints": {"minimum": -4, "maximum": 4, "required": True}}
SCHEMA_OF_TWO = Schema({"schema": {"fields": [NUMBER | {"name": name} for name in "xy"]}})
WORD = {"name": "word", "type": "string", "constraints": {"enum": ["a", "b"]}}
SCHEMA_OF_WORDS = Schema({"schema": {"fields": [NUMBER | {"name": "x"}, WORD]}})


@cache
def conversations():
    """Return the messages of small runs by class, for classes with rules between their fields."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = (X[:, 0] > 0).astype(int)
    mixtures = [
        FederatedGaussianMixture(2, method=method, covariance_type=kind, random_state=0, tol=1)
        for method in ("em", "average")
        for kind in ("full", "tied", "diag", "spherical")
    ]
    bounds = [[-4.0, -4.0], [4.0, 4.0]]
    of_columns = {0: (-4, 4), 1: (-4, 4)}
    noisy = [
        HorizontalDBSCAN(1.0, 2, bounds=bounds, epsilon=1.0),
        FederatedKMeans(2, method="lloyd", max_iter=2, bounds=bounds, epsilon=1.0),
        FederatedGaussianMixture(2, method="em", max_rounds=1, bounds=bounds, epsilon=1.0),
        FederatedSummary(quantiles=(), bounds=of_columns, epsilon=1.0),
        FederatedPCA(bounds=bounds, epsilon=1.0),
        FederatedXGBClassifier(
            1, method="histogram", max_depth=1, tol=None, bounds=bounds, classes=[0, 1],
            epsilon=1.0,
        ),
    ]  # fmt: skip
    lloyd = {"method": "lloyd", "init": [[0.0, 0.0], [1.0, 1.0]], "max_iter": 1}
    start = {"weights_init": [1.0], "means_init": [[0.0, 0.0]], "precisions_init": [np.eye(2)]}
    masked = [
        HorizontalDBSCAN(1.0, 2, bounds=bounds, secure=True),
        FederatedKMeans(2, bounds=bounds, secure=True, **lloyd),
        FederatedGaussianMixture(1, "em", max_rounds=1, tol=0, bounds=bounds, secure=True, **start),
        FederatedSummary(quantiles=(), bounds=bounds, secure=True),
        FederatedXGBClassifier(
            1, method="histogram", max_depth=1, bounds=bounds, classes=[0, 1], secure=True
        ),
    ]
    weighted = [
        FederatedKMeans(2, method="lloyd", random_state=0),
        FederatedKMeans(2, bounds=bounds, secure=True, max_weight=2.0, **lloyd),
        FederatedSummary(quantiles=(), bounds=bounds, max_weight=2.0),
        FederatedSummary(quantiles=(), bounds=bounds, max_weight=2.0, epsilon=1.0),
        FederatedGaussianMixture(2, "em", random_state=0, tol=1),
        FederatedGaussianMixture(2, "average", random_state=0, tol=1),
        FederatedGaussianMixture(
            1, "em", max_rounds=1, tol=0, bounds=bounds, secure=True, max_weight=2.0, **start
        ),
    ]
    by_class = {}
    for estimator in (
        *mixtures,
        *weighted,
        *noisy,
        *masked,
        GaussianMixtureDBSCAN(1.0, 2, random_state=0),
        FederatedXGBClassifier(2, max_depth=2, histograms="dense"),
        FederatedXGBClassifier(2, max_depth=2, histograms="packed"),
        FederatedXGBClassifier(2, max_depth=2, tol=None, warm_start=True, method="top_splits"),
        FederatedXGBRegressor(2, max_depth=2, validation_fraction=0.3),
        FederatedXGBRegressor(1, objective="reg:absoluteerror"),
        FederatedXGBRegressor(1, objective="reg:quantileerror", quantile_alpha=0.5),
        FederatedXGBRegressor(1, max_depth=1, bounds=bounds, max_target=1.0, secure=True),
        FederatedPipeline(HorizontalDBSCAN(1.0, 2), scale="robust"),
        FederatedPipeline(
            HorizontalDBSCAN(1.0, 2, epsilon=1.0), scale="standard", schema=SCHEMA_OF_TWO
        ),
        FederatedPipeline(HorizontalDBSCAN(1.0, 2), scale="standard", pca=1),
        FederatedPipeline(
            HorizontalDBSCAN(1.0, 2, epsilon=1.0), scale="standard", pca=1, schema=SCHEMA_OF_TWO
        ),
        FederatedSummary(quantiles=(), schema=SCHEMA_OF_WORDS),
        FederatedSummary(quantiles=(), schema=SCHEMA_OF_WORDS, epsilon=1.0),
        GaussianMixtureSelection(2, random_state=0),
        FederatedClusteringScore(),
        FederatedEvaluation(),
        FederatedRegressionScore(),
        FederatedRegressionScore(bounds=[[-2.0], [2.0]], epsilon=1.0),
        FederatedEvaluation(n_bins=2, classes=[0, 1], epsilon=1.0),
    ):
        parts = [X[::2], X[1::2]]
        if getattr(estimator, "schema", None) is not None:
            parts = [pd.DataFrame(part, columns=["x", "y"]).clip(-4, 4) for part in parts]
            parts = [part.assign(word=["a", "b"] * (len(part) // 2)) for part in parts]
        if estimator.name in ("evaluation", "regression-score"):
            parts = [(y[::2].astype(float), y[::2]), (y[1::2].astype(float), y[1::2])]
        if estimator.name in ("xgboost", "xgb-regressor", "clustering-score"):
            parts = [(X[::2], y[::2]), (X[1::2], y[1::2])]
        if estimator in weighted:
            parts = [(part, np.ones(len(part))) for part in parts]
        make, (options,) = estimator._client_factory([{}])
        clients = {name: make(part, **options) for name, part in zip("AB", parts, strict=True)}
        is_masked = getattr(estimator, "secure", False)
        recorder = Recorder(mask_clients(clients) if is_masked else clients)
        estimator.fit(recorder)
        if getattr(estimator, "warm_start", False):
            estimator.set_params(n_trees=3).fit(recorder)
        for exchange in recorder.exchanges:
            for message in (*exchange.requests.values(), *exchange.replies.values()):
                if isinstance(message, MaskValues):
                    message = decode(message.request)
                by_class.setdefault(type(message), []).append(message)
    client = BoostingClient((X, y))
    client.handle(by_class[BeginBoosting][0])
    by_class[type(client.state)] = [client.state]  # which no client has at the end of a run
    (dense, *_) = by_class[BuildHistograms]
    for kind in (Growth, Splits):  # the base classes of requests
        by_class[kind] = [kind(*(getattr(dense, name) for name in kind.__struct_fields__))]
    noisy_requests = [m for of_class in by_class.values() for m in of_class if privacy_of(m)]
    return by_class | {Privacy: [request.privacy for request in noisy_requests]}


def has_rules(message_class):
    """Return whether a class has a rule between its values, so that they cannot be drawn alone."""
    own = any("__post_init__" in vars(c) for c in message_class.__mro__[:-2] if c is not Message)
    return own or any(type(array) is not Array for array in messages.arrays(message_class).values())


@cache
def hints_of(message_class):
    return get_type_hints(message_class, include_extras=True)


@st.composite
def instances(draw, message_class):
    """Draw a message of a class from the annotations of its fields, or from a recorded run."""
    if has_rules(message_class):
        return draw(st.sampled_from(conversations()[message_class]))
    lengths: dict[str, int] = {}

    def length(axis):
        if axis not in lengths:
            lengths[axis] = draw(st.integers(0, 4), label=axis)
        return lengths[axis]

    hints = hints_of(message_class)
    fields = message_class.__struct_fields__
    values = {f: draw(field_values(hints[f], length), label=f) for f in fields}
    for field, array in messages.arrays(message_class).items():
        if array.below in lengths:
            values[field] = np.minimum(values[field], lengths[array.below] - 1)
    return message_class(**values)


def refused(data, *expected, **limits):
    """Return the text of the MessageError raised for bytes; any other outcome fails the test."""
    with pytest.raises(MessageError) as caught:
        decode(data, *expected, **limits)
    return str(caught.value)


def accepted_or_refused(data, *expected):
    """Return the message in the bytes, or None; only a MessageError may be raised."""
    try:
        message = decode(data, *expected)
    except MessageError:
        return None
    assert type(message) in (expected or messages.registry.values())
    again = decode(encode(message))  # only a valid message can be encoded again
    assert type(again) is type(message)
    assert again == message
    return message


# Every message class of the package -------------------------------------------------------------


def test_all_messages_are_found():
    found = {c.__name__ for c in message_classes()}
    assert {"Done", "Failure", "Labels", "CountCells", "CellCounts", "AssignCells"} <= found
    assert {"Readings", "Heights"}.isdisjoint(found)  # the examples of docstrings


@every_class
@given(data=st.data())
@settings(max_examples=8)
def test_round_trip(message_class, data):
    """decode(encode(m)) == m, and equal messages give equal bytes."""
    message = data.draw(instances(message_class))
    encoded = encode(message)
    decoded = decode(encoded)
    assert type(decoded) is message_class
    assert decoded == message
    assert encode(message) == encoded
    assert encode(decoded) == encoded
    assert decode(encoded, message_class, max_bytes=len(encoded)) == message
    for field in message_class.__struct_fields__:
        sent, received = getattr(message, field), getattr(decoded, field)
        if isinstance(sent, np.ndarray):
            assert received.dtype == sent.dtype
            assert received.shape == sent.shape
            assert np.array_equal(received, sent)
            assert not received.flags.writeable
            assert received.flags.c_contiguous
        elif isinstance(sent, Message):
            assert received == sent
        else:
            assert type(received) is type(sent)
            assert received == sent


@every_class
@given(data=st.data())
@settings(max_examples=5)
def test_every_truncation_is_refused(message_class, data):
    """No message is a prefix of another."""
    encoded = encode(data.draw(instances(message_class)))
    for end in range(len(encoded)):
        refused(encoded[:end])


@every_class
@given(data=st.data())
@settings(max_examples=5)
def test_extra_bytes_are_refused(message_class, data):
    """Bytes after the end of a message are refused."""
    encoded = encode(data.draw(instances(message_class)))
    refused(encoded + data.draw(st.binary(min_size=1, max_size=9)))
    refused(encoded + encoded)


@every_class
@given(data=st.data())
@settings(max_examples=8)
def test_flipped_bits(message_class, data):
    """Bytes with flipped bits are refused, or are a valid message of the expected class."""
    encoded = bytearray(encode(data.draw(instances(message_class))))
    flips = st.lists(st.integers(0, 8 * len(encoded) - 1), min_size=1, max_size=4, unique=True)
    for bit in data.draw(flips):
        encoded[bit // 8] ^= 1 << bit % 8
    accepted_or_refused(bytes(encoded), message_class)


@every_class
@given(data=st.data())
@settings(max_examples=5)
def test_too_many_bytes_are_refused(message_class, data):
    """One byte above ``max_bytes`` is refused, and the error names both sizes."""
    encoded = encode(data.draw(instances(message_class)))
    size = len(encoded)
    text = refused(encoded, max_bytes=size - 1)
    assert text == f"a message of {size} bytes, at most {size - 1} are allowed"


@every_class
def test_class_attributes(message_class):
    """Every class declares what its receiver learns, and the class of its reply."""
    assert isinstance(message_class.discloses, str)
    assert message_class.discloses.strip() == message_class.discloses != ""
    assert issubclass(message_class.reply, Message)
    assert messages.registry[message_class.reply.__name__] is message_class.reply


def contains_array(hint):
    return hint is np.ndarray or any(map(contains_array, get_args(hint)))


@every_class
def test_every_array_is_described(message_class):
    """Every array field has an `Array`, which decoding checks."""
    if message_class is ToyAnything:
        return
    hints = get_type_hints(message_class, include_extras=True)
    fields = [f for f in message_class.__struct_fields__ if contains_array(hints[f])]
    assert list(messages.arrays(message_class)) == fields


# Bytes that are not a message -------------------------------------------------------------------


@given(st.binary(max_size=200))
@example(b"")
@example(b"\x80")
@example(b"\xc1")
@example(encode(Done()).replace(b"type", b"tpye"))
def test_random_bytes(data):
    """Random bytes are refused, or are by chance a message."""
    accepted_or_refused(data)


simple_values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=24)
    | st.datetimes(timezones=st.just(datetime.UTC))
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=16))
)
wire_arrays = st.tuples(
    st.sampled_from([*sorted(DTYPES), "object", "U5", "O", ">i8", "float128", "V8", "datetime64"]),
    st.lists(st.integers(-2, 3) | st.integers(-(2**63), 2**64 - 1), max_size=4),
    st.integers(0, 6).map(lambda n: bytes(8 * n)) | st.binary(max_size=48),
)
nested = st.recursive(
    simple_values | wire_arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(-9, 9), inner)
    ),
    max_leaves=6,
)


@every_class
@given(data=st.data())
@settings(max_examples=5)
def test_fields_of_any_type(message_class, data):
    """A map with the right name and fields of any type is refused, or is a valid message."""
    fields = st.fixed_dictionaries(dict.fromkeys(message_class.__struct_fields__, nested))
    wire = {"type": message_class.__name__} | data.draw(fields)
    accepted_or_refused(msgspec.msgpack.encode(wire), message_class)


def wire(message, **changes):
    """Return a message's bytes with changed fields; a change to None removes a field."""
    fields = msgspec.msgpack.decode(encode(message)) | changes
    kept = {name: value for name, value in fields.items() if value is not None}
    return msgspec.msgpack.encode(kept)


READINGS = ToyReadings(np.arange(3), np.ones((3, 2)), np.array([True, False, True]))
FIELDS = ToyFields(0.5, 1, "a", "word", True, b"\0", None, [1.0], (1, "x"), {"k": 1}, Done())
INT64, FLOAT64 = bytes(8), np.float64(1).tobytes()


def test_unchanged_wire():
    """The messages of the following tests are valid before they are damaged."""
    assert decode(wire(READINGS)) == READINGS
    assert decode(msgspec.msgpack.encode(msgspec.msgpack.decode(encode(FIELDS)))) == FIELDS


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"times": ["int32", [3], INT64 + INT64[:4]]}, "of int64"),
        ({"times": ["uint64", [3], 3 * INT64]}, "of int64"),
        ({"times": ["float64", [3], 3 * INT64]}, "of int64"),
        ({"values": ["float32", [3, 2], 3 * INT64]}, "of float64"),
        ({"times": ["object", [3], 3 * INT64]}, "unknown dtype"),
        ({"times": ["O", [3], 3 * INT64]}, "unknown dtype"),
        ({"times": [">i8", [3], 3 * INT64]}, "unknown dtype"),
        ({"times": ["int64", [3, 1], 3 * INT64]}, "with shape"),
        ({"times": ["int64", [], INT64]}, "with shape"),
        ({"values": ["float64", [6], 6 * FLOAT64]}, "with shape"),
        ({"times": ["int64", [2], 2 * INT64]}, "readings"),
        ({"values": ["float64", [2, 3], 6 * FLOAT64]}, "has 2 readings"),
        ({"valid": ["bool", [4], bytes(4)]}, "has 4 readings"),
        ({"times": ["int64", [4], 3 * INT64]}, "invalid length"),
        ({"times": ["int64", [2], 3 * INT64]}, "invalid length"),
        ({"times": ["int64", [3], 3 * INT64 + b"\0"]}, "not a message"),
        ({"times": ["int64", [-1], 3 * INT64]}, "invalid length"),
        ({"times": ["int64", [3, -1], 3 * INT64]}, "invalid length"),
        ({"times": ["int64", [2**62], 3 * INT64]}, "invalid length"),
        ({"times": ["int64", [2**64 - 1], 3 * INT64]}, "invalid length"),
        ({"times": ["int64", [2**40], b""]}, "invalid length"),
        ({"values": ["float64", [0, 2**40], b""]}, "invalid length"),
        ({"values": ["float64", [0, MAX_EMPTY_AXIS + 1], b""]}, "invalid length"),
        ({"values": ["float64", [1] * 65, FLOAT64]}, "not a message"),
        ({"times": ["int64", [3.0], 3 * INT64]}, "not a message"),
        ({"times": ["int64", [True], INT64]}, "not a message"),
        ({"times": ["int64", "3", 3 * INT64]}, "not a message"),
        ({"times": ["int64", [3]]}, "not a message"),
        ({"times": ["int64", [3], 3 * INT64, 0]}, "not a message"),
        ({"times": [0, 1, 2]}, "not a message"),
        ({"times": 3 * INT64}, "not a message"),
        ({"times": {"dtype": "int64"}}, "not a message"),
        ({"values": ["float64", [3, 2], 5 * FLOAT64 + np.float64(np.nan).tobytes()]}, "finite"),
        ({"values": ["float64", [3, 2], np.float64(-np.inf).tobytes() + 5 * FLOAT64]}, "finite"),
        ({"values": ["float64", [3, 2], np.full(6, 5.1).tobytes()]}, "at most 5"),
        ({"values": ["float64", [3, 2], np.full(6, -5.1).tobytes()]}, "at least -5"),
        ({"times": ["int64", [3], np.array([1, -1, 1]).tobytes()]}, "at least 0"),
        ({"times": ["int64", [3], np.array([1, 101, 1]).tobytes()]}, "at most 100"),
        ({"times": ["int64", [3], np.full(3, -(2**63)).tobytes()]}, "at least 0"),
        ({"valid": ["bool", [3], b"\0\1\2"]}, "other than 0 and 1"),
        ({"valid": ["bool", [3], b"\0\1\xff"]}, "other than 0 and 1"),
        ({"times": None}, "missing required field"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_damaged_arrays(changes, problem):
    encoded = bytes(wire(READINGS, **changes))
    if "times" in changes and changes["times"] is None:
        changes = {}
    assert problem in refused(encoded)


@pytest.mark.parametrize(
    "changes",
    [
        {"share": 1.0},
        {"share": -0.1},
        {"share": math.nan},
        {"share": math.inf},
        {"share": -math.inf},
        {"share": "0.5"},
        {"number": 4},
        {"number": -4},
        {"number": 1.5},
        {"number": 2**63},
        {"number": True},
        {"kind": "c"},
        {"kind": 0},
        {"word": ""},
        {"word": "sixsix"},
        {"word": "word\n"},
        {"word": b"word"},
        {"flag": 1},
        {"maybe": 0},
        {"several": [1.0] * 4},
        {"several": ["1"]},
        {"pair": [1]},
        {"pair": [1, "x", 2]},
        {"table": {"k": "1"}},
        {"table": {1: 1}},
        {"inner": {"type": "Declined"}},
        {"inner": None},
        {"more": None},
        {"type": "ToyReadings"},
        {"type": 3},
        {"type": ["ToyFields"]},
    ],
)
def test_damaged_fields(changes):
    fields = msgspec.msgpack.decode(encode(FIELDS))
    refused(msgspec.msgpack.encode(fields | changes), ToyFields)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_floats_are_finite(value):
    """An infinite number or NaN is refused in every field."""

    class ToyThreshold(Message):
        discloses = "a threshold"
        value: float

    try:
        with pytest.raises(MessageError, match="ToyThreshold.value must be finite"):
            ToyThreshold(value)
        refused(msgspec.msgpack.encode({"type": "ToyThreshold", "value": value}))
        assert decode(encode(ToyThreshold(1.5))) == ToyThreshold(1.5)
    finally:
        del messages.registry["ToyThreshold"]


def test_unknown_class():
    assert refused(b"\x81\xa4type\xa4Nope") == "a message of the unknown class 'Nope'"
    long = msgspec.msgpack.encode({"type": "N" * 10_000})
    assert len(refused(long)) < 200  # a log entry stays short
    assert refused(msgspec.msgpack.encode({"type": "Message"})).startswith("a message of the unkn")
    assert refused(msgspec.msgpack.encode({"type": ""})).startswith("a message of the unknown")


def test_unexpected_class():
    text = refused(encode(Done()), Failure, Declined)
    assert text == "expected Failure or Declined, got Done"
    assert decode(encode(Done()), Failure, Done) == Done()


def test_a_repeated_field():
    """A repeated field name must not let a value escape the checks."""
    number = b"\xa6number\x01"
    encoded = encode(FIELDS)
    twice = bytes([encoded[0] + 1]) + encoded[1:] + b"\xa6number\x63"
    assert number in encoded
    refused(twice)
    for first, second in ((b"\xa4Done", b"\xa8Declined"), (b"\xa8Declined", b"\xa4Done")):
        both = b"\x82\xa4type" + first + b"\xa4type" + second
        for expected in (Done, Declined):
            accepted_or_refused(both, expected)


@pytest.mark.parametrize("bomb", [b"\x91", b"\x81\xa1a", b"\x81", b"\x81\x91"])
def test_nested_too_deep(bomb):
    """A million nested brackets neither overflow the stack nor crash the interpreter."""
    deep = 10**6 * bomb
    refused(deep)
    refused(b"\x82\xa4type\xabToyReadings\xa5times" + deep)
    refused(b"\x82\xa5times" + deep + b"\xa4type\xabToyReadings")
    refused(b"\x82\xa4type\xa9ToyFields\xa7several" + deep)


@pytest.mark.parametrize(
    "head",
    [
        b"\xdd\xff\xff\xff\xff",  # a list
        b"\xdf\xff\xff\xff\xff",  # a map
        b"\xc6\xff\xff\xff\xff",  # bytes
        b"\xdb\xff\xff\xff\xff",  # a text
        b"\xc9\xff\xff\xff\xff\x05",  # an extension
    ],
)
def test_huge_claimed_lengths(head):
    """A header that claims four billion missing elements costs neither time nor memory."""
    refused(head)
    refused(b"\x81\xa4type" + head)
    for field in (b"\xa5times", b"\xa7several", b"\xa3raw", b"\xa5table", b"\xa4more"):
        for name in (b"\xabToyReadings", b"\xa9ToyFields"):
            refused(b"\x82\xa4type" + name + field + head)


# Valid messages -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda a: np.asfortranarray(a),
        lambda a: np.repeat(a, 2, axis=0)[::2],
        lambda a: np.repeat(a, 3, axis=1)[:, ::3],
        lambda a: a[::-1].copy()[::-1],
        lambda a: a.T.copy().T,
        lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
        lambda a: a.astype(">f8"),
    ],
)
def test_memory_layout_does_not_matter(change):
    """The bytes depend on an array's values, not on its memory layout."""
    array = np.arange(12.0).reshape(4, 3)
    same = change(array)
    assert np.array_equal(same, array)
    assert encode(ToyAnything(same)) == encode(ToyAnything(array))
    assert decode(encode(ToyAnything(same))).array.dtype == "float64"


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("value", "problem"), [(np.nan, "finite"), (np.inf, "finite"), (-6.0, "least"), (6.0, "most")]
)
def test_all_pieces_of_a_large_array_are_checked(value, problem, transposed):
    """Values are checked in pieces; the last one is in the third piece."""
    array = np.zeros((PIECE + 1, 2))
    array[-1, -1] = value
    if transposed:
        array = np.asfortranarray(array)
    with pytest.raises(MessageError, match=f"ToyReadings.values must be (at )?{problem}"):
        ToyReadings(np.zeros(PIECE + 1, np.int64), array, np.ones(PIECE + 1, bool))


@pytest.mark.parametrize("n", [*range(1, 9), *range(1000, 1008)])
def test_decoded_arrays_are_aligned_and_read_only(n):
    """Kernels are compiled for aligned arrays, wherever an array begins among the bytes."""
    sent = ToyReadings(np.arange(n) % 100, np.ones((n, n % 3)), np.ones(n, bool))
    for array in (decode(encode(sent)).times, decode(encode(sent)).values):
        assert array.flags.aligned
        assert not array.flags.writeable


def test_a_check_does_not_copy_a_large_array():
    sent = ToyReadings(np.zeros(500, int), np.ones((500, 2)), np.ones(500, bool))
    data = encode(sent)
    found = decode(data, aligned=False)
    assert found == sent
    assert all(
        np.shares_memory(a, np.frombuffer(data, np.uint8)) for a in (found.times, found.values)
    )
    with pytest.raises(MessageError, match="ToyReadings.values must be finite"):
        decode(
            data.replace(np.ones(1000).tobytes(), np.full(1000, np.nan).tobytes()), aligned=False
        )


def test_lists_do_not_become_arrays():
    """Fields are not converted, so a mistake of the sender is found at the sender."""
    with pytest.raises(MessageError, match="ToySingle.value must be an array of float32"):
        ToySingle(1.0)
    with pytest.raises(MessageError, match="not of float64"):
        ToySingle(np.array(1.0))
    with pytest.raises(MessageError, match="ToySingle.value must be at least 0"):
        ToySingle(np.array(-1.0, np.float32))
    with pytest.raises(MessageError, match="ToySingle.value must be finite"):
        ToySingle(np.array(np.nan, np.float32))
    with pytest.raises(MessageError, match="not of >i8"):
        ToyReadings(np.arange(3).astype(">i8"), READINGS.values, READINGS.valid)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 5), (5, 0), (2, 3), (1,) * 32])
def test_all_dtypes_and_shapes(dtype, shape):
    array = np.ones(shape, dtype)
    decoded = decode(encode(ToyAnything(array))).array
    assert (decoded.dtype, decoded.shape) == (array.dtype, shape)
    assert np.array_equal(decoded, array)


@pytest.mark.parametrize(
    "array",
    [
        np.array(["text"]),
        np.array([b"raw"]),
        np.array([{}], object),
        np.array([1j]),
        np.array([1], "int8"),
        np.array([1], "float16"),
        np.array([1], "longdouble"),
        np.array(["2024-01-01"], "datetime64[D]"),
        np.zeros(2, [("a", "i4")]),
    ],
)
def test_arrays_that_cannot_be_sent(array):
    with pytest.raises(MessageError, match="ToyAnything cannot be sent: .* an array of"):
        encode(ToyAnything(array))


@pytest.mark.parametrize(
    "message",
    [
        ToyAnything({1, object()}),
        ToyAnything(object()),
        ToyAnything(2**70),
        Failure("\ud800"),  # half a surrogate pair is not UTF-8
    ],
)
def test_fields_that_cannot_be_sent(message):
    with pytest.raises(MessageError, match="cannot be sent"):
        encode(message)


def test_messages_are_frozen():
    with pytest.raises(AttributeError):
        READINGS.times = np.arange(4)
    decoded = decode(encode(READINGS))
    with pytest.raises(ValueError, match="read-only"):
        decoded.values[0, 0] = 7


def test_equality():
    assert Done() == Done()
    assert Done() != Declined()
    assert Done() != "Done"
    assert (Done() == Declined()) is False
    assert Failure("A") == Failure("A") != Failure("B")
    assert ToyAnything(np.zeros(2)) == ToyAnything(np.zeros(2))
    assert not ToyAnything(np.zeros(2)) != ToyAnything(np.zeros(2))  # noqa: SIM202
    assert ToyAnything(np.zeros(2)) != ToyAnything(np.zeros(3))
    assert ToyAnything(np.zeros(2)) != ToyAnything(np.zeros(2, np.int64))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Done())


def test_a_failure_contains_only_a_name():
    """A sentence is refused in place of the type of an error."""
    for text in ("the value 3.14 is private", "", "E" * 101, "E\n"):
        refused(encode(Failure(text)))
    assert decode(encode(Failure("ValueError"))) == Failure("ValueError")


# Defining classes ---------------------------------------------------------------------------------


@pytest.fixture
def registry():
    before = dict(messages.registry)
    yield messages.registry
    messages.registry.clear()
    messages.registry.update(before)


def test_a_name_is_unique(registry):
    with pytest.raises(
        TypeError, match=r"a message Done already exists, in fedlib\.core\.messages"
    ):

        class Done(Message):
            discloses = "something else"

    assert registry["Done"] is messages.Done


def test_a_class_must_declare_what_it_discloses(registry):
    with pytest.raises(TypeError, match="ToySilent must set discloses"):

        class ToySilent(Message):
            pass

    assert "ToySilent" not in registry


def test_a_class_may_be_redefined_in_its_place(registry):
    """A cell of a notebook can be run twice; messages then have the newer class."""

    def make():
        class ToyAgain(Message):
            discloses = "a number"
            number: int

        return ToyAgain

    make()
    newer = make()
    assert type(decode(encode(newer(1)))) is newer


def test_the_shape_of_a_reply_follows_from_its_request(registry):
    """By an axis, a property and a number; the base class refuses a reply of another shape."""

    class ToySums(Message):
        discloses = "sums"
        sums: Annotated[np.ndarray, Array("float64", ("groups", "columns", "pair"))]
        counts: Annotated[np.ndarray, Array("int64", ("groups",))]

    class ToyAddUp(Message):
        discloses = "nothing"
        reply = ToySums
        reply_axes: ClassVar = {"groups": "n_groups", "columns": "features", "pair": 2}
        centre: Annotated[np.ndarray, Array("float64", ("features",))]
        names: tuple[str, ...]

        @property
        def n_groups(self):
            return self.names

    request = ToyAddUp(np.zeros(3), ("a", "b"))
    assert request.reply_lengths() == {"groups": 2, "columns": 3, "pair": 2}
    assert request.reply_size() == 2 * 3 * 2 + 2
    fitting = ToySums(np.zeros((2, 3, 2)), np.zeros(2, np.int64))
    assert request.accept(fitting) is fitting
    assert len(encode(fitting)) <= request.reply_limit()
    for shape, problem in {
        (1, 3, 2): "1 groups, 2 were requested",
        (2, 4, 2): "4 columns, 3 were requested",
        (2, 3, 1): "1 pair, 2 were requested",
    }.items():
        with pytest.raises(MessageError, match=f"^ToySums.sums has {problem}$"):
            request.accept(ToySums(np.zeros(shape), np.zeros(shape[0], np.int64)))


def test_unsupported_fields_are_refused_on_arrival(registry):
    """An annotation that decoding does not support gives a MessageError."""

    class ToyOpen(Message):
        discloses = "anything"
        value: complex

    refused(msgspec.msgpack.encode({"type": "ToyOpen", "value": 1}))


def test_any_is_not_used():
    """No field of the package accepts a value of any type."""
    for message_class in message_classes():
        hints = get_type_hints(message_class)
        assert Any not in [hints[f] for f in message_class.__struct_fields__]


def test_many_empty_objects_in_an_array_field_cost_no_memory():
    """An empty map is one byte on the wire and many in memory; the array decoder stops early."""
    n = 1_000_000
    empty = b"\xdd" + n.to_bytes(4, "big") + b"\x80" * n
    start = encode(READINGS)
    name = b"\xa5times"
    bomb = start[: start.index(name) + len(name)] + empty
    tracemalloc.start()
    with pytest.raises(MessageError):
        decode(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(bomb)
