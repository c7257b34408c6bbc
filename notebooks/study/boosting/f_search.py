"""The search for the settings of Vasilopoulou's experiments on boosting (Tables 3.3–3.7).

A *job* trains one setting on one split: F's original (XGBoost) once, or F's federated method once
per number of clients. All jobs form a *plan*, the most informative first. The *journal* is a text
file with one line per finished job, so a killed search loses one job at most, and a search
continues where the journal ends. `study.boosting.f_finals` runs it.
"""

import time
from functools import cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import xgboost
from scipy.stats import rankdata
from sklearn.model_selection import StratifiedKFold, train_test_split

from fedlib import datasets
from fedlib.datasets.partition import split_rows
from study.boosting import boosting_study, f_boosting
from study.shared.kept import code_digest

ORIGINAL, FEDERATED = "xgboost", "federated"
TABLES = {"3.3": "breast_cancer", "3.4": "diabetes", "3.5": "heart"}
TABLES |= {"3.6": "smoking", "3.7": "smoking"}
SMALL = ("3.3", "3.4", "3.5")
N_CLIENTS = dict.fromkeys(SMALL, (2, 3, 5, 7, 10)) | dict.fromkeys(("3.6", "3.7"), (2, 5))
SIZES = (500, 2_000, 4_000, 8_000, 16_000, 32_000)
SHARES = (50, 60, 70, 80, 90)  # negative rows in training, %
CONDITIONS = dict.fromkeys(SMALL, ("",)) | {
    "3.6": tuple(f"{size} samples" for size in SIZES),
    "3.7": tuple(f"{share}-{100 - share} negative-positive" for share in SHARES),
}
SMALL_GRID = (5, 10, 15, 20, 30, 40, 50, 75, 100, 150)
GRID = dict.fromkeys(SMALL, SMALL_GRID) | dict.fromkeys(("3.6", "3.7"), SMALL_GRID[:-1])
FEDERATED_GRID = GRID | dict.fromkeys(("3.6", "3.7"), SMALL_GRID[:-3])  # a tree costs much there
RULE = "rule"  # in place of a number of trees: F's stopping rule
TOL = 0.004  # F's example
SCORES = ("accuracy", "AUC", "sensitivity", "NPV")
SCALE = 10_000  # a score is stored as a whole number of ten-thousandths
DIGITS = 3  # in base 36


class Setting(NamedTuple):
    """One reading of F. The fields from ``leaf`` on concern the federated method or the original.

    Attributes
    ----------
    preparation : str
        How training and test rows are made, see `rows_of`.
    depth, rate, limit, reg_lambda : number
        The maximum depth, the learning rate, ``min_child_weight``, and λ.
    leaf, update, n_candidates, dealing
        Of the federated method: F's leaf, whether rows are updated from the merged leaves
        (``server``) or from those of the client (``client``), S, and how rows are split.
    start : {"share", "half"}
        Of the original: its first prediction, F's P/(P + N) or XGBoost's own ½ until version 2.
    """

    preparation: str = "hold-out"
    depth: int = 6
    rate: float = 0.3
    limit: float = 1.0
    reg_lambda: float = 1.0
    leaf: str = "all"
    update: str = "server"
    n_candidates: int = 10
    dealing: str = "stratified"
    start: str = "half"


class Job(NamedTuple):
    """One setting on one split."""

    table: str
    condition: str
    method: str
    setting: Setting
    seed: int

    @property
    def key(self):
        """The columns of the journal that identify the job."""
        return (self.table, self.condition, self.method, *map(str, self.setting), str(self.seed))


KEY = ("table", "condition", "method", *Setting._fields, "seed")


# Rows


class Fits(NamedTuple):
    """The pairs of training and scored rows of one split; the last one is the test."""

    X: np.ndarray
    y: np.ndarray
    pairs: list


@cache
def load(table, preparation):
    """Return the features and classes; with "ID" in the preparation, the row number is a feature.

    Stand-in data are refused, because nothing about F can be learnt from them.
    """
    data = datasets.load(TABLES[table])
    if data.source != "real":
        raise ValueError(f"the search needs the real file of {data.name}; it is missing")
    X = data.X
    if "ID" in preparation:
        X = np.column_stack([np.arange(len(X)), X])  # the file's ID is the row number
    return X, data.y


def rows_of(X, y, table, condition, preparation, seed):
    """Return the `Fits` of a split.

    - Tables 3.3–3.5: ``hold-out``, three stratified folds of 80 % of the rows, and the test.
    - Table 3.6: ``fifth of sample`` holds a fifth of the sample out; ``fifth of all`` holds a fifth
      of all rows out and trains on a sample of the others; ``folds`` cuts the sample into three.
    - Table 3.7, always tested on a fifth of the balanced set: ``equal`` trains on as many rows for
      every ratio; ``fewer positives`` keeps the negative rows of the balanced set and omits
      positive ones; ``all rows`` takes as many rows as there are.
    """
    if table in SMALL:
        train, test = boosting_study.hold_out(y, seed)
        folds = StratifiedKFold(3, shuffle=True, random_state=seed).split(train, y[train])
        pairs = [(train[fit], train[check]) for fit, check in folds]
        return Fits(X, y, [*pairs, (train, test)])
    if table == "3.6":
        return Fits(X, y, _rows_of_volume(y, int(condition.split()[0]), preparation, seed))
    return Fits(X, y, [_rows_of_ratio(y, int(condition[:2]), preparation, seed)])


def _rows_of_volume(y, size, preparation, seed):
    if preparation.startswith("fifth of all"):
        train, test = boosting_study.hold_out(y, seed)
        return [(_sample(y, train, size, seed), test)]
    sampled = boosting_study.sample(y, size, seed)
    if preparation.startswith("fifth of sample"):
        return [boosting_study.hold_out(y, seed, sampled)]
    folds = StratifiedKFold(3, shuffle=True, random_state=seed).split(sampled, y[sampled])
    return [(sampled[fit], sampled[check]) for fit, check in folds]


def _sample(y, rows, size, seed):
    """Return a stratified sample of these rows."""
    return train_test_split(rows, train_size=size, stratify=y[rows], random_state=seed)[0]


def _rows_of_ratio(y, share, preparation, seed):
    rng = np.random.default_rng(seed)
    negative, positive = (rng.permutation(np.flatnonzero(y == label)) for label in (0, 1))
    n_test = len(positive) // 5
    test = np.concatenate([negative[:n_test], positive[:n_test]])
    negative, positive = negative[n_test:], positive[n_test:]
    wanted = {
        "equal": 2 * len(positive),
        "half as many": len(positive),
        "fewer positives": len(positive) * 100 / share,
        "all rows": min(len(negative) * 100 / share, len(positive) * 100 / (100 - share)),
    }[preparation.removesuffix(" with ID")]
    n_negative = round(wanted * share / 100)
    n_positive = round(wanted) - n_negative
    return np.concatenate([negative[:n_negative], positive[:n_positive]]), test


# Models


def run_job(job, data):
    """Return the trees of Vasilopoulou's rule and the scores, one entry per number of clients.

    The scores (entries, scored) are those of the validation, if the table has one, and of the test,
    in the order of `SCORES`; an entry is a number of trees of `GRID`, and for the federated method
    F's rule at the end.
    """
    X, y = data
    fits = rows_of(X, y, job.table, job.condition, job.setting.preparation, job.seed)
    if job.method == ORIGINAL:
        return [_scores_of(job, fits, lambda train, new: _original(job, fits, train, new))]
    return [
        _scores_of(job, fits, lambda train, new, n=n: _federated(job, fits, train, new, n))
        for n in N_CLIENTS[job.table]
    ]


def _scores_of(job, fits, model):
    tables, stopped = [], 0
    for train, new in fits.pairs:
        margins, stopped = model(train, new)
        tables.append([score(fits.y[new], of_trees) for of_trees in margins])
    if job.table in SMALL:
        return stopped, np.hstack([np.mean(tables[:-1], axis=0), tables[-1]])
    return stopped, np.mean(tables, axis=0)


def score(y, margins):
    """Return the `SCORES` of log-odds; without a negative prediction, the NPV is 0."""
    predicted, positive = margins > 0, y == 1
    tp, tn = (predicted & positive).sum(), (~predicted & ~positive).sum()
    n_positive, n_kept = positive.sum(), (~predicted).sum()
    ranks = rankdata(margins)[positive].sum() - n_positive * (n_positive + 1) / 2
    auc = ranks / (n_positive * (len(y) - n_positive))
    return (tp + tn) / len(y), auc, tp / n_positive, tn / max(n_kept, 1)


def _original(job, fits, train, new):
    setting, y = job.setting, fits.y[train]
    exact = job.table in SMALL or len(train) <= 2_000
    options = {
        "objective": "binary:logistic",
        "base_score": 0.5 if setting.start == "half" else float(np.mean(y)),
        "tree_method": "exact" if exact else "hist",
        "max_depth": setting.depth,
        "learning_rate": setting.rate,
        "min_child_weight": setting.limit,
        "reg_lambda": setting.reg_lambda,
        "nthread": 1,
    }
    grid = GRID[job.table]
    booster = xgboost.train(options, xgboost.DMatrix(fits.X[train], label=y), grid[-1])
    rows = xgboost.DMatrix(fits.X[new])
    margins = [
        booster.predict(rows, iteration_range=(0, n), output_margin=True, strict_shape=False)
        for n in grid
    ]
    return margins, 0


def deal(job, fits, train, n_clients):
    """Return the parts of the clients that hold these training rows."""
    X, y = fits.X[train], fits.y[train]
    dealt = split_rows(X, n_clients, y, job.setting.dealing, random_state=job.seed)
    return [(X[part], y[part]) for part in dealt]


def _federated(job, fits, train, new, n_clients):
    setting = job.setting
    parts = deal(job, fits, train, n_clients)
    options = f_boosting.Options(
        setting.depth,
        setting.rate,
        setting.reg_lambda,
        setting.limit,
        setting.n_candidates,
        f_boosting.LEAVES.index(setting.leaf),
        setting.update == "client",
        TOL,
    )
    return f_boosting.boost(parts, fits.X[new], FEDERATED_GRID[job.table], options)


# The journal


class Journal:
    """A text file with one line per finished job.

    A line has the columns `KEY`, the trees of F's rule and the scores, each with one entry per
    number of clients. Scores are ten-thousandths in base 36, three digits each. A line that was cut
    off is ignored.
    """

    header = ",".join([*KEY, "stopped", "scores"]) + "\n"

    def __init__(self, path):
        self.path = Path(path)
        self.done = {}  # the line of each job, by its key
        if not self.path.exists():
            self.path.write_text(self.header, encoding="utf-8")
        text = self.path.read_text(encoding="utf-8")
        if not text.endswith("\n"):
            text = text[: text.rfind("\n") + 1]
            self.path.write_text(text, encoding="utf-8")
        for line in text.splitlines()[1:]:
            self.done[tuple(line.split(",")[: len(KEY)])] = line

    def add(self, job, results):
        """Append a finished job."""
        line = line_of(job, results)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        self.done[job.key] = line


def line_of(job, results):
    """Return the line of a finished job."""
    stopped = " ".join(str(n) for n, _ in results)
    scores = " ".join("".join(map(_digits, table.ravel())) for _, table in results)
    return ",".join([*job.key, stopped, scores])


def _digits(score):
    return np.base_repr(round(score * SCALE), 36).zfill(DIGITS)


def read(paths):
    """Return journals as a table with one row per job, number of clients and number of trees.

    Columns: `KEY`, ``n_clients`` (1 is the original), ``trees`` (text; `RULE` for F's), ``stopped``
    and the scores, with the prefix ``validation`` or ``test``.
    """
    frames = [
        pd.read_csv(path, dtype=dict.fromkeys((*KEY, "stopped", "scores"), str))
        for path in paths
        if Path(path).exists()
    ]
    lines = pd.concat(frames).drop_duplicates(list(KEY)).fillna({"condition": ""})
    blocks = []
    for (table, method), group in lines.groupby(["table", "method"], sort=False):
        numbers = (1,) if method == ORIGINAL else N_CLIENTS[table]
        trees = [*map(str, GRID[table])]
        if method == FEDERATED:
            trees = [*map(str, FEDERATED_GRID[table]), RULE]
        names = [f"test {name}" for name in SCORES]
        if table in SMALL:
            names = [f"validation {name}" for name in SCORES] + names
        values = _decode("".join(group["scores"].str.replace(" ", "", regex=False)))
        scores = pd.DataFrame(values.reshape(-1, len(names)), columns=names)
        each = len(numbers) * len(trees)
        keys = group.loc[group.index.repeat(each), list(KEY)].reset_index(drop=True)
        stopped = np.array(" ".join(group["stopped"]).split(), int).repeat(len(trees))
        places = pd.DataFrame(product(numbers, trees), columns=["n_clients", "trees"])
        places = pd.concat([places] * len(group), ignore_index=True)
        blocks.append(pd.concat([keys, places, scores], axis=1).assign(stopped=stopped))
    return pd.concat(blocks, ignore_index=True).astype({"seed": int})


def _decode(text):
    """Return the scores in a text of base-36 numbers with three digits."""
    raw = np.frombuffer(text.encode(), np.uint8).astype(int).reshape(-1, DIGITS)
    digits = np.where(raw >= ord("A"), raw - ord("A") + 10, raw - ord("0"))
    return digits @ (36 ** np.arange(DIGITS - 1, -1, -1)) / SCALE


# The plan


def settings_of(**choices):
    """Return the settings with every combination of these values."""
    names = list(choices)
    return [
        Setting(**dict(zip(names, values, strict=True))) for values in product(*choices.values())
    ]


SETTINGS = {
    "small": settings_of(depth=(2, 3, 4, 6, 8), rate=(0.05, 0.1, 0.3, 0.5), limit=(0.0, 1.0, 3.0)),
    "small-federated": settings_of(
        depth=(3, 6),
        rate=(0.3, 0.5),
        limit=(0.0, 1.0),
        leaf=("all", "parent"),
        update=("server", "client"),
    ),
    "small-federated-wide": settings_of(
        depth=(2, 3, 6, 8),
        rate=(0.1, 0.3, 0.5),
        limit=(0.0, 1.0),
        leaf=("all", "ended", "parent"),
        update=("server", "client"),
    ),
    "volume": settings_of(
        preparation=("fifth of all", "fifth of sample", "folds"),
        depth=(3, 4, 6, 8),
        rate=(0.1, 0.3, 0.5),
    ),
    "volume-refined": settings_of(
        preparation=("folds",), depth=(7, 8, 10, 12), rate=(0.4, 0.5, 0.7)
    )
    + settings_of(preparation=("folds with ID",), depth=(6, 8), rate=(0.3, 0.5)),
    "volume-federated": settings_of(preparation=("folds",), depth=(6, 8), rate=(0.5,))
    + settings_of(preparation=("folds",), depth=(8,), rate=(0.5,), leaf=("parent",)),
    "volume-federated-wide": settings_of(
        preparation=("folds",),
        depth=(4, 6, 8),
        rate=(0.3, 0.5),
        leaf=("all", "parent"),
        update=("server", "client"),
    ),
    "imbalance": settings_of(
        preparation=("equal", "fewer positives", "all rows"), depth=(3, 6, 8), rate=(0.1, 0.3, 0.5)
    ),
    "imbalance-refined": settings_of(
        preparation=("fewer positives",), depth=(7, 8, 10, 12), rate=(0.4, 0.5, 0.7)
    )
    + settings_of(preparation=("fewer positives with ID",), depth=(6, 8), rate=(0.3, 0.5)),
    "imbalance-federated": settings_of(
        preparation=("fewer positives",), depth=(6, 8), rate=(0.3, 0.5), update=("server", "client")
    )
    + settings_of(preparation=("fewer positives",), depth=(6, 8), rate=(0.5,), leaf=("parent",)),
    "imbalance-federated-wide": settings_of(
        preparation=("fewer positives", "equal"),
        depth=(6, 8),
        rate=(0.3, 0.5),
        leaf=("all", "parent"),
        update=("server", "client"),
    ),
    "imbalance-half": settings_of(
        preparation=("half as many",), depth=(3, 6, 8, 10), rate=(0.1, 0.3, 0.5, 0.7)
    ),
    "imbalance-federated-half": settings_of(
        preparation=("half as many",),
        depth=(6, 8),
        rate=(0.3, 0.5, 0.7),
        update=("server", "client"),
    )
    + settings_of(preparation=("half as many",), depth=(6, 8), rate=(0.5,), leaf=("parent",)),
    # Of those, the closest ones to the printed numbers in the first split.
    "imbalance-federated-half-close": settings_of(
        preparation=("half as many",), depth=(6, 8), rate=(0.3, 0.5)
    )
    + settings_of(preparation=("half as many",), depth=(6, 8), rate=(0.5,), leaf=("parent",)),
    "imbalance-federated-ID": settings_of(
        preparation=("fewer positives with ID",), depth=(6,), rate=(0.5,)
    ),
    "imbalance-fast": settings_of(preparation=("fewer positives",), depth=(6, 8), rate=(0.7,)),
    "imbalance-federated-fast": settings_of(
        preparation=("fewer positives",), depth=(6, 8), rate=(0.7,)
    ),
}
TABLES_OF = {"small": SMALL, "volume": ("3.6",), "imbalance": ("3.7",)}
ROUNDS = (  # a stage, its first split, and the split after its last one
    ("small", 0, 4),
    ("volume", 0, 3),
    ("imbalance", 0, 3),
    ("small-federated", 0, 3),
    ("imbalance-federated", 0, 3),
    ("volume-federated", 0, 3),
    ("imbalance-refined", 0, 3),
    ("volume-refined", 0, 3),
    ("small-federated-wide", 0, 3),
    ("volume-federated-wide", 0, 3),
    ("imbalance-federated-wide", 0, 3),
    ("imbalance-half", 0, 3),
    ("imbalance-federated-half", 0, 1),
    ("imbalance-federated-half-close", 1, 3),
    ("imbalance-federated-ID", 0, 3),
    ("imbalance-fast", 0, 3),
    ("imbalance-federated-fast", 0, 3),
)
COARSE_SPLITS = {"small": 3, "volume": 3, "imbalance": 3}  # with which settings are compared
FINAL_SPLITS = {"small": 50, "volume": 10, "imbalance": 10}


def kind_of(table):
    """Return the kind of experiment: the key of `TABLES_OF`, `COARSE_SPLITS`, `FINAL_SPLITS`."""
    return next(kind for kind, tables in TABLES_OF.items() if table in tables)


def plan(stages=tuple(SETTINGS)):
    """Yield the jobs of these stages: first one split of all settings, then the next split."""
    for stage, first, stop in ROUNDS:
        if stage not in stages:
            continue
        kind = stage.split("-")[0]
        method = FEDERATED if "federated" in stage else ORIGINAL
        for seed in range(first, stop):
            for table in TABLES_OF[kind]:
                for condition in CONDITIONS[table]:
                    for setting in SETTINGS[stage]:
                        yield Job(table, condition, method, setting, seed)


def search(journal, jobs, minutes=np.inf):
    """Run the jobs that the journal lacks, until the time is over; return how many remain."""
    end, remaining = time.monotonic() + 60 * minutes, 0
    for job in jobs:
        if job.key in journal.done:
            continue
        if time.monotonic() > end:
            remaining += 1
            continue
        journal.add(job, run_job(job, load(job.table, job.setting.preparation)))
    return remaining


def run_again(journal, n_jobs):
    """Run some jobs of a journal on the small sets again; return how many such jobs it has.

    A digest of fedlib's code chooses them, so that other jobs have their turn when it changes.

    Raises
    ------
    AssertionError
        When the trees of the rule or a score differ, by more than one ten-thousandth.
    """
    jobs = [job for job in plan() if job.table in SMALL and job.key in journal.done]
    code = code_digest()
    jobs.sort(key=lambda job: sha256(f"{code}{job.key}".encode()).digest())
    for job in jobs[:n_jobs]:
        kept = journal.done[job.key]
        now = line_of(job, run_job(job, load(job.table, job.setting.preparation)))
        assert kept.split(",")[-2] == now.split(",")[-2], f"other trees: {kept}"
        scores = (_decode(line.split(",")[-1].replace(" ", "")) for line in (kept, now))
        assert np.allclose(*scores, rtol=0, atol=1.5 / SCALE), f"other scores: {kept}"
    return len(jobs)


def copy(kept, journal):
    """Copy a kept journal, if there is one, unless the journal has begun."""
    journal = Path(journal)
    journal.parent.mkdir(parents=True, exist_ok=True)
    if not journal.exists():
        text = Path(kept).read_text(encoding="utf-8") if Path(kept).exists() else Journal.header
        journal.write_text(text, encoding="utf-8")


def count_fits(runs):
    """Return how many models these rows of `read` are from, by table and method."""
    models = runs.drop_duplicates([*KEY, "n_clients"])
    each = np.where(models["table"].isin(SMALL), 4, 1)
    each = np.where(models["preparation"].str.startswith("folds"), 3, each)
    return models.assign(fits=each).groupby(["table", "method"])["fits"].sum()
