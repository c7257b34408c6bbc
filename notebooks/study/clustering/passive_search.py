"""The search for the passive clients behind the printed scores of M, and the evidence for them."""

import random
from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
import pandas as pd

GROUPS = ["overall", "active", "passive"]
METRICS = ["AMI", "ARI", "Purity", "BCubed precision", "BCubed recall"]
RUNS = ["I", "II", "III", "IV", "V"]
CELLS = pd.MultiIndex.from_product([GROUPS, METRICS], names=["group", "metric"])
MISPRINT = ["source", "table", "run", "group", "metric"]


def statistics(runs):
    """Return mean and standard deviation (n - 1) of the five runs of each table."""
    tables = runs.groupby(["source", "table"])
    return pd.concat({"mean": tables.mean(), "std": tables.std()}, names=["run"]).reorder_levels(
        ["source", "table", "run"]
    )


def same_digits(measured, stated):
    """Return which numbers agree when rounded to the four digits that the thesis prints."""
    return np.round(measured, 4) == np.round(stated, 4)


def names(passive):
    """Return the numbers of clients, as in the result files."""
    return " ".join(map(str, passive)) or "none"


def clients_of(names):
    """Return the clients of some `names`."""
    return () if names == "none" else tuple(map(int, names.split()))


def listed(passive):
    """Return the numbers of clients in words, such as "2, 6 and 9"."""
    *first, last = map(str, passive)
    return f"{', '.join(first)} and {last}" if first else last


def choices_of(n_clients, n_passive):
    """Return the choices of so many passive clients."""
    return list(combinations(range(n_clients), n_passive))


def by_cell(outcome):
    """Return the outcome of `Search.find` as rows for a file, one for each cell of the column."""
    facts = {name: outcome[name] for name in ("agree", "orders", "order", "next best")}
    values = zip(CELLS, outcome["measured"], outcome["low"], outcome["high"], strict=True)
    return [
        {"choice": names(outcome["passive"]), **facts, "group": group, "metric": metric}
        | {"measured": measured, "low": low, "high": high}
        for (group, metric), measured, low, high in values
    ]


def by_column(rows):
    """Return the outcomes again, one row for each printed column."""
    columns = rows.groupby(["source", "table", "run"])
    found = columns[["agree", "orders", "order", "next best"]].first()
    found.insert(0, "passive", columns["choice"].first().map(clients_of))
    for name in ("measured", "low", "high"):
        found[name] = [group[name].to_numpy() for _, group in columns]
    return found


class Search:
    """The search for the choice of passive clients and the visit order behind each column.

    Parameters
    ----------
    outcomes : callable
        Takes an edition, the passive clients and seeds of visit orders. It returns the distinct
        columns of scores, and the index of each seed's column.
    n_clients, n_orders, n_few, n_best : int
        As on the page: all visit orders, those for a first look, the choices that get all.
    first : int
        The first seed.
    """

    def __init__(self, outcomes: Callable, n_clients, n_orders, n_few, n_best, first=0):
        self.outcomes, self.n_clients = outcomes, n_clients
        self.n_orders, self.few, self.n_best = n_orders, min(n_few, n_orders), n_best
        self.first = first

    def columns(self, edition, passive, n_orders=None):
        """Return the distinct columns of a choice, and the index of each order's column."""
        seeds = range(self.first, self.first + (n_orders or self.n_orders))
        return self.outcomes(edition, passive, tuple(seeds))

    def choices(self, key):
        """Return the choices to try for a column; `key` is its source, table and run."""
        return choices_of(self.n_clients, int(key[1].split()[1][:-1]) // 10)

    def find(self, key, column):
        """Return the best outcome for one column, and the next best's agreement."""

        def distance(passive):
            return np.abs(self.columns(key[0], passive, self.few)[0] - column).sum(axis=1).min()

        choices = sorted(self.choices(key), key=distance)
        nearest = choices[: self.n_best]
        tried = [self.best_outcome(key[0], passive, column) for passive in nearest]
        best = max(tried, key=lambda outcome: (outcome["agree"], outcome["orders"]))
        others = [
            same_digits(self.columns(key[0], passive, orders)[0], column).sum(axis=1).max()
            for orders, some in ((self.few, choices), (self.n_orders, nearest))
            for passive in some
            if passive != best["passive"]
        ]
        return best | {"next best": max(others)}

    def best_outcome(self, edition, passive, column):
        """Return the outcome of a choice that is nearest to a column, over all visit orders."""
        values, which = self.columns(edition, passive)
        agree = same_digits(values, column).sum(axis=1)
        orders = np.bincount(which)
        best = np.lexsort([orders, agree])[-1]
        return {
            "passive": passive,
            "agree": agree[best],
            "orders": orders[best],
            "order": self.first + int(np.argmax(which == best)),
            "measured": values[best],
            "low": values.min(axis=0),
            "high": values.max(axis=0),
        }

    def examine(self, key, outcome, column):
        """Return the only cell of a column that disagrees, with evidence that it is a misprint."""
        (at,) = np.flatnonzero(~same_digits(outcome["measured"], column))
        reads, value = f"{column[at]:.4f}", f"{outcome['measured'][at]:.4f}"
        computed = [self.columns(key[0], passive, self.few)[0] for passive in self.choices(key)]
        computed.append(self.columns(key[0], outcome["passive"])[0])
        agree = same_digits(np.concatenate(computed), column)
        with_it = agree[agree[:, at]].sum(axis=1) - 1
        spread = f"{outcome['low'][at]:.4f} … {outcome['high'][at]:.4f}"
        others = with_it.max() if len(with_it) else "none has it"
        return {
            **dict(zip(("group", "metric"), CELLS[at], strict=True)),
            **{"published": float(reads), "measured": float(value), "slip": slip(reads, value)},
            **{"orders": spread, "others agree": others},
        }


def slip(printed, measured):
    """Return the typing error that turns one string of digits into the other.

    Examples
    --------
    >>> slip("0.9361", "0.9381"), slip("0.9381", "0.9831"), slip("0.12", "0.34")
    ('one digit', 'digits swapped', '')
    """
    differ = sum(a != b for a, b in zip(printed, measured, strict=True))
    if differ == 1:
        return "one digit"
    return "digits swapped" if sorted(printed) == sorted(measured) else ""


def drawn(n_clients, n_passive, seeds) -> Iterator[tuple[int, ...]]:
    """Yield for each seed the clients that the draw of Marino's programs leaves passive."""
    for seed in seeds:
        random.seed(seed)
        active = random.sample(range(n_clients), n_clients - n_passive)
        yield tuple(sorted(set(range(n_clients)) - set(active)))


def runs_of_clients(draws, n_clients):
    """Return the runs in which each client is passive, as bits, for every five draws in a row."""
    is_passive = np.array([[client in passive for client in range(n_clients)] for passive in draws])
    first = len(draws) - len(RUNS) + 1
    return sum(is_passive[run : first + run].astype(int) << run for run in range(len(RUNS)))


def explain_by_seeds(found, n_clients, starts):
    """Return which seeds draw the choices that were found.

    Parameters
    ----------
    found : DataFrame
        From `by_column`.
    n_clients, starts : int
        Each of five consecutive seeds draws one run; the first is less than `starts`.

    Returns
    -------
    DataFrame
        One row per table.
    dict of str to int
        How many starts explain all tables of an edition, each table with its own numbering of
        the clients.
    """
    rows, fitting = [], {}
    for (source, table), choices in found["passive"].groupby(["source", "table"]):
        draws = list(drawn(n_clients, len(choices.iloc[0]), range(starts + len(RUNS))))
        bits = runs_of_clients(draws, n_clients)[:starts]
        wanted = runs_of_clients(list(choices), n_clients)
        # A renumbering changes the order of the clients, but not how many have the same runs.
        same = (np.sort(bits, axis=1) == np.sort(wanted, axis=1)).all(axis=1)
        renumbered = np.flatnonzero(same).tolist()
        fitting.setdefault(source, []).append(set(renumbered))
        rows.append(
            {
                "source": source,
                "table": table,
                "lowest seed of each run": ", ".join(str(draws.index(c)) for c in choices),
                "starts as numbered": (bits == wanted).all(axis=1).sum(),
                "renumbered": len(renumbered),
                "first of these": renumbered[0] if renumbered else "none",
            }
        )
    starts_of = {source: len(set.intersection(*sets)) for source, sets in fitting.items()}
    return pd.DataFrame(rows), starts_of


def inside(passive, wider):
    """Return whether a choice of clients is a subset of one of the wider choices."""
    return any(set(passive) <= set(choice) for choice in wider)


class Verdicts:
    """The verdicts on the printed numbers.

    Parameters
    ----------
    found, misprints : DataFrame
        From `by_column`, and from a `Search`.
    printed : DataFrame
        The printed runs.
    n_orders : int
        The visit orders of the search.
    """

    def __init__(self, found, misprints, printed, n_orders):
        self.found, self.misprints, self.n_orders = found, misprints, n_orders
        runs, self.low, self.high = (
            pd.DataFrame(np.stack(found[name]), found.index, CELLS)
            for name in ("measured", "low", "high")
        )
        # The thesis computed them from the four digits of its tables, as the misprints show.
        self.measured = pd.concat([runs, statistics(runs.round(4))])
        self.from_printed = statistics(printed)
        self.slips = misprints.set_index(MISPRINT)["slip"]
        self.touched = {(source, table, *cell) for source, table, _, *cell in self.slips.index}

    def of(self, row):
        """Return measured value, range, status and note of one row of `study.published`."""
        key, cell = (row["source"], row["table"], row["run"]), (row["condition"], row["metric"])
        is_run = row["run"] in RUNS
        verdict = (self.of_run if is_run else self.of_statistic)(key, cell, float(row["published"]))
        limits = (t.loc[key, cell] if is_run else np.nan for t in (self.low, self.high))
        return self.measured.loc[key, cell], *limits, *verdict

    def of_statistic(self, key, cell, stated):
        """Return status and note of a printed mean or standard deviation."""
        agrees = same_digits(self.measured.loc[key, cell], stated)
        of_printed = same_digits(self.from_printed.loc[key, cell], stated)
        spoilt = (*key[:2], *cell) in self.touched and of_printed
        note = "of the measured runs, rounded to four digits; n - 1"
        if not agrees and spoilt:
            note += "; printed: computed with a misprinted run"
        return "exact" if agrees else "misprint" if spoilt else "differs", note

    def of_run(self, key, cell, stated):
        """Return status and note of a printed score of one run."""
        outcome = self.found.loc[key]
        note = f"found by search over subsets and orders: passive {names(outcome['passive'])}, "
        note += f"seed {outcome['order']}, {outcome['orders']} of {self.n_orders} orders"
        if same_digits(self.measured.loc[key, cell], stated):
            return "exact", note
        if (*key, *cell) in self.slips:
            others = f"; the other {len(CELLS) - 1} cells of the column agree; slip: "
            return "misprint", note + others + self.slips[(*key, *cell)]
        return "differs", f"{note}; nearest outcome, {outcome['agree']} of {len(CELLS)} cells agree"
