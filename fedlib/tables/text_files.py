"""Text files of rows: from the cells to a table, which is read right or refused."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedlib.core.columns import MAX_EXACT
from fedlib.tables.columns import GROUPED, check_faults, clean_text, read_cells
from fedlib.tables.layouts import Layout, counted, find_layout, separator_name
from fedlib.tables.streams import (
    ReadOptions,
    csv_reader,
    find_encoding,
    named_columns,
    open_bytes,
    open_text,
    undecodable,
)
from fedlib.tables.typed import Labels

N_ROWS = 2**15  # that are parsed at a time
# Without it, pandas before 3.1 errs in the last bit of a number; pandas 3.1 deprecates it.
OLD_PANDAS = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
EXACT_NUMBERS: dict[str, Any] = {"float_precision": "round_trip"} if OLD_PANDAS else {}


@dataclass(frozen=True)
class FileTable:
    """A table that was read from a file.

    Attributes
    ----------
    frame : DataFrame
    separator : str
        In words, what separates the fields; empty if there is one column, and for other files.
    decimal_commas : set of str
        The columns with decimal commas, in a file for which no option names the decimal mark.
    codes : mapping of str to str
        By column of numbers, a text among them that can be a code, such as 007.
    declared : set of str
        The columns that contain text by their type in the file.
    unreadable : mapping of str to str
        By column, why its values cannot be used.
    labels, missing : mapping of str to mapping of str to str
        By column, the labels of its codes and of its user-defined missing values.
    faults : mapping of str to mapping of str to str
        By column of a sheet, the place of the first cell with each error, such as #DIV/0!.
        The error of a formula without a stored value is an empty text.
    """

    frame: pd.DataFrame
    separator: str = ""
    decimal_commas: set[str] = field(default_factory=set)
    codes: dict[str, str] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    labels: Labels = field(default_factory=dict)
    missing: Labels = field(default_factory=dict)
    faults: dict[str, dict[str, str]] = field(default_factory=dict)

    def check(self, name: str, gaps: Collection[str]) -> None:
        """Raise ValueError if a column has a cell that is no value and none of the ``gaps``."""
        if name in self.unreadable:
            raise ValueError(f"column {name!r} cannot be used: {self.unreadable[name]}")
        check_faults(self.faults, name, gaps)


def read_text(path: Path, options: ReadOptions) -> FileTable:
    """Return the table in a text file.

    Raises
    ------
    ValueError
        When the file is not a table, or can be read in several ways.
    """
    encoding = find_encoding(path, options.encoding)
    try:
        layout = find_layout(path, encoding, options)
        texts = _text_columns(layout, options)
        frame = _parse(path, layout, options, texts)
    except UnicodeDecodeError as error:
        raise undecodable(path, error, options.encoding) from error
    _check_extra(frame, layout)
    if len(frame) and frame[layout.names[-1]].isna().any():
        _check_lengths(path, layout, len(frame))
    commas = _convert(frame, layout, options, texts)
    _keep_large_integers(path, layout, frame, options, texts)
    if len(layout.names) == 1:
        _check_single(frame[layout.names[0]], layout, options)
        _check_records(path, layout)
    numeric = pd.api.types.is_numeric_dtype
    codes = {name: text for name, text in layout.codes.items() if numeric(frame[name])}
    return FileTable(frame, separator_name(layout.separator), commas, codes)


def _text_columns(layout: Layout, options: ReadOptions) -> list[str]:
    """Return the columns that stay text as it is written."""
    names = [*named_columns(options.text, layout.names), options.ids]
    return [name for name in layout.names if name in names]


# The cells.


def _parse(
    path: Path,
    layout: Layout,
    options: ReadOptions,
    texts: Sequence[str],
    columns: list[str] | None = None,
) -> pd.DataFrame:
    """Return all or some columns; ``texts`` and the columns with other cells are text.

    The parser keeps the text of a chunk only, because that of a large file is larger than its
    numbers.
    """
    extra = ["\0" * (i + 1) for i in range(layout.n_extra)]
    try:
        with warnings.catch_warnings(), open_text(path, layout.encoding, layout.skip) as file:
            warnings.simplefilter("error", pd.errors.ParserWarning)
            chunks = pd.read_csv(
                file,
                sep=r"\s+" if layout.separator == " " else layout.separator or ",",
                header=None,
                names=[*layout.names, *extra],
                usecols=columns,
                dtype=dict.fromkeys(texts, str),
                index_col=False,
                skipinitialspace=True,
                chunksize=N_ROWS,
                keep_default_na=False,  # a word such as NA is a gap among numbers only
                na_values=["", *options.gap_words],
                decimal=options.decimal or ".",
                **EXACT_NUMBERS,
            )
            frame, kinds = _joined(chunks)
    except pd.errors.EmptyDataError:
        return pd.DataFrame(columns=[*layout.names, *extra], dtype=np.float64)
    except (pd.errors.ParserError, pd.errors.ParserWarning):
        _check_records(path, layout)  # its error names the line
        raise
    mixed = [name for name in kinds if name not in texts and _is_mixed(kinds[name])]
    if mixed:  # numbers in one chunk and text in another one are text, as they are written
        again = _parse(path, layout, options, [*texts, *mixed], mixed)
        frame[mixed] = again[mixed]
    return frame


def _joined(chunks: Iterable[pd.DataFrame]) -> tuple[pd.DataFrame, dict[str, set[str]]]:
    """Return the rows of all chunks, and which kinds of values each column has in them.

    Frames of similar length are joined as they come. If all chunks were kept to the end, freeing
    them would leave gaps in the heap, which the process would keep: up to 0.8 times the table.
    """
    frames: list[pd.DataFrame] = []
    kinds: dict[str, set[str]] = {}
    for chunk in chunks:
        for name in map(str, chunk):
            kinds.setdefault(name, set()).add(_kind(chunk[name]))
        frames.append(chunk)
        while len(frames) > 1 and len(frames[-2]) <= len(frames[-1]):
            frames[-2:] = [pd.concat(frames[-2:], ignore_index=True)]
    return pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0], kinds


def _kind(column: pd.Series) -> str:
    return column.dtype.kind if column.dtype.kind != "O" else type(_first(column)).__name__


def _is_mixed(kinds: set[str]) -> bool:
    """Return whether chunks of a column have values of several kinds, or large integers."""
    return kinds == {"int"} or (len(kinds) > 1 and not kinds <= {"i", "f"})


def _check_extra(frame: pd.DataFrame, layout: Layout) -> None:
    """Remove the columns behind the last name; raise ValueError if they have values."""
    for name in frame.columns[len(layout.names) :]:
        extra = frame.pop(name)
        if extra.notna().any():
            row = int(np.argmax(extra.notna())) + 1
            raise ValueError(
                f"row {row} has a value ({str(extra.iloc[row - 1])[:40]!r}) behind the last named"
                " column; name this column, or correct the row"
            )


def _convert(
    frame: pd.DataFrame, layout: Layout, options: ReadOptions, texts: Sequence[str]
) -> set[str]:
    """Convert columns of text in place; return the names of those with decimal commas."""
    decimals = options.decimal or ("." if layout.separator in ("", ",") else ".,")
    commas, grouped = set(), {}
    for name in layout.names:
        column = frame[name]
        if pd.api.types.is_numeric_dtype(column) or isinstance(_first(column), bool):
            continue
        _check_breaks(column, layout)
        if name in texts:
            frame[name] = clean_text(column, options.gap_words)
            continue
        frame[name], mark = read_cells(column, options.gap_words, decimals)
        if mark == "," and options.decimal is None:
            commas.add(name)
            with_mark = column[column.str.contains(",", regex=False, na=False)].str.strip()
            if with_mark.str.fullmatch(GROUPED.pattern).all():
                grouped[name] = with_mark.iloc[0]
    if grouped and commas == set(grouped):
        name, text = next(iter(grouped.items()))
        raise ValueError(
            f"column {name!r} contains {text!r}, which is either {text.replace(',', '.')} or"
            f" {text.replace(',', '')}; name the decimal mark of the file with --decimal ',', or"
            " write numbers without marks between thousands"
        )
    return commas


def _first(column: pd.Series) -> Any:
    """Return the first value that is no gap, or None."""
    place = column.first_valid_index()
    return None if place is None else column[place]


def _check_breaks(column: pd.Series, layout: Layout) -> None:
    """Raise ValueError if a cell contains whole lines, because a quotation mark is missing."""
    if not layout.separator:
        return
    broken = column.astype(object)[column.str.contains("\n", regex=False, na=False)]
    n = len(layout.names) - 1
    for row, text in zip(broken.index, broken, strict=True):
        if any(line.count(layout.separator) >= n for line in text.split("\n")):
            raise ValueError(
                f"column {column.name!r} contains a whole line in row {row + 1}; a quotation mark"
                " is opened and not closed there"
            )


def _keep_large_integers(
    path: Path, layout: Layout, frame: pd.DataFrame, options: ReadOptions, texts: Sequence[str]
) -> None:
    """Give integers that no 64-bit float equals as integers, so that they are refused by name.

    The parser rounds them in columns with gaps.
    """
    floats = frame.columns[[dtype.kind == "f" for dtype in frame.dtypes]]
    large = [
        name
        for name in floats
        if np.fmax.reduce(np.abs(frame[name].to_numpy()), initial=0) >= MAX_EXACT
    ]
    if not large:
        return
    again = _parse(path, layout, options, [*texts, *large], large)
    for name in large:
        column, _ = read_cells(again[name], options.gap_words, options.decimal or ".")
        if column.dtype == object and any(isinstance(value, int) for value in column):
            frame[name] = column


def _check_single(column: pd.Series, layout: Layout, options: ReadOptions) -> None:
    """Raise ValueError for one column of text, because the separator is probably another one."""
    asked = options.separator is not None or named_columns(options.text, layout.names)
    if asked or not isinstance(first := _first(column), str):
        return
    raise ValueError(
        f"the file has one column, {str(column.name)[:40]!r}, which contains text"
        f" ({str(first)[:40]!r}); if the fields have a separator, name it with --separator; if it"
        f" is one column, name it with --text"
    )


# The numbers of fields in all rows.


def _check_lengths(path: Path, layout: Layout, n_rows: int) -> None:
    """Raise ValueError if a row has too few fields, which the parser fills with gaps."""
    if layout.separator.isascii() and layout.encoding.replace("_", "-").startswith("utf-8"):
        mark, n_marks, quoted = layout.separator.encode(), 0, False
        with open_bytes(path) as file:
            for _ in range(layout.skip):
                file.readline()
            while data := file.read(2**20):
                n_marks += data.count(mark) if mark else 0
                quoted = quoted or b'"' in data
        width = len(layout.names) + layout.n_extra
        if layout.separator != " " and not quoted and n_marks == n_rows * (width - 1):
            return
    _check_records(path, layout)


def _check_records(path: Path, layout: Layout) -> None:
    """Raise ValueError for the first row with too many or too few fields, or an open quotation."""
    n_names, n_blank = len(layout.names), 0
    allowed = {n_names, n_names + layout.n_extra}
    with open_text(path, layout.encoding, layout.skip) as file:
        for number, cells in _records(file, layout.separator, layout.skip + 1):
            if len(cells) <= 1 and not "".join(cells).strip():
                n_blank = n_blank or number
                if n_names > 1 or cells:
                    continue
            elif len(cells) not in allowed:
                raise ValueError(
                    f"line {number} has {counted(len(cells), 'field')}, but the table has"
                    f" {counted(n_names, 'column')};"
                    " correct the line, put a text that contains the separator in quotation marks,"
                    " or name another one with --separator"
                )
            elif n_names == 1 and n_blank:
                raise ValueError(
                    f"line {n_blank} is empty; in a file of one column it may be a gap: write NA"
                    " there, or remove the line"
                )


def _records(lines: Iterable[str], separator: str, first: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each row, and the line number of its first line."""
    if separator == " ":
        for number, line in enumerate(lines, first):
            yield number, re.findall(r'"(?:[^"]|"")*"|\S+', line)
        return
    reader = csv_reader(lines, delimiter=separator or ",", skipinitialspace=True, strict=True)
    number = first
    try:
        for cells in reader:
            yield number, cells
            number = first + reader.line_num
    except csv.Error as error:
        reason = str(error)
        if "unexpected end" in reason:
            reason = "a quotation mark is opened and not closed"
        raise ValueError(f"line {number}: {reason}") from error
