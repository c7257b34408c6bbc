"""The search for F's settings: its trees, its journal, and the likelihood of printed rows."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedlib import FederatedXGBClassifier

ROOT = Path(__file__).parents[2]


@pytest.fixture
def module(monkeypatch):
    """Return a function that imports a module of the notebooks."""
    monkeypatch.syspath_prepend(str(ROOT / "notebooks"))
    return importlib.import_module


def parts_of(n_clients, n=60, d=4):
    """Return clients with rows of a noisy rule; values repeat, so that clients agree on splits."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 12, (n_clients * n, d)).astype(float)
    y = (X[:, 0] + 0.5 * X[:, 1] + rng.normal(0, 3, len(X)) > 9).astype(int)
    return [(X[i::n_clients], y[i::n_clients]) for i in range(n_clients)]


@pytest.mark.jit
@pytest.mark.parametrize("leaf", ["all", "ended", "parent"])
@pytest.mark.parametrize("n_clients", [2, 5])
def test_the_compiled_trees_are_those_of_the_package(module, leaf, n_clients):
    boosting = module("study.boosting.f_boosting")
    parts = parts_of(n_clients)
    options = boosting.Options(3, 0.3, 1.0, 1.0, 5, boosting.LEAVES.index(leaf), False, 0.004)
    X = np.concatenate([part for part, _ in parts])
    margins, stopped = boosting.boost(parts, X, [1, 4, 30], options)
    rules = module("study.boosting").RULES
    settings = {"method": "top_splits", "leaf": leaf, "max_depth": 3, "xgboost_rules": rules}
    for n_trees, measured in zip((1, 4, 30), margins[:-1], strict=True):
        model = FederatedXGBClassifier(n_trees, 5, tol=None, **settings).fit(parts)
        np.testing.assert_array_equal(measured, model.decision_function(X))
    model = FederatedXGBClassifier(30, 5, tol=0.004, **settings).fit(parts)
    assert stopped == len(model.trees_) < 30
    np.testing.assert_array_equal(margins[-1], model.decision_function(X))


@pytest.mark.jit
@pytest.mark.parametrize("leaf", ["all", "ended", "parent"])
@pytest.mark.parametrize("update", ["server", "client"])
def test_the_compiled_trees_are_those_of_the_literal_implementation(module, leaf, update):
    """The clients may update their predictions from their own leaves (F, §3.3)."""
    boosting, literal = module("study.boosting.f_boosting"), load_literal()
    parts = parts_of(3)
    local = update == "client"
    # Without a limit: the literal implementation has none for the values of leaves.
    options = boosting.Options(2, 0.3, 1.0, 0.0, 4, boosting.LEAVES.index(leaf), local, 0.0)
    parameters = literal.Parameters(n_trees=3, n_candidates=4, max_depth=2, min_child_weight=0.0)
    model = literal.fit(parts, parameters, literal.Reading(leaf=leaf, update=update))
    X = np.concatenate([part for part, _ in parts])
    margins, _ = boosting.boost(parts, X, [3], options)
    np.testing.assert_allclose(1 / (1 + np.exp(-margins[0])), model.predict(X), atol=1e-6)


def load_literal():
    path = ROOT / "tests/boosting/literal.py"
    spec = importlib.util.spec_from_file_location("literal_f", path)
    literal = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = literal
    spec.loader.exec_module(literal)
    return literal


def job_of(search, seed=0, **setting):
    return search.Job("3.6", "500 samples", "xgboost", search.Setting(**setting), seed)


def test_the_journal_keeps_finished_jobs_and_ignores_a_line_cut_off(module, tmp_path):
    search = module("study.boosting.f_search")
    path = tmp_path / "journal.csv"
    scores = np.linspace(0, 1, len(search.GRID["3.6"]) * 4).reshape(-1, 4)
    journal = search.Journal(path)
    for seed in (0, 1):
        journal.add(job_of(search, seed, rate=0.05), [(0, scores)])
    text = path.read_text(encoding="utf-8")
    path.write_text(text[:-9], encoding="utf-8")
    again = search.Journal(path)
    assert again.done.keys() == {job_of(search, 0, rate=0.05).key}
    again.add(job_of(search, 1, rate=0.05), [(0, scores)])
    assert path.read_text(encoding="utf-8") == text
    runs = search.read([path])
    assert runs["trees"].tolist() == [str(n) for n in search.GRID["3.6"]] * 2
    names = [f"test {name}" for name in search.SCORES]
    np.testing.assert_allclose(runs[runs["seed"] == 1][names], scores, atol=0.5 / search.SCALE)


def test_a_search_stops_when_its_time_is_over_and_continues_later(module, tmp_path, monkeypatch):
    search = module("study.boosting.f_search")
    ran = []
    scores = np.full((len(search.GRID["3.6"]), 4), 0.5)
    monkeypatch.setattr(search, "load", lambda table, preparation: None)
    monkeypatch.setattr(search, "run_job", lambda job, data: ran.append(job) or [(0, scores)])
    jobs = [job_of(search, seed) for seed in range(3)]
    path = tmp_path / "journal.csv"
    assert search.search(search.Journal(path), jobs[:1]) == 0
    assert search.search(search.Journal(path), jobs, minutes=-1) == 2
    assert search.search(search.Journal(path), jobs) == 0
    assert ran == jobs


def test_jobs_of_the_kept_journal_run_again_and_another_score_is_noticed(module, monkeypatch):
    search = module("study.boosting.f_search")
    rng = np.random.default_rng(0)
    data = rng.normal(size=(60, 3)), rng.integers(0, 2, 60)
    monkeypatch.setattr(search, "load", lambda table, preparation: data)
    jobs = [search.Job("3.5", "", "xgboost", search.Setting(depth=depth), 0) for depth in (1, 2)]
    monkeypatch.setattr(search, "plan", lambda: jobs)
    lines = {job.key: search.line_of(job, search.run_job(job, data)) for job in jobs}
    assert search.run_again(SimpleNamespace(done=lines), 2) == 2
    changed = lines | {jobs[1].key: lines[jobs[1].key][:-3] + "00Z"}
    with pytest.raises(AssertionError, match="other scores"):
        search.run_again(SimpleNamespace(done=changed), 2)


def test_the_score_of_log_odds_agrees_with_scikit_learn(module):
    search, boosting_study = (
        module("study.boosting.f_search"),
        module("study.boosting.boosting_study"),
    )
    rng = np.random.default_rng(1)
    y, margins = rng.integers(0, 2, 50), np.round(rng.normal(size=50), 1).astype(np.float32)
    expected = boosting_study.scores(y, margins, threshold=0)
    np.testing.assert_allclose(search.score(y, margins), [expected[n] for n in search.SCORES])


def test_the_likelihood_of_many_splits_is_the_normal_density(module):
    """With 20,000 splits, the prior and the shrinkage do not count, and t is nearly normal."""
    likelihood = module("study.boosting.f_likelihood")
    rng = np.random.default_rng(2)
    covariance = 0.0004 * np.array([[1.0, 0.7], [0.7, 1.0]])
    centre = np.arcsin(np.sqrt([0.8, 0.7]))
    z = rng.multivariate_normal(centre, covariance, 20_000)
    printed = np.array([0.82, 0.72])
    [found], [p_value] = likelihood.log_likelihoods(np.sin(z)[None] ** 2, printed)
    x = likelihood.transform(printed + likelihood.UNIT / 2)
    normal = stats.multivariate_normal(centre, covariance)
    assert found == pytest.approx(normal.logpdf(x), abs=0.05)
    distance = (x - centre) @ np.linalg.solve(covariance, x - centre)
    assert p_value == pytest.approx(stats.chi2.sf(distance, 2), abs=0.01)


def test_a_lucky_split_is_more_likely_than_a_contradiction(module):
    """Two scores rise and fall together, so one above and one below the mean is unlikely."""
    likelihood = module("study.boosting.f_likelihood")
    luck = np.random.default_rng(3).normal(0, 0.03, (1, 50, 1))
    noise = np.random.default_rng(4).normal(0, 0.005, (1, 50, 2))
    values = 0.8 + luck + noise
    [both], [p_both] = likelihood.log_likelihoods(values, np.array([0.85, 0.85]))
    [one], [p_one] = likelihood.log_likelihoods(values, np.array([0.85, 0.75]))
    assert both > one + 5
    assert p_both > 0.05 > p_one


def runs_of(search, **centres):
    """Return runs of Table 3.6 with one setting per rate, scores near its centre."""
    rng, rows = np.random.default_rng(5), []
    for condition in search.CONDITIONS["3.6"]:
        for n_clients in (1, 2, 5):
            for rate, centre in centres.items():
                for seed in range(3):
                    scores = dict(
                        zip(
                            [f"test {name}" for name in search.SCORES],
                            rng.normal(centre, 0.01, 4),
                            strict=True,
                        )
                    )
                    setting = search.Setting(rate=rate)._asdict()
                    place = {"table": "3.6", "condition": condition, "n_clients": n_clients}
                    rows.append(place | setting | {"trees": "5", "seed": seed} | scores)
    return pd.DataFrame(rows)


def test_the_setting_near_the_printed_numbers_is_the_most_plausible(module):
    search, likelihood = module("study.boosting.f_search"), module("study.boosting.f_likelihood")
    runs = runs_of(search, near=[0.75, 0.82, 0.65, 0.79], far=[0.75, 0.7, 0.5, 0.7])
    settings = likelihood.by_setting(likelihood.by_row(runs))
    assert (settings["half 1"] + settings["half 2"]).tolist() == pytest.approx(settings["whole"])
    assert likelihood.best(likelihood.together(settings))["rate"].tolist() == ["near"]
    for half in ("half 1", "half 2"):
        assert likelihood.best(likelihood.together(settings), half)["rate"].tolist() == ["near"]
    reached = likelihood.inside(runs)
    assert len(reached) == 2 * 54
    assert reached.groupby("rate")["within"].mean()["near"] > 0.3


def test_the_central_share_of_few_splits_is_that_of_a_t_distribution(module):
    likelihood = module("study.boosting.f_likelihood")
    many = np.linspace(0.7, 0.9, 201)
    np.testing.assert_allclose(likelihood.central(many), [0.705, 0.895])
    few = np.array([0.78, 0.80, 0.82])
    z = np.arcsin(np.sqrt(few))
    margin = stats.t.ppf(0.975, 12) * z.std(ddof=1) * np.sqrt(4 / 3)
    expected = np.sin(z.mean() + np.array([-margin, margin])) ** 2
    np.testing.assert_allclose(likelihood.central(few), expected)


def test_means_of_fractions_decide_which_numbers_can_be_printed(module):
    """Of three folds with 44 positive rows each, only multiples of 1/132 are possible."""
    likelihood = module("study.boosting.f_likelihood")
    values = likelihood.possible_means([44, 44, 44])
    np.testing.assert_allclose(values, np.arange(133) / 132)
    assert likelihood.can_print("0.787", values)  # 104/132 = 0.78787…, cut off
    assert not likelihood.can_print("0.787", values, cut=False)
    assert not likelihood.can_print("0.789", values)


def test_half_as_many_rows_are_trained_and_the_same_rows_are_scored(module):
    search = module("study.boosting.f_search")
    y = (np.arange(1_000) % 4 == 0).astype(int)  # 250 positive rows, of which 50 are for the test
    X = np.arange(1_000.0)[:, None]
    readings = {
        name: search.rows_of(X, y, "3.7", "80-20 negative-positive", name, 0).pairs[0]
        for name in ("equal", "half as many")
    }
    (all_rows, test), (half, test_of_half) = readings.values()
    np.testing.assert_array_equal(test, test_of_half)
    assert (len(all_rows), len(half), y[half].sum()) == (400, 200, 40)
    assert set(half) < set(all_rows)


def test_jobs_can_be_written_with_commas_between_their_columns(module):
    """A comma within a value would shift the columns, and the job would never be done."""
    search = module("study.boosting.f_search")
    assert [job for job in search.plan() if "," in "".join(job.key)] == []


def test_folds_and_the_numbers_that_their_means_can_be(module):
    likelihood = module("study.boosting.f_likelihood")
    assert likelihood.folds_of(11) == [4, 4, 3]
    counted = likelihood.count_possible([0.5, 0.501, 1.0], [2])
    assert counted["possible"] == "2 of 3"


def test_the_spread_of_one_split_is_less_than_of_different_splits(module, monkeypatch):
    likelihood = module("study.boosting.f_likelihood")
    split = np.linspace(0.6, 0.9, 10)[:, None]  # the same for both rows of the table
    column = likelihood.all_scores("3.5").index("test accuracy")
    values = np.tile(split, (1, 1 + column))
    places = [("3.5", "", 2), ("3.5", "", 3)]
    monkeypatch.setattr(
        likelihood, "of_chosen", lambda runs, row: [(place, {"values": values}) for place in places]
    )
    found = likelihood.spreads(None, {"table": "3.5"}, "test accuracy")
    assert found["one split"] == pytest.approx(0)
    assert np.median(found["different splits"]) > 0.01
    printed = likelihood.printed_scores()["test accuracy"]
    assert found["printed"] == pytest.approx([np.std(printed[places] - 0.75)])
