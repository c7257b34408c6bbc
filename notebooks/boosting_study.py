"""What the pages on boosting share: how rows are split, who learns from them, how scores compare.

F tells neither its parameters nor its splits. Here everybody has XGBoost's defaults and the same
number of trees, and a published number is placed among the scores of many splits.
"""

import numpy as np
import pandas as pd
import study
import xgboost
from joblib import Parallel, delayed
from scipy import stats
from sklearn.metrics import confusion_matrix, roc_auc_score
from sklearn.model_selection import StratifiedKFold, train_test_split

from fedlib import FederatedXGBClassifier
from fedlib.partition import split_rows

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
N_TREES = 10  # as xgboost.train unless told; xgboost.ipynb sets it beside what F's rule grows
N_CANDIDATES = 10  # F's example
LEAF = "all"  # XGBoost's; the other readings of F are compared in xgboost.ipynb
VERSIONS = f"{study.VERSIONS}, xgboost {xgboost.__version__}"

# F's column "specificity" is the negative predictive value: proved for the test rows of Tables
# 3.3-3.5 on their page, inferred for the rest.
PRINTED = {"accuracy": "accuracy", "AUC": "AUC", "sensitivity": "sensitivity", "specificity": "NPV"}


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


def hold_out(y, seed, rows=None):
    """Return 80 % of the rows to train on and 20 % to test on, each class in proportion."""
    rows = np.arange(len(y)) if rows is None else rows
    return train_test_split(rows, test_size=0.2, stratify=y[rows], random_state=seed)


def folds(y, train, seed):
    """Return three pairs of rows to train on and to validate on, each class in proportion."""
    kfold = StratifiedKFold(3, shuffle=True, random_state=seed)
    return [(train[fit], train[check]) for fit, check in kfold.split(train, y[train])]


def deal(X, y, rows, n_clients, seed):
    """Return the parts of clients that hold these rows, each class in proportion."""
    own = split_rows(X[rows], n_clients, y[rows], random_state=seed)
    return [(X[rows[part]], y[rows[part]]) for part in own]


def federated(method, n_trees=N_TREES, **other):
    """Return the estimator that all pages use: no early stop, so that all grow as many trees."""
    own = SETTINGS | {"n_candidates": N_CANDIDATES, "leaf": LEAF, "tol": None} | other
    return FederatedXGBClassifier(n_trees, method=method, **own)


def original(X, y, n_trees=N_TREES, n_jobs=1, tree_method="exact"):
    """Return XGBoost's own model of pooled rows, by the greedy search that F describes."""
    options = {
        "objective": "binary:logistic",
        "base_score": float(np.mean(y)),  # F's first prediction, P/(P + N)
        "tree_method": tree_method,
        "nthread": n_jobs,
    }
    return xgboost.train(options | SETTINGS, xgboost.DMatrix(X, label=y), n_trees)


def compare(X, y, train, test, n_clients, seed):
    """Yield each method, its number of clients, and what it makes of the test rows.

    How rows are dealt does not matter to ``"histogram"``, so it learns once for all ``n_clients``.
    XGBoost itself counts as one client.
    """
    yield ORIGINAL, 1, original(X[train], y[train]).predict(xgboost.DMatrix(X[test]))
    pooled = federated("histogram").fit([(X[train], y[train])]).predict_proba(X[test])[:, 1]
    for n in n_clients:
        parts = deal(X, y, train, n, seed)
        for method in ("top_splits", "union"):
            yield method, n, federated(method).fit(parts).predict_proba(X[test])[:, 1]
        yield "histogram", n, pooled


def scored(data, train, test, n_clients, seed):
    """Return the scores of everybody on the test rows, one line a method and number of clients.

    ``sensitivity shifted`` has the share of positive rows in training for a threshold, not 1/2.
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


def clients_split(data, n_clients, seed):
    """Return F's pipeline for one split: scores on the hold-out, and the means over three folds."""
    train, test = hold_out(data.y, seed)
    checked = [scored(data, *fold, n_clients, seed) for fold in folds(data.y, train, seed)]
    on_folds = pd.concat(checked).groupby(["method", "n_clients"], sort=False, as_index=False)
    found = {
        "validation": on_folds.mean(),
        "test": scored(data, train, test, n_clients, seed),
    }
    return _named(found, "condition").assign(dataset=data.name, split=seed)


def volume_split(data, sizes, n_clients, seed):
    """Return the scores of one split of a sample of each size, and those of test rows unseen.

    ``seen`` is the share of the test rows that a training row repeats in all features, ``AUC
    unseen`` what the others score.
    """
    everything = np.arange(len(data.y))
    row_of = np.unique(data.X, axis=0, return_inverse=True)[1].ravel()
    found = {}
    for size in sizes:
        sample = everything
        if size < len(everything):
            sample, _ = train_test_split(
                everything, train_size=size, stratify=data.y, random_state=seed
            )
        train, test = hold_out(data.y, seed, sample)
        seen = np.isin(row_of[test], row_of[train])
        lines = []
        for method, n, p in compare(data.X, data.y, train, test, n_clients, seed):
            auc = {"AUC unseen": roc_auc_score(data.y[test][~seen], p[~seen])}
            lines.append({"method": method, "n_clients": n} | scores(data.y[test], p) | auc)
        found[f"{size} samples"] = pd.DataFrame(lines).assign(seen=seen.mean())
    return _named(found, "condition").assign(dataset=data.name, split=seed)


def balance_sets(data, shares, size, seed):
    """Yield, for each of these shares of negative rows, its name, training rows and test rows.

    All are tested on the same rows, half of them positive, a fifth of the balanced set, and trained
    on ``size`` others.
    """
    rng = np.random.default_rng(seed)
    classes = [rng.permutation(np.flatnonzero(data.y == label)) for label in (0, 1)]
    n_test = min(map(len, classes)) // 5
    test = np.concatenate([rows[:n_test] for rows in classes])
    for share in shares:
        n_negative = round(size * share / 100)
        train = np.concatenate(
            [
                rows[n_test : n_test + n]
                for rows, n in zip(classes, (n_negative, size - n_negative), strict=True)
            ]
        )
        yield f"{share}-{100 - share} negative-positive", train, test


def balance_split(data, shares, n_clients, size, seed):
    """Return the scores of one split of `balance_sets`."""
    found = {
        name: scored(data, train, test, n_clients, seed)
        for name, train, test in balance_sets(data, shares, size, seed)
    }
    return _named(found, "condition").assign(dataset=data.name, split=seed)


def _named(frames, column):
    return pd.concat([frame.assign(**{column: name}) for name, frame in frames.items()])


def each_split(one_split, n_splits, *arguments):
    """Return the results of all splits as one table; two splits run at a time."""
    two = Parallel(n_jobs=min(2, n_splits))
    runs = two(delayed(one_split)(*arguments, seed) for seed in range(n_splits))
    return pd.concat(runs, ignore_index=True)


def intervals(runs, by, metrics=SCORES):
    """Return mean and central 95 % of single splits, one line a group and metric."""
    groups = runs.groupby(by, sort=False)[metrics]
    found = {
        "mean": groups.mean(),
        "low": groups.quantile(0.025),
        "high": groups.quantile(0.975),
        "splits": groups.count(),
    }
    long = {name: frame.rename_axis(columns="metric").stack() for name, frame in found.items()}
    return pd.DataFrame(long).reset_index()


def paired(runs, by, pairs, metrics=SCORES):
    """Return what changes from one method to another on the same split.

    Parameters
    ----------
    runs : DataFrame
        One line a split, method and number of clients, and a value of the columns ``by``.
    by : list of str
    pairs : mapping of str to ((method, n_clients), (method, n_clients))
        From the first of each pair to the second.

    Returns
    -------
    DataFrame
        One line a split, ``change`` (the pair's name) and value of the columns ``by``.
    """
    keys = ["method", "n_clients"]
    each = runs.set_index([*keys, *by, "split"])[metrics].sort_index()
    found = {name: each.loc[after] - each.loc[before] for name, (before, after) in pairs.items()}
    return _named({name: change.reset_index() for name, change in found.items()}, "change")


def changes(frame, by, metrics=SCORES):
    """Return intervals of what `paired` found, by ``change`` and the columns ``by``.

    Besides those of `intervals`, ``mean_low`` and ``mean_high`` bound the mean over all splits of
    these rows: the 95 % of Student's t. ``fall`` is the share of splits in which a score falls.
    """
    by = ["change", *by]
    groups = frame.groupby(by)[metrics]
    margin = stats.t.ppf(0.975, groups.count() - 1) * groups.sem()
    falls = frame.assign(**{score: frame[score] < 0 for score in metrics}).groupby(by)[metrics]
    more = {
        "mean_low": groups.mean() - margin,
        "mean_high": groups.mean() + margin,
        "fall": falls.mean(),
    }
    long = {name: found.rename_axis(columns="metric").stack() for name, found in more.items()}
    beside = pd.DataFrame(long).reset_index()
    return intervals(frame, by, metrics).merge(beside, on=[*by, "metric"])


def tendency(row):
    """Say in words what a mean change does; its interval decides whether it is one."""
    if row["mean_high"] < 0:
        return "falls"
    return "rises" if row["mean_low"] > 0 else "shows no change"


def stamped(frame, data):
    """Return a result with what it was measured on, and with which versions."""
    return frame.assign(source=data.source, sha256=data.sha256 or "", versions=VERSIONS)


def most(measured, name, of="splits"):
    """Save a result, and return it, or the kept one if that is of more splits; say which."""
    study.save(measured, name)
    kept = study.read(name, [study.KEPT]) if (study.KEPT / name).exists() else measured[:0]
    shown = measured
    where = "measured in this run"
    if len(kept) and kept[of].max() > measured[of].max():
        shown, where = kept, f"of the last complete run on real data\n({kept['versions'].iloc[0]})"
    print(f"{name}: {shown[of].max():,} {of}, {where}.")
    return shown


def verdict(published, found, data):
    """Return published numbers of one data set beside the intervals of the method they are of.

    Parameters
    ----------
    published : DataFrame
        From `study.published`; `condition` and `run` are those of `found`.
    found : DataFrame
        From `intervals`, by dataset, condition, method and n_clients.

    Returns
    -------
    DataFrame
        Rows as of `study.fidelity`, of status ``within`` or ``differs``. The thesis's method is
        compared with ``"top_splits"``; the note names its leaf, and says whether the other two
        methods have the number inside.
    """
    if data.source != "real":
        published = published[:0]
    published = published[published["condition"].isin(found["condition"])]
    rows = []
    places = found.set_index(["dataset", "condition", "method", "n_clients", "metric"]).sort_index()
    for (dataset, condition, method, run), group in published.groupby(
        ["dataset", "condition", "method", "run"], sort=False
    ):
        n = 1 if method == ORIGINAL else int(run.split()[0])
        own = (ORIGINAL,) if n == 1 else METHODS
        spreads = [places.loc[(dataset, condition, one, n)] for one in own]
        judged = [_judged(group, spread, data) for spread in spreads]
        rows.append(judged[0].assign(note=_notes(judged, own), versions=VERSIONS))
    return pd.concat(rows, ignore_index=True) if rows else study.fidelity(published, data, {})


def _judged(group, spread, data):
    at = {metric: spread.loc[measure] for metric, measure in PRINTED.items()}
    limits = {metric: (line["low"], line["high"]) for metric, line in at.items()}
    means = {metric: line["mean"] for metric, line in at.items()}
    judged = study.fidelity(group, data, means, limits, truncated=True)
    # A mean over splits that has the printed digits has them by chance.
    return judged.assign(status=judged["status"].replace("exact", "within"))


def _notes(judged, methods):
    """Return where a number lies, and whether the other methods have it inside."""
    notes = []
    for place, row in judged[0].iterrows():
        value = float(row["published"])
        note = [f"top_splits with leaf={LEAF!r}"] if methods[0] != ORIGINAL else []
        if row["status"] == "differs":
            side = "below" if value < row["low"] else "above"
            note.append(
                f"{side} the central 95 % of splits with {N_TREES} trees; F's number of trees, "
                "other parameters and splits are unknown"
            )
        for method, other in zip(methods[1:], judged[1:], strict=True):
            inside = "inside" if other.loc[place, "status"] == "within" else "outside"
            note.append(f"{inside} for {method}")
        if row["metric"] == "specificity":
            how = "is" if row["condition"] == "test" else "is taken for"
            note.append(f"the column {how} the negative predictive value")
        notes.append("; ".join(note))
    return notes


def note_trees(judged, by_trees):
    """Say in the note of every number that differs which numbers of trees have it inside.

    Parameters
    ----------
    judged : DataFrame
        From `verdict`.
    by_trees : DataFrame
        Intervals of XGBoost alone, by condition, trees and metric.
    """
    places = by_trees.set_index(["condition", "metric"]).sort_index()
    notes = []
    for _, row in judged.iterrows():
        if row["status"] != "differs":
            notes.append(row["note"])
            continue
        of_number = places.loc[[(row["condition"], PRINTED[row["metric"]])]]
        inside = [
            study.judge(row["published"], np.nan, low, high, truncated=True) == "within"
            for low, high in of_number[["low", "high"]].to_numpy()
        ]
        trees = of_number.loc[inside, "trees"] if any(inside) else of_number["trees"]
        where = f"{'inside' if any(inside) else 'outside'} for XGBoost alone with"
        notes.append(f"{row['note']}; {where} {', '.join(map(str, trees))} trees")
    return judged.assign(note=notes)


def that_differ(judged):
    """Return the rows of `verdict` that differ, their notes cut to what is not said of all."""
    of_all = ("top_splits with", "below ", "above ", "F's number", "the column is")
    rows = judged[judged["status"] == "differs"]
    notes = [
        "; ".join(part for part in note.split("; ") if not part.startswith(of_all))
        for note in rows["note"]
    ]
    columns = ["dataset", "method", "condition", "run", "metric", "published", "measured"]
    return rows.assign(note=notes)[[*columns, "low", "high", "note"]].reset_index(drop=True)


def explanations(row, n_positive, n_negative):
    """Count the confusion matrices that give a printed test row, under both readings of its column.

    Parameters
    ----------
    row : mapping
        ``accuracy``, ``sensitivity`` and ``specificity`` as printed, cut off after three digits.
    n_positive, n_negative : int
        The test rows of each class.

    Returns
    -------
    dict
        How many matrices give accuracy and sensitivity, how many of these give the third number as
        a specificity and as a negative predictive value, and one of the latter.
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


def _prints(part, whole, printed):
    """Tell which fractions are printed so when cut off after three digits: whole numbers only."""
    return (1000 * part) // np.maximum(whole, 1) == round(1000 * float(printed))


def interval_plot(ax, found, positions):
    """Draw mean and central 95 % of each method side by side at the given positions.

    Parameters
    ----------
    found : DataFrame
        Of one metric, with columns method, at (where on the axis), mean, low, high.
    positions : sequence
        The values of ``at`` in their order on the axis.
    """
    for number, (method, own) in enumerate(found.groupby("method", sort=False)):
        x = own["at"].map({at: i for i, at in enumerate(positions)}) + 0.16 * (number - 1.5)
        errors = [own["mean"] - own["low"], own["high"] - own["mean"]]
        ax.errorbar(
            x,
            own["mean"],
            errors,
            fmt=MARKERS[method],
            ms=4,
            lw=1.2,
            color=COLOURS[method],
            label=method,
        )
    ax.set_xticks(range(len(positions)), [str(at) for at in positions])
