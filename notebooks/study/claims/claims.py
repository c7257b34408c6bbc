"""Verdicts on what the sources claim in words.

`datasets/claims.csv` lists the claims in words of our own. A claim is tested as a statement about a
measured quantity, such as ``"above 0.9"``, in all runs to which it applies. Its verdict is

- ``holds``: all runs agree with the claim,
- ``holds partly``: at least half of the runs agree, but not all,
- ``refuted``: fewer agree; or the claim is universal ("in every test", "none") and one run does
  not agree. A counterexample is named.

The claims' numbers and texts are keys of the kept results: a change of one breaks the comparison
with the last complete run.
"""

import html
import re
from itertools import groupby

import numpy as np
import pandas as pd

import study
from study.claims import claim_ids
from study.shared.pages import break_names, numbered_table

STATUSES = ["holds", "holds partly", "refuted"]
RESULTS = ["measured", "agree", "status", "counterexample"]  # of a test, as shown
COUNTED = ["agreeing", "runs", "counterexample"]  # columns that only tests of claims have
COLUMNS = [*study.KEY, "published", "measured", "low", "high", "status", "note", *COUNTED]
COLUMNS += ["sha256", "versions"]
UNITS = {"n_clients": "{} clients", "points": "{:,} points"}
UNITS |= {name: f"{name} {{}}" for name in ("share", "dealing", "seed")}


def listed(**values):
    """Return the claims that have these values in their columns, in the order of the file."""
    table = pd.read_csv(study.ROOT / "datasets/claims.csv")
    table["universal"] = table["universal"] == "yes"
    for column, value in values.items():
        table = table[table[column] == value]
    return table.reset_index(drop=True)


def verdict(agreeing, runs, universal=False):
    """Return the verdict on a claim with which so many of the runs agree.

    Examples
    --------
    >>> verdict(3, 4), verdict(1, 4), verdict(3, 4, universal=True)
    ('holds partly', 'refuted', 'refuted')
    """
    if not 0 <= agreeing <= runs or runs == 0:
        raise ValueError(f"agreeing must be between 0 and runs > 0, got {agreeing} of {runs}")
    if agreeing == runs:
        return "holds"
    return "refuted" if universal or 2 * agreeing < runs else "holds partly"


def excess(values, limit):
    """Return how far values lie outside a limit: negative inside, 0 on the limit.

    Parameters
    ----------
    values : array-like
    limit : str
        ``"above x"``, ``"below x"``, ``"at least x"``, ``"at most x"`` or ``"x to y"``.
    """
    values = np.asarray(values, float)
    side, _, number = limit.rpartition(" ")
    if side in ("above", "at least"):
        return float(number) - values
    if side in ("below", "at most"):
        return values - float(number)
    low, to, high = limit.split(" ")
    if to != "to":
        raise ValueError(f"limit must be such as 'above 0.9' or '0 to 0.1', got {limit!r}")
    return np.maximum(float(low) - values, values - float(high))


def agrees(values, limit):
    """Return which values agree with a limit; for its form see `excess`."""
    outside = excess(values, limit)
    if np.isnan(outside).any():
        raise ValueError(f"values must be numbers, got {np.isnan(outside).sum()} that are missing")
    strict = limit.startswith(("above", "below"))
    return outside < 0 if strict else outside <= 1e-12


def judge(
    values,
    limit,
    source,
    number,
    dataset="",
    method="",
    condition="",
    note="",
    sha256="",
    printed=False,
):
    """Return the verdict on one test of a claim, as a row like those of `study.fidelity`.

    Parameters
    ----------
    values : array-like or Series
        The measured values, one per run. The index of a Series names the runs.
    limit : str
        What the claim states about them; see `excess`.
    source : str
    number : int
        The claim's number in its source, as in `listed`.
    dataset, method, condition, note, sha256 : str, optional
        The other columns of the row.
    printed : bool, default=False
        Whether the values are the source's own printed numbers. The column ``run`` states it.

    Returns
    -------
    dict
        ``measured`` is the median, ``low`` and ``high`` are the minimum and maximum, ``agreeing``
        and ``runs`` are numbers of runs, and ``counterexample`` names the run farthest from the
        claim and its value.
    """
    values = values if isinstance(values, pd.Series) else pd.Series(np.ravel(values), dtype=float)
    agreeing = agrees(values, limit)
    contrary = ""
    if not agreeing.all():
        worst = int(np.argmax(excess(values, limit)))
        name = name_run(values.index, worst)
        contrary = f"{name}: {values.iloc[worst]:.4g}".removeprefix(": ")
    spread = values.median(), values.min(), values.max()
    row = _row(source, number, dataset, method, condition, limit, spread)
    row["run"] = "printed" if printed else ""
    return _counted(row, int(agreeing.sum()), len(values), contrary, note, sha256)


class Tests(list):
    """Tests of the claims of one source, each a row of `judge`."""

    def __init__(self, source):
        super().__init__()
        self.source = source

    def add(self, number, values, limit, *names, **options):
        """Test a claim in one way; for the parameters see `judge`."""
        self.append(judge(values, limit, self.source, number, *names, **options))


def judge_counts(
    agreeing,
    runs,
    spread,
    limit,
    source,
    number,
    dataset="",
    method="",
    condition="",
    note="",
    sha256="",
):
    """Return the verdict on one test of which only the number of agreeing runs was kept.

    Parameters
    ----------
    agreeing, runs : int
    spread : (measured, low, high)
        The mean and an interval of the runs' values.
    limit, source, number, dataset, method, condition, note, sha256
        As of `judge`.
    """
    row = _row(source, number, dataset, method, condition, limit, spread)
    contrary = f"{runs - agreeing} of {runs} splits" if agreeing < runs else ""
    return _counted(row, agreeing, runs, contrary, note, sha256)


def _row(source, number, dataset, method, condition, limit, spread):
    [claim] = listed(source=source, number=number).itertuples()
    names = [source, f"claim {number}, {claim.place}", dataset, method, condition, "", claim.text]
    return dict(zip(COLUMNS, [*names, limit, *map(float, spread)], strict=False))


def _counted(row, agreeing, runs, counterexample, note, sha256):
    universal = listed(source=row["source"], text=row["metric"])["universal"].item()
    row |= {"status": verdict(agreeing, runs, universal), "note": note}
    row |= {"agreeing": agreeing, "runs": runs, "counterexample": counterexample}
    return row | {"sha256": sha256, "versions": study.VERSIONS}


def name_run(index, position):
    """Return the name of a run: the values of an index at a position, with their units."""
    if index.names == [None]:
        return ""
    key = index[position]
    keys = key if isinstance(key, tuple) else (key,)
    parts = [UNITS.get(name, "{}").format(k) for name, k in zip(index.names, keys, strict=True)]
    return ", ".join(parts)


def label(source, number):
    """Return the short name of a claim, such as P7. M1 and M2 are the editions of M, not claims."""
    return f"M, claim {number}" if source == "M" else f"{source}{number}"


def link(label):
    """Return the short name of a claim as a link to the page of all claims, in HTML.

    Examples
    --------
    >>> link("P7")
    '<a class="claim" href="../book/claims.html#P-claim-7">P7</a>'
    """
    source, number = re.fullmatch(r"([A-Z])\D*(\d+)", label).groups()
    return claim_ids.link(label, claim_ids.of_statement(source, int(number)))


def numbers(rows):
    """Return the claims' numbers of rows of `judge`."""
    return rows["table"].str.extract(r"^claim (\d+),")[0].astype(int)


def separate(rows):
    """Return the rows of printed numbers, in the order of the sources, and the tests of claims."""
    of_numbers = rows.drop(columns=COUNTED, errors="ignore")
    return study.published()[study.KEY].merge(of_numbers, on=study.KEY), rows[are_tests(rows)]


def are_tests(rows):
    """Return which rows are tests of claims, and not comparisons of printed numbers."""
    return rows["table"].str.startswith("claim ")


def of_source(source, this_run):
    """Return the kept rows of one source's claims, or those of this run.

    The kept rows are of the last complete run on real data.
    """
    if this_run:
        rows = study.read("fidelity-*.csv", [study.RESULTS])
    else:
        rows = study.read("claims.csv", [study.KEPT])
    rows = rows[(rows["source"] == source) & are_tests(rows)]
    return rows.astype({"agreeing": int, "runs": int}).reset_index(drop=True)


def combine(rows, by=(), printed=False):
    """Return one row per claim: how many runs agree, in all tests together, and the verdict.

    Parameters
    ----------
    rows : DataFrame
        Rows of `judge` on claims of one source.
    by : sequence of str, optional
        Columns by which to divide the tests of a claim.
    printed : bool, default=False
        Combine the tests on the source's printed numbers instead of those on measured values.

    Returns
    -------
    DataFrame
        With the columns ``claim`` (source and number), those of ``by``, ``text``, ``agreeing``,
        ``runs``, ``share``, ``status`` and ``counterexample``: the run farthest from the claim.
    """
    combined = []
    by = list(by)
    rows = rows[rows["run"].eq("printed") == printed]
    for (_, *values), tests in rows.assign(number=numbers(rows)).groupby(
        ["number", *by], sort=False
    ):
        first = tests.iloc[0]
        claim = listed(source=first["source"], number=int(first["number"])).iloc[0]
        agreeing, runs = int(tests["agreeing"].sum()), int(tests["runs"].sum())
        row = {"claim": label(first["source"], first["number"])}
        kind = " (universal)" if claim["universal"] else ""
        row |= dict(zip(by, values, strict=True)) | {"text": claim["text"] + kind}
        row |= {"agreeing": agreeing, "runs": runs, "share": agreeing / runs}
        row["status"] = verdict(agreeing, runs, claim["universal"])
        combined.append(row | {"counterexample": _worst(tests)})
    frame = pd.DataFrame(combined)
    return frame.sort_values("claim", key=_by_number, kind="stable", ignore_index=True)


def _by_number(claims):
    return claims.str.extract(r"(\d+)$")[0].astype(int)


def _worst(tests):
    """Return the counterexample farthest from the claim, with the names of its test."""
    contrary = tests[tests["counterexample"].ne("")]
    if contrary.empty:
        return ""
    far = [
        max(excess(np.array([row.low, row.high]), row.published)) for row in contrary.itertuples()
    ]
    row = contrary.iloc[int(np.argmax(far))]
    dataset = "" if row["source"] == "P" and row["condition"] else row["dataset"]  # P: in settings
    names = [row["method"], dataset, row["condition"], row["counterexample"]]
    parts = ", ".join(name for name in names if name).split(", ")
    return ", ".join(part for part, _ in groupby(parts))  # a kind of split may occur twice


def show(rows, claims=None, by=(), printed=False):
    """Return `combine` as a Styler, of all claims or those with these numbers."""
    rows = rows if claims is None else rows[numbers(rows).isin(claims)]
    frame = combine(rows, by, printed)
    frame["runs that agree"] = [
        f"{row.agreeing} of {row.runs} ({row.share:.0%})" for row in frame.itertuples()
    ]
    columns = ["claim", *(by or ["text"]), "runs that agree", "status", "counterexample"]
    return study.styled(frame[columns].rename(columns={"text": "in short"}), {"claim": link})


def tests_in_folds(rows, name):
    """Return one folded table per claim, with all its tests, as one numbered table."""
    folds = []
    for number, tests in rows.groupby(numbers(rows).to_numpy()):
        head = f"{label(tests['source'].iloc[0], number)}: {tests['metric'].iloc[0]}"
        shared, body = split_off_shared(describe_tests(tests))
        above = f"<p>In all rows: {html.escape(shared)}.</p>" if shared else ""
        table = study.styled(body).to_html(table_uuid=f"{name}_{number}")
        scrolling = f'<div class="fedlib-scroll" tabindex="0">{break_names(table)}</div>'
        folds.append(f"<details><summary>{head}</summary>{above}{scrolling}</details>")
    text = rows[["metric", "status"]].to_string()
    return numbered_table(
        "".join(folds), text, "The tests of each claim. Open a claim to see them.", name
    )


def describe_tests(tests):
    """Return tests of a claim with the texts and numbers that a reader compares."""
    return pd.DataFrame(
        {
            "dataset": tests["dataset"],
            "method": tests["method"],
            "condition": tests["condition"],
            "of": tests["run"].replace("", "measured"),
            "limit": tests["published"],
            "measured": [
                with_interval(*test) for test in tests[["measured", "low", "high"]].values
            ],
            "agree": [f"{k:.0f} of {n:.0f}" for k, n in tests[["agreeing", "runs"]].values],
            "status": tests["status"],
            "counterexample": tests["counterexample"],
            "note": tests["note"],
        }
    ).reset_index(drop=True)


def with_interval(measured, low, high):
    """Return a number with three decimals, and with the interval around it if there is one.

    Examples
    --------
    >>> with_interval(0.5, 0.25, 1.0), with_interval(0.5, np.nan, np.nan)
    ('0.500 (0.250 to 1.000)', '0.500')
    """
    return f"{measured:.3f}" + ("" if np.isnan(low) else f" ({low:.3f} to {high:.3f})")


def split_off_shared(frame):
    """Return the texts that all tests share as one text, and a frame without them.

    Results stay in the frame. Columns without any text are left out.

    Examples
    --------
    >>> frame = pd.DataFrame({"method": ["a", "a"], "agree": ["1 of 1"] * 2, "note": ["", ""]})
    >>> split_off_shared(frame)[0], list(split_off_shared(frame)[1])
    ('method a', ['agree'])
    """
    frame = frame.loc[:, frame.ne("").any()]
    names = [name for name in frame if name not in RESULTS and frame[name].nunique() == 1]
    shared = "; ".join(f"{name} {frame[name].iloc[0]}" for name in names)
    return shared, frame.drop(columns=names)
