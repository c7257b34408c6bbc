"""The methods of the package side by side, for the page that helps to choose one.

Accuracy is that of the last complete run of `notebooks/federated_learning.ipynb`. Bytes and
exchanges are measured when the table is made, by one run of each method on the same points. The
options come from the code.
"""

import re
from dataclasses import dataclass

import pandas as pd
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.preprocessing import MinMaxScaler

import study
from fedlib import (
    DBDC,
    PPDBDC,
    SDBDC,
    ApproximateDBSCAN,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedXGBClassifier,
    GaussianMixtureDBSCAN,
    HorizontalDBSCAN,
    VerticalDBSCAN,
)
from fedlib.core.estimator import Federated
from fedlib.datasets.partition import split_columns, split_rows
from study.attacks.threat_study import has
from study.boosting import RULES

N_POINTS, N_SITES, N_CLUSTERS = 1_000, 5, 3
DENSITY = {"eps": 0.05, "min_samples": 10}
OF_SUMS = ("k-means as on pooled rows", "trees as on pooled rows", "a mixture from sums")
PARTITIONS = {"at random": "as in the source", "by region": "regions"}


@dataclass(frozen=True)
class Method:
    """A method: how to name it, how to run it, where to read about it.

    Parameters
    ----------
    words : str
        What the method does, in a few words.
    estimator : Federated
        With the parameters of the run that counts bytes.
    page : str
        The notebook that explains it.
    measured : (str, str) or None
        The method and the score in ``accuracy_loss.csv``; None if that page does not measure it.
    sends : str
        What a site discloses without protection, in a few words.
    """

    words: str
    estimator: Federated
    page: str
    measured: tuple[str, str] | None
    sends: str


def methods() -> list[Method]:
    """Return the methods, in the order of the table."""
    clusters = {"n_clusters": N_CLUSTERS, "random_state": 0}
    mixture = {"n_components": N_CLUSTERS, "random_state": 0}
    trees = {"n_trees": 20, "max_depth": 3}
    ari, agreement = "ARI with the classes", "agreement with DBSCAN"
    likelihood = "log-likelihood per row"
    return [
        Method(
            "density clusters from counts in a grid",
            HorizontalDBSCAN(cell_size=0.05, min_samples=5),
            "horizontal_dbscan",
            ("grid", ari),
            "rows per cell",
        ),
        Method(
            "density clusters from finer counts, with a guarantee",
            ApproximateDBSCAN(**DENSITY),
            "private_density",
            None,
            "rows per small cell",
        ),
        Method(
            "density clusters from representatives",
            DBDC(**DENSITY),
            "ppdbdc",
            ("DBDC", agreement),
            "some points as they are",
        ),
        Method(
            "density clusters from weighted representatives",
            SDBDC(**DENSITY),
            "ppdbdc",
            ("SDBDC", agreement),
            "some points as they are, and counts",
        ),
        Method(
            "density clusters from means with noise",
            PPDBDC(**DENSITY),
            "ppdbdc",
            ("PPDBDC", agreement),
            "means and counts of groups",
        ),
        Method(
            "density clusters from mixtures",
            GaussianMixtureDBSCAN(**DENSITY, n_components=5, random_state=0),
            "gmm_dbscan",
            ("mixtures of clusters", ari),
            "mixtures and sizes of clusters",
        ),
        Method(
            "density clusters over columns",
            VerticalDBSCAN(**DENSITY),
            "vertical_dbscan",
            ("vertical", ari),
            "which rows are close: nearly the values",
        ),
        Method(
            "k-means in one exchange of centres",
            FederatedKMeans(**clusters, method="one_shot"),
            "kmeans",
            ("k-means, one shot", "SSE per row"),
            "centres and sizes of clusters",
        ),
        Method(
            "k-means as on pooled rows",
            FederatedKMeans(**clusters, method="lloyd"),
            "kmeans",
            ("k-means, Lloyd", "SSE per row"),
            "sums and counts per cluster",
        ),
        Method(
            "a mixture from averages",
            FederatedGaussianMixture(**mixture, method="average"),
            "gmm",
            ("mixture, average", likelihood),
            "a mixture of the site's rows",
        ),
        Method(
            "a mixture from sums",
            FederatedGaussianMixture(**mixture, method="em"),
            "gmm",
            ("mixture, em", likelihood),
            "sums per component",
        ),
        Method(
            "trees from proposals of splits",
            FederatedXGBClassifier(**trees, method="top_splits", xgboost_rules=RULES),
            "xgboost",
            ("XGBoost, top_splits", "AUC"),
            "values, and classes on either side",
        ),
        Method(
            "trees as on pooled rows",
            FederatedXGBClassifier(**trees, method="histogram", xgboost_rules=RULES),
            "xgboost",
            ("XGBoost, histogram", "AUC"),
            "classes per bin and node",
        ),
    ]


def traffic(estimator):
    """Return the bytes that the sites send in one run, the bytes they receive, and the exchanges.

    The run is on 1,000 points of three clusters in the plane, divided among five sites. For
    columns, there are two sites with one column each.
    """
    X, y = make_blobs(N_POINTS, centers=N_CLUSTERS, random_state=0)
    X = MinMaxScaler().fit_transform(X)
    rows = split_rows(X, N_SITES, y, random_state=0)
    parts = [X[one] for one in rows]
    if isinstance(estimator, VerticalDBSCAN):
        parts = [X[:, one] for one in split_columns(X, X.shape[1])]
    elif isinstance(estimator, FederatedXGBClassifier):
        parts = [(X[one], y[one] == 0) for one in rows]
    entries = estimator.fit(parts).ledger_.entries
    sent = sum(one.bytes for one in entries if one.receiver == "server")
    return sent, sum(one.bytes for one in entries) - sent, max(one.step for one in entries)


def available(estimator, option):
    """Return whether a method has an option: one that its other methods have may not suit it.

    Examples
    --------
    >>> available(FederatedKMeans(2, method="one_shot"), "secure")
    False
    >>> available(FederatedKMeans(2, method="lloyd"), "secure")
    True
    """
    if not has(type(estimator), option):
        return False
    values = {"secure": True, "epsilon": 1.0}
    try:
        next(clone(estimator).set_params(**{option: values[option]}).protocol())
    except ValueError as error:  # it may also need limits, which a study has
        needed = re.search(r"needs method='(\w+)'", str(error))
        return needed is None or needed[1] == estimator.method
    return True


def accuracy(measured, kept):
    """Return the scores of a method: a dict of its columns in the table.

    Parameters
    ----------
    measured : (str, str)
        The method and the score.
    kept : DataFrame
        ``accuracy_loss.csv``.

    Raises
    ------
    ValueError
        When there is not exactly one row per partition.
    """
    method, score = measured
    rows = kept[kept["dataset"].eq("all") & kept["method"].eq(method) & kept["score"].eq(score)]
    found = {"score": score}
    for words, partition in PARTITIONS.items():
        one = rows[rows["partition"].eq(partition)]
        if len(one) > 1:
            raise ValueError(f"accuracy_loss.csv has {len(one)} rows of {method}, {partition}")
        for row in one.itertuples():
            found |= {"pooled": row.pooled, words: row.federated}
    if "pooled" not in found:
        raise ValueError(f"accuracy_loss.csv has no row of {method}, {score}")
    return found


def compared() -> pd.DataFrame:
    """Return one row per method: its accuracy, traffic, disclosure and options."""
    kept, rows = study.read("accuracy_loss.csv", [study.KEPT]), []
    for method in methods():
        sent, received, exchanges = traffic(method.estimator)
        options = [one for one in ("secure", "epsilon") if available(method.estimator, one)]
        rows.append(
            {
                "method": f"[{method.words}](../notebooks/{method.page}.ipynb)",
                "class": f"`{type(method.estimator).__name__}`",
                **(accuracy(method.measured, kept) if method.measured else {}),
                "sent": f"{sent:,}",
                "received": f"{received:,}",
                "exchanges": exchanges,
                "a site discloses": method.sends,
                "protection": ", ".join(f"`{name}`" for name in options) or "–",
            }
        )
    return pd.DataFrame(rows)


ACCURACY = ["method", "score", "pooled", *PARTITIONS]
COST = ["method", "class", "sent", "received", "exchanges", "a site discloses", "protection"]


def as_markdown(frame):
    """Return a table in Markdown; missing values are dashes, scores have three digits.

    Examples
    --------
    >>> print(as_markdown(pd.DataFrame({"a": [0.5, None], "b": ["x", "y"]})))
    | a | b |
    |---|---|
    | 0.500 | x |
    | – | y |
    """
    shown = [
        [
            "–" if pd.isna(value) else f"{value:.3f}" if isinstance(value, float) else str(value)
            for value in row
        ]
        for row in frame.itertuples(index=False)
    ]
    lines = [list(frame.columns), *shown]
    text = [f"| {' | '.join(line)} |" for line in lines]
    text.insert(1, "|" + "---|" * frame.shape[1])
    return "\n".join(text)


def sums() -> dict[str, str]:
    """Return what methods that add sums lose, in words for the first page."""
    kept = study.read("accuracy_loss.csv", [study.KEPT])
    scores = {one.words: accuracy(one.measured, kept) for one in methods() if one.measured}
    kmeans, trees, mixture = (scores[words] for words in OF_SUMS)
    exact = [abs(one["by region"] - one["pooled"]) for one in (kmeans, trees)]
    sentence = study.say(
        "If each site has a region, k-means has an SSE per row of {kmeans[by region]:.3f} (pooled: "
        "{kmeans[pooled]:.3f}), and boosting an AUC of {trees[by region]:.3f} (pooled: "
        "{trees[pooled]:.3f}). A mixture starts from the rows of one site, so that its "
        "log-likelihood is {mixture[by region]:.3f} there (pooled: {mixture[pooled]:.3f}).",
        max(exact) < 0.001 and mixture["pooled"] - mixture["by region"] > 0.1,
        kmeans=kmeans,
        trees=trees,
        mixture=mixture,
    )
    return {"losses_of_sums": re.sub(r"-(?=\d)", "−", sentence.data)}


def tables():
    """Return the two tables of the page, by the names that it uses."""
    frame = compared()
    measured = frame[frame["score"].notna()]
    return {
        "methods_accuracy": as_markdown(measured[ACCURACY]),
        "methods_cost": as_markdown(frame[COST]),
    }
