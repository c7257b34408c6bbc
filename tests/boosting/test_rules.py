"""The rules of the releases of XGBoost: which one a run follows, and what differs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xgboost

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.boosting.client import BoostingClient
from fedlib.boosting.messages import BeginBoosting
from fedlib.boosting.rules import NEWEST_RULES, RULES, rules_of
from fedlib.testing import Recorder

from .common import assert_same_trees, deal, first_message, make_rows

HISTOGRAM = {"method": "histogram", "tol": None}


def test_the_rules_of_the_installed_release_are_known():
    """If this fails, XGBoost has a new release line: compare its rules, and declare them."""
    assert xgboost.__version__.startswith(rules_of() + ".")
    assert FederatedXGBClassifier().xgboost_rules == NEWEST_RULES == list(RULES)[-1]


def test_every_set_of_rules_is_compared_with_its_release():
    lines = (Path(__file__).parent / "xgboost_releases.txt").read_text().splitlines()
    releases = [line.split()[0] for line in lines if not line.startswith("#")]
    assert list(map(rules_of, releases)) == list(RULES)


@pytest.mark.parametrize("version", ["3.5.0", "3.40.1", "2.1.4", "4"])
def test_a_release_that_is_not_known(version):
    message = f"does not know the rules of XGBoost {version}, but those of 3.2, 3.3, 3.4"
    with pytest.raises(ValueError, match=message):
        rules_of(version)


def test_unknown_rules_are_refused_before_any_message():
    with pytest.raises(ValueError, match="'xgboost_rules' .* '3.5'"):
        FederatedXGBRegressor(xgboost_rules="3.5").protocol()


def test_a_light_root_keeps_its_leaf_since_3_4():
    """Two rows, G = 1 and H = 2: the leaf is -1/3, or 0 below min_child_weight."""
    values = {}
    for rules in RULES:
        model = FederatedXGBRegressor(
            1, learning_rate=1.0, min_child_weight=5, base_score=0.5, xgboost_rules=rules
        ).fit([([[1.0], [2.0]], [0.0, 0.0])])
        values[rules] = model.trees_[0].value.tolist()
    assert values == {"3.2": [0], "3.3": [0], "3.4": [pytest.approx(-1 / 3)]}


def test_the_penalty_is_part_of_the_gain_since_3_4():
    """Limited steps of 0.5, G = -1 and 1, H = 2 and 1: only since 3.4, 2 * 0.5 * 0.5 * 2 less."""
    gains = {}
    for rules in RULES:
        model = FederatedXGBRegressor(
            1, max_depth=1, reg_alpha=0.25, max_delta_step=0.125, reg_lambda=0.0, base_score=0.0,
            xgboost_rules=rules,
        ).fit([([[0.0], [0.0], [1.0]], [0.5, 0.5, -1.0])])  # fmt: skip
        gains[rules] = float(model.trees_[0].gain[0])
    # 2 * (1 * 0.125) - 2 * 0.125² and 2 * (1 * 0.125) - 1 * 0.125², of the root 0
    old = 0.25 - 2 * 0.125**2 + 0.25 - 0.125**2
    penalty = 2 * (2 * 0.25 * 0.125)
    assert gains == {"3.2": old, "3.3": old, "3.4": old - penalty}


@pytest.mark.parametrize("method", ["top_splits", "union", "histogram"])
@pytest.mark.parametrize("rules", RULES)
def test_all_sites_follow_the_rules_of_the_run(method, rules, monkeypatch):
    """They are sent, and no site looks at the XGBoost that it has installed."""
    X, y = make_rows(200)
    options = {"method": method, "tol": None, "min_child_weight": 4.0}
    alone = FederatedXGBClassifier(3, 1, xgboost_rules=rules, **options).fit([(X, y)])
    assert alone.model_.xgboost_rules == rules
    monkeypatch.setattr(xgboost, "__version__", "9.9.9")
    clients = {name: BoostingClient(part) for name, part in zip("AB", deal(X, y, 2), strict=True)}
    recorder = Recorder(clients)
    model = FederatedXGBClassifier(3, 1, xgboost_rules=rules, **options).fit(recorder)
    for name in clients:
        assert first_message(recorder.exchanges, BeginBoosting, name).xgboost_rules == rules
    if method == "histogram":
        assert_same_trees(model.trees_, alone.trees_)


def test_rare_categories_are_sorted_by_their_own_weights_since_3_4():
    """The trees of 3.2 and 3.3 are equal, those of 3.4 differ."""
    rng = np.random.default_rng(0)
    town = rng.integers(0, 40, 400)
    y = (rng.random(400) < 0.1 + 0.2 * (town % 5)).astype(int)
    X = pd.DataFrame({"town": [f"town {i:02}" for i in town]})
    fitted = {
        rules: FederatedXGBClassifier(
            2, min_category_count=1, min_child_weight=2.0, xgboost_rules=rules, **HISTOGRAM
        ).fit([(X, y)])
        for rules in RULES
    }
    assert_same_trees(fitted["3.2"].trees_, fitted["3.3"].trees_)
    old, new = (fitted[rules].trees_[0].categories[0] for rules in ("3.2", "3.4"))
    assert old != new


def test_a_run_continues_a_model_with_its_rules():
    X, y = make_rows(100)
    model = FederatedXGBClassifier(1, warm_start=True, xgboost_rules="3.2", **HISTOGRAM)
    model.fit([(X, y)]).set_params(n_trees=2, xgboost_rules="3.4")
    with pytest.raises(ValueError, match="xgboost_rules must be '3.2', those of the model"):
        model.fit([(X, y)])
    assert len(model.set_params(xgboost_rules="3.2").fit([(X, y)]).trees_) == 2
