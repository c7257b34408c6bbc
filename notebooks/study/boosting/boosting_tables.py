"""Tables and words of the pages on federated boosting that compare it with XGBoost and with F."""

import json

import pandas as pd

import study
from study.boosting import boosting_study
from study.boosting.boosting_study import METHODS, ORIGINAL
from study.shared import layouts

SIGNED = dict.fromkeys(["mean", "mean_low", "mean_high", "low", "high"], "{:+.4f}")
TITLES = {
    "run": {"2 clients": "2 clients", "5 clients": "5 clients", "": "Original"},
    "metric": {"AUC": "AUC", "sensitivity": "Sens", "specificity": "Spec"},
}


def settings_of(model):
    """Return the settings that a trained model of XGBoost reports."""
    learner = json.loads(model.save_config())["learner"]
    of_trees = learner["gradient_booster"]["tree_train_param"]
    share = float(learner["learner_model_param"]["base_score"].strip("[]"))
    return {name: f"{float(of_trees[name]):g}" for name in boosting_study.SETTINGS} | {
        "trees": model.num_boosted_rounds(),
        "search for splits": learner["gradient_booster"]["gbtree_train_param"]["updater"],
        "first prediction": f"{share:.4f}",
    }


def as_printed(judged, index, columns, titles, number, name):
    """Return a table of F with the printed and the measured value in each cell.

    Parameters
    ----------
    judged : DataFrame
        From `boosting_study.verdict`; with rows of all tables.
    index, columns, titles
        As in `layouts.as_printed`.
    number : str
        Of F's table.
    name : str
        Of the page's table.
    """
    rows = judged[judged["table"] == number]
    caption = f"Vasilopoulou's Table {number}, printed and measured."
    printed = rows if rows.empty else layouts.as_printed(rows, index, columns, titles)
    return study.table(printed, caption=caption, name=name)


def means(found, measures):
    """Return the means of measures: one row per method and number of clients."""
    conditions = found["condition"].unique()
    wide = {}
    for measure in measures:
        rows = found[found["metric"] == measure]
        by_condition = rows.pivot(index=["method", "n_clients"], columns="condition", values="mean")
        wide[measure] = by_condition[conditions].reindex([ORIGINAL, *METHODS], level="method")
    return pd.concat(wide, names=["measure"]).rename_axis(columns=None)


def changes_of_auc(change, **caption):
    """Return the changes of AUC as a table, with the verdict of each."""
    shown = change[change["metric"] == "AUC"]
    shown = shown.assign(verdict=[boosting_study.tendency(row) for _, row in shown.iterrows()])
    where = [name for name in ("dataset", "condition") if name in shown]
    columns = [*where, "change", *SIGNED, "fall", "verdict"]
    formats = SIGNED | {"fall": "{:.0%}"}
    return study.table(shown[columns].reset_index(drop=True), formats, **caption)


def in_words(row):
    """Return the mean change of AUC in a few words."""
    return (
        f"AUC {boosting_study.tendency(row)} ({row['mean']:+.3f}, interval of the mean "
        f"{row['mean_low']:+.3f} to {row['mean_high']:+.3f}; worse in {100 * row['fall']:.0f} % of "
        "splits)"
    )


def against_original(row):
    """Return whether a method loses more or less than XGBoost; the interval decides.

    Examples
    --------
    >>> against_original({"mean_low": -0.2, "mean_high": -0.1})
    'loses more'
    >>> against_original({"mean_low": -0.2, "mean_high": 0.1})
    'no difference'
    """
    if row["mean_high"] < 0:
        return "loses more"
    return "loses less" if row["mean_low"] > 0 else "no difference"
