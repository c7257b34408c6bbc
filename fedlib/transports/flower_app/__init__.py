"""A Flower app that runs any protocol of this package: a folder for `flwr run`."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["new"]

TEMPLATE = Path(__file__).parent / "template"


def new(directory: str | Path) -> Path:
    """Write the app into a new folder and return its path.

    Parameters
    ----------
    directory : path
        The folder; it must be empty or not exist.

    Raises
    ------
    FileExistsError
        When the folder is not empty.
    OSError
        When the folder cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sorted(path.name for path in new(folder).iterdir())
    ['README.md', 'fedlib_app', 'pyproject.toml']
    """
    folder = Path(directory)
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(TEMPLATE, folder, ignore=ignored, dirs_exist_ok=True)
    return folder
