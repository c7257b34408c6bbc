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
from all_protocols import CASES, estimator_of, make_client

from fedlib.core.messages import MessageError, arrays, decode, encode
from fedlib.core.protocol import run, serve
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.protection.secure.flow import secure_sum
from fedlib.protection.secure.messages import MaskValues
from fedlib.protection.secure.points import DescribeFeatures
from fedlib.tables.summary.messages import DescribeKinds
from fedlib.testing import Recorder, seeded_noise

NOISY = [case for case in CASES if case.endswith(", noisy")]
MASKED = [case for case in CASES if case.endswith(", masked")]
BUDGET = {"budget": {"epsilon": 1e6, "delta": 0.5}}
OPEN = (DescribeFeatures, DescribeKinds)  # requests for data that are answered without masks
NUMBERS = [0.0, 1.0, -1.0, 0.5, 3.0, 1e-300, -1e-30, 1e30, -1e30, 1e99, -1e99]  # of requests
VALUES = [0.0, -0.0, 7.0, -3.0, 1e-300, 1e30, -1e30, 1e99, 1e200]  # of rows


# Requests ----------------------------------------------------------------------------------------


@cache
def conversation(case):
    """Return the requests that the first client of a case receives; of sums, the inner ones."""
    estimator, (_, _, parts) = estimator_of(case), CASES[case]
    clients = {f"{i}": make_client(estimator, part) for i, part in enumerate(parts())}
    if estimator.get_params().get("secure"):
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
    """Return the beginning of a conversation whose last requests are changed at random."""
    n_kept = int(rng.integers(0, len(requests)))
    n_changed = int(rng.integers(1, 4))
    rest = requests[n_kept : n_kept + n_changed]
    return [*requests[:n_kept], *(changed(rng, one) for one in rest)]


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
    hint = typing.get_type_hints(type(request), include_extras=True)[name]
    return msgspec.structs.replace(request, **{name: _another(rng, value, _literals(hint))})


def _another(rng, value, options):
    if options:
        return options[rng.integers(len(options))]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return int(rng.choice([0, 1, 2, 3, value + 1, 2 * value, 17, 1000]))
    if isinstance(value, float):
        return float(rng.choice([*NUMBERS, value * 2, value / 3, value * 1e6]))
    if isinstance(value, tuple):
        return tuple(one for one in value if rng.random() < 0.7)
    return value  # such as the privacy loss, which the site charges


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
    X, y = part if isinstance(part, tuple) else (part, None)
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
    return tables if rng.random() < 0.5 else tables[::-1]


def accepted(case, part):
    """Return whether a site with this table starts."""
    try:
        make_client(estimator_of(case), part)
    except ValueError:
        return False
    return True


# Answers -----------------------------------------------------------------------------------------


def noisy_answers(case, part, requests):
    """Return the class, the error and the size of each reply of a site with a budget."""
    estimator = estimator_of(case)
    policy = Policy.from_dict(BUDGET)
    return answers(GuardedClient(make_client(estimator, part), policy, estimator.name), requests)


def passive_answers(case, part, requests):
    """Return the class, the error and the size of each reply of a passive site."""
    client = make_client(estimator_of(case), part)
    client.passive = True
    return answers(client, requests)


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
    estimator, (_, _, parts) = estimator_of(case), CASES[case]
    members = [part, *parts()[1:]]
    clients = {f"{i}": make_client(estimator, one) for i, one in enumerate(members)}
    identities = simulated_identities(list(clients))
    recorder = Recorder({n: SecureClient(one, identities[n]) for n, one in clients.items()})
    numbers = count(1)
    for request in requests:
        digits = clients["0"].sum_digits(request)
        try:
            run(_ask(request, numbers, digits), recorder, min_clients=2)
        except Exception:  # the server goes on with the next request
            continue
    return [_seen(one.replies["0"]) for one in recorder.exchanges if "0" in one.replies]


def _ask(request, numbers, digits):
    """Return a flow that asks for one sum, or sends one request without masks."""
    if request.asks_for_data and not isinstance(request, OPEN):
        fields = dict.fromkeys(request.reply.__struct_fields__, (20,))
        yield from secure_sum(request, numbers, digits or fields)
    else:
        yield request


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
