"""Errors about files: each names its file, and says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlib.core.wording import printable


class UnreadableFile(ValueError):
    """A file is damaged, or cannot be read for another reason. The text begins with its name."""


class FolderError(OSError):
    """A folder cannot be read or written, for example because its disk is full."""


@contextmanager
def reading(
    path: str | Path, remedy: str = "copy it again, or write it again", own: str = ""
) -> Iterator[None]:
    """Turn every error in reading a file into an `UnreadableFile`.

    Damaged files make the libraries that parse them raise errors of many classes, which no list
    would contain completely.

    Parameters
    ----------
    path : path
    remedy : str
        What to do about an error of a library. A plain ValueError has its own remedy.
    own : str, default=""
        What comes before the text of a plain ValueError.

    Examples
    --------
    >>> with reading("a.npy"):
    ...     raise EOFError("no data left")
    Traceback (most recent call last):
    ...
    fedlib.core.file_errors.UnreadableFile: a.npy: cannot be read: no data left; copy it again, or \
write it again
    >>> with reading("a.csv"):
    ...     raise ValueError("there is no column 'x'; name another one")
    Traceback (most recent call last):
    ...
    fedlib.core.file_errors.UnreadableFile: a.csv: there is no column 'x'; name another one
    """
    try:
        yield
    except UnreadableFile:
        raise
    except FileNotFoundError as error:
        raise UnreadableFile(f"{path}: cannot be read: there is no such file") from error
    except PermissionError as error:
        text = f"{path}: cannot be read: this user has no permission to read it"
        raise UnreadableFile(text) from error
    except Exception as error:
        text = " ".join(printable(str(error)).split()) or f"it is no {Path(path).suffix} file"
        if type(error) is ValueError:
            raise UnreadableFile(f"{path}: {own}{text}") from error
        raise UnreadableFile(f"{path}: cannot be read: {text}; {remedy}") from error


@contextmanager
def using_folder(name: str, folder: Path) -> Iterator[None]:
    """Turn an error of the operating system into a `FolderError`, which names the folder.

    Examples
    --------
    >>> with using_folder("state_dir", Path("states")):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    ...
    fedlib.core.file_errors.FolderError: state_dir states cannot be used: No space left on device; \
free space, or choose another folder
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        text = f"{name} {folder} cannot be used: {reason}; free space, or choose another folder"
        raise FolderError(text) from error
