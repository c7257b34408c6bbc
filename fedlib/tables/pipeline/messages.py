"""The fitted preprocessing, which is a message, and the state of a client that has received it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.client import FAR_FROM_ROW, by_rounding
from fedlib.core.columns import EMPTY, MAX_NUMBER, TEXT, RawTable, parse_booleans, present
from fedlib.core.messages import Array, FeatureNames, Message, MessageError, decode
from fedlib.tables.components.flow import component_names, project
from fedlib.tables.summary.messages import MAX_ROWS, Category, split

Gaps = Literal["fill", "drop", "keep"]
Unknown = Literal["ignore", "error"]
LIMIT = 4 * MAX_NUMBER
MAX_NEW = 2**14  # columns after preprocessing: 128 KiB per row
TINY = 1e-200  # a product with a smaller number can be rounded to a multiple of the least float
KEPT_TEXT = EMPTY + 1  # the kind of a column of text that the protocol takes as it is


class Transformed(NamedTuple):
    """The rows of a table that could be transformed.

    Attributes
    ----------
    X : DataFrame or array (n_kept, n_new_columns) of float64
    kept : array (n_rows,) of bool
        Which rows they are.
    n_odd : int
        The count of rows that could not be transformed, without those that are dropped for gaps.
    problem : str
        Why the first of these could not be; empty if there is none.
    """

    X: Any
    kept: Bools
    n_odd: int
    problem: str

    def within(self, largest: float, gaps_allowed: bool) -> Transformed:
        """Return the rows whose numbers lie within ±``largest``, without gaps if they must not be.

        Examples
        --------
        >>> two = Transformed(np.array([[1.0], [1e200]]), np.ones(2, bool), 0, "")
        >>> two.within(1e100, False).kept
        array([ True, False])
        """
        numbers = self.X.select_dtypes("number") if isinstance(self.X, pd.DataFrame) else self.X
        values = np.asarray(numbers, np.float64)
        wrong = np.abs(values) > largest
        if not gaps_allowed:
            wrong |= np.isnan(values)
        if not wrong.any():
            return self
        j = int(np.argmax(wrong.any(axis=0)))
        label = numbers.columns[j] if isinstance(numbers, pd.DataFrame) else j
        text = f"within ±{largest:g}" + (
            "" if gaps_allowed else " and no gaps: fill them with impute='mean', or drop them"
        )
        text = f"column {str(label)!r} must contain numbers {text}"
        return self.chosen(np.flatnonzero(~wrong.any(axis=1)), text)

    def chosen(self, rows: Ints, problem: str = "") -> Transformed:
        """Return some of these rows; the others are odd, for the reason ``problem``."""
        X = self.X.iloc[rows] if isinstance(self.X, pd.DataFrame) else self.X[rows]
        kept = np.zeros(len(self.kept), bool)
        kept[np.flatnonzero(self.kept)[rows]] = True
        return Transformed(X, kept, self.n_odd + len(self.X) - len(X), self.problem or problem)


class Preprocess(Message):
    """Preprocess your table by these rules, and use the result from now on.

    Attributes
    ----------
    features : tuple of str
        The names of the columns; empty if they have none.
    kinds : array (n_columns,) of uint8
        0 for numbers, 1 for text that is encoded, 3 for text that the protocol takes as it is.
    categorical : tuple of str
        The columns whose numbers are codes of categories.
    gaps : {"fill", "drop", "keep"}
        What happens to gaps.
    fill : array (n_columns,)
        The value for gaps of numbers; only for ``"fill"``.
    centre, spread : array (n_columns,)
        A number x becomes ``(x - centre) / spread``.
    lengths : array (n_columns,) of int64
        The count of categories of each column.
    categories : tuple of str
        The categories of all columns, one column after the other.
    unknown : {"ignore", "error"}
        What happens to a category that is not in ``categories``: all its columns are 0, or an
        error.
    """

    discloses = "the rules: means or medians for gaps, centres and spreads, and all categories"
    asks_for_data = False
    remains = True
    features: FeatureNames
    kinds: Annotated[np.ndarray, Array("uint8", ("columns",), le=KEPT_TEXT)]
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
        if self.n_columns > MAX_NEW:
            raise MessageError(
                f"Preprocess must give at most {MAX_NEW} columns, one per number and category, got"
                f" {self.n_columns}; leave out columns of text, or set min_category_count"
            )
        if self.features and len(self.features) != len(self.kinds):
            raise MessageError("Preprocess.features must have one name per column")

    @property
    def n_features(self) -> int:
        """The count of columns of the raw table."""
        return len(self.kinds)

    @property
    def n_columns(self) -> int:
        """The count of columns of numbers, one per number and category."""
        return int((self.kinds != TEXT).sum()) + len(self.categories)

    @property
    def n_new(self) -> int:
        """The count of columns after preprocessing."""
        return self.n_columns

    def transform(self, table: RawTable) -> tuple[Any, Bools]:
        """Return a table of numbers, and which rows of the raw table are in it.

        Parameters
        ----------
        table : RawTable

        Returns
        -------
        X : DataFrame or array (n_kept, n_new_columns) of float64
            A DataFrame if the raw columns have names, or one is text as it is. A column of text is
            replaced by one column per category, such as ``sex_f``; if there is a column of this
            name, ``sex_f_``. One that the protocol takes as it is has pandas' categories.
        kept : array (n_rows,) of bool
            False for rows with gaps that are dropped.

        Raises
        ------
        ValueError
            When the columns are not those of `fit`, or a category is unknown and must not be.
        """
        result = self.transform_usable(table)
        if result.n_odd:
            raise ValueError(result.problem)
        return result.X, result.kept

    def transform_usable(self, table: RawTable) -> Transformed:
        """Transform the rows that can be transformed.

        Rows are left out if they contain text in a column of numbers, or a category that is
        unknown and not permitted.

        Raises
        ------
        ValueError
            When the columns are not those of `fit`.
        """
        if len(table.columns) != self.n_features and not table.features:
            raise ValueError(f"X must have {self.n_features} columns, got {len(table.columns)}")
        table = table.in_order(self.features).with_text(self.categorical)
        complete = table.complete if self.gaps == "drop" else np.ones(len(table), bool)
        odd, problems = np.zeros(len(table), bool), []
        codes: dict[int, NDArray[np.intp]] = {}
        for j, categories in enumerate(split(self.categories, self.lengths)):
            wanted, remedy = "numbers", ""
            if self.kinds[j] == KEPT_TEXT:
                continue
            if self.kinds[j] != TEXT:
                if table.columns[j].dtype != object:
                    continue
                wrong = present(table.columns[j])
            else:
                texts = table.texts(j)
                codes[j] = _positions(texts, categories)
                if self.unknown != "error":
                    continue
                wrong = present(texts) & (codes[j] < 0)
                wanted = f"one of the {len(categories)} categories of fit"
                remedy = "; unknown='ignore' accepts it"
            wrong = wrong & complete
            if wrong.any():
                row = int(np.argmax(wrong))
                problems.append(
                    f"column {table.labels[j]!r} must contain {wanted}, got"
                    f" {table.texts(j)[row][:40]!r} in row {row + 1}{remedy}"
                )
                odd |= wrong
        kept = complete & ~odd
        if not kept.all():
            table = table.rows(kept)
        blocks, names, texts_at = [], list[str](), dict[int, Any]()
        labels = self.features or table.labels
        taken = {*labels}
        for j, categories in enumerate(split(self.categories, self.lengths)):
            if self.kinds[j] == TEXT:
                hot = codes[j][kept, np.newaxis] == np.arange(len(categories))
                blocks.append(hot.astype(np.float64))
                names += [_new_name(f"{labels[j]}_{category}", taken) for category in categories]
                continue
            if self.kinds[j] == KEPT_TEXT:
                texts_at[len(names)] = pd.Categorical(table.texts(j))
                blocks.append(np.full((len(table), 1), np.nan))
            else:
                blocks.append(self._scaled(table.numbers(j), j)[:, np.newaxis])
            names.append(labels[j])
        X: Any = np.concatenate(blocks, axis=1) if blocks else np.empty((len(table), 0))
        if self.features or texts_at:
            X = pd.DataFrame(X, columns=names if self.features else None)
            for place, column in texts_at.items():
                X.isetitem(place, column)
        return Transformed(X, kept, int(odd.sum()), "".join(problems[:1]))

    def marks(self, table: RawTable) -> Floats:
        """Return what tells the rows of a table apart after these rules (n_rows, n_marks).

        Numbers are shifted and scaled, which sums allow for. A category becomes a column of its
        own, and a gap becomes the same number in all rows: so each is a group of rows. A gap of a
        category has the mark -1, like an unknown one.

        Parameters
        ----------
        table : RawTable
        """
        table = table.in_order(self.features).with_text(self.categorical)
        marks = [np.zeros(len(table))]
        for j, categories in enumerate(split(self.categories, self.lengths)):
            if self.kinds[j] == TEXT:
                marks.append(_positions(table.texts(j), categories).astype(np.float64))
            elif self.kinds[j] != KEPT_TEXT:
                numbers = table.numbers_or_gaps(j)
                marks.append(np.isnan(numbers).astype(np.float64))
                fill = self.fill[j] if self.gaps == "fill" and np.isnan(numbers).any() else 0.0
                # What is filled is far from a value.
                marks += [rows.astype(float) for rows in by_rounding(numbers, fill)]
                # Rows that are rounded to the same difference are one group.
                for rows in by_rounding(numbers, self.centre[j]):
                    marks.append(np.where(rows, numbers - self.centre[j], 0.0))
        return np.stack(marks, axis=1)

    def _scaled(self, numbers: Floats, j: int) -> Floats:
        if self.gaps == "fill":
            numbers = np.where(np.isnan(numbers), self.fill[j], numbers)
        with np.errstate(over="ignore"):  # such rows take no part
            return (numbers - self.centre[j]) / self.spread[j]


class PreprocessAndProject(Preprocess):
    """Preprocess your table by these rules, and use its principal components from now on.

    Attributes
    ----------
    mean : array (n_columns,)
        The mean of the preprocessed rows of all clients.
    components : array (n_components, n_columns)
        A row x becomes ``components @ (x - mean)``.
    """

    discloses = Preprocess.discloses + ", the mean of the rows, and their principal components"
    asks_for_data = False
    mean: Annotated[np.ndarray, Array("float64", ("new",), -LIMIT, LIMIT)]
    components: Annotated[np.ndarray, Array("float64", ("components", "new"), -2, 2)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.kinds == KEPT_TEXT).any():
            raise MessageError("PreprocessAndProject.kinds must have no text as it is")
        if len(self.mean) != self.n_columns:
            raise MessageError(
                f"PreprocessAndProject.mean must have {self.n_columns} entries, one per column of"
                f" numbers, got {len(self.mean)}"
            )
        if len(self.components) > self.n_columns:
            raise MessageError(
                f"PreprocessAndProject.components must be at most {self.n_columns}, one per column"
                f" of numbers, got {len(self.components)}"
            )

    @property
    def n_new(self) -> int:
        """The count of components."""
        return len(self.components)

    def marks(self, table: RawTable) -> Floats:
        """Return what tells the rows apart, also rounding next to a far mean or to tiny numbers."""
        unfilled = msgspec.structs.replace(self, fill=self.centre)  # so what is filled becomes 0
        result = Preprocess.transform_usable(unfilled, table)
        far = any(True for _ in by_rounding(np.asarray(result.X, np.float64), self.mean))
        tiny = (np.abs(self.components) < TINY) & (self.components != 0)
        rounded = bool(tiny.any()) or self._rounds(np.asarray(result.X, np.float64))
        alone = np.arange(len(table)) * float(far or rounded)
        return np.column_stack([super().marks(table), alone])

    def _rounds(self, X: Floats) -> bool:
        """Return whether a component adds to a feature so much more that it keeps few bits of it.

        Such a sum tells the rows above a threshold, which the components and the mean set.
        """
        if not len(X):
            return False
        with np.errstate(over="ignore", invalid="ignore"):
            sizes = np.abs(X - self.mean)
            usual = np.nanmedian(np.where(sizes > 0, sizes, np.nan), axis=0)
            least = np.abs(self.components) * np.nan_to_num(usual)
            most = (np.abs(self.components) * sizes.max(axis=0)).max(axis=1, keepdims=True)
            return bool(((least > 0) & (most > FAR_FROM_ROW * least)).any())

    def transform_usable(self, table: RawTable) -> Transformed:
        """Transform the rows that can be transformed, and return their principal components.

        Raises
        ------
        ValueError
            When the columns are not those of `fit`.
        """
        result = super().transform_usable(table)
        X: Any = project(np.asarray(result.X, np.float64), self.mean, self.components)
        if self.features:
            X = pd.DataFrame(X, columns=[*component_names(len(self.components))])
        return result._replace(X=X)


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
    renewed : bool
        Whether the rules are those of the session before.
    """

    discloses = "nothing: it stays with the client"
    rules: bytes
    inner: bytes
    kept: Annotated[np.ndarray, Array("bool", ("rows",))]
    renewed: bool = False

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


def _positions(texts: NDArray[Any], categories: Sequence[str]) -> NDArray[np.intp]:
    """Return the position of each text among the categories, -1 for others and gaps."""
    positions: NDArray[np.intp] = pd.Index(np.array([*categories], object)).get_indexer(
        pd.Index(texts)
    )
    spelled = pd.Index(np.array([*map(parse_booleans, categories)], object))
    others = np.flatnonzero(positions < 0)
    if len(others) and spelled.is_unique:
        again = pd.Index(np.array([*map(parse_booleans, texts[others])], object))
        positions[others] = spelled.get_indexer(again)
    return positions


def _new_name(name: str, taken: set[str]) -> str:
    """Return a name that no other column has, and add it to those that are taken."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def expand(values: NDArray[Any], kept: Bools) -> NDArray[Any]:
    """Return one value per row: -1, or NaN for floating point numbers, for dropped rows."""
    if kept.all():
        return values
    whole = np.full((len(kept), *values.shape[1:]), -1, values.dtype)
    if values.dtype.kind == "f":
        whole[:] = np.nan
    whole[kept] = values
    return whole
