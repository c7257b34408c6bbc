"""Files of SAS, SPSS and Stata: their numbers, texts, dates and gaps by the types that they state.

The rules:

- Codes are data, and labels are documentation: two codes with one label stay two codes.
- System missing, user-defined missing values and empty texts are gaps.
- A column's type is that of the file, and its format says whether its numbers are dates, times or
  durations. Formats that show a part of a date, such as the year, do not change its value.
- Dates whose numbers have no exact meaning make a column unreadable, not the file.
"""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from codecs import lookup
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedlib.core.array_types import Bools, Floats
from fedlib.tables.streams import check_extent
from fedlib.tables.typed import TypedTable

MISSING = 'pip install "fedlib-study[stat]"'
ENCODING = (
    "name its encoding, such as cp1252 (Windows) or latin-1, or save the file again with UTF-8"
)
# Read at once: as Python's objects, which pyreadstat makes, so many values need about 150 MB.
N_VALUES = 2**22
N_BYTES = 2**28  # of texts
RECORD = 80  # bytes, of which a transport file of SAS consists
MEMBER = re.compile(rb"HEADER RECORD\*{7}MEMB(ER|V8) {2}HEADER RECORD!{7}")
# Reads the labels of a file of SPSS in a process of its own.
PROBE = """
import sys, pyreadstat
pyreadstat.read_sav(
    sys.argv[1], metadataonly=True, encoding=sys.argv[2] or None, output_format="dict"
)
"""
STEP = 10  # microseconds to which times are rounded: seconds since 1582 distinguish no less
MAX_MICROSECONDS, MAX_DAYS = 4e17, 4e6  # more than 9999 years, and less than 2**63
OUTSIDE = "is out of the years 1 to 9999; correct it"
FRACTION = (
    "has a fraction; remove the fraction, or give the column a format with a time of day if its"
    " unit is that of times"
)
YEARS = np.array(["0001-01-01", "9999-12-31T23:59:59.999999"], "M8[us]")


class _Program(NamedTuple):
    """How a program's files write dates and times as numbers.

    Attributes
    ----------
    formats : mapping of str to str
        By kind of value, the names of its formats as a regular expression.
    origin : str, default="1960-01-01"
        The day of the number 0.
    per_day : int, default=1
        The unit of dates, as a fraction of a day.
    microseconds : int, default=10**6
        The unit of times.
    """

    formats: Mapping[str, str]
    origin: str = "1960-01-01"
    per_day: int = 1
    microseconds: int = 10**6


SPSS_FORMATS = {
    "date": "[AEJS]?DATE|MOYR|QYR|WKYR",
    "datetime": "DATETIME|YMDHMS",
    "duration": "[DM]?TIME",
}
SAS_FORMATS = {
    "date": "DATE|DAY|DOWNAME|JULDAY|JULIAN|PDJUL[GI]|MONNAME|MONTH|MONYY|QTRR?|YEAR|WORDDAT[EX]"
    "|WEEKDAT[EX]|WEEKDAY|WEEK[UVW]|(DDMMYY|MMDDYY|YYMMDD)[BCDNPS]?|(MMYY|YYMM|YYQR?)[CDNPS]?"
    r"|YYMON|YYWEEK[UVW]|(B|E|IS)8601DA|NLDATE\w*|EURDFD([DENT]|WN)|EURDF(M[NY]|W[DK]X)|HDATE"
    "|HEBDATE|MINGUO|NENGO",
    "datetime": "DATETIME|DATEAMPM|MDYAMPM|DT(DATE|MONYY|WKDATX|YEAR|YYQC)"
    r"|(B|E|IS)8601(D[NTXZ]|LX)|NLDATM\w*",
    "duration": r"TIME(AMPM)?|TOD|HHMM|HOUR|MMSS|(B|E|IS)8601(T[MXZ]|LZ)|NLTIM\w*",
}
STATA_FORMATS = {
    "date": "d|td",
    "datetime": "tc",
    "week": "tw",
    "month": "tm",
    "quarter": "tq",
    "half-year": "th",
    "number": "|t[yg]",  # also years, and dates without a unit
    "leap": "tC",
    "business": "tb",
}
SPSS = _Program(SPSS_FORMATS, "1582-10-14", 86_400)
SAS = _Program(SAS_FORMATS)
STATA = _Program(STATA_FORMATS, microseconds=1000)
UNREADABLE = {
    "leap": "counts leap seconds; convert its times by cofC() to %tc",
    "business": "counts the days of a business calendar; convert them by dofb() to %td",
    "unknown": "is unknown; convert the column to %td or %tc",
}
PER_YEAR = {"week": 52, "month": 12, "quarter": 4, "half-year": 2}
READERS = {
    ".sas7bdat": ("read_sas7bdat", SAS),
    ".xpt": ("read_xport", SAS),
    ".sav": ("read_sav", SPSS),
    ".zsav": ("read_sav", SPSS),
    ".por": ("read_por", SPSS),
    ".dta": ("read_dta", STATA),
}
SUFFIXES = tuple(READERS)


def read_statistical(path: Path, encoding: str | None = None) -> TypedTable:
    """Return the columns of a file of SAS, SPSS or Stata.

    Parameters
    ----------
    path : Path
        A .sas7bdat, .xpt, .sav, .zsav, .por or .dta file. An .xpt file has one member.
    encoding : str, optional
        The encoding of its text, for a file that does not state it; a .por file cannot have one.

    Returns
    -------
    TypedTable
        Integers of Stata are int64, numbers of 4 bytes float32, all other numbers float64; days
        are date32, times timestamps without a zone, durations and times of a day durations. Weeks,
        months, quarters and half-years of Stata are their first days. Missing values have the codes
        ".a" (Stata), ".A" and "._" (SAS), or those of SPSS, in which ranges are "LOWEST THRU 5".
        An unreadable column has no values.

    Raises
    ------
    ValueError
        When a package that reads it is missing, or the file has several members, text in another
        encoding, or a table too large for its size.
    Exception
        Of pyreadstat, when the file is damaged (`fedlib.core.file_errors.reading` catches them).

    Notes
    -----
    The file is read in blocks of rows, and memory stays below twice the table and 200 MB. Of .xpt
    and .por files, pyreadstat does not tell the user-defined missing values: they are gaps, but
    ``missing`` does not list them, and a label for one stays in ``labels``.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> import pyreadstat
    >>> rows = pd.DataFrame({"age": [41.0, 99.0], "sex": [1.0, 2.0]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "site.sav")
    ...     labels = {"sex": {1: "male", 2: "female"}}
    ...     ranges = {"age": [99]}
    ...     pyreadstat.write_sav(rows, path, variable_value_labels=labels, missing_ranges=ranges)
    ...     table = read_statistical(path)
    >>> table.columns["age"].to_pylist(), table.missing
    ([41.0, None], {'age': {'99': ''}})
    >>> table.labels
    {'sex': {'1': 'male', '2': 'female'}}
    """
    path = Path(path)
    try:
        import pyarrow  # noqa: F401
        import pyreadstat
    except ImportError as error:
        name = "pyarrow" if "pyarrow" in str(error.name) else "pyreadstat"
        raise ValueError(f"{name} is missing: {MISSING}") from error
    suffix = path.suffix.lower()
    name, program = READERS[suffix]
    if suffix == ".xpt":
        _check_members(path)
    path.open("rb").close()  # so that errors of the file system have their own classes
    options: dict[str, Any] = {"disable_datetime_conversion": True, "output_format": "dict"}
    if suffix not in (".xpt", ".por"):
        options["user_missing"] = True
    if encoding is not None:
        if suffix == ".por":
            raise ValueError("a .por file has no encoding; leave it out")
        options["encoding"] = lookup(encoding).name
    if name == "read_sav":
        _probe(path, options.get("encoding", ""))
    reader = getattr(pyreadstat, name)

    def read(**further: Any) -> tuple[dict[str, list[Any]], Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return reader(path.absolute(), **options, **further)

    try:
        return _read(path, read, program)
    except Exception as error:
        if isinstance(error, UnicodeDecodeError) or "convert string" in str(error):
            raise ValueError(
                f"its text is not {encoding or 'in the encoding that it states, or UTF-8'};"
                f" {ENCODING}"
            ) from error
        raise


def _probe(path: Path, encoding: str) -> None:
    """Raise ValueError if pyreadstat ends the process that reads the labels of a file of SPSS.

    pyreadstat 1.3.7 does so if the code of a text does not fit the encoding, as in files of old
    versions and in damaged ones.
    """
    command = [sys.executable, "-P", "-c", PROBE, str(path.absolute()), encoding]
    status = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode
    if status not in (0, 1):  # 1 is an error of Python, which reading the file raises again
        raise ValueError(
            f"the labels of its texts cannot be read (status {status}), probably because codes are"
            f" not in the encoding that the file states; {ENCODING}"
        )


def _check_members(path: Path) -> None:
    """Raise ValueError if a transport file of SAS has several members or is cut off."""
    if path.stat().st_size % RECORD:
        raise ValueError(
            f"it has {path.stat().st_size:,} bytes, but a transport file consists of records of"
            f" {RECORD} bytes, so that its end is missing; copy it again"
        )
    n_members = 0
    with path.open("rb") as file:
        while block := file.read(RECORD * 2**14):
            n_members += sum(one.start() % RECORD == 0 for one in MEMBER.finditer(block))
    if n_members > 1:
        raise ValueError(
            f"it must have one member (data set), got {n_members}; write each member as a file of"
            " its own"
        )


def _read(path: Path, read: Callable[..., Any], program: _Program) -> TypedTable:
    """Return the columns that ``read`` gives in blocks of rows."""
    import pyarrow as pa

    content = read(metadataonly=True)[1]
    names, formats = content.column_names, content.original_variable_types
    check_extent(path, content.number_rows or 0, len(names))
    kinds = {name: _kind(content, name, program) for name in names}
    unreadable = {
        name: f"its format {formats[name]} {UNREADABLE[kind]}, or leave the column out"
        for name, kind in kinds.items()
        if kind in UNREADABLE
    }
    parts: dict[str, list[Any]] = {name: [] for name in names}
    codes: dict[str, set[str]] = defaultdict(set)
    n_rows = 0
    for data, tags in _blocks(read, path, content):
        for name in names:
            cells = data.pop(name)
            if name in tags:
                codes[name].update(f".{tag}" for tag in tags[name])
                cells = [None if isinstance(cell, str) else cell for cell in cells]
            if name not in unreadable:
                array = _array(cells, content, name)
                try:
                    array = _convert(array, kinds[name], program)
                except _NoDate as error:
                    row, number, wrong = error.args
                    unreadable[name] = (
                        f"its format {formats[name]} is one of dates or times, but {number!r} in"
                        f" row {n_rows + row + 1} {wrong}, or leave the column out"
                    )
                else:
                    parts[name] += getattr(array, "chunks", [array])
        n_rows += len(cells)
    if content.number_rows not in (None, n_rows):
        raise ValueError(f"it states {content.number_rows} rows and has {n_rows}; copy it again")
    columns = {
        name: pa.nulls(n_rows) if name in unreadable else pa.chunked_array(parts.pop(name))
        for name in names
    }
    return TypedTable(columns, *_documentation(content, codes), unreadable)


def _blocks(
    read: Callable[..., Any], path: Path, content: Any
) -> Iterator[tuple[dict[str, list[Any]], Mapping[str, Sequence[str]]]]:
    """Yield the cells of blocks of rows by column, and the letters of missing values in them."""
    n_rows, width = content.number_rows, sum(content.variable_storage_width.values())
    size = max(1, min(N_VALUES // max(content.number_columns, 1), N_BYTES // max(width, 1)))
    if path.suffix.lower() == ".por":  # skipping rows of text takes as long as reading them
        size = 2**31 - 1
    start = 0
    while content.number_columns:
        data, block = read(row_offset=start, row_limit=size)
        n_read = len(data[content.column_names[0]])
        start += n_read
        yield data, block.missing_user_values
        if n_read < size or start == n_rows:
            return


def _kind(content: Any, name: str, program: _Program) -> str:
    """Return what a column contains by its type and its format."""
    if content.readstat_variable_types[name] == "string":
        return "text"
    form = content.original_variable_types[name] or ""
    base = re.sub(r"\d*\.?\d*$", "", form.upper())
    if program is STATA:
        unit = re.match("%-?(t.|d)", form)
        base = unit[1] if unit else ""
    kinds = (kind for kind, names in program.formats.items() if re.fullmatch(names, base))
    return next(kinds, "unknown" if program is STATA else "number")


def _array(cells: list[Any], content: Any, name: str) -> Any:
    """Return the cells of a column as an Arrow array without the values declared as missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    stored, ranges = content.readstat_variable_types[name], content.missing_ranges.get(name, ())
    if stored == "string":
        # Formats of fixed width fill texts with blanks.
        array = pc.utf8_rtrim(pa.array(cells, pa.string()), " ")
        empty = ["", *(_code(one["lo"]) for one in ranges)]
        gaps = pc.is_in(array, value_set=pa.array(empty, pa.string()))
        return pc.if_else(gaps, pa.scalar(None, pa.string()), array)
    types = {"float": pa.float32(), "double": pa.float64()}
    array = pa.array(cells, types.get(stored, pa.int64()))
    for one in ranges:
        gaps = pc.and_(pc.greater_equal(array, one["lo"]), pc.less_equal(array, one["hi"]))
        array = pc.if_else(gaps, pa.scalar(None, array.type), array)
    return array


class _NoDate(ValueError):
    """A number is no date: its index, the number, what is wrong and the remedy."""


def _convert(array: Any, kind: str, program: _Program) -> Any:
    """Return numbers as what their format says; raise _NoDate if one is none."""
    import pyarrow as pa

    if kind in ("number", "text"):
        return array
    gaps = array.is_null().to_numpy(zero_copy_only=False)
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
    return pa.array(_moments(numbers, kind, program), mask=gaps)


def _moments(numbers: Floats, kind: str, program: _Program) -> np.ndarray:
    """Return the dates, times or durations that numbers are, as an array of the type of these."""
    moments: np.ndarray
    limit = MAX_MICROSECONDS / program.microseconds
    if kind in ("datetime", "duration"):
        _check(numbers, ~(np.abs(numbers) <= limit))
        whole = np.floor(numbers)
        rest = np.rint((numbers - whole) * (program.microseconds / STEP)).astype(np.int64) * STEP
        moments = (whole.astype(np.int64) * program.microseconds + rest).astype("m8[us]")
        if kind == "duration":
            return moments
        moments = np.datetime64(program.origin, "us") + moments
    else:
        per_year = PER_YEAR.get(kind)
        unit = 1 if per_year else program.per_day
        _check(numbers, ~(np.abs(numbers) <= MAX_DAYS * unit))
        _check(numbers, numbers % unit != 0, FRACTION)
        counts = (numbers // unit).astype(np.int64)
        if per_year is None:
            moments = np.datetime64(program.origin, "D") + counts
        else:
            years, rest = counts // per_year, counts % per_year
            # Each year has 52 weeks, of which the last is longer.
            months, days = (0, 7) if kind == "week" else (12 // per_year, 0)
            first = np.datetime64("1960-01", "M") + years * 12 + rest * months
            moments = first.astype("M8[D]") + rest * days
    earliest, latest = YEARS.astype(moments.dtype)
    _check(numbers, (moments < earliest) | (moments > latest))
    return moments


def _check(numbers: Floats, wrong: Bools, text: str = OUTSIDE) -> None:
    """Raise _NoDate for the first number that is wrong."""
    if wrong.any():
        index = int(np.argmax(wrong))
        raise _NoDate(index, float(numbers[index]), text)


def _documentation(
    content: Any, codes: Mapping[str, set[str]]
) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """Return the labels of values, and the missing values with their labels, by column."""
    labels: dict[str, dict[str, str]] = {}
    missing: dict[str, dict[str, str]] = {}
    for name in content.column_names:
        text = content.readstat_variable_types[name] == "string"
        known = content.variable_value_labels.get(name, {})
        ranges = content.missing_ranges.get(name, ())
        ends = ([_code(one["lo"]), _code(one["hi"])] for one in ranges)
        declared = {" THRU ".join(dict.fromkeys(pair)): "" for pair in ends}
        declared |= dict.fromkeys(sorted(codes.get(name, ())), "")
        valid = []
        for code, label in known.items():
            if not text and isinstance(code, str):
                declared[f".{code}"] = label
            elif any(one["lo"] <= code <= one["hi"] for one in ranges) or _code(code) == "":
                declared[_code(code)] = label
            elif code == code:  # which system missing is not
                valid.append(code)
        if valid:
            labels[name] = {_code(code): known[code] for code in sorted(valid)}
        if declared:
            missing[name] = declared
    return labels, missing


def _code(value: Any) -> str:
    """Return a code as text; the number 1.0 is "1", and the ends of ranges are named as in SPSS."""
    if isinstance(value, str):
        return value.rstrip(" ")
    if abs(value) > 1e300:
        return "HIGHEST" if value > 0 else "LOWEST"
    return repr(int(value)) if float(value).is_integer() else repr(float(value))
