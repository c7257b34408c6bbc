"""Data sets of the pages, with their origin."""

import hashlib
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from IPython.display import display

from fedlib import datasets
from fedlib.tables.files import SiteFile, read_table
from fedlib.tables.streams import ReadOptions
from study.shared.pages import ROOT, badge, stand_ins

CLASS = "class"  # the column of classes in a reader's file


def load(name):
    """Load a data set and show its size and origin: real, generated, a stand-in or your own.

    Parameters
    ----------
    name : str
        One of `fedlib.datasets.NAMES`, or a file that `read_table` reads, such as
        ``tables/mine.csv``. A relative path starts at the root of the repository. The column
        ``class`` contains the classes; without it, all rows belong to the same class.

    Returns
    -------
    fedlib.datasets.Dataset

    Raises
    ------
    ValueError
        When the name is unknown, or the file cannot be read; the text names the file.
    """
    own = name not in datasets.NAMES and Path(name).suffix
    data = load_own(ROOT / Path(name).expanduser()) if own else fetch(name)
    display(badge(data))
    return data


def load_grouped(name, n_clients, random_state):
    """Load Reidy's data or a file of your own, with a client for each row, and show its size.

    Parameters
    ----------
    name : str
        ``"2d"`` or ``"3d"``, whose clients are the studies, or a file as of `load`.
    n_clients : int
        The clients among which the rows of a file are divided at random.
    random_state : int
        The seed of this division.

    Returns
    -------
    tuple of (fedlib.datasets.Dataset, str)
        The data, and the name of the set or of the file for the names of results.

    Raises
    ------
    ValueError
        As `load`, and when a client would have no row.
    """
    if f"dim_reduced_{name}" in datasets.NAMES:
        return load(f"dim_reduced_{name}"), name
    data = load(name)
    if not 1 <= n_clients <= len(data.X):
        raise ValueError(f"n_children must be 1 to the {len(data.X)} rows, got {n_clients}")
    order = np.random.default_rng(random_state).permutation(len(data.X))
    groups = np.array([f"client {i % n_clients + 1}" for i in order])
    return replace(data, groups=groups), data.name


def fetch(name):
    """Return one of `fedlib.datasets.NAMES` without a badge: the page states the origin itself."""
    with warnings.catch_warnings(action="ignore", category=datasets.StandInWarning):
        data = datasets.load(name)
    if data.source == "stand-in":
        stand_ins.add(name)
    return data


def load_own(path):
    """Return the table in a file as a data set; see `load`."""
    columns = SiteFile.read(path, ReadOptions()).content.frame.columns
    table = read_table(path, target=CLASS if CLASS in columns else None)
    classes = np.zeros(len(table.X), int) if table.y is None else table.y
    names, y = np.unique(classes, return_inverse=True)
    return datasets.Dataset(
        name=path.stem,
        X=np.asarray(table.X, dtype=float),
        y=y.astype(np.int64),
        groups=None,
        feature_names=tuple(str(column) for column in columns if column != CLASS),
        target_names=dict(enumerate(map(str, names))),
        source="real",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        description=f"The file {path.name}.",
    )


def checksum(data):
    """Return the SHA-256 of a data set's file, or of its array without a file; "" for stand-ins."""
    if data.source == "stand-in":
        return ""
    return hashlib.sha256(data.X.tobytes()).hexdigest() if data.sha256 is None else data.sha256


def in_order(rows, labels):
    """Return the labels of all clients in the order of the data set.

    Parameters
    ----------
    rows : list of array of int
        The rows of each client.
    labels : list of array of int
        The labels of each client's rows.

    Examples
    --------
    >>> in_order([np.array([2, 0]), np.array([1])], [np.array([5, 6]), np.array([7])])
    array([6, 7, 5])
    """
    rows = np.concatenate(rows)
    ordered = np.empty(len(rows), int)
    ordered[rows] = np.concatenate(labels)
    return ordered
