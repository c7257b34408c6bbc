"""Files: read a site's rows, write the results of a run.

The rules:

- A file is read right or refused. The error names the line or the column and the row, what is
  accepted, and the option that decides.
- The features in a file are finite numbers. If the run preprocesses the rows, they may also be
  text, and there may be gaps.
- A file is written completely or not at all.
"""

from __future__ import annotations

import io
import os
import posixpath
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pandas as pd

from fedlib.core.client import ALL
from fedlib.core.file_errors import reading
from fedlib.core.wording import composed
from fedlib.tables import columns as checks
from fedlib.tables.columns import (
    POINT,
    ColumnProfile,
    as_text,
    clean_text,
    csv_bytes,
    describe_columns,
    read_cells,
    without_numbers,
)
from fedlib.tables.layouts import LEADING_ZERO, check_names
from fedlib.tables.streams import (
    ReadOptions,
    blocks_of,
    check_extent,
    is_text_file,
    last_cell,
    named_columns,
    position_of,
    unpacked_limit,
)
from fedlib.tables.text_files import FileTable, read_text

FORMATS = ".csv, .tsv and .txt (also with .gz), .xlsx, .arff, .parquet and .npy"
# Options that apply to files of cells only.
OF_TEXT = ("separator", "encoding")
OF_CELLS = ("header", "skip_lines", "decimal")
N_ROWS = 100  # that are compared with the names
# The type of an error, and the element of a formula, whatever its prefix.
MARKS = (b'"e"', b"'e'", b"<f", b":f")


class Table(NamedTuple):
    """A site's rows.

    Attributes
    ----------
    X : DataFrame or array (n_rows, n_features)
        The features; a DataFrame if they have names.
    y : array (n_rows,) or (n_rows, 2), optional
        The classes, or the earliest and the latest times.
    sample_weight : array (n_rows,), optional
        The weights.
    ids : Series (n_rows,), optional
        The identifiers, with the name of their column.
    base_margin : array (n_rows, n_columns), optional
        The margins from which boosting starts.
    described : DataFrame (n_rows, n_columns), optional
        What a summary describes of rows with a schema: the features with their gaps, and behind
        them the classes, weights and margins.
    """

    X: Any
    y: np.ndarray | None = None
    sample_weight: np.ndarray | None = None
    ids: pd.Series | None = None
    base_margin: np.ndarray | None = None
    described: pd.DataFrame | None = None

    def part(self, roles: Collection[str]) -> Any:
        """Return what a client takes of the table.

        Parameters
        ----------
        roles : collection of str
            The columns that it takes beside the features (`fedlib.core.client.roles_of`).

        Examples
        --------
        >>> Table([[1.0], [2.0]], sample_weight=np.array([1.0, 3.0])).part(["weight"])
        ([[1.0], [2.0]], array([1., 3.]))
        """
        X = self.described if ALL in roles and self.described is not None else self.X
        classes = (self.y,) if "target" in roles else ()
        weights = (self.sample_weight,) if "weight" in roles else ()
        if "base_margin" in roles and self.base_margin is not None:
            return (self.X, self.y, self.sample_weight, None, self.base_margin)
        rest = classes + tuple(one for one in weights if one is not None)
        return (X, *rest) if rest else X

    @property
    def eval_set(self) -> tuple[Any, ...]:
        """The rows as those for validation in a part."""
        return (self.X, self.y, self.sample_weight, self.base_margin)


@dataclass(frozen=True)
class SiteFile:
    """All columns of a site's file, before it is known what a run takes from them.

    Attributes
    ----------
    content : FileTable
        The columns.
    options : ReadOptions
        How they were read.
    named : bool
        Whether the columns have names.
    """

    content: FileTable
    options: ReadOptions
    named: bool

    @classmethod
    def read(cls, path: Path, options: ReadOptions) -> SiteFile:
        """Return the columns in a file.

        Raises
        ------
        ValueError
            When it cannot be read.
        """
        path = Path(path)
        with reading(path, own="cannot be read: "):
            content = _read_file(path, options)
        return cls(content, options, path.suffix != ".npy" and options.header is not False)

    @property
    def text(self) -> list[str]:
        """The columns that the option ``text`` names."""
        return named_columns(self.options.text, list(self.content.frame.columns))

    def describe(self) -> list[ColumnProfile]:
        """Return what each column contains."""
        return describe_columns(self.content.frame, self.options.ids, self.text)

    def table(self, raw: bool = False) -> Table:
        """Return the rows for a run.

        Parameters
        ----------
        raw : bool, default=False
            Whether the features may be text and have gaps.

        Raises
        ------
        ValueError
            When a column is missing, or has values that the run cannot take.
        """
        frame, options = self.content.frame, self.options
        names = self._feature_names()
        self._check_marks([*names, *options.others])
        chosen = frame if names == [*frame.columns] else frame[names]  # which is a copy
        if raw:
            X = checks.raw_features(chosen, self.text, self.content.separator)
        else:
            X = checks.features(chosen, self.text)
        target, weight, ids = options.target, options.sample_weight, options.ids
        return Table(
            X if self.named or self.text else X.to_numpy(),
            None if target is None else self._targets(target),
            None if weight is None else checks.numbers(frame[weight]),
            None if ids is None else checks.identifiers(frame[ids]),
            None
            if not options.base_margin
            else np.column_stack([checks.numbers(frame[one]) for one in options.base_margin]),
        )

    def _targets(self, target: str) -> np.ndarray:
        """Return the classes, or the earliest and the latest times of rows."""
        frame, upper = self.content.frame, self.options.target_upper
        if upper is None:
            return checks.classes(frame[target], target in self.text)
        return np.column_stack([checks.numbers(frame[target]), checks.latest_times(frame[upper])])

    def _feature_names(self) -> list[str]:
        """Return the names of the features; every named column must exist, and be used once."""
        available, others = list(self.content.frame.columns), self.options.others
        if self.options.columns is None:
            names = [name for name in available if name not in others]
        else:
            names = named_columns(self.options.columns, available)
        known = set(available)
        missing = [name for name in [*names, *others, *self.text] if name not in known]
        if missing:
            raise ValueError(
                f"there is no column {', '.join(missing)}; the columns are"
                f" {', '.join(map(str, available[:20]))}"
            )
        if not names:
            raise ValueError("no column is left for the features")
        counts = Counter([*names, *others])
        repeated = [name for name, n in counts.items() if n > 1]
        if repeated:
            raise ValueError(f"columns used more than once: {', '.join(sorted(repeated))}")
        return names

    def _check_marks(self, used: list[str]) -> None:
        """Raise ValueError if columns lose zeros or errors, or have different decimal marks."""
        frame, commas = self.content.frame, self.content.decimal_commas
        for name in used:
            checks.check_faults(self.content.faults, name, self.options.gap_words)
        chosen = set(used)
        checks.check_zeros({k: v for k, v in self.content.leading_zeros.items() if k in chosen})
        with_comma = next((name for name in used if name in commas), None)
        if with_comma is None:
            return
        for name in used:
            column = frame[name]
            if name not in commas and column.dtype.kind == "f" and (column % 1 > 0).any():
                raise ValueError(
                    f"column {with_comma!r} has decimal commas and column {name!r} has decimal"
                    " points; name the decimal mark of the file with --decimal"
                )


def read_table(
    path: Path, options: ReadOptions | None = None, *, raw: bool = False, **changed: Any
) -> Table:
    r"""Read a site's rows and check that its features are finite numbers.

    Parameters
    ----------
    path : Path
        A .csv, .tsv, .txt, .xlsx, .arff, .parquet or .npy file. Text may be compressed (.csv.gz).
    options : ReadOptions, optional
        Which columns are which, and how the file is written.
    raw : bool, default=False
        Whether the features may be text and have gaps, for a run that preprocesses them.
    **changed
        Fields of `ReadOptions`, such as ``columns="age,bmi"`` or ``target="kind"``, which replace
        those of ``options``.

    Raises
    ------
    ValueError
        When the file cannot be read or can be read in several ways, a column is missing, or a
        feature contains anything except finite numbers (if ``raw``, anything except numbers, text
        and gaps). The text names the column and the row, counted from 1, and the remedy.

    Notes
    -----
    The separator and the names are found from the first lines. In a column of numbers, empty cells
    and the words NA, N/A, #N/A, NaN, NULL, None and nil (in small or large letters), a point, one
    or two hyphens and a question mark are gaps. In a column of text, only empty cells and the words
    of ``na_values`` are gaps, because NA may be a category, such as Namibia. Spaces around text do
    not count, and true, True and TRUE are the same. In an Excel file, an error such as #DIV/0! is a
    gap only if it is one of ``na_values``, and a formula must have a stored value. A column of
    ``text`` stays as it is written; as a feature it has pandas' type of categories, which is text
    for every protocol.

    With ``raw``, a column of text in which most texts look like numbers is refused, and so is one
    with more than 50 texts of which at least 90 % are different, which are identifiers; ``text``
    allows both.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "site.csv")
    ...     _ = path.write_text("age,bmi,kind\n41,22.5,a\n57,30.1,b\n")
    ...     table = read_table(path, target="kind")
    >>> table.X.columns.tolist(), table.y.tolist()
    (['age', 'bmi'], ['a', 'b'])
    """
    options = replace(options or ReadOptions(), **changed)
    with reading(path):
        return SiteFile.read(path, options).table(raw)


def read_array(path: Path) -> np.ndarray:
    r"""Return an array of numbers from a .npy file, or from a .csv file without a header.

    Raises
    ------
    ValueError
        When the file cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "centres.csv")
    ...     _ = path.write_text("0,1\n2,3\n")
    ...     read_array(path).tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    with reading(path):
        if path.suffix == ".npy":
            return read_npy(path)
        return np.loadtxt(path, delimiter=",", ndmin=2)


def read_npy(path: Path) -> np.ndarray:
    """Return the array in a .npy file; raise ValueError if it is anything else."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # whose text may advise to load the file unsafely
        raise ValueError("it is no array of numbers that numpy.save has written") from error
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive of arrays (.npz); save one array by numpy.save")
    if not array.dtype.itemsize:  # any count of them fits a small file
        raise ValueError(f"its values must not be empty texts alone, got {array.dtype}")
    return array


def write_labels(
    path: Path, labels: np.ndarray, table: Table, further: Mapping[str, np.ndarray] | None = None
) -> None:
    """Write the labels of a table's rows, in the order of the rows.

    Parameters
    ----------
    path : Path
        A .npy file for the labels alone, or else a CSV file, which also contains the identifiers if
        the table has them.
    labels : array or masked array (n_rows,) or (n_rows, n_levels)
        A masked label is an empty field, and NaN in a .npy file. Several labels per row, such as
        quantiles, have one column each.
    table : Table
    further : mapping of str to array (n_rows,), optional
        Additional columns of the CSV file, by name.

    Notes
    -----
    A text that a spreadsheet could take for a formula gets an apostrophe
    (`fedlib.tables.columns`), which the readers of fedlib remove.

    Raises
    ------
    ValueError
        When the count of labels is not the count of rows.
    OSError
        When the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> table = Table(np.zeros((2, 1)), ids=pd.Series(["a", "b"], name="patient"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "labels.csv")
    ...     write_labels(path, np.array([0, -1]), table)
    ...     print(path.read_text(), end="")
    patient,label
    a,0
    b,-1
    """
    if len(labels) != len(table.X):
        raise ValueError(f"there are {len(labels)} labels for {len(table.X)} rows")
    if path.suffix == ".npy":
        data = io.BytesIO()
        np.save(data, _with_nan(labels), allow_pickle=False)
        write_file(path, data.getvalue(), mode=0o600)
        return
    columns = np.ma.reshape(labels, (len(labels), -1)).T if len(labels) else [labels]
    names = ["label"] if len(columns) == 1 else [f"label_{j}" for j in range(len(columns))]
    found = {
        name: pd.Series(np.ma.getdata(one), dtype=object).where(~np.ma.getmaskarray(one), "")
        for name, one in zip(names, columns, strict=True)
    }
    frame = pd.DataFrame({**found, **(further or {})})
    if table.ids is not None:
        frame.insert(0, table.ids.name, table.ids.to_numpy(), allow_duplicates=True)
    write_file(path, csv_bytes(frame), mode=0o600)


def _with_nan(labels: np.ndarray) -> np.ndarray:
    """Return labels with NaN in place of masked ones, if there are any."""
    if not np.ma.is_masked(labels):
        return np.ma.getdata(labels)
    return np.where(np.ma.getmaskarray(labels), np.nan, np.ma.getdata(labels))


def write_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file so that a crash leaves either the old or the new file.

    Parameters
    ----------
    path : Path
    data : bytes
    mode : int, default=0o644
        The permissions of the file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder, "new"), b"whole")
    ...     Path(folder, "new").read_bytes()
    b'whole'
    """
    part = path.with_name(f".{path.name}.part")
    # A new file and a renaming: a link that somebody has placed at either name is not followed.
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _read_file(path: Path, options: ReadOptions) -> FileTable:
    """Return the table in a file."""
    if path.is_dir():
        raise ValueError("it is a folder; name a file")
    if is_text_file(path):
        _refuse(options, ("sheet",), "Excel files")
        return read_text(path, options)
    _refuse(options, OF_TEXT, "text files")
    suffix = path.suffix.lower()
    if suffix == ".xlsx":
        return _read_excel(path, options)
    _refuse(options, (*OF_CELLS, "sheet"), "text and Excel files")
    frame = _read_typed(path, suffix)
    frame.columns = [composed(str(name)) for name in frame.columns]
    if not frame.columns.is_unique:
        repeated = ", ".join(map(str, frame.columns[frame.columns.duplicated()].unique()))
        raise ValueError(f"columns with the same name: {repeated}; rename them")
    for name in named_columns(options.text, list(frame.columns)):
        if name in frame:
            frame[name] = as_text(frame[name])
    # In ARFF, a question mark is a missing value; scipy reads it as a category.
    words = options.gap_words | ({"?"} if suffix == ".arff" else set())
    frame = _without_words(frame, words)
    if suffix == ".arff":
        for name in frame.columns.difference(named_columns(options.text, list(frame.columns))):
            frame[name] = _declared(frame[name])
    return FileTable(frame)


def _declared(column: pd.Series) -> pd.Series:
    """Return a column of an ARFF file as its header declares it.

    Texts are categories there. If all are numbers, such as those of {0,1}, they are read as
    numbers, as in other files; the codes 01 and 02 are not.
    """
    if pd.api.types.is_numeric_dtype(column) or not pd.api.types.is_string_dtype(column.dropna()):
        return column
    texts = {*column.dropna()}
    if all(POINT.fullmatch(one) and not LEADING_ZERO.fullmatch(one) for one in texts):
        return pd.to_numeric(column)
    return column.astype("category")


def _refuse(options: ReadOptions, names: tuple[str, ...], files: str) -> None:
    """Raise ValueError if one of these options is given, which apply to other files."""
    default = {field.name: field.default for field in fields(ReadOptions)}
    for name in names:
        if getattr(options, name) not in (default[name], True):
            raise ValueError(f"{name} applies to {files} only; leave it out")


def _read_typed(path: Path, suffix: str) -> pd.DataFrame:
    """Return the table in a file whose columns have types."""
    if suffix == ".npy":
        array = read_npy(path)
        if array.ndim != 2:
            raise ValueError(f"the array must have 2 axes, rows and columns, got {array.ndim}")
        check_extent(path, max(len(array), 32), array.shape[1])  # a column has a name, too
        return pd.DataFrame(array, columns=[str(i) for i in range(array.shape[1])])
    if suffix == ".parquet":
        try:
            from pyarrow import parquet

            content = parquet.read_metadata(path)
            check_extent(path, content.num_rows, content.num_columns)
            return pd.read_parquet(path)
        except ImportError as error:
            raise ValueError('pyarrow is missing: pip install "fedlib-study[http]"') from error
    if suffix == ".arff":
        from fedlib.datasets.tables import parse

        try:
            return parse("rows.arff", path.read_bytes())
        except Exception as error:
            if not str(error):
                raise
            raise ValueError(
                f"{error}; of .arff files only dense rows of numbers and of categories in ASCII are"
                " read, which are either all in quotation marks of one kind or all without; save"
                " the rows as .csv"
            ) from error
    raise ValueError(f"the format {suffix or 'without a suffix'} is unknown; known are {FORMATS}")


def _without_words(frame: pd.DataFrame, words: Collection[str]) -> pd.DataFrame:
    """Return a table with gaps in place of some words and of empty texts."""
    for name in frame.columns:
        column = frame[name]
        if pd.api.types.is_numeric_dtype(column):
            frame[name] = without_numbers(column, words)
        elif not isinstance(column.dtype, pd.CategoricalDtype) and (
            pd.api.types.is_string_dtype(column)
        ):
            frame[name] = clean_text(column, words)
    return frame


# Excel files: one sheet, whose cells have types of their own.


def _read_excel(path: Path, options: ReadOptions) -> FileTable:
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
        rows = frame.head(N_ROWS).apply(as_text).fillna("").to_numpy(str)
        check_names(names, rows.tolist(), f"row {first} of the sheet", options)
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
                    check_extent(path, *last_cell(content))


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
                    column = position_of(letters[0]) if letters else column + 1
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
