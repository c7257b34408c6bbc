"""Excel files of rows: one sheet, whose cells have types of their own."""

from __future__ import annotations

import posixpath
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

import pandas as pd

from fedlib.tables.columns import as_text, clean_text, read_cells, without_numbers
from fedlib.tables.layouts import LEADING_ZERO, check_header, check_names
from fedlib.tables.streams import ReadOptions, check_extent, named_columns, unpacked_limit
from fedlib.tables.text_files import FileTable

N_ROWS = 100  # that are compared with the names
PLACE = re.compile(rb"""\sr\s*=\s*["']([A-Za-z]*)([0-9]{1,20})""")  # of a row or a cell
# The type of an error, and the element of a formula, whatever its prefix.
MARKS = (b'"e"', b"'e'", b"<f", b":f")


def read_excel(path: Path, options: ReadOptions) -> FileTable:
    """Return the table in a sheet of an Excel file.

    Raises
    ------
    ValueError
        When there are several sheets and none is named, the sheet has no names, or the package that
        reads it is missing.
    """
    _check_size(path)
    frame, sheet = _read_sheet(path, options)
    frame = frame.iloc[options.skip_lines :]
    frame = frame[frame.notna().any(axis=1)].dropna(axis=1, how="all")
    if not len(frame):
        raise ValueError("the sheet is empty")
    names = [str(i) for i in range(frame.shape[1])]
    first = int(frame.index[0])
    if options.header is not False:
        first += 1
        names = clean_text(as_text(frame.iloc[0])).fillna("").tolist()
        frame = frame.iloc[1:]
        if options.header is None:
            rows = frame.head(N_ROWS).apply(as_text).fillna("").to_numpy(str)
            check_header(names, rows.tolist(), f"row {first} of the sheet")
        check_names(names, f"row {first} of the sheet")
    places = dict(zip(map(int, frame.columns), names, strict=True))
    faults = _faults(path, sheet, first, places)
    frame = frame.set_axis(names, axis=1).reset_index(drop=True)
    texts = [*named_columns(options.text, names), options.ids]
    zeros: dict[str, str] = {}
    for name in names:
        frame[name] = _column(frame[name], name in texts, options, zeros)
    return FileTable(frame, leading_zeros=zeros, faults=faults)


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
        for part in archive.infolist():
            if part.filename.endswith(".xml"):
                with archive.open(part) as content:
                    check_extent(path, *_extent(content))


def _extent(content: IO[bytes]) -> tuple[int, int]:
    """Return the last row and the last column of the cells in a part of an archive.

    The reader makes all cells up to the last one, also where the part has none.
    """
    n_rows, n_columns = 0, 1
    for block in _blocks(content, 64):
        for column, row in PLACE.findall(block):
            n_rows = max(n_rows, int(row))
            n_columns = max(n_columns, _position(column[:20].decode().upper()) + 1)
    return n_rows, n_columns


def _blocks(content: IO[bytes], overlap: int) -> Iterator[bytes]:
    """Yield a file in blocks, each with the last bytes of the one before it."""
    block = b""
    while data := content.read(2**20):
        block = block[-overlap:] + data
        yield block


def _read_sheet(path: Path, options: ReadOptions) -> tuple[pd.DataFrame, str]:
    """Return the cells of a sheet, with NaN for empty ones, and the name of the sheet."""
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
        sheet = options.sheet or sheets[0]
        cells = pd.read_excel(
            book,
            sheet_name=sheet,
            header=None,
            dtype=object,
            keep_default_na=False,
            na_values=[""],
        )
    return cells.astype(object), sheet


# Cells without a value. calamine gives them as empty ones.


def _faults(
    path: Path, sheet: str, first: int, names: Mapping[int, str]
) -> dict[str, dict[str, str]]:
    """Return the errors and the formulas without a stored value below the names.

    Parameters
    ----------
    path : Path
    sheet : str
    first : int
        The first row of values, from 0.
    names : mapping of int to str
        The name of each column, by its position in the sheet.

    Returns
    -------
    dict
        By column, the place of the first cell with each error, such as ``{"#N/A": "cell B7 of sheet
        'a'"}``. The error of a formula without a stored value is an empty text.
    """
    found: dict[str, dict[str, str]] = {}
    row = -1
    with zipfile.ZipFile(path) as archive:
        inside = _part(archive, sheet)
        with archive.open(inside) as part:
            if not _suspicious(part):  # in a third of the time
                return found
        with archive.open(inside) as part:
            for _, element in ElementTree.iterparse(part):
                if not element.tag.endswith("}row"):
                    continue
                row, column = int(element.get("r", row + 2)) - 1, -1
                for cell in element:
                    letters = re.match("[A-Z]+", cell.get("r", ""))
                    column = _position(letters[0]) if letters else column + 1
                    error = _error(cell)
                    if error is not None and row >= first and column in names:
                        place = f"cell {_letters(column)}{row + 1} of sheet {sheet!r}"
                        found.setdefault(names[column], {}).setdefault(error, place)
                element.clear()
    return found


def _part(archive: zipfile.ZipFile, sheet: str) -> str:
    """Return the name of the file in the archive that contains a sheet."""
    book = ElementTree.fromstring(archive.read("xl/workbook.xml"))
    links = ElementTree.fromstring(archive.read("xl/_rels/workbook.xml.rels"))
    listed = (each for each in book.iter() if each.tag.endswith("}sheet"))
    found = next(each for each in listed if each.get("name") == sheet)
    link = next(value for key, value in found.items() if key.endswith("}id"))
    target = next(each.get("Target", "") for each in links if each.get("Id") == link)
    return posixpath.normpath(posixpath.join("/xl", target)).lstrip("/")


def _suspicious(part: IO[bytes]) -> bool:
    """Return whether the XML of a sheet may have errors or formulas, without parsing it."""
    return any(mark in block for block in _blocks(part, 2) for mark in MARKS)


def _error(cell: ElementTree.Element) -> str | None:
    """Return the error in a cell, "" for a formula without a stored value, None for other cells."""
    kind, texts = cell.get("t"), {part.tag.rpartition("}")[2]: part.text or "" for part in cell}
    value = texts.get("v", "")
    if kind == "e":
        return value or "#N/A"
    stored = value or (kind == "str" and "v" in texts)  # the value may be an empty text
    return "" if "f" in texts and not stored else None


def _position(letters: str) -> int:
    """Return the position of a column from 0.

    Examples
    --------
    >>> _position("A"), _position("AB")
    (0, 27)
    """
    position = 0
    for letter in letters:
        position = 26 * position + ord(letter) - ord("A") + 1
    return position - 1


def _letters(position: int) -> str:
    """Return the letters of a column.

    Examples
    --------
    >>> _letters(0), _letters(27)
    ('A', 'AB')
    """
    letters, position = "", position + 1
    while position:
        position, digit = divmod(position - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return letters


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
