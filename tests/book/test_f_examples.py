"""The modules behind F's worked examples: the rule (3.3) for many classings, and F's own FIN."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from fedlib import FederatedXGBClassifier, HorizontalDBSCAN
from fedlib.testing import Recorder

ROOT = Path(__file__).parents[2]
PARTS = [np.arange(1, 17), np.r_[1:5, 9:13], np.arange(9, 17)]


@pytest.fixture
def module(monkeypatch):
    """Return a function that imports a module of the notebooks."""
    monkeypatch.syspath_prepend(ROOT / "notebooks")
    return importlib.import_module


@pytest.mark.parametrize("n_candidates", [1, 2, 10])
@pytest.mark.parametrize("min_child_weight", [0.0, 0.5])
def test_the_largest_sum_of_votes_is_the_root_of_the_package(
    module, n_candidates, min_child_weight
):
    rng = np.random.default_rng(n_candidates)
    classes = [rng.integers(0, 2, (40, len(part))) for part in PARTS]
    share = np.concatenate(classes, axis=1).mean(axis=1)
    votes = module("study.boosting.example_study").votes(
        classes, PARTS, share, 1, 16, 1.0, n_candidates, min_child_weight
    )
    expected = np.where(votes.max(axis=1) > 0, votes.round(9).argmax(axis=1) / 2, 0)
    model = FederatedXGBClassifier(
        1,
        n_candidates,
        max_depth=1,
        min_child_weight=min_child_weight,
        tol=None,
        method="top_splits",
    )
    found = []
    for number in range(40):
        rows = zip(PARTS, classes, strict=True)
        model.fit([(part[:, None], of_client[number]) for part, of_client in rows])
        found.append(model.trees_[0].threshold[0])
    np.testing.assert_array_equal(found, expected)


def test_following_finds_what_the_package_grows(module):
    """The last possibility by value that gives F's first split does so in the package."""
    by_value = (np.arange(2**12)[:, None] >> np.arange(16)) & 1
    found = module("study.boosting.example_study").follow(
        [by_value[:, p - 1] for p in PARTS], PARTS, 1.0, 10
    )
    assert set(found["Figure 3.2"]) < set(found["Figure 3.1"])
    for name, n_splits in (("Figure 3.1", 1), ("Figure 3.2", 2)):
        classes = by_value[found[name][-1]]
        model = FederatedXGBClassifier(
            1, max_depth=2, min_child_weight=0, tol=None, method="top_splits"
        )
        model.fit([(part[:, None], classes[part - 1]) for part in PARTS])
        assert model.trees_[0].threshold[:2].tolist()[:n_splits] == [8.5, 4.5][:n_splits]


def test_ranges(module):
    assert module("study.boosting.example_study").ranges([1, 2, 3, 9, 11, 12]) == "1–3, 9, 11–12"


def coroutines(fin_threads, estimator, parts):
    """Return F's clients around clients of the package."""
    clients = {str(i): estimator.client_class(part) for i, part in enumerate(parts)}
    wrapped = {n: fin_threads.FinClient(fin_threads.coroutine_of(c)) for n, c in clients.items()}
    return wrapped, clients


def test_fin_carries_the_messages_of_a_flow(module):
    fin_threads = module("study.running.fin_threads")
    estimator, parts = HorizontalDBSCAN(1.0, 2), [[[0.1], [0.2]], [[0.3], [5.0]]]
    wrapped, clients = coroutines(fin_threads, estimator, parts)
    outcome = fin_threads.run_rounds(
        fin_threads.algorithm_of(estimator.protocol(), list(wrapped)), wrapped
    )
    recorder = Recorder(
        {n: estimator.client_class(part) for n, part in zip("01", parts, strict=True)}
    )
    estimator.fit(recorder)
    sent = [data for _, _, what, data in outcome.calls if what == "fit_instructions"]
    received = [data for _, _, what, data in outcome.calls if what == "fit_response"]
    assert sent == [data for e in recorder.exchanges for data in e.request_bytes.values()]
    assert received == [data for e in recorder.exchanges for data in e.reply_bytes.values()]
    assert (outcome.rounds, outcome.ended, outcome.errors) == (4, "a result", [])
    assert outcome.result.labels.tolist() == estimator.model_.labels.tolist()
    assert [client.state.labels.tolist() for client in clients.values()] == [[0, 0], [0, -1]]


def test_fin_waits_without_end_after_an_error_in_the_algorithm(module):
    def algorithm(send_receive_cycle):
        raise ZeroDivisionError

    outcome = module("study.running.fin_threads").run_rounds(algorithm, {})
    assert outcome.ended == "no end: FIN_SERVER waits for send_queue, its thread has ended"
    assert outcome.errors == ["ZeroDivisionError in the thread"]


def test_fin_waits_without_end_after_the_loss_of_a_client(module):
    fin_threads = module("study.running.fin_threads")

    def failing():
        yield b""
        raise ConnectionError

    outcome = fin_threads.run_rounds(
        lambda cycle: cycle("a", b"data"), {"a": fin_threads.FinClient(failing())}
    )
    assert outcome.ended.endswith("ML_SERVER waits for receive_queue")
    assert outcome.errors == ["ConnectionError at a"]
    assert outcome.rounds == 1
