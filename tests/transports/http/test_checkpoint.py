"""Checkpoints: whose they are, and what is refused."""

import errno
import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.core.file_errors import FolderError
from fedlib.core.messages import Labels, encode
from fedlib.protection.policy import GuardedClient
from fedlib.protection.policy.guard import GuardedState
from fedlib.transports.http import Checkpoint, join, kept_state, new_token
from fedlib.transports.http.checkpoint import reserved

ODD = [0, 1, 0x7F, 0x80, 0x91, 0xC1, 0xD9, 0xDF, 0xFF]


def test_checkpoints_of_another_run_are_ignored_and_of_another_client_refused(tmp_path):
    kept = Checkpoint("run", "0", 3, b"reply", b"state")
    kept.save(tmp_path / "new")
    assert Checkpoint.load(tmp_path / "new", "run", "0") == kept
    other = Checkpoint.load(tmp_path / "new", "other", "0")
    assert other == Checkpoint("other", "0")
    with pytest.raises(ValueError, match="belongs to client '0', but this is client '1'"):
        Checkpoint.load(tmp_path / "new", "run", "1")
    assert Checkpoint.load(tmp_path, "run", "0") == Checkpoint("run", "0")
    [file] = (tmp_path / "new").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"state_dir contains a damaged file: .*client\.state"):
        Checkpoint.load(tmp_path / "new", "run", "0")


def test_the_state_of_a_checkpoint_can_be_read(tmp_path):
    assert kept_state(tmp_path) is None
    Checkpoint("run", "0", 1, b"reply").save(tmp_path)
    assert kept_state(tmp_path) is None
    labels = Labels(np.array([0, -1]))
    Checkpoint("run", "0", 2, b"reply", encode(labels)).save(tmp_path)
    assert kept_state(tmp_path) == labels
    Checkpoint("run", "0", 2, b"reply", b"state").save(tmp_path)
    with pytest.raises(ValueError, match="state_dir contains an invalid state"):
        kept_state(tmp_path)


def test_the_state_of_another_client_is_refused(tmp_path):
    """As after the folder of an unprotected site is used for one with a key or a policy."""
    client = GuardedClient(HorizontalDBSCANClient([[0.1]]))
    state = encode(Labels(np.array([0])))
    with pytest.raises(ValueError, match=f"^state_dir {tmp_path} contains the state of another"):
        Checkpoint("run", "0", 2, b"reply", state).restore(client, tmp_path)
    damaged = encode(GuardedState(inner=b"garbage"))
    with pytest.raises(ValueError, match=f"^state_dir {tmp_path} .* or a damaged one: .*remove it"):
        Checkpoint("run", "0", 2, b"reply", damaged).restore(client, tmp_path)
    Checkpoint("run", "0", 2, b"reply", encode(client.state)).restore(client, tmp_path)


def test_the_format_of_the_file_stays(tmp_path):
    """A client that is updated during a run can read the file of its last process."""
    Checkpoint("r", "0", 3, b"reply", b"state").save(tmp_path)
    content = {"run": "r", "client": "0", "sequence": 3, "reply": b"reply", "state": b"state"}
    assert (tmp_path / "client.state").read_bytes() == msgspec.msgpack.encode(content)


def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_folder_is_named(tmp_path, monkeypatch):
    text = f"state_dir {tmp_path} cannot be used: No space left on device; free space, or choose"
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(FolderError, match=f"^{text}"):
            Checkpoint("r", "0").save(tmp_path)
    folder = tmp_path / "client.state" / "inside"
    (tmp_path / "client.state").write_bytes(b"no folder")
    with pytest.raises(FolderError, match=f"^state_dir {folder} cannot be used: Not a dir"):
        join("http://127.0.0.1:1", HorizontalDBSCANClient([[0.1]]), new_token(), state_dir=folder)
    (tmp_path / "other" / "client.state").mkdir(parents=True)
    with pytest.raises(FolderError, match="cannot be used: Is a directory"):
        Checkpoint.read(tmp_path / "other")


def test_damaged_checkpoints_are_refused(tmp_path):
    """Each byte is changed, and the file is cut at each."""
    Checkpoint("run", "0", 3, b"reply", encode(Labels(np.array([0])))).save(tmp_path)
    file = tmp_path / "client.state"
    data = file.read_bytes()
    changed = [data[:i] + bytes([byte]) + data[i + 1 :] for i in range(len(data)) for byte in ODD]
    n_refused = n_read = 0
    for content in [*changed, *(data[:i] for i in range(len(data))), b"\x91" * 10**5]:
        file.write_bytes(content)
        try:
            Checkpoint.load(tmp_path, "run", "0").decoded(tmp_path)
        except ValueError as error:
            n_refused += str(error).startswith("state_dir ")
        else:
            n_read += 1
    assert n_refused + n_read == len(changed) + len(data) + 1
    assert n_refused > len(data)


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path):
    """Two processes would answer from one state: the same masks for different values."""
    folder = tmp_path / "new" / "state"
    with reserved(folder):
        assert (folder / "client.lock").stat().st_mode & 0o777 == 0o600
        text = r"state is in use by another process: stop it first"
        with pytest.raises(ValueError, match=text), reserved(folder):
            pass
        text = "from fedlib.transports.http.checkpoint import reserved; from pathlib import Path\n"
        text += f"with reserved(Path({str(folder)!r})): pass"
        other = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
        assert "is in use by another process" in other.stderr
    with reserved(folder), reserved(None):
        pass


def test_join_refuses_a_folder_in_use_before_it_calls_the_server(tmp_path):
    client = HorizontalDBSCANClient([[0.1]])
    with reserved(tmp_path), pytest.raises(ValueError, match="is in use by another process"):
        join("http://127.0.0.1:1", client, new_token(), state_dir=tmp_path, patience=0)
