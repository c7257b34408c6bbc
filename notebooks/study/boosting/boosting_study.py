"""What the pages on boosting share: splits of the rows, models, scores and their comparison.

F states neither its parameters nor its splits. Here all methods have XGBoost's defaults and the
same number of trees, and a published number is compared with the scores of many splits.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xgboost
from scipy import stats
from sklearn.metrics import confusion_matrix, roc_auc_score
from sklearn.model_selection import train_test_split

import study
from fedlib import FederatedXGBClassifier
from fedlib.datasets.partition import split_rows
from fedlib.datasets.sources import sources
from study.boosting import RULES

METHODS = ("top_splits", "union", "histogram")
ORIGINAL = "xgboost"
SCORES = ["accuracy", "AUC", "sensitivity", "specificity", "NPV"]
COLOURS = {"top_splits": "#3f90da", "union": "#ffa90e", "histogram": "#832db6", ORIGINAL: "#717581"}
MARKERS = {"top_splits": "o", "union": "s", "histogram": "^", ORIGINAL: "D"}
SETTINGS = {
    "max_depth": 6,
    "learning_rate": 0.3,
    "reg_lambda": 1.0,
    "gamma": 0.0,
    "min_child_weight": 1.0,
}
N_TREES = 10  # the default of xgboost.train; xgboost.ipynb compares it with F's rule
N_CANDIDATES = 10  # F's example
LEAF = "all"  # XGBoost's; xgboost.ipynb compares it with the other readings of F
VERSIONS = f"{study.VERSIONS}, xgboost {xgboost.__version__}"

PLAUSIBLE = 0.05  # a row at least so likely is plausible as a whole

# F's column "specificity" holds the negative predictive value: proved for the test rows of Tables
# 3.3-3.5 on their page, inferred for the others.
PRINTED = {"accuracy": "accuracy", "AUC": "AUC", "sensitivity": "sensitivity", "specificity": "NPV"}


# The experiment: rows, models, scores


def hold_out(y, seed, rows=None):
    """Return 80 % of the rows for training and 20 % for testing, stratified by class."""
    rows = np.arange(len(y)) if rows is None else rows
    return train_test_split(rows, test_size=0.2, stratify=y[rows], random_state=seed)


def sample(y, size, seed):
    """Return a stratified sample of row numbers, or all of them if there are no more."""
    rows = np.arange(len(y))
    if size >= len(rows):
        return rows
    return train_test_split(rows, train_size=size, stratify=y, random_state=seed)[0]


def deal(X, y, rows, n_clients, seed):
    """Return the parts of the clients that hold these rows, stratified by class."""
    dealt = split_rows(X[rows], n_clients, y[rows], random_state=seed)
    return [(X[rows[part]], y[rows[part]]) for part in dealt]


def federated(method, n_trees=N_TREES, **options):
    """Return the estimator of all pages: without early stop, so that all grow as many trees.

    Histograms are dense, because the pages compare times in one process, and show single bins.
    """
    if method == "histogram":
        options = {"histograms": "dense"} | options
    options = SETTINGS | {"n_candidates": N_CANDIDATES, "leaf": LEAF, "tol": None} | options
    return FederatedXGBClassifier(n_trees, method=method, xgboost_rules=RULES, **options)


def original(X, y, n_trees=N_TREES, n_jobs=1, tree_method="exact"):
    """Return XGBoost's own model of pooled rows; F describes the exact search for splits."""
    options = {
        "objective": "binary:logistic",
        "base_score": float(np.mean(y)),  # F's first prediction, P/(P + N)
        "tree_method": tree_method,
        "nthread": n_jobs,
    }
    return xgboost.train(options | SETTINGS, xgboost.DMatrix(X, label=y), n_trees)


def after_trees(data, train, test, numbers):
    """Yield XGBoost's predictions for the test rows after each number of trees (with `hist`)."""
    booster = original(data.X[train], data.y[train], max(numbers), tree_method="hist")
    rows = xgboost.DMatrix(data.X[test])
    for n in numbers:
        yield n, booster.predict(rows, iteration_range=(0, n))


def compare(X, y, train, test, n_clients, seed):
    """Yield each method, its number of clients, and its predictions for the test rows.

    The split of the rows does not matter to ``"histogram"``, so it learns once for all
    ``n_clients``. XGBoost itself counts as one client.
    """
    yield ORIGINAL, 1, original(X[train], y[train]).predict(xgboost.DMatrix(X[test]))
    pooled = federated("histogram").fit([(X[train], y[train])]).predict_proba(X[test])[:, 1]
    for n in n_clients:
        parts = deal(X, y, train, n, seed)
        for method in ("top_splits", "union"):
            yield method, n, federated(method).fit(parts).predict_proba(X[test])[:, 1]
        yield "histogram", n, pooled


def scores(y, probability, threshold=0.5):
    """Return accuracy, AUC, sensitivity, specificity and negative predictive value as a dict."""
    tn, fp, fn, tp = confusion_matrix(y, probability > threshold, labels=[0, 1]).ravel().tolist()
    return {
        "accuracy": (tn + tp) / len(y),
        "AUC": float(roc_auc_score(y, probability)),
        "sensitivity": tp / (tp + fn),
        "specificity": tn / (tn + fp),
        "NPV": tn / (tn + fn) if tn + fn else np.nan,
    }


def scored(data, train, test, n_clients, seed):
    """Return the scores of `compare`, one row per method and number of clients.

    ``sensitivity shifted`` uses the share of positive training rows as threshold instead of 1/2.
    """
    share = data.y[train].mean()
    return pd.DataFrame(
        {
            "method": method,
            "n_clients": n,
            **scores(data.y[test], p),
            "sensitivity shifted": scores(data.y[test], p, share)["sensitivity"],
        }
        for method, n, p in compare(data.X, data.y, train, test, n_clients, seed)
    )


# Intervals and changes


def named(frames, column):
    """Return tables as one, with the name of each in a column."""
    return pd.concat([frame.assign(**{column: name}) for name, frame in frames.items()])


def intervals(runs, by, metrics=SCORES):
    """Return the mean and the central 95 % of single splits, one row per group and metric."""
    groups = runs.groupby(by, sort=False)[metrics]
    columns = {
        "mean": groups.mean(),
        "low": groups.quantile(0.025),
        "high": groups.quantile(0.975),
        "splits": groups.count(),
    }
    long = {name: frame.rename_axis(columns="metric").stack() for name, frame in columns.items()}
    return pd.DataFrame(long).reset_index()


def paired(runs, by, pairs, metrics=SCORES):
    """Return the changes from one method to another on the same split.

    Parameters
    ----------
    runs : DataFrame
        One row per split, method, number of clients and value of the columns ``by``.
    by : list of str
    pairs : mapping of str to ((method, n_clients), (method, n_clients))
        From the first of each pair to the second.

    Returns
    -------
    DataFrame
        One row per split, ``change`` (the pair's name) and value of the columns ``by``.
    """
    keys = ["method", "n_clients"]
    each = runs.set_index([*keys, *by, "split"])[metrics].sort_index()
    change = {name: each.loc[after] - each.loc[before] for name, (before, after) in pairs.items()}
    return named({name: frame.reset_index() for name, frame in change.items()}, "change")


def changes(frame, by, metrics=SCORES):
    """Return intervals of the changes of `paired`, by ``change`` and the columns ``by``.

    Besides the columns of `intervals`: ``mean_low`` and ``mean_high``, the 95 % interval of the
    mean over all splits of these rows (Student's t), and ``fall``, the share of splits in which a
    score falls.
    """
    by = ["change", *by]
    groups = frame.groupby(by)[metrics]
    margin = stats.t.ppf(0.975, groups.count() - 1) * groups.sem()
    falls = frame.assign(**{score: frame[score] < 0 for score in metrics}).groupby(by)[metrics]
    columns = {
        "mean_low": groups.mean() - margin,
        "mean_high": groups.mean() + margin,
        "fall": falls.mean(),
    }
    long = {name: table.rename_axis(columns="metric").stack() for name, table in columns.items()}
    of_mean = pd.DataFrame(long).reset_index()
    return intervals(frame, by, metrics).merge(of_mean, on=[*by, "metric"])


def tendency(row):
    """Return the direction of a mean change in words; the interval of the mean decides."""
    if row["mean_high"] < 0:
        return "falls"
    return "rises" if row["mean_low"] > 0 else "shows no change"


def interval_text(frame):
    """Return a table of intervals with a column ``text``: mean (low–high)."""
    columns = frame[["mean", "low", "high"]].to_numpy()
    return frame.assign(text=[f"{m:.3f} ({a:.3f}–{b:.3f})" for m, a, b in columns])


# Results


def stamped(frame, data):
    """Return a result with the source and checksum of its data, and the versions."""
    return frame.assign(source=data.source, sha256=study.checksum(data), versions=VERSIONS)


def stamped_by_set(frame, sets, runs):
    """Return what follows from runs of `study.kept`, with the checksums of their data.

    Parameters
    ----------
    frame : DataFrame
        With a column ``dataset``.
    sets : mapping of str to Dataset
        The data sets as this process has loaded them.
    runs : DataFrame
        If they are those of the real files, so are the checksums, also if ``sets`` are stand-ins.
    """
    files = sources() if runs["sha256"].fillna("").all() else {}
    sums = {
        name: files[name].sha256 if name in files else study.checksum(data)
        for name, data in sets.items()
    }
    frame = frame.assign(sha256=frame["dataset"].map(sums), versions=runs["versions"].iloc[0])
    return frame.sort_values(
        "dataset", key=lambda names: names.map(list(sets).index), kind="stable"
    )


# The verdict on published numbers


def plausible_intervals():
    """Return the intervals under the most plausible setting of each table, from `f_settings`.

    One row per published number, with the columns of `study.KEY`, ``mean``, ``low`` and ``high``
    (the central 95 % of single splits), ``splits``, ``p_value`` of the whole printed row,
    ``setting``, and ``reach``: the settings of the search under which the number lies inside.
    """
    return study.read("f_settings_intervals.csv")


def verdict(published, plausible, data):
    """Return published numbers next to the intervals of the most plausible setting.

    Parameters
    ----------
    published : DataFrame
        From `study.published`.
    plausible : DataFrame
        From `plausible_intervals`.
    data : Dataset

    Returns
    -------
    DataFrame
        Rows as of `study.fidelity`, with status ``within`` or ``differs``. The note names the
        setting, how likely a row as far from the centre is, and for a number that differs, the
        settings that reach it.
    """
    if data.source != "real":
        published = published[:0]
    columns = [*study.KEY, "mean", "low", "high", "splits", "p_value", "setting", "reach"]
    merged = published.merge(plausible[columns], on=study.KEY, how="left", validate="one_to_one")
    rows = merged[[*study.KEY, "published"]].rename(columns={"mean": "measured"})
    rows = rows.assign(measured=merged["mean"], low=merged["low"], high=merged["high"])
    rows["status"] = pd.Series(list(map(judge, *_judged(merged))), rows.index, dtype=object)
    notes = [_note(row) for _, row in merged.iterrows()]
    rows["note"] = pd.Series(notes, rows.index, dtype=object)
    return rows.assign(sha256=study.checksum(data), versions=VERSIONS)


def judge(published, low, high, p_value):
    """Return the status of a printed number whose row is from one split.

    ``within`` if the number is inside the central 95 % of single splits, or if its whole row is
    plausible: one lucky or unlucky split moves all numbers of a row. A mean over splits that has
    the printed digits has them by chance, so no number is ``exact``.
    """
    status = study.judge(published, np.nan, low, high, truncated=True)
    return "within" if p_value >= PLAUSIBLE else status


def _judged(rows):
    return (rows[name] for name in ("published", "low", "high", "p_value"))


def _note(row):
    """Return the setting, where a number lies, and what is known about its row and its column."""
    note, share = [row["setting"]], row["p_value"]
    rare = "less than 0.1 %" if share < 0.001 else f"{share:.1%}"
    if study.judge(row["published"], np.nan, row["low"], row["high"], truncated=True) == "differs":
        side = "below" if float(row["published"]) < row["low"] else "above"
        note.append(f"{side} the central 95 % of {row['splits']} splits by itself")
    is_plausible = "plausible" if share >= PLAUSIBLE else "not plausible"
    note.append(
        f"its row is {is_plausible} as a whole: {rare} of splits are expected to be as far off"
    )
    if judge(row["published"], row["low"], row["high"], share) == "differs":
        note.append(row["reach"])
    if row["metric"] == "specificity":
        how = "is" if row["condition"] == "test" else "is taken for"
        note.append(f"the column {how} the negative predictive value")
    return "; ".join(note)


def that_differ(judged):
    """Return the rows of `verdict` that differ, in few columns, so that they fit on a page.

    The notes lack the parts common to all. The data set and the method are columns only if there
    are several. ``mean`` is of all splits, and ``95 %`` the central range of single splits.
    """
    rows = judged[judged["status"] == "differs"]
    notes = [
        "; ".join(part for part in note.split("; ")[3:] if not part.startswith("the column"))
        for note in rows["note"]
    ]
    ranges = [f"{low:.3f}–{high:.3f}" for low, high in zip(rows["low"], rows["high"], strict=True)]
    several = [column for column in ("dataset", "method") if rows[column].nunique() > 1]
    shown = rows.assign(note=notes).rename(columns={"published": "printed", "measured": "mean"})
    shown["mean"] = shown["mean"].map("{:.3f}".format)
    shown["95 %"] = pd.Series(ranges, rows.index, dtype=object)
    columns = [*several, "condition", "run", "metric", "printed", "mean", "95 %", "note"]
    return shown[columns].reset_index(drop=True)


def explanations(row, n_positive, n_negative):
    """Count the confusion matrices that fit a printed test row, under both readings of its column.

    Parameters
    ----------
    row : mapping
        ``accuracy``, ``sensitivity`` and ``specificity`` as printed, cut off after three digits.
    n_positive, n_negative : int
        The test rows of each class.

    Returns
    -------
    dict
        The number of matrices that fit accuracy and sensitivity, the numbers of these that fit the
        third number as a specificity and as a negative predictive value, and one of the latter.
    """
    tp, tn = np.meshgrid(np.arange(n_positive + 1), np.arange(n_negative + 1), indexing="ij")
    fn, fp = n_positive - tp, n_negative - tn
    fits = _prints(tp + tn, n_positive + n_negative, row["accuracy"])
    fits &= _prints(tp, n_positive, row["sensitivity"])
    as_specificity = fits & _prints(tn, tn + fp, row["specificity"])
    as_npv = fits & _prints(tn, tn + fn, row["specificity"])
    example = next(zip(tn[as_npv], fn[as_npv], strict=True), None)
    return {
        "matrices": int(fits.sum()),
        "as specificity": int(as_specificity.sum()),
        "as NPV": int(as_npv.sum()),
        "TN/(TN+FN)": f"{example[0]}/{sum(example)}" if example else "",
    }


def explain(published, y, seed=0):
    """Return one row per printed test row of a data set: its numbers and `explanations`.

    Parameters
    ----------
    published : DataFrame
        The data set's printed test scores.
    y : array of int
        The classes, of which the test rows of `hold_out` count.
    """
    _, test = hold_out(y, seed)
    n_positive = int(y[test].sum())
    rows = []
    for run, row in published.groupby("run", sort=False):
        printed = dict(zip(row["metric"], row["published"], strict=True))
        found = explanations(printed, n_positive, len(test) - n_positive)
        rows.append({"clients": run or "original", **printed, **found})
    return pd.DataFrame(rows)


def _prints(part, whole, printed):
    """Return which fractions of whole numbers give these digits when cut off after three."""
    return (1000 * part) // np.maximum(whole, 1) == round(1000 * float(printed))


# Figures


def interval_plot(ax, found, positions):
    """Draw the mean and central 95 % of each method side by side at the given positions.

    Parameters
    ----------
    found : DataFrame
        Of one metric, with columns method, at (the place on the axis), mean, low, high.
    positions : sequence
        The values of ``at`` in their order on the axis.
    """
    for number, (method, rows) in enumerate(found.groupby("method", sort=False)):
        x = rows["at"].map({at: i for i, at in enumerate(positions)}) + 0.16 * (number - 1.5)
        errors = [rows["mean"] - rows["low"], rows["high"] - rows["mean"]]
        style = {"fmt": MARKERS[method], "color": COLOURS[method], "ms": 4, "lw": 1.2}
        ax.errorbar(x, rows["mean"], errors, label=method, **style)
    ax.set_xticks(range(len(positions)), [str(at) for at in positions])


def change_plot(ax, change, order, printed):
    """Draw changes with the intervals of single splits (thin) and of the mean (thick).

    Parameters
    ----------
    change : DataFrame
        From `changes`, of one metric and data set.
    order : sequence of str
        The names of the changes, from top to bottom.
    printed : mapping of str to float
        Published changes, drawn as crosses.
    """
    names = list(order)[::-1]
    rows = change.set_index("change").loc[names]
    errors = [rows["mean"] - rows["low"], rows["high"] - rows["mean"]]
    colours = [COLOURS[name.split(",")[0]] for name in names]
    ax.errorbar(rows["mean"], range(len(rows)), xerr=errors, fmt="none", ecolor=colours)
    ax.hlines(range(len(rows)), rows["mean_low"], rows["mean_high"], colours, lw=4)
    ax.scatter(rows["mean"], range(len(rows)), c=colours, zorder=3)
    ax.plot(list(printed.values()), [names.index(name) for name in printed], "kx", zorder=4)
    ax.locator_params(axis="x", nbins=4)
    ax.set_yticks(range(len(rows)), names)


def tree_plot(tree, parts, names):
    """Draw a tree: each split with the rows of every client there, each leaf with its value."""
    _, ax = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    everywhere = [np.arange(len(X)) for X, _ in parts]
    places = {node: place for node, *place in _nodes(tree, parts, everywhere)}
    for node, (x, y, counts) in places.items():
        leaf = tree.feature[node] < 0
        if not leaf:
            for child in (tree.left[node], tree.left[node] + 1):
                ax.plot([x, places[child][0]], [y, places[child][1]], color="0.8", zorder=1)
        split = split_text(tree, node, names).replace(" below", "\nbelow")
        text = f"{tree.value[node]:+.3f}" if leaf else split
        colour = "#ffe2b8" if leaf else "#d7e9fa"
        box = {"boxstyle": "round", "facecolor": colour, "edgecolor": "none"}
        label = f"{text}\n{' | '.join(map(str, counts))}"
        ax.text(x, y, label, ha="center", va="center", fontsize=9, bbox=box)
    ax.set(xlim=(-4.2, 4.2), ylim=(-3.4, 0.4))
    ax.axis("off")


def _nodes(tree, parts, rows, node=0, x=0.0, depth=0):
    """Yield every node, its place in the drawing, and the number of each client's rows there."""
    yield node, x, -depth, [len(part) for part in rows]
    feature = tree.feature[node]
    if feature < 0:
        return
    left = [
        X[part, feature].astype(np.float32) < tree.threshold[node]
        for (X, _), part in zip(parts, rows, strict=True)
    ]
    step = 2.0 ** (1 - depth)
    for child, keep, at in ((0, left, x - step), (1, [~side for side in left], x + step)):
        below = [part[side] for part, side in zip(rows, keep, strict=True)]
        yield from _nodes(tree, parts, below, tree.left[node] + child, at, depth + 1)


def split_text(tree, node, names):
    """Return a node's split in words."""
    if tree.feature[node] < 0:
        return "leaf"
    return f"{names[tree.feature[node]]} below {tree.threshold[node]:g}"
