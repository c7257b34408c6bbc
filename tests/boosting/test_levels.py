"""Quantiles, the absolute error and expectiles: by hand, as recorded from XGBoost, and refused."""

import numpy as np
import pytest
import xgboost

from fedlib import FederatedXGBRegressor
from fedlib.boosting.client import RegressionClient
from fedlib.boosting.first_scores import CountTargets, SumResiduals, SumRoots, TargetCounts
from fedlib.boosting.objectives import OBJECTIVES
from fedlib.core.messages import MessageError, decode, encode
from fedlib.sites import models
from fedlib.testing import Recorder

from .common import METHODS, assert_same_trees, deal, make_rows
from .exact import RULES, different_nodes

ABSOLUTE = {"objective": "reg:absoluteerror"}
QUANTILE = {"objective": "reg:quantileerror", "quantile_alpha": 0.75}
QUANTILES = {"objective": "reg:quantileerror", "quantile_alpha": [0.2, 0.75]}
EXPECTILE = {"objective": "reg:expectileerror", "expectile_alpha": 0.75}
EXPECTILES = {"objective": "reg:expectileerror", "expectile_alpha": [0.2, 0.75]}
ALL = [ABSOLUTE, QUANTILE, QUANTILES, EXPECTILE, EXPECTILES]
each = pytest.mark.parametrize("options", ALL, ids=str)
BOUNDS = [[-4.0] * 4, [4.0] * 4]


def make_numbers(n=240, seed=0, missing=0.0):
    """Return rows and numbers, no two of which are equal."""
    X, y = make_rows(n, seed=seed, missing=missing)
    noise = np.random.default_rng(seed).normal(size=n)
    return X, (2 * np.nan_to_num(X[:, 0]) + y + noise).astype(np.float32)


# By hand ----------------------------------------------------------------------------------------


def one_leaf(y, **options):
    """Return the value of the only node of a tree without a penalty and with the rate 1."""
    model = FederatedXGBRegressor(1, reg_lambda=0, min_child_weight=0, learning_rate=1.0, **options)
    model.fit([([[1.0]] * len(part), part) for part in np.array_split(y, 2)])
    (tree,) = model.trees_
    assert len(tree) == 1
    return tree.value[0]


def test_the_absolute_error_by_hand():
    """Residuals of -1, -1 and -16 from 0: the scale is ((1 + 1 + 4) / 3)² = 4."""
    h = 4 / np.sqrt([17.0, 17.0, 16 + 256])
    expected = (h * [1, 1, 16]).sum() / h.sum()
    assert one_leaf([1.0, 1.0, 16.0], base_score=0.0, **ABSOLUTE) == pytest.approx(expected)


def test_a_quantile_by_hand():
    """The same residuals and scale, in units of 0.04 scales."""
    residual, scale, alpha = -np.array([1.0, 1.0, 16.0]), 4.0, 0.9
    x = residual / (0.04 * scale)
    g = scale / 2 * (np.tanh(x) + 1 - 2 * alpha)
    h = 12.5 * np.maximum(np.tanh(x) / x, 3e-4)
    options = QUANTILE | {"quantile_alpha": alpha}
    found = one_leaf([1.0, 1.0, 16.0], base_score=0.0, **options)
    assert found == pytest.approx(-g.sum() / h.sum(), rel=1e-6)


def test_an_expectile_by_hand():
    """Of 0, two targets are above with the weight 3/4, and one is below with 1/4."""
    found = one_leaf([1.0, 3.0, -2.0], base_score=0.0, **EXPECTILE)
    assert found == pytest.approx((0.75 * 4 - 0.25 * 2) / (0.75 * 2 + 0.25))


def test_several_expectiles_with_one_start_are_a_warning():
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(50, 2)), rng.normal(size=50)) for _ in range(2)]
    options = {"objective": "reg:expectileerror", "method": "histogram", "max_depth": 2}
    model = FederatedXGBRegressor(5, expectile_alpha=[0.2, 0.8], base_score=0.0, **options)
    with pytest.warns(UserWarning, match=r"all expectiles start at base_score=0 .* got expectile"):
        model.fit(parts)
    low, high = model.predict(parts[0][0]).T
    assert np.abs(high - low).max() < 1e-3
    low, high = model.set_params(base_score=None).fit(parts).predict(parts[0][0]).T
    assert (high - low).min() > 0.1


def test_residuals_of_0_have_no_scale():
    """XGBoost, too, grows no tree then; one median is a row's target itself."""
    for options in (ABSOLUTE, QUANTILE):
        assert one_leaf([7.0, 7.0, 7.0], **options) == 0


# What XGBoost 3.4.1 returned for these rows, with hist, and 2 options; weights in the second case.
ROWS = np.arange(12.0)[:, None] % 7
TARGETS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]) + ROWS[:, 0]
WEIGHTS = np.array([1, 2, 1, 1, 3, 1, 0.5, 1, 1, 2, 1, 1])
RECORDED = [
    (ABSOLUTE, False, [6.6661253], [5.435728, 6.428703, 8.780316]),
    (ABSOLUTE, True, [6.5468073], [5.019110, 6.199142, 8.859407]),
    (
        QUANTILES,
        False,
        [3.6, 8.75],
        [[3.073831, 7.181757], [4.094732, 8.229566], [4.094732, 8.434443]],
    ),
    (
        QUANTILES,
        True,
        [4, 9],
        [[3.008008, 7.243651], [4.079483, 8.143922], [5.769025, 9.139544]],
    ),
    (
        EXPECTILES,
        False,
        [5.4242425, 8.409091],
        [[3.659680, 5.057796], [4.871333, 6.981066], [7.915952, 12.255312]],
    ),
    (
        EXPECTILES,
        True,
        [5.2, 8.210526],
        [[3.358693, 4.744840], [4.919282, 7.077610], [7.870150, 12.142855]],
    ),
]


@pytest.mark.parametrize(("options", "weighted", "scores", "predictions"), RECORDED)
def test_what_xgboost_returned(options, weighted, scores, predictions):
    parts = deal(ROWS, TARGETS, 3, 0, *([WEIGHTS] if weighted else []))
    model = FederatedXGBRegressor(3, max_depth=2, learning_rate=0.5, **options).fit(parts)
    assert np.ravel(model.base_score_) == pytest.approx(scores, rel=1e-6)
    assert model.predict([[0.0], [3.0], [6.0]]) == pytest.approx(np.array(predictions), rel=1e-5)


@pytest.mark.jit
@each
@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_the_trees_are_those_of_xgboost_on_the_same_bins(options, missing):
    """Node by node where the installed release has these rules; always for any partition."""
    X, y = make_numbers(400, missing=missing)
    rules = max(RULES, OBJECTIVES[options["objective"]].since)
    model = FederatedXGBRegressor(6, xgboost_rules=rules, **options)
    trees = model.fit([(X, y)]).trees_
    assert_same_trees(model.fit(deal(X, y, 5)).trees_, trees)
    if rules == RULES:
        n_nodes, differences = different_nodes(model, X, y, max_depth=6, **options)
        assert n_nodes > 100
        assert differences == []


# First predictions --------------------------------------------------------------------------------


def pooled_quantile(y, weight, alpha):
    """Return the quantile of targets, between two of them, or with weights one of them."""
    order = np.argsort(y, kind="stable")
    y, n, alpha = y[order], len(y), float(np.float32(alpha))
    if weight is not None:
        reached = np.flatnonzero(np.cumsum(weight[order]) >= np.float32(weight.sum() * alpha))
        return y[min(reached[0], n - 1)]
    place = min(max(alpha * (n + 1), 1), n)
    low = int(place)
    return y[low - 1] + (place - low) * (y[min(low, n - 1)] - y[low - 1])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("weighted", [False, True])
def test_first_quantiles(seed, weighted):
    """Targets of both signs, with ties and tiny differences, and the extreme levels."""
    rng = np.random.default_rng(seed)
    y = np.concatenate([rng.normal(size=30).round(1), 1e-30 * rng.normal(size=5), [0, -0.0, 1e9]])
    y, alphas = y.astype(np.float32), [0.0, 0.01, 0.3, 0.5, 0.5, 0.9, 1.0]
    weight = rng.integers(1, 4, len(y)) / 2 if weighted else None
    X = rng.normal(size=(len(y), 1))
    options = {"objective": "reg:quantileerror", "quantile_alpha": alphas}
    parts = deal(X, y, 4, seed, *([weight] if weighted else []))
    model = FederatedXGBRegressor(1, max_depth=1, **options).fit(parts)
    expected = [pooled_quantile(y, weight, alpha) for alpha in alphas]
    assert model.base_score_ == pytest.approx(expected, rel=1e-6, abs=1e-32)


def test_weights_of_0_and_1_count_as_none():
    X, y = make_numbers(60)
    weight = (np.arange(60) % 3 > 0).astype(float)
    options = {"max_depth": 1, **QUANTILE}
    weighted = FederatedXGBRegressor(1, **options).fit(deal(X, y, 3, 0, weight))
    bare = FederatedXGBRegressor(1, **options).fit([(X[weight > 0], y[weight > 0])])
    assert weighted.base_score_ == bare.base_score_
    assert_same_trees(weighted.trees_, bare.trees_)


@pytest.mark.filterwarnings("ignore:all expectiles start:UserWarning")
def test_a_given_first_prediction_needs_no_exchange():
    X, y = make_numbers(60)
    for options in ALL:
        model = FederatedXGBRegressor(1, base_score=1.5, **options).fit(deal(X, y, 3))
        names = model.ledger_.conversation()
        assert not {"CountTargets", "SumResiduals"} & {*names}
        assert set(np.ravel(model.base_score_)) == {1.5}
    names = FederatedXGBRegressor(1, **QUANTILE).fit(deal(X, y, 3)).ledger_.conversation()
    assert names.count("CountTargets") == 4
    assert names.count("SumRoots") == 1
    names = FederatedXGBRegressor(1, **ABSOLUTE).fit(deal(X, y, 3)).ledger_.conversation()
    assert names.count("SumResiduals") == 2
    names = FederatedXGBRegressor(1, **EXPECTILE).fit(deal(X, y, 3)).ledger_.conversation()
    assert (names.count("SumResiduals"), names.count("SumRoots")) == (1, 0)


# All options --------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("method", METHODS)
def test_every_method_lowers_the_loss(options, method):
    X, y = make_numbers(missing=0.1)
    parts = deal(X, y, 3)
    model = FederatedXGBRegressor(6, method=method, max_depth=3, **options).fit(parts)
    assert (np.diff(model.losses_) < 0).all()
    n_levels = len(np.atleast_1d(model.base_score_))
    predicted = model.predict(X)
    assert predicted.shape == ((240,) if n_levels == 1 else (240, n_levels))
    if n_levels > 1:
        assert (np.diff(predicted, axis=1) >= 0).all()
    np.testing.assert_array_equal(model.labels_[0], model.predict(parts[0][0]))
    np.testing.assert_array_equal(list(model.staged_predict(X))[-1], predicted)
    assert not model.ledger_.lost


@each
def test_masked_sums_give_the_same_trees(options):
    X, y = make_numbers()
    common = {"max_bin": 16, "bounds": BOUNDS, "max_depth": 3, **options}
    clear = FederatedXGBRegressor(4, **common).fit(deal(X, y, 3))
    masked = FederatedXGBRegressor(4, secure=True, max_target=16.0, **common).fit(deal(X, y, 3))
    assert masked.base_score_ == pytest.approx(clear.base_score_, rel=1e-6)
    np.testing.assert_allclose(masked.predict(X), clear.predict(X), rtol=1e-5, atol=1e-5)
    for tree, other in zip(masked.trees_, clear.trees_, strict=True):
        np.testing.assert_array_equal(tree.feature, other.feature)
    assert masked.losses_ == pytest.approx(clear.losses_, rel=1e-6)


@each
def test_samples_margins_and_validation_together(options):
    """The model does not depend on the partition, and continuing gives that of one run."""
    X, y = make_numbers(300, missing=0.1)
    more = {"subsample": 0.7, "validation_fraction": 0.2, "random_state": 0, "max_depth": 3}
    weight = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    whole = FederatedXGBRegressor(4, **more, **options).fit(deal(X, y, 4, 1, weight))
    pooled = FederatedXGBRegressor(4, **more, **options).fit([(X, y, weight)])
    assert_same_trees(whole.trees_, pooled.trees_)
    first = FederatedXGBRegressor(2, warm_start=True, **more, **options)
    first.fit(deal(X, y, 4, 1, weight)).set_params(n_trees=4).fit(deal(X, y, 4, 1, weight))
    assert_same_trees(first.trees_, whole.trees_)
    width = len(np.atleast_1d(whole.base_score_))
    margins = np.tile(np.float32(0.5) + y[:, None], width)
    parts = [(X, y, None, None, margins) for X, y, margins in deal(X, y, 3, 1, margins)]
    model = FederatedXGBRegressor(3, max_depth=3, **options).fit(parts)
    assert not model.ledger_.lost
    one = FederatedXGBRegressor(3, max_depth=3, **options).fit([(X, y, None, None, margins)])
    np.testing.assert_allclose(
        model.predict(X, base_margin=margins), one.predict(X, base_margin=margins), rtol=1e-5
    )


@each
def test_the_metric_of_the_objective(options):
    X, y = make_numbers(300)
    rows, more = (X[:200], y[:200]), (X[200:], y[200:])
    model = FederatedXGBRegressor(3, early_stopping_rounds=5, **options)
    model.fit([(*rows, None, more), (*rows, None, more)])
    ((name, values),) = model.evals_result_["validation_0"].items()
    d = more[1][:, None] - model.predict(more[0]).reshape(100, -1)
    alpha = np.array(options.get("quantile_alpha", options.get("expectile_alpha", 0.5)), np.float32)
    losses = {
        "mae": np.abs(d),
        "quantile": np.where(d >= 0, alpha, alpha - 1) * d,
        "expectile": np.where(d > 0, alpha, 1 - alpha) * d**2,
    }
    assert values[-1] == pytest.approx(losses[name].mean(), rel=1e-6)


@each
def test_a_saved_model_and_one_from_xgboost(options, tmp_path):
    X, y = make_numbers()
    model = FederatedXGBRegressor(3, max_depth=3, **options).fit(deal(X, y, 2))
    models.save(model, tmp_path / "model.fedlib")
    loaded = models.load(tmp_path / "model.fedlib")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.model_.parameter == model.model_.parameter
    if RULES < "3.4" and options not in (ABSOLUTE, QUANTILE):
        with pytest.raises(ValueError, match="needs XGBoost 3.* or later"):
            model.to_xgboost()
        return
    booster = model.to_xgboost()
    data = xgboost.DMatrix(X)
    np.testing.assert_allclose(booster.predict(data), model.predict(X), rtol=1e-6, atol=1e-6)
    taken = FederatedXGBRegressor.from_xgboost(booster)
    np.testing.assert_array_equal(taken.predict(X), model.predict(X))
    assert taken.model_.parameter == model.model_.parameter


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "reg:quantileerror"}, "quantile_alpha must be a number in 0..1, or a list"),
        (QUANTILES | {"quantile_alpha": [0.7, 0.2]}, "in ascending order.*got .0.7, 0.2."),
        (QUANTILES | {"quantile_alpha": []}, "quantile_alpha must be a number"),
        (QUANTILES | {"quantile_alpha": [0.1, "x"]}, "quantile_alpha must be a number"),
        ({"quantile_alpha": 0.5}, "quantile_alpha needs objective='reg:quantileerror'"),
        ({"expectile_alpha": 0.5} | QUANTILE, "expectile_alpha needs objective='reg:expectileerr"),
        (QUANTILES | {"eval_metric": "mae", "validation_fraction": 0.2}, "among quantile for"),
    ],
)
def test_levels_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        FederatedXGBRegressor(1, **options).fit([([[1.0], [2.0]], [0.5, 1.0])])


@pytest.mark.parametrize(
    ("options", "rules", "message"),
    [
        (
            ABSOLUTE,
            "3.3",
            "must be '3.4' or later for objective='reg:absoluteerror', because",
        ),
        (QUANTILE, "3.2", "which no sums over rows give; got '3.2'"),
        (EXPECTILE, "3.2", "must be '3.3' or later .* because earlier releases do not have it"),
    ],
)
def test_rules_without_these_objectives(options, rules, message):
    with pytest.raises(ValueError, match=message):
        FederatedXGBRegressor(1, xgboost_rules=rules, **options).protocol()


@pytest.mark.parametrize("options", [ABSOLUTE, QUANTILE])
def test_a_scale_has_no_noise(options):
    model = FederatedXGBRegressor(1, epsilon=1.0, bounds=[[0], [3]], base_score=1.0, **options)
    with pytest.raises(ValueError, match="the scale of the gradients is a sum over all rows"):
        model.fit([([[1.0], [2.0]], [0.5, 1.0])])


def test_several_levels_have_no_noise():
    noisy = {"epsilon": 1.0, "bounds": [[0], [3]], "base_score": 1.0, "max_gradient": 1.0}
    model = FederatedXGBRegressor(1, **noisy, **EXPECTILES)
    with pytest.raises(ValueError, match=r"one level, .*got expectile_alpha=\[0.2, 0.75\]"):
        model.fit([([[1.0], [2.0]], [0.5, 1.0])])


@pytest.mark.parametrize("options", [QUANTILES, EXPECTILES])
def test_several_levels_have_no_r2(options):
    X, y = make_numbers(30)
    model = FederatedXGBRegressor(1, **options).fit([(X, y)])
    with pytest.raises(ValueError, match="score is R².*with 2 levels: use rows for validation"):
        model.score(X, y)


@pytest.mark.usefixtures("fixed_noise")
@pytest.mark.parametrize("options", [EXPECTILE])
def test_an_expectile_with_noise(options):
    X, y = make_numbers()
    noisy = {"epsilon": 1e6, "bounds": BOUNDS, "base_score": 0.0, "max_gradient": 30.0}
    model = FederatedXGBRegressor(3, max_depth=2, **noisy, **options).fit(deal(X, y, 2))
    assert np.corrcoef(model.predict(X).reshape(240, -1)[:, -1], y)[0, 1] > 0.5


@pytest.mark.parametrize(
    ("request_of", "message"),
    [
        (lambda: SumResiduals("survival:aft", 0.0, (), 1.0, 1.0, 1), "no residuals"),
        (lambda: SumResiduals("reg:absoluteerror", 0.0, ((),), 1.0, 1.0, 1), "0 parameters"),
        (lambda: SumResiduals("reg:absoluteerror", 0.0, ((-1.0,),), 1.0, 1.0, 1), "negative sc"),
        (lambda: CountTargets("survival:aft", 0, np.zeros(1, np.uint32), 1.0, 1.0, 1), "no quant"),
        (lambda: CountTargets("reg:squarederror", 0, np.zeros(2, np.uint32), 1.0, 1.0, 1), "twice"),
    ],
)
def test_malformed_requests(request_of, message):
    with pytest.raises(MessageError, match=message):
        request_of()


def lie(kind, **factors):
    """Return a change of the replies to one class of requests: fields times factors."""

    def tamper(request, reply):
        if not isinstance(decode(request), kind):
            return reply
        message = decode(reply)
        fields = {name: getattr(message, name) for name in type(message).__struct_fields__}
        return encode(type(message)(**fields | {n: fields[n] * f for n, f in factors.items()}))

    return tamper


def not_a_number(request, reply):
    """Claim that all targets are in the last range, whose numbers are none."""
    if not isinstance(decode(request), CountTargets):
        return reply
    message = decode(reply)
    return encode(TargetCounts(np.sort(message.weights, axis=1), 0))


@pytest.mark.parametrize(
    ("options", "tamper", "request_name"),
    [
        (QUANTILE, lie(CountTargets, weights=3.0), "CountTargets"),
        (QUANTILE, lie(CountTargets, n_weighted=0, weights=0.0), "CountTargets"),
        (QUANTILE, not_a_number, "CountTargets"),
        (QUANTILE, lie(SumRoots, roots=1e6), "SumRoots"),
        (QUANTILE, lie(SumRoots, weight=0.5), "SumRoots"),
        (ABSOLUTE, lie(SumResiduals, roots=1e6), "SumResiduals"),
        (ABSOLUTE, lie(SumResiduals, gradients=1e6), "SumResiduals"),
        (EXPECTILE, lie(SumResiduals, weight=0.0), "SumResiduals"),
    ],
)
def test_a_client_that_lies_leaves_and_the_others_go_on(options, tamper, request_name):
    X, y = make_numbers()
    parts = deal(X, y, 3)
    clients = {name: RegressionClient(part) for name, part in zip("ABC", parts, strict=True)}
    model = FederatedXGBRegressor(2, **options).fit(
        Recorder(clients, tamper={"C": tamper}), min_clients=2
    )
    assert f"InvalidReply at {request_name}" in model.ledger_.lost["C"]
    assert len(model.trees_) == 2
