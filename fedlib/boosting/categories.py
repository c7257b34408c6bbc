"""Features with categories: how clients agree on them, and how texts become numbers.

The categories of a feature are the texts that any client has, or those of the study's schema
(`fedlib.boosting.from_schema`), in ascending order. The code of a category is its index in this
order, and a text that is not among them has the next code, that of all other texts. If a client
withholds categories with few rows, these rows have it, too. As in XGBoost, a category that training
has not seen is in no set that goes right, so it goes left. Predictions of such rows come with a
warning (`unknown_categories`).
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedlib.boosting.cuts import MAX_VALUE
from fedlib.boosting.data import check_rows
from fedlib.boosting.messages import Levels
from fedlib.core.aggregation import MAX_SHOWN, agree_on_kind, exclude
from fedlib.core.array_fields import OF_CLIENT
from fedlib.core.array_types import Bools, Floats32
from fedlib.core.client import BadRequest
from fedlib.core.column_names import feature_names
from fedlib.core.columns import EMPTY, NUMBER, TEXT, TRUTH, as_categories, read_columns
from fedlib.core.messages import Array, Message, MessageError
from fedlib.core.protocol import Flow, Replies
from fedlib.core.wording import composed, printable
from fedlib.tables.summary.messages import Category, split

MAX_CATEGORIES = 2**12  # of one feature; a set of them has as many bits


class Table(NamedTuple):
    """Rows of numbers and texts.

    ``numbers`` (n_rows, n_features) of float32 is NaN where a value is missing or a text. ``texts``
    are the columns with texts as objects, None where a value is missing. ``names`` are those of the
    columns; empty if they have none. ``identifiers`` is that of a `RawTable`.
    """

    numbers: Floats32
    texts: dict[int, NDArray[Any]]
    names: tuple[str, ...] = ()
    identifiers: str = ""

    @property
    def kinds(self) -> bytes:
        """The kind of each feature: `NUMBER`, `TEXT` or `EMPTY`; empty if all are numbers."""
        kinds = np.where(np.isnan(self.numbers).all(axis=0), EMPTY, NUMBER).astype(np.uint8)
        for f, column in self.texts.items():
            kinds[f] = TEXT if (column != None).any() else EMPTY  # noqa: E711 (per element)
        return kinds.tobytes() if kinds.any() else b""

    def followed_by(self, more: Table) -> Table:
        """Return these rows and ``more``; a column without texts here may have some there."""
        texts = {}
        for f in {*self.texts, *more.texts}:
            columns = [
                part.texts[f] if f in part.texts else np.full(len(part.numbers), None, object)
                for part in (self, more)
            ]
            texts[f] = np.concatenate(columns)
        return Table(np.concatenate([self.numbers, more.numbers]), texts, self.names)

    def rows(self, kept: Bools) -> Table:
        """Return the rows where ``kept`` (n_rows,) is true."""
        texts = {f: column[kept] for f, column in self.texts.items()}
        return Table(self.numbers[kept], texts, self.names)

    def coded(self, levels: Sequence[tuple[str, ...] | None]) -> Floats32:
        """Return the rows (n_rows, n_features) with the numbers of the categories.

        The result for a row does not depend on the others. In a feature of numbers, a text is the
        number that it contains, or a missing value; in a feature of text, a number is the category
        with this text, and another number no known category. `problem_of` finds such features.

        Parameters
        ----------
        levels : sequence of tuple of str or None
            The categories of each feature, None for a feature of numbers; empty if all features are
            numbers.

        Raises
        ------
        ValueError
            When there are levels of another count of features.

        Examples
        --------
        >>> table = read_table(pd.DataFrame({"colour": ["red", "blue", None, "green"]}))
        >>> table.coded([("blue", "red")]).ravel()
        array([ 1.,  0., nan,  2.], dtype=float32)
        """
        n_features = self.numbers.shape[1]
        if len(levels) not in (0, n_features):
            raise BadRequest(f"levels must be those of {n_features} features; got {len(levels)}")
        if not levels and not self.texts:
            return self.numbers
        rows = self.numbers.copy()
        for f, known in enumerate(levels or (None,) * n_features):
            if known is None:
                if f in self.texts:
                    rows[:, f] = [_number_in(text) for text in self.texts[f]]
                continue
            numbers = _numbers_of(known) | {None: np.nan}
            rows[:, f] = [numbers.get(text, len(known)) for text in self._texts_of(f)]
        return rows

    def _texts_of(self, f: int) -> NDArray[Any]:
        """Return a feature as text: "1" for the number 1, and None for a gap."""
        if f in self.texts:
            return self.texts[f]
        return np.array([_text_of(number) for number in self.numbers[:, f]], object)

    def unknown(self, levels: Sequence[tuple[str, ...] | None]) -> dict[int, list[str]]:
        """Return the texts of each feature that are none of its categories; for ``levels`` `coded`.

        Examples
        --------
        >>> table = read_table(pd.DataFrame({"colour": ["red", "blue", None, "green"]}))
        >>> table.unknown([("blue", "red")])
        {0: ['green']}
        """
        found = {
            f: {*self._texts_of(f)} - {*_numbers_of(known), None}
            for f, known in enumerate(levels)
            if known
        }
        return {f: sorted(texts) for f, texts in found.items() if texts}

    def problem_of(self, levels: Sequence[tuple[str, ...] | None]) -> str | None:
        """Return which feature contains text instead of numbers, or numbers instead of text.

        None if there is no such feature. For ``levels`` see `coded`.
        """
        for f, known in enumerate(levels or (None,) * self.numbers.shape[1]):
            name = f"feature {listed([f], self.names)}"
            if known is None and f in self.texts:
                return f"{name} must contain numbers, as in training; got text"
            if known is not None and f not in self.texts:
                numbers = _numbers_of(known) | {None: np.nan}
                odd = [text for text in self._texts_of(f) if text not in numbers]
                if odd:
                    declared = as_categories(self.names[f] if self.names else f)
                    return (
                        f"{name} must contain text, as in training; got numbers, such as {odd[0]},"
                        f" which is no category of the model; if the column has codes, declare"
                        f" them: {declared}"
                    )
        return None


def read_table(X: Any, known: Collection[int] = (), **checks: Any) -> Table:
    """Return a table's numbers and texts.

    Parameters
    ----------
    X : array-like (n_rows, n_features)
        Numbers within ±2**127, or NaN. The columns of a DataFrame can also be pandas categories, or
        texts that are not all numbers. A category that is a number is its text: 1 and 1.0 are "1".
    known : collection of int, default=()
        The features that contain text for a model, or in other rows of the client. Texts there stay
        text if they are all numbers.
    **checks
        Additional arguments of `sklearn.utils.check_array`.

    Raises
    ------
    ValueError
        When it is no table, or a column contains anything else.

    Examples
    --------
    >>> table = read_table(pd.DataFrame({"age": [41, None], "sex": ["m", "f"]}))
    >>> table.numbers.tolist(), table.texts
    ([[41.0, nan], [nan, nan]], {1: array(['m', 'f'], dtype=object)})
    """
    texts = _text_columns(X, known)
    if not texts:
        return Table(check_rows(X, **checks), {}, feature_names(X))
    read = read_columns(_spelled(X.iloc[:, texts]), [i for i, f in enumerate(texts) if f in known])
    columns = dict(zip(texts, read.columns, strict=True))
    frame = X.copy()
    frame.columns = range(X.shape[1])
    for f, column in columns.items():
        frame[f] = np.nan if column.dtype == object else column
    names = feature_names(X)
    if names:
        frame.columns = list(names)
    found = {f: column for f, column in columns.items() if column.dtype == object}
    return Table(check_rows(frame, **checks), found, names, read.identifiers)


def _numbers_of(known: Sequence[str]) -> dict[str | None, float]:
    """Return the number of each category.

    A model of before, or a category of text, may be "1.0"; the number 1 is this category, too,
    unless there is a "1". Its accents may be apart from the letters. A schema may have "true",
    which is "True" in a table.
    """
    numbers: dict[str | None, float] = {
        text.removesuffix(".0"): number
        for number, text in enumerate(known)
        if text.endswith(".0") and text[:-2].removeprefix("-").isdecimal()
    }
    numbers |= {
        TRUTH[text.lower()]: number for number, text in enumerate(known) if text.lower() in TRUTH
    }
    numbers |= {composed(text): number for number, text in enumerate(known)}
    return numbers | {text: number for number, text in enumerate(known)}


def spelled(value: Any) -> str:
    """Return the text of a category, the same for 1, 1.0 and ``Decimal(1)``.

    Examples
    --------
    >>> spelled(1), spelled(1.0), spelled(1.5), spelled("1.0"), spelled(True)
    ('1', '1', '1.5', '1.0', 'True')
    """
    is_number = isinstance(value, Real | Decimal) and not isinstance(value, bool | np.bool_)
    if is_number and abs(value) < 2**63 and value == int(value):
        return str(int(value))
    return str(value)


def _spelled(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the categories that are numbers as text, one spelling per number."""
    places = [
        j
        for j, dtype in enumerate(frame.dtypes)
        if isinstance(dtype, pd.CategoricalDtype)
        and not all(isinstance(one, str) for one in dtype.categories)
    ]
    if not places:
        return frame
    names, frame = frame.columns, frame.copy()
    frame.columns = pd.RangeIndex(len(names))
    for j in places:
        texts = frame[j].astype(object).map(spelled, na_action="ignore")
        frame[j] = texts.astype("category")
    frame.columns = names
    return frame


def _number_in(text: str | None) -> float:
    """Return the number that a text contains; NaN if it is none that a client accepts."""
    try:
        number = float(text or "nan")
    except ValueError:
        return np.nan
    return number if abs(number) <= MAX_VALUE else np.nan


def _text_of(number: np.float32) -> str | None:
    """Return a number as the text of a category, None for a gap.

    Integers from 2**24 on are rounded as float32, so that they are the text of no category.
    """
    if np.isnan(number):
        return None
    return spelled(number) if abs(number) < 2**24 else f"about {number}"


def _text_columns(X: Any, known: Collection[int]) -> list[int]:
    """Return the positions of the columns of a DataFrame that contain categories or texts."""
    if not isinstance(X, pd.DataFrame):
        return []
    return [f for f in range(X.shape[1]) if _is_text(X.iloc[:, f], f in known)]


def _is_text(column: pd.Series, known: bool) -> bool:
    if isinstance(column.dtype, pd.CategoricalDtype):
        return True
    if not (pd.api.types.is_object_dtype(column) or pd.api.types.is_string_dtype(column)):
        return False
    texts = pd.Series([value for value in column if isinstance(value, str)], dtype=object)
    return known or bool(pd.to_numeric(texts, errors="coerce").isna().any())


def listed(which: Iterable[int], names: Sequence[str]) -> str:
    """Return features as text: by their names, or by their numbers if they have none.

    Examples
    --------
    >>> listed([1], ("age", "town")), listed([0, 1], ())
    ("'town'", '0, 1')
    """
    return ", ".join(repr(names[f] if names else f) for f in which)


def unknown_categories(table: Table, levels: Levels) -> list[str]:
    """Return one text per feature with categories that the model does not have.

    Parameters
    ----------
    table : Table
    levels : tuple of tuple of str or None
        The categories of each feature of the model.

    Examples
    --------
    >>> table = read_table(pd.DataFrame({"ward": ["a", "q", "r"]}))
    >>> unknown_categories(table, (("a", "b"),))[0][:66]
    "feature 'ward' contains 'q', 'r', categories that the training did"
    """
    return [
        f"feature {listed([f], table.names)} contains"
        f" {printable(', '.join(map(repr, texts)), MAX_SHOWN)}, categories that the training did"
        " not have, or that clients withheld as rare: such rows count as the withheld ones, and"
        " without any they go left at every split by it, so that their predictions mean little"
        for f, texts in table.unknown(levels).items()
    ]


def check_least_count(min_category_count: int) -> int:
    """Return the least count of rows of a category that a client names; raise ValueError."""
    if min_category_count < 1:
        raise ValueError(f"min_category_count must be at least 1; got {min_category_count}")
    return min_category_count


def row_hashes(table: Table) -> Floats32:
    """Return numbers (n_rows, n_features) that are equal for equal rows of any client."""
    rows = table.numbers.copy()
    for f, column in table.texts.items():
        present = [np.nan if text is None else zlib.crc32(text.encode()) >> 8 for text in column]
        rows[:, f] = present
    return rows


# Messages ---------------------------------------------------------------------------------------


class LevelCounts(Message):
    """The categories of some features, one feature after the other, and the rows with each.

    ``others`` are the rows of each feature whose categories are withheld.
    """

    discloses = (
        "every category that a client has, except rare ones that it withholds, and the number of"
        " its rows with each"
    )
    sizes: Annotated[np.ndarray, Array("int64", ("features",), ge=0, le=MAX_CATEGORIES)]
    categories: tuple[Category, ...]
    counts: Annotated[np.ndarray, Array("int64", ("categories",), ge=1, le=2**40)]
    others: Annotated[np.ndarray, Array("int64", ("features",), ge=0, le=2**40)]


class CountLevels(Message):
    """Count your rows with each category of these features.

    Withhold a category with fewer than ``min_count`` rows.
    """

    discloses = "the features that contain text at any client"
    effortless = ("min_count",)
    reply = LevelCounts
    features: Annotated[np.ndarray, Array("int64", ("features",), ge=0, below=OF_CLIENT)]
    min_count: Annotated[int, msgspec.Meta(ge=1, le=2**40)]

    def accept(self, reply: Message) -> LevelCounts:
        """Raise MessageError unless the categories of each feature are sorted and distinct."""
        assert isinstance(reply, LevelCounts)
        if len(reply.sizes) != len(self.features):
            raise MessageError(f"{len(reply.sizes)} features, {len(self.features)} were requested")
        if not reply.sizes.sum() == len(reply.categories) == len(reply.counts):
            raise MessageError("the sizes do not add up to the categories")
        if (reply.counts < self.min_count).any():
            raise MessageError(f"a category with fewer than {self.min_count} rows")
        for categories in split(reply.categories, reply.sizes):
            if list(categories) != sorted(set(categories)):
                raise MessageError("the categories of a feature must be sorted and distinct")
        return reply


def count_categories(table: Table, request: CountLevels, min_count: int) -> LevelCounts:
    """Return the reply of a client with these rows.

    Raises
    ------
    ValueError
        When the client has no such feature, or a feature has too many categories.
    """
    names: list[str] = []
    sizes, counts, others = [], [], []
    for f in request.features.tolist():
        if f >= table.numbers.shape[1]:
            raise ValueError(f"feature {f} of a client with {table.numbers.shape[1]} features")
        values = [text for text in table.texts.get(f, ()) if text is not None]
        found, n_rows = np.unique(np.array(values, object), return_counts=True)
        shown = n_rows >= max(min_count, request.min_count)
        if shown.sum() > MAX_CATEGORIES:
            raise ValueError(
                f"feature {listed([f], table.names)} must have at most {MAX_CATEGORIES} categories;"
                f" got {shown.sum()}: leave the column out"
            )
        names += found[shown].tolist()
        sizes.append(shown.sum())
        counts.append(n_rows[shown])
        others.append(n_rows[~shown].sum())
    return LevelCounts(
        sizes=np.array(sizes, np.int64),
        categories=tuple(names),
        counts=np.concatenate([np.empty(0, np.int64), *counts]).astype(np.int64),
        others=np.array(others, np.int64),
    )


# The server -------------------------------------------------------------------------------------


def agree_on_kinds(described: Mapping[str, Any]) -> list[int]:
    """Return the features that contain text.

    Parameters
    ----------
    described : mapping of str to object
        One object per client with ``kinds``, as in `Table`, ``n_features`` and ``features``.

    Raises
    ------
    Disagreement
        When a feature contains numbers at one client and text at another.
    """
    if not any(one.kinds for one in described.values()):
        return []
    first = next(iter(described.values()))
    names = next((one.features for one in described.values() if one.features), ())
    texts = []
    for f in range(first.n_features):
        kinds = {client: one.kinds[f] if one.kinds else NUMBER for client, one in described.items()}
        if agree_on_kind("feature", names[f] if names else f, kinds) == TEXT:
            texts.append(f)
    return texts


def agree_on_categories(
    texts: Sequence[int], described: Replies, min_count: int, start: Levels
) -> Flow[tuple[Levels, dict[int, int]]]:
    """Return a flow that agrees on the categories of the features ``texts``.

    Parameters
    ----------
    texts : sequence of int
        The features that contain text.
    described : Replies
        The clients' descriptions, with ``n_rows`` and ``n_features``.
    min_count : int
        Clients withhold categories with fewer rows.
    start : sequence of tuple of str or None
        The categories of the model that a run continues. They stay, and further ones count as
        other texts.

    Returns
    -------
    levels : tuple of tuple of str or None
    n_numbers : dict of int to int
        The count of different numbers that rows have, per feature: the categories, and 1 if there
        are other texts.
    """
    if not texts:
        return start, {f: len(known) for f, known in enumerate(start) if known is not None}
    request = CountLevels(np.array(texts, np.int64), min_count)
    replies = yield request
    replies = yield from exclude(replies, _contradictions(replies, described))
    n_features = next(iter(described.values())).n_features
    names = next((one.features for one in described.values() if one.features), ())
    levels: list[tuple[str, ...] | None] = list(start or (None,) * n_features)
    n_numbers = {f: len(known) for f, known in enumerate(levels) if known is not None}
    for i, f in enumerate(texts):
        reported = {
            text for reply in replies.values() for text in split(reply.categories, reply.sizes)[i]
        }
        known = tuple(sorted(reported)) if not start else start[f] or ()
        if len(known) > MAX_CATEGORIES:
            raise ValueError(
                f"feature {listed([f], names)} must have at most {MAX_CATEGORIES} categories; the"
                f" clients have"
                f" {len(known)}: leave the column out"
            )
        has_others = any(reply.others[i] for reply in replies.values()) or reported - set(known)
        levels[f] = known
        n_numbers[f] = len(known) + bool(has_others)
    return tuple(levels), n_numbers


def _contradictions(replies: Replies, described: Replies) -> dict[str, str]:
    """Return the reason to exclude each client whose counts do not fit its count of rows."""
    reasons = {}
    for name, reply in replies.items():
        if name not in described:
            reasons[name] = "LevelCounts from a client that declined to describe its rows"
            continue
        n_rows = described[name].n_rows
        counts = [of.sum() for of in split(reply.counts, reply.sizes)]
        if any(total > n_rows for total in np.array(counts) + reply.others):
            reasons[name] = f"LevelCounts.counts must sum to at most n_rows={n_rows}"
    return reasons
