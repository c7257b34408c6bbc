"""Test the modules with what pages compute besides their experiments."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedlib import PPDBDC, SDBDC, FederatedXGBClassifier, HorizontalDBSCAN
from fedlib.clustering.density.horizontal import CellCounts, CountCells
from fedlib.clustering.density.ppdbdc import PPDBDCClient
from fedlib.clustering.density.sdbdc import SDBDCClient
from fedlib.core.messages import decode, encode
from fedlib.kernels.representatives import cover_greedily
from fedlib.testing import Recorder

X = np.random.default_rng(0).normal(size=(60, 2))


@pytest.fixture(scope="module")
def clients(modules):
    return modules("study.clustering.representatives_clients")


def test_representatives_chosen_all_anew_are_the_updated_ones(clients):
    ordered = X[np.lexsort(X.T[::-1])]
    expected = cover_greedily(ordered, 0.8, len(X), len(X))[0]
    assert clients.choose_all_anew(ordered, 0.8).tolist() == expected.tolist()


def test_sweep_gives_what_separate_runs_give(clients):
    parts = [X[:30], X[30:]]
    swept = clients.sweep(SDBDC(0.8, 2), list(map(SDBDCClient, parts)), [3, 5])
    for value, (labels, replies) in zip([3, 5], swept, strict=True):
        expected = SDBDC(0.8, value).fit(parts)
        assert labels.tolist() == np.concatenate(expected.labels_).tolist()
        assert sum(len(reply.weights) for reply in replies) == len(expected.representatives_)


def test_clients_choose_at_random_or_hold_back(clients):
    [greedy], [random] = (clients.choosers(how, [X]) for how in ("greedy", "random"))
    sent = {}
    for name, client in {"greedy": greedy, "random": random}.items():
        recorder = Recorder({"0": client})
        SDBDC(0.8, 3).fit(recorder)
        sent[name] = recorder.exchanges[0].replies["0"]
        assert sent[name].weights.sum() == len(X)
    assert len(sent["greedy"].weights) <= len(sent["random"].weights)
    weights = {}
    for k in (1, 3):
        recorder = Recorder({"0": clients.HoldBackClient(X, 0, k)})
        PPDBDC(0.8, 3).fit(recorder)
        weights[k] = recorder.exchanges[0].replies["0"].weights
    assert weights[3].tolist() == weights[1][weights[1] >= 3].tolist()
    assert len(clients.seeded(PPDBDCClient, [X, X])) == 2


def test_run_times_add_up(clients):
    times = clients.run_times(SDBDC(0.8, 3), [X[:30], X[30:]], n_repeats=2)
    assert times["time"] == times["slowest party"] + times["server"]


def test_strips_are_equally_wide_and_hold_each_row_once(clients):
    rows = clients.strips(np.array([[0.0, 5], [1, 5], [2, 5], [3.9, 5], [10, 5]]), 2)
    assert [part.tolist() for part in rows] == [[0, 1, 2, 3], [4]]


def test_scores_that_no_single_order_gives_together_differ(modules):
    module, study = modules("study.clustering.horizontal_study"), modules("study")
    names = {"source": "M1", "table": "horizontal", "dataset": "s-set1"}
    rows = study.published(**names, method="horizontal_dbscan")
    of_dbscan = study.published(**names, method="dbscan")
    data = SimpleNamespace(source="generated", X=X, sha256=None)
    printed = {metric: float(value) for metric, value in study.by_metric(rows).items()}
    apart = pd.DataFrame([printed, printed, printed])
    apart.iloc[0, 0] -= 0.1  # each order gives all scores but one or two
    apart.iloc[1, 1] += 0.1
    apart.iloc[2, :2] += [0.1, -0.1]
    found = module.verdict("M1", data, apart, rows, of_dbscan)
    assert found["status"].tolist() == ["differs"] * 2 + ["exact"] * 3
    assert (
        found["note"].str.contains("no order gives more than 4 of the 5").tolist()[:2] == [True] * 2
    )
    together = pd.concat([apart, pd.DataFrame([printed])], ignore_index=True)
    found = module.verdict("M1", data, together, rows, of_dbscan)
    assert set(found["status"]) <= {"exact", "within"}


def test_a_stand_in_leaves_nothing_to_compare(modules, monkeypatch):
    module, study = modules("study.clustering.horizontal_study"), modules("study")
    names = {"source": "M1", "table": "horizontal", "dataset": "s-set1"}
    rows, of_dbscan = (study.published(**names, method=m) for m in ("horizontal_dbscan", "dbscan"))
    scores = pd.DataFrame([dict.fromkeys(study.by_metric(rows), 0.5)])
    data = SimpleNamespace(source="stand-in", X=X, sha256=None)
    found = module.verdict("M1", data, scores, rows[:0], of_dbscan[:0])
    assert found.empty
    pages = modules("study.shared.pages")
    monkeypatch.setattr(pages, "stand_ins", {"s-set1"})
    shown = study.table(found, caption="Verdicts.", name="tab-verdicts")
    assert "generated data replace those of the source" in shown
    assert 'id="tab-verdicts"' in shown
    assert "<table" not in shown
    monkeypatch.setattr(pages, "stand_ins", set())
    assert "<table" in study.table(found, caption="Verdicts.", name="tab-verdicts")


def test_withholding_omits_small_counts(modules):
    study = modules("study.clustering.horizontal_study")
    counts = CellCounts(np.array([[0, 0], [1, 1]]), np.array([1, 5]))
    request = encode(CountCells(1.0))
    shortened = decode(study.withholding(2)(request, encode(counts)))
    assert shortened.counts.tolist() == [5]
    runs = pd.DataFrame({"AMI": [0.12344, 0.5], "ARI": [0.2, 0.3]})
    assert study.agreement(runs, {"AMI": "0.1234", "ARI": "0.3000"}).tolist() == [1, 1]


def test_exchanges_of_boosting(modules):
    exchanges = modules("study.boosting.exchanges")
    y = (X[:, 0] > 0).astype(int)
    parts = [(X[::2], y[::2]), (X[1::2], y[1::2])]
    model = FederatedXGBClassifier(
        1, max_depth=2, min_child_weight=0, tol=None, method="top_splits"
    )
    talk = exchanges.record(model, parts)
    [tree] = model.trees_
    depth = exchanges.depths(tree)
    assert depth[0] == 0
    assert depth.max() == tree.depth
    leaves = [exchanges.leaf_of(tree, row) for row in X[::2].astype(np.float32)]
    [(_, sums)] = exchanges.find(talk, "LeafSums")
    [(begin, _), *_] = exchanges.find(talk, "BeginBoosting")
    rows, positive = exchanges.decode(sums.sums, begin)
    for leaf in np.flatnonzero(tree.feature < 0):
        here = np.equal(leaves, leaf)
        assert (rows[leaf], positive[leaf]) == (here.sum(), y[::2][here].sum())


def test_replay_visits_every_path_once(modules):
    example = modules("study.boosting.example_study")
    parts = {"1": np.arange(1, 5), "2": np.arange(3, 5)}
    splits = {"": 2.5, "R": 3.5}
    visits = list(example.replay(splits, parts))
    assert [path for _, path in visits] == ["", "L", "R", "RL", "RR"]
    assert visits[1][0] == {"1": "L", "2": "R"}
    tree = example.tree_of(splits, parts)
    assert tree["2"].keys() == {"", "R", "RL", "RR"}


def test_mixture_example_has_the_printed_sizes(modules):
    example = modules("study.clustering.mixture_example")
    points = example.points_of(0)
    for client, groups in example.SIZES.items():
        assert len(points[client]) == sum(map(sum, groups))


def test_threat_options_name_every_protocol(modules):
    options = modules("study.attacks.threat_study").options_of_protocols()
    protocols = modules("fedlib.core.registry").protocols()
    assert len(options) == len(protocols)
    assert options.set_index("class").loc["FederatedKMeans", "secure"] == "yes"


def test_old_program_is_where_its_runner_looks(modules):
    assert modules("study.clustering.old_run").PROGRAM.exists()


def test_a_run_of_the_threat_model_obeys_its_options(modules):
    study = modules("study.attacks.threat_study")
    parts = [X[:30], X[30:]]
    fixed, plain = {"cell_size": 1.0, "min_samples": 3}, HorizontalDBSCAN(1.0, 3)
    bounds = {"bounds": [[-5.0, -5.0], [5.0, 5.0]]}
    options = {"secure": {"secure": True}}
    [secure] = study.variants(HorizontalDBSCAN, fixed, options, bounds).values()
    labels, exchanges = study.run(plain, parts)
    assert len(labels) == len(X)
    assert study.seconds_of(exchanges) > 0
    masked, more = study.run(secure, parts)
    assert masked.tolist() == labels.tolist()
    assert len(more) > len(exchanges)
    _, rules = study.run(plain, parts, policy=3)
    assert min(reply.counts.min() for reply in rules[0].replies.values()) >= 3
    drawn = [study.run(PPDBDC(1.0, 3), parts, random_state=seed)[1][0] for seed in (0, 0, 1)]
    first, same, other = (exchange.replies["0"].representatives.tolist() for exchange in drawn)
    assert first == same != other
