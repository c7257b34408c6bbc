"""Clients that lie: the liar leaves the run, and the result is that of the others.

Each lie is a reply that is valid by its types and shapes. Lies that no server can detect, such as
invented points, are not here.
"""

from functools import partial

import msgspec
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_regressor
from sklearn.metrics import adjusted_rand_score

from fedlib import (
    DBDC,
    PPDBDC,
    SDBDC,
    ApproximateDBSCAN,
    FederatedEvaluation,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedRegressionScore,
    FederatedSummary,
    FederatedXGBClassifier,
    FederatedXGBRegressor,
    GaussianMixtureDBSCAN,
    HorizontalDBSCAN,
    LeaveOneSiteOut,
)
from fedlib.boosting.client import RegressionClient
from fedlib.core.aggregation import Disagreement
from fedlib.core.messages import Declined, encode
from fedlib.core.registry import protocols
from fedlib.sites.leave_one_out import LeftOutClient
from fedlib.testing import Recorder

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*one class only"),
    pytest.mark.filterwarnings("ignore:.*have fewer than"),  # points at a client that lies
]

RNG = np.random.default_rng(0)
POINTS = {
    name: np.concatenate([RNG.normal(0, 0.5, (30, 2)), RNG.normal(6, 0.5, (30, 2))])
    for name in ("A", "B", "liar")
}
CLASSES = np.repeat(["ill", "well"], 30)

DENSITY = {"eps": 0.8, "min_samples": 5}
ESTIMATORS = {
    "horizontal-dbscan": HorizontalDBSCAN(0.5, 3, max_cells=1000),
    "approximate-dbscan": ApproximateDBSCAN(**DENSITY, rho=0.5, max_cells=1000),
    "dbdc": DBDC(**DENSITY),
    "dbdc, centroids": DBDC(**DENSITY, local_model="kmeans"),
    "sdbdc": SDBDC(**DENSITY),
    "ppdbdc": PPDBDC(**DENSITY),
    "kmeans, one shot": FederatedKMeans(2, method="one_shot", random_state=0),
    "kmeans, Lloyd": FederatedKMeans(2, method="lloyd", random_state=0),
    "mixture, EM": FederatedGaussianMixture(2, method="em", random_state=0),
    "mixture, average": FederatedGaussianMixture(
        2, method="average", random_state=3
    ),  # drawn: liar
    "mixture and DBSCAN": GaussianMixtureDBSCAN(**DENSITY, random_state=0, max_points=1000),
    "xgboost, top splits": FederatedXGBClassifier(
        3,
        objective="binary:logistic",
        max_depth=2,
        tol=None,
        method="top_splits",
    ),
    "xgboost, union": FederatedXGBClassifier(3, max_depth=2, tol=None, method="union"),
    "xgboost, histogram": FederatedXGBClassifier(
        3, max_depth=2, tol=None, method="histogram", histograms="dense"
    ),
    "xgb-regressor, histogram": FederatedXGBRegressor(3, max_depth=2, histograms="dense"),
}


def another_feature(name, reply):
    """Add one column to the reply."""
    wide = {"cells", "representatives", "centres", "means"} & set(reply)
    if reply["type"] in {"PointsIntroduction", "TargetDescription", "TrainingDescription"}:
        return {"n_features": 3}
    if not wide:
        return {}
    field = wide.pop()
    width = array(reply[field]).shape[1] + 1
    changed = {field: np.zeros((len(array(reply[field])), width), array(reply[field]).dtype)}
    if reply["type"] == "CellCounts":
        changed[field][:, 0] = np.arange(len(changed[field]))
    if reply["type"] == "GroupMeans":
        changed |= {"mean": np.zeros(3), "squares": np.ones(3)}
    if reply["type"] == "ClusterMixtures":
        changed["covariances"] = np.tile(np.eye(3), (len(changed[field]), 1, 1))
    return changed


def fields_of(*replies):
    """Return a lie that changes fields of a class of replies."""
    changes = dict(replies)
    return lambda name, reply: changes[name](reply) if name in changes else {}


def shifted(sums):
    """Move one hessian out of the first bin."""
    sums = sums.copy()
    sums[:, 0] += 1
    return sums


def at_second(of, change):
    """Return a lie that changes the second reply of a class."""
    seen = []

    def lie(name, reply):
        if name == of:
            seen.append(name)
        return change(reply) if name == of and len(seen) == 2 else {}

    return lie


LIES = {
    **{(name, "another feature"): another_feature for name in ESTIMATORS},
    ("horizontal-dbscan", "one cell many times"): fields_of(
        (
            "CellCounts",
            lambda r: {"cells": np.zeros((2**12, 2), np.int64), "counts": np.full(2**12, 2**40)},
        )
    ),
    ("horizontal-dbscan", "more points than can be"): fields_of(
        (
            "CellCounts",
            lambda r: {
                "cells": np.stack([np.arange(9), np.arange(9)], axis=1),
                "counts": np.full(9, 2**40),
            },
        )
    ),
    ("horizontal-dbscan", "too many cells"): fields_of(
        (
            "CellCounts",
            lambda r: {
                "cells": np.stack([np.arange(1001), np.zeros(1001, int)], axis=1),
                "counts": np.ones(1001, np.int64),
            },
        )
    ),
    ("approximate-dbscan", "one cell many times"): fields_of(
        (
            "CellCounts",
            lambda r: {"cells": np.zeros((99, 2), np.int64), "counts": np.full(99, 2**30)},
        )
    ),
    ("approximate-dbscan", "too many cells"): fields_of(
        (
            "CellCounts",
            lambda r: {
                "cells": np.stack([np.arange(1001), np.zeros(1001, int)], axis=1),
                "counts": np.ones(1001, np.int64),
            },
        )
    ),
    ("kmeans, Lloyd", "another number of points"): fields_of(
        ("ClusterSums", lambda r: {"counts": array(r["counts"]) + 1})
    ),
    ("kmeans, Lloyd", "sums outside of the range"): fields_of(
        ("ClusterSums", lambda r: {"sums": array(r["sums"]) + 1e4})
    ),
    ("mixture, EM", "another number of points"): at_second(
        "ResponsibilitySums",
        lambda r: {
            key: 2 * (array(r[key]) if key != "n_points" else r[key])
            for key in ("n_points", "counts", "sums", "products")
        },
    ),
    ("mixture, EM", "products that are not symmetric"): fields_of(
        (
            "ResponsibilitySums",
            lambda r: {"products": array(r["products"]) + np.array([[0, 0.1], [0, 0]])},
        )
    ),
    ("mixture, EM", "a far point that hides a negative variance"): fields_of(
        (
            "ResponsibilitySums",
            lambda r: {
                "sums": array(r["counts"])[:, np.newaxis] * np.array([1e30, 0.0]),
                "products": array(r["counts"])[:, np.newaxis, np.newaxis]
                * np.array([[1e60, 0.0], [0.0, -1e50]]),
            },
        )
    ),
    ("mixture, EM", "means of 4e99"): fields_of(
        (
            "ResponsibilitySums",
            lambda r: {
                "sums": array(r["counts"])[:, np.newaxis] * np.array([4e99, 0.0]),
                "products": array(r["counts"])[:, np.newaxis, np.newaxis] * np.diag([1.7e199, 1.0]),
            },
        )
    ),
    ("mixture, EM", "other points in the second round"): at_second(
        "ResponsibilitySums",
        lambda r: {"sums": array(r["sums"]) + 0.01 * array(r["counts"])[:, np.newaxis]},
    ),
    ("mixture, EM", "an impossible likelihood"): fields_of(
        ("ResponsibilitySums", lambda r: {"log_likelihood": 1e200})
    ),
    ("mixture, EM", "points of another magnitude"): fields_of(
        ("PointsIntroduction", lambda r: {"magnitude": 300})
    ),
    **{
        ("mixture, average", kind): fields_of((reply, lambda r, changed=changed: changed))
        for reply in ("LocalMixture", "ImprovedMixture")
        for kind, changed in {
            f"{reply} with means of 1e100": {"means": np.full((2, 2), 1e100)},
            f"{reply} with variances of 1e-300": {
                "covariances": np.tile(1e-300 * np.eye(2), (2, 1, 1))
            },
            f"{reply} with variances of 1e200": {
                "covariances": np.tile(1e200 * np.eye(2), (2, 1, 1))
            },
        }.items()
    },
    ("dbdc, centroids", "radii of 1e300"): fields_of(
        ("LocalModel", lambda r: {"radii": np.full(len(array(r["radii"])), 1e300)})
    ),
    ("mixture and DBSCAN", "a huge cluster"): fields_of(
        ("ClusterMixtures", lambda r: {"sizes": array(r["sizes"]) + 10**6})
    ),
    ("xgboost, top splits", "a third class"): fields_of(
        (
            "TrainingDescription",
            lambda r: {"classes": ["ill", "mad", "well"], "weights": np.array([30.0, 0.0, 30.0])},
        )
    ),
    ("xgboost, top splits", "classes as numbers"): fields_of(
        ("TrainingDescription", lambda r: {"classes": [0, 1]})
    ),
    ("xgboost, top splits", "a class three times"): fields_of(
        (
            "TrainingDescription",
            lambda r: {"classes": ["mad", "mad", "mad"], "weights": np.full(3, 20.0)},
        )
    ),
    ("xgboost, top splits", "a gain beyond all rows"): fields_of(
        ("SplitProposals", lambda r: {"gain": array(r["gain"]) * 0 + np.float32(1e30)})
    ),
    ("xgboost, top splits", "children heavier than their parent"): at_second(
        "SplitProposals", lambda r: {"weight": array(r["weight"]) + 1}
    ),
    ("xgboost, top splits", "leaves of more rows"): fields_of(
        ("LeafSums", lambda r: {"sums": array(r["sums"]) * [1, 2]})
    ),
    ("xgboost, union", "hessians above what the rows allow"): fields_of(
        ("CandidateSums", lambda r: {"totals": array(r["totals"]) * [1, 2]})
    ),
    ("xgboost, histogram", "buckets of 2**40"): fields_of(
        ("RowsPerBucket", lambda r: {"counts": array(r["counts"]) * 0 + 2**40})
    ),
    ("xgboost, histogram", "other counts of finer buckets"): at_second(
        "RowsPerBucket", lambda r: {"counts": array(r["counts"]) + 1}
    ),
    ("xgboost, histogram", "hessians above what the rows allow"): fields_of(
        ("Histograms", lambda r: {"sums": array(r["sums"]) * [1, 2]})
    ),
    ("xgboost, histogram", "a child above its parent"): at_second(
        "Histograms", lambda r: {"sums": array(r["sums"]) * 30}
    ),
    ("xgboost, histogram", "features of different rows"): fields_of(
        ("Histograms", lambda r: {"sums": shifted(array(r["sums"]))})
    ),
    **{
        (f"xgboost, {method}", "an impossible loss"): at_second(reply, lambda r: {"loss": 2.0**200})
        for method, reply in (("top splits", "SplitProposals"), ("histogram", "Histograms"))
    },
}


# At these requests the share of rows, the cuts or the first tree already contain the liar's part.
KEEPS_ITS_SHARE = tuple(
    f"InvalidReply at {request}"
    for request in ("BuildHistograms", "SumLeaves", "EvaluateSplits", "ProposeSplits, step 6")
)


def array(field):
    """Return an array from its message format."""
    dtype, shape, data = field
    return np.frombuffer(data, dtype).reshape(shape)


def packed(value):
    """Return an array in its message format."""
    if not isinstance(value, np.ndarray):
        return value
    return [value.dtype.name, value.shape, value.tobytes()]


def make_client(estimator, name, columns):
    X = pd.DataFrame(POINTS[name], columns=columns) if columns else POINTS[name]
    options = {"random_state": 0} if estimator.name == "ppdbdc" else {}
    labels = {"xgboost": CLASSES, "xgb-regressor": POINTS[name][:, 0]}.get(estimator.name)
    part = X if labels is None else (X, labels)
    return protocols()[estimator.name].client_class(part, **options)


def fit(estimator, names, lie=None, columns=None, min_clients=2):
    """Fit an estimator to these clients; the lie changes the fields of the liar's replies."""

    def tamper(request, reply):
        fields = msgspec.msgpack.decode(reply)
        changed = {key: packed(value) for key, value in lie(fields["type"], fields).items()}
        return msgspec.msgpack.encode(fields | changed)

    clients = {name: make_client(estimator, name, (columns or {}).get(name)) for name in names}
    tampering = {} if lie is None else {"liar": tamper}
    return clone(estimator).fit(Recorder(clients, tampering), min_clients=min_clients)


def assert_same_result(result, expected):
    """Compare partitions; a start that the liar took part in may number them differently."""
    labels, expected_labels = (model.predict(POINTS["liar"]) for model in (result, expected))
    if is_regressor(result):
        assert labels.tolist() == expected_labels.tolist()
    else:
        assert adjusted_rand_score(labels, expected_labels) == 1


@pytest.mark.parametrize(("name", "kind"), LIES)
def test_the_liar_leaves(name, kind):
    estimator = ESTIMATORS[name]
    result = fit(estimator, ["A", "liar", "B"], LIES[name, kind])
    assert [*result.ledger_.lost] == ["liar"]
    assert result.ledger_.lost["liar"].startswith("InvalidReply at ")
    if not result.ledger_.lost["liar"].startswith(KEEPS_ITS_SHARE):
        assert_same_result(result, fit(estimator, ["A", "B"]))


# Declarations that only make the run of all impossible, next to those of the others, or by the
# objective: five sites, of which one declares.
U = np.random.default_rng(5).random((5, 24, 2))
LABELLED = [(X, (X[:, 0] > 0.5) * 1) for X in U]
VALIDATED = [(X[:-6], y[:-6], None, (X[-6:], y[-6:])) for X, y in LABELLED]
ONE_MARGIN = [(X, y, None, None, X[:, 1]) for X, y in LABELLED]
NUMBERS = [(X, 0.1 + 0.8 * X[:, 0]) for X in U]
NUMBER_MARGINS = [(X, y, None, None, X[:, 1]) for X, y in NUMBERS]
SCORED = [(X[:-6], y[:-6], None, (X[-6:], y[-6:])) for X, y in NUMBERS]
CLASSIFIER = partial(FederatedXGBClassifier, 2, max_depth=2)
REGRESSOR = partial(FederatedXGBRegressor, 2, max_depth=2)


def another_class(weight):
    """Declare rows of one more class."""
    return lambda r: {
        "classes": [*r["classes"], 9],
        "weights": np.append(array(r["weights"]), weight),
        "n_rows": r["n_rows"] + int(weight),
    }


DECLARATIONS = {
    "a class with a metric of two classes": (
        CLASSIFIER(eval_metric=["error", "aucpr"]),
        VALIDATED,
        ("TrainingDescription", another_class(2.0)),
    ),
    "a class with scale_pos_weight": (
        CLASSIFIER(scale_pos_weight=2.0),
        LABELLED,
        ("TrainingDescription", another_class(2.0)),
    ),
    "a class without weight": (
        CLASSIFIER(),
        LABELLED,
        ("TrainingDescription", another_class(0.0)),
    ),
    "a class with one column of margins": (
        CLASSIFIER(),
        ONE_MARGIN,
        ("TrainingDescription", another_class(2.0)),
    ),
    "three columns of margins": (
        CLASSIFIER(),
        ONE_MARGIN,
        ("TrainingDescription", lambda r: {"n_margins": 3}),
    ),
    "a column of margins with several levels": (
        REGRESSOR(objective="reg:quantileerror", quantile_alpha=[0.2, 0.8]),
        NUMBERS,
        ("TargetDescription", lambda r: {"n_margins": 1}),
    ),
    "gradients that take the digits of all, with a first score in steps": (
        REGRESSOR(objective="reg:absoluteerror"),
        NUMBER_MARGINS,
        ("TargetDescription", lambda r: {"size": 2.0**75}),
    ),
    "margins without columns": (
        REGRESSOR(),
        NUMBER_MARGINS,
        ("TargetDescription", lambda r: {"n_margins": 0}),
    ),
    **{
        f"a negative sum, {objective}": (
            REGRESSOR(objective=objective),
            NUMBERS,
            ("TargetDescription", lambda r: {"total": -99.0, "squares": 1e6}),
        )
        for objective in ("count:poisson", "reg:gamma", "reg:tweedie", "reg:logistic")
    },
    "a sum above the largest target": (
        REGRESSOR(objective="reg:logistic"),
        NUMBERS,
        ("TargetDescription", lambda r: {"total": 99.0, "squares": 1e6}),
    ),
    "a weight without rows": (
        REGRESSOR(objective="reg:tweedie"),
        NUMBERS,
        ("TargetDescription", lambda r: {"n_rows": 0}),
    ),
    "gradients beyond the slope of the loss": (
        REGRESSOR(objective="reg:pseudohubererror"),
        NUMBERS,
        ("TargetDescription", lambda r: {"gradient": 2.0**70}),
    ),
    "gradients that take the digits of all": (
        REGRESSOR(),
        NUMBER_MARGINS,
        ("TargetDescription", lambda r: {"size": 2.0**75}),
    ),
    "targets that take the digits of all": (
        REGRESSOR(),
        NUMBERS,
        ("TargetDescription", lambda r: {"total": 2.0**40, "squares": 2.0**79}),
    ),
    "more errors than rows": (
        CLASSIFIER(eval_metric="error"),
        VALIDATED,
        ("RowScores", lambda r: {"sums": np.array([7.0])}),
    ),
    "a log-loss beyond the smallest probability": (
        CLASSIFIER(eval_metric="logloss"),
        VALIDATED,
        ("RowScores", lambda r: {"sums": np.array([6 * 37.0])}),
    ),
    "areas of other rows": (
        CLASSIFIER(eval_metric="auc"),
        VALIDATED,
        ("RowScores", lambda r: {"positives": array(r["positives"]) + 1}),
    ),
    "squared errors beyond all targets": (
        REGRESSOR(eval_metric="rmse"),
        SCORED,
        ("RowScores", lambda r: {"sums": np.array([2.0**90])}),
    ),
    "a density that no prediction has": (
        REGRESSOR(objective="reg:gamma", eval_metric="gamma-nloglik"),
        SCORED,
        ("RowScores", lambda r: {"sums": np.array([-1000.0])}),
    ),
    "a class without a column": (
        FederatedEvaluation(n_bins=4),
        [(np.column_stack([X, 1 - X.sum(axis=1)]), np.arange(24) % 3) for X in U / 2],
        (
            "ClassCounts",
            lambda r: {"classes": [*r["classes"], 9], "counts": np.append(array(r["counts"]), 1)},
        ),
    ),
    "counts of rows below 0": (
        FederatedEvaluation(n_bins=4, classes=[0, 1]),
        [(X[:, 0], np.arange(24) % 2) for X in U],
        ("ClassScoreTotals", lambda r: {"values": -array(r["values"])}),
    ),
    "counts that do not add up": (
        FederatedEvaluation(n_bins=4, classes=[0, 1]),
        [(X[:, 0], np.arange(24) % 2) for X in U],
        ("ClassScoreTotals", lambda r: {"values": array(r["values"]) * np.arange(22)}),
    ),
    "numbers beyond 1e100": (
        FederatedRegressionScore(),
        [(X[:, 0], X[:, 1]) for X in U],
        ("ErrorSums", lambda r: {"total": 1e110, "squares": 1e220}),
    ),
    "values of which no request can be made": (
        FederatedSummary(),
        [*U],
        ("ValueMoments", lambda r: {"squares": np.full(2, 1e230)}),
    ),
}


@pytest.mark.parametrize("kind", DECLARATIONS)
def test_a_liar_whose_declaration_ends_the_run_leaves(kind):
    estimator, parts, (reply, lie) = DECLARATIONS[kind]
    names = ["A", "liar", "B", "C", "D"]
    told = []

    def tamper(request, data):
        fields = msgspec.msgpack.decode(data)
        if fields["type"] != reply:
            return data
        told.append(fields["type"])
        changed = {name: packed(value) for name, value in lie(fields).items()}
        return msgspec.msgpack.encode(fields | changed)

    clients = {name: estimator.client_class(part) for name, part in zip(names, parts, strict=True)}
    result = clone(estimator).fit(Recorder(clients, {"liar": tamper}), min_clients=4)
    assert told
    assert [*result.ledger_.lost] == ["liar"]
    assert result.ledger_.lost["liar"].startswith("InvalidReply at ")


def test_a_site_that_is_scored_alone_can_only_lose_its_own_score():
    """It is its own majority, so nothing that it declares contradicts others."""

    def tamper(request, data):
        fields = msgspec.msgpack.decode(data)
        changed = {"n_features": 4} if fields["type"] == "Features" else {}
        return msgspec.msgpack.encode(fields | changed)

    estimator = LeaveOneSiteOut(FederatedXGBRegressor(1, max_depth=1))
    names = ["A", "liar", "B", "C"]
    clients = {
        name: LeftOutClient(part, RegressionClient)
        for name, part in zip(names, NUMBERS, strict=False)
    }
    with pytest.warns(UserWarning, match="there is no score of site 'liar'"):
        estimator.fit(Recorder(clients, {"liar": tamper}), min_clients=3)
    assert [*estimator.ledger_.lost] == ["liar"]
    assert estimator.sites_ == ("A", "B", "C")


CATEGORY_LIES = {
    "categories that are not sorted": fields_of(
        ("LevelCounts", lambda r: {"categories": r["categories"][::-1]})
    ),
    "a category many times": fields_of(
        ("LevelCounts", lambda r: {"categories": [r["categories"][0]] * len(r["categories"])})
    ),
    "more rows than declared": fields_of(
        ("LevelCounts", lambda r: {"counts": array(r["counts"]) + 100})
    ),
    "numbers instead of text": fields_of(("TargetDescription", lambda r: {"kinds": b""})),
    "features of different rows": fields_of(
        ("Histograms", lambda r: {"sums": shifted(array(r["sums"]))})
    ),
}


@pytest.mark.liars
@pytest.mark.parametrize("kind", CATEGORY_LIES)
def test_a_liar_with_categories_leaves(kind):
    def tables(names):
        for name in names:
            towns = np.where(POINTS[name][:, 0] > 3, "north", "south")
            yield name, pd.DataFrame(POINTS[name], columns=["x", "y"]).assign(town=towns)

    def fit_with(names, lie=None):
        def tamper(request, reply):
            fields = msgspec.msgpack.decode(reply)
            changed = {key: packed(value) for key, value in lie(fields["type"], fields).items()}
            return msgspec.msgpack.encode(fields | changed)

        clients = {
            name: RegressionClient((table, POINTS[name][:, 0])) for name, table in tables(names)
        }
        recorder = Recorder(clients, {"liar": tamper} if lie else {})
        estimator = FederatedXGBRegressor(2, max_depth=2, histograms="dense")
        return estimator.fit(recorder, min_clients=2)

    result = fit_with(["A", "liar", "B"], CATEGORY_LIES[kind])
    assert result.ledger_.lost["liar"].startswith("InvalidReply at ")
    if not result.ledger_.lost["liar"].startswith(KEEPS_ITS_SHARE):
        (_, table), honest = next(tables(["A"])), fit_with(["A", "B"])
        assert result.model_.levels == honest.model_.levels
        assert np.isfinite(result.predict(table)).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_other_names_of_columns(name):
    columns = {"A": ["x", "y"], "liar": ["x", "z"], "B": ["x", "y"]}
    result = fit(ESTIMATORS[name], ["A", "liar", "B"], columns=columns)
    assert [*result.ledger_.lost] == ["liar"]
    assert_same_result(result, fit(ESTIMATORS[name], ["A", "B"]))
    with pytest.raises(Disagreement, match="'y' is missing, and 'z' is additional at 'liar'"):
        fit(ESTIMATORS[name], ["A", "liar", "B"], columns=columns, min_clients=3)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_declining_after_sharing(name):
    """Otherwise the result would contain one part of the client's data, in silence."""
    estimator = ESTIMATORS[name]
    shared = []

    def decline_later(request, reply):
        shared.append(request)
        return reply if len(shared) == 1 else encode(Declined())

    clients = {name: make_client(estimator, name, None) for name in ("A", "liar", "B")}
    result = clone(estimator).fit(Recorder(clients, {"liar": decline_later}), min_clients=2)
    asked_twice = len({entry.step for entry in result.ledger_}) > 2
    reason = result.ledger_.lost["liar"]
    assert reason.startswith("Declined at " if asked_twice else "InvalidReply at ")


def test_sharing_after_declining():
    """Lloyd's iteration has no description with which it could compare the sums."""
    replies = []

    def decline_first(request, reply):
        replies.append(reply)
        return encode(Declined()) if len(replies) == 1 else reply

    estimator = ESTIMATORS["kmeans, Lloyd"]
    clients = {name: make_client(estimator, name, None) for name in ("A", "liar", "B")}
    result = clone(estimator).fit(Recorder(clients, {"liar": decline_first}), min_clients=2)
    assert dict(result.ledger_.lost) == {"liar": "InvalidReply at SumClusters, step 2"}
    assert_same_result(result, fit(estimator, ["A", "B"]))
