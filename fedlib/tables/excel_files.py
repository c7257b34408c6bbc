"""Excel files of rows: one sheet, whose cells have types of their own."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pandas as pd

from fedlib.tables.cells import as_text, clean_text, read_cells, without_numbers
from fedlib.tables.layouts import LEADING_ZERO, check_header, check_names
from fedlib.tables.read_options import ReadOptions, named_columns
from fedlib.tables.streams import unpacked_limit
from fedlib.tables.text_files import FileTable

__all__ = ["read_excel"]

N_ROWS = 100  # that are compared with the names


def read_excel(path: Path, options: ReadOptions) -> FileTable:
    """Return the table in a sheet of an Excel file.

    Raises
    ------
    ValueError
        When there are several sheets and none is named, the sheet has no names, or the package that
        reads it is missing.
    """
    _check_size(path)
    frame = _read_sheet(path, options)
    frame = frame.iloc[options.skip_lines :]
    frame = frame[frame.notna().any(axis=1)].dropna(axis=1, how="all")
    if not len(frame):
        raise ValueError("the sheet is empty")
    names = [str(i) for i in range(frame.shape[1])]
    if options.header is not False:
        first = int(frame.index[0]) + 1
        names = as_text(frame.iloc[0]).fillna("").str.strip().tolist()
        frame = frame.iloc[1:]
        if options.header is None:
            rows = frame.head(N_ROWS).apply(as_text).fillna("").to_numpy(str)
            check_header(names, rows.tolist(), f"row {first} of the sheet")
        check_names(names, f"row {first} of the sheet")
    frame = frame.set_axis(names, axis=1).reset_index(drop=True)
    texts = [*named_columns(options.text, names), options.ids]
    zeros: dict[str, str] = {}
    for name in names:
        frame[name] = _column(frame[name], name in texts, options, zeros)
    return FileTable(frame, leading_zeros=zeros)


def _check_size(path: Path) -> None:
    """Raise ValueError if the archive unpacks to far more than its size."""
    limit = unpacked_limit(path.stat().st_size)
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no .xlsx file; open it in Excel and save it as .xlsx or .csv")
    with zipfile.ZipFile(path) as archive:
        if sum(part.file_size for part in archive.infolist()) > limit:
            raise ValueError(
                f"the file unpacks to more than {limit:,} bytes, which is too much for its size;"
                " save the sheet as .csv"
            )


def _read_sheet(path: Path, options: ReadOptions) -> pd.DataFrame:
    """Return the cells of a sheet, with NaN for empty ones."""
    try:
        book = pd.ExcelFile(path, engine="calamine")
    except ImportError as error:
        raise ValueError('python-calamine is missing: pip install "fedlib-study[excel]"') from error
    with book:
        sheets = [str(name) for name in book.sheet_names]
        if options.sheet is None and len(sheets) > 1:
            raise ValueError(
                f"there are {len(sheets)} sheets: {', '.join(sheets[:20])}; name one with --sheet"
            )
        if options.sheet is not None and options.sheet not in sheets:
            raise ValueError(
                f"there is no sheet {options.sheet!r}; the sheets are {', '.join(sheets[:20])}"
            )
        cells = pd.read_excel(
            book,
            sheet_name=options.sheet or sheets[0],
            header=None,
            dtype=object,
            keep_default_na=False,
            na_values=[""],
        )
    return cells.astype(object)


def _column(
    column: pd.Series, is_text: bool, options: ReadOptions, zeros: dict[str, str]
) -> pd.Series:
    """Return a column as numbers, as text, or as it is if it contains dates or truth values.

    A text such as 007 that becomes a number is added to ``zeros``.
    """
    if is_text:
        return clean_text(as_text(column), options.gap_words)
    values = column.dropna()
    if not any(isinstance(value, str) for value in values):
        if not all(isinstance(value, int | float) for value in values) or any(
            isinstance(value, bool) for value in values
        ):
            return column
        return without_numbers(pd.to_numeric(column), options.gap_words)
    result, _ = read_cells(as_text(column), options.gap_words, options.decimal or ".")
    if pd.api.types.is_numeric_dtype(result):
        texts = [value.strip() for value in values if isinstance(value, str)]
        if first := next(filter(LEADING_ZERO.fullmatch, texts), None):
            zeros[str(column.name)] = first
    return result
