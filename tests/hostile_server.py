"""Attack a site as a server could, and compare two tables that differ in one row.

A conversation of a protocol is recorded. A hostile server then repeats its beginning and changes
fields of the last requests at random: other numbers, extreme ones, empty or longer arrays, another
option. The same requests go to a site with a table, and to one with a neighbour of this table, with
the same random stream.
"""

import sys
import types
import typing
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from unittest import mock

import msgspec
import numpy as np
import pandas as pd
from all_protocols import CASES, MASKED, NOISY, estimator_of, make_client

from fedlib import (
    FederatedKMeans,
    FederatedPipeline,
    FederatedSummary,
    FederatedXGBClassifier,
    FederatedXGBRegressor,
    Schema,
)
from fedlib.core.messages import Done, MessageError, Privacy, arrays, decode, encode, privacy_of
from fedlib.core.protocol import run, serve
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.protection.secure.flow import secure_sum
from fedlib.protection.secure.messages import MaskValues
from fedlib.protection.secure.points import DescribeFeatures
from fedlib.testing import Recorder, seeded_noise

BUDGET = {"budget": {"epsilon": 1e6, "delta": 0.5}}
LATER = 3  # requests of the conversation that are sent once more
OPEN = (DescribeFeatures,)  # requests for data that are answered without masks
NUMBERS = [0.0, 1.0, -1.0, 0.5, 3.0, 1e-300, -1e-30, 1e30, -1e30, 1e99, -1e99]  # of requests
LOSSES = [5e-324, 1e-300, 1e-30, 1e-9, 0.1, 100.0]  # of replies with noise
VALUES = [0.0, -0.0, 7.0, -3.0, 1e-300, 1e30, -1e30, 1e99, 1e200]  # of rows

# Protocols for tables with a schema --------------------------------------------------------------

ODD = {  # what a row of a table can have besides the usual
    "bmi": [np.nan, 0.0, -4.0, 10.0, 60.0, 1e9, 1e300],
    "age": [np.nan, -1.0, 0.0, 100.0, 1e9, 1e300],
    "town": ["north", " north", "North", "?", "", None, "x" * 300],
    "ill": ["yes", "no"],
}


def _schema(*names):
    """Return a schema; the values outside are clipped or become another category."""

    def number(low, high, **more):
        limits = {"minimum": low, "maximum": high}
        return {"type": "number", "constraints": limits, "fedlib": {"outside": "clip", **more}}

    def text(values, **more):
        return {"type": "string", "constraints": {"enum": values}, "fedlib": more}

    fields = {
        "bmi": number(10, 60, fill=25),
        "age": number(0, 100, fill=50),
        "town": text(["north", "south", "west"], outside="other"),
        "ill": text(["no", "yes"], role="target"),
        "cost": number(10, 60, role="target"),
    }
    return Schema({"schema": {"fields": [{"name": name, **fields[name]} for name in names]}})


def _tables(*names):
    """Return the tables of three sites, with gaps and with values outside."""
    rng = np.random.default_rng(0)
    columns = {
        "bmi": rng.normal(28, 12, 90),
        "age": np.where(rng.random(90) < 0.1, np.nan, rng.normal(60, 25, 90)),
        "town": rng.choice(["north", "south ", "west", "?"], 90),
        "ill": rng.choice(["no", "yes"], 90),
        "cost": rng.normal(30, 9, 90),
    }
    table = pd.DataFrame({name: columns[name] for name in names})
    return [table[i::3].reset_index(drop=True) for i in range(3)]


X_NAMES = ("bmi", "age", "town")
TREES = {"n_trees": 2, "max_depth": 2, "max_bin": 4, "method": "histogram", "tol": None}
START = {"init": [[0.3, 0.2, 1, 0, 0, 0], [0.7, 0.4, 0, 1, 0, 0]], "method": "lloyd", "max_iter": 2}
TABLES = {
    "boosting of a table": (
        lambda **sums: FederatedXGBClassifier(**TREES, schema=_schema(*X_NAMES, "ill"), **sums),
        (*X_NAMES, "ill"),
    ),
    "regression of a table": (
        lambda **sums: FederatedXGBRegressor(
            **TREES, schema=_schema(*X_NAMES, "cost"), base_score=30.0, **sums
        ),
        (*X_NAMES, "cost"),
    ),
    "k-means of a table": (
        lambda **sums: FederatedPipeline(
            FederatedKMeans(2, **START, **sums),
            schema=_schema(*X_NAMES),
            encode="one_hot",
            scale="minmax",
        ),
        X_NAMES,
    ),
    "k-means of a scaled table": (
        lambda **sums: FederatedPipeline(
            FederatedKMeans(2, **START, **sums),
            schema=_schema(*X_NAMES),
            encode="one_hot",
            scale="standard",
        ),
        X_NAMES,
    ),
    "k-means of components": (
        lambda **sums: FederatedPipeline(
            FederatedKMeans(2, method="lloyd", init=[[-1.0, 0], [1, 0]], max_iter=2, **sums),
            schema=_schema(*X_NAMES),
            encode="one_hot",
            scale="standard",
            pca=2,
        ),
        X_NAMES,
    ),
    "summary of a table": (
        lambda **sums: FederatedSummary(quantiles=(), schema=_schema(*X_NAMES), **sums),
        X_NAMES,
    ),
}
SUMS = {"masked": MASKED, "noisy": NOISY}
NOISY_CASES, MASKED_CASES = (
    [case for case in CASES if case.endswith(f", {kind}")] + [f"{name}, {kind}" for name in TABLES]
    for kind in ("noisy", "masked")
)


def subject(case):
    """Return the estimator of a case, and the function that makes its parts."""
    if case in CASES:
        return estimator_of(case), CASES[case][2]
    name, kind = case.split(", ")
    make, columns = TABLES[name]
    return make(**SUMS[kind]), lambda: _tables(*columns)


# Requests ----------------------------------------------------------------------------------------


@cache
def conversation(case):
    """Return the requests that the first client of a case receives; of sums, the inner ones."""
    estimator, parts = subject(case)
    clients = {f"{i}": make_client(estimator, part) for i, part in enumerate(parts())}
    if case in MASKED_CASES:
        identities = simulated_identities(list(clients))
        clients = {n: SecureClient(one, identities[n]) for n, one in clients.items()}
    recorder = Recorder(clients)
    with seeded_noise(0):
        estimator.fit(recorder)
    received = [one.requests["0"] for one in recorder.exchanges if "0" in one.requests]
    steps = (*SecureClient.handlers,)
    return [
        decode(one.request) if isinstance(one, MaskValues) else one
        for one in received
        if isinstance(one, MaskValues) or not isinstance(one, steps)
    ]


def hostile(rng, requests):
    """Return the beginning of a conversation whose last requests are changed at random.

    Then its first requests follow, which show what the changed requests have left behind.
    """
    n_kept = int(rng.integers(0, len(requests)))
    n_changed = int(rng.integers(1, 4))
    rest = requests[n_kept : n_kept + n_changed]
    return [*requests[:n_kept], *(changed(rng, one) for one in rest), *requests[:LATER]]


def changed(rng, request):
    """Return a request of the same class with other fields, which can be sent."""
    names = type(request).__struct_fields__
    for _ in range(20 if names else 0):
        try:
            other = request
            for name in rng.permutation(names)[: int(rng.integers(1, 4))]:
                other = _with_another(rng, other, str(name))
            return decode(encode(other))
        except (MessageError, ValueError, OverflowError, TypeError, MemoryError):
            continue  # the request cannot be sent
    return request


def _with_another(rng, request, name):
    """Return a request with another value of a field."""
    value = getattr(request, name)
    if name in arrays(type(request)):
        with np.errstate(all="ignore"):
            return _with_another_array(rng, request, name)
    options = _literals(_hints(type(request))[name])
    return msgspec.structs.replace(request, **{name: _another(rng, value, options)})


@cache
def _hints(message_class):
    return typing.get_type_hints(message_class, include_extras=True)


def _another(rng, value, options):
    if options:
        return options[rng.integers(len(options))]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return int(rng.choice([0, 1, 2, 3, value + 1, 2 * value, 17, 1000]))
    if isinstance(value, float):
        return float(rng.choice([*NUMBERS, value * 2, value / 3, value * 1e6]))
    if isinstance(value, tuple) and rng.random() < 0.3:
        return (*value, *(value or (("a", "b"), None)))[: int(rng.integers(1, 4))]
    if isinstance(value, tuple):
        return tuple(one for one in value if rng.random() < 0.7)
    if isinstance(value, Privacy):
        loss = float(rng.choice(LOSSES))
        return Privacy(rho=loss) if rng.random() < 0.5 else Privacy(epsilon=loss)
    return value


def _literals(hint):
    """Return the values of a Literal."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated:
        return _literals(parts[0])
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return [one for part in parts for one in _literals(part)]
    return list(parts) if typing.get_origin(hint) is typing.Literal else []


def _with_another_array(rng, request, name):
    """Return a request with other values in an array, or another length of one axis everywhere."""
    marks, values = arrays(type(request)), getattr(request, name)
    if rng.random() < 0.4 and values.ndim:
        axis = marks[name].axes[int(rng.integers(values.ndim))]
        n = values.shape[marks[name].axes.index(axis)]
        rows = np.sort(rng.integers(0, n, int(rng.integers(0, n + 3)))) if n else np.arange(0)
        new = {
            other: np.take(getattr(request, other), rows, axis=mark.axes.index(axis))
            for other, mark in marks.items()
            if axis in mark.axes
        }
        return msgspec.structs.replace(request, **new)
    new, known = values.copy(), np.ravel(values)[:50]
    at = rng.random(new.shape) < rng.choice([0.2, 1.0])
    if new.dtype.kind == "b":
        new[at] = ~new[at]
    else:
        numbers = NUMBERS if new.dtype.kind == "f" else [0, 1, 2, 3, 5, 1000]
        new[at] = rng.choice([*numbers, *known], int(at.sum()))
    return msgspec.structs.replace(request, **{name: new})


# Tables ------------------------------------------------------------------------------------------


def neighbours(rng, part):
    """Return a part, and the same with a row inserted at a random index, in random order.

    The row is new, equal to another one, or extreme, and its class may be unknown.
    """
    if isinstance(part, pd.DataFrame):
        return _neighbouring_tables(rng, part)
    X, y, _, _, margins = (*(part if isinstance(part, tuple) else (part,)), *[None] * 4)[:5]
    n = int(rng.choice([0, 1, 2, 5, len(X)]))
    X, at = np.array(X[:n], float), int(rng.integers(0, n + 1))
    shape = X.shape[1:]
    row = X[rng.integers(n)] if n and rng.random() < 0.3 else rng.uniform(-5, 9, shape)
    row = np.array(row, float)
    if not shape:  # a probability
        row = rng.choice([0.0, 0.25, 1.0])
    elif rng.random() < 0.4:
        row[rng.integers(len(row))] = rng.choice(VALUES)
    tables = [X, np.insert(X, at, row, axis=0)]
    if y is not None:
        y = y[:n]
        label = y[rng.integers(n)] if n and rng.random() < 0.5 else rng.choice([0, 1, 7])
        tables = list(zip(tables, [y, np.insert(y, at, label)], strict=True))
    if margins is not None:
        margins = margins[:n]
        start = np.full(margins.shape[1:], rng.choice([0.0, -3.0, *VALUES]))
        more = [margins, np.insert(margins, at, start, axis=0)]
        tables = [(*table, None, None, one) for table, one in zip(tables, more, strict=True)]
    return tables if rng.random() < 0.5 else tables[::-1]


def _neighbouring_tables(rng, table):
    """Return the same for a table: the row can have gaps, unknown texts and extreme numbers."""
    n = int(rng.choice([0, 1, 2, 5, len(table)]))
    at = int(rng.integers(0, n + 1))
    row = table.iloc[[rng.integers(len(table))]].copy()
    for name in table.columns:
        if rng.random() < 0.4 and name in ODD:
            row[name] = [ODD[name][rng.integers(len(ODD[name]))]]
    table = table.iloc[:n]
    tables = [table, pd.concat([table.iloc[:at], row, table.iloc[at:]], ignore_index=True)]
    return tables if rng.random() < 0.5 else tables[::-1]


def accepted(case, part):
    """Return whether a site with this table starts."""
    try:
        make_client(subject(case)[0], part)
    except ValueError:
        return False
    return True


# Answers -----------------------------------------------------------------------------------------


def control(case, answers):
    """Return the classes of the replies to a conversation that nobody has changed.

    It is the positive control: an attack that reaches nothing would pass without a test. So each
    test asserts first that the replies which it attacks are among them.
    """
    return {kind for kind, *_ in answers(case, subject(case)[1]()[0], conversation(case))}


def noisy_answers(case, part, requests):
    """Return the class, the error and the size of each reply of a site with a budget."""
    estimator, _ = subject(case)
    policy = Policy.from_dict(BUDGET)
    return answers(GuardedClient(make_client(estimator, part), policy, estimator.name), requests)


def passive_answers(case, part, requests):
    """Return the class, the error and the size of each reply of a passive site."""
    client = make_client(subject(case)[0], part)
    client.passive = True
    return answers(client, requests)


def grouped_answers(case, part, requests):
    """Return the class, the error and the size of each reply of a site with a minimum count."""
    estimator, policy = subject(case)[0], Policy.from_dict({"min_count": 5})
    return answers(GuardedClient(make_client(estimator, part), policy, estimator.name), requests)


def answers(site, requests):
    """Return the class, the error and the size of each reply of a site, which has the name A.

    The site is rebuilt before each request, as on a transport that keeps no process alive.
    """
    site.enter("A", 5)
    found = []
    for request in requests:
        site.state = None if site.state is None else decode(encode(site.state))
        with seeded_noise(0):
            found.append(_seen(decode(serve(site, encode(request), lambda error: None))))
    return found


def _seen(reply):
    return type(reply).__name__, getattr(reply, "error", ""), len(encode(reply))


def masked_answers(case, part, requests):
    """Return what the server sees of the first of three sites, in secure sums of the requests."""
    estimator, parts = subject(case)
    members = [part, *parts()[1:]]
    clients = {f"{i}": make_client(estimator, one) for i, one in enumerate(members)}
    identities = simulated_identities(list(clients))
    recorder = Recorder({n: SecureClient(one, identities[n]) for n, one in clients.items()})
    numbers = count(1)
    for request in requests:
        try:
            digits = clients["0"].sum_digits(request)
        except ValueError:  # such as a sum beyond the room: a server may still send it
            digits = None
        try:
            run(_ask(request, numbers, digits), recorder, min_clients=2)
        except Exception:  # the server goes on with the next request
            continue
    return [_seen(one.replies["0"]) for one in recorder.exchanges if "0" in one.replies]


def _ask(request, numbers, digits):
    """Return a flow that asks for one sum, or sends one request without masks."""
    if request.asks_for_data and not isinstance(request, OPEN):
        fields = dict.fromkeys(request.reply.__struct_fields__, (20,))
        yield from secure_sum(request, numbers, fields if digits is None else digits)
    else:
        yield request


# Sums of two tables ------------------------------------------------------------------------------


def parts_of(part):
    """Return two parts with every second row each, and one with the rows of both."""
    halves = [_rows(part, slice(0, None, 2)), _rows(part, slice(1, None, 2))]
    return *halves, part


def _rows(part, rows):
    if isinstance(part, tuple):
        return tuple(None if one is None else _rows(one, rows) for one in part)
    return part.iloc[rows].reset_index(drop=True) if isinstance(part, pd.DataFrame) else part[rows]


def unmasked(case, part, requests):
    """Return the replies that a site would mask, and their digits."""
    client = make_client(subject(case)[0], part)
    client.masked = True
    client.enter("A", 3)
    found = []
    for request in requests:
        try:
            digits = client.sum_digits(request)
            with seeded_noise(0):
                reply = client.answer(request)
        except Exception as error:
            found.append(type(error).__name__)
            continue
        states = digits is not None and request.asks_for_data
        if states and (request.reply is not Done) and privacy_of(request) is None:
            found.append((reply, digits))
    return found


# Sensitivity -------------------------------------------------------------------------------------


def protected_values(case, part, requests):
    """Return what a site would protect by noise: pairs of the values and their sensitivity."""
    seen = []
    with _without_noise(seen):
        noisy_answers(case, part, requests)
    return seen


@contextmanager
def _without_noise(seen):
    """Replace the noise everywhere: record what would be protected, and how."""

    def exact(values, sensitivity, privacy, n_shares=1):
        seen.append((np.array(values, float), sensitivity))
        return np.array(values, float)

    with ExitStack() as patches:
        for name, module in list(sys.modules.items()):
            if name.startswith("fedlib") and hasattr(module, "add_noise"):
                patches.enter_context(mock.patch.object(module, "add_noise", exact))
        yield
