"""What each site learns about a common model from its own rows."""

import numpy as np
import pytest


@pytest.fixture
def compared(modules):
    return modules("study.boosting.compared_study")


def task_of(compared, n=240):
    """Return a task whose class depends on the first feature, in opposite ways by the second."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2)).astype(np.float32)
    y = ((X[:, 0] > 0) ^ (X[:, 1] > 0)).astype(int)
    return compared.Task("task", "binary:logistic", X, y)


def test_sites_have_similar_values_and_about_equally_many_rows(compared):
    values = np.array([5.0, 1.0, 2.0, 2.0, 9.0, 7.0, 3.0, 8.0])
    site = compared.site_of_rows(values, 3)
    assert site.tolist() == [1, 0, 0, 0, 2, 2, 1, 2]
    order = np.argsort(values)
    assert (np.diff(site[order]) >= 0).all()


def test_losses_of_rows(compared):
    losses = compared.row_losses(np.array([1, 0, 1]), [0.5, 0.25, 0.0])
    assert losses[:2] == pytest.approx([np.log(2), -np.log(0.75)])
    assert 30 < losses[2] < np.inf


def test_no_row_is_predicted_by_a_model_that_has_seen_it(compared):
    task = task_of(compared)
    site = compared.site_of_rows(task.X[:, 1], 3)
    seen = []

    def alone(parts):
        seen.append([{tuple(row) for row in X} for X, _ in parts])
        return [compared.train(task, *part, 4) for part in parts]

    p = compared.cross_validated(task, site, alone, 3)
    assert not np.isnan(p).any()
    for s in range(3):
        rows = {tuple(row) for row in task.X[site == s]}
        left_out = [rows - of_fold[s] for of_fold in seen]
        assert set.union(*left_out) == rows
        assert sum(map(len, left_out)) == len(rows)
        assert all(of_fold[s] <= rows for of_fold in seen)


def test_the_verdict_of_each_site(compared):
    rng = np.random.default_rng(0)
    y, site = rng.integers(2, size=300), np.repeat([0, 1, 2], 100)
    good, bad = np.where(y == 1, 0.8, 0.2), np.where(y == 1, 0.6, 0.4)
    own, common = good.copy(), bad.copy()
    own[site == 0], common[site == 0] = bad[site == 0], good[site == 0]
    noise = rng.permutation(np.repeat([0.3, 0.7], 50))
    own[site == 2], common[site == 2] = noise, 1 - noise
    found = compared.gains_of_sites(y, site, own, common)
    assert found["verdict"].tolist() == ["common", "own", "cannot tell"]
    assert found["gain"][0] == pytest.approx(np.log(0.8 / 0.6))
    assert found["gain"][1] == pytest.approx(-np.log(0.8 / 0.6))
    assert found["rows"].tolist() == [100] * 3
