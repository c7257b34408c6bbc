"""Reading: the columns of a file or a DataFrame by name, as cells that are not yet converted."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedlib.core.array_types import Floats
from fedlib.core.columns import MAX_EXACT, NUMBER
from fedlib.core.targets import check_characters, kind_of, number_text
from fedlib.core.wording import composed, printable
from fedlib.tables import statistical_files
from fedlib.tables.columns import iso_texts, without_formula_guard
from fedlib.tables.databases import Database
from fedlib.tables.schema.cells import Column, plain_numbers
from fedlib.tables.schema.descriptor import Dialect
from fedlib.tables.streams import csv_reader, find_encoding, is_text_file, is_wide, open_bytes
from fedlib.tables.typed import Labels, are_texts, import_arrow, plain_series

UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}  # of durations, in seconds
DELIMITERS = ",;\t|"  # tried in this order if the dialect declares none


class Undecodable(ValueError):
    """The bytes of a file are no text of the encoding."""


class Source(NamedTuple):
    """The columns of a site that the schema names.

    Attributes
    ----------
    cells : dict of str
        Per column, texts as an array of Arrow or numbers as float64 with NaN for gaps.
    names : tuple of str
        The names of all columns, also of those that the schema does not name.
    n_rows : int
    labels : mapping of str to mapping of str to str
        By column, the labels that the file has for its codes.
    """

    cells: dict[str, Any]
    names: tuple[str, ...]
    n_rows: int
    labels: Labels = MappingProxyType({})


def open_source(
    source: pd.DataFrame | str | Path | Database,
    columns: Sequence[Column] | None,
    fields: Sequence[str],
    dialect: Dialect,
    encoding: str | None,
    sheet: str | None = None,
) -> Source:
    """Return the columns of a file or a DataFrame by their names.

    Parameters
    ----------
    source : DataFrame, str, Path or Database
        A DataFrame, or a text file; other files and databases are read by
        `fedlib.tables.files.read_table`.
    columns : sequence of Column or None
        The columns to read; by default all, as texts.
    fields : sequence of str
        The names of all fields of the schema, for a file without names.
    dialect : Dialect
    encoding : str, optional
        The encoding of a text file; UTF-8 by default.
    sheet : str, optional
        The sheet of an .xlsx or .ods file.

    Raises
    ------
    ValueError
        When the file cannot be read, or a column is missing or not unique.
    """
    if isinstance(source, pd.DataFrame):
        return read_frame(source, columns)
    path = source if isinstance(source, Database) else Path(source)
    if isinstance(path, Path) and is_text_file(path):
        try:
            marked = find_encoding(path, None)  # a byte order mark says more than the descriptor
            encoding = marked if marked != "utf-8" else encoding or marked
            return _text(path, columns, fields, dialect, encoding.removesuffix("-sig"))
        except csv.Error as error:
            raise ValueError(f"cannot be read as the dialect says: {error}") from error
        except UnicodeDecodeError as error:
            raise _undecodable(encoding or "utf-8") from error
    from fedlib.tables.files import SiteFile
    from fedlib.tables.streams import ReadOptions

    stated = isinstance(path, Path) and path.suffix.lower() in statistical_files.SUFFIXES
    options = ReadOptions(sheet=sheet, encoding=encoding if stated else None)
    content = SiteFile.read(path, options, as_written=True).content
    for column in columns or ():
        content.check(column.name, column.missing)
    return read_frame(content.frame, columns)._replace(labels=content.labels)


def read_frame(frame: pd.DataFrame, columns: Sequence[Column] | None) -> Source:
    """Return the columns of a DataFrame; see `open_source`."""
    names = [composed(str(name).strip()) for name in frame.columns]
    places = _find(names, _texts(names) if columns is None else columns)
    cells = {column.name: _cells(frame.iloc[:, j], column) for column, j in places}
    return Source(cells, tuple(names), len(frame))


def _texts(names: Sequence[str]) -> list[Column]:
    return [Column(name, "string") for name in names]


def _find(
    names: Sequence[str], columns: Sequence[Column], remedy: str = ""
) -> list[tuple[Column, int]]:
    """Return the position of each column; raise ValueError if one is missing or not unique.

    The error ends with ``remedy`` if all columns are missing.
    """
    counts, places = Counter(names), {name: j for j, name in enumerate(names)}
    wanted = [column.name for column in columns]
    missing = [name for name in wanted if name not in counts]
    if missing:
        raise ValueError(
            f"there is no column {listed(missing)}; the columns are {listed(names)}"
            f"{remedy if len(missing) == len(wanted) else ''}"
        )
    repeated = [name for name in wanted if counts[name] > 1]
    if repeated:
        raise ValueError(f"there is more than one column {listed(repeated)}")
    return [(column, places[column.name]) for column in columns]


def listed(names: Sequence[str]) -> str:
    """Return the first names as text."""
    shown = ", ".join(repr(printable(name, 60)) for name in names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"


def _cells(series: pd.Series, column: Column) -> Any:
    """Return the cells of a column of a DataFrame."""
    series = plain_series(series)
    dtype, types = series.dtype, pd.api.types
    if isinstance(dtype, pd.CategoricalDtype):
        return _words(series.astype(object))
    if types.is_object_dtype(dtype) and types.infer_dtype(series, skipna=True) == "boolean":
        series = series.astype("boolean")  # truth values are the same in every type
        dtype = series.dtype
    if types.is_bool_dtype(dtype):
        if column.type in ("string", "date"):
            return _words(series.astype(object))
        return series.to_numpy(np.float64, na_value=np.nan)
    if types.is_datetime64_any_dtype(dtype):
        return _days(series, column)
    if types.is_timedelta64_dtype(dtype):
        return _durations(series, column)
    large = types.is_integer_dtype(dtype) and bool((series.abs() > MAX_EXACT).any())
    if types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype) and not large:
        numbers = series.to_numpy(np.float64, na_value=np.nan)
        if column.type in ("number", "integer", "string"):
            return numbers
        series = pd.Series(numbers, dtype=object)
    return _words(series)


def _days(series: pd.Series, column: Column) -> Any:
    """Return dates and times as days since 1970-01-01, or as texts if the column has no dates."""
    zone = getattr(series.dtype, "tz", None)
    if zone is not None:
        if column.notation.zone is None:
            raise ValueError(
                f"column {column.name!r} contains times with the zone {zone}, and the calendar day"
                " depends on the place; name its zone in the field of the schema, such as"
                ' "fedlib": {"timezone": "Europe/Berlin"}'
            )
        series = series.dt.tz_convert(column.notation.zone).dt.tz_localize(None)
    days = series.to_numpy("datetime64[D]")
    if column.type == "date":
        return np.where(np.isnat(days), np.nan, days.astype(np.int64).astype(np.float64))
    return _words(iso_texts(series))


def _durations(series: pd.Series, column: Column) -> Floats:
    """Return durations as numbers in the unit of the column."""
    if column.kind != NUMBER or column.unit not in UNITS:
        raise ValueError(
            f"column {column.name!r} contains durations; declare it in the schema with the type"
            f" number and a unit (fedlib.unit) among {', '.join(UNITS)}"
        )
    seconds: Floats = series.dt.total_seconds().to_numpy(np.float64)
    return seconds / UNITS[column.unit]


def _words(series: pd.Series) -> Any:
    """Return the values of any column as an array of texts."""
    arrow = import_arrow()
    if are_texts(series):
        chunks = series.array.__arrow_array__()
        return chunks.combine_chunks() if chunks.num_chunks != 1 else chunks.chunk(0)
    gaps = series.isna().to_numpy()
    values = series.to_numpy(object)
    try:
        return arrow.array(values, arrow.string(), mask=gaps)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, UnicodeEncodeError):
        words = [None if gap else _word(value) for value, gap in zip(values, gaps, strict=True)]
        check_characters(words, f"column {series.name!r}")
        return arrow.array(words, arrow.string())


def _word(value: object) -> str:
    """Return a value of a column with values of several types as text."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return number_text(value) if kind_of(value) == "number" else str(value)


class Form(NamedTuple):
    """How the rows of a text file are written.

    Attributes
    ----------
    path : Path
    dialect : Dialect
    encoding : str
    n_cells : int
        The count of cells in each row.
    delimiter : str
        The one that the dialect declares, or that was found.
    n_lines : int
        The count of lines before the rows.
    """

    path: Path
    dialect: Dialect
    encoding: str
    n_cells: int
    delimiter: str
    n_lines: int

    def rows(self) -> Any:
        """Return the rows as Python's module csv reads them."""
        lines = islice(_lines(self.path, self.encoding, self.dialect), self.n_lines, None)
        return _reader(lines, self.dialect, self.delimiter)


def _text(
    path: Path,
    columns: Sequence[Column] | None,
    fields: Sequence[str],
    dialect: Dialect,
    encoding: str,
) -> Source:
    """Return the columns of a text file."""
    wanted = {column.name for column in columns or ()}
    names, delimiter, n_lines = _header(path, wanted, fields, dialect, encoding)
    form = Form(path, dialect, encoding, len(names), delimiter, n_lines)
    if columns is None:  # the last separators of all rows may have nothing behind them
        columns = _texts(names[: max((j for j, name in enumerate(names, 1) if name), default=0)])
    remedy = (
        "; if the names are not in the first line, remove the lines above them; if the fields have"
        f" another separator than {delimiter!r}, name it in this site's copy (dialect.delimiter)"
    )
    places = _find(names, columns, remedy)
    # Only Python's module knows comments and blanks before quotation marks.
    slow = dialect.comment_char is not None or dialect.skip_initial_space
    positions = sorted(j for _, j in places)
    found = None if slow else _read_numbers(form, positions, {j: column for column, j in places})
    if found is None:
        found = (_read_slowly if slow else _read_fast)(form, positions)
    arrays = {j: _unguarded(found.pop(j)) for j in positions}
    cells = {column.name: arrays.pop(j) for column, j in places}
    n_rows = len(cells[places[0][0].name])
    _check_quotes(form, n_rows)
    return Source(cells, tuple(names), n_rows)


def _unguarded(texts: Any) -> Any:
    """Return an array of texts as they were before `csv_bytes` wrote them."""
    arrow = import_arrow()
    if isinstance(texts, np.ndarray):
        return texts  # numbers
    if not arrow.compute.any(arrow.compute.starts_with(texts, "'")).as_py():
        return texts
    plain = [text and without_formula_guard(text) for text in texts.to_pylist()]
    return arrow.array(plain, arrow.string())


def _lines(path: Path, encoding: str, dialect: Dialect) -> Generator[str]:
    """Yield the lines of a text file without comments and byte-order mark."""
    codec = "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
    with io.TextIOWrapper(open_bytes(path), codec, newline="") as file:
        for line in file:
            if dialect.comment_char is None or not line.startswith(dialect.comment_char):
                yield line


def _reader(lines: Iterable[str], dialect: Dialect, delimiter: str) -> Any:
    return csv_reader(
        lines,
        delimiter=delimiter,
        quotechar=dialect.quote_char,
        doublequote=dialect.double_quote,
        escapechar=dialect.escape_char,
        skipinitialspace=dialect.skip_initial_space,
        strict=True,
    )


def _header(
    path: Path, wanted: set[str], fields: Sequence[str], dialect: Dialect, encoding: str
) -> tuple[list[str], str, int]:
    """Return the names of the columns, the delimiter, and the count of lines before the rows.

    If the dialect declares no delimiter, it is the one that finds most of the wanted names, or in a
    file without names the one that divides the first row into as many cells as there are fields.
    """
    # More than one line, because a name may have line breaks, or the first one is Excel's sep=;
    with closing(_lines(path, encoding, dialect)) as start:
        lines = list(islice(start, 16))
    n_skipped = int(re.fullmatch(r"sep=[^\r\n][\r\n]*", lines[0]) is not None) if lines else 0
    names = [] if dialect.header else list(fields)
    found, n_lines, most = dialect.delimiter or DELIMITERS[0], n_skipped, 0
    for delimiter in dialect.delimiter or DELIMITERS:
        reader = _reader(lines[n_skipped:], dialect, delimiter)
        try:
            cells = [
                composed(without_formula_guard(cell).strip())
                for cell in next(filter(None, reader), [])
            ]
        except csv.Error:
            continue
        n_fitting = len(wanted & {*cells}) if dialect.header else int(len(cells) == len(fields))
        if n_fitting > most or not names:
            found, most = delimiter, n_fitting
            if dialect.header:
                names, n_lines = cells, n_skipped + reader.line_num
    return names, found, n_lines


def _read_numbers(
    form: Form, positions: Sequence[int], columns: Mapping[int, Column]
) -> dict[int, Any] | None:
    """Return columns as `_read_fast` does, but those of plain numbers as float64 with NaN for gaps.

    Their texts are never in memory together, which would take three times as much as the numbers.
    None if a cell of these columns is no plain number: then texts tell what it is.
    """
    arrow = import_arrow()
    numeric = [j for j in positions if plain_numbers(columns[j])]
    gaps = {columns[j].missing for j in numeric}
    if len(gaps) != 1:
        return None
    try:
        found = _read_fast(form, positions, numeric, ["", *gaps.pop()])
    except arrow.ArrowInvalid:
        return None
    for j in numeric:
        n_gaps, found[j] = found[j].null_count, found[j].to_numpy(zero_copy_only=False)
        if np.count_nonzero(np.isfinite(found[j])) + n_gaps < len(found[j]):
            return None
    return found


def _read_fast(
    form: Form,
    positions: Sequence[int],
    numeric: Collection[int] = (),
    gaps: Sequence[str] = (),
) -> dict[int, Any]:
    """Return some columns of a text file as arrays of Arrow, by position.

    They contain texts, or numbers if they are ``numeric``, and null for the words ``gaps``.
    """
    arrow = import_arrow()
    types = {str(j): arrow.float64() if j in numeric else arrow.string() for j in positions}
    odd: list[int] = []

    def note(row: Any) -> str:
        odd.append(row.actual_columns)
        return "skip"

    def read() -> Any:
        return arrow.csv.read_csv(
            form.path,
            arrow.csv.ReadOptions(
                skip_rows=form.n_lines,
                column_names=[str(j) for j in range(form.n_cells)],
                encoding=form.encoding,
            ),
            arrow.csv.ParseOptions(
                delimiter=form.delimiter,
                quote_char=form.dialect.quote_char,
                double_quote=form.dialect.double_quote,
                escape_char=form.dialect.escape_char or False,
                newlines_in_values=True,
                invalid_row_handler=note,
            ),
            arrow.csv.ConvertOptions(
                include_columns=[*types], column_types=types, null_values=gaps
            ),
        )

    try:
        table = read()
    except arrow.ArrowInvalid as error:
        if numeric:
            raise
        text = str(error)
        if "UTF8" in text or "codec" in text:
            raise _undecodable(form.encoding) from error
        # No rows, or a row that is larger than a block. Arrow's text may quote a part of a row.
        return _read_slowly(form, positions)
    if odd:
        raise _ragged(form, len(odd))
    chunks = dict(zip(table.column_names, table.columns, strict=True))
    del table  # so that the texts of a column are freed once they are copied
    return {j: chunks.pop(str(j)).combine_chunks() for j in positions}


def _undecodable(encoding: str) -> Undecodable:
    return Undecodable(f"the text is not {encoding}; declare its encoding in the descriptor")


def _ragged(form: Form, n_odd: int) -> ValueError:
    """Return an error that names the first line with another count of cells."""
    reader = form.rows()
    n = next(len(row) for row in reader if row and len(row) != form.n_cells)
    remedy = "quote cells that contain it"
    if n == form.n_cells + 1:
        remedy += ", or, if the first cell is a row name, leave it out (in R row.names=FALSE)"
    return ValueError(
        f"{n_odd} rows do not have {form.n_cells} cells like the first row, with the separator"
        f" {form.delimiter!r}, such as line {form.n_lines + reader.line_num} with {n}; {remedy}"
    )


def _check_quotes(form: Form, n_rows: int) -> None:
    """Raise ValueError for a cell that contains lines because a quotation mark is not closed.

    The cells are compared only if there are not as many lines as rows.
    """
    quote, quoted, n_lines = form.dialect.quote_char.encode(), False, -form.n_lines
    with open_bytes(form.path, zeros=is_wide(form.encoding)) as file:
        while data := file.read(2**20):
            quoted = quoted or quote in data
    if not quoted:
        return
    with open_bytes(form.path) as file:
        while data := file.read(2**20):
            n_lines += data.count(b"\n") + (len(data) < 2**20 and not data.endswith(b"\n"))
    if n_lines == n_rows:
        return
    reader, first = form.rows(), form.n_lines + 1
    try:
        for row in reader:
            broken = [line for cell in row if "\n" in cell for line in cell.split("\n")]
            if any(line.count(form.delimiter) >= max(form.n_cells - 1, 1) for line in broken):
                raise csv.Error("a cell contains a whole line")
            first = form.n_lines + reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"line {first} cannot be read as the dialect says: {error}; perhaps a quotation mark is"
            " opened and not closed there"
        ) from error


def _read_slowly(form: Form, positions: Sequence[int]) -> dict[int, Any]:
    """Do the same with Python's module csv."""
    arrow = import_arrow()
    columns: list[list[str]] = [[] for _ in positions]
    n_odd = 0
    for row in form.rows():
        if row and len(row) != form.n_cells:
            n_odd += 1
        elif row:
            for column, j in zip(columns, positions, strict=True):
                column.append(row[j])
    if n_odd:
        raise _ragged(form, n_odd)
    return {
        j: arrow.array(column, arrow.string()) for j, column in zip(positions, columns, strict=True)
    }
