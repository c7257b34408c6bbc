"""Scores of several classes: by hand, against scikit-learn on the pooled rows, masked and noisy."""

import msgspec
import numpy as np
import pandas as pd
import pytest
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
from fedlib.core.client import BadRequest, Client
from fedlib.core.messages import MessageError
from fedlib.evaluation.class_scores import ClassScores, class_scores
from fedlib.evaluation.messages import ClassScoreTotals, CountClassScores
from fedlib.evaluation.predictions import EvaluationClient
from fedlib.protection.privacy import Privacy
from fedlib.protection.privacy.noise import Noise
from fedlib.tables.schema import Schema
from fedlib.testing import Recorder, seeded_noise

CLASSES = np.array(["a", "b", "c"])


def predicted(seed=0, sizes=(90, 0, 1, 60)):
    """Return parts with probabilities of three classes that are not calibrated; some are equal."""
    rng = np.random.default_rng(seed)
    parts = []
    for n in sizes:
        codes = rng.integers(0, 3, n)
        shares = np.exp(rng.normal(size=(n, 3)) + (codes[:, None] == np.arange(3)))
        shares[rng.random(n) < 0.1] = 1.0
        parts.append((shares / shares.sum(axis=1, keepdims=True), CLASSES[codes]))
    return parts


def pooled(parts):
    return np.concatenate([p for p, _ in parts]), np.concatenate([y for _, y in parts])


def expected(parts, one_column=False):
    """Return scikit-learn's scores of the pooled rows, but for the AUC, and the confusion."""
    p, y = pooled(parts)
    if one_column:
        p = np.column_stack([1 - p, p])
    classes = np.unique(y)
    chosen = classes[p.argmax(axis=1)]
    scores = {
        "accuracy": accuracy_score(y, chosen),
        "balanced accuracy": balanced_accuracy_score(y, chosen),
        "log-loss": log_loss(y, p, labels=classes),
        "Brier score": brier_score_loss(y, p)
        if len(classes) > 2
        else brier_score_loss(y, p[:, 1], pos_label=classes[1]),
    }
    return scores, confusion_matrix(y, chosen).tolist()


def without_auc(model):
    return {name: score for name, score in model.scores_.items() if name != "AUC"}


def test_a_toy_by_hand():
    """Two rows of three classes and two bins: below and above 1/2.

    Class 0: its row has 0.6, the others 0.1 and 0.3: area 1. Class 1: 0.8 against 0.3 and 0.3:
    area 1. Class 2: 0.4 against 0.1 and 0.1, all in the lower bin: area 1/2 with an error of 1/2.
    """
    parts = [
        ([[0.6, 0.3, 0.1], [0.1, 0.8, 0.1]], [0, 1]),
        ([[0.3, 0.3, 0.4]], [2]),
    ]
    model = FederatedEvaluation(n_bins=2).fit(parts)
    assert model.scores_ == pytest.approx(
        {
            "accuracy": 1.0,
            "balanced accuracy": 1.0,
            "AUC": 2.5 / 3,
            "log-loss": -np.log([0.6, 0.8, 0.4]).mean(),
            "Brier score": (0.16 + 0.09 + 0.01 + 0.01 + 0.04 + 0.01 + 0.09 + 0.09 + 0.36) / 3,
        }
    )
    assert model.auc_error_ == pytest.approx(0.5 / 3)
    assert model.to_frame()["AUC"].tolist() == [1.0, 1.0, 0.5]
    assert model.confusion_matrix_.tolist() == np.eye(3).tolist()
    assert model.ledger_.conversation() == [
        "DescribeClasses", "ClassCounts", "CountClassScores", "ClassScoreTotals",
    ]  # fmt: skip


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_equal_to_the_scores_of_the_pooled_rows(seed, secure):
    parts = predicted(seed)
    options = {"classes": list(CLASSES), "secure": True} if secure else {}
    model = FederatedEvaluation(**options).fit(parts)
    scores, confusion = expected(parts)
    assert without_auc(model) == pytest.approx(scores, rel=1e-6 if secure else 1e-12)
    assert model.confusion_matrix_.tolist() == confusion
    p, y = pooled(parts)
    exact = roc_auc_score(y, p, multi_class="ovr")
    assert abs(model.scores_["AUC"] - exact) <= model.auc_error_ < 0.01
    assert model.classes_.tolist() == ["a", "b", "c"]
    frame = model.to_frame()
    for k, label in enumerate(CLASSES):
        one = roc_auc_score(y == label, p[:, k])
        assert abs(frame["AUC"][k] - one) <= frame["error of the AUC"][k]
    assert len(model.plot().axes[0].lines) == 4
    assert "largest error of the AUC" in model.report()


@pytest.mark.parametrize("options", [{}, {"secure": True}])
def test_two_classes_in_one_column(options):
    """With given classes, the scores are those of the run that finds the classes."""
    parts = [(p[:, 0], np.where(y == "a", 1, 0)) for p, y in predicted()]
    model = FederatedEvaluation(classes=[1, 0], **options).fit(parts)
    plain = FederatedEvaluation().fit(parts)
    assert model.scores_ == pytest.approx(plain.scores_, rel=1e-6)
    assert model.auc_error_ == plain.auc_error_
    assert model.confusion_matrix_.tolist() == plain.confusion_matrix_.tolist()
    assert without_auc(model) == pytest.approx(expected(parts, True)[0], rel=1e-6)
    assert isinstance(model.model_, ClassScores)
    two = [(np.column_stack([1 - p, p]), y) for p, y in parts]
    assert FederatedEvaluation().fit(two).scores_ == pytest.approx(plain.scores_)


@pytest.mark.parametrize("secure", [False, True])
def test_noise_of_the_stated_size(secure):
    """A cell of the confusion matrix has the noise of the whole run's guarantee."""
    parts = predicted(sizes=(3000, 3000))
    model = FederatedEvaluation(
        n_bins=4, classes=list(CLASSES), secure=secure, epsilon=20.0, delta=1e-6
    )
    with seeded_noise(0):
        model.fit(parts)
    scores, confusion = expected(parts)
    assert np.abs(model.confusion_matrix_ - confusion).max() < 20
    assert model.confusion_matrix_.tolist() != confusion
    assert without_auc(model) == pytest.approx(scores, abs=0.05)


def test_a_row_changes_the_sums_by_the_stated_sensitivity():
    rng = np.random.default_rng(0)
    for classes, n_bins in (("ab", 3), ("abcd", 1)):
        request = CountClassScores(classes=tuple(classes), n_bins=n_bins, privacy=None)
        shares = rng.dirichlet([0.1] * len(classes), 200)
        for codes in (shares.argmin(axis=1), shares.argmax(axis=1)):
            for row, code in zip(shares, codes, strict=True):
                change = request.total((row[None], np.array([code])), Client()).values
                assert np.abs(change).sum() <= request.sensitivity().l1
                assert np.sqrt(np.square(change).sum()) <= request.sensitivity().l2
                assert change.max() <= 1


def test_a_class_without_rows():
    parts = [([[0.6, 0.3, 0.1], [0.1, 0.8, 0.1]], ["a", "b"])]
    with pytest.raises(ValueError, match="one column per class, in the order 'a', 'b'; got 3 col"):
        FederatedEvaluation().fit(parts)
    model = FederatedEvaluation(classes=["a", "b", "c"]).fit(parts)
    assert model.to_frame()["count"].tolist() == [1, 1, 0]
    assert np.isnan(model.to_frame()["AUC"]).tolist() == [False, False, True]
    assert model.scores_["AUC"] == model.scores_["balanced accuracy"] == 1.0
    empty = [(np.empty((0, 2)), [])]
    with pytest.raises(ValueError, match="the clients have no rows"):
        FederatedEvaluation(classes=[0, 1], secure=True).fit(empty * 3)


def test_an_unknown_class_counts_as_the_first_one_and_the_site_knows():
    client = EvaluationClient(([[0.6, 0.4], [0.1, 0.9]], ["a", "z"]))
    request = CountClassScores(classes=("a", "b"), n_bins=1, privacy=None)
    assert client.handle(request).values[:4].tolist() == [1, 1, 0, 0]
    assert client.problems == (
        "y must contain only the classes ['a', 'b']; got 'z'; such rows count as rows of the first"
        " class",
    )
    with pytest.raises(BadRequest, match="got 2 columns"):
        client.handle(CountClassScores(classes=("a", "b", "c"), n_bins=1, privacy=None))
    with pytest.raises(MessageError, match="twice"):
        CountClassScores(classes=("a", "a"), n_bins=1, privacy=None)


def test_a_schema_has_the_classes(tmp_path):
    fields = [
        {"name": name, "type": "number", "constraints": {"minimum": 0, "maximum": 1}}
        | {"fedlib": {"fill": 0.5}}
        for name in ("no", "yes")
    ]
    target = {"name": "ill", "type": "string", "constraints": {"enum": ["no", "yes"]}}
    path = tmp_path / "schema.json"
    path.write_bytes(
        msgspec.json.encode(
            {"schema": {"fields": [*fields, target | {"fedlib": {"role": "target"}}]}}
        )
    )
    table = pd.DataFrame({"no": [0.9, 0.2, 0.4], "yes": [0.1, 0.8, 0.6]})
    table["ill"] = ["no", "yes", "no"]
    for secure in (False, True):
        model = FederatedEvaluation(schema=Schema.read(path), secure=secure).fit([table] * 3)
        assert model.confusion_matrix_.tolist() == [[3, 3], [0, 3]]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"secure": True}, r"secure=True needs classes, those that the rows may have \(got class"),
        ({"epsilon": 1.0}, "epsilon needs classes"),
        ({"classes": ["a"]}, "classes must be two or more"),
        ({"bounds": [[0], [1]]}, r"bounds must be None, because probabilities lie in \[0, 1\]"),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        FederatedEvaluation(**parameters).protocol()


def test_parts_that_do_not_fit(monkeypatch):
    monkeypatch.setattr("fedlib.core.estimator.run", None)  # no message may leave
    three, two = ([[0.5, 0.2, 0.3]], ["a"]), ([[0.5, 0.5]], ["b"])
    with pytest.raises(Disagreement, match="3 at '0'; 2 at '1'"):
        FederatedEvaluation().fit([three, two])
    with pytest.raises(ValueError, match=r"parts\[0\]: probabilities must have one column per cl"):
        FederatedEvaluation(classes=["a", "b", "c"]).fit([two, two])


LIES = {
    "a row more": lambda v: v + np.eye(1, len(v))[0],
    "a fraction of a row": lambda v: v + 0.5 * (np.eye(1, len(v))[0] - np.eye(1, len(v), 1)[0]),
    "a row in another bin": lambda v: v + np.eye(1, len(v), 9)[0],
    "fewer than no rows": lambda v: v - 100 * (np.eye(1, len(v))[0] - np.eye(1, len(v), 1)[0]),
    "a larger error": lambda v: v + 1000 * np.eye(1, len(v), len(v) - 1)[0],
}


@pytest.mark.parametrize("name", LIES)
def test_a_liar_leaves(name):
    parts = dict(zip("ABC", predicted(sizes=(30, 40, 30)), strict=True))

    def tamper(request, reply):
        fields = msgspec.msgpack.decode(reply)
        if fields["type"] == "ClassScoreTotals":
            dtype, shape, data = fields["values"]
            value = LIES[name](np.frombuffer(data, dtype).reshape(shape))
            fields["values"] = [dtype, value.shape, value.tobytes()]
        return msgspec.msgpack.encode(fields)

    clients = {name: EvaluationClient(part) for name, part in parts.items()}
    model = FederatedEvaluation().fit(Recorder(clients, {"B": tamper}), min_clients=2)
    assert model.ledger_.lost == {"B": "InvalidReply at CountClassScores, step 2"}
    assert model.report() == FederatedEvaluation().fit([parts["A"], parts["C"]]).report()


def test_the_request_knows_the_noise_that_it_needs():
    request = CountClassScores(classes=(0, 1, 2), n_bins=2, privacy=Privacy(rho=1.0))
    assert request.n_values == 9 + 12 + 2
    assert request.sensitivity().n_entries == 6


def test_noise_may_hide_all_rows():
    """Of a negative count of rows, nothing is known."""
    request = CountClassScores(classes=(0, 1), n_bins=1, privacy=Privacy(rho=1.0))
    totals, noise = ClassScoreTotals(np.full(request.n_values, -3.0)), Noise(3.0, 1, True)
    scores = class_scores(request, totals, noise)
    assert np.isnan([scores.accuracy, scores.auc, scores.balanced_accuracy, scores.brier]).all()
    assert scores.intervals[:3].tolist() == [[0.0, 1.0]] * 3
    assert "the noise is too large for the rows" in scores.problems[0]
