"""CSV files that a spreadsheet may open: no cell is a formula.

Classes, categories, names of columns and names of clients come from other sites. A spreadsheet runs
a cell such as ``=HYPERLINK(...)`` when it opens the file. `csv_bytes` writes an apostrophe before
such a text, which spreadsheets take for the mark of a text. The readers of files remove it again,
so that fedlib reads what it has written.
"""

from __future__ import annotations

import csv
import re
from typing import Any

import pandas as pd

# Spreadsheets skip blanks and quotation marks at the beginning, and some read the wide signs of
# Chinese and Japanese keyboards as the plain ones. A negative number is no formula.
FORMULA = re.compile(
    r"""[\s'"]*(?:[\t\r=+@＝＋＠－]|-(?!(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)?\Z))"""
)


def guarded(value: Any) -> Any:
    """Return a value of a cell, with an apostrophe before a text that could be a formula.

    Parameters
    ----------
    value : object
        Only texts are changed.

    Examples
    --------
    >>> [guarded(value) for value in ("=A1", "-1.5", "-A1", " @SUM(A1)", "well", -1)]
    ["'=A1", '-1.5', "'-A1", "' @SUM(A1)", 'well', -1]
    """
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def unguarded(text: str) -> str:
    r"""Return the text of a cell without the apostrophe that `guarded` has written.

    Examples
    --------
    >>> [unguarded(text) for text in ("'=A1", "'tis", "=A1")]
    ['=A1', "'tis", '=A1']
    >>> unguarded(guarded("'\t")) == "'\t"
    True
    """
    return text[1:] if text.startswith("'") and FORMULA.match(text[1:]) else text


def csv_bytes(frame: pd.DataFrame) -> bytes:
    r"""Return a table as the bytes of a CSV file (UTF-8) without formulas.

    All CSV files that fedlib writes are made here.

    Parameters
    ----------
    frame : DataFrame
        The names of its columns are the first row; its index is not written.

    Examples
    --------
    >>> csv_bytes(pd.DataFrame({"row": [1, 2], "class": ["well", "=A1"]}))
    b"row,class\n1,well\n2,'=A1\n"
    """
    safe = frame.copy(deep=False)
    safe.columns = pd.Index([guarded(name) for name in frame.columns], dtype=object)
    for j, dtype in enumerate(frame.dtypes):
        if not pd.api.types.is_numeric_dtype(dtype):
            safe.isetitem(j, frame.iloc[:, j].astype(object).map(guarded).to_numpy(object))
    text: str = safe.to_csv(index=False, lineterminator="\n")
    if "\r" in text:  # Python's writer does not quote it, and readers take it for the end of a row
        text = safe.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_ALL)
    return text.encode()
