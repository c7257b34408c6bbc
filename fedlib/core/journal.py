"""The journal of a run: a file from which the run continues after a crash.

A flow is deterministic: the same replies give the same requests. So the replies that a run has
received determine where it is, and a journal that contains them makes the run durable. When the
same run is started again with its journal, the flow is resumed with the recorded replies, and no
client is asked. When the record ends, the run continues with the clients.

The rules:

- Everything that determines the run is recorded before its first request: the protocol, its
  parameters, the seed drawn for ``random_state=None``, the versions of the packages, the clients. A
  run that differs in any of them is refused.
- The digests of a step's requests are written before they are sent. A request that differs from the
  recorded one stops the run.
- The replies of a step are on the disk before the flow sees them. If the server dies before that,
  the step is repeated. Clients keep their last reply and send it again.
- Each record has a checksum. An incomplete record at the end, the trace of a crash, is dropped.
  Damage elsewhere is an error.
- The journal of clients in this process also contains their states, so that a long study continues
  where it stopped.
- The journal contains every reply, so its owner alone may read it (mode 0600). Delete it after the
  run.

The records of a journal and their form in its file.

The file begins with `MAGIC`. A record is a frame, with the length of the content, the CRC-32 of the
length and the SHA-256 of the content, and the content, a MessagePack map. An incomplete record at
the end is the trace of a crash and is dropped. Damage anywhere else is an error.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import platform
import secrets
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol, Self, TypeVar, runtime_checkable

import msgspec
import numpy as np

from fedlib.core.ledger import Entry, Ledger

MAGIC = b"fedlib journal 1\n"
FRAME = struct.Struct("<QI32s")  # length, CRC-32 of the length, SHA-256 of the content
LENGTH = struct.Struct("<Q")
LINK = "it is a symbolic link; name the file itself, because symbolic links are not followed"

Row = tuple[int, str, str, str, int, str]  # the fields of an `Entry`

logger = logging.getLogger(__name__)


class JournalError(ValueError):
    """The journal is of another run, damaged or in use; the text gives the reason."""


class Header(msgspec.Struct, tag=True):
    """Everything that determines a run.

    Attributes
    ----------
    run : str
        The identifier of the run.
    protocol : str
    parameters, versions : dict of str to str
    seed : int
        Replaces ``random_state=None``.
    clients : dict of str to str
        A digest of the data of each client, in the order of the clients. Empty for a client whose
        data are not in this process.
    min_clients : int
    states : dict of str to bytes
        The states of the clients before the run, encoded; only of clients in this process.
    """

    run: str
    protocol: str
    parameters: dict[str, str]
    versions: dict[str, str]
    seed: int
    clients: dict[str, str] = {}
    min_clients: int = 0
    states: dict[str, bytes] = {}


class Asked(msgspec.Struct, tag=True):
    """The requests of a step, by their digests, and the news for the ledger."""

    step: int
    digests: dict[str, bytes]
    entries: list[Row]
    lost: dict[str, str]


class Answered(msgspec.Struct, tag=True):
    """The replies of a step as they arrived, and the states that changed in it."""

    step: int
    replies: dict[str, bytes]
    states: dict[str, bytes]


class Noted(msgspec.Struct, tag=True):
    """News for the ledger after the replies of a step."""

    entries: list[Row]
    lost: dict[str, str]


Record = Header | Asked | Answered | Noted
_decoder = msgspec.msgpack.Decoder(Record)


def write_record(file: BinaryIO, record: Record) -> None:
    """Write a record where the file stands, after `MAGIC` if that is the beginning."""
    if file.tell() == 0:
        file.write(MAGIC)
    content = msgspec.msgpack.encode(record)
    length = LENGTH.pack(len(content))
    check = struct.pack("<I", zlib.crc32(length))
    file.write(length + check + hashlib.sha256(content).digest())
    file.write(content)
    file.flush()


def read_records(file: BinaryIO, path: Path) -> Iterator[Record]:
    """Yield the complete records of a journal; the file stands behind the one yielded last.

    A crash can leave a last record that is incomplete, or in which zeros take the place of bytes
    that did not reach the disk. It is dropped.

    Raises
    ------
    JournalError
        When the file is not a journal, or is damaged before its last record.
    """
    size = os.fstat(file.fileno()).st_size
    magic = file.read(len(MAGIC))
    if not MAGIC.startswith(magic):
        raise JournalError(f"{path} is not a journal of fedlib")
    end = file.tell() if magic == MAGIC else 0
    while end:
        file.seek(end)
        frame = file.read(FRAME.size)
        if len(frame) < FRAME.size:
            break
        length, check, digest = FRAME.unpack(frame)
        if check != zlib.crc32(frame[: LENGTH.size]):
            if _only_zeros(file):
                break
            raise JournalError(f"{path} is damaged at byte {end}")
        stop = end + FRAME.size + length
        if stop > size:
            break
        content = file.read(length)
        if hashlib.sha256(content).digest() != digest:
            if _only_zeros(file):
                break
            raise JournalError(f"{path} is damaged at byte {end}")
        yield _decode(content, path, end)
        end = stop
    if end < size:
        logger.warning("%s: the last record is incomplete and is dropped", path)
    file.seek(end)


def _only_zeros(file: BinaryIO) -> bool:
    """Return whether the rest of a file is empty or consists of zeros."""
    return not any(any(block) for block in iter(partial(file.read, 2**20), b""))


def _decode(content: bytes, path: Path, position: int) -> Record:
    try:
        record: Record = _decoder.decode(content)
    except msgspec.DecodeError as error:  # written by another version
        raise JournalError(f"{path}: unknown record at byte {position}: {error}") from error
    return record


def lock(file: IO[Any], in_use: ValueError) -> None:
    """Reserve a file for this process until it is closed; raise ``in_use`` if another has it."""
    import fcntl  # not on Windows

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise in_use from error


def open_private(path: Path, flags: int = 0) -> int:
    """Open a file for reading and writing; if it is new, only its owner may read it.

    In a folder to which others can write, such as ``/tmp``, a symbolic link could make this process
    write to any of its user's files, so a link is refused.

    Parameters
    ----------
    path : Path
    flags : int, default=0
        Further flags of `os.open`, such as ``os.O_APPEND``.

    Returns
    -------
    int
        The file descriptor.

    Raises
    ------
    OSError
        When the file cannot be opened, or is a symbolic link.
    """
    if path.is_symlink():
        raise OSError(errno.ELOOP, LINK, str(path))
    # A link could be placed after this check; then the operating system refuses it.
    return os.open(path, flags | os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)


def sync_folder(path: Path) -> None:
    """Make sure that a new file is in its folder after a power failure."""
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


PACKAGES = ("numba", "numpy", "scikit-learn", "scipy")  # their versions can change a result

Kind = TypeVar("Kind", Header, Asked, Answered)


@dataclass
class Place:
    """Where a run continues.

    Attributes
    ----------
    numbers : dict of str to int
        The count of requests that each client has answered.
    states : dict of str to bytes
        The encoded state of each client in this process that has one.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)


@runtime_checkable
class Durable(Protocol):
    """What a transport needs, in addition to `Transport`, so that its runs can have a journal.

    Attributes
    ----------
    clients : sequence of str
    journaled : bool
        Whether the run has a journal. The journal sets it.
    """

    clients: Sequence[str]
    journaled: bool

    def data_digests(self) -> Mapping[str, str]:
        """Return a digest of the data of each client in this process."""
        ...

    def states(self, clients: Collection[str]) -> Mapping[str, bytes]:
        """Return the encoded states of those of these clients that are in this process."""
        ...

    def resume(self, place: Place) -> None:
        """Prepare to continue a run at this place. Called before the next exchange."""
        ...


@runtime_checkable
class Replaying(Protocol):
    """A transport that restores the states of its clients by repeating requests.

    Its ``states`` are empty, because they would fill the journal; only their names count.
    """

    def repeat(self, requests: Mapping[str, bytes]) -> None:
        """Note requests that the clients have answered and that have changed their states."""
        ...


class Journal:
    """The journal of one run, opened for it.

    `fit` and `run` open it when they receive its path; use it in a ``with`` statement.

    Parameters
    ----------
    path : path
        The file. A new one is created with mode 0600.

    Raises
    ------
    JournalError
        When the file is not a journal, is damaged, or is in use by another process.
    OSError
        When the file cannot be opened or written.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        created = not self.path.exists()
        self._file = os.fdopen(open_private(self.path), "r+b")
        try:
            lock(self._file, JournalError(f"{self.path} is in use by another process"))
            if created:
                sync_folder(self.path)
            self._records = read_records(self._file, self.path)
            self._next_record = next(self._records, None)
            self._end = self._file.tell()
        except BaseException:
            self._file.close()
            raise
        self._continued = self._next_record is not None
        self._header: Header | None = None
        self._place = Place()
        self._n_noted, self._lost = 0, dict[str, str]()  # the part of the ledger in the file
        self._writing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def begin(self, protocol: str, parameters: Mapping[str, Any], seed: int = 0) -> int:
        """Compare the protocol with the recorded one; return the seed of the run.

        Parameters
        ----------
        protocol : str
        parameters : mapping of str to object
        seed : int, default=0
            A new seed. If a seed is recorded, that one is returned instead.

        Raises
        ------
        JournalError
            When the journal is of another protocol, other parameters or other versions.
        """
        described = {name: describe(value) for name, value in parameters.items()}
        recorded = self._take(Header)
        self._header = recorded or Header(
            secrets.token_hex(8), protocol, described, _versions(), seed
        )
        self._require("the protocol", self._header.protocol, protocol)
        self._require_all("", self._header.parameters, described)
        self._require_all("the version of ", self._header.versions, _versions())
        return self._header.seed

    def enrol(self, transport: Any, min_clients: int) -> None:
        """Compare the clients with the recorded ones, or record them.

        Raises
        ------
        ValueError
            When the transport cannot continue a run.
        JournalError
            When the journal is of other clients, of clients with other data, or of another run.
        """
        if not isinstance(transport, Durable):
            raise ValueError(
                "journal needs a transport that can continue a run: InProcess, HTTP or Dask; got a"
                f" {type(transport).__name__}"
            )
        transport.journaled = True
        assert self._header is not None
        header, run = self._header, getattr(transport, "run", None)
        digests = transport.data_digests()
        clients = {name: digests.get(name, "") for name in transport.clients}
        if self._continued:
            self._require("the clients", list(header.clients), list(clients), _names)
            self._require_all("the digest of the data of ", header.clients, clients)
            self._require("min_clients", header.min_clients, min_clients)
            self._require("the run id", header.run, run or header.run)
        else:
            header.run, header.clients, header.min_clients = run or header.run, clients, min_clients
            header.states = dict(transport.states(list(clients)))
            self._append(header, sync=True)
        self._place = Place(dict.fromkeys(clients, 0), dict(header.states))

    def exchange(
        self, transport: Any, step: int, requests: Mapping[str, bytes], ledger: Ledger
    ) -> Mapping[str, bytes]:
        """Return the recorded replies to these requests, or send them and record the replies.

        Raises
        ------
        JournalError
            When a request differs from the recorded one.
        """
        digests = {name: hashlib.sha256(data).digest() for name, data in requests.items()}
        asked = self._take(Asked)
        if asked is None:
            self._append(Asked(step, digests, *self._news(ledger)))
        elif (asked.step, asked.digests) != (step, digests):
            raise JournalError(self._difference(asked, step, digests))
        answered = self._take(Answered)
        if answered is None:
            self._resume(transport)
            received = transport.exchange(requests)
            replies = {name: received[name] for name in requests if name in received}
            answered = Answered(step, replies, self._changed(transport.states(list(requests))))
            self._append(answered, sync=True)
        elif isinstance(transport, Replaying):
            transport.repeat({name: requests[name] for name in answered.states})
        self._place.states |= answered.states
        for name in requests:
            self._place.numbers[name] += 1
        return answered.replies

    def note(self, ledger: Ledger) -> None:
        """Record what is new in the ledger, unless the run is still being replayed."""
        self._skip_notes()
        entries, lost = self._news(ledger)
        if self._next_record is None and (entries or lost != self._lost):
            self._append(Noted(entries, lost))

    def finish(self, transport: Any) -> None:
        """Bring the clients to the end of a run that has been replayed completely.

        Raises
        ------
        JournalError
            When the flow has ended, but more steps are recorded.
        """
        if (more := self._take(Asked)) is not None:
            raise JournalError(
                f"{self.path}: the run has ended, but the journal has a step {more.step}; {_WHY}"
            )
        self._resume(transport)

    def _resume(self, transport: Any) -> None:
        """Bring the clients to the place where the record ends, once."""
        if self._continued:
            self._continued = False
            transport.resume(self._place)

    def _changed(self, states: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the states that differ from the recorded ones."""
        known = self._place.states
        return {name: state for name, state in states.items() if state != known.get(name)}

    def _news(self, ledger: Ledger) -> tuple[list[Row], dict[str, str]]:
        """Return the entries of a ledger that are not in the file yet, and the lost clients."""
        return [*ledger.entries[self._n_noted :]], dict(ledger.lost)

    def _take(self, kind: type[Kind]) -> Kind | None:
        """Return the next record if it is of this kind; None at the end of the record."""
        self._skip_notes()
        record = self._next_record
        if record is None:
            return None
        if not isinstance(record, kind):
            raise JournalError(
                f"{self.path} is damaged: it has {type(record).__name__} instead of {kind.__name__}"
            )
        self._advance()
        return record

    def _skip_notes(self) -> None:
        while isinstance(self._next_record, Noted):
            self._advance()

    def _advance(self) -> None:
        """Go to the next record."""
        self._mark(self._next_record)
        self._next_record = next(self._records, None)
        if self._next_record is not None:
            self._end = self._file.tell()

    def _mark(self, record: Record | None) -> None:
        """Note which part of the ledger a record contains."""
        if isinstance(record, Asked | Noted):
            self._n_noted += len(record.entries)
            self._lost = record.lost

    def _append(self, record: Record, sync: bool = False) -> None:
        """Write a record, behind the last complete one."""
        if not self._writing:
            self._writing = True
            self._file.seek(self._end)
            self._file.truncate()
        write_record(self._file, record)
        if sync:
            os.fsync(self._file.fileno())
        self._mark(record)

    def _require(
        self, what: str, recorded: Any, now: Any, show: Callable[[Any], str] = str
    ) -> None:
        """Raise JournalError if something differs from what is recorded."""
        if recorded != now:
            raise JournalError(
                f"{self.path} is the journal of another run, with {what} {show(recorded)} instead"
                f" of {show(now)}; start the run as it was started before, or name a new journal"
            )

    def _require_all(
        self, what: str, recorded: Mapping[str, object], now: Mapping[str, object]
    ) -> None:
        for name in dict.fromkeys([*recorded, *now]):
            self._require(f"{what}{name}", recorded.get(name, "none"), now.get(name, "none"))

    def _difference(self, asked: Asked, step: int, digests: Mapping[str, bytes]) -> str:
        if asked.step != step:
            return f"{self.path}: step {step} is recorded as step {asked.step}; {_WHY}"
        differing = [
            name
            for name in dict.fromkeys([*asked.digests, *digests])
            if asked.digests.get(name) != digests.get(name)
        ]
        return (
            f"{self.path}: the requests of step {step} to {_names(differing)} are not the recorded"
            f" ones; {_WHY}"
        )


_WHY = "the code has changed, or the protocol is not deterministic"


def run_id(path: str | os.PathLike[str]) -> str | None:
    """Return the identifier of the run in a journal; None if there is no journal yet.

    A server needs it before it listens, because clients continue only under the same identifier.

    Raises
    ------
    JournalError
        When the file is not a journal or is damaged.

    Examples
    --------
    >>> run_id("no/such/file") is None
    True
    """
    with suppress(FileNotFoundError), open(path, "rb") as file:
        for record in read_records(file, Path(path)):
            return record.run if isinstance(record, Header) else None
    return None


def read_ledger(path: str | os.PathLike[str]) -> Ledger:
    """Return the ledger of the run in a journal, also of a run that is still in progress.

    Raises
    ------
    JournalError
        When the file is not a journal or is damaged.
    OSError
        When the file cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> from fedlib import HorizontalDBSCAN
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     journal = Path(folder, "run.journal")
    ...     model = HorizontalDBSCAN(1.0, 2).fit([[[0.1], [0.2]], [[5.0]]], journal=journal)
    ...     read_ledger(journal) == model.ledger_
    True
    """
    ledger = Ledger()
    with open(path, "rb") as file:
        for record in read_records(file, Path(path)):
            if isinstance(record, Asked | Noted):
                ledger.entries += [Entry(*row) for row in record.entries]
                ledger.lost = dict(record.lost)
    return ledger


def describe(value: object) -> str:
    """Return a text that is equal for equal values of a parameter.

    Examples
    --------
    >>> describe(np.float64(0.5)), describe("nearest"), describe(None)
    ('0.5', "'nearest'", 'None')
    >>> describe([[0.0], [1.0]]) == describe(np.array([[0.0], [1.0]]))
    True
    >>> describe(np.random.RandomState(0)) == describe(np.random.RandomState(1))
    False
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.random.RandomState):
        return f"RandomState {_digest(repr(value.get_state(legacy=False)).encode())}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"function {value.__module__}.{value.__qualname__}"  # without its address
    if isinstance(value, list | tuple) or hasattr(value, "__array__"):
        try:
            array = np.asarray(value)
        except ValueError:  # lists of different lengths
            return repr(value)
        content = repr(array.tolist()).encode()
        return f"array of shape {array.shape} {_digest(content)}"
    return repr(value)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


@cache
def _versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change a result."""
    versions = {"fedlib": import_module("fedlib").__version__, "Python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _names(names: Collection[str]) -> str:
    """Return at most ten names as text."""
    shown: Sequence[str] = [*map(repr, list(names)[:10])]
    return ", ".join(shown) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
