"""The data sets of the study, loaded by name.

Three kinds of data sets:

- **files** of others, listed in ``sources.csv`` with address, size and SHA-256. They are never part
  of this package: :func:`load` looks in the folder that ``$FEDLIB_DATA`` names, then in the user's
  cache, then downloads. Without file and network it builds a **stand-in**: random data of the same
  size, dimension, number of classes and general shape. Figures made from a stand-in cannot be
  compared with published ones, and a :class:`StandInWarning` says so.
- **breast_cancer**, which comes with scikit-learn.
- **generated** sets: the six of scikit-learn's example "Comparing different clustering algorithms
  on toy datasets", used by F (Chapter 2), and three of :mod:`fedlib.datasets.shapes` in the sizes
  of P's (§4.2), which were never published: ``shapes_13147``, ``shapes_38754``, ``places_56417``.
"""

import csv
import hashlib
import io
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import pooch
from numpy.typing import NDArray
from scipy.io import arff
from sklearn.datasets import load_breast_cancer, make_blobs, make_circles, make_moons
from sklearn.preprocessing import StandardScaler

from fedlib.datasets.shapes import places, shapes
from fedlib.datasets.stand_ins import stand_in

__all__ = ["NAMES", "CorruptFile", "Dataset", "StandInWarning", "load"]

# Seconds without an answer after which the network counts as absent.
TIMEOUT = 5.0


class StandInWarning(UserWarning):
    """A data set was not to be had and random data of the same shape took its place."""


class CorruptFile(ValueError):
    """A data file is not the one that ``sources.csv`` describes."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set, as :func:`load` returns it.

    Attributes
    ----------
    name : str
        The name it was loaded by.
    X : ndarray of float64, shape (n_rows, n_features)
        The features in the units of the source.
    y : ndarray of int64, shape (n_rows,)
        Class of each row.
    groups : ndarray of str, shape (n_rows,), or None
        Where each row comes from, where the source says so: the study of ``dim_reduced_*``.
    feature_names : tuple of str
        Column names of `X`.
    target_names : dict of int to str
        What each value of `y` is called in the source.
    source : {"real", "stand-in", "generated"}
        ``"stand-in"`` for random data in place of a missing file; ``"generated"`` for a set of this
        package's own where the source's was never published; else ``"real"``.
    sha256 : str or None
        Checksum of the file; ``None`` where there is no file.
    description : str
        Contents, peculiarities and provenance, in a few sentences.
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


def load(name: str) -> Dataset:
    """Load a data set.

    Values are those of the file: nothing is scaled, imputed, dropped or turned into NaN. Only
    ``circles``, ``moons``, ``blobs``, ``varied``, ``aniso`` and ``no_structure`` are standardised
    (zero mean, unit variance), as in scikit-learn's example.

    Parameters
    ----------
    name : str
        One of :data:`NAMES`.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        If there is no data set of that name, or ``$FEDLIB_DATA`` names no folder.
    CorruptFile
        If the file found in ``$FEDLIB_DATA`` or in the cache, or downloaded, is not the expected
        one: truncated, another checksum, or not readable. (A :class:`ValueError`.)

    Warns
    -----
    StandInWarning
        Once for each name, if neither file nor network was there.

    Notes
    -----
    A download is tried once. If the network does not answer, it is not asked again before the next
    Python process.

    Classes that are whole numbers keep their values (``s-set1`` has 0, 1, 3, …, 15). Classes that
    are text become 0, 1, … in alphabetical order: in banana ``Class 1`` is 0 and ``Class 2`` is 1,
    in ``dim_reduced_*`` the health status amphetamine is 0, healthy 1, heroin 2.

    The text columns of smoking are coded: gender F 0, M 1; oral and tartar N 0, Y 1. Its constant
    column oral stays; the row number ID is left out. Zeros that stand for missing measurements
    (diabetes), and codes that do (heart: ca 4 and thal 0), stay.

    Examples
    --------
    >>> from fedlib.datasets import load
    >>> moons = load("moons")
    >>> moons.X.shape, moons.source, moons.target_names
    ((1000, 2), 'real', {0: '0', 1: '1'})
    """
    if name == "breast_cancer":
        return _breast_cancer()
    if name in _TOYS:
        return _toy(name)
    if name in _SHAPES:
        return _shape(name)
    if name not in _FILES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}; got {name!r}")
    source = _sources()[name]
    content, failure = _find(source)
    return _from_file(source, content) if content is not None else _stand_in(source, failure)


# Files ---------------------------------------------------------------------------------------


class _Source(NamedTuple):
    """A row of ``sources.csv``."""

    name: str
    file: str
    url: str
    sha256: str
    bytes: str
    contents: str
    notes: str


@cache
def _sources() -> dict[str, _Source]:
    # An installed package carries the table beside this module, a checkout keeps it in datasets/.
    here = Path(__file__).parent
    places = (here / "sources.csv", here.parents[1] / "datasets" / "sources.csv")
    path = next(place for place in places if place.is_file())
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["name"]: _Source(**row) for row in rows}


def _find(source: _Source) -> tuple[bytes | None, str]:
    """Return the checked content of the file, or ``None`` and why there is none."""
    folder = os.environ.get("FEDLIB_DATA")
    if folder and not Path(folder).is_dir():
        raise ValueError(f"FEDLIB_DATA must name an existing folder, got {folder!r}")
    cached = Path(pooch.os_cache("fedlib")) / source.file
    for path in (Path(folder) / source.file, cached) if folder else (cached,):
        if path.is_file():
            return _read_checked(source, path), ""
    failure = _download(source, cached)
    return (None, failure) if failure else (_read_checked(source, cached), "")


def _read_checked(source: _Source, path: Path) -> bytes:
    content = path.read_bytes()
    if len(content) < int(source.bytes):
        raise CorruptFile(
            f"{path} is truncated or altered: it has {len(content)} bytes, not {source.bytes}"
        )
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != source.sha256:
        raise CorruptFile(f"{path} is altered: its SHA-256 is {sha256}, not {source.sha256}")
    return content


_network = {"absent": False}


def _download(source: _Source, path: Path) -> str:
    """Download to `path`; return what failed, or an empty string."""
    if _network["absent"]:
        return "the network is absent"
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
        # An answer such as 404 proves that there is a network; requests keeps it in `response`.
        _network["absent"] = getattr(error, "response", None) is None
        return f"the download failed with {type(error).__name__}"
    except ValueError as error:
        raise CorruptFile(f"{source.url} is altered: {error}") from error
    finally:
        logger.setLevel(level)
    return ""


class _Layout(NamedTuple):
    """Which columns of a file are not features."""

    target: str
    groups: str | None = None
    ignored: str | None = None


_FILES = {
    "banana": _Layout("class"),
    "s-set1": _Layout("CLASS"),
    "aggregation": _Layout("class"),
    "3MC": _Layout("class"),
    "dim_reduced_2d": _Layout("health status", groups="study"),
    "dim_reduced_3d": _Layout("health status", groups="study"),
    "heart": _Layout("target"),
    "diabetes": _Layout("Outcome"),
    "smoking": _Layout("smoking", ignored="ID"),
}

# Features that are text: a value's code is its place here.
_TEXTS = {"gender": ("F", "M"), "oral": ("N", "Y"), "tartar": ("N", "Y")}


def _from_file(source: _Source, content: bytes) -> Dataset:
    try:
        return _from_frame(source, _read(source.file, content), "real")
    except (LookupError, NotImplementedError, OSError, StopIteration, ValueError) as error:
        # All that the readers of pandas and scipy raise at a table they cannot read.
        raise CorruptFile(f"{source.file} is malformed: {error!r}") from error


def _read(file: str, content: bytes) -> pd.DataFrame:
    # utf-8-sig takes off the byte-order mark that would else belong to the first column's name.
    text = io.StringIO(content.decode("utf-8-sig"), newline=None)
    if not file.endswith(".arff"):
        separator = "\t" if file.endswith(".tsv") else ","
        # As text, so that neither a number is rounded nor a word such as NA taken for a gap.
        return pd.read_csv(text, sep=separator, dtype=str, keep_default_na=False)
    data, header = arff.loadarff(text)
    nominal = [name for name in header.names() if header[name][0] == "nominal"]
    return pd.DataFrame(data).assign(**{name: np.char.decode(data[name]) for name in nominal})


def _from_frame(source: _Source, frame: pd.DataFrame, kind: Literal["real", "stand-in"]) -> Dataset:
    if frame.empty:
        raise ValueError("there are no rows")
    layout = _FILES[source.name]
    features = [column for column in frame.columns if column not in layout]
    y, target_names = _classes(frame[layout.target])
    return Dataset(
        name=source.name,
        X=np.column_stack([_numbers(frame[column]) for column in features]),
        y=y,
        groups=frame[layout.groups].to_numpy(dtype=np.str_) if layout.groups else None,
        feature_names=tuple(features),
        target_names=target_names,
        source=kind,
        sha256=source.sha256 if kind == "real" else None,
        description="; ".join(filter(None, (source.contents, source.notes, source.url))),
    )


def _classes(column: pd.Series) -> tuple[NDArray[np.int64], dict[int, str]]:
    texts = column.astype(str)
    if texts.isin(["", "?"]).any():
        raise ValueError(f"column {column.name!r} has missing values")
    if texts.str.fullmatch(r"-?\d+").all():
        y = texts.to_numpy(dtype=np.int64)
        return y, {int(value): str(value) for value in np.unique(y)}
    names, y = np.unique(texts.to_numpy(dtype=np.str_), return_inverse=True)
    return y.astype(np.int64), dict(enumerate(map(str, names)))


def _numbers(column: pd.Series) -> NDArray[np.float64]:
    if column.name in _TEXTS:
        numbers = pd.Index(_TEXTS[column.name]).get_indexer(pd.Index(column)).astype(np.float64)
        wrong = numbers < 0
    else:
        numbers = column.to_numpy(dtype=np.float64)
        wrong = ~np.isfinite(numbers)
    if wrong.any():
        raise ValueError(f"column {column.name!r} holds {column[wrong].iloc[0]!r}")
    return numbers


_warned: set[str] = set()


def _stand_in(source: _Source, failure: str) -> Dataset:
    if source.name not in _warned:
        _warned.add(source.name)
        warnings.warn(
            f"{source.name}: no file, and {failure}; random data of the same shape stand in, and"
            " results are not comparable with published ones",
            StandInWarning,
            stacklevel=3,
        )
    dataset = _from_frame(source, stand_in(source.name), "stand-in")
    return replace(dataset, description=f"Random stand-in for: {source.contents}")


# Generated and bundled sets ------------------------------------------------------------------


def _aniso(n_rows: int) -> tuple[NDArray, NDArray]:
    X, y = make_blobs(n_rows, random_state=170)
    return X @ np.array([[0.6, -0.6], [-0.4, 0.8]]), y


def _no_structure(n_rows: int) -> tuple[NDArray, NDArray]:
    return np.random.RandomState(30).rand(n_rows, 2), np.zeros(n_rows)


_TOYS: dict[str, Callable[[int], tuple[NDArray, NDArray]]] = {
    "circles": partial(make_circles, factor=0.5, noise=0.05, random_state=30),
    "moons": partial(make_moons, noise=0.05, random_state=30),
    "blobs": partial(make_blobs, random_state=8),
    "varied": partial(make_blobs, cluster_std=[1.0, 2.5, 0.5], random_state=170),
    "aniso": _aniso,
    "no_structure": _no_structure,
}


def _toy(name: str) -> Dataset:
    X, y = _TOYS[name](1000)
    return Dataset(
        name=name,
        X=StandardScaler().fit_transform(X),
        y=y.astype(np.int64),
        groups=None,
        feature_names=("x", "y"),
        target_names={int(value): f"{value:.0f}" for value in np.unique(y)},
        source="real",
        sha256=None,
        description="1000 points, 2 features, standardised; generated as in scikit-learn's example"
        " 'Comparing different clustering algorithms on toy datasets'",
    )


_SHAPES: dict[str, Callable[[], tuple[NDArray, NDArray]]] = {
    "shapes_13147": partial(shapes, 13_147),
    "shapes_38754": partial(shapes, 38_754, crowded=True),
    "places_56417": partial(places, 56_417),
}


def _shape(name: str) -> Dataset:
    X, y = _SHAPES[name]()
    return Dataset(
        name=name,
        X=X,
        y=y,
        groups=None,
        feature_names=("x", "y"),
        target_names={int(value): "noise" if value < 0 else str(value) for value in np.unique(y)},
        source="generated",
        sha256=None,
        description=f"{len(X)} points in the plane, of the size of P's set, which is not to be had;"
        " generated by fedlib.datasets.shapes; class -1 is noise",
    )


def _breast_cancer() -> Dataset:
    bunch = load_breast_cancer()
    return Dataset(
        name="breast_cancer",
        X=bunch.data,
        y=bunch.target.astype(np.int64),
        groups=None,
        feature_names=tuple(map(str, bunch.feature_names)),
        target_names=dict(enumerate(map(str, bunch.target_names))),
        source="real",
        sha256=None,
        description="569 tumours, 30 measurements, 212 malignant and 357 benign; Breast Cancer"
        " Wisconsin (Diagnostic), UCI Machine Learning Repository; comes with scikit-learn",
    )


#: The names that :func:`load` knows.
NAMES: tuple[str, ...] = (*_FILES, "breast_cancer", *_TOYS, *_SHAPES)
