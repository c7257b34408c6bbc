"""The records of a journal and their form in its file.

The file begins with `MAGIC`. A record is a frame, with the length of the content, the CRC-32 of the
length and the SHA-256 of the content, and the content, a MessagePack map. An incomplete record at
the end is the trace of a crash and is dropped. Damage anywhere else is an error.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import struct
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

import msgspec

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
