"""Federated, pooled and local-only learning of every method, on the same data with the same score.

A problem is one data set with the measure of its source. It deals the rows (or columns) to sites
and fits a model in three ways: on the pooled data, at each site alone, and federated. What a model
is depends on the problem: the labels of all rows, a matrix of centres, a mixture, or probabilities.
"""

import hashlib
import warnings
from functools import partial
from typing import NamedTuple

import boosting_study
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import study
import xgboost
from boosting_study import METHODS, federated, hold_out, original
from matplotlib.ticker import MaxNLocator
from scipy import stats
from scipy.stats import ortho_group
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, roc_auc_score, silhouette_score
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from fedlib import (
    DBDC,
    PPDBDC,
    SDBDC,
    FederatedGaussianMixture,
    FederatedKMeans,
    GaussianMixtureDBSCAN,
    HorizontalDBSCAN,
    VerticalDBSCAN,
    plots,
)
from fedlib.dbscan import cluster, dbscan, nearest_within
from fedlib.metrics import matched_accuracy
from fedlib.partition import split_columns, split_rows

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
    """Base class: rows of one data set, dealt to sites."""

    deal = "uniform"  # the source's way, a `how` of `split_rows`
    hows = (AS_SOURCE, REGIONS)
    can_hold_out = False  # whether its models can be scored on rows outside the fit, if asked

    def __init__(self, data, X):
        self.name, self.X, self.y = data.name, X, data.y
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
        labels = np.empty(len(self.X), int)
        labels[np.concatenate(parts)] = np.concatenate(model.labels_)
        return labels

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
    """k-means with K's three clusters. A model is the matrix of the centres."""

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
            "k-means, one shot": {},
            "k-means, one shot, weighted": {"weighted": True, "update_fraction": 0.0},
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


def problems(names=None):
    """Yield the problems of the book, or those on the data sets with the given names."""
    for name, make in _problems():
        if names is None or name in names:
            yield make(study.datasets.load(name))


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


def of_all(summary):
    """Return the rows of the means over the data sets, in the order of the scores."""
    rows = summary[summary["dataset"] == "all"]
    order = rows["score"].map(list(SIGNS).index)
    return rows.iloc[np.argsort(order, kind="stable")]


def interval(rows, name):
    """Return a mean with the 95 % interval of the mean as text; without it for a single run."""
    return [
        _number(mean)
        if np.isnan(low) or high - low < 1e-9
        else f"{_number(mean)} ({_number(low)} to {_number(high)})"
        for mean, low, high in rows[[name, f"{name} low", f"{name} high"]].to_numpy()
    ]


def loss_table(summary):
    """Return the loss and delta of every method, for both partitions."""
    rows = of_all(summary)
    table = rows[["method", "score", "partition"]].assign(
        loss=interval(rows, "loss"), δ=[f"{delta:.3f}" for delta in rows["delta"]]
    )
    table["of one site"] = [_number(loss) for loss in rows["single_loss"]]
    wide = table.pivot(index=["score", "method"], columns="partition")
    wide = wide.reorder_levels([1, 0], axis=1)
    columns = [(AS_SOURCE, name) for name in ("of one site", "loss", "δ")]
    columns += [(REGIONS, name) for name in ("loss", "δ")]
    keys = table[["score", "method"]].drop_duplicates()
    return _styled(wide, keys, columns)


def _styled(wide, keys, columns):
    """Return the rows ``keys`` of a table with two lines of column names, for the book."""
    columns = [column for column in columns if column in wide]
    table = wide.loc[list(keys.itertuples(index=False, name=None)), columns]
    table = table.rename_axis(columns=[None, None])
    return table.style.format(na_rep="").set_table_attributes('class="dataframe"')


def set_table(summary):
    """Return all means of every method on every data set."""
    shown = ["method", "dataset", "partition", "score", "worst site", "local", "best site"]
    shown += ["one site", "federated", "pooled", "loss", "delta"]
    return study.table(summary.loc[summary["dataset"] != "all", shown], precision=3)


def own_table(summary):
    """Return how much a site gains on its own rows, for both partitions."""
    rows = of_all(summary)
    rows = rows[rows["score"] != SILHOUETTE]  # of too few rows to mean much
    table = rows[["method", "score", "partition"]].assign(
        gain=interval(rows, "own gain"),
        sites=[f"{share:.0%}" for share in rows["sites that gain"]],
    )
    table = table.rename(columns={"sites": "sites that gain"})
    wide = table.pivot(index=["score", "method"], columns="partition")
    wide = wide.reorder_levels([1, 0], axis=1)
    names = ("gain", "sites that gain")
    columns = [(how, name) for how in (AS_SOURCE, REGIONS) for name in names]
    keys = table[["score", "method"]].drop_duplicates()
    return _styled(wide, keys, columns)


def answer(summary, small=0.005):
    """Return the answer in sentences, as Markdown; a mean loss up to ``small`` is small."""
    rows = of_all(summary)
    rows = rows[rows["score"] != SILHOUETTE]
    loss = rows.pivot(index="method", columns="partition", values="loss")
    loss = loss.loc[rows["method"].drop_duplicates()]
    unit = rows.drop_duplicates("method").set_index("method")["score"]
    percent = 100 * loss.div(rows.drop_duplicates("method").set_index("method")["pooled"], axis=0)
    for method in unit.index[unit == SSE]:
        share = " / ".join(f"{value:.0f} %" for value in percent.loc[method])
        unit[method] += f": {share} of the pooled SSE"
    at_source, by_region = loss[AS_SOURCE] <= small, loss[REGIONS].fillna(0) <= small
    groups = {
        "**Small for both partitions**": at_source & by_region,
        "**Small as in the source, but not for regions**": at_source & ~by_region,
        "**Small for regions, but not as in the source**": ~at_source & by_region,
        "**Not small for either**": ~at_source & ~by_region,
    }
    lines = [f"- A mean loss of at most {small} of the score is called small here."]
    for title, members in groups.items():
        named = [
            f"{method} ({' / '.join(map(_number, loss.loc[method].dropna()))}, {unit[method]})"
            for method in loss.index[members]
        ]
        lines.append(f"- {title}: {_listed(named)}.")
    same = (rows["federated"] - rows["one site"]).abs() < 5e-4
    same = same.groupby(rows["method"], sort=False).all()
    lines.append(
        "- **The division of the data costs nothing**, to three digits and in both partitions, for "
        f"{_listed(same.index[same])}: one site that has all data reaches the same."
    )
    for name, what in (("gain", "on all rows"), ("own gain", "on its own rows")):
        lines.append(f"- **Against a site alone, {what}**, {_compared(rows, name)}")
    return "\n".join(lines)


def _compared(rows, name):
    """Return in how many cases a gain is above 0 by the interval of its mean, and the others."""
    low, high = (rows[f"{name} {side}"].fillna(rows[name]) for side in ("low", "high"))
    cases = rows["method"] + " (" + rows["partition"] + ")"
    sentences = [
        f"the federation is ahead in {(low > 0).sum()} of {len(rows)} cases (a method and a "
        "partition), by the interval of the mean."
    ]
    others = {"It is behind": high < 0, "There is no clear difference": (low <= 0) & (high >= 0)}
    for sentence, members in others.items():
        if members.any():
            sentences.append(f"{sentence} in {members.sum()}: {_listed(cases[members])}.")
    return " ".join(sentences)


def _number(value):
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "−")


def _listed(names):
    return "; ".join(names) if len(names) else "none"


# Figures

SITES = ("#3f90da", "#ffa90e")
GREY = "#717581"


def settings_plot(owned, people, features):
    """Draw which cells of a table each of two sites owns, one panel per setting."""
    _, axes = study.panels(len(owned), width=3.1, height=3.2, sharey=True)
    for ax, (setting, sites) in zip(axes, owned.items(), strict=True):
        for i, (samples, columns) in enumerate(sites):
            rows, places = np.searchsorted(people, samples), [features.index(c) for c in columns]
            low, left = rows.min() + 0.04 + 0.06 * i, min(places) + 0.04 + 0.06 * i
            ax.add_patch(
                plt.Rectangle(
                    (left, low),
                    len(places) - 0.14,
                    len(rows) - 0.14,
                    facecolor=SITES[i],
                    edgecolor=SITES[i],
                    alpha=0.45,
                    linewidth=2,
                )
            )
            middle = left + len(places) / 2, low + len(rows) / 2
            ax.text(*middle, f"site {i + 1}", ha="center", va="center", weight="bold")
        ax.set(xlim=(0, len(features)), ylim=(len(people), 0), title=setting)
        ax.set_xticks(np.arange(len(features)) + 0.5, features, rotation=45, ha="right")
        ax.set_yticks(np.arange(len(people)) + 0.5, people)
        ax.tick_params(length=0)
        for x in range(len(features) + 1):
            ax.axvline(x, color="0.8", lw=0.6, zorder=0)
        for y in range(len(people) + 1):
            ax.axhline(y, color="0.8", lw=0.6, zorder=0)
    axes[0].set_ylabel("person (sample)")


def flower_round():
    """Draw one round of Flower: F's Figure 1.1."""
    _, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
    plots.calls(
        ax,
        ["strategy", "Flower's server", "each chosen client"],
        [
            (0, 1, "configure_fit: whom to ask, and what"),
            (1, 2, "fit instructions: parameters"),
            (2, 1, "fit response: updated parameters"),
            (1, 0, "aggregate_fit: the new model"),
            (0, 1, "configure_evaluate"),
            (1, 2, "evaluate instructions: the new model"),
            (2, 1, "evaluate response: its score"),
            (1, 0, "aggregate_evaluate: the score"),
        ],
        "one round of Flower; the number of rounds is fixed",
    )
    for text in ax.texts:
        text.set_fontsize(9.5)


def rounds_plot(curves, sums):
    """Draw the distance to the pooled solution after each round, one curve per rule."""
    _, ax = plt.subplots(figsize=(8, 3.8), layout="constrained")
    colours = ("#717581", "#bd1f01", "#b35900", "#832db6")
    n_rounds = max(map(len, curves.values()))
    floor = 10 ** np.floor(np.log10(min(map(min, curves.values()))))
    ends = np.array([np.log10(distance[-1]) for distance in curves.values()])
    places, place = np.empty(len(ends)), -np.inf
    for i in np.argsort(ends):  # labels at least a little apart
        places[i] = place = max(ends[i], place + 0.35)
    for (name, distance), colour, place in zip(curves.items(), colours, places, strict=True):
        ax.semilogy(np.arange(1, len(distance) + 1), distance, color=colour, lw=1.8)
        ax.text(1.02 * n_rounds, 10**place, name, color=colour, va="center")
    ax.plot(1, 1.3 * floor, "v", color=SITES[0], ms=8)
    ax.text(
        0.03 * n_rounds,
        1.3 * floor,
        f"sums: {sums:.0e} after 1 round",
        color="#1f5c99",
        va="center",
    )
    ax.set(xlabel="round", ylabel="distance to the pooled solution", ylim=(floor, None))
    ax.set_xlim(0, 1.4 * n_rounds)
    ax.set_xticks(range(0, n_rounds + 1, n_rounds // 5))
    ax.spines["bottom"].set_bounds(0, n_rounds)
    ax.xaxis.set_label_coords(0.36, -0.12)


def comparison_plot(summary):
    """Draw local, federated and pooled learning: one row per method, one column per partition."""
    rows = of_all(summary)
    groups = list(rows.groupby("score", sort=False))
    heights = [group["method"].nunique() + 0.6 for _, group in groups]
    figure, axes = plt.subplots(
        len(groups),
        2,
        figsize=(9.5, 0.42 * sum(heights) + 0.45 * len(groups)),
        layout="constrained",
        height_ratios=heights,
        sharey="row",
    )
    for line, (score, group) in zip(axes, groups, strict=True):
        methods = list(group["method"].unique())
        for ax, how in zip(line, (AS_SOURCE, REGIONS), strict=True):
            shown = group[group["partition"] == how].set_index("method").reindex(methods)
            _compare(ax, shown, SIGNS[score])
            ax.set_xlabel(score + (" (less is better)" if SIGNS[score] < 0 else ""))
        line[0].set_yticks(range(len(methods)), methods)
        line[0].set_ylim(len(methods) - 0.45, -0.55)
    for ax, how in zip(axes[0], (AS_SOURCE, REGIONS), strict=True):
        ax.set_title(f"partition: {how}")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4)


def _compare(ax, rows, sign):
    """Draw the rows of one panel; a local result that is far off is written at the edge."""
    y = np.arange(len(rows))
    near = rows[["federated", "pooled", "one site"]].to_numpy()
    ends = rows[["worst site", "best site"]].to_numpy()
    near_low, near_high = np.nanmin(near), np.nanmax(near)
    width = max(near_high - near_low, 1e-3)
    everything = np.r_[near.ravel(), ends.ravel()]
    low, high = np.nanmin(everything), np.nanmax(everything)
    clipped = sign > 0 and near_low - low > 6 * width and width > 1
    if clipped:
        low = near_low - 1.2 * width
    ax.hlines(y, *ends.T, color=GREY, lw=5, alpha=0.3, label="sites alone: worst to best")
    ax.plot(rows["local"], y, "o", mfc="white", mec=GREY, mew=1.6, ms=8, label="sites alone: mean")
    ax.plot(rows["pooled"], y, "|", color="black", ms=17, mew=2.2, label="pooled")
    ax.plot(rows["federated"], y, "o", color=SITES[0], ms=7.5, label="federated", zorder=4)
    margin = 0.04 * (high - low)
    ax.set_xlim((low - margin, high + margin)[::sign])
    for place, (_, row) in zip(y, rows.iterrows(), strict=True):
        if np.isnan(row["pooled"]):
            ax.text(
                0.5,
                place,
                "sites hold columns: no regions",
                va="center",
                ha="center",
                transform=ax.get_yaxis_transform(),
                color=GREY,
            )
        elif clipped and row["local"] < low:
            text = f"← mean {row['local']:.0f}, worst {row['worst site']:.0f}".replace("-", "−")
            ax.text(
                0.02,
                place - 0.33,
                text,
                transform=ax.get_yaxis_transform(),
                color="0.35",
                va="center",
            )
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", lw=0.3)
