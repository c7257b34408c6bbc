"""The files of the study: where they come from, and how to find or download them.

``sources.csv`` lists the address, size and SHA-256 of each file. A file is searched for in the
folder ``$FEDLIB_DATA``, then in the user's cache, and then downloaded into the cache.
"""

from __future__ import annotations

import csv
import hashlib
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray


class StandInWarning(UserWarning):
    """The file of a data set is not available; random data of the same shape replace it."""


class CorruptFile(ValueError):
    """A data file is not the one that ``sources.csv`` describes."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set.

    Attributes
    ----------
    name : str
        The name by which it was loaded.
    X : array (n_rows, n_features) of float64
        The features, in the units of the source.
    y : array (n_rows,) of int64
        The class of each row.
    groups : array (n_rows,) of str, or None
        The origin of each row, if the source states it: the study, for ``dim_reduced_*``.
    feature_names : tuple of str
        The names of the columns of ``X``.
    target_names : dict of int to str
        The name of each value of ``y`` in the source.
    source : {"real", "stand-in", "generated"}
        ``"stand-in"`` for random data that replace a missing file; ``"generated"`` for a set of
        this package that replaces one that was never published; otherwise ``"real"``.
    sha256 : str or None
        The checksum of the file; None if there is no file.
    description : str
        Contents, peculiarities and origin, in a few sentences.
    """

    name: str
    X: NDArray[np.float64] = field(repr=False)
    y: NDArray[np.int64] = field(repr=False)
    groups: NDArray[np.str_] | None = field(repr=False)
    feature_names: tuple[str, ...]
    target_names: dict[int, str]
    source: Literal["real", "stand-in", "generated"]
    sha256: str | None
    description: str = field(repr=False)


TIMEOUT = 5.0  # seconds without a reply after which the network counts as unavailable
_network = {"available": True}


class Source(NamedTuple):
    """A row of ``sources.csv``."""

    name: str
    file: str
    url: str
    sha256: str
    bytes: str
    contents: str
    notes: str


@cache
def sources() -> dict[str, Source]:
    """Return the rows of ``sources.csv`` by the name of the data set."""
    # An installed package contains the table; in a checkout it is in the folder datasets/.
    folder = Path(__file__).parent
    candidates = (folder / "sources.csv", folder.parents[1] / "datasets" / "sources.csv")
    path = next(path for path in candidates if path.is_file())
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["name"]: Source(**row) for row in rows}


def find(source: Source) -> tuple[bytes | None, str]:
    """Return the checked content of a file, or None and the reason.

    Raises
    ------
    ValueError
        When ``$FEDLIB_DATA`` is not a folder.
    CorruptFile
        When the file is not the one that ``sources.csv`` describes.
    """
    import pooch  # here, since most programs load no file

    folder = os.environ.get("FEDLIB_DATA")
    if folder and not Path(folder).is_dir():
        raise ValueError(f"FEDLIB_DATA must be an existing folder, got {folder!r}")
    cached = Path(pooch.os_cache("fedlib")) / source.file
    for path in (Path(folder) / source.file, cached) if folder else (cached,):
        if path.is_file():
            return _read_checked(source, path), ""
    failure = _download(source, cached)
    return (None, failure) if failure else (_read_checked(source, cached), "")


def _read_checked(source: Source, path: Path) -> bytes:
    """Return the content of a file if its size and checksum are right."""
    content = path.read_bytes()
    if len(content) < int(source.bytes):
        raise CorruptFile(
            f"{path} is truncated or altered: it has {len(content)} bytes, not {source.bytes}"
        )
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != source.sha256:
        raise CorruptFile(f"{path} is altered: its SHA-256 is {sha256}, not {source.sha256}")
    return content


def _download(source: Source, path: Path) -> str:
    """Download a file to ``path``; return the reason of a failure, or an empty string."""
    if not _network["available"]:
        return "the network is not available"
    import pooch

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        pooch.retrieve(
            source.url,
            known_hash=f"sha256:{source.sha256}",
            fname=path.name,
            path=path.parent,
            downloader=pooch.HTTPDownloader(timeout=TIMEOUT),
        )
    except OSError as error:
        # An error with a response, such as 404, proves that the network is available.
        _network["available"] = getattr(error, "response", None) is not None
        return f"the download failed with {type(error).__name__}"
    except ValueError as error:
        raise CorruptFile(f"{source.url} is altered: {error}") from error
    finally:
        logger.setLevel(level)
    return ""
