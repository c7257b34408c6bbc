"""The promises of every protocol, with every kind of sums."""

import copy
import inspect
import os
import subprocess
import sys
import warnings
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from all_protocols import (
    CASES,
    OURS,
    PROTOCOLS,
    VALIDATED,
    estimator_of,
    fitted,
    frozen,
    make_client,
)
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from fedlib.core.estimator import Clusterer
from fedlib.core.messages import decode, encode
from fedlib.core.protocol import TooFewClients
from fedlib.core.registry import protocols
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.sites.models import load, save
from fedlib.testing import Recorder, seeded_noise

N_CLIENTS = 4  # of which a masked sum may lose one
WITHOUT_NAMES = {
    "vertical-dbscan",
    "evaluation",
    "regression-score",
}  # of columns that all clients have
EVERYBODY = {"vertical-dbscan"}  # all clients are needed, because each has other columns

each_case = pytest.mark.parametrize("case", CASES)
pytestmark = pytest.mark.filterwarnings("ignore")  # of a few rounds, and of few rows


def parts_of(case):
    """Return the parts of the table with the last one divided, so that there are four."""
    parts = CASES[case][2]()
    if CASES[case][0] in EVERYBODY:
        return [*parts, parts[0] * 2]
    last = parts[-1]
    halves = [
        tuple(None if values is None else values[i::2] for values in last)
        if isinstance(last, tuple)
        else last[i::2]
        for i in range(2)
    ]
    return [*parts[:-1], *halves]


def clients_of(case, estimator):
    clients = {str(i): make_client(estimator, part) for i, part in enumerate(parts_of(case))}
    if getattr(estimator, "secure", False):
        identities = simulated_identities(list(clients))
        clients = {name: SecureClient(one, identities[name]) for name, one in clients.items()}
    return clients


def run(case, min_clients=None, change=lambda clients: None, **options):
    """Return the fitted estimator and the transport of a run."""
    estimator = estimator_of(case)
    clients = clients_of(case, estimator)
    change(clients)
    transport = Recorder(clients, **options)
    with seeded_noise(0):
        estimator.fit(transport, min_clients=min_clients)
    return estimator, transport


@cache
def whole_run(case):
    """Return an undisturbed run, which no test may change."""
    return run(case)


def is_random(case):
    """Return whether the bytes of a run depend on masks."""
    return "masked" in case


# Parameters --------------------------------------------------------------------------------------


def test_every_protocol_and_every_kind_of_sums_is_in_the_table():
    assert set(PROTOCOLS) == set(OURS)
    for name in OURS:
        parameters = inspect.signature(protocols()[name]).parameters
        if {"secure", "epsilon"} <= set(parameters):
            assert {f"{name}, masked", f"{name}, noisy", f"{name}, masked and noisy"} <= set(CASES)


@each_case
def test_an_estimator_is_one_of_scikit_learn(case):
    estimator = estimator_of(case)
    copied = clone(estimator)
    assert repr(copied) == repr(estimator)
    again = type(estimator)(**estimator.get_params(deep=False))
    assert frozen(again.get_params()) == frozen(copied.get_params())
    assert not [name for name in vars(estimator) if name.endswith("_")]


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        (name, parameter)
        for name in OURS
        for parameter in inspect.signature(protocols()[name]).parameters
    ],
)
def test_a_bad_parameter_is_refused_by_name_before_any_message(name, parameter):
    parameters, parts = PROTOCOLS[name]
    estimator = protocols()[name](**parameters | {parameter: object()})
    asked = []
    client = make_client(protocols()[name](**parameters), parts()[0])
    transport = Recorder({"A": client}, {"A": asked.append})
    with pytest.raises((ValueError, TypeError), match=parameter):
        estimator.fit(transport)
    assert transport.exchanges == []


# Runs --------------------------------------------------------------------------------------------


@each_case
def test_the_same_run_gives_the_same_bytes(case):
    first, one = whole_run(case)
    second, other = run(case)
    assert first.ledger_.conversation() == second.ledger_.conversation()
    assert fitted(first) == fitted(second)
    if not is_random(case):
        assert one.all_bytes == other.all_bytes


@each_case
def test_a_client_that_is_built_again_for_each_request_gives_the_same(case):
    estimator = estimator_of(case)
    parts = parts_of(case)
    identities = simulated_identities([str(i) for i in range(len(parts))])

    def rebuild(name):
        client = make_client(estimator, parts[int(name)])
        return SecureClient(client, identities[name]) if estimator_secure else client

    estimator_secure = getattr(estimator, "secure", False)

    def same_keys(clients):
        if estimator_secure:
            clients.update({name: rebuild(name) for name in clients})

    whole, _ = run(case, change=same_keys)
    again, _ = run(case, change=same_keys, rebuild=rebuild)
    assert fitted(again) == fitted(whole)


@each_case
def test_labels_are_those_of_the_clients(case):
    model, transport = whole_run(case)
    clients = transport.members.values()
    assert not hasattr(model, "labels_") or CASES[case][0] in EVERYBODY
    if not model.has_labels or "selection" in case:
        return
    for client in clients:
        assert len(client.state.labels) == len(client.X)
        assert client.problems == ()


@each_case
def test_a_passive_client_shares_nothing(case):
    def pacify(clients):
        clients["3"].passive = True
        if inner := getattr(clients["3"], "inner", None):
            inner.passive = True

    if CASES[case][0] in EVERYBODY:
        with pytest.raises(ValueError, match="'3'"):
            run(case, change=pacify)
        return
    model, transport = run(case, change=pacify)
    kinds = {type(one.replies["3"]).__name__ for one in transport.exchanges if "3" in one.replies}
    unmasked = {"SignedKeys", "EncryptedShares", "Confirmation", "RevealedShares"}
    assert kinds <= {"Declined", "Done"} | (unmasked if is_random(case) else set())
    if model.has_labels and "selection" not in case:
        client = transport.members["3"]
        assert len(client.state.labels) == len(client.X)
    assert model.ledger_.lost == {}


@each_case
def test_fit_predict_returns_the_labels_of_fit(case):
    """Clusterers have it; over a transport to other sites, they refuse before any message."""
    name, _, parts = CASES[case]
    estimator = estimator_of(case)
    if not isinstance(estimator, Clusterer):
        assert not hasattr(estimator, "fit_predict")
        return
    with seeded_noise(0):
        expected = clone(estimator).fit(parts()).labels_
    with seeded_noise(0):
        assert frozen(list(estimator.fit_predict(parts()))) == frozen(list(expected))
    if name not in EVERYBODY:
        transport = Recorder(clients_of(case, estimator))
        with pytest.raises(ValueError, match="the labels stay at the sites; got Recorder"):
            clone(estimator).fit_predict(transport)
        assert transport.exchanges == []


@each_case
def test_a_client_may_be_lost_at_any_step(case):
    """The run ends with a result or a typed failure, and names the client."""
    _, whole = whole_run(case)
    steps = len(whole.exchanges)
    for step in sorted({0, 1, steps // 2, steps - 2, steps - 1} & set(range(steps))):
        seen = []

        def vanish(request, reply, seen=seen, step=step):
            seen.append(request)
            return None if len(seen) > step else reply

        least, expected = N_CLIENTS - 1, nullcontext()
        if CASES[case][0] in EVERYBODY:
            least, expected = None, pytest.raises(TooFewClients, match="'3'")
        with expected:
            model, _ = run(case, min_clients=least, tamper={"3": vanish})
            asked = [one for one in whole.exchanges if "3" in one.requests]
            assert list(model.ledger_.lost) == ["3"] * (len(asked) > step)


@each_case
def test_a_failed_fit_leaves_the_model_of_before(case, monkeypatch):
    """Or none: wherever the run fails, or what the estimator makes of its result."""
    new, (model, whole) = estimator_of(case), whole_run(case)
    model = copy.copy(model)
    before = dict(vars(model))
    steps = len(whole.exchanges)

    def fails(*_):
        raise ArithmeticError("broken")

    def refit(estimator, step=steps):
        seen = []

        def vanish(request, reply):
            seen.append(request)
            return None if len(seen) > step else reply

        with seeded_noise(0):
            estimator.fit(Recorder(clients_of(case, estimator), tamper={"0": vanish}))

    asked = sum("0" in one.requests for one in whole.exchanges)
    of_new, of_fitted = {asked - 1}, {0, asked // 2, asked - 1}
    for estimator, expected, at in ((new, dict(vars(new)), of_new), (model, before, of_fitted)):
        for step in sorted(at):
            with pytest.raises(TooFewClients):
                refit(estimator, step)
            assert vars(estimator) == expected
        for method in ("_set_model", "_set_names"):
            with monkeypatch.context() as patch:
                patch.setattr(type(estimator), method, fails)
                with pytest.raises(ArithmeticError):
                    refit(estimator)
            assert vars(estimator) == expected
    refit(new)
    assert vars(new).keys() == before.keys()


# Models ------------------------------------------------------------------------------------------


@each_case
@pytest.mark.parametrize("form", ["npz", "json"])
def test_a_saved_model_predicts_the_same(case, form, tmp_path):
    model, transport = whole_run(case)
    save(model, tmp_path / f"model.{form}")
    loaded = load(tmp_path / f"model.{form}")
    assert attributes(loaded) == attributes(model)
    if hasattr(model, "predict"):
        X = next(iter(transport.members.values())).X
        new = np.asarray(X)[:5] if isinstance(X, np.ndarray) else X
        if isinstance(new, np.ndarray) and CASES[case][0] not in EVERYBODY:
            assert np.array_equal(loaded.predict(new), model.predict(new))


def attributes(model):
    """Return the names of the fitted attributes that a model file has."""
    return {name for name in vars(model) if name.endswith("_")} - {"ledger_", "labels_"}


def named(part, columns):
    """Return a part whose table has names, with its columns in this order."""
    table, *rest = part if isinstance(part, tuple) else (part,)
    frame = pd.DataFrame(table, columns=["b", "a"])[list(columns)]
    return (frame, *rest) if isinstance(part, tuple) else frame


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][0] not in WITHOUT_NAMES])
def test_columns_are_found_by_name(case, tmp_path):
    """In another order they are put right, in `fit`, in new rows and after loading."""
    first, *rest = parts_of(case)
    models = []
    for order in ("ba", "ab"):
        with seeded_noise(0):
            parts = [named(first, "ba"), *(named(part, order) for part in rest)]
            models.append(estimator_of(case).fit(parts))
    model = models[0]
    assert fitted(models[1]) == fitted(model) or "masked" in case
    assert case in VALIDATED or model.feature_names_in_.tolist() == ["b", "a"]
    X = named(first[0] if isinstance(first, tuple) else first, "ba")
    methods = [
        name
        for name in ("predict", "predict_proba", "decision_function", "transform", "score", "bic")
        if hasattr(model, name) and "y" not in inspect.signature(getattr(model, name)).parameters
    ]
    if hasattr(model, "predict"):
        save(model, tmp_path / "model.npz")
        models.append(load(tmp_path / "model.npz"))
    for method in methods:
        expected = getattr(model, method)(X)
        for one in (model, models[-1]):
            np.testing.assert_array_equal(getattr(one, method)(X[["a", "b"]]), expected)
            with pytest.raises(ValueError, match="'a' is missing, and 'c' is additional"):
                getattr(one, method)(X.rename(columns={"a": "c"}))
    if "predict" in methods:
        assert model.predict(X[:0]).shape == (0, *model.predict(X).shape[1:])


@each_case
@pytest.mark.filterwarnings("ignore:the model was fitted with base_margin")
def test_a_changed_parameter_does_not_change_predictions(case):
    estimator = estimator_of(case)
    if not hasattr(estimator, "predict"):
        return
    X = np.zeros((3, 2))
    with pytest.raises(NotFittedError):
        estimator.predict(X)
    model = copy.deepcopy(whole_run(case)[0])
    before = model.predict(X)
    for name, value in model.get_params(deep=False).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            with warnings.catch_warnings(action="ignore"):
                model.set_params(**{name: value * 2 + 1})
    assert np.array_equal(model.predict(X), before)


def test_messages_decode_to_themselves():
    for case in CASES:
        _, transport = whole_run(case)
        for one in transport.exchanges:
            for data in (*one.request_bytes.values(), *one.reply_bytes.values()):
                assert encode(decode(data)) == data


INTERPRETED = """
from all_protocols import CASES, estimator_of

for case in ("kmeans, option 0", "gaussian-mixture, option 0", "xgb-regressor"):
    estimator_of(case).fit(CASES[case][2]())
"""


def test_protocols_run_with_kernels_that_are_not_compiled():
    """As `make coverage` does: then numbers of NumPy come from the kernels."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-W", "ignore", "-c", INTERPRETED]
    subprocess.run(command, env=environment, check=True, timeout=300)
