"""Names of claims, and links to them.

A claim is a number that a source prints in a table, or a statement in words. Its name consists of
parts with ``:`` between them:

- a statement: the source, ``claim``, and its number in `datasets/claims.csv`, as in ``P:claim:7``;
- a number: the source, the table, those of data set, method, condition and run that vary in the
  table, and the metric, as in ``F:3.3:xgboost:test:AUC``. Three rules keep names short and free of
  special characters: a space becomes ``-``; a percentage of a table is a part of its own, without
  its sign; and ``overall``, the scores of all rows, is left out, as in ``M1:passive:10:II:AMI``.

`datasets/published.csv` never changes, so neither do the names. The pages link to a claim's row in
the page of all claims, and from there to the cell of a table in the layout of a source. The anchor
of both is the name with ``-`` in place of ``:`` and ``.``, which have a meaning in CSS selectors.
"""

import html
import re
from functools import cache

import pandas as pd

import study

PAGE = "../book/claims.html"  # from the pages of the notebooks
VARYING = ["dataset", "method", "condition", "run"]


@cache
def _numbers():
    """Return the names of the printed numbers: a Series indexed by their keys."""
    rows = study.published()
    names = {}
    for (source, table), cells in rows.groupby(["source", "table"], sort=False):
        used = [column for column in VARYING if cells[column].nunique() > 1]
        first = [source, *re.sub(r" (\d+)%$", r":\1", table).split(":")]
        for row in cells.itertuples():
            values = [getattr(row, column) for column in used]
            parts = [*first, *(v for v in values if v not in ("", "overall")), row.metric]
            names[tuple(getattr(row, column) for column in study.KEY)] = ":".join(
                part.replace(" ", "-") for part in parts
            )
    return pd.Series(names).rename_axis(study.KEY)


def of_numbers(rows):
    """Return the names of printed numbers, in the order of the rows.

    Parameters
    ----------
    rows : DataFrame
        With the columns `study.KEY`. If one is missing, no row has a name.

    Returns
    -------
    list of str
        ``""`` for a row that is not in `datasets/published.csv`.

    Examples
    --------
    >>> of_numbers(study.published(source="K"))
    ['K:sse:federated_kmeans:SSE', 'K:sse:kmeans:SSE']
    """
    if not set(study.KEY) <= set(rows):
        return [""] * len(rows)
    names = _numbers()
    return [names.get(tuple(key), "") for key in rows[study.KEY].fillna("").itertuples(index=False)]


def of_statement(source, number):
    """Return the name of a claim in words.

    Examples
    --------
    >>> of_statement("P", 7)
    'P:claim:7'
    """
    return f"{source}:claim:{number}"


def anchor(name):
    """Return the name of a claim as the identifier of an element of a page.

    Examples
    --------
    >>> anchor("F:3.3:xgboost:test:AUC")
    'F-3-3-xgboost-test-AUC'
    """
    return re.sub(r"[:.]", "-", name)


def link(text, name, place=False):
    """Return a text as a link from a notebook's page to a claim, in HTML.

    Parameters
    ----------
    text : str
        What the page shows; it is escaped. An empty text has no link.
    name : str
        The claim; without one, the text is returned without a link.
    place : bool, default=False
        Whether the link is also the place of the claim in its page, to which the page of all claims
        links back. A page can be the place of a claim only once.

    Examples
    --------
    >>> link("0.98", "M1:passive:10:II:AMI")
    '<a class="claim" href="../book/claims.html#M1-passive-10-II-AMI">0.98</a>'
    """
    if not (text and name):
        return html.escape(text)
    identifier = f' id="{anchor(name)}"' if place else ""
    return f'<a class="claim"{identifier} href="{PAGE}#{anchor(name)}">{html.escape(text)}</a>'
