"""What a site remembers about a table, whatever becomes of a run, a session or a process.

A privacy budget, the sums that were answered, drawn noise and declined requests belong to the
table, because a server can end all the rest and begin again. A `TableMemory` is one file of
records. The program of a site keeps it in its state folder, `state_folder`, under the digest of the
file with the rows: another policy, protocol or choice of columns does not change it. If the rows
have a *source* with a name, such as a table in a database that changes every day, the memory has
the digest of the name (`TableMemory.of_source`), and all versions of the rows share it.

Beside the private key of the site, NAME.counts has the count of records of each table. So an older
copy of the state folder is noticed. Nothing helps if the folder of the key is restored, too, or if
the rows are in another file: a table with one more row is another table.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from fedlib.core.file_errors import reading
from fedlib.core.journal import open_private, sync_folder
from fedlib.core.wording import printable

COUNT = re.compile(rb"(\S+) (\d{1,18})")  # a line of the counts
FORGOTTEN = "forgotten"  # of a record, whose key is the kind
ROWS = "rows"  # of a record, whose key is the digest of the rows of a source
# What belongs to the people in a table.
LIMITED = ("charge", "declined", "sum", "noise", ROWS)


class OldMemory(Exception):
    """The memory of a table is older than the site's last answer: it was restored or copied."""


class EarlierRows(ValueError):
    """The rows of a source are some of those before its operator declared that they are others."""


class SiteIsLocked(Exception):
    """A protected request has failed before, and the operator has not looked at it yet."""


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One line of a memory."""

    kind: str
    key: str
    value: Any


class Lock:
    """A file that exists after a protected request has failed unexpectedly.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path):
        self.path = path

    def check(self) -> None:
        """Raise SiteIsLocked when a protected request has failed before."""
        if self.path.exists():
            raise SiteIsLocked(
                "a protected request has failed, so this site takes part in no other one: read"
                f" {self.path}, repair the cause, and clear it with fedlib memory DATA --unlock,"
                " with --secure-key if the site has a key, and --source if its rows have a name"
            )

    def close(self, reason: str) -> None:
        """Note that a protected request has failed."""
        with os.fdopen(open_private(self.path, os.O_APPEND), "ab") as file:
            file.write(printable(reason).encode() + b"\n")
            _to_disk(file)
        sync_folder(self.path)


class TableMemory:
    """The records of a site about one table. Several processes and threads can use it at once.

    Parameters
    ----------
    path : Path, optional
        The file, one JSON array ``[kind, key, value]`` per line. Without it, the memory ends with
        this object, which is enough for a simulation only.
    counts : Path, optional
        A file, best kept elsewhere, with the count of records of each memory. With it, an older
        copy of ``path`` is refused.

    Attributes
    ----------
    lock : Lock or None
        The lock of the table; None without a file.

    Notes
    -----
    A record is on the disk when a method returns. The last line is dropped if it is incomplete:
    then the program ended before anything was answered. Each access reads the whole file.

    Examples
    --------
    >>> memory = TableMemory()
    >>> memory.first("noise", "ppdbdc", 17)
    17
    >>> memory.first("noise", "ppdbdc", 99), memory.values("noise")
    (17, [17])
    """

    def __init__(self, path: Path | None = None, counts: Path | None = None):
        self.path, self.counts = path, counts
        self.lock = None if path is None else Lock(path.with_suffix(".failed"))
        self._records: list[Record] = []
        self._mutex = threading.Lock()

    @classmethod
    def of_file(cls, rows: Path, key: Path | None = None) -> TableMemory:
        """Return the memory about the rows in a file, in the state folder.

        Parameters
        ----------
        rows : Path
            The file; the memory depends on its content, and not on its name.
        key : Path, optional
            The private key NAME.key of the site, beside which NAME.counts lies.

        Raises
        ------
        OSError
            When the file cannot be read, or the folder cannot be made.
        """
        return cls.of_digest(digest_of(rows), key)

    @classmethod
    def of_digest(cls, digest: str, key: Path | None = None) -> TableMemory:
        """Return the memory about the table with a digest; see `of_file`."""
        folder = state_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        counts = None if key is None else key.with_suffix(".counts")
        return cls(folder / f"{digest[:32]}.jsonl", counts)

    @classmethod
    def of_source(cls, name: str, digest: str, key: Path | None = None) -> TableMemory:
        """Return the memory about the rows of a source; see `of_file`.

        It has a record of each digest, and is the same whatever the digest is.

        Parameters
        ----------
        name : str
            That of the source, which the operator of the site chooses.
        digest : str
            The digest of the ordered rows.
        key : Path, optional
            As in `of_file`.

        Raises
        ------
        EarlierRows
            When the rows are some of those before `begin_anew`.
        """
        memory = cls.of_digest(hashlib.sha256(f"source {name}".encode()).hexdigest(), key)
        with memory.records() as records:
            now, known = valid(records, ROWS), {one.key for one in records if one.kind == ROWS}
            if digest not in known:
                records.append(Record(ROWS, digest, None))
            elif all(one.key != digest for one in now):
                raise EarlierRows(
                    "the rows of this source are those of an earlier time, before its operator"
                    " declared that other people are in them: use the present rows, or another"
                    " name for these (--source)"
                )
        return memory

    def begin_anew(self, digest: str) -> None:
        """Note that other people are in the rows of a source: what is limited begins anew.

        The file keeps all records.

        Parameters
        ----------
        digest : str
            That of the rows, of which the memory knows earlier ones.

        Raises
        ------
        ValueError
            When there are no other rows.
        """
        with self.records() as records:
            now = {one.key for one in valid(records, ROWS)}
            if now == {digest}:
                raise ValueError(
                    "the rows of this source have not changed, so the people in them are the same;"
                    " leave --other-people out"
                )
            records += [Record(FORGOTTEN, kind, None) for kind in LIMITED]
            records += [Record("people", digest, None), Record(ROWS, digest, None)]

    @classmethod
    def of_rows(cls, X: Any) -> TableMemory:
        """Return the memory about a client's rows that are in no file; see `of_file`.

        Numbers count as float64, so equal rows have one memory in most protocols.
        """
        columns = X.columns if hasattr(X, "columns") else np.asarray(X).T
        digest = hashlib.sha256(f"{len(X)} rows".encode())
        for column in columns:
            numbers = column.dtype.kind in "biuf"
            digest.update(
                np.asarray(column, np.float64).tobytes()
                if numbers
                else repr(column.tolist()).encode()
            )
        return cls.of_digest(digest.hexdigest())

    @contextmanager
    def records(self) -> Iterator[list[Record]]:
        """Return the records in a context; those that are appended in it are kept.

        No other thread or process uses the memory meanwhile.

        Raises
        ------
        OldMemory
            When the file is older than the counts.
        ValueError
            When a file cannot be used, or contains anything else.
        """
        with self._mutex:
            if self.path is None:
                yield self._records
                return
            with ExitStack() as files:
                try:
                    file = files.enter_context(_locked(self.path))
                    counts = None
                    if self.counts is not None:
                        counts = files.enter_context(_locked(self.counts))
                except OSError as error:
                    raise ValueError(f"{self.path}: cannot be used: {error}") from error
                records = _read(file, self.path)
                n_known = len(records)
                if counts is not None:
                    self._check_age(counts, n_known)
                yield records
                if len(records) > n_known:
                    lines = [msgspec.json.encode(new) + b"\n" for new in records[n_known:]]
                    _append(file, self.path, b"".join(lines))
                    if counts is not None:  # later, so that a crash in between is no alarm
                        line = f"{self.path.name} {len(records)}\n"
                        assert self.counts is not None
                        _append(counts, self.counts, line.encode())

    def _check_age(self, counts: BinaryIO, n_records: int) -> None:
        assert self.path is not None
        name, counted = self.path.name.encode(), []
        for line in _lines(counts):
            match = COUNT.fullmatch(line)
            if match is None:
                raise ValueError(
                    f"{self.counts} must contain a name and a count per line, got {line[:40]!r}:"
                    " put the newest copy of it back"
                )
            counted += [int(match[2])] * (match[1] == name)
        n_counted = max(counted, default=0)
        if n_records < n_counted:
            raise OldMemory(
                f"{self.path} has {n_records} records, but {self.counts} has counted {n_counted}:"
                " the state folder was restored or copied. Put the newest one back; what it limits"
                " is unknown without it"
            )

    def values(self, kind: str) -> list[Any]:
        """Return the values of all records of a kind that are not forgotten, in their order."""
        with self.records() as records:
            return [one.value for one in valid(records, kind)]

    def first(self, kind: str, key: str, value: Any) -> Any:
        """Return the first value of a key; if there is none, keep this one and return it."""
        with self.records() as records:
            for one in valid(records, kind):
                if one.key == key:
                    return one.value
            records.append(Record(kind, key, value))
        return value

    def add(self, kind: str, key: str, value: Any = None) -> None:
        """Keep a record."""
        with self.records() as records:
            records.append(Record(kind, key, value))

    def forget(self, kind: str) -> None:
        """Forget the records of a kind until now. The file keeps them."""
        self.add(FORGOTTEN, kind)


def digest_of(file: Path) -> str:
    """Return the SHA-256 digest of a file, in hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def state_folder() -> Path:
    """Return the folder of a site's memory: $FEDLIB_STATE, or else ``~/.local/state/fedlib``.

    The variable ``XDG_STATE_HOME`` replaces ``~/.local/state``.
    """
    if folder := os.environ.get("FEDLIB_STATE"):
        return Path(folder)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "fedlib"


def valid(records: list[Record], kind: str) -> list[Record]:
    """Return the records of a kind that are not forgotten."""
    found: list[Record] = []
    for one in records:
        if (one.kind, one.key) == (FORGOTTEN, kind):
            found = []
        elif one.kind == kind:
            found.append(one)
    return found


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """Open a private file that no other process uses meanwhile."""
    with os.fdopen(open_private(path), "r+b") as file:
        import fcntl  # not on Windows

        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _read(file: BinaryIO, path: Path) -> list[Record]:
    """Return the records in a file, and drop an incomplete last line."""
    with reading(path, "it must contain one record per line: put the newest copy of it back"):
        return [msgspec.json.decode(line, type=Record) for line in _lines(file)]


def _lines(file: BinaryIO) -> list[bytes]:
    """Return the lines of a file, and drop an incomplete last one: no answer followed it."""
    content = file.read()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        file.truncate(end)
    file.seek(end)
    return content[:end].splitlines()


def _append(file: BinaryIO, path: Path, content: bytes) -> None:
    """Add content to a file, and see to it that both are on the disk."""
    try:
        file.write(content)
        _to_disk(file)
        sync_folder(path)
    except OSError as error:  # such as a full disk
        raise ValueError(f"{path}: cannot be written: {error}") from error


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
