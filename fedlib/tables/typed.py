"""Columns whose source states their types: Parquet, Arrow, statistical files and databases.

A source gives one Arrow array per column. The array's type, and nothing that is guessed from its
values, says what the column contains:

- Integers, floats and decimals are numbers. A decimal becomes the nearest float, whatever its
  scale. Integers that no float64 equals stay integers, so that they are refused by name.
- Text stays text, also if all of it looks like numbers. Dictionaries are declared categories, also
  of numbers.
- Dates and times without a zone are calendar days. A time with a zone keeps its zone.
- Durations and times of day are durations.
- Anything else cannot be used; an error says why if a run uses the column.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedlib.core.columns import MAX_EXACT
from fedlib.core.targets import kind_of, number_text
from fedlib.tables.streams import check_extent, unpacked_limit

Labels = Mapping[str, Mapping[str, str]]
SUFFIXES = (".parquet", ".feather", ".arrow")


@dataclass(frozen=True)
class TypedTable:
    """The columns of a source that states their types.

    Attributes
    ----------
    columns : dict of str to ChunkedArray or Array
        The cells of each column, null for gaps. Codes are numbers or texts as in the source.
    labels : mapping of str to mapping of str to str
        By column, the label of each code, in the order of the codes. Codes that are numbers are
        texts as `fedlib.core.targets.number_text` writes them, such as "1".
    missing : mapping of str to mapping of str to str
        By column, the user-defined missing values and their labels (empty without one). Their cells
        are null already.
    unreadable : mapping of str to str
        By column, why its values cannot be used, and the remedy. A run that does not use such a
        column is not disturbed.
    """

    columns: dict[str, Any]
    labels: Labels = field(default_factory=dict)
    missing: Labels = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)


def import_arrow() -> Any:
    """Return the module pyarrow with its parts ``compute`` and ``csv``.

    Raises
    ------
    ValueError
        When it is not installed.
    """
    try:
        import pyarrow as arrow
        import pyarrow.compute
        import pyarrow.csv
    except ImportError as error:
        raise ValueError('pyarrow is missing: pip install "fedlib-study[http]"') from error
    return arrow


def read_arrow(path: Path) -> TypedTable:
    """Return the columns of a Parquet, Feather or Arrow file by their Arrow types.

    What pandas has noted about an index is ignored: an index with a name is a column, and one of
    integers without a name is left out.

    Raises
    ------
    ValueError
        When pyarrow is missing, or the table is too large for the size of the file.
    """
    arrow = import_arrow()
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:  # read_table would take columns from the folders
            check_extent(path, file.metadata.num_rows, file.metadata.num_columns)
            categories = _categories(arrow, file.metadata.metadata or {})
            table = file.read()
    else:
        categories, table = set(), _read_batches(arrow, path)
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name.startswith("__index_level_") and arrow.types.is_integer(column.type):
            continue
        if name in columns:
            raise ValueError(f"there is more than one column {name!r}; rename them")
        columns[name] = column.dictionary_encode() if name in categories else column
    return TypedTable(columns)


def _categories(arrow: Any, metadata: Mapping[bytes, bytes]) -> set[str]:
    """Return the columns that the writer of a Parquet file had as categories.

    pyarrow gives back categories of texts only; those of numbers are numbers in the file, and the
    type is in the Arrow schema that the writer has added.
    """
    content = metadata.get(b"ARROW:schema")
    if content is None:
        return set()
    schema = arrow.ipc.read_schema(arrow.py_buffer(base64.b64decode(content)))
    return {one.name for one in schema if arrow.types.is_dictionary(one.type)}


def _read_batches(arrow: Any, path: Path) -> Any:
    """Return the table in a Feather or Arrow file, up to the limit of its size."""
    from pyarrow import feather

    limit = unpacked_limit(path.stat().st_size)
    with arrow.OSFile(str(path)) as file:
        if file.read(4) == b"FEA1":  # the first version, which is not compressed
            return feather.read_table(path, memory_map=False)
        file.seek(0)
        try:
            reader = arrow.ipc.open_file(file)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        except arrow.ArrowInvalid:
            file.seek(0)
            reader = arrow.ipc.open_stream(file)
            batches = reader
        kept, size = [], 0
        for batch in batches:
            kept.append(batch)
            size += batch.get_total_buffer_size()
            if size > limit:
                raise ValueError(
                    f"the file unpacks to more than {limit:,} bytes, which is too much for its"
                    " size; save the rows as .parquet or .csv"
                )
        return arrow.Table.from_batches(kept, reader.schema)


def frame_of(table: TypedTable) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return typed columns as a DataFrame, and why the values of some columns cannot be used.

    The columns of the second kind have gaps only.

    Examples
    --------
    >>> import pyarrow as pa
    >>> columns = {"code": pa.array(["007", None]), "raw": pa.array([b"a", b"b"])}
    >>> frame_of(TypedTable(columns))[1]["raw"]
    'it contains binary; convert it to numbers or text, or leave the column out'
    """
    columns, unreadable = {}, dict(table.unreadable)
    for name, array in table.columns.items():
        try:
            if name in unreadable:
                raise ValueError(unreadable[name])
            columns[name] = series_of(array)
        except ValueError as error:
            unreadable[name] = str(error)
            columns[name] = pd.Series(np.full(len(array), np.nan))
    return pd.DataFrame(columns, copy=False), unreadable


def series_of(array: Any) -> pd.Series:
    """Return a column of Arrow as a Series whose dtype says what it contains.

    Raises
    ------
    ValueError
        When no run can use such values.
    """
    arrow = import_arrow()
    types, kind = arrow.types, array.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return as_texts(array)
    if isinstance(array, arrow.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if isinstance(kind, arrow.UuidType):
        return as_texts([value and str(value) for value in array.to_pylist()])
    if isinstance(kind, arrow.BaseExtensionType):
        return series_of(array.storage)
    if types.is_run_end_encoded(kind):
        return series_of(arrow.compute.run_end_decode(array))
    if types.is_null(kind):
        return pd.Series(np.full(len(array), np.nan))
    if types.is_boolean(kind):
        values = array.to_numpy(zero_copy_only=False)
        return pd.Series(values, dtype="boolean" if array.null_count else None)
    if types.is_integer(kind):
        return _integers(array)
    if types.is_floating(kind):
        return pd.Series(array.cast(arrow.float64()).to_numpy(zero_copy_only=False), copy=False)
    if types.is_decimal(kind):
        # Arrow's cast of a decimal is not always the nearest float; that of its text is.
        texts = array.cast(arrow.string())
        numbers = texts.cast(arrow.float64()).to_numpy(zero_copy_only=False)
        if not _whole(numbers):
            return pd.Series(numbers)
        if np.nanmax(np.abs(numbers), initial=0) >= MAX_EXACT:  # 2**53 + 1 is rounded to it
            return _objects([None if v is None else int(v) for v in array.to_pylist()])
        return pd.Series(numbers if array.null_count else numbers.astype(np.int64))
    if types.is_dictionary(kind):
        values = series_of(array.dictionary)
        if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
            values = _objects([number_text(value) for value in values])
        codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.intp)
        texts = np.array([*values.astype(object), None], object)[codes]
        return pd.Series(texts, dtype="category")
    if types.is_date(kind) or types.is_timestamp(kind):
        days = array.cast(arrow.timestamp("s")) if types.is_date(kind) else array
        return days.to_pandas() if getattr(kind, "tz", None) else _of_numpy(days)
    if types.is_time(kind):
        array = array.cast(arrow.int32() if types.is_time32(kind) else arrow.int64())
        return _of_numpy(array.cast(arrow.int64()).cast(arrow.duration(kind.unit)))
    if types.is_duration(kind):
        return _of_numpy(array)
    raise ValueError(f"it contains {kind}; convert it to numbers or text, or leave the column out")


def as_texts(texts: Any) -> pd.Series:
    """Return texts, of Arrow or in a list, as a Series whose dtype says that they are texts."""
    arrow = import_arrow()
    array = arrow.array(texts, arrow.string()) if isinstance(texts, list) else texts
    return pd.Series(array.cast(arrow.string()), dtype=pd.ArrowDtype(arrow.string()))


def are_texts(column: pd.Series) -> bool:
    """Return whether the source of a column says that it contains text."""
    dtype = column.dtype
    return isinstance(dtype, pd.ArrowDtype) and bool(pd.api.types.is_string_dtype(dtype))


def _of_numpy(array: Any) -> pd.Series:
    return pd.Series(array.to_numpy(zero_copy_only=False))


def _objects(values: list[Any]) -> pd.Series:
    return pd.Series(np.array([*values, None], object)[:-1])


def _whole(numbers: np.ndarray) -> bool:
    """Return whether all numbers that are no gaps are integers."""
    return bool((np.isnan(numbers) | (numbers == np.rint(numbers))).all())


def _integers(array: Any) -> pd.Series:
    """Return integers; with gaps they are floats if that changes none, and else objects."""
    if not array.null_count:
        return pd.Series(array.to_numpy(), copy=False)
    ends = import_arrow().compute.min_max(array).as_py()
    if max(abs(ends["min"] or 0), abs(ends["max"] or 0)) <= MAX_EXACT:
        values = array.to_numpy(zero_copy_only=False)
        return pd.Series(values.astype(np.float64), copy=False)
    return _objects(array.to_pylist())


def plain_series(series: pd.Series) -> pd.Series:
    """Return a column of a frame as `series_of` returns those of Arrow.

    Objects that are all dates, durations or decimals get the dtype of these.

    Raises
    ------
    ValueError
        When no run can use such values; the text names the column.

    Examples
    --------
    >>> from datetime import timedelta
    >>> plain_series(pd.Series([timedelta(hours=30), time(1), None], dtype=object)).dtype.kind
    'm'
    """
    dtype = series.dtype
    place = f"column {str(series.name)!r}"
    if isinstance(dtype, pd.ArrowDtype) and not are_texts(series):
        try:
            found = series_of(series.array.__arrow_array__())
        except ValueError as error:
            raise ValueError(f"{place} cannot be used: {error}") from error
        return found.set_axis(series.index).rename(str(series.name))
    if not pd.api.types.is_object_dtype(dtype):
        return series
    kind = pd.api.types.infer_dtype(series, skipna=True)
    if kind in ("string", "boolean", "integer", "floating", "empty", "mixed-integer"):
        return series
    gaps = series.isna().to_numpy()
    values = [None if gap else value for value, gap in zip(series, gaps, strict=True)]
    kinds = {"duration" if isinstance(v, time) else kind_of(v) for v in values if v is not None}
    if "bytes" in kinds:
        raise ValueError(
            f"{place} contains bytes, which can be text of any encoding; decode them, such as with"
            f" X[{series.name!r}].str.decode('utf-8')"
        )
    if kinds == {"duration"}:
        values = [_duration(value) if isinstance(value, time) else value for value in values]
        gap = np.timedelta64("NaT", "us")
        spans = np.array([gap if v is None else v for v in values], "timedelta64[us]")
        return pd.Series(spans, series.index, name=series.name)
    if kinds != {"date"}:
        return series
    zones = {getattr(value, "tzinfo", None) is not None for value in values if value is not None}
    if len(zones) > 1:
        raise ValueError(f"{place} contains times with a zone and without one; use one kind")
    if zones == {True}:
        found = pd.Series(
            pd.to_datetime(np.array(values, object), utc=True), series.index, name=series.name
        )
        first = next(value.tzinfo for value in values if value is not None)
        same = all(value is None or value.tzinfo == first for value in values)
        return found.dt.tz_convert(first) if same else found
    never = np.datetime64("NaT", "us")
    days = np.array([never if v is None else v for v in values], "datetime64[us]")
    return pd.Series(days, series.index, name=series.name)


def _duration(value: time) -> np.timedelta64:
    """Return a time of day as the duration since midnight."""
    seconds = 3600 * value.hour + 60 * value.minute + value.second
    return np.timedelta64(1_000_000 * seconds + value.microsecond, "us")
