"""The AUC of boosted trees with differential privacy, with the defaults and with other settings."""

from functools import cache

import numpy as np
from sklearn.metrics import roc_auc_score

import study
from fedlib import FederatedXGBClassifier
from fedlib.testing import seeded_noise
from study.boosting import RULES

N_CLIENTS = 5
DELTA = 1e-6
EPSILONS = (1.0, 3.0, 10.0)
N_DRAWS = 20  # of the noise, and of the rows that are held out
N_SELECTION = 5_000  # the first rows of `smoking`, on which the defaults were chosen
RANGES = {  # of most adults, stated without looking at the rows
    "gender": (0, 1),
    "age": (18, 90),
    "height(cm)": (140, 200),
    "weight(kg)": (40, 120),
    "systolic": (80, 200),
    "triglyceride": (0, 400),
    "hemoglobin": (8, 20),
    "Gtp": (0, 200),
}
SETTINGS = {
    "defaults": {},
    "XGBoost's penalty": {"n_trees": 10, "max_depth": 3, "max_bin": 16, "reg_lambda": 1.0},
    "a penalty by hand": {
        "n_trees": 10,
        "max_depth": 3,
        "max_bin": 16,
        "reg_lambda": 50.0,
        "min_child_weight": 50.0,
    },
}
SETS = {  # and whether the defaults were chosen on them
    "diabetes": True,
    "smoking, the first 5,000 rows": True,
    "heart": False,
    "breast_cancer": False,
    "smoking, the other rows": False,
}


def keys():
    """Return the units of the complete run, and those without noise (an infinite epsilon)."""
    noisy = [
        {"dataset": name, "settings": settings, "secure": False, "epsilon": epsilon, "draw": draw}
        for name in SETS
        for settings in SETTINGS
        for epsilon in EPSILONS
        for draw in range(N_DRAWS)
    ]
    in_shares = [
        {**key, "secure": True}
        for key in noisy
        if key["dataset"] == "smoking, the other rows" and key["settings"] == "defaults"
    ]
    plain = [
        {"dataset": name, "settings": "defaults", "secure": False, "epsilon": np.inf, "draw": draw}
        for name in SETS
        for draw in range(N_DRAWS)
    ]
    return [*noisy, *in_shares, *plain]


@cache
def rows_of(name):
    """Return the rows of a set, its classes, and the bounds of its columns."""
    data = study.fetch(name.split(",")[0])
    if not name.startswith("smoking"):
        # No range is published for them: between the percentiles 1 and 99, and a tenth beyond.
        low, high = np.quantile(data.X, [0.01, 0.99], axis=0)
        margin = np.maximum((high - low) / 10, 1e-3)
        return data.X, data.y, np.array([low - margin, high + margin])
    columns = [data.feature_names.index(column) for column in RANGES]
    chosen = slice(N_SELECTION) if "first" in name else slice(N_SELECTION, None)
    return data.X[chosen, columns], data.y[chosen], np.array(list(RANGES.values()), float).T


def auc(dataset, settings, secure, epsilon, draw):
    """Return the AUC of held-out rows: three tenths, others in each draw.

    Parameters
    ----------
    dataset : str
        One of `SETS`.
    settings : str
        One of `SETTINGS`.
    secure : bool
        Whether the noise is added in shares, under secure sums.
    epsilon : float
        Infinite without noise.
    draw : int
        The seed of the split and of the noise.
    """
    X, y, bounds = rows_of(dataset)
    order = np.random.default_rng(draw).permutation(len(X))
    test, train = np.split(order, [3 * len(X) // 10])
    parts = [(X[rows], y[rows]) for rows in np.array_split(train, N_CLIENTS)]
    options = {"bounds": bounds, "method": "histogram", "tol": None, "xgboost_rules": RULES}
    options |= SETTINGS[settings]
    if np.isinf(epsilon):
        options |= {"base_score": 0.5}
    else:
        options |= {"classes": [0, 1], "epsilon": epsilon, "delta": DELTA, "secure": secure}
    with seeded_noise(draw):
        model = FederatedXGBClassifier(**options).fit(parts)
    return {"AUC": roc_auc_score(y[test], model.predict_proba(X[test])[:, 1])}


def summary(rows):
    """Return the median and the range of the draws, with a column per epsilon."""
    rows = rows[~rows["secure"] & np.isfinite(rows["epsilon"])]
    found = rows.groupby(["dataset", "settings", "epsilon"], sort=False)["AUC"]
    texts = found.agg(lambda a: f"{a.median():.2f} ({a.min():.2f} to {a.max():.2f})")
    table = texts.unstack("epsilon").rename(columns=lambda epsilon: f"epsilon {epsilon:g}")
    table = table.reset_index().rename_axis(columns=None)
    chosen = table["dataset"].map(SETS).map({True: "chosen on it", False: "not seen before"})
    table.insert(1, "the defaults were", chosen)
    return table


def medians(rows, dataset, settings):
    """Return the median AUC for each epsilon, without secure sums."""
    chosen = rows["dataset"].eq(dataset) & rows["settings"].eq(settings) & ~rows["secure"]
    return rows[chosen].groupby("epsilon")["AUC"].median()
