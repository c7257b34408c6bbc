"""Tables in the layout of the sources, with the printed and the measured value in each cell."""

import html

import numpy as np
import pandas as pd

from study.claims import claim_ids
from study.shared.pages import shade

NOT_MEASURED = "–"
# For each status: the sign behind the measured value, and its explanation.
MARKS = {
    "exact": ("", ""),
    "within": ("≈", "the printed value lies inside the spread of the measured ones"),
    "misprint": ("†", "the printed value is a misprint"),
    "differs": ("≠", "the values differ"),
}


def as_printed(rows, index, columns, titles=None, decimals=None, caption=""):
    """Return the rows of a result in the layout of the table that a source prints.

    Each cell is ``printed | measured``. A cell that is not exact has a sign and a coloured edge.
    The printed number is a link to its claim, if the rows have all columns of `study.KEY`.

    Parameters
    ----------
    rows : DataFrame
        From `study.fidelity`, or any rows with the columns ``published``, ``measured`` and
        ``status``. Each combination of the keys occurs once.
    index, columns : list of str
        The columns of ``rows`` whose values name the rows and the columns of the printed table,
        from the outer to the inner level.
    titles : mapping of str to (mapping of str to str), optional
        For a key, its values in the printed order and the text printed for each. Values that are
        not listed follow in the order of ``rows`` and keep their names.
    decimals : int, optional
        The digits in which the numbers are compared if the source omits zeros at the end; by
        default, each number has the digits that are printed.
    caption : str, optional
        Stands above the table, before the explanation of the signs.

    Returns
    -------
    Styler

    Raises
    ------
    ValueError
        When a combination of the keys occurs twice, a status is unknown, or a number has the
        status ``exact`` and its digits differ.

    Examples
    --------
    >>> rows = pd.DataFrame(
    ...     [("AMI", "a", "0.50", 0.501, "exact"), ("AMI", "b", "0.7", 0.64, "differs")],
    ...     columns=["metric", "dataset", "published", "measured", "status"],
    ... )
    >>> as_printed(rows, ["metric"], ["dataset"], {"dataset": {"b": "B"}}).data.to_dict()
    {'B': {'AMI': '0.7 | 0.6 ≠'}, 'a': {'AMI': '0.50 | 0.50'}}
    """
    titles = titles or {}
    cells = rows.assign(
        text=[cell(row, decimals) for _, row in rows.iterrows()],
        claim=claim_ids.of_numbers(rows),
        style=rows["status"].where(rows["measured"].notna()).map(style),
    )
    for key in [*index, *columns]:
        shown = titles.get(key, {})
        order = list(dict.fromkeys([*shown, *rows[key]]))
        ordered = pd.Categorical(rows[key], order, ordered=True)
        cells[key] = ordered.rename_categories([shown.get(value, value) for value in order])
    names = {"index": [None] * len(index), "columns": [None] * len(columns)}
    text, styles, claimed = (
        cells.pivot(index=index, columns=columns, values=value)
        .sort_index()
        .sort_index(axis=1)
        .rename_axis(**names)
        .fillna("")
        for value in ("text", "style", "claim")
    )
    linked = np.frompyfunc(ClaimText, 2, 1)(text.to_numpy(object), claimed.to_numpy(object))
    text = pd.DataFrame(linked, text.index, text.columns, dtype=object)
    styler = text.style.apply(lambda _: styles, axis=None)
    styler.set_table_attributes('class="dataframe"')
    styler.format(ClaimText.to_html)
    return styler.set_caption(" ".join(filter(None, [caption, legend(rows)])))


class ClaimText(str):
    """The text of a cell, with the name of the claim to which its printed number is a link."""

    def __new__(cls, text, claim):
        """Return the text; an empty name means that there is no claim."""
        self = super().__new__(cls, text)
        self.claim = claim
        return self

    def to_html(self):
        """Return the text with a link, which is also the place of the claim in the page."""
        published, line, measured = self.partition(" |")
        return claim_ids.link(published, self.claim, place=True) + line + html.escape(measured)


def cell(row, decimals=None):
    """Return the text of one cell, such as ``"0.71 | 0.70 ≠"``."""
    published, measured, status = row["published"], row["measured"], row["status"]
    if pd.isna(measured):
        return f"{published} | {NOT_MEASURED}"
    digits = max(decimals or 0, len(published.partition(".")[2]))
    text = f"{measured:.{digits}f}"
    if status == "exact" and float(text) != float(published):
        text = f"{np.floor(measured * 10**digits + 1e-9) / 10**digits:.{digits}f}"  # truncated
        if float(text) != float(published):
            raise ValueError(f"the status of {published} is exact, but the measured is {measured}")
    return f"{published} | {text} {sign(status)}".rstrip()


def sign(status):
    """Return the sign of a status; raise ValueError if the status is unknown."""
    if status not in MARKS:
        raise ValueError(f"status must be one of {', '.join(MARKS)}; got {status!r}")
    return MARKS[status][0]


def style(status):
    """Return the CSS of a cell; a value that is exact, or missing, has no mark."""
    return shade(status) if status in MARKS and sign(status) else ""


def legend(rows):
    """Return the explanation of a cell and of the signs that occur in a table."""
    measured = rows["measured"].notna()
    occurring = rows.loc[measured, "status"].unique()
    signs = {mark: text for status, (mark, text) in MARKS.items() if status in occurring}
    if not measured.all():
        signs[NOT_MEASURED] = "not measured"
    explained = [f"{mark}: {text}." for mark, text in signs.items() if text]
    return " ".join(["Each cell: printed | measured.", *explained])


def name_axes(names, first, *others):
    """Name the axes of panels in a row by the first two features; the panels share the second."""
    first.set_ylabel(names[1])
    for ax in (first, *others):
        ax.set_xlabel(names[0])
