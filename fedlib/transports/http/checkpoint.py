"""Checkpoints: files with a client's state, so that it can be stopped and started again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fedlib.core.client import Client, LostState
from fedlib.core.file_errors import using_folder
from fedlib.core.journal import lock, open_private
from fedlib.core.messages import Message, MessageError, decode
from fedlib.tables.files import write_file

FILE, LOCK = "client.state", "client.lock"


@contextmanager
def reserved(folder: Path | None) -> Iterator[None]:
    """Reserve a folder for one process of one client during the block; create it if necessary.

    Raises
    ------
    ValueError
        When another process, or another thread of this one, has reserved it.
    """
    if folder is None:
        yield
        return
    with using_folder("state_dir", folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = open_private(folder / LOCK)
    in_use = ValueError(
        f"state_dir {folder} is in use by another process: stop it first, or use one folder per"
        " client"
    )
    # The file stays: if it were deleted, another process could reserve a new one at the same time.
    with os.fdopen(descriptor) as file:
        lock(file, in_use)
        yield


class Checkpoint(msgspec.Struct, omit_defaults=True):
    """A client's last reply and its state after it.

    Attributes
    ----------
    run, client : str
        The identifier of the run and the name of the client.
    number : int
        The number of the last request that was answered; 0 before the first.
    reply : bytes
        The reply to it.
    state : bytes
        The client's state, encoded; empty if it has none.
    finished : bool
        Whether the client has received the outcome "finished".
    problems : tuple of str
        As in `fedlib.core.client.Client`.
    """

    run: str
    client: str
    number: int = msgspec.field(default=0, name="sequence")
    reply: bytes = b""
    state: bytes = b""
    finished: bool = False
    problems: tuple[str, ...] = ()

    def save(self, folder: Path) -> None:
        """Write the checkpoint so that a crash leaves either the old or the new one."""
        with using_folder("state_dir", folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # The state may contain private data of the site.
            write_file(folder / FILE, msgspec.msgpack.encode(self), mode=0o600)

    @classmethod
    def read(cls, folder: Path) -> Checkpoint | None:
        """Return the checkpoint in a folder, of any run and client; None if there is none."""
        path = folder / FILE
        with using_folder("state_dir", folder):
            if not path.exists():
                return None
            content = path.read_bytes()
        try:
            return msgspec.msgpack.decode(content, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(
                f"state_dir contains a damaged file: {path}; remove it to start without a state"
            ) from error

    def decoded(self, folder: Path | None) -> Message | None:
        """Return the client's state; None if it has none. ``folder`` is named in errors."""
        try:
            return decode(self.state) if self.state else None
        except MessageError as error:
            raise ValueError(f"state_dir contains an invalid state: {folder}") from error

    def restore(self, client: Client, folder: Path | None) -> None:
        """Give a client its state, if there is one. ``folder`` is named in errors."""
        if self.state:
            try:
                client.state = self.decoded(folder)
            except (LostState, MessageError) as error:
                raise ValueError(
                    f"state_dir {folder} contains the state of another client, or a damaged one:"
                    f" {error}; remove it to start without a state"
                ) from error

    @classmethod
    def load(cls, folder: Path | None, run: str, client: str) -> Checkpoint:
        """Return the checkpoint of a client in a run, or an empty one.

        The checkpoint of an earlier run is ignored, and the first reply overwrites it. The folder
        of another client is refused, because the two would overwrite each other's checkpoints.
        """
        checkpoint = cls.read(folder) if folder else None
        if checkpoint is None:
            return cls(run, client)
        if checkpoint.client != client:
            raise ValueError(
                f"state_dir {folder} belongs to client {checkpoint.client!r}, but this is client"
                f" {client!r}: use one folder per client"
            )
        return checkpoint if checkpoint.run == run else cls(run, client)


def kept_state(state_dir: str | Path) -> Message | None:
    """Return the state in a client's checkpoint, of any run; None if there is none.

    Use it if the client's process was stopped after its last reply and the server cannot be reached
    any longer.

    Raises
    ------
    ValueError
        When the checkpoint cannot be read.

    Examples
    --------
    >>> kept_state("no/such/folder") is None
    True
    """
    checkpoint = Checkpoint.read(Path(state_dir))
    return checkpoint.decoded(Path(state_dir)) if checkpoint else None
