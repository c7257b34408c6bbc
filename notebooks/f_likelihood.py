"""How plausible a setting is: the likelihood of F's printed numbers over many splits.

F prints one split. A *row* of a table (one number of clients or the original, under one condition)
is a vector of scores of the same split: a lucky split raises validation or test scores together.
So the likelihood of a row is that of the whole vector, not of its numbers one by one.

Scores are transformed by arcsin √p, which makes the spread of a proportion nearly constant. A
setting predicts a multivariate t distribution: its mean over splits, variances that are shrunk
towards the mean variance of all settings (ten splits are few), and the correlation matrix of all
settings together, shrunk towards the identity matrix. The likelihood of a table is the product over
its rows. Dependence between rows is ignored there, because F does not state whether all rows of a
table are from the same split.
"""

import boosting_study
import f_search
import numpy as np
import pandas as pd
import study
from scipy import stats
from scipy.special import gammaln

PRIOR = 10  # the common variance counts as much as this many splits
UNIT = 0.001  # of the last printed digit; F cuts off, so a number stands for [x, x + UNIT)
SETTING = list(f_search.Setting._fields)
SHARED = ["preparation", "depth", "rate", "limit", "reg_lambda"]  # of both methods
OWN = ["leaf", "update", "n_candidates", "dealing"]  # of the federated method
HALVES = {
    "3.3": ({2, 5, 1}, {3, 7, 10}),
    "3.4": ({2, 5, 1}, {3, 7, 10}),
    "3.5": ({2, 5, 1}, {3, 7, 10}),
    "3.6": ({500, 4_000, 16_000}, {2_000, 8_000, 32_000}),
    "3.7": ({50, 70, 90}, {60, 80}),
}


def measures(table):
    """Return the scores in a row's vector.

    Validation and test have accuracy, AUC and sensitivity; the NPV follows from accuracy and
    sensitivity. Tables 3.6 and 3.7 print no accuracy.
    """
    if table in f_search.SMALL:
        return [f"{p} {m}" for p in ("validation", "test") for m in f_search.SCORES[:3]]
    return [f"test {m}" for m in f_search.SCORES[1:]]


def printed_scores():
    """Return F's numbers: one row per table, condition and number of clients; 1 is the original."""
    tables = [study.published(source="F", table=table) for table in f_search.TABLES]
    rows = pd.concat(tables, ignore_index=True)
    rows["n_clients"] = [int(run.split()[0]) if run else 1 for run in rows["run"]]
    small = rows["table"].isin(f_search.SMALL)
    part = rows["condition"].where(small, "test")
    rows["score"] = part + " " + rows["metric"].map(boosting_study.PRINTED)
    rows["condition"] = rows["condition"].where(~small, "")
    rows["value"] = rows["published"].astype(float)
    places = ["table", "condition", "n_clients"]
    return rows.pivot(index=places, columns="score", values="value").rename_axis(columns=None)


def transform(scores):
    """Return arcsin √p."""
    return np.arcsin(np.sqrt(np.clip(scores, 0, 1)))


def predict(values):
    """Return what settings predict for one more split, score by score.

    Parameters
    ----------
    values : array (settings, splits, scores)

    Returns
    -------
    mean, variance : array (settings, scores)
        Of the transformed score; the variance is shrunk and includes that of the mean.
    rest : array (settings, splits, scores)
        The transformed scores less their means.
    common : array (scores,)
        The mean variance of all settings.
    df : int
        The degrees of freedom of the predicted t distribution.
    """
    z = transform(values)
    n_settings, n, _ = z.shape
    mean = z.mean(axis=1)
    rest = z - mean[:, None]
    common = (rest**2).sum(axis=(0, 1)) / (n_settings * (n - 1))
    common = np.maximum(common, (UNIT / 2) ** 2)
    df = PRIOR + n - 1
    variance = (PRIOR * common + (rest**2).sum(axis=1)) / df * (1 + 1 / n)
    return mean, variance, rest, common, df


def log_likelihoods(values, printed):
    """Return the logarithm of each setting's likelihood of one row, and its joint p-value.

    Parameters
    ----------
    values : array (settings, splits, scores)
    printed : array (scores,)

    Returns
    -------
    likelihood : array (settings,)
    p_value : array (settings,)
        The probability that a split is at least as far from the centre as the printed row.
    """
    x = transform(printed + UNIT / 2)
    mean, variance, rest, common, df = predict(values)
    n_settings, n, d = values.shape
    standard = rest.reshape(-1, d) / np.sqrt(common)
    correlation = standard.T @ standard / (n_settings * (n - 1))
    shrink = d / (d + n - 1)
    correlation = (1 - shrink) * correlation + shrink * np.eye(d)
    scaled = (x - mean) / np.sqrt(variance)
    distance = np.einsum("sd,de,se->s", scaled, np.linalg.inv(correlation), scaled)
    log_det = np.linalg.slogdet(correlation)[1] + np.log(variance).sum(axis=1)
    likelihood = gammaln((df + d) / 2) - gammaln(df / 2) - d / 2 * np.log(df * np.pi)
    likelihood = likelihood - log_det / 2 - (df + d) / 2 * np.log1p(distance / df)
    return likelihood, stats.f.sf(distance / d, d, df)


def blocks(runs, n_splits):
    """Yield each row of F's tables with the settings measured for it and their scores.

    A block is (table, condition, n_clients), a table of settings and numbers of trees, and an array
    (settings, splits, scores) in the order of `all_scores`. Settings with fewer than ``n_splits``
    splits are left out; of the others, the first ones count.
    """
    runs, keys = runs[runs["seed"] < n_splits], [*SETTING, "trees"]
    for place, rows in runs.groupby(["table", "condition", "n_clients"], sort=False):
        names = all_scores(place[0])
        rows = rows.sort_values([*keys, "seed"], kind="stable")
        complete = rows.groupby(keys, sort=False)["seed"].transform("size") == n_splits
        rows = rows[complete.to_numpy()]
        if len(rows):
            values = rows[names].to_numpy().reshape(-1, n_splits, len(names))
            yield place, rows[keys].iloc[::n_splits].reset_index(drop=True), values


def all_scores(table):
    """Return the names of the scores that a table prints, or that follow from them."""
    parts = ("validation", "test") if table in f_search.SMALL else ("test",)
    return [f"{part} {name}" for part in parts for name in f_search.SCORES]


def by_row(runs, n_splits):
    """Return likelihood and joint p-value of each printed row under each setting of `blocks`."""
    printed, found = printed_scores(), []
    for place, settings, values in blocks(runs, n_splits):
        names = measures(place[0])
        columns = [all_scores(place[0]).index(name) for name in names]
        target = printed.loc[place, names].to_numpy(float)
        likelihood, p_value = log_likelihoods(values[:, :, columns], target)
        where = dict(zip(("table", "condition", "n_clients"), place, strict=True))
        found.append(settings.assign(**where, likelihood=likelihood, p_value=p_value))
    return pd.concat(found, ignore_index=True)


def inside(runs, n_splits):
    """Return for each printed number and setting whether it is in the predicted central 95 %.

    One row per number and setting, with the columns ``mean``, ``low``, ``high`` and ``within``. The
    limits are those of `predict`, because few splits have no reliable quantiles.
    """
    printed, found = printed_scores(), []
    for place, settings, values in blocks(runs, n_splits):
        where = dict(zip(("table", "condition", "n_clients"), place, strict=True))
        mean, variance, *_, df = predict(values)
        margin = stats.t.ppf(0.975, df) * np.sqrt(variance)
        low, high = (np.sin(np.clip(mean + m, 0, np.pi / 2)) ** 2 for m in (-margin, margin))
        for column, name in enumerate(all_scores(place[0])):
            number = printed.loc[place].get(name, np.nan)
            if np.isnan(number):
                continue
            within = (low[:, column] - UNIT * (1 - 1e-9) <= number) & (number <= high[:, column])
            spread = {"low": low[:, column], "high": high[:, column]}
            spread |= {"mean": values[:, :, column].mean(axis=1), "within": within}
            found.append(settings.assign(**where, score=name, printed=number, **spread))
    return pd.concat(found, ignore_index=True)


def half_of(table, condition, n_clients):
    """Return 0 or 1: the half of the table's rows to which a row belongs."""
    number = n_clients
    if table == "3.6":
        number = int(condition.split()[0])
    if table == "3.7":
        number = int(condition[:2])
    return 0 if number in HALVES[table][0] else 1


def by_setting(rows):
    """Return the likelihood of each half and of the whole table, per method and setting.

    Settings that were not measured in all rows of a table are left out.
    """
    halves = [half_of(*place) for place in rows[["table", "condition", "n_clients"]].to_numpy()]
    method = np.where(rows["n_clients"] == 1, f_search.ORIGINAL, f_search.FEDERATED)
    rows = rows.assign(half=np.array(halves), method=method)
    keys = ["table", "method", *SETTING, "trees"]
    count = rows.groupby(keys, sort=False)["likelihood"].transform("size")
    most = count.groupby([rows["table"], rows["method"]]).transform("max")
    rows = rows[count == most]
    wide = rows.pivot_table("likelihood", keys, "half", "sum", fill_value=0, sort=False)
    wide = wide.reindex(columns=[0, 1], fill_value=0)
    wide.columns = ["half 1", "half 2"]
    return wide.assign(whole=wide.sum(axis=1)).reset_index()


def together(settings):
    """Return settings of a whole table: both methods with the same parameters.

    The original has as many trees as the federated method, or any number if that stops by F's rule.
    ``trees`` is the number of the federated method, ``trees of the original`` the other.
    """
    original = settings[settings["method"] == f_search.ORIGINAL]
    federated = settings[settings["method"] == f_search.FEDERATED]
    keep = [*SHARED, "table", "start", "trees", "half 1", "half 2", "whole"]
    both = federated.drop(columns=["method", "start"]).merge(
        original[keep], on=["table", *SHARED], suffixes=("", " of the original")
    )
    same = both["trees"] == both["trees of the original"]
    both = both[same | (both["trees"] == f_search.RULE)].reset_index(drop=True)
    for name in ("half 1", "half 2", "whole"):
        both[f"{name} federated"] = both[name]
        both[name] = both[name] + both[f"{name} of the original"]
    return both


def best(settings, by="whole", number=1):
    """Return the most plausible settings of each table, the best first."""
    ordered = settings.sort_values(["table", by], ascending=[True, False], kind="stable")
    return ordered.groupby("table", sort=False).head(number).reset_index(drop=True)


def chosen(runs, n_splits=4):
    """Return the most plausible setting of each whole table, judged on these splits."""
    return best(together(by_setting(by_row(runs, n_splits))))


def setting_of(row, method):
    """Return the `f_search.Setting` of one method in a row of `together`.

    The parameters of the other method keep their default values, as in the plan.
    """
    default = f_search.Setting()
    names = [*SHARED, "start"] if method == f_search.ORIGINAL else [*SHARED, *OWN]
    types = {name: type(getattr(default, name)) for name in names if name in row}
    values = {name: types[name](row[name]) for name in types}
    return default._replace(**values)


def possible_means(sizes):
    """Return all means of fractions with these denominators, one per fold."""
    sums = np.zeros(1)
    for size in set(sizes):  # fractions with the same denominator add up to one with it
        together = np.arange(sizes.count(size) * size + 1) / size
        sums = np.unique(np.round(np.add.outer(sums, together), 9))
    return sums / len(sizes)


def can_print(number, values, cut=True):
    """Return whether one of the values is printed as this number, cut off or rounded."""
    unit = 10.0 ** -len(str(number).partition(".")[2])
    low = float(number) - (0 if cut else unit / 2)
    return bool(((values >= low - 1e-9) & (values < low + unit - 1e-9)).any())
