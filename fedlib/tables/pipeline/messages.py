"""The fitted preprocessing, which is a message, and the state of a client that has received it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.messages import Array, FeatureNames, Message, MessageError, decode
from fedlib.tables.summary.messages import MAX_ROWS, Category, split
from fedlib.tables.summary.tables import MAX_NUMBER, TEXT, RawTable, present

__all__ = ["Gaps", "PipelineState", "Preprocess", "Unknown"]

Gaps = Literal["fill", "drop", "keep"]
Unknown = Literal["ignore", "error"]
LIMIT = 4 * MAX_NUMBER


class Preprocess(Message):
    """Preprocess your table by these rules, and use the result from now on.

    Attributes
    ----------
    features : tuple of str
        The names of the columns; empty if they have none.
    kinds : array (n_columns,) of uint8
        0 for numbers, 1 for text.
    categorical : tuple of str
        The columns whose numbers are codes of categories.
    gaps : {"fill", "drop", "keep"}
        What happens to gaps.
    fill : array (n_columns,)
        The value for gaps of numbers; only for ``"fill"``.
    centre, spread : array (n_columns,)
        A number x becomes ``(x - centre) / spread``.
    lengths : array (n_columns,) of int64
        The number of categories of each column.
    categories : tuple of str
        The categories of all columns, one column after the other.
    unknown : {"ignore", "error"}
        What happens to a category that is not in ``categories``: all its columns are 0, or an
        error.
    """

    discloses = "the rules: means or medians for gaps, centres and spreads, and all categories"
    asks_for_data = False
    features: FeatureNames
    kinds: Annotated[np.ndarray, Array("uint8", ("columns",), le=TEXT)]
    categorical: FeatureNames
    gaps: Gaps
    fill: Annotated[np.ndarray, Array("float64", ("columns",), -LIMIT, LIMIT)]
    centre: Annotated[np.ndarray, Array("float64", ("columns",), -LIMIT, LIMIT)]
    spread: Annotated[np.ndarray, Array("float64", ("columns",), ge=0, le=LIMIT)]
    lengths: Annotated[np.ndarray, Array("int64", ("columns",), ge=0, le=MAX_ROWS)]
    categories: tuple[Category, ...]
    unknown: Unknown

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.spread == 0).any():
            raise MessageError("Preprocess.spread must be positive")
        if self.lengths.sum() != len(self.categories):
            raise MessageError("Preprocess.lengths must sum to the number of categories")
        if self.features and len(self.features) != len(self.kinds):
            raise MessageError("Preprocess.features must have one name per column")

    @property
    def n_features(self) -> int:
        """The number of columns of the raw table."""
        return len(self.kinds)

    def transform(self, table: RawTable) -> tuple[Any, Bools]:
        """Return a table of numbers, and which rows of the raw table are in it.

        Parameters
        ----------
        table : RawTable

        Returns
        -------
        X : DataFrame or array (n_kept, n_new_columns) of float64
            A DataFrame if the raw columns have names. A column of text is replaced by one column
            per category, such as ``sex_f``.
        kept : array (n_rows,) of bool
            False for rows with gaps that are dropped.

        Raises
        ------
        ValueError
            When the columns are not those of `fit`, or a category is unknown and must not be.
        """
        if problem := self.odd_rows(table)[1]:
            raise ValueError(problem)
        table = table.with_text(self.categorical)
        kept = np.ones(len(table), bool)
        if self.gaps == "drop":
            kept = table.complete
            table = table.rows(kept)
        blocks, names = [], []
        labels = self.features or table.labels
        for j, categories in enumerate(split(self.categories, self.lengths)):
            if self.kinds[j] == TEXT:
                blocks.append(self._one_hot(table, j, categories))
                names += [f"{labels[j]}_{category}" for category in categories]
            else:
                blocks.append(self._scaled(table.numbers(j), j)[:, np.newaxis])
                names.append(labels[j])
        X = np.concatenate(blocks, axis=1) if blocks else np.empty((len(table), 0))
        return (pd.DataFrame(X, columns=names) if self.features else X), kept

    def odd_rows(self, table: RawTable) -> tuple[Bools, str]:
        """Return which rows cannot be transformed, and why the first of a column cannot.

        They contain text instead of a number, or an unknown category that must not be.

        Raises
        ------
        ValueError
            When the columns are not those of `fit`.
        """
        self._check_columns(table)
        table = table.with_text(self.categorical)
        odd, problems = np.zeros(len(table), bool), []
        usable = table.complete if self.gaps == "drop" else ~odd
        for j, categories in enumerate(split(self.categories, self.lengths)):
            if self.kinds[j] != TEXT:
                column = table.columns[j]
                wrong = usable & present(column) & (column.dtype == object)
                wanted, remedy = "numbers", ""
            elif self.unknown == "error":
                wrong = usable & present(table.texts(j)) & (_codes(table.texts(j), categories) < 0)
                wanted = f"one of the {len(categories)} categories of fit"
                remedy = "; unknown='ignore' accepts it"
            else:
                continue
            if wrong.any():
                row = int(np.argmax(wrong))
                problems.append(
                    f"column {table.labels[j]!r} must contain {wanted}, got"
                    f" {table.texts(j)[row][:40]!r} in row {row + 1}{remedy}"
                )
                odd |= wrong
        return odd, "".join(problems[:1])

    def _check_columns(self, table: RawTable) -> None:
        if table.features and self.features and table.features != self.features:
            raise ValueError(
                f"X must have the columns {list(self.features)}; got {list(table.features)}"
            )
        if len(table.columns) != self.n_features:
            raise ValueError(f"X must have {self.n_features} columns, got {len(table.columns)}")

    def _scaled(self, numbers: Floats, j: int) -> Floats:
        if self.gaps == "fill":
            numbers = np.where(np.isnan(numbers), self.fill[j], numbers)
        return (numbers - self.centre[j]) / self.spread[j]

    def _one_hot(self, table: RawTable, j: int, categories: tuple[str, ...]) -> Floats:
        codes = _codes(table.texts(j), categories)
        return (codes[:, np.newaxis] == np.arange(len(categories))).astype(np.float64)


def _codes(texts: NDArray[np.object_], categories: tuple[str, ...]) -> NDArray[np.intp]:
    """Return the place of each text among the categories, -1 for all others."""
    codes: NDArray[np.intp] = pd.Index(categories, dtype=object).get_indexer(
        pd.Index(texts, dtype=object)
    )
    return codes


class PipelineState(Message):
    """The state of a client after its table has been preprocessed.

    Attributes
    ----------
    rules : bytes
        The `Preprocess`, encoded.
    inner : bytes
        The state of the protocol's client, encoded; empty if it has none.
    kept : array (n_rows,) of bool
        The rows that take part in the protocol.
    """

    discloses = "nothing: it stays with the client"
    rules: bytes
    inner: bytes
    kept: Annotated[np.ndarray, Array("bool", ("rows",))]

    @property
    def labels(self) -> Ints:
        """The labels of all rows by the protocol's client; -1 for dropped rows.

        Raises
        ------
        AttributeError
            When the protocol's client has no labels.
        """
        inner: Any = decode(self.inner) if self.inner else None
        return expand(inner.labels, self.kept)


def expand(values: NDArray[Any], kept: Bools) -> NDArray[Any]:
    """Return one value per row: -1, or NaN for floating point numbers, for dropped rows."""
    if kept.all():
        return values
    whole = np.full((len(kept), *values.shape[1:]), -1, values.dtype)
    if values.dtype.kind == "f":
        whole[:] = np.nan
    whole[kept] = values
    return whole
