"""How plausible a setting is: the likelihood of Vasilopoulou's printed numbers over many splits.

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

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import gammaln

import study
from study.boosting import boosting_study, f_search

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


def blocks(runs):
    """Yield each row of F's tables with the settings of one preparation and their scores.

    A block is (table, condition, n_clients), a table of settings and numbers of trees, and an array
    (settings, splits, scores) in the order of `all_scores`. The first `f_search.COARSE_SPLITS`
    splits count; settings with fewer are left out.
    """
    keys = [*SETTING, "trees"]
    # The spread depends on the rows that are scored, so each preparation is a block of its own.
    by = ["table", "condition", "n_clients", "preparation"]
    for (*place, _), rows in runs.groupby(by, sort=False):
        n_splits = f_search.COARSE_SPLITS[f_search.kind_of(place[0])]
        names, rows = all_scores(place[0]), rows[rows["seed"] < n_splits]
        rows = rows.sort_values([*keys, "seed"], kind="stable")
        complete = rows.groupby(keys, sort=False)["seed"].transform("size") == n_splits
        rows = rows[complete.to_numpy()]
        if len(rows):
            values = rows[names].to_numpy().reshape(-1, n_splits, len(names))
            yield tuple(place), rows[keys].iloc[::n_splits].reset_index(drop=True), values


def all_scores(table):
    """Return the names of the scores that a table prints, or that follow from them."""
    parts = ("validation", "test") if table in f_search.SMALL else ("test",)
    return [f"{part} {name}" for part in parts for name in f_search.SCORES]


def by_row(runs):
    """Return likelihood and joint p-value of each printed row under each setting of `blocks`."""
    printed, found = printed_scores(), []
    for place, settings, values in blocks(runs):
        names = measures(place[0])
        columns = [all_scores(place[0]).index(name) for name in names]
        target = printed.loc[place, names].to_numpy(float)
        likelihood, p_value = log_likelihoods(values[:, :, columns], target)
        where = dict(zip(("table", "condition", "n_clients"), place, strict=True))
        found.append(settings.assign(**where, likelihood=likelihood, p_value=p_value))
    return pd.concat(found, ignore_index=True)


def inside(runs):
    """Return for each printed number and setting whether it is in the predicted central 95 %.

    One row per number and setting, with the columns ``mean``, ``low``, ``high`` and ``within``. The
    limits are those of `predict`, because few splits have no reliable quantiles.
    """
    printed, found = printed_scores(), []
    for place, settings, values in blocks(runs):
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
    found = pd.concat(found, ignore_index=True)
    method = np.where(found["n_clients"] == 1, f_search.ORIGINAL, f_search.FEDERATED)
    return found.assign(method=method)


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


def chosen(runs):
    """Return the most plausible setting of each whole table."""
    return best(together(by_setting(by_row(runs))))


def setting_of(row, method):
    """Return the `f_search.Setting` of one method in a row of `together`.

    The parameters of the other method keep their default values, as in the plan.
    """
    default = f_search.Setting()
    names = [*SHARED, "start"] if method == f_search.ORIGINAL else [*SHARED, *OWN]
    types = {name: type(getattr(default, name)) for name in names if name in row}
    values = {name: types[name](row[name]) for name in types}
    return default._replace(**values)


def describe(row, method, trees):
    """Return a setting in words."""
    number = "F's rule" if trees == f_search.RULE else f"{trees} trees"
    words = [f"{number}, depth {row['depth']}, rate {row['rate']}", f"limit {row['limit']}"]
    if row["preparation"] != "hold-out":
        words.append(f"rows: {row['preparation']}")
    if method == f_search.FEDERATED:
        words += [f"leaf {row['leaf']}", f"update by the {row['update']}"]
    elif row["start"] == "share":
        words.append("start at P/(P + N)")
    return ", ".join(words)


def reach(found, settings, chosen):
    """Return for each printed number how many settings give it, and the most plausible of them.

    Parameters
    ----------
    found : DataFrame
        From `inside`.
    settings : DataFrame
        From `by_setting`; the likelihood of the whole table orders the settings.
    chosen : DataFrame
        From `chosen`; the other settings are named, and this one is judged on more splits.

    Returns
    -------
    DataFrame
        One row per table, condition, number of clients and score, with ``within`` and ``tried``
        (numbers of settings) and ``reach`` (in words).
    """
    keys, place = (
        ["table", "method", *SETTING, "trees"],
        ["table", "condition", "n_clients", "score"],
    )
    found = found.merge(settings[[*keys, "whole"]], on=keys, how="left")
    own = pd.DataFrame([key for _, row in chosen.iterrows() for key in _keys_of(row)], columns=keys)
    others = found.merge(own.assign(own=True), on=keys, how="left")
    others = others[others["own"].isna()]
    counts = others.groupby(place, sort=False)["within"].agg(["sum", "size"]).reset_index()
    counts = counts.rename(columns={"sum": "within", "size": "tried"})
    best_first = others[others["within"]].sort_values("whole", ascending=False, kind="stable")
    first = best_first.drop_duplicates(place)
    words = [describe(row, row["method"], row["trees"]) for _, row in first.iterrows()]
    counts = counts.merge(first[place].assign(first=words), on=place, how="left")
    counts["reach"] = [
        f"reachable with {first} ({within} of {tried} other settings)"
        if within
        else f"not reachable by any of {tried} other settings tried"
        for first, within, tried in counts[["first", "within", "tried"]].to_numpy()
    ]
    return counts.drop(columns="first")


def _keys_of(row):
    """Yield table, method, setting and trees of both methods of a row of `together`."""
    for method, trees in (
        (f_search.ORIGINAL, row["trees of the original"]),
        (f_search.FEDERATED, row["trees"]),
    ):
        yield row["table"], method, *map(str, setting_of(row, method)), trees


def central(values):
    """Return the central 95 % of single splits.

    These are the quantiles of at least 40 splits. Fewer have no reliable quantiles, so the limits
    are those of the t distribution of `predict`.
    """
    if len(values) >= 40:
        return np.quantile(values, (0.025, 0.975))
    mean, variance, *_, df = predict(values[None, :, None])
    margin = stats.t.ppf(0.975, df) * np.sqrt(variance[0, 0])
    limits = mean[0, 0] + np.array([-margin, margin])
    return np.sin(np.clip(limits, 0, np.pi / 2)) ** 2


def intervals(runs, chosen, reached):
    """Return the intervals of every printed number under the chosen setting of its table.

    All splits of the setting count. The columns are those of `boosting_study.plausible_intervals`.
    """
    published = pd.concat(
        [study.published(source="F", table=table) for table in f_search.TABLES], ignore_index=True
    )
    places = reached.set_index(["table", "condition", "n_clients", "score"])["reach"]
    spreads = {}
    for _, row in chosen.iterrows():
        for place, values in of_chosen(runs, row):
            spreads[place] = values
    rows = []
    for number in published.to_dict("records"):
        table, n = number["table"], int(number["run"].split()[0]) if number["run"] else 1
        small = table in f_search.SMALL
        part = number["condition"] if small else "test"
        score = f"{part} {boosting_study.PRINTED[number['metric']]}"
        place = table, "" if small else number["condition"], n
        if place not in spreads:
            continue
        of_row = spreads[place]
        values = of_row["values"][:, all_scores(table).index(score)]
        low, high = central(values)
        spread = {"mean": values.mean(), "low": low, "high": high, "splits": len(values)}
        rest = {name: of_row[name] for name in ("p_value", "same", "setting")}
        key = {name: number[name] for name in (*study.KEY, "published")}
        rows.append(key | spread | rest | {"reach": places.get((*place, score), "")})
    return pd.DataFrame(rows)


def of_chosen(runs, row):
    """Yield each row of a table with its scores (splits, scores) under a setting of `together`.

    Besides the ``values``: the ``setting`` in words, the ``p_value`` of the printed row, and
    ``same``, the number of splits that print all digits of the row.
    """
    printed = printed_scores()
    for method in (f_search.ORIGINAL, f_search.FEDERATED):
        setting = setting_of(row, method)
        trees = row["trees of the original"] if method == f_search.ORIGINAL else row["trees"]
        key = pd.Series(map(str, setting), SETTING)
        is_there = (runs[SETTING] == key).all(axis=1) & (runs["method"] == method)
        of_setting = runs[is_there & (runs["table"] == row["table"]) & (runs["trees"] == trees)]
        for place, rows in of_setting.groupby(["table", "condition", "n_clients"], sort=False):
            names, vector = all_scores(place[0]), measures(place[0])
            values = rows.sort_values("seed")[names].to_numpy()
            columns = [names.index(name) for name in vector]
            target = printed.loc[place, vector].to_numpy(float)
            _, p_value = log_likelihoods(values[None, :, columns], target)
            cut = np.floor(values[:, columns] * 1000 + 1e-6) == np.round(1000 * target)
            words = describe(key, method, trees)
            found = {"setting": words, "p_value": p_value[0], "same": cut.all(axis=1).sum()}
            yield place, found | {"values": values}


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


def folds_of(n_positive, n_folds=3):
    """Return the number of positive rows in each stratified fold.

    Examples
    --------
    >>> folds_of(11)
    [4, 4, 3]
    """
    return [n_positive // n_folds + (i < n_positive % n_folds) for i in range(n_folds)]


def count_possible(numbers, sizes):
    """Return how many numbers are possible as the mean over rows with these positive counts.

    Examples
    --------
    >>> count_possible([0.5, 0.7], [2])
    {'possible': '1 of 2', 'chance of each': '0%'}
    """
    values = possible_means(sizes)
    chance = np.mean([can_print(f"{k / 1000:.3f}", values) for k in range(500, 1000)])
    possible = sum(can_print(f"{number:.3f}", values) for number in numbers)
    return {"possible": f"{possible} of {len(numbers)}", "chance of each": f"{chance:.0%}"}


def spreads(runs, row, name):
    """Return the spread of a score over a table's rows: printed, of one split each, and mixed.

    Parameters
    ----------
    runs : DataFrame
    row : Series
        The setting, a row of `together`.
    name : str
        The score.
    """
    printed, column = printed_scores(), all_scores(row["table"]).index(name)
    places, values = zip(*of_chosen(runs, row), strict=True)
    values = np.column_stack([of_row["values"][:, column] for of_row in values])
    mean = values.mean(axis=0)
    shown = np.array([printed.loc[place, name] for place in places])
    mixed = np.random.default_rng(0).permuted(np.repeat(values, 20, axis=0), axis=0)
    parts = {"printed": [shown], "one split": values, "different splits": mixed}
    return {name: np.std(part - mean, axis=1) for name, part in parts.items()}
