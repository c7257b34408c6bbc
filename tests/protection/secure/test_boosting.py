"""Boosting with secure sums: the trees of the plain run, lost clients, and false sums."""

from itertools import count

import numpy as np
import pandas as pd
import pytest

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor, Schema
from fedlib.boosting.client import BoostingClient, RegressionClient
from fedlib.boosting.descriptions import SumClasses
from fedlib.boosting.histograms import BuildHistograms
from fedlib.boosting.messages import BeginBoosting
from fedlib.core.ledger import SERVER
from fedlib.core.protocol import TooFewClients, run
from fedlib.protection.estimator import mask_clients
from fedlib.protection.secure import (
    ImpossibleSum,
    SecureClient,
    digits_for,
    secure_sum,
    simulated_identities,
)
from fedlib.protection.secure.flow import SumStaysClosed
from fedlib.protection.secure.messages import MaskValues, ShareSecrets
from fedlib.testing import Recorder

from .toy import at, changed

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 3))
Y = X[:, 0] + X[:, 1] ** 2 + RNG.normal(scale=0.3, size=80)
X[RNG.random(X.shape) < 0.05] = np.nan
CLASSES = np.digitize(Y, [0.0, 1.5])
BOUNDS = [[-2.0] * 3, [2.0] * 3]  # some values lie outside
N_CLIENTS = 4
IDENTITIES = simulated_identities([str(i) for i in range(N_CLIENTS)])
TREES = {"n_trees": 3, "max_depth": 2, "max_bin": 8, "bounds": BOUNDS, "tol": None}
LEAVES = {"grow_policy": "lossguide", "max_leaves": 5, "max_depth": 0}


def parts(y, *weights):
    return list(zip(*(np.array_split(array, N_CLIENTS) for array in (X, y, *weights)), strict=True))


def two_classes(**parameters):
    return FederatedXGBClassifier(**{**TREES, "method": "histogram", **parameters})


def transport(tamper=None, secure=True):
    clients = {}
    for name, part in zip(IDENTITIES, parts(CLASSES > 0), strict=True):
        client = BoostingClient(part)
        clients[name] = SecureClient(client, IDENTITIES[name]) if secure else client
    return Recorder(clients, tamper)


def assert_same_trees(one, other):
    assert len(one.trees_) == len(other.trees_)
    for tree, same in zip(one.trees_, other.trees_, strict=True):
        for name, array in vars(tree).items():
            np.testing.assert_array_equal(array, getattr(same, name), name)


def test_a_toy_by_hand():
    """The bins are below 2.5 and above. All rows start with p = 1/2, so g = ±1/2 and h = 1/4.

    Left of 2.5 are two rows of the class 0: G = 1, H = 1/2, and the weight is -1 / (1/2 + 1).
    """
    toy = [([[1.0], [3.0]], [0, 1]), ([[2.0], [4.0]], [0, 1])]
    model = FederatedXGBClassifier(
        1,
        method="histogram",
        max_depth=1,
        min_child_weight=0,
        secure=True,
        classes=[0, 1],
        bounds=[[0.0], [5.0]],
        max_bin=2,
    ).fit(toy)
    (tree,) = model.trees_
    assert (tree.feature.tolist(), tree.threshold[0]) == ([0, -1, -1], 2.5)
    assert tree.value == pytest.approx([0, -0.2, 0.2])  # the learning rate is 0.3
    assert [labels.tolist() for labels in model.labels_] == [[0, 1], [0, 1]]
    sums = ["AdvertiseKeys", "ShareSecrets", "MaskValues", "ConfirmSurvivors", "RevealShares"]
    asked = [e.message for e in model.ledger_ if e.sender == SERVER and e.receiver == "0"]
    assert asked == ["DescribeFeatures", *2 * sums, "BeginBoosting", *sums, "KeepTrees"]


@pytest.mark.parametrize(
    "options",
    [
        {"tol": 0.004},
        {"subsample": 0.7, "colsample_bynode": 0.5, "random_state": 0},
        {"scale_pos_weight": 2.5, "monotone_constraints": [1, 0, 0]},
        {"monotone_constraints": {0: 1}, "interaction_constraints": [[0, 1], [2]]},
        LEAVES,
        {"objective": "multi:softprob"},
    ],
)
def test_trees_are_those_of_the_plain_run(options):
    several = options.get("objective") == "multi:softprob"
    data = parts(CLASSES if several else CLASSES > 0)
    known = [0, 1, 2] if several else [False, True]
    plain = two_classes(**options).fit(data)
    secure = two_classes(**options, secure=True, classes=known).fit(data)
    assert_same_trees(secure, plain)
    assert secure.model_.base_scores == plain.model_.base_scores
    assert [x.tolist() for x in secure.labels_] == [x.tolist() for x in plain.labels_]


@pytest.mark.parametrize(
    "name", ["squarederror", "pseudohubererror", "poisson", "logistic", "gamma", "tweedie"]
)
def test_a_regression_with_weights(name):
    """Weights of whole eighths are exact, and so is the prediction before the first tree."""
    objective = "count:poisson" if name == "poisson" else f"reg:{name}"
    y = np.abs(Y)
    if name in ("logistic", "gamma", "tweedie"):
        y = np.round(y / y.max() + (name == "gamma"), 10)
    data = parts(y, RNG.integers(1, 9, len(Y)) / 8)
    plain, secure = (
        FederatedXGBRegressor(**TREES, objective=objective, **masked).fit(data)
        for masked in ({}, {"secure": True, "max_target": None if name == "logistic" else 16.0})
    )
    assert_same_trees(secure, plain)
    assert secure.base_score_ == plain.base_score_


@pytest.mark.parametrize("name", ["squarederror", "logistic"])
def test_weights_and_targets_are_clipped_to_what_the_sites_agreed_on(name, caplog):
    """A site notes in its log what it clips; no message depends on it."""
    y, weights = np.abs(Y) / np.abs(Y).max(), np.linspace(0.25, 4, len(Y))
    limits = {"max_weight": 2.0, "max_target": 0.75}
    options = {**TREES, "objective": f"reg:{name}"}
    plain = FederatedXGBRegressor(**options).fit(
        parts(np.minimum(y, 0.75), np.minimum(weights, 2.0))
    )
    clients = {
        name: SecureClient(RegressionClient(part), IDENTITIES[name])
        for name, part in zip(IDENTITIES, parts(y, weights), strict=True)
    }
    secure = FederatedXGBRegressor(**options, secure=True, **limits).fit(Recorder(clients))
    assert_same_trees(secure, plain)
    assert secure.base_score_ == pytest.approx(plain.base_score_, rel=1e-7)
    assert (
        "sample_weight must be at most max_weight=2 in sums over all clients; got 4" in caplog.text
    )
    assert "y must be within ±max_target=0.75; got 1 in size" in caplog.text


def test_limits_of_weights_and_targets_come_from_the_schema():
    def field(name, role, minimum, maximum):
        limits = {"minimum": minimum, "maximum": maximum}
        return {"name": name, "type": "number", "constraints": limits, "fedlib": {"role": role}}

    fields = [field("x", "feature", 0, 1), field("y", "target", -7, 5), field("w", "weight", 0, 9)]
    schema = Schema({"schema": {"fields": fields}})
    begin = {}
    for given in ({}, {"max_weight": 3, "max_target": 4}):
        table = pd.DataFrame({"x": [0.0, 1.0] * 4, "y": [-7.0, 5.0] * 4, "w": 3.0})
        model = FederatedXGBRegressor(2, secure=True, schema=schema, **given)
        factory, (options,) = model._client_factory([{}])
        run = Recorder(mask_clients({name: factory(table, **options) for name in "ABC"}))
        model.fit(run)
        (found,) = {
            (request.max_weight, request.max_target)
            for exchange in run.exchanges
            for request in exchange.requests.values()
            if isinstance(request, BeginBoosting)
        }
        begin[len(given)] = found
    assert begin == {0: (9.0, 7.0), 2: (3.0, 4.0)}


def test_a_second_run_has_its_own_limit_of_targets():
    """The targets of the first run, which are clipped, are not those of the second."""
    clients = [RegressionClient(part) for part in parts(Y)]
    run = Recorder(mask_clients(dict(zip(IDENTITIES, clients, strict=True))))
    options = {**TREES, "secure": True}
    FederatedXGBRegressor(**options, max_target=0.5).fit(run)
    again = Recorder(mask_clients(dict(zip(IDENTITIES, clients, strict=True))))
    second = FederatedXGBRegressor(**options, max_target=16.0).fit(again)
    assert_same_trees(second, FederatedXGBRegressor(**TREES).fit(parts(Y)))


def test_a_site_refuses_other_digits_of_labels():
    request = SumClasses((False, True), 0.3, max_weight=1.0, n_rows=len(Y))
    flow = secure_sum(request, count(1), {"weights": (8,), "shift": (8,)})
    with pytest.raises(TooFewClients, match="WrongDigits at MaskValues"):
        run(flow, transport())


def test_the_loss_keeps_the_stated_error():
    plain, secure = (
        two_classes(secure=secure, classes=[False, True] if secure else None).fit(
            parts(CLASSES > 0)
        )
        for secure in (False, True)
    )
    largest = 2 * len(Y) * (abs(plain.model_.base_margins[0]) + 3 + np.log(2))
    digits = digits_for(largest, N_CLIENTS)
    bound = N_CLIENTS * 2.0 ** -(digits + 1) / len(Y)
    error = np.abs(np.array(secure.losses_) - plain.losses_).max()
    assert error <= bound + 4 * np.spacing(1.0)


def test_clients_that_prefer_another_learning_rate():
    data = parts(CLASSES > 0)
    fits = []
    for secure in (False, True):
        clients = {
            name: BoostingClient(part, learning_rate=rate)
            for name, part, rate in zip(IDENTITIES, data, [0.1, None, 0.4, None], strict=True)
        }
        if secure:
            clients = {name: SecureClient(one, IDENTITIES[name]) for name, one in clients.items()}
        known = [False, True] if secure else None
        fits.append(two_classes(secure=secure, classes=known).fit(Recorder(clients)))
    plain, secure = fits
    assert secure.learning_rate_ == plain.learning_rate_ == pytest.approx(0.275)
    assert_same_trees(secure, plain)


def test_no_message_describes_one_client_alone():
    run = transport()
    two_classes(secure=True, classes=[False, True]).fit(run)
    sent = {entry.message for entry in run.ledger if entry.sender != SERVER}
    assert sent == {
        "Features",
        "SignedKeys",
        "EncryptedShares",
        "MaskedValues",
        "Confirmation",
        "RevealedShares",
        "Done",
    }


# Lost and false clients --------------------------------------------------------------------------


@pytest.mark.parametrize(("growth", "nth"), [({}, 1), ({}, 2), (LEAVES, 3)])
def test_a_client_is_lost_while_trees_grow(growth, nth):
    """The trees are those of the plain run in which it is lost at the same request."""
    plain = two_classes(**growth).fit(
        transport({"1": at(BuildHistograms, None, nth=nth)}, secure=False), min_clients=3
    )
    secure = two_classes(**growth, secure=True, classes=[False, True]).fit(
        transport({"1": at(MaskValues, None, nth=2 + nth)}), min_clients=3
    )
    assert list(secure.ledger_.lost) == list(plain.ledger_.lost) == ["1"]
    assert_same_trees(secure, plain)
    assert secure.losses_ == pytest.approx(plain.losses_, rel=1e-12)


@pytest.mark.parametrize("nth", [1, 2])
def test_a_client_is_lost_before_the_first_tree(nth):
    """Its rows count for the sums before, and for no tree."""
    secure = two_classes(secure=True, classes=[False, True]).fit(
        transport({"1": at(MaskValues, None, nth=nth)}), min_clients=3
    )
    assert list(secure.ledger_.lost) == ["1"]
    data = [part for i, part in enumerate(parts(CLASSES > 0)) if i != 1]
    assert_same_trees(secure, two_classes().fit(data))


def test_a_sum_that_cannot_be_opened_ends_the_run():
    """Nobody can open the shares of client 1, in the request that has the first tree's values."""
    nth = 2 + 3  # two sums of labels, two levels, and the first level of the second tree
    broken = changed(boxes=np.zeros_like, commitments=np.zeros_like)
    run = transport({"1": at(ShareSecrets, broken, nth=nth)})
    with pytest.raises(SumStaysClosed, match="because '1' shared other secrets"):
        two_classes(secure=True, classes=[False, True]).fit(run, min_clients=3)


@pytest.mark.parametrize("lie", [2**63, 2**40])
def test_an_impossible_histogram_ends_the_run_with_a_typed_error(lie):
    """One number is too large for any rows, or the bins of two features differ."""

    def change(words):
        return np.concatenate([words[:1] + np.uint64(lie), words[1:]])

    run = transport({"2": at(MaskValues, changed(words=change), nth=3)})
    with pytest.raises(ImpossibleSum, match="at least one client has sent wrong values"):
        two_classes(secure=True, classes=[False, True]).fit(run)


def test_below_the_threshold_the_run_ends():
    lost = {name: at(MaskValues, None, nth=4) for name in "12"}
    with pytest.raises(TooFewClients, match="2 of 4 clients remain"):
        two_classes(secure=True, classes=[False, True]).fit(transport(lost), min_clients=3)


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"method": "union", "bounds": None}, "needs method='histogram', because the server would"),
        ({"bounds": None}, "secure=True needs bounds, the smallest"),
        ({"validation_fraction": 0.2}, "needs validation_fraction=0 .got 0.2"),
        ({"eval_metric": "auc"}, "needs eval_metric=None .got 'auc'"),
        ({"early_stopping_rounds": 2}, "needs early_stopping_rounds=None .got 2"),
        ({"classes": None}, "secure=True needs classes, those .* .got classes=None"),
        ({"classes": [0, 1], "secure": False}, "classes need secure=True or epsilon; got classes"),
        (
            {"classes": [0, 1, 2], "objective": "binary:logistic"},
            "classes must be two texts or numbers; got .*: there are 3",
        ),
        ({"classes": [1, 1]}, "a class occurs twice"),
        (
            {"max_weight": 2.0, "secure": False, "classes": None},
            "max_weight needs secure=True without epsilon; got max_weight=2.0",
        ),
        ({"bounds": [1.0, 2.0]}, "two rows with a number per column"),
        ({"bounds": [[2.0], [1.0]]}, "the lower below the upper, within .*, got"),
        (
            {"bounds": [[0.0], [np.inf]]},
            "two numbers, the lower below the upper, within ±1.70141e",
        ),
        ({"bounds": [[1e9], [1e9 + 1]]}, "must be further apart for 8 bins of float32"),
        ({"method": "union", "secure": False, "classes": None}, "bounds needs method='h"),
    ],
)
def test_bad_parameters_raise_before_any_message(options, text):
    with pytest.raises(ValueError, match=text):
        two_classes(**{"secure": True, "classes": [0, 1], **options}).protocol()


def test_bad_parts_raise_before_any_message():
    model = two_classes(secure=True, classes=["no", "yes"])
    table = pd.DataFrame({"age": [1.0], "height": [1.0], "town": ["x"]})
    with pytest.raises(ValueError, match="features of numbers; 'town' contain text"):
        model.fit([(np.ones((1, 3)), ["no"]), (table, ["yes"])])
    with pytest.raises(ValueError, match=r"parts\[0\]: y must contain only .* got 'maybe'"):
        model.fit([(np.ones((1, 3)), ["maybe"]), (np.ones((1, 3)), ["yes"])])
    with pytest.raises(ValueError, match="bounds must have the 1 features .* got 3"):
        model.fit([([[1.0]], ["no"]), ([[1.0]], ["yes"])])
    with pytest.raises(
        ValueError, match=r"parts\[1\]: sample_weight must be at most max_weight=1;"
    ):
        model.fit([(np.ones((1, 3)), ["no"]), (np.ones((1, 3)), ["yes"], [1.5])])
    with pytest.raises(
        ValueError, match=r"parts\[0\]: y must be within ±max_target=2; got 3 in size"
    ):
        FederatedXGBRegressor(**TREES, secure=True, max_target=2).fit(
            [(np.ones((1, 3)), [-3.0])] * 2
        )
    with pytest.raises(ValueError, match="both classes need rows with a weight above 0"):
        model.fit([(np.ones((1, 3)), ["no"])] * 2)
    with pytest.raises(ValueError, match="at least one row must have a weight above 0"):
        model.fit([(np.empty((0, 3)), np.empty(0, str))] * 2)


def test_unknown_classes_are_known_to_the_site_only(caplog):
    """Over a transport, they count as the first class: an error would show that there is one."""
    identities = simulated_identities(["0", "1"])
    parts = [([[1.0] * 3] * 2, ["no", "yes"]), ([[1.0] * 3], ["maybe"])]
    clients = {
        name: SecureClient(BoostingClient(part), identities[name])
        for name, part in zip("01", parts, strict=True)
    }
    model = two_classes(secure=True, classes=["no", "yes"]).fit(Recorder(clients))
    assert model.base_share_ == pytest.approx(1 / 3)
    text = "y must contain only the classes ['no', 'yes']; got 'maybe'; such rows count as rows of"
    assert [len(one.problems) for one in clients.values()] == [0, 1]
    assert clients["1"].problems[0].startswith(text)
    assert text in caplog.text


def test_text_at_a_site_counts_as_missing(caplog):
    """The site's log says so, and no reply: whether there is a text depends on single rows."""
    numbers = pd.DataFrame({"age": [1.0, 2.0], "height": [1.0, 2.0], "town": [1.0, 2.0]})
    table = numbers.assign(town=["x", "y"])
    models = []
    for X in (table, table.assign(town=np.nan)):
        identities = simulated_identities(["0", "1"])
        clients = {
            name: SecureClient(BoostingClient((given, ["no", "yes"])), identities[name])
            for name, given in zip("01", [numbers, X], strict=True)
        }
        models.append(
            two_classes(secure=True, classes=["no", "yes"], min_child_weight=0).fit(
                Recorder(clients)
            )
        )
    assert models[0].decision_function(numbers).tolist() == (
        models[1].decision_function(numbers).tolist()
    )
    assert caplog.text.count("feature 'town' must contain numbers, as in training; got text") == 1


def test_bounds_without_secure_sums_and_with_text():
    table = pd.DataFrame({"age": [1.0, 2.0], "height": [1.0, 2.0], "town": ["x", "y"]})
    with pytest.raises(ValueError, match="bounds needs features of numbers; 'town' contain"):
        two_classes().fit([(table, [0, 1])])
