"""What `fedlib.datasets.load` returns, and the warning and the error that it can cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

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
