"""The bytes and the text of a site's file: compression with a limit, and encodings."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from fedlib.core.wording import composed, marked_encoding


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    r"""Options for reading a file of rows; the command line has an option for each of them.

    Parameters
    ----------
    columns : str or sequence of str, optional
        The features, separated by commas; a name that contains a comma may be in quotation marks.
        By default all columns without another role.
    target : str, optional
        The column with the classes, for a protocol that needs it.
    target_upper : str, optional
        The column with the latest times of rows, if that of ``target`` has the earliest, for
        boosting of survival times; inf where a time is only known to be later.
    sample_weight : str, optional
        The column with the weights, for a protocol that uses them.
    ids : str, optional
        The column with the identifiers of the rows.
    base_margin : str or sequence of str, optional
        The column with the margins from which boosting starts, for boosting; for several classes
        one column per class, in their order, separated by commas. Rows for validation need the
        column, too.
    header : bool, optional
        Whether the first line of a text file, or the first row of a sheet, contains the names of
        the columns. Without names, the columns are called 0, 1 and so on. By default it contains
        names, and is refused if it looks like a row of values.
    skip_lines : int, default=0
        How many lines above the names, or above the rows, are left out, such as a title.
    separator : str, optional
        The character between the fields of a text file, or "tab" or "space". By default it is
        found from the first lines.
    decimal : str, optional
        The decimal mark of the numbers in a text file, "." or ",". By default it is the point, and
        where the separator is no comma, also the comma if all numbers of a column have it.
    encoding : str, optional
        The encoding of a text file, such as cp1252 or latin-1. By default UTF-8, or what its byte
        order mark says.
    na_values : str or sequence of str, optional
        Further words that are gaps in every column, separated by commas. In columns of numbers, NA,
        N/A, NaN, NULL, a point, a hyphen and a question mark are gaps anyway.
    sheet : str, optional
        The sheet of an .xlsx or .ods file; needed if there are several.
    text : str or sequence of str, optional
        The columns that stay text as it is written, such as codes and zip codes, also if they look
        like numbers or identifiers.

    Raises
    ------
    ValueError
        When an option has a value that is not accepted.

    Examples
    --------
    >>> ReadOptions(separator="tab").separator
    '\t'
    >>> ReadOptions(decimal=";")
    Traceback (most recent call last):
    ...
    ValueError: the decimal mark must be '.' or ',', got ';'
    """

    columns: str | Sequence[str] | None = None
    target: str | None = None
    target_upper: str | None = None
    sample_weight: str | None = None
    ids: str | None = None
    base_margin: str | Sequence[str] | None = None
    header: bool | None = None
    skip_lines: int = 0
    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    na_values: str | Sequence[str] | None = None
    sheet: str | None = None
    text: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.separator is not None:
            words = {"tab": "\t", r"\t": "\t", "space": " "}
            object.__setattr__(self, "separator", words.get(self.separator, self.separator))
            _check_separator(self.separator)
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"the decimal mark must be '.' or ',', got {self.decimal!r}")
        if self.encoding is not None:
            _check_encoding(self.encoding)
        if self.target_upper is not None and self.target is None:
            raise ValueError(
                "target must name the column with the earliest times; got only"
                f" target_upper={self.target_upper!r}, that with the latest"
            )
        if self.skip_lines < 0:
            raise ValueError(f"skip_lines must be 0 or more, got {self.skip_lines}")
        words_of = self.na_values
        if isinstance(words_of, str):
            words_of = split_list(words_of)
        if isinstance(self.base_margin, str):
            object.__setattr__(self, "base_margin", split_list(self.base_margin))
        object.__setattr__(self, "na_values", tuple(composed(str(w)) for w in words_of or ()))
        single = ("target", "target_upper", "sample_weight", "ids")
        for name in ("columns", *single, "base_margin", "text"):
            value = getattr(self, name)
            if value is not None:
                plain = composed(value) if isinstance(value, str) else tuple(map(composed, value))
                object.__setattr__(self, name, plain)

    @property
    def gap_words(self) -> frozenset[str]:
        """The words of ``na_values``."""
        return frozenset(self.na_values or ())

    @property
    def others(self) -> list[str]:
        """The columns that are no features."""
        single = (self.target, self.target_upper, self.sample_weight, self.ids)
        return [*(name for name in single if name is not None), *(self.base_margin or ())]


def _check_separator(separator: str | None) -> None:
    """Raise ValueError if a text cannot separate fields."""
    mark = separator or ""
    if len(mark) != 1 or mark.isalnum() or mark in "\"'\r\n.-+":
        raise ValueError(
            "the separator must be one character that is no letter, digit, quotation mark, point or"
            f" sign, or 'tab' or 'space'; got {separator!r}"
        )


def _check_encoding(encoding: str) -> None:
    """Raise ValueError if Python has no such encoding of text."""
    try:
        "a".encode(encoding)
    except (LookupError, UnicodeError) as error:
        raise ValueError(
            f"the encoding must be one that Python has, such as utf-8, cp1252 or latin-1; got"
            f" {encoding!r}"
        ) from error


def split_list(text: str) -> list[str]:
    """Return the items of a list that is separated by commas; quotation marks are as in CSV.

    Examples
    --------
    >>> split_list('age, "bilirubin, mg/dl"')
    ['age', 'bilirubin, mg/dl']
    """
    items = next(csv.reader([text], skipinitialspace=True), [])
    return [item.strip() for item in items]


def named_columns(names: str | Sequence[str] | None, available: Sequence[str]) -> list[str]:
    """Return the columns that an option names.

    A name with a comma is found in quotation marks, as an item of a sequence, and also in a plain
    list, if that can be read in one way only. Names that are not available are returned too.

    Raises
    ------
    ValueError
        When a list can be read in several ways.

    Examples
    --------
    >>> named_columns("age,bilirubin, mg/dl", ["age", "bilirubin, mg/dl", "kind"])
    ['age', 'bilirubin, mg/dl']
    """
    known, found = set(available), []
    longest = 1 + max((name.count(",") for name in known), default=0)
    for text in [names] if isinstance(names, str) else names or ():
        if isinstance(names, str) or text not in known:
            found += split_list(text) if '"' in text else _split_names(text, known, longest)
        else:
            found.append(text)
    return found


def _split_names(text: str, known: set[str], longest: int) -> list[str]:
    """Return the names in a list without quotation marks; each has fewer than ``longest`` commas.

    The reading with the fewest unknown names is chosen.
    """
    pieces = text.split(",")
    # Up to each piece: the count of unknown names, that of such readings, the start of a name.
    best = [(0, 1, 0)]
    for end in range(1, len(pieces) + 1):
        readings = [(best[end - 1][0] + 1, best[end - 1][1], end - 1)]
        for start in range(max(0, end - longest), end):
            if ",".join(pieces[start:end]).strip() in known:
                readings.append((best[start][0], best[start][1], start))
        fewest = min(readings)[0]
        least = [reading for reading in readings if reading[0] == fewest]
        best.append((fewest, sum(ways for _, ways, _ in least), least[0][2]))
    unknown, ways, _ = best[-1]
    if ways > 1 and not unknown:
        raise ValueError(
            f"the names {text!r} can be read in {ways} ways; put a name that contains a comma in"
            " quotation marks: 'a,\"b, c\"'"
        )
    names, end = [], len(pieces)
    while end:
        start = best[end][2]
        names.append(",".join(pieces[start:end]).strip())
        end = start
    return names[::-1]


def is_text_file(path: Path) -> bool:
    """Return whether a file is text by its name.

    Examples
    --------
    >>> is_text_file(Path("site.CSV.gz")), is_text_file(Path("site.xlsx"))
    (True, False)
    """
    return Path(path.name.lower().removesuffix(".gz")).suffix in (".csv", ".tsv", ".txt")


def is_address(text: str) -> bool:
    """Return whether a text is the address of a database, and not the path of a file.

    Examples
    --------
    >>> is_address("postgresql://host/db"), is_address("site.csv")
    (True, False)
    """
    return ADDRESS.match(text) is not None


# What other files begin with, behind blanks, and what to do with them.
OTHER_FILES = {
    rb"PK\x03\x04": "a ZIP archive or a sheet; unpack it, or name it .xlsx or .ods",
    rb"\xd0\xcf\x11\xe0": "an old Excel file; save it as .xlsx or .csv",
    rb"\x1f\x8b": "compressed; add .gz to its name",
    rb"BZh\d|\xfd7zXZ|\x28\xb5\x2f\xfd": "compressed; unpack it, or compress it with gzip",
    rb"PAR1": "a Parquet file; name it .parquet",
    rb"%PDF|{\\rtf|\x89PNG": "a document or a picture; export the table as .csv",
    rb"<[!?A-Za-z]": "HTML or XML, such as the page of a login; download the table itself as .csv",
    rb'\[\s*[\[{]|{\s*["\[{]': "JSON; write the table as .csv, or name Dataset-JSON .json",
}
ADDRESS = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")  # the beginning of one
PLACE = re.compile(rb"""\sr\s*=\s*["']([A-Za-z]*)([0-9]{1,20})""")  # of a row or a cell
ALWAYS_UNPACKED = 2**28  # bytes; tables of repeated rows are compressed well
MAX_RATIO = 100  # of the unpacked to the packed size beyond it
MAX_UNPACKED = 2**36
BYTES_PER_VALUE = 8  # of a table in memory, at least


def unpacked_limit(packed: int) -> int:
    """Return how many bytes may be unpacked from this count of bytes.

    Examples
    --------
    >>> unpacked_limit(1000) == 2**28, unpacked_limit(10**8), unpacked_limit(10**12) == 2**36
    (True, 10000000000, True)
    """
    return min(max(ALWAYS_UNPACKED, MAX_RATIO * packed), MAX_UNPACKED)


def check_extent(path: Path, n_rows: int, n_columns: int) -> None:
    """Raise ValueError if a file states a table that is too large for its size.

    A few bytes can state a huge table: by a cell far out, or by one value for all rows.
    """
    limit = unpacked_limit(path.stat().st_size)
    if n_rows * n_columns * BYTES_PER_VALUE > limit:
        raise ValueError(
            f"the table has {n_rows:,} rows and {n_columns:,} columns, which need more than"
            f" {limit:,} bytes, too much for the size of the file; remove what lies far from the"
            " table, or save the rows as .csv"
        )


def last_cell(content: IO[bytes]) -> tuple[int, int]:
    """Return the last row and the last column of the cells in a part of an .xlsx file.

    The reader makes all cells up to the last one, also where the part has none.
    """
    n_rows, n_columns = 0, 1
    for block in blocks_of(content, 64):
        for column, row in PLACE.findall(block):
            n_rows = max(n_rows, int(row))
            n_columns = max(n_columns, position_of(column[:20].decode().upper()) + 1)
    return n_rows, n_columns


def blocks_of(content: IO[bytes], overlap: int) -> Iterator[bytes]:
    """Yield a file in blocks, each with the last bytes of the one before it."""
    block = b""
    while data := content.read(2**20):
        block = block[-overlap:] + data
        yield block


def position_of(letters: str) -> int:
    """Return the position of a column from 0.

    Examples
    --------
    >>> position_of("A"), position_of("AB")
    (0, 27)
    """
    position = 0
    for letter in letters:
        position = 26 * position + ord(letter) - ord("A") + 1
    return position - 1


class _Bytes(io.RawIOBase):
    """The bytes of a file, unpacked up to a limit.

    Bytes of zero are refused unless ``zeros``, because they would end a cell for the parser.
    """

    def __init__(self, path: Path, zeros: bool = True):
        self._packed = path.suffix.lower() == ".gz"
        self._file: BinaryIO | gzip.GzipFile = (
            gzip.GzipFile(path) if self._packed else path.open("rb", buffering=0)
        )
        self._limit = unpacked_limit(path.stat().st_size)
        self._zeros = zeros
        self._n = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            data = self._file.read(len(buffer))
        except gzip.BadGzipFile as error:
            raise ValueError("the file is not compressed; remove .gz from its name") from error
        except (EOFError, zlib.error) as error:
            raise ValueError("the compressed file is damaged; copy it again") from error
        buffer[: len(data)] = data
        self._n += len(data)
        if self._packed and self._n > self._limit:
            raise ValueError(
                f"the file unpacks to more than {self._limit:,} bytes, which is too much for its"
                f" size; if it is right, unpack it first (gunzip)"
            )
        if not self._zeros and b"\0" in data:
            raise ValueError(
                "the text contains bytes of zero, as UTF-16 without a byte order mark does; name"
                " its encoding, such as --encoding utf-16-le, or save the file as UTF-8"
            )
        return len(data)

    def close(self) -> None:
        if hasattr(self, "_file"):  # else it could not be opened
            self._file.close()
        super().close()


def is_wide(encoding: str) -> bool:
    """Return whether the characters of an encoding contain bytes of zero.

    Examples
    --------
    >>> is_wide("utf-16-le"), is_wide("utf-8")
    (True, False)
    """
    return encoding.lower().replace("-", "_").startswith(("utf_16", "utf_32"))


def open_bytes(path: Path, zeros: bool = True) -> io.BufferedReader:
    """Open a file, which is unpacked if its name ends with .gz."""
    return io.BufferedReader(_Bytes(path, zeros), 2**20)


@contextmanager
def open_text(path: Path, encoding: str, skip: int = 0) -> Iterator[io.TextIOWrapper]:
    """Open a file as text behind its first lines; the ends of lines are as in the file."""
    with io.TextIOWrapper(open_bytes(path, is_wide(encoding)), encoding, newline="") as file:
        for _ in range(skip):
            file.readline()
        yield file


def find_encoding(path: Path, given: str | None) -> str:
    """Return the encoding of a text file.

    Parameters
    ----------
    path : Path
    given : str or None
        What the site says; otherwise UTF-8 unless there is another byte order mark.

    Raises
    ------
    ValueError
        When the first bytes are those of a file of another kind, or of another encoding than the
        given one.
    """
    with open_bytes(path) as file:
        start = file.read(2**12)
    for first, text in OTHER_FILES.items():
        if re.match(first, start.removeprefix(codecs.BOM_UTF8).lstrip()):
            raise ValueError(f"the file is no text, but {text}")
    marked = marked_encoding(start)
    if given is None:
        return marked or "utf-8"
    name = codecs.lookup(given).name
    if marked is None:
        return name
    if not name.startswith(marked.removesuffix("-sig")):
        raise ValueError(
            f"the file begins with the byte order mark of {marked.removesuffix('-sig').upper()},"
            f" but --encoding is {given}; leave --encoding out"
        )
    return marked


def undecodable(path: Path, error: UnicodeDecodeError, given: str | None) -> ValueError:
    """Return an error that names the line with bytes that do not fit the encoding."""
    place, byte = "", ""
    name = (given or "utf-8").upper()
    if not error.encoding.lower().startswith(("utf-16", "utf-32", "utf_16", "utf_32")):
        with open_bytes(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    line.decode(error.encoding)
                except UnicodeDecodeError as first:
                    place = f" in line {number}"
                    byte = f"byte 0x{first.object[first.start]:02x}"
                    break
    else:
        name = error.encoding.upper()
    return ValueError(
        f"the text is not {name} ({byte or error.reason}{place}); name its encoding, such as"
        " --encoding cp1252 (Windows) or --encoding latin-1, or save the file as UTF-8"
    )


def csv_reader(lines: Iterable[str], **options: Any) -> Any:
    """Return the reader of Python's module csv, for cells of any size.

    The module has one limit for the whole process, and other packages lower it.
    """
    csv.field_size_limit(2**31 - 1)
    return csv.reader(lines, **options)
