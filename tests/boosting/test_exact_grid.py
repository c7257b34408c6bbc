"""Every objective grows the trees of XGBoost: many sets, clients and shares of missing values."""

import numpy as np
import pytest

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.boosting.objectives import OBJECTIVES

from .common import assert_same_trees, deal
from .exact import RULES, different_nodes
from .test_against_xgboost import REAL

MAX_ROWS, N_TREES = 5000, 8
CLIENTS = (2, 5, 10)
SHARES = (0.0, 0.05, 0.15)
# Those that some releases of XGBoost do not have, or not with these gradients.
PARAMETERS = {
    "reg:quantileerror": {"quantile_alpha": [0.1, 0.5, 0.9]},
    "reg:expectileerror": {"expectile_alpha": [0.1, 0.5, 0.9]},
}
SINCE = {name: one.since for name, one in OBJECTIVES.items()}
OPTIONS = {"gamma": 0.2, "min_child_weight": 0.5, "reg_lambda": 2.0}


def task(data, objective):
    """Return the rows and labels of a set. A regression predicts the last feature from the others.

    It is scaled to whole numbers of a tenth of its spread, and as a count it starts at 0.
    """
    X, y = data.X[:MAX_ROWS].astype(float), np.unique(data.y[:MAX_ROWS], return_inverse=True)[1]
    if objective == "binary:logistic":
        return X, (y == y.min()).astype(int)
    if objective == "multi:softprob":
        return X, y
    target = X[:, -1] / X[:, -1].std()
    noise = np.random.default_rng(1).normal(scale=0.1, size=len(X))  # no two gains are equal
    if objective == "count:poisson":
        return X[:, :-1], np.round(3 * (target - target.min()))
    if objective in ("reg:logistic", "reg:gamma", "reg:tweedie"):
        positive = target - target.min() + np.abs(noise)
        return X[:, :-1], positive / positive.max() if objective == "reg:logistic" else positive
    if objective == "survival:aft":  # every third time is only known to be later
        time = np.exp(target - target.mean() + noise)
        return X[:, :-1], np.column_stack([time, np.where(np.arange(len(X)) % 3, time, np.inf)])
    return X[:, :-1], target - target.mean() + noise


def estimator_for(objective, **options):
    options |= PARAMETERS.get(objective, {})
    if objective.startswith(("binary", "multi")):
        return FederatedXGBClassifier(
            N_TREES, objective=objective, method="histogram", tol=None, **options
        )
    return FederatedXGBRegressor(N_TREES, objective=objective, **options)


@pytest.mark.exact
@pytest.mark.parametrize(
    ("objective", "at_least"),
    [
        ("binary:logistic", 8_000),
        ("multi:softprob", 25_000),
        ("reg:squarederror", 15_000),
        ("reg:pseudohubererror", 15_000),
        ("count:poisson", 15_000),
        ("reg:logistic", 10_000),
        ("reg:gamma", 12_000),
        ("reg:tweedie", 14_000),
        ("survival:aft", 8_000),
        *[(name, 10_000) for name in ("reg:absoluteerror", *PARAMETERS) if SINCE[name] <= RULES],
    ],
)
def test_every_node_is_that_of_xgboost(objective, at_least, real_data, record_property):
    total = 0
    for number, name in enumerate(REAL):
        rows, y = task(real_data(name), objective)
        for share in SHARES:
            random = np.random.default_rng(number)
            X = np.where(random.random(rows.shape) < share, np.nan, rows)
            options = OPTIONS if share else {}
            model = estimator_for(objective, xgboost_rules=RULES, **options)
            trees = model.fit([(X, y)]).trees_
            for n_clients in CLIENTS:
                parts = deal(X, y, n_clients, n_clients)
                assert_same_trees(model.fit(parts).trees_, trees)
            more = options | PARAMETERS.get(objective, {})
            n_nodes, differences = different_nodes(model, X, y, max_depth=6, **more)
            assert differences == [], (name, share)
            total += n_nodes
    record_property("nodes", total)
    assert total > at_least
