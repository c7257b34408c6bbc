"""Scores of predictions: by hand, against scikit-learn on the pooled rows, and with liars."""

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.calibration import calibration_curve
from sklearn.exceptions import NotFittedError
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    brier_score_loss,
    confusion_matrix,
    log_loss,
    roc_auc_score,
)

from fedlib import FederatedEvaluation
from fedlib.core.aggregation import Disagreement
from fedlib.core.messages import MessageError
from fedlib.core.protocol import TooFewClients
from fedlib.evaluation.messages import ClassCounts, CountScores, ScoreCounts
from fedlib.evaluation.predictions import EvaluationClient
from fedlib.sites import models
from fedlib.testing import Recorder


def predicted(seed=0, sizes=(60, 1, 0, 41)):
    """Return parts with probabilities that are not calibrated; some are exactly 0, 1 and 1/2."""
    rng = np.random.default_rng(seed)
    parts = []
    for n in sizes:
        y = rng.choice(["ill", "well"], n)
        p = np.clip(rng.normal(0.4 + 0.3 * (y == "well"), 0.3), 0, 1)
        p[rng.random(n) < 0.1] = 0.5
        parts.append((p, y))
    return parts


def pooled(parts):
    return np.concatenate([p for p, _ in parts]), np.concatenate([y for _, y in parts])


def test_a_toy_by_hand():
    """Two bins. The pairs of both classes: 0.1 < 0.8 and 0.1 < 0.6 count, 0.7 ties with both.

    So the AUC is (2 + 2/2)/4 with an error of at most 1/4; it is 3/4.
    """
    model = FederatedEvaluation(n_bins=2, n_groups=2).fit(
        [([0.1, 0.8], [0, 1]), ([0.7, 0.6], [0, 1])]
    )
    assert model.scores_ == pytest.approx(
        {
            "accuracy": 3 / 4,
            "balanced accuracy": 3 / 4,
            "AUC": 3 / 4,
            "log-loss": -np.log([0.9, 0.8, 0.3, 0.6]).mean(),
            "Brier score": (0.1**2 + 0.2**2 + 0.7**2 + 0.4**2) / 4,
        }
    )
    assert model.auc_error_ == 1 / 4
    assert model.confusion_matrix_.tolist() == [[1, 1], [0, 2]]
    assert model.to_frame()["mean probability"].tolist() == pytest.approx([0.1, 0.7])
    assert model.to_frame()["share"].tolist() == pytest.approx([0, 2 / 3])
    assert model.ledger_.conversation() == [
        "DescribeClasses", "ClassCounts", "CountScores", "ScoreCounts",
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_equal_to_the_scores_of_the_pooled_rows(seed):
    parts = predicted(seed)
    model = FederatedEvaluation(n_groups=7).fit(parts)
    p, y = pooled(parts)
    well = y == "well"
    assert model.scores_["accuracy"] == accuracy_score(well, p > 0.5)
    balanced = balanced_accuracy_score(well, p > 0.5)
    assert model.scores_["balanced accuracy"] == pytest.approx(balanced, rel=1e-12)
    assert model.scores_["log-loss"] == pytest.approx(log_loss(well, p), rel=1e-12)
    assert model.scores_["Brier score"] == pytest.approx(brier_score_loss(well, p), rel=1e-12)
    assert model.confusion_matrix_.tolist() == confusion_matrix(well, p > 0.5).tolist()
    share, mean = calibration_curve(well, p, n_bins=7)
    frame = model.to_frame().dropna()
    np.testing.assert_allclose(frame["share"], share, rtol=1e-12)
    np.testing.assert_allclose(frame["mean probability"], mean, rtol=1e-12)
    assert model.classes_.tolist() == ["ill", "well"]


@pytest.mark.parametrize("n_bins", [1, 2, 10, 1000])
def test_the_error_of_the_auc_is_at_most_the_stated_one(n_bins):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 500)
    p = np.clip(rng.normal(0.4 + 0.2 * y, 0.2), 0, 1)
    model = FederatedEvaluation(n_bins=n_bins).fit([(p[:200], y[:200]), (p[200:], y[200:])])
    exact = roc_auc_score(y, p)
    assert abs(model.scores_["AUC"] - exact) <= model.auc_error_
    assert model.auc_error_ < 2 / n_bins
    if n_bins == 1:
        assert (model.scores_["AUC"], model.auc_error_) == (0.5, 0.5)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]), st.booleans()),
        min_size=2,
        max_size=20,
    ).filter(lambda rows: len({y for _, y in rows}) == 2),
    st.integers(1, 9),
    st.integers(0, 20),
)
def test_any_probabilities(rows, n_bins, cut):
    """Honest clients are never excluded, and the bound of the AUC holds."""
    p, y = np.array([p for p, _ in rows]), np.array([y for _, y in rows])
    model = FederatedEvaluation(n_bins=n_bins).fit([(p[:cut], y[:cut]), (p[cut:], y[cut:])])
    assert abs(model.scores_["AUC"] - roc_auc_score(y, p)) <= model.auc_error_ + 1e-12
    assert model.scores_["log-loss"] == pytest.approx(log_loss(y, p), rel=1e-9)


def test_the_table_and_the_figure():
    model = FederatedEvaluation()
    for method in (model.to_frame, model.plot):
        with pytest.raises(NotFittedError):
            method()
    model.fit(predicted())
    roc, calibration = model.plot().axes
    x, y = roc.lines[0].get_data()
    assert np.trapezoid(y, x) == pytest.approx(model.scores_["AUC"])
    assert len(calibration.lines[0].get_xdata()) == len(model.to_frame().dropna())
    assert "largest error of the AUC" in model.report()


def test_conventions(tmp_path):
    model = FederatedEvaluation(n_bins=20)
    assert clone(model).get_params() == model.get_params()
    models.save(model.fit(predicted()), tmp_path / "scores.json")
    loaded = models.load(tmp_path / "scores.json")
    pd.testing.assert_frame_equal(loaded.to_frame(), model.to_frame())
    assert loaded.scores_ == model.scores_
    assert not hasattr(model, "labels_")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (([0.1, 1.5], [0, 1]), r"probabilities must lie in \[0, 1\], got 1.5 in row 2"),
        (([[0.1, 0.9], [0.5, 0.6]], [0, 1]), "all classes must add up to 1, got 1.1 in row 2"),
        (([0.1], [0, 1]), "y must contain one class per row, 1; got 2"),
        (([np.nan], [0]), "NaN"),
        (([0.1], [0], [1.0]), "without weights"),
    ],
)
def test_bad_parts(part, message):
    with pytest.raises(ValueError, match=rf"parts\[0\]: .*{message}"):
        FederatedEvaluation().fit([part])


def test_classes_that_do_not_fit(monkeypatch):
    monkeypatch.setattr("fedlib.core.estimator.run", None)  # no message may leave
    model = FederatedEvaluation()
    with pytest.raises(Disagreement, match="whether classes are numbers or text"):
        model.fit([([0.1], ["ill"]), ([0.1], [1])])
    with pytest.raises(ValueError, match="there must be 2 classes; the clients have 3"):
        model.fit([([0.1, 0.2], ["a", "b"]), ([0.1], ["c"])])
    with pytest.raises(ValueError, match="there must be 2 classes; the clients have 1: 'a'"):
        model.fit([([0.1, 0.2], ["a", "a"])])


@pytest.mark.parametrize("parameters", [{"n_bins": 0}, {"n_groups": 0}])
def test_bad_parameters(parameters):
    with pytest.raises(ValueError, match=f"'{next(iter(parameters))}' parameter"):
        FederatedEvaluation(**parameters).protocol()


# Clients that fail or lie


def recorder(tamper=None):
    parts = dict(zip("ABC", predicted(sizes=(30, 40, 30)), strict=True))
    return Recorder({name: EvaluationClient(part) for name, part in parts.items()}, tamper)


def without_b():
    parts = predicted(sizes=(30, 40, 30))
    return FederatedEvaluation().fit([parts[0], parts[2]])


@pytest.mark.parametrize("step", [1, 2])
def test_a_lost_client_has_no_part_in_the_scores(step):
    seen = []

    def fail(request, reply):
        seen.append(request)
        return None if len(seen) == step else reply

    model = FederatedEvaluation().fit(recorder({"B": fail}), min_clients=2)
    assert list(model.ledger_.lost) == ["B"]
    assert model.report() == without_b().report()
    seen.clear()
    with pytest.raises(TooFewClients, match="Lost: 'B'"):
        FederatedEvaluation().fit(recorder({"B": fail}))


def test_a_passive_client_shares_nothing():
    model = FederatedEvaluation().fit(predicted(sizes=(30, 40, 30)), passive=[1])
    assert model.report() == without_b().report()


def first_plus_one(values):
    changed = values.copy()
    changed.flat[0] += 1
    return changed


LIES = {
    "more rows": ("counts", first_plus_one),
    "more rows in a group": ("groups", first_plus_one),
    "more rows above": ("above", first_plus_one),
    "other probabilities": ("sums", lambda v: v[::-1]),
    "a smaller loss": ("log_losses", lambda v: v / 2),
    "a larger loss": ("log_losses", lambda v: v * 2),
    "smaller errors": ("squares", lambda v: v / 2),
    "no bins": ("counts", lambda v: v[:, :0]),
}


@pytest.mark.parametrize("name", LIES)
def test_a_liar_leaves(name):
    field, change = LIES[name]

    def tamper(request, reply):
        fields = msgspec.msgpack.decode(reply)
        if fields["type"] == "ScoreCounts":
            dtype, shape, data = fields[field]
            value = change(np.frombuffer(data, dtype).reshape(shape))
            fields[field] = [dtype, value.shape, value.tobytes()]
        return msgspec.msgpack.encode(fields)

    model = FederatedEvaluation().fit(recorder({"B": tamper}), min_clients=2)
    assert model.ledger_.lost == {"B": "InvalidReply at CountScores, step 2"}
    assert model.report() == without_b().report()


@pytest.mark.parametrize(
    ("classes", "message"), [(("a",), "2 counts for 1"), (("a", 1), "text"), (("a", "a"), "twice")]
)
def test_impossible_classes_are_refused(classes, message):
    with pytest.raises(MessageError, match=message):
        ClassCounts(classes, np.array([1, 1]))


def test_replies_with_other_bins_are_refused():
    table, pair = np.zeros((2, 3), np.int64), np.zeros(2)
    reply = ScoreCounts(table, np.zeros(2, np.int64), table, np.zeros(3), pair, pair)
    with pytest.raises(MessageError, match="2 classes, 4 bins and 3 groups, got the shapes"):
        CountScores(("a", "b"), 4, 3).accept(reply)


@pytest.mark.parametrize(
    "convert",
    [
        lambda y: pd.Series(y, dtype="category"),
        lambda y: pd.Series(y, dtype=object),
        lambda y: np.asarray(y)[:, None],
        lambda y: [f" {label} " for label in y],
    ],
)
def test_classes_of_every_type_have_the_same_scores(convert):
    y = np.array(["ill", "well", "well", "ill"])
    shares = [0.1, 0.8, 0.4, 0.3]
    expected = FederatedEvaluation().fit([(shares, y)])
    model = FederatedEvaluation().fit([(shares, convert(y))])
    assert model.scores_ == expected.scores_
    assert model.classes_.tolist() == ["ill", "well"]


@pytest.mark.parametrize("gap", [None, np.nan, pd.NA, pd.NaT, ""])
def test_a_missing_class_is_no_class(gap):
    with pytest.raises(ValueError, match=r"^parts\[0\]: y has no class in 1 row, row 2: drop this"):
        FederatedEvaluation().fit(
            [([0.1, 0.8, 0.9], pd.Series(["ill", gap, "well"], dtype=object))]
        )
