"""From the bytes of a file to a data set; stand-ins for files that are not available."""

from __future__ import annotations

import io
import warnings
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.io import arff

from fedlib.datasets.sources import CorruptFile, Dataset, Source, StandInWarning, find, sources
from fedlib.datasets.stand_ins import stand_in


class Layout(NamedTuple):
    """The columns of a file that are not features."""

    target: str
    groups: str | None = None
    ignored: str | None = None


LAYOUTS = {
    "banana": Layout("class"),
    "s-set1": Layout("CLASS"),
    "aggregation": Layout("class"),
    "3MC": Layout("class"),
    "dim_reduced_2d": Layout("health status", groups="study"),
    "dim_reduced_3d": Layout("health status", groups="study"),
    "heart": Layout("target"),
    "diabetes": Layout("Outcome"),
    "smoking": Layout("smoking", ignored="ID"),
}

# The features that are text: the code of a value is its position.
CODES = {"gender": ("F", "M"), "oral": ("N", "Y"), "tartar": ("N", "Y")}

_warned: set[str] = set()


def load_file(name: str) -> Dataset:
    """Return the data set in a file, or its stand-in if the file is not available."""
    source = sources()[name]
    content, failure = find(source)
    if content is not None:
        return _from_content(source, content)
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"{name}: no file, and {failure}; random data of the same shape replace it, and"
            " results are not comparable with published ones",
            StandInWarning,
            stacklevel=3,  # the caller of `fedlib.datasets.load`
        )
    dataset = _from_frame(source, stand_in(name), "stand-in")
    return replace(dataset, description=f"Random stand-in for: {source.contents}")


def parse(file: str, content: bytes) -> pd.DataFrame:
    r"""Return the table in the content of an ARFF, TSV or CSV file.

    Parameters
    ----------
    file : str
        The name of the file, whose suffix determines the format; without one, CSV.
    content : bytes
        UTF-8 text, with or without a byte-order mark.

    Returns
    -------
    DataFrame
        The columns of an ARFF file have its types. All values of other files are text.

    Raises
    ------
    LookupError, NotImplementedError, OSError, StopIteration or ValueError
        When pandas or scipy cannot read the table.

    Examples
    --------
    >>> parse("ages.csv", b"name,age\nNA,07\n").values.tolist()
    [['NA', '07']]
    """
    # utf-8-sig removes a byte-order mark, which would become part of the first column's name.
    text = io.StringIO(content.decode("utf-8-sig"), newline=None)
    if not file.endswith(".arff"):
        separator = "\t" if file.endswith(".tsv") else ","
        # As text, so that no number is rounded and no word such as NA becomes a missing value.
        return pd.read_csv(text, sep=separator, dtype=str, keep_default_na=False)
    data, header = arff.loadarff(text)
    nominal = [name for name in header.names() if header[name][0] == "nominal"]
    return pd.DataFrame(data).assign(**{name: np.char.decode(data[name]) for name in nominal})


def _from_content(source: Source, content: bytes) -> Dataset:
    try:
        return _from_frame(source, parse(source.file, content), "real")
    except (LookupError, NotImplementedError, OSError, StopIteration, ValueError) as error:
        # All errors that pandas and scipy raise for a table that they cannot read.
        raise CorruptFile(f"{source.file} is malformed: {error!r}") from error


def _from_frame(source: Source, frame: pd.DataFrame, kind: Literal["real", "stand-in"]) -> Dataset:
    if frame.empty:
        raise ValueError("there are no rows")
    layout = LAYOUTS[source.name]
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
    """Return the class of each row and the names of the classes."""
    texts = column.astype(str)
    if texts.isin(["", "?"]).any():
        raise ValueError(f"column {column.name!r} has missing values")
    if texts.str.fullmatch(r"-?\d+").all():
        y = texts.to_numpy(dtype=np.int64)
        return y, {int(value): str(value) for value in np.unique(y)}
    names, y = np.unique(texts.to_numpy(dtype=np.str_), return_inverse=True)
    return y.astype(np.int64), dict(enumerate(map(str, names)))


def _numbers(column: pd.Series) -> NDArray[np.float64]:
    """Return a feature as numbers."""
    if column.name in CODES:
        numbers = pd.Index(CODES[column.name]).get_indexer(pd.Index(column)).astype(np.float64)
        wrong = numbers < 0
    else:
        numbers = column.to_numpy(dtype=np.float64)
        wrong = ~np.isfinite(numbers)
    if wrong.any():
        raise ValueError(f"column {column.name!r} contains {column[wrong].iloc[0]!r}")
    return numbers
