"""Sheets of Excel (.xlsx) and OpenDocument files (.ods), whose cells have types of their own.

calamine reads both. What it gives as empty cells, or as values, although the file says something
else, is found here in the XML: errors, formulas without a stored value, and durations.
"""

from __future__ import annotations

import posixpath
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np
import pandas as pd

from fedlib.tables.columns import as_text, clean_text
from fedlib.tables.layouts import check_names
from fedlib.tables.streams import (
    ReadOptions,
    blocks_of,
    check_extent,
    last_cell,
    position_of,
    unpacked_limit,
)
from fedlib.tables.text_files import FileTable

SUFFIXES = (".xlsx", ".ods")
N_ROWS = 100  # that are compared with the names
# The type of an error, and the element of a formula, whatever its prefix.
MARKS = (b'"e"', b"'e'", b"<f", b":f")
# Where an OpenDocument cell has its value, by the type of the value; that of a text is in it.
VALUES = {
    **dict.fromkeys(("float", "percentage", "currency"), "office:value"),
    "boolean": "office:boolean-value",
    "date": "office:date-value",
    "time": "office:time-value",
}
CELLS = ("table:table-cell", "table:covered-table-cell")
# What formulas show for errors. OpenOffice stores them as the number 0, others as a text.
SHOWN = re.compile(r"#\S+[!?]|#N/A|#NV|Err:[0-9]{3}")
DURATION = re.compile(r"-?P([0-9]+D)?T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?")


class Fault(NamedTuple):
    """Cells with an error, or with a formula without a stored value (an empty text).

    They are a block that begins at a row and a column, counted from 0.
    """

    row: int
    column: int
    error: str
    n_rows: int = 1
    n_columns: int = 1


def read_sheet(path: Path, options: ReadOptions) -> FileTable:
    """Return the table in a sheet of an .xlsx or .ods file.

    Raises
    ------
    ValueError
        When there are several sheets and none is named, the sheet has no names, or the package that
        reads it is missing.
    """
    found = _check_size(path)
    frame, sheet = _read_cells(path, options)
    if found is None:
        faults: Iterable[Fault] = _faults_of_excel(path, sheet)
    else:
        faults, cells = found.get(sheet, []), frame.to_numpy(object, copy=True)
        for one in faults:  # calamine gives some of them a value
            cells[one.row : one.row + one.n_rows, one.column : one.column + one.n_columns] = np.nan
        frame = pd.DataFrame(cells, dtype=object)
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
        rows = frame.head(N_ROWS).apply(as_text).fillna("").to_numpy(str)
        check_names(names, rows.tolist(), f"row {first} of the sheet", options)
    places = dict(zip(map(int, frame.columns), names, strict=True))
    if found is not None:
        frame = frame.apply(_durations)
    return FileTable(
        frame.set_axis(names, axis=1).reset_index(drop=True),
        faults=_places(faults, sheet, first, places),
    )


def _durations(column: pd.Series) -> pd.Series:
    """Return a column of an .ods file; calamine gives durations of a day or more as texts."""
    texts = column[column.map(lambda value: isinstance(value, str))]
    if not len(texts) or not texts.str.fullmatch(DURATION).all():
        return column
    return column.where(~column.index.isin(texts.index), column.map(_duration))


def _duration(value: object) -> object:
    return pd.Timedelta(value) if isinstance(value, str) else value


def _check_size(path: Path) -> dict[str, list[Fault]] | None:
    """Raise ValueError if the archive, or a table in it, is far too large for its size.

    Returns
    -------
    dict or None
        The faults in each sheet of an .ods file, which are found on the way.
    """
    limit = unpacked_limit(path.stat().st_size)
    if not zipfile.is_zipfile(path):
        suffix = path.suffix.lower()
        raise ValueError(
            f"it is no {suffix} file; open it in a spreadsheet program and save it as {suffix} or"
            " .csv"
        )
    with zipfile.ZipFile(path) as archive:
        if sum(part.file_size for part in archive.infolist()) > limit:
            raise ValueError(
                f"the file unpacks to more than {limit:,} bytes, which is too much for its size;"
                " save the sheet as .csv"
            )
        if path.suffix.lower() == ".ods":
            with archive.open("content.xml") as content:
                return _OpenDocument(path, content).faults
        for part in archive.infolist():
            if part.filename.endswith(".xml"):
                with archive.open(part) as content:
                    check_extent(path, *last_cell(content))
    return None


def _read_cells(path: Path, options: ReadOptions) -> tuple[pd.DataFrame, str]:
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


def _places(
    faults: Iterable[Fault], sheet: str, first: int, names: Mapping[int, str]
) -> dict[str, dict[str, str]]:
    """Return the faults below the names by column.

    Parameters
    ----------
    faults : iterable of Fault
    sheet : str
    first : int
        The first row of values, from 0.
    names : mapping of int to str
        The name of each column, by its position in the sheet.

    Returns
    -------
    dict
        By column, the place of the first cell with each error, such as ``{"#N/A": "cell B7 of sheet
        'a'"}``.
    """
    found: dict[str, dict[str, str]] = {}
    for one in faults:
        row = max(one.row, first)
        if row >= one.row + one.n_rows:
            continue
        for column in range(one.column, one.column + one.n_columns):
            if column in names:
                place = f"cell {_letters(column)}{row + 1} of sheet {sheet!r}"
                found.setdefault(names[column], {}).setdefault(one.error, place)
    return found


class _OpenDocument:
    """The faults in each table of an .ods file.

    The XML is read as calamine reads it, with the prefixes as they are and without entities. A
    ValueError is raised before calamine makes the cells of a table that is far too large, because
    few bytes can repeat a row or a cell many times.
    """

    def __init__(self, path: Path, content: IO[bytes]) -> None:
        self.faults: dict[str, list[Fault]] = {}
        self._path = path
        self._tags = [""]
        self._area = 0  # of all tables: calamine makes the cells of each
        self._found: list[Fault] = []
        self._row = self._n_rows = self._n_columns = 0
        self._begin_row({})
        self._cell: Mapping[str, str] = {}
        self._text, self._in_text = "", False
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._read
        try:
            parser.ParseFile(content)
        except expat.ExpatError as error:
            raise ValueError(
                f"its XML cannot be read ({error}); if it has a password, save it without one"
            ) from error

    def _refuse(self, *_: object) -> None:
        raise ValueError("the file declares entities, as no spreadsheet program does; save it anew")

    def _start(self, tag: str, given: dict[str, str]) -> None:
        if tag == "table:table":
            if tag in self._tags:
                raise ValueError("a cell contains a table; save the rows as .csv")
            self._found = self.faults.setdefault(given.get("table:name", ""), [])
            self._row = self._n_rows = self._n_columns = 0
        elif tag == "table:table-row":
            self._begin_row(given)
        elif tag in CELLS:
            self._cell, self._text = given, ""
        elif tag == "text:p" and self._tags[-1] in CELLS:  # and not that of a note or a picture
            self._in_text = True
        self._tags.append(tag)

    def _begin_row(self, given: Mapping[str, str]) -> None:
        self._repeated = int(given.get("table:number-rows-repeated", 1))
        self._column = 0

    def _read(self, text: str) -> None:
        if self._in_text:
            self._text += text

    def _end(self, tag: str) -> None:
        self._tags.pop()
        if tag == "text:p" and self._tags[-1] in CELLS:
            self._in_text = False
        elif tag == "table:table":
            self._area += self._n_rows * self._n_columns
            n_columns = max(self._n_columns, 1)
            check_extent(self._path, -(-self._area // n_columns), n_columns)
        elif tag == "table:table-row":
            self._row += self._repeated
        elif tag in CELLS:
            self._end_cell()

    def _end_cell(self) -> None:
        repeated = int(self._cell.get("table:number-columns-repeated", 1))
        fault = _fault(self._cell, self._text.strip())
        if fault is not None:
            self._found.append(Fault(self._row, self._column, fault, self._repeated, repeated))
        self._column += repeated
        if fault is not None or any(name.startswith("office:") for name in self._cell):
            self._n_rows = max(self._n_rows, self._row + self._repeated)
            self._n_columns = max(self._n_columns, self._column)


def _fault(cell: Mapping[str, str], text: str) -> str | None:
    """Return the error in a cell of an .ods file as `_error` does for .xlsx."""
    kind, formula = cell.get("office:value-type"), "table:formula" in cell
    if cell.get("calcext:value-type") == "error" or (formula and SHOWN.fullmatch(text)):
        return text or "#N/A"
    stored = kind == "string" or VALUES.get(kind or "") in cell
    return "" if (formula or text) and not stored else None


def _faults_of_excel(path: Path, sheet: str) -> Iterator[Fault]:
    """Yield the faults in a sheet of an .xlsx file."""
    row = -1
    with zipfile.ZipFile(path) as archive:
        inside = _part(archive, sheet)
        with archive.open(inside) as part:
            if not _suspicious(part):  # in a third of the time
                return
        with archive.open(inside) as part:
            for _, element in ElementTree.iterparse(part):
                if not element.tag.endswith("}row"):
                    continue
                row, column = int(element.get("r", row + 2)) - 1, -1
                for cell in element:
                    letters = re.match("[A-Z]+", cell.get("r", ""))
                    column = position_of(letters[0]) if letters else column + 1
                    error = _error(cell)
                    if error is not None:
                        yield Fault(row, column, error)
                element.clear()


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
    return any(mark in block for block in blocks_of(part, 2) for mark in MARKS)


def _error(cell: ElementTree.Element) -> str | None:
    """Return the error in a cell, "" for a formula without a stored value, None for other cells."""
    kind, texts = cell.get("t"), {part.tag.rpartition("}")[2]: part.text or "" for part in cell}
    value = texts.get("v", "")
    if kind == "e":
        return value or "#N/A"
    stored = value or (kind == "str" and "v" in texts)  # the value may be an empty text
    return "" if "f" in texts and not stored else None


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
