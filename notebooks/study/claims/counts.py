"""The one count of printed numbers and of claims, for all pages and articles that state it.

A printed number is a *result*, or it *describes data*: sizes of data sets, and the sizes in an
example whose points were built from them. Both add up to the numbers of `datasets/published.csv`.
"""

import pandas as pd

import study
from study.claims import claims

OF_DATA = {("M1", "data sets"), ("M2", "data sets"), ("F", "2.1"), ("F", "5.2")}
STATUSES = ["exact", "within", "misprint", "differs"]


def describe_data(rows):
    """Return which rows of printed numbers describe data: a boolean array.

    Parameters
    ----------
    rows : DataFrame
        With the columns ``source`` and ``table``.

    Examples
    --------
    >>> describe_data(pd.DataFrame({"source": ["F", "F"], "table": ["2.1", "3.3"]})).tolist()
    [True, False]
    """
    return pd.MultiIndex.from_frame(rows[["source", "table"]]).isin(OF_DATA)


def searched(rows):
    """Return which numbers are exact only after a search for a choice that is not stated."""
    return rows["status"].eq("exact") & rows["note"].str.contains("found by search")


def summaries(rows):
    """Return which numbers are exact as means or deviations of runs that a search has found."""
    return rows["status"].eq("exact") & rows["run"].isin(["mean", "std"])


def of_numbers(rows):
    """Return the counts of measured numbers: a dict.

    Parameters
    ----------
    rows : DataFrame
        Rows of `study.fidelity`.

    Returns
    -------
    dict of str to int
        ``published``: all; ``of data``: those that describe data; ``results``: the others, and of
        these those with each of `STATUSES`. The ``exact`` ones are ``searched``, ``summaries`` or
        ``predicted``: measured with nothing but what the source states. ``by row`` counts those
        that are ``within`` only because their whole row is plausible.
    """
    results = rows[~describe_data(rows)]
    counts = {"published": len(rows), "results": len(results), "of data": len(rows) - len(results)}
    counts |= {status: int(results["status"].eq(status).sum()) for status in STATUSES}
    counts |= {"searched": int(searched(results).sum())}
    counts |= {"summaries": int(summaries(results).sum())}
    counts["predicted"] = counts["exact"] - counts["searched"] - counts["summaries"]
    outside = results["note"].str.contains("(?:below|above) the central")
    counts["by row"] = int((outside & results["status"].eq("within")).sum())
    return counts


def of_claims(tests):
    """Return how many claims in words have each verdict, from the rows of `claims.judge`."""
    verdicts = pd.concat(claims.combine(rows) for _, rows in tests.groupby("source", sort=False))
    return {status: int(verdicts["status"].eq(status).sum()) for status in claims.STATUSES}


def kept():
    """Return the counts of the last complete run: `of_numbers` and `of_claims` in one dict."""
    numbers, tests = (study.read(name, [study.KEPT]) for name in ("fidelity.csv", "claims.csv"))
    tests = tests.astype({"agreeing": int, "runs": int})
    found = of_claims(tests)
    return of_numbers(numbers) | found | {"claims": sum(found.values())}
