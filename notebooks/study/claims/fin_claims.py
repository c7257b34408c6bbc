"""F's claims in words, tested by kept results, by small measurements and by F's own numbers."""

from dataclasses import fields, is_dataclass

import numpy as np
import pandas as pd
import xgboost
from scipy.special import expit
from sklearn.metrics import adjusted_rand_score, silhouette_score
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

import study
from fedlib import FederatedGaussianMixture, GaussianMixtureDBSCAN
from fedlib.clustering.density.engine.dbscan import dbscan
from fedlib.clustering.mixtures.dbscan import ClusterMixtures, draw_points
from fedlib.clustering.mixtures.em import fit_mixture
from fedlib.datasets.partition import split_rows
from fedlib.evaluation.metrics import matched_accuracy
from fedlib.testing import Recorder
from study.boosting import boosting_study
from study.boosting.boosting_study import METHODS, ORIGINAL
from study.claims import claims

F_METHOD = METHODS[0]  # it chooses splits as F does
MEASURES = {"accuracy": "accuracy", "AUC": "AUC", "sensitivity": "sensitivity"}
MEASURES |= {"NPV": "specificity"}  # the title of F's column
NEGATIVE = "F's column of specificities holds the negative predictive value (NPV)"
SIMILAR = "0.01 was taken for very similar"
MIXTURES = {"circles": 2, "moons": 2, "varied": 3, "aniso": 3, "blobs": 3, "no_structure": 3}
RADII = {"circles": 0.3, "moons": 0.3, "varied": 0.18, "aniso": 0.15, "blobs": 0.3}
RADII |= {"no_structure": 0.3}


def printed_numbers(table):
    """Return a table of Vasilopoulou as numbers, indexed by the columns that name them."""
    rows = study.published(source="F", table=table)
    index = [rows[column] for column in ("dataset", "condition", "run", "metric")]
    return pd.Series(rows["published"].astype(float).to_numpy(), index)


def at(numbers, **levels):
    """Return the printed numbers with these values of the index, without these levels."""
    return numbers.xs(tuple(levels.values()), level=tuple(levels))


class Boosting:
    """The claims on federated XGBoost.

    Parameters
    ----------
    clients, change, volume, imbalance, loss : DataFrame
        The results ``xgboost_clients``, ``xgboost_clients_change``, ``xgboost_volume``,
        ``xgboost_imbalance`` and ``xgboost_imbalance_change``.
    checksums : mapping of str to str
        Of the data sets whose results have none, because they come with a library.
    """

    def __init__(self, clients, change, volume, imbalance, loss, checksums):
        self.checksums = checksums
        self.clients, self.change = clients, change
        self.volume, self.imbalance, self.loss = volume, imbalance, loss
        self.rows = []

    def judge_all(self):
        """Return one row per test."""
        self._breast_cancer()
        self._two_clients()
        self._volume()
        self._imbalance()
        self._similar()
        return pd.DataFrame(self.rows)

    def _add(self, number, values, limit, *names, note="", frame=None, printed=False):
        sha256 = "" if printed else frame["sha256"].iloc[0] or self.checksums[names[0]]
        row = claims.judge(values, limit, "F", number, *names, note, sha256, printed)
        self.rows.append(row)

    def _splits(self, number, change, dataset, condition, metric, rises):
        """Test on every split whether a score rises or falls from one method to the other."""
        rows = self.change
        rows = rows[(rows["change"] == change) & (rows["dataset"] == dataset)]
        [row] = rows[(rows["condition"] == condition) & (rows["metric"] == metric)].itertuples()
        falls = round(row.fall * row.splits)
        agreeing = row.splits - falls if rises else falls
        self.rows.append(
            claims.judge_counts(
                agreeing,
                row.splits,
                (row.mean, row.low, row.high),
                "at least 0" if rises else "below 0",
                "F",
                number,
                dataset,
                F_METHOD,
                f"{condition}, {metric}, {change.split(', ')[1]} clients",
                "change on the same split; one client is XGBoost",
                row.sha256 or self.checksums[dataset],
            )
        )

    def _breast_cancer(self):
        name, numbers = "breast_cancer", printed_numbers("3.3")
        for condition in ("validation", "test"):
            for metric in MEASURES:
                self._splits(3, f"{F_METHOD}, 2 to 10", name, condition, metric, False)
                for n in (2, 10):
                    self._splits(4, f"{F_METHOD}, 1 to {n}", name, condition, metric, False)
        few, many, alone = (at(numbers, run=run) for run in ("2 clients", "10 clients", ""))
        names = name, "", "2 to 10 clients"
        self._add(3, (many - few).droplevel("dataset"), "below 0", *names, printed=True)
        steps = numbers.drop(index="", level="run").unstack("run")
        order = sorted(steps.columns, key=lambda run: int(run.split()[0]))
        steps = steps[order].diff(axis=1).iloc[:, 1:].stack().droplevel("dataset")
        names = name, "", "each step from 2 to 10 clients"
        self._add(3, steps, "below 0", *names, printed=True)
        for run, values in (("2 clients", few), ("10 clients", many)):
            below = (values - alone).droplevel("dataset")
            self._add(4, below, "below 0", name, "", f"{run} less original", printed=True)

    def _two_clients(self):
        for name, table in (("diabetes", "3.4"), ("heart", "3.5")):
            numbers = printed_numbers(table)
            two = at(numbers, run="2 clients") - at(numbers, run="")
            for metric, title in MEASURES.items():
                better = name == "heart" and metric in ("sensitivity", "NPV")
                self._splits(5, f"{F_METHOD}, 1 to 2", name, "validation", metric, True)
                self._splits(6, f"{F_METHOD}, 1 to 2", name, "test", metric, better)
                for number, condition in ((5, "validation"), (6, "test")):
                    rises = better or condition == "validation"
                    value = [two[name, condition, title]]
                    limit = "at least 0" if rises else "below 0"
                    names = name, "", f"{condition}, {title}"
                    self._add(number, value, limit, *names, printed=True)

    def _means(self, frame, method, n, metrics):
        """Return the means of one method, one row per condition and one column per metric."""
        rows = frame[(frame["method"] == method) & (frame["n_clients"] == n)]
        wide = rows.pivot(index="condition", columns="metric", values="mean")
        return wide.loc[list(dict.fromkeys(rows["condition"])), list(metrics)]

    def _volume(self):
        frame, numbers = self.volume, printed_numbers("3.6").droplevel("dataset")
        metrics = [metric for metric in MEASURES if metric != "accuracy"]
        original = self._means(frame, ORIGINAL, 1, metrics)
        for method, n, run in (
            (ORIGINAL, 1, ""),
            (F_METHOD, 2, "2 clients"),
            (F_METHOD, 5, "5 clients"),
        ):
            means = self._means(frame, method, n, metrics)
            names = "smoking", method, f"AUC, {run or 'original'}"
            note = "means over splits; from one size to the next"
            self._add(7, means["AUC"].diff().dropna(), "above 0", *names, note=note, frame=frame)
            own = at(numbers, run=run).unstack("metric").loc[means.index]
            self._add(7, own["AUC"].diff().dropna(), "above 0", *names, printed=True)
            if not run:
                alone = own
                continue
            names = "smoking", method, run
            note = f"mean less XGBoost's; {SIMILAR}"
            apart = (means - original).stack()
            self._add(8, apart, "-0.01 to 0.01", *names, note=note, frame=frame)
            apart = (own - alone).stack()
            self._add(8, apart, "-0.01 to 0.01", *names, note=SIMILAR, printed=True)

    def _imbalance(self):
        frame, numbers = self.imbalance, printed_numbers("3.7").droplevel("dataset")
        metrics = [metric for metric in MEASURES if metric != "accuracy"]
        original = self._means(frame, ORIGINAL, 1, metrics)
        few, most = original.index[1], original.index[-1]
        around = "up to 1.5 % less was taken for slightly worse, by around 1 %"
        for method, n, run in (
            (ORIGINAL, 1, ""),
            (F_METHOD, 2, "2 clients"),
            (F_METHOD, 5, "5 clients"),
        ):
            means = self._means(frame, method, n, metrics)
            own = at(numbers, run=run).unstack("metric").loc[means.index]
            names = "smoking", method, run or "original"
            note = f"mean at {most.split()[0]} less that at {few.split()[0]}"
            fall = means.loc[most] - means.loc[few]
            self._add(9, fall, "below 0", *names, note=note, frame=frame)
            self._add(9, own.loc[most] - own.loc[few], "below 0", *names, printed=True)
            if not run:
                alone = own
                continue
            more = self.loss[self.loss["change"] == f"{method}, {run}, less {ORIGINAL}"]
            more = more.set_index("metric").loc[metrics, "mean"]
            note = f"mean change from 50-50 to 90-10 less XGBoost's; {SIMILAR}"
            self._add(10, more, "-0.01 to 0.01", *names, note=note, frame=self.loss)
            ends = own.index[[0, -1]]
            more = (own - alone).loc[ends].diff().iloc[1]
            self._add(10, more, "-0.01 to 0.01", *names, note=SIMILAR, printed=True)
            for metric in metrics:
                where = "smoking", method, f"{run}, {metric}"
                less = original[metric] - means[metric]
                self._add(11, less, "0 to 0.015", *where, note=around, frame=frame)
                title = MEASURES[metric]
                less = alone[title] - own[title]
                self._add(11, less, "0 to 0.015", *where, note=around, printed=True)

    def _similar(self):
        frame = self.clients
        for name, table in (("breast_cancer", "3.3"), ("diabetes", "3.4"), ("heart", "3.5")):
            for condition in ("validation", "test"):
                rows = frame[(frame["dataset"] == name) & (frame["condition"] == condition)]
                wide = rows.pivot(index=["method", "n_clients"], columns="metric", values="mean")
                numbers = at(printed_numbers(table), dataset=name, condition=condition)
                for metric in ("accuracy", "AUC"):
                    apart = wide.loc[F_METHOD, metric] - wide.loc[(ORIGINAL, 1), metric]
                    names = name, F_METHOD, f"{condition}, {metric}"
                    note = f"mean less XGBoost's; {SIMILAR}"
                    self._add(12, apart, "-0.01 to 0.01", *names, note=note, frame=rows)
                    own = at(numbers, metric=metric)
                    own = own.drop("") - own[""]
                    self._add(12, own, "-0.01 to 0.01", *names, note=SIMILAR, printed=True)


# Measured on the page: classes, trees, protocols


def decode(sums, begin):
    """Return the rows, and the positive ones, behind sums (n, 2) of the first tree."""
    p = expit(begin.base_margin)
    G, H = sums.T * 2.0**-begin.bits  # sums are sent as integers
    n = H / (p * (1 - p))
    return np.rint(n).astype(int), np.rint(n * p - G).astype(int)


def leaves_of(tree, X):
    """Return the leaf of each row."""
    node = np.zeros(len(X), int)
    for parent in range(len(tree.feature)):  # a node comes before its children
        if tree.feature[parent] >= 0:
            here = np.flatnonzero(node == parent)
            right = X[here, tree.feature[parent]] >= tree.threshold[parent]
            node[here] = tree.left[parent] + right
    return node


def disclosed_classes(data, n_clients, random_state=0):
    """Return for each client how many rows the leaf sums of F's first tree give the class of.

    The server decodes the sums; a leaf with rows of one class discloses the class of all of them.
    Rows count only if the decoded numbers are those of the client's rows.
    """
    rows = np.arange(len(data.y))
    parts = boosting_study.deal(data.X, data.y, rows, n_clients, random_state)
    model = boosting_study.federated(F_METHOD, 1)
    recorder = Recorder({str(i): model.client_class(part) for i, part in enumerate(parts)})
    model.fit(recorder)
    talk = [(exchange.requests["0"], exchange.replies) for exchange in recorder.exchanges]
    [begin] = [request for request, _ in talk if type(request).__name__ == "BeginBoosting"]
    [sums] = [replies for _, replies in talk if type(replies["0"]).__name__ == "LeafSums"]
    [tree] = model.trees_
    found = {}
    for i, (X, y) in enumerate(parts):
        n, positive = decode(sums[str(i)].sums, begin)
        leaf = leaves_of(tree, X.astype(np.float32))
        size = len(tree.feature)
        true = np.bincount(leaf, minlength=size), np.bincount(leaf, y, size).astype(int)
        is_leaf = tree.feature < 0
        right = is_leaf & (n == true[0]) & (positive == true[1])
        pure = right & ((positive == 0) | (positive == n))
        found[i] = {"rows": len(y), "disclosed": int(n[pure].sum()), "leaves": int(is_leaf.sum())}
        found[i]["leaves decoded"] = int(right.sum())
    return pd.DataFrame(found).T.rename_axis("client")


def differences(data, client_numbers, seed=0):
    """Return the largest difference in probability from XGBoost on pooled rows, per number."""
    train, test = boosting_study.hold_out(data.y, seed)
    rows = xgboost.DMatrix(data.X[test])
    pooled = boosting_study.original(data.X[train], data.y[train]).predict(rows)
    apart = {}
    for n in client_numbers:
        parts = boosting_study.deal(data.X, data.y, train, n, seed)
        model = boosting_study.federated(F_METHOD).fit(parts)
        apart[n] = np.abs(model.predict_proba(data.X[test])[:, 1] - pooled).max()
    return pd.Series(apart).rename_axis("n_clients")


# Mixtures


def deal(X, n_clients, seed):
    """Return the rows of each client."""
    return split_rows(X, n_clients, how="uniform", random_state=seed)


def mixture_run(name, X, n_clients, seed):
    """Return the silhouettes of Vasilopoulou's federated and of the ordinary mixture on one split.

    Each client scales its own part, as in F.
    """
    parts = [StandardScaler().fit_transform(X[rows]) for rows in deal(X, n_clients, seed)]
    points, k = np.concatenate(parts), MIXTURES[name]
    model = FederatedGaussianMixture(k, "average", random_state=seed).fit(parts)
    alone = GaussianMixture(k, random_state=seed).fit_predict(points)
    federated = np.concatenate(model.labels_)
    scores = {"federated": silhouette_score(points, federated)}
    return scores | {"alone": silhouette_score(points, alone)}


def dbscan_run(name, X, y, n_clients, seed, n_components=10, min_samples=5):
    """Return how federated DBSCAN compares with DBSCAN on all points, on one split."""
    rows = deal(X, n_clients, seed)
    model = GaussianMixtureDBSCAN(
        RADII[name], min_samples, n_components=n_components, random_state=seed
    )
    model.fit([X[part] for part in rows])
    labels = study.in_order(rows, model.labels_)
    central = dbscan(X, RADII[name], min_samples)
    return {
        "ARI": adjusted_rand_score(central, labels),
        "equal labels": matched_accuracy(central, labels),
        "ARI lost": adjusted_rand_score(y, central) - adjusted_rand_score(y, labels),
        "noise gained": (labels < 0).mean() - (central < 0).mean(),
    }


def nearness(points, fresh, seed, n_components=10):
    """Return the median distance of drawn points to the nearest point, by that of fresh points."""
    mixture = fit_mixture(points, n_components, random_state=seed)
    parameters = mixture.weights, mixture.means, mixture.covariances
    numbers = np.array([len(fresh)]), np.array([n_components])
    drawn = draw_points(ClusterMixtures(*numbers, *parameters), seed)
    nearest = NearestNeighbors(n_neighbors=1).fit(points)
    near, reference = (np.median(nearest.kneighbors(some)[0]) for some in (drawn, fresh))
    return near / reference


# Models


def same(one, other):
    """Return whether two models have the same type and the same bytes."""
    if type(one) is not type(other):
        return False
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, np.ndarray):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return repr(one) == repr(other)
