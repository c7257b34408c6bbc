"""The bytes and the text of a site's file: compression with a limit, and encodings."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fedlib.core.names import marked_encoding

# What other files begin with, behind blanks, and what to do with them.
OTHER_FILES = {
    rb"PK\x03\x04": "a ZIP archive or an Excel file; unpack it, or name it .xlsx",
    rb"\xd0\xcf\x11\xe0": "an old Excel file; save it as .xlsx or .csv",
    rb"\x1f\x8b": "compressed; add .gz to its name",
    rb"BZh\d|\xfd7zXZ|\x28\xb5\x2f\xfd": "compressed; unpack it, or compress it with gzip",
    rb"PAR1": "a Parquet file; name it .parquet",
    rb"%PDF|{\\rtf|\x89PNG": "a document or a picture; export the table as .csv",
    rb"<[!?A-Za-z]": "HTML or XML, such as the page of a login; download the table itself as .csv",
    rb'\[\s*[\[{]|{\s*["\[{]': "JSON; write the table as .csv",
}
ALWAYS_UNPACKED = 2**28  # bytes; tables of repeated rows are compressed well
MAX_RATIO = 100  # of the unpacked to the packed size beyond it
MAX_UNPACKED = 2**36


def unpacked_limit(packed: int) -> int:
    """Return how many bytes may be unpacked from this number of bytes.

    Examples
    --------
    >>> unpacked_limit(1000) == 2**28, unpacked_limit(10**8), unpacked_limit(10**12) == 2**36
    (True, 10000000000, True)
    """
    return min(max(ALWAYS_UNPACKED, MAX_RATIO * packed), MAX_UNPACKED)


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
