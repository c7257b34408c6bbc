"""Federated, pooled and local-only learning of every method, on the same data with the same score.

A problem is one data set with the measure of its source. It splits the rows (or columns) among
sites and fits a model in three ways: on the pooled data, at each site alone, and federated. What a
model is depends on the problem: the labels of all rows, a matrix of centres, a mixture, or
probabilities.
"""

import hashlib
import warnings
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import xgboost
from scipy import stats
from scipy.stats import ortho_group
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, roc_auc_score, silhouette_score
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import study
from fedlib import (
    DBDC,
    PPDBDC,
    SDBDC,
    FederatedGaussianMixture,
    FederatedKMeans,
    GaussianMixtureDBSCAN,
    HorizontalDBSCAN,
    VerticalDBSCAN,
)
from fedlib.clustering.density.engine.dbscan import cluster, dbscan, nearest_within
from fedlib.datasets.partition import split_columns, split_rows
from fedlib.evaluation.metrics import matched_accuracy
from study.boosting import boosting_study
from study.boosting.boosting_study import METHODS, federated, hold_out, original

ARI, ACCURACY, SSE = "ARI with the classes", "agreement with DBSCAN", "SSE per row"
LIKELIHOOD, SILHOUETTE, AUC = "log-likelihood per row", "silhouette", "AUC"
SIGNS = {ARI: 1, ACCURACY: 1, SSE: -1, LIKELIHOOD: 1, SILHOUETTE: 1, AUC: 1}  # -1: less is better
AS_SOURCE, REGIONS, POOLED = "as in the source", "regions", "pooled"
COMPONENTS = {"circles": 2, "moons": 2, "varied": 3, "aniso": 3, "blobs": 3, "no_structure": 3}
RADII = {"circles": 0.3, "moons": 0.3, "varied": 0.18, "aniso": 0.15, "blobs": 0.3}


class Sites(NamedTuple):
    """What each site learns from, and the rows on which models are scored."""

    parts: list  # row numbers (vertical: column numbers) of each site
    everything: np.ndarray  # the same of all sites
    scored: np.ndarray  # the rows on which the models are compared
    own: list  # each site's part of these rows


class Problem:
    """Base class: rows of one data set, split among sites."""

    deal = "uniform"  # the source's way, a `how` of `split_rows`
    hows = (AS_SOURCE, REGIONS)
    can_hold_out = False  # whether its models can be scored on rows outside the fit, if asked

    def __init__(self, data, X):
        self.name, self.data, self.X, self.y = data.name, data, X, data.y
        # Generated points have no file. Their own checksum identifies them.
        self.sha256 = data.sha256 or hashlib.sha256(np.ascontiguousarray(X)).hexdigest()

    def split(self, seed, held_out):
        """Return the rows to learn from and the rows to score: all, or four fifths and a fifth."""
        rows = np.arange(len(self.X))
        if not held_out:
            return rows, rows
        rows = np.random.default_rng(seed).permutation(rows)
        return np.sort(rows[len(rows) // 5 :]), np.sort(rows[: len(rows) // 5])

    def dealt(self, how, n_sites, seed):
        """Return the row numbers of each site."""
        if how == REGIONS:
            return split_rows(self.X @ turn(self.X.shape[1], seed), n_sites, how="spatial")
        return split_rows(self.X, n_sites, self.y, how=self.deal, random_state=seed)

    def sites(self, how, n_sites, seed, held_out=False):
        train, test = self.split(seed, held_out)
        parts = self.dealt(how, n_sites, seed)
        return Sites(
            [np.intersect1d(part, train) for part in parts],
            train,
            test,
            [np.intersect1d(part, test) for part in parts],
        )

    def score(self, name, model, rows):
        raise NotImplementedError


def turn(n_columns, seed):
    """Return a random rotation, so that the regions of two seeds differ."""
    return ortho_group.rvs(n_columns, random_state=seed) if n_columns > 1 else np.eye(1)


class Density(Problem):
    """DBSCAN of points. A model is the label of every row.

    The reference of the score is the classes (M, F) or DBSCAN on the pooled rows (P).
    """

    def __init__(self, data, X, eps, min_samples, methods, reference=ARI):
        super().__init__(data, X)
        self.eps, self.min_samples, self.methods = eps, min_samples, methods
        self.scores = (reference,)
        self.deal = "stratified" if methods == ("grid",) else "uniform"
        self.reference = dbscan(X, eps, min_samples) if reference == ACCURACY else self.y

    def min_samples_at(self, how, n_sites):
        """Return MinPts at a site: a share of it, unless the site has all rows of its region."""
        share = self.min_samples / n_sites if how == AS_SOURCE else self.min_samples
        return max(2, round(share))

    def pooled(self, rows, seed):
        return dbscan(self.X[rows], self.eps, self.min_samples)

    def alone(self, sites, i, how, seed):
        """Return the label of the nearest core point of the site within eps, of every row."""
        X = self.X[sites.parts[i]]
        labels, core = cluster(X, self.eps, self.min_samples_at(how, len(sites.parts)))
        nearest = nearest_within(self.X, X[core], np.full(core.sum(), self.eps))
        return np.append(labels[core], -1)[nearest]

    def federated(self, method, parts, how, seed):
        local = self.min_samples_at(how, len(parts))
        eps, m = self.eps, self.min_samples
        model = {
            "grid": HorizontalDBSCAN(eps, m, border="absorb", random_state=seed),
            "DBDC": DBDC(eps, local),
            "SDBDC": SDBDC(eps, round(m * 500 / 360)),
            "PPDBDC": PPDBDC(eps, m, random_state=seed),
            "mixtures of clusters": GaussianMixtureDBSCAN(
                eps, m, local_min_samples=local, random_state=seed
            ),
        }[method].fit([self.X[part] for part in parts])
        return study.in_order(parts, model.labels_)

    def score(self, name, model, rows):
        measure = matched_accuracy if name == ACCURACY else adjusted_rand_score
        return measure(self.reference[rows], model[rows])


class Columns(Density):
    """DBSCAN of rows whose columns are divided over the sites."""

    hows = (AS_SOURCE,)

    def __init__(self, data, X, eps, min_samples):
        super().__init__(data, X, eps, min_samples, ("vertical",))

    def sites(self, how, n_sites, seed, held_out=False):
        rows, columns = np.arange(len(self.X)), split_columns(self.X, 2)
        return Sites(columns, np.arange(self.X.shape[1]), rows, [rows] * 2)

    def pooled(self, columns, seed):
        return dbscan(self.X[:, columns], self.eps, self.min_samples)

    def alone(self, sites, i, how, seed):
        return self.pooled(sites.parts[i], seed)

    def federated(self, method, parts, how, seed):
        blocks = [self.X[:, columns] for columns in parts]
        return VerticalDBSCAN(self.eps, self.min_samples).fit(blocks).labels_


class Means(Problem):
    """k-means with Reidy's three clusters. A model is the matrix of the centres."""

    methods = ("k-means, one shot", "k-means, one shot, weighted", "k-means, Lloyd")
    scores = (SSE,)
    can_hold_out = True

    def __init__(self, data):
        super().__init__(data, data.X)
        self.groups = data.groups

    def dealt(self, how, n_sites, seed):
        names = list(dict.fromkeys(self.groups.tolist()))
        if how == REGIONS:
            return super().dealt(how, len(names), seed)
        return [np.flatnonzero(self.groups == name) for name in names]

    def pooled(self, rows, seed):
        return KMeans(3, n_init=10, random_state=seed).fit(self.X[rows]).cluster_centers_

    def alone(self, sites, i, how, seed):
        return self.pooled(sites.parts[i], seed)

    def federated(self, method, parts, how, seed):
        options = {
            "k-means, one shot": {"method": "one_shot"},
            "k-means, one shot, weighted": {
                "method": "one_shot",
                "weighted": True,
                "update_fraction": 0.0,
            },
            "k-means, Lloyd": {"method": "lloyd"},
        }[method]
        model = FederatedKMeans(3, random_state=seed, **options)
        return model.fit([self.X[part] for part in parts]).cluster_centers_

    def score(self, name, model, rows):
        squares = np.square(self.X[rows][:, None] - model[None]).sum(axis=2)
        return squares.min(axis=1).mean() if len(rows) else np.nan


class Mixtures(Problem):
    """A Gaussian mixture. A model is scikit-learn's."""

    methods = ("mixture, average", "mixture, em")
    scores = (LIKELIHOOD, SILHOUETTE)
    can_hold_out = True

    def pooled(self, rows, seed):
        model = GaussianMixture(COMPONENTS[self.name], random_state=seed)
        return converged_or_not(model.fit, self.X[rows])

    def alone(self, sites, i, how, seed):
        return self.pooled(sites.parts[i], seed)

    def federated(self, method, parts, how, seed):
        method, k = method.removeprefix("mixture, "), COMPONENTS[self.name]
        model = FederatedGaussianMixture(k, method, max_rounds=30, random_state=seed)
        return converged_or_not(model.fit, [self.X[part] for part in parts]).to_sklearn()

    def score(self, name, model, rows):
        if name == LIKELIHOOD:
            return model.score(self.X[rows])
        labels = model.predict(self.X[rows])
        # Points in one cluster have the silhouette 0, as have points that are a cluster each.
        return silhouette_score(self.X[rows], labels) if len(np.unique(labels)) > 1 else 0.0


class Boosting(Problem):
    """Boosted trees for two classes. A model is the probability of the second, for every row."""

    deal = "stratified"
    methods = tuple(f"XGBoost, {method}" for method in METHODS)
    scores = (AUC,)

    def __init__(self, data):
        super().__init__(data, data.X)
        self.scaled = StandardScaler().fit_transform(data.X)

    def split(self, seed, held_out):
        return hold_out(self.y, seed)

    def dealt(self, how, n_sites, seed):
        if how == REGIONS:
            turned = self.scaled @ turn(self.X.shape[1], seed)
            return split_rows(turned, n_sites, how="spatial")
        return super().dealt(how, n_sites, seed)

    def pooled(self, rows, seed):
        y = self.y[rows]
        if len(np.unique(y)) < 2:  # a site with one class predicts it for all
            return np.full(len(self.X), float(y[0]))
        return original(self.X[rows], y).predict(xgboost.DMatrix(self.X))

    def alone(self, sites, i, how, seed):
        return self.pooled(sites.parts[i], seed)

    def federated(self, method, parts, how, seed):
        model = federated(method.removeprefix("XGBoost, "))
        model.fit([(self.X[part], self.y[part]) for part in parts])
        return model.predict_proba(self.X)[:, 1]

    def score(self, name, model, rows):
        both = len(np.unique(self.y[rows])) == 2
        return roc_auc_score(self.y[rows], model[rows]) if both else np.nan


def converged_or_not(fit, X):
    """Return the fitted model; hide the warning of a run that ended before it converged."""
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return fit(X)


def problems():
    """Yield the problems of the book."""
    for name, make in _problems():
        yield make(study.fetch(name))


def _problems():
    """Yield the name of the data set of each problem, and the function that makes it."""
    p_methods = ("DBDC", "SDBDC", "PPDBDC")
    for name, eps, m in (("banana", 0.03, 4), ("s-set1", 0.03, 15)):
        yield name, partial(_unit_square, Density, eps=eps, min_samples=m, methods=("grid",))
    for name, eps, m in (("aggregation", 0.04, 6), ("3MC", 0.1, 4)):
        yield name, partial(_unit_square, Columns, eps=eps, min_samples=m)
    for eps, m in ((5.0, 360), (1.7, 30)):
        yield "shapes_13147", partial(_first_set_of_p, eps=eps, min_samples=m, methods=p_methods)
    for name, eps in RADII.items():
        methods = ("mixtures of clusters",)
        yield name, partial(_as_it_is, Density, eps=eps, min_samples=5, methods=methods)
    yield "dim_reduced_2d", Means
    for name in COMPONENTS:
        yield name, partial(_as_it_is, Mixtures)
    for name in ("breast_cancer", "diabetes", "heart"):
        yield name, Boosting


def _as_it_is(kind, data, **options):
    return kind(data, data.X, **options)


def _unit_square(kind, data, **options):
    return kind(data, MinMaxScaler().fit_transform(data.X), **options)


def _first_set_of_p(data, min_samples, **options):
    problem = Density(data, data.X, min_samples=min_samples, reference=ACCURACY, **options)
    problem.name += f", MinPts {min_samples}"  # the set is used twice
    return problem


# From runs to intervals


def reached(problem, score, sites, alone, federated, one_site, pooled):
    """Return what all ways of learning reach on the same rows.

    Parameters
    ----------
    problem : Problem
    score : str
    sites : Sites
    alone : list of model
        One per site.
    federated, one_site, pooled : model
        Of all sites, of the protocol with all rows at one site, of the usual program.
    """
    local = [problem.score(score, model, sites.scored) for model in alone]
    own = np.array(
        [
            [problem.score(score, model, rows), problem.score(score, federated, rows)]
            for model, rows in zip(alone, sites.own, strict=True)
        ]
    )
    gains = SIGNS[score] * (own[:, 1] - own[:, 0])
    return {
        "local": np.mean(local),
        "worst site": min(local, key=lambda value: SIGNS[score] * value),
        "best site": max(local, key=lambda value: SIGNS[score] * value),
        "federated": problem.score(score, federated, sites.scored),
        "one site": problem.score(score, one_site, sites.scored),
        "pooled": problem.score(score, pooled, sites.scored),
        "own local": np.nanmean(own[:, 0]),
        "own federated": np.nanmean(own[:, 1]),
        "sites that gain": (gains[~np.isnan(gains)] > 0).mean(),
    }


EACH = ["method", "score", "partition"]
GAINS = {"gain": ("federated", "local"), "own gain": ("own federated", "own local")}


def summarise(runs, sets):
    """Return means over the seeds and the loss with its interval.

    Parameters
    ----------
    runs : DataFrame
        One row per method, score, partition, data set, seed and whether rows were held out.
    sets : mapping of str to str
        The checksum of each data set.

    Returns
    -------
    DataFrame
        One row per method, score, partition and data set, and one with the data set ``all``: the
        mean over the sets, seed by seed. ``loss`` is positive if the pooled model is better,
        ``gain`` and ``own gain`` if the federated model is better than the local ones; ``low`` and
        ``high`` are the 95 % interval of their means over the seeds (Student's t). ``delta`` is
        the largest absolute loss of a run.
    """
    sign = runs["score"].map(SIGNS)
    runs = runs.assign(loss=sign * (runs["pooled"] - runs["federated"]))
    runs = runs.assign(
        single_loss=sign * (runs["pooled"] - runs["one site"]), delta=runs["loss"].abs()
    )
    for name, (after, before) in GAINS.items():
        runs[name] = sign * (runs[after] - runs[before])
    # A site's own rows: those held out from the fit, if the problem can hold rows out.
    fresh = runs[runs["held out"]].set_index([*EACH, "dataset", "seed"])
    runs = runs[~runs["held out"]].set_index([*EACH, "dataset", "seed"])
    own = ["own local", "own federated", "own gain", "sites that gain"]
    runs.loc[fresh.index, own] = fresh[own]
    runs = runs.drop(columns="held out")
    tables = []
    for by, frame in (
        ([*EACH, "dataset"], runs),
        (EACH, runs.groupby([*EACH, "seed"], sort=False).mean()),
    ):
        groups = frame.groupby(by, sort=False)
        table = groups.mean().assign(delta=runs.groupby(by, sort=False)["delta"].max())
        table["seeds"] = groups["loss"].count()
        for name in ("loss", *GAINS):
            margin = stats.t.ppf(0.975, groups[name].count() - 1) * groups[name].sem()
            table[f"{name} low"], table[f"{name} high"] = table[name] - margin, table[name] + margin
        tables.append(table.reset_index())
    tables[1]["dataset"] = "all"
    summary = pd.concat(tables, ignore_index=True)
    used = runs.reset_index().groupby("method")["dataset"].unique()
    checksum = [
        " ".join(sets[name] for name in (used[method] if dataset == "all" else [dataset]))
        for method, dataset in zip(summary["method"], summary["dataset"], strict=True)
    ]
    return summary.assign(sha256=checksum, versions=boosting_study.VERSIONS)
