"""Every objective grows the trees of XGBoost: many sets, clients and shares of missing values."""

import numpy as np
import pytest

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor

from .common import assert_same_trees, deal
from .exact import RULES, different_nodes
from .test_against_xgboost import REAL

MAX_ROWS, N_TREES = 5000, 8
CLIENTS = (2, 5, 10)
SHARES = (0.0, 0.05, 0.15)
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
    return X[:, :-1], target - target.mean() + noise


def estimator_for(objective, **options):
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
            n_nodes, differences = different_nodes(model, X, y, max_depth=6, **options)
            assert differences == [], (name, share)
            total += n_nodes
    record_property("nodes", total)
    assert total > at_least
