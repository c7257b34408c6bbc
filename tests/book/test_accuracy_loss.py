"""The comparison of federated, pooled and local-only learning."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def module():
    """Return the page's module, imported as the notebook imports it."""
    with pytest.MonkeyPatch.context() as patch, mpl.rc_context():
        patch.syspath_prepend(ROOT / "notebooks")
        yield importlib.import_module("study.measuring.accuracy_loss")


def runs(score, pooled, federated, dataset="a", held_out=False, own=(0.5, 0.5)):
    """Return one run per federated value; all sites alone reach 0.5."""
    rows = pd.DataFrame({"federated": federated, "pooled": pooled, "seed": range(len(federated))})
    rows[["local", "worst site", "best site", "one site"]] = 0.5
    rows[["own local", "own federated"]] = own
    fixed = {"method": "m", "score": score, "partition": "p", "dataset": dataset}
    return rows.assign(**fixed, **{"held out": held_out, "sites that gain": 1.0})


@pytest.mark.parametrize(("score", "sign"), [("AUC", 1), ("SSE per row", -1)])
def test_a_loss_is_positive_if_the_pooled_model_is_better(module, score, sign):
    federated = np.array([0.7, 0.75, 0.9])
    summary = module.summarise(runs(score, 0.8, federated), {"a": "sum"})
    row = summary[summary["dataset"] == "a"].iloc[0]
    loss = sign * (0.8 - federated)
    np.testing.assert_allclose(row["loss"], loss.mean())
    np.testing.assert_allclose(row["delta"], 0.1)
    limits = ttest_1samp(loss, 0).confidence_interval()
    np.testing.assert_allclose([row["loss low"], row["loss high"]], limits)
    np.testing.assert_allclose(row["gain"], sign * (federated.mean() - 0.5))
    np.testing.assert_allclose(row["single_loss"], sign * 0.3)


def test_the_mean_over_sets_is_taken_seed_by_seed(module):
    """The losses of the two sets cancel in every seed, so the interval has no width."""
    both = [runs("AUC", 0.8, [0.7, 0.9]), runs("AUC", 0.8, [0.9, 0.7], "b")]
    summary = module.summarise(pd.concat(both), {"a": "1", "b": "2"})
    row = summary[summary["dataset"] == "all"].iloc[0]
    np.testing.assert_allclose(row[["loss", "loss low", "loss high"]].astype(float), 0, atol=1e-12)
    np.testing.assert_allclose(row["delta"], 0.1)
    assert (row["sha256"], row["seeds"]) == ("1 2", 2)


def test_own_rows_are_those_that_were_held_out(module):
    fitted = runs("AUC", 0.8, [0.7, 0.9], own=(0.9, 0.6))
    fresh = runs("AUC", 0.1, [0.2, 0.2], held_out=True, own=(0.5, 0.6))
    summary = module.summarise(pd.concat([fitted, fresh]), {"a": ""})
    np.testing.assert_allclose(summary[["pooled", "own gain"]], [[0.8, 0.1]] * 2)


@pytest.mark.parametrize("held_out", [False, True])
def test_sites_divide_the_rows_and_keep_held_out_rows_apart(module, held_out):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    problem = module.Problem(SimpleNamespace(name="x", y=None, sha256=None), X)
    for how in problem.hows:
        sites = problem.sites(how, 4, 0, held_out)
        together = np.sort(np.concatenate(sites.parts))
        np.testing.assert_array_equal(together, sites.everything)
        np.testing.assert_array_equal(np.sort(np.concatenate(sites.own)), sites.scored)
        shared = np.intersect1d(sites.everything, sites.scored)
        assert len(shared) == (0 if held_out else 60)


def test_regions_of_two_seeds_differ_and_each_seed_repeats(module):
    X = np.random.default_rng(0).normal(size=(60, 3))
    problem = module.Problem(SimpleNamespace(name="x", y=None, sha256=None), X)
    first, again, other = (problem.dealt(module.REGIONS, 3, seed) for seed in (0, 0, 1))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))
