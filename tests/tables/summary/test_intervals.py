"""Summaries with noise: intervals cover counts, gaps and moments, and gaps are not cut at 0."""

import warnings

import numpy as np
import pandas as pd
import pytest

from fedlib import FederatedSummary, Schema
from fedlib.testing import seeded_noise

N_SEEDS = 60
HIDDEN = "the noise is too large for the rows"
FIELDS = [
    {"name": "age", "type": "number", "constraints": {"minimum": 0, "maximum": 100}},
    {"name": "crp", "type": "number", "constraints": {"minimum": 0, "maximum": 50}},
    {"name": "ward", "type": "string", "constraints": {"enum": ["a", "b", "c"]}},
    {"name": "weight", "type": "number", "constraints": {"minimum": 0, "maximum": 2}},
]


def make_rows(n):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(50, 15, n).clip(0, 100), "crp": rng.uniform(0, 30, n)})
    frame.loc[::3, "crp"] = np.nan
    frame["ward"] = rng.choice(["a", "b"], n, p=[0.9, 0.1])
    frame["weight"] = rng.uniform(0.5, 2, n)
    return frame


def schema(weighted=False):
    fields = [dict(field, fedlib={"fill": 1}) for field in FIELDS[:2]]
    fields.append(FIELDS[2] | {"fedlib": {"outside": "other"}})
    fields.append(FIELDS[3] | {"fedlib": {"role": "weight"}})
    return Schema({"name": "study", "schema": {"fields": fields if weighted else fields[:3]}})


@pytest.mark.parametrize("n_rows", [90, 3000])
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_intervals_cover_the_statistics_of_the_rows(weighted, secure, n_rows):
    """Of 60 seeds, at least 56 intervals contain the true statistic; 59.4 are expected.

    The gaps of the columns of numbers are 0: the rows of a schema have none.
    """
    rows = make_rows(n_rows).fillna({"crp": 1})
    tables = [rows[: n_rows // 2], rows[n_rows // 2 :]]
    if not weighted:
        tables = [table.drop(columns="weight") for table in tables]
    exact = FederatedSummary(schema=schema(weighted), quantiles=None, secure=True)
    truth = exact.fit([*tables, rows.iloc[:0][tables[0].columns]]).to_frame()
    names, covered, known = ("count", "missing", "mean", "std"), [], []
    for seed in range(N_SEEDS):
        model = FederatedSummary(
            schema=schema(weighted), quantiles=None, epsilon=4.0, secure=secure,
            delta=1e-6 if secure else 0.0,
        )  # fmt: skip
        with seeded_noise(seed), warnings.catch_warnings():
            warnings.filterwarnings("ignore", HIDDEN)
            frame = model.fit(tables).to_frame()
        found = np.stack([frame[name] for name in names])
        low, high = np.moveaxis(np.stack([model.intervals_[name] for name in names]), 2, 0)
        true = np.stack([truth[name].astype(float) for name in names])
        inside = (low <= true) & (true <= high) | np.isnan(true)
        covered.append(inside)
        known.append(~np.isnan(found))
        uncut = np.maximum(found, 0)  # counts and gaps, whose intervals begin at 0
        assert ((low - 1 <= uncut) & (uncut <= high + 1) | np.isnan(found)).all()
        counts = model.categories_["ward"].to_numpy()
        assert counts.min() >= 0
        assert np.abs(counts[:2] - truth.loc["ward", "count"] * np.array([0.9, 0.1])).max() < 500
    assert np.sum(covered, axis=0).min() >= 56
    if n_rows == 3000:
        assert np.sum(known, axis=0)[:, :2].min() == N_SEEDS


def test_bounds_alone_and_gaps():
    rows = make_rows(2000)[["age", "crp"]]
    options = {"bounds": {"age": (0, 100), "crp": (0, 50)}, "quantiles": None}
    truth, covered, gaps = np.array([0, rows["crp"].isna().sum()]), np.zeros(2), []
    for seed in range(N_SEEDS):
        with seeded_noise(seed):
            model = FederatedSummary(epsilon=2.0, **options).fit([rows[:700], rows[700:]])
        low, high = model.intervals_["missing"].T
        covered += (low <= truth) & (truth <= high)
        gaps.append(model.to_frame()["missing"].to_numpy())
    assert covered.min() >= 56
    deviations = np.std(gaps, axis=0) / np.sqrt(N_SEEDS)
    assert (np.abs(np.mean(gaps, axis=0) - truth) < 4 * deviations).all()  # nothing is cut at 0
    assert np.min(gaps) < 0
    assert 0 < model.count_error_ < 100
    assert "missing (high)" in model.to_frame()


def test_a_mean_that_noise_hides_is_nan_with_the_reason():
    rows = make_rows(8)[["age"]]
    text = f"{HIDDEN}: the mean of 'age', the variance of 'age' are NaN"
    with seeded_noise(0), pytest.warns(UserWarning, match=text):
        model = FederatedSummary(bounds={"age": (0, 100)}, quantiles=None, epsilon=0.5).fit([rows])
    assert model.to_frame()[["mean", "std"]].isna().all(axis=None)
    assert model.intervals_["mean"].tolist() == [[0.0, 100.0]]


def test_a_most_frequent_category_needs_a_lead_over_the_noise():
    wards = {"name": "ward", "type": "string", "constraints": {"enum": ["a", "b", "c"]}}
    number = {"name": "x", "type": "number", "constraints": {"minimum": 0, "maximum": 1}}
    of_wards = Schema({"name": "s", "schema": {"fields": [wards, number]}})
    rows = pd.DataFrame({"ward": ["b"] * 30 + ["a"] * 10, "x": np.linspace(0, 1, 40)})
    noisy = FederatedSummary(schema=of_wards, quantiles=None, epsilon=0.3)
    for seed in range(5):
        text = f"{HIDDEN}: the most frequent category .* of 'ward' is None"
        with seeded_noise(seed), pytest.warns(UserWarning, match=text):
            frame = noisy.fit([rows]).to_frame()
        assert frame.loc["ward", "top"] is None
    many = pd.concat([rows] * 200)
    with seeded_noise(0), warnings.catch_warnings():
        warnings.simplefilter("error")
        model = noisy.fit([many])
    counts = model.categories_["ward"].to_numpy()
    assert model.to_frame().loc["ward", "top"] == "b"
    assert np.sort(counts)[-1] - np.sort(counts)[-2] > 2 * model.count_error_
