"""One task solved in several ways: the tasks, XGBoost next to `fedlib`, and paired differences."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xgboost
from scipy import stats
from sklearn.datasets import load_diabetes, load_digits
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error, roc_auc_score
from sklearn.model_selection import train_test_split

import study
from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.boosting.rules import rules_of
from fedlib.datasets.partition import split_rows

BUNDLED = {"digits": load_digits, "progression": load_diabetes}  # part of scikit-learn
WAYS = ("pooled rows", "federated", "bagging", "cyclic", "alone")
LOWER_IS_BETTER = ("RMSE", "log-loss")


class Task(NamedTuple):
    """Rows, what to predict, and the XGBoost objective."""

    name: str
    objective: str
    X: Any
    y: Any

    @property
    def options(self):
        """The options of XGBoost."""
        n_classes = len(np.unique(self.y)) if self.objective == "multi:softprob" else None
        of_classes = {} if n_classes is None else {"num_class": n_classes}
        return {"objective": self.objective, "tree_method": "hist", "nthread": 1, **of_classes}


def load_task(name, max_rows):
    """Return a task with at most ``max_rows`` rows."""
    if name in BUNDLED:
        X, y = BUNDLED[name](return_X_y=True)
        objective = "reg:squarederror" if name == "progression" else "multi:softprob"
    else:
        data = study.fetch(name)
        X, y, objective = data.X, (data.y == data.y.max()).astype(int), "binary:logistic"
    rows = np.random.default_rng(0).permutation(len(y))[:max_rows]
    return Task(name, objective, X[rows].astype(np.float32), y[rows])


class Split(NamedTuple):
    """The parts of the clients, the pooled rows and the test rows."""

    parts: list
    X: Any
    y: Any
    X_test: Any
    y_test: Any


def split(task, n_clients, seed):
    """Return a random third of the rows for the test, the others divided at random."""
    classes = None if task.objective == "reg:squarederror" else task.y
    X, X_test, y, y_test = train_test_split(
        task.X, task.y, test_size=1 / 3, random_state=seed, stratify=classes
    )
    chosen = split_rows(X, n_clients, how="uniform", random_state=seed)
    return Split([(X[rows], y[rows]) for rows in chosen], X, y, X_test, y_test)


def federated(task, **parameters):
    """Return the estimator of this package, with the rules of the installed XGBoost."""
    parameters |= {"xgboost_rules": rules_of()}
    if task.objective == "reg:squarederror":
        return FederatedXGBRegressor(**parameters)
    shared = {"objective": task.objective, "method": "histogram", "tol": None}
    return FederatedXGBClassifier(**shared, **parameters)


def predict(booster, X):
    """Return the predictions of one thread: for few rows, several wait for each other."""
    booster.set_param({"nthread": 1})
    return booster.predict(xgboost.DMatrix(X, nthread=1))


def train(task, X, y, n_rounds, **options):
    """Return XGBoost's model of rows."""
    return xgboost.train(task.options | options, xgboost.DMatrix(X, y, nthread=1), n_rounds)


def scores(task, y, predicted):
    """Return the scores of predictions: numbers, or probabilities of classes."""
    if task.objective == "reg:squarederror":
        return {"RMSE": mean_squared_error(y, predicted) ** 0.5}
    if task.objective == "binary:logistic":
        return {"AUC": roc_auc_score(y, predicted)}
    p = np.asarray(predicted, np.float64)
    p = p / p.sum(axis=1, keepdims=True)
    return {"accuracy": accuracy_score(y, p.argmax(axis=1)), "log-loss": log_loss(y, p)}


def rows_of(task, split, seed, ways):
    """Return the scores on the test rows and the costs, one row per metric and way.

    Parameters
    ----------
    task : Task
    split : Split
        Number `seed`.
    seed : int
    ways : mapping of way to (boosters, seconds, bytes, exchanges)
        The scores are the means over the boosters.
    """
    rows = []
    for way, (boosters, seconds, n_bytes, exchanges) in ways.items():
        every = [scores(task, split.y_test, predict(one, split.X_test)) for one in boosters]
        cost = {"seconds": seconds, "bytes": n_bytes, "exchanges": exchanges}
        for metric, score in pd.DataFrame(every).mean().items():
            row = {"set": task.name, "split": seed, "way": way, "metric": metric}
            rows.append(row | cost | {"score": score})
    return rows


def pooled_bytes(split):
    """Return the bytes of the pooled training rows."""
    return split.X.nbytes + 4 * len(split.y)


def bytes_per_tree(booster, ledger):
    """Return the bytes of histograms per tree that all clients send."""
    frame = ledger.to_frame()
    sent = frame["message"].str.endswith("Histograms") & (frame["sender"] != "server")
    return frame.loc[sent, "bytes"].sum() / len(booster.get_dump())


def differences(runs, reference="pooled rows"):
    """Return the mean of each way, and its paired difference from the reference.

    A difference is positive if the way is better. Its interval is that of Student's t for the mean
    over the splits, with a confidence of 95 %.
    """
    rows = []
    for (name, metric), of_task in runs.groupby(["set", "metric"], sort=False):
        table = of_task.pivot(index="split", columns="way", values="score")
        sign = -1 if metric in LOWER_IS_BETTER else 1
        for way in WAYS:
            paired = sign * (table[way] - table[reference])
            n = len(paired)
            half = stats.t.ppf(0.975, n - 1) * paired.std(ddof=1) / n**0.5 if n > 1 else np.nan
            found = {"score": table[way].mean(), "difference": paired.mean(), "half": half}
            rows.append({"set": name, "metric": metric, "way": way, **found})
    return pd.DataFrame(rows)


def site_of_rows(values, n_sites):
    """Return the site (n_rows,) of each row: groups of similar values, of about equal size.

    Equal values are at the same site.
    """
    edges = np.quantile(values, np.linspace(0, 1, n_sites + 1)[1:-1])
    return np.searchsorted(edges, values)


def row_losses(y, probabilities):
    """Return the log-loss (n_rows,) of each row; ``probabilities`` are those of class 1."""
    p = np.clip(np.asarray(probabilities, np.float64), 1e-15, 1 - 1e-15)
    return -np.log(np.where(y == 1, p, 1 - p))


def cross_validated(task, site, fit, n_folds, seed=0):
    """Return the probability (n_rows,) of each row by models that have not seen it.

    Parameters
    ----------
    task : Task
        With two classes.
    site : array (n_rows,) of int
        The site of each row. Each site assigns its own rows to folds, at random.
    fit : callable (parts) -> list of boosters
        The model of each site, from the training rows of all sites.
    n_folds : int
    seed : int, default=0
    """
    random, found = np.random.default_rng(seed), np.full(len(task.y), np.nan)
    n_sites = site.max() + 1
    fold = np.empty(len(task.y), int)
    for s in range(n_sites):
        (rows,) = np.nonzero(site == s)
        fold[rows] = random.permutation(np.arange(len(rows)) % n_folds)
    for k in range(n_folds):
        trains = [(site == s) & (fold != k) for s in range(n_sites)]
        boosters = fit([(task.X[rows], task.y[rows]) for rows in trains])
        for s, booster in enumerate(boosters):
            rows = (site == s) & (fold == k)
            found[rows] = predict(booster, task.X[rows])
    return found


def gains_of_sites(y, site, own, common):
    """Return what each site can learn from its own rows about a common model.

    The gain is the mean of the rows' log-loss by the site's own model minus that by the common one,
    with the 95 % interval of Student's t over the rows. The verdict is ``"common"`` or ``"own"`` if
    the interval is on one side of 0, and else ``"cannot tell"``.
    """
    rows = []
    for s in np.unique(site):
        at = site == s
        before, after = row_losses(y[at], own[at]), row_losses(y[at], common[at])
        gain = before - after
        half = stats.t.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / len(gain) ** 0.5
        verdict = (
            "common" if gain.mean() > half else "own" if gain.mean() < -half else "cannot tell"
        )
        found = {"own model": before.mean(), "common model": after.mean(), "gain": gain.mean()}
        counts = {"site": int(s) + 1, "rows": int(at.sum()), "class 1": y[at].mean()}
        rows.append({**counts, **found, "half": half, "verdict": verdict})
    return pd.DataFrame(rows)
