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
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedlib.core.client import ALL
from fedlib.core.columns import MAX_EXACT
from fedlib.core.file_errors import reading
from fedlib.core.targets import numbers_in_form
from fedlib.core.wording import composed
from fedlib.tables import columns as checks
from fedlib.tables import dataset_json, sheets, statistical_files, typed
from fedlib.tables.columns import (
    CODE,
    POINT,
    ColumnProfile,
    as_text,
    clean_text,
    csv_bytes,
    describe_columns,
    read_cells,
    without_numbers,
)
from fedlib.tables.databases import Database
from fedlib.tables.layouts import check_unique
from fedlib.tables.streams import (
    ReadOptions,
    check_extent,
    is_text_file,
    named_columns,
)
from fedlib.tables.text_files import FileTable, read_text
from fedlib.tables.typed import TypedTable, are_texts, frame_of

SUFFIXES = (
    *(".csv", ".tsv", ".txt"),
    *sheets.SUFFIXES,
    *typed.SUFFIXES,
    *statistical_files.SUFFIXES,
    *dataset_json.SUFFIXES,
    *(".arff", ".npy"),
)
# Options that apply to files of cells only.
OF_TEXT = ("separator", "encoding")
OF_CELLS = ("header", "skip_lines")


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
    def read(
        cls, path: Path | Database, options: ReadOptions, as_written: bool = False
    ) -> SiteFile:
        """Return the columns in a file or of a query to a database.

        Parameters
        ----------
        path : Path or Database
        options : ReadOptions
        as_written : bool, default=False
            Whether the cells of anything except text files remain as they are, for a schema.

        Raises
        ------
        ValueError
            When they cannot be read.
        """
        if isinstance(path, Database):
            _refuse(options, (*OF_TEXT, *OF_CELLS, "sheet"), "files")
            return cls(_of_types(path.read(), options, as_written), options, True)
        path = Path(path)
        with reading(path, own="cannot be read: "):
            content = _read_file(path, options, as_written)
        return cls(content, options, path.suffix != ".npy" and options.header is not False)

    @property
    def text(self) -> list[str]:
        """The columns that the option ``text`` names."""
        return named_columns(self.options.text, list(self.content.frame.columns))

    def describe(self) -> list[ColumnProfile]:
        """Return what each column contains."""
        profiles = describe_columns(self.content.frame, self.options.ids, self.text)
        return [
            replace(one, kind="unreadable") if one.name in self.content.unreadable else one
            for one in profiles
        ]

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
            self.content.check(name, self.options.gap_words)
            if name in self.content.codes:
                declared = name in self.content.declared
                checks.check_no_codes(name, self.content.codes[name], declared)
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
    path: Path | Database, options: ReadOptions | None = None, *, raw: bool = False, **changed: Any
) -> Table:
    r"""Read a site's rows and check that its features are finite numbers.

    Parameters
    ----------
    path : Path or Database
        A file with one of the `SUFFIXES`, or a query to a database. Text may be compressed
        (.csv.gz).
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
    not count, and true, True and TRUE are the same. In a sheet, an error such as #DIV/0! is a
    gap only if it is one of ``na_values``, and a formula must have a stored value. A column of
    ``text`` stays as it is written; as a feature it has pandas' type of categories, which is text
    for every protocol.

    In a file with types (Parquet, Feather, Arrow, SAS, SPSS, Stata, Dataset-JSON) and in a
    database, the type says what a column contains. If most of its texts look like numbers, the
    column is refused, unless ``text`` or ``decimal`` says what they are. Values that no run can
    use, such as bytes and lists, are refused if the column is used.

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
    with reading(path if isinstance(path, Path) else str(path)):
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


def _read_file(path: Path, options: ReadOptions, as_written: bool) -> FileTable:
    """Return the table in a file."""
    if path.is_dir():
        raise ValueError("it is a folder; name a file")
    if is_text_file(path):
        _refuse(options, ("sheet",), "files with sheets")
        return read_text(path, options)
    suffix = path.suffix.lower()
    if suffix in statistical_files.SUFFIXES:
        _refuse(options, ("separator",), "text files")
        _refuse(options, (*OF_CELLS, "sheet"), "text files and sheets")
        table = statistical_files.read_statistical(path, options.encoding)
        return _of_types(table, options, as_written)
    _refuse(options, OF_TEXT, "text files")
    if suffix in sheets.SUFFIXES:
        content = sheets.read_sheet(path, options)
        return content if as_written else _interpreted(content, options, options.decimal or ".")
    _refuse(options, (*OF_CELLS, "sheet"), "text files and sheets")
    if suffix not in (".npy", ".arff"):
        return _of_types(_read_typed(path, suffix), options, as_written)
    _refuse(options, ("decimal",), "files with text")
    content = FileTable(_read_npy(path) if suffix == ".npy" else _read_arff(path, options))
    return _interpreted(content, options, "")


def _of_types(table: TypedTable, options: ReadOptions, as_written: bool) -> FileTable:
    """Return the table of a source that states the types of its columns."""
    frame, unreadable = frame_of(table)
    names = [composed(str(name)) for name in frame]
    check_unique(names)
    frame.columns = pd.Index(names)
    content = FileTable(
        frame,
        declared={name for name in names if are_texts(frame[name])},
        unreadable={composed(name): why for name, why in unreadable.items()},
        labels={composed(name): labels for name, labels in table.labels.items()},
        missing={composed(name): labels for name, labels in table.missing.items()},
    )
    return content if as_written else _interpreted(content, options, options.decimal or "")


def _interpreted(content: FileTable, options: ReadOptions, decimals: str) -> FileTable:
    """Return a table whose columns are numbers or text as the options say.

    Parameters
    ----------
    content : FileTable
    options : ReadOptions
    decimals : str
        The decimal mark of numbers among the texts; empty if texts are no numbers.
    """
    frame, words = content.frame, options.gap_words
    texts = {*named_columns(options.text, [*frame]), options.ids}
    for name in frame.columns:
        column = frame[name]
        if name in texts:
            frame[name] = clean_text(as_text(column), words)
        elif pd.api.types.is_numeric_dtype(column):
            frame[name] = without_numbers(column, words)
        elif isinstance(column.dtype, pd.CategoricalDtype):
            frame[name] = clean_text(column.astype(object), words).astype("category")
        elif name in content.declared and not decimals:
            frame[name] = found = clean_text(column, words)
            form, like = numbers_in_form(found.dropna().astype(object))
            if form == "marks":
                content.codes[name] = next(text for text in found if text in like)
        elif name in content.declared or column.dtype == object:
            frame[name] = _plain(column, words, decimals, content)
    return content


def _plain(
    column: pd.Series, words: Collection[str], decimals: str, content: FileTable
) -> pd.Series:
    """Return a column of any objects as numbers or text; others are as they are.

    A text that can be a code is noted in ``content``.
    """
    values = column.dropna()
    texts = [value.strip() for value in values if isinstance(value, str)]
    if not texts:
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        exact = numbers and all(abs(v) <= MAX_EXACT for v in values)
        return without_numbers(pd.to_numeric(column), words) if exact else column
    result, _ = read_cells(as_text(column), words, decimals)
    code, name = next(filter(CODE.fullmatch, texts), None), str(column.name)
    if code and name not in content.declared and pd.api.types.is_numeric_dtype(result):
        content.codes[name] = code
    return result


def _refuse(options: ReadOptions, names: tuple[str, ...], files: str) -> None:
    """Raise ValueError if one of these options is given, which apply to other files."""
    default = {field.name: field.default for field in fields(ReadOptions)}
    for name in names:
        if getattr(options, name) not in (default[name], True):
            raise ValueError(f"{name} applies to {files} only; leave it out")


def _read_typed(path: Path, suffix: str) -> TypedTable:
    """Return the table in a file whose columns have types."""
    if suffix in typed.SUFFIXES:
        return typed.read_arrow(path)
    if suffix in dataset_json.SUFFIXES:
        return dataset_json.read_dataset_json(path)
    raise ValueError(
        f"the format {suffix or 'without a suffix'} is unknown; known are {', '.join(SUFFIXES)}"
    )


def _read_npy(path: Path) -> pd.DataFrame:
    """Return the table in a .npy file, whose columns are called 0, 1 and so on."""
    array = read_npy(path)
    if array.ndim != 2:
        raise ValueError(f"the array must have 2 axes, rows and columns, got {array.ndim}")
    check_extent(path, max(len(array), 32), array.shape[1])  # a column has a name, too
    return pd.DataFrame(array, columns=[str(i) for i in range(array.shape[1])])


def _read_arff(path: Path, options: ReadOptions) -> pd.DataFrame:
    """Return the table in an .arff file, with the types that its header declares."""
    from fedlib.datasets.tables import parse

    try:
        frame = parse("rows.arff", path.read_bytes())
    except Exception as error:
        if not str(error):
            raise
        raise ValueError(
            f"{error}; of .arff files only dense rows of numbers and of categories in ASCII are"
            " read, which are either all in quotation marks of one kind or all without; save"
            " the rows as .csv"
        ) from error
    frame.columns = [composed(str(name)) for name in frame.columns]
    check_unique([*frame.columns])
    kept = named_columns(options.text, [*frame])
    for name in frame.columns:
        column = frame[name]
        if not pd.api.types.is_numeric_dtype(column):
            # A question mark is a missing value; scipy reads it as a category.
            column = clean_text(column, options.gap_words | {"?"})
        frame[name] = column if name in kept else _declared(column)
    return frame


def _declared(column: pd.Series) -> pd.Series:
    """Return a column of an ARFF file as its header declares it.

    Texts are categories there. If all are numbers, such as those of {0,1}, they are read as
    numbers, as in other files; the codes 01 and 02 are not.
    """
    if pd.api.types.is_numeric_dtype(column) or not pd.api.types.is_string_dtype(column.dropna()):
        return column
    texts = {*column.dropna()}
    if all(POINT.fullmatch(one) and not re.match(r"0\d", one) for one in texts):
        return pd.to_numeric(column)
    return column.astype("category")
