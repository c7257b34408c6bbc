"""Tests of files in a folder where somebody else has placed symbolic links."""

import stat

import pytest

from fedlib import HorizontalDBSCAN
from fedlib.core.journal import open_private
from fedlib.tables.files import write_file
from fedlib.transports.http.checkpoint import FILE, LOCK, Checkpoint, reserved


@pytest.fixture
def victim(tmp_path):
    """Return a file that belongs to the user and must not change."""
    path = tmp_path / "victim"
    path.write_bytes(b"kept")
    yield path
    assert path.read_bytes() == b"kept"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("target", ["victim", "nothing"])
def test_a_journal_is_not_written_through_a_link(target, victim, tmp_path):
    journal = tmp_path / "run.journal"
    journal.symlink_to(tmp_path / target)
    with pytest.raises(OSError, match="it is a symbolic link; name the file itself"):
        HorizontalDBSCAN(1.0, 2).fit([[[0.1], [0.2]]], journal=journal)
    assert not (tmp_path / "nothing").exists()


def test_a_link_that_appears_after_the_check_is_refused(victim, tmp_path, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to(victim)
    monkeypatch.setattr(type(link), "is_symlink", lambda path: False)
    with pytest.raises(OSError, match="symbolic links"):
        open_private(link)


def test_new_files_are_their_owners(tmp_path):
    journal = tmp_path / "run.journal"
    HorizontalDBSCAN(1.0, 2).fit([[[0.1], [0.2]]], journal=journal)
    assert mode(journal) == 0o600
    with reserved(tmp_path / "state"):
        Checkpoint("run", "a").save(tmp_path / "state")
    assert mode(tmp_path / "state") == 0o700
    assert {mode(tmp_path / "state" / name) for name in (FILE, LOCK)} == {0o600}


def test_a_checkpoint_replaces_links(victim, tmp_path):
    for name in (FILE, f".{FILE}.part"):
        (tmp_path / name).symlink_to(victim)
    Checkpoint("run", "a").save(tmp_path)
    assert not (tmp_path / FILE).is_symlink()
    assert Checkpoint.read(tmp_path) == Checkpoint("run", "a")


def test_a_lock_is_not_a_link(victim, tmp_path):
    (tmp_path / LOCK).symlink_to(victim)
    with pytest.raises(OSError, match="it is a symbolic link"), reserved(tmp_path):
        pass


def test_a_result_replaces_links(victim, tmp_path):
    for name in ("out", ".out.part"):
        (tmp_path / name).symlink_to(victim)
    write_file(tmp_path / "out", b"new", mode=0o600)
    assert not (tmp_path / "out").is_symlink()
    assert (tmp_path / "out").read_bytes() == b"new"
    assert mode(tmp_path / "out") == 0o600
