"""The data sets of the study, loaded by name.

There are three kinds:

- **Files** published by others, listed in ``sources.csv`` with address, size and SHA-256. They are
  not part of this package: `load` searches the folder ``$FEDLIB_DATA``, then the user's cache, and
  then downloads the file. If the file is not available, `load` generates a **stand-in**: random
  data with the same size, columns, classes and general shape, and a `StandInWarning`. Figures made
  from a stand-in cannot be compared with published ones.
- **breast_cancer**, which scikit-learn includes.
- **Generated** sets: six of a scikit-learn example, and three of `fedlib.datasets.stand_ins`.
"""

from __future__ import annotations

from fedlib.datasets.sources import CorruptFile, Dataset, StandInWarning
from fedlib.datasets.stand_ins import FILES, GENERATED

__all__ = ["NAMES", "CorruptFile", "Dataset", "StandInWarning", "load"]

#: The names that `load` accepts.
NAMES: tuple[str, ...] = (*FILES, *GENERATED)


def load(name: str) -> Dataset:
    """Load a data set.

    The values are those of the file: nothing is scaled, imputed, dropped or replaced by NaN. Only
    ``circles``, ``moons``, ``blobs``, ``varied``, ``aniso`` and ``no_structure`` are standardised
    (zero mean, unit variance), as in scikit-learn's example.

    Parameters
    ----------
    name : str
        One of `NAMES`.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        When the name is unknown, or ``$FEDLIB_DATA`` is not a folder.
    CorruptFile
        When the file in ``$FEDLIB_DATA`` or in the cache, or the downloaded one, is not the
        expected file: truncated, with another checksum, or not readable. (A `ValueError`.)

    Warns
    -----
    StandInWarning
        Once per name, when neither the file nor the network is available.

    Notes
    -----
    A download is tried once. If the network does not reply, it is not tried again in this Python
    process.

    Classes that are integers keep their values (``s-set1`` has 0, 1, 3, …, 15). Classes that
    are text become 0, 1, … in alphabetical order: in ``banana``, ``Class 1`` is 0 and ``Class 2``
    is 1; in ``dim_reduced_*``, the health status amphetamine is 0, healthy 1, heroin 2.

    The text columns of ``smoking`` are coded: gender F 0, M 1; oral and tartar N 0, Y 1. Its
    constant column oral is kept; the row index ID is left out. Zeros and codes that represent
    missing values (zeros in ``diabetes``; ca 4 and thal 0 in ``heart``) are kept.

    Examples
    --------
    >>> from fedlib.datasets import load
    >>> moons = load("moons")
    >>> moons.X.shape, moons.source, moons.target_names
    ((1000, 2), 'real', {0: '0', 1: '1'})
    """
    if name in GENERATED:
        return GENERATED[name]()
    if name not in FILES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}; got {name!r}")
    from fedlib.datasets.tables import load_file  # imports pandas, which generated sets do not need

    return load_file(name)
