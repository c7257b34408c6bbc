"""Every kind of content at every entry point: the value that is read, or the text of the error."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from fedlib import (
    FederatedKMeans,
    FederatedPipeline,
    FederatedSummary,
    FederatedXGBClassifier,
    FederatedXGBRegressor,
    HorizontalDBSCAN,
    Schema,
)
from fedlib.boosting.categories import read_table
from fedlib.core.columns import read_columns
from fedlib.core.points import check_points
from fedlib.core.targets import read_classes, read_ids, read_targets, read_weights

BIG = 2**53 + 1  # no float64 equals it
DAY = datetime.date(2020, 1, 31)
NAN = np.nan


def objects(*values):
    """Return a column of objects."""
    return pd.Series(list(values), dtype=object)


def coded(*values):
    """Return a column of pandas' categories."""
    return pd.Series(pd.Categorical(objects(*values)))


KINDS = {
    "None": objects(1.0, None),
    "NaN": pd.Series([1.0, NAN]),
    "NaT": objects(1.0, pd.NaT),
    "NA": pd.Series([1, None], dtype="Int64"),
    "empty text": objects(1.0, ""),
    "masked": np.ma.array([1.0, 7.0], mask=[False, True]),
    "text": objects("a", "b "),
    "mixed": objects(1, "a"),
    "1 and 1.0": objects(1, 1.0),
    "categories 1 and 1.0": coded(1, 1.0),
    "categories": coded("a", "b"),
    "float32": pd.Series([1, 2], dtype="float32"),
    "large float32": pd.Series([2**24, 2], dtype="float32"),
    "Decimal": objects(Decimal("1.0"), Decimal(2)),
    "Decimal NaN": objects(Decimal(1), Decimal("NaN")),
    "large int": pd.Series([BIG, 2]),
    "large Int64": pd.Series([BIG, 2], dtype="Int64"),
    "large uint64": pd.Series([2**64 - 1, 2], dtype="uint64"),
    "large object": objects(2**70, 2),
    "large Decimal": objects(Decimal(BIG), Decimal(2)),
    "large text": objects(str(BIG), "2"),
    "objects": objects(1, 2),
    "bytes": objects(b"1", b"2"),
    "dates": pd.Series(pd.to_datetime([DAY, DAY])),
    "date objects": objects(DAY, DAY),
    "date texts": objects("2020-01-31", "2020-01-31"),
    "durations": pd.Series(pd.to_timedelta(["1D", "2D"])),
    "infinity": pd.Series([np.inf, 1.0]),
    "infinite text": objects("inf", "1"),
    "sparse": pd.Series(pd.arrays.SparseArray([0, 1])),
    "truth": pd.Series([True, False]),
    "truth objects": objects(True, False),
    "truth and numbers": objects(True, 2),
    "truth texts": objects("TRUE", "false"),
    "complex": pd.Series([1j, 2]),
    "lists": objects([1], [2]),
    "intervals": pd.Series(pd.interval_range(0, 2)),
    "zeros": objects("007", "010"),
    "underscores": objects("1_0", "2_0"),
    "number texts": objects("1", " 2.5"),
    "U+0000": objects("a\0", "a"),
    "surrogate": objects("\ud800", "a"),
    "not ASCII": objects("é", "日本"),
    "words": objects("1", "n/a"),
}
NO_VALUE = "column '.' must contain finite numbers, got no value in row 2; FederatedPipeline"
NOT_NUMBERS = "column 'c' must contain numbers, got {} in row {}; FederatedPipeline"
LARGE = (
    r"column 'c' must contain integers within ±2\*\*53, .* in row 1; identifiers are no features"
)
BOTH = "column 'c' must contain either numbers or text, got both, such as {}; leave"
BYTES = r"column 'c' must contain numbers or text, got bytes; decode them with X\['c'\]"
DATES = "column 'c' must contain numbers or text, got .*; replace dates by numbers"
INFINITE = "must contain (finite )?numbers.*, got inf in row 1; replace it by a number or a gap"
COMPLEX = "column 'c' must contain numbers or text, got complex numbers; write the real"
TYPE = "column 'c' must contain numbers or text, got values of the type {}.*; convert them"
CHARACTERS = r"must be text of Unicode characters other than U\+0000; row 1 has another: read the"
ZERO = "column 'c' contains '007' in row 1, whose first zero a number does not have; write"

# What is the same for numbers, and for features that may be text, is here; `EXPECTED` has the rest.
REFUSED = {
    "mixed": BOTH.format("'a'"),
    "bytes": BYTES,
    "dates": DATES,
    "date objects": DATES,
    "date texts": DATES,
    "durations": DATES,
    "infinity": INFINITE,
    "truth and numbers": BOTH.format("'True'"),
    "complex": COMPLEX,
    "lists": TYPE.format("list"),
    "intervals": TYPE.format("interval"),
} | dict.fromkeys(("large int", "large Int64", "large uint64", "large object"), LARGE)
REFUSED["large Decimal"] = LARGE
NUMBERS = {
    "1 and 1.0": [1.0, 1.0],
    "float32": [1.0, 2.0],
    "large float32": [2.0**24, 2.0],
    "Decimal": [1.0, 2.0],
    "objects": [1.0, 2.0],
    "sparse": [0.0, 1.0],
}
WITH_GAPS = ("None", "NaN", "NaT", "NA", "empty text", "masked", "words", "Decimal NaN")
GAPS = {kind: [1.0, NAN] for kind in WITH_GAPS}
ONES = {"truth": [1.0, 0.0], "truth objects": [1.0, 0.0]}
TRUTH = {"truth": ["True", "False"], "truth objects": ["True", "False"]}
TEXTS = {
    "text": ["a", "b"],
    "categories": ["a", "b"],
    "categories 1 and 1.0": ["1", "1"],
    "truth texts": ["True", "False"],
    "underscores": ["1_0", "2_0"],
    "not ASCII": ["é", "日本"],
    "U+0000": CHARACTERS,
    "surrogate": CHARACTERS,
}
READ = {"number texts": [1.0, 2.5], "zeros": ZERO, "large text": LARGE, "infinite text": INFINITE}

EXPECTED = {
    "points": REFUSED
    | NUMBERS
    | dict.fromkeys(GAPS, NO_VALUE)
    | ONES
    | READ
    | {
        "mixed": NOT_NUMBERS.format("'a'", 2),
        "text": NOT_NUMBERS.format("'a'", 1),
        "categories": NOT_NUMBERS.format("'a'", 1),
        "categories 1 and 1.0": [1.0, 1.0],
        "truth texts": NOT_NUMBERS.format("'TRUE'", 1),
        "underscores": NOT_NUMBERS.format("'1_0'", 1),
        "not ASCII": NOT_NUMBERS.format("'é'", 1),
        "U+0000": NOT_NUMBERS.format(".*", 1),
        "surrogate": NOT_NUMBERS.format(".*", 1),
    },
    "boosting": REFUSED | NUMBERS | GAPS | ONES | READ | TEXTS,
    "columns": REFUSED
    | NUMBERS
    | GAPS
    | TRUTH
    | TEXTS
    | {
        "number texts": ["1", "2.5"],
        "zeros": ["007", "010"],
        "large text": [str(BIG), "2"],
        "infinite text": ["inf", "1"],
    },
}
NO_CLASS = "y has no class in 1 row, row 2: drop this row"
NO_ID = "ids have no identifier in 1 row, row 2: leave this row out"
CLASS_DATES = "got a date in row 1: convert dates and durations to text or numbers"
DECODE = "got bytes in row 1: decode them to text"
EXPECTED["classes"] = (
    dict.fromkeys(GAPS, NO_CLASS)
    | NUMBERS
    | TEXTS
    | dict.fromkeys(("dates", "date objects", "durations"), CLASS_DATES)
    | {
        "words": ["1", "n/a"],
        "mixed": "y must be either text or numbers; got both, such as 1 in row 1 and 'a' in row 2",
        "categories 1 and 1.0": [1, 1],
        "Decimal": [1, 2],
        "objects": [1, 2],
        "sparse": [0, 1],
        "large int": [BIG, 2],
        "large Int64": [BIG, 2],
        "large Decimal": [BIG, 2],
        "large uint64": [2**64 - 1, 2],
        "large object": "y must contain integers within 64 bits; got larger ones: convert all to",
        "large text": [str(BIG), "2"],
        "bytes": DECODE,
        "date texts": ["2020-01-31", "2020-01-31"],
        "infinity": "y must be finite; got inf in row 1: drop",
        "infinite text": ["inf", "1"],
        "truth": [True, False],
        "truth objects": [True, False],
        "truth and numbers": [1, 2],
        "truth texts": "y must have truth values in one spelling; got TRUE, true: convert",
        "complex": "y must be text or numbers; got complex in row 1: convert",
        "lists": "y must be text or numbers; got list in row 1: convert",
        "intervals": "y must be text or numbers; got Interval in row 1: convert",
        "zeros": ["007", "010"],
        "number texts": ["1", "2.5"],
    }
)
NO_INTEGER = "ids must be text or integers; got a number that is no integer in row 1"
NO_TRUTH = "ids must be text or integers; got a truth value in row 1: convert it to text"
REPEATED = "ids must identify the rows, but 1 of them occur more than once, the first in row 1"
EXPECTED["identifiers"] = (
    dict.fromkeys(GAPS, NO_ID)
    | EXPECTED["classes"]
    | {kind: [str(int(value)) for value in values] for kind, values in NUMBERS.items()}
    | dict.fromkeys([kind for kind in GAPS if kind != "words"], NO_ID)
    | dict.fromkeys(("truth", "truth objects", "truth and numbers"), NO_TRUTH)
    | {kind: [str(BIG), "2"] for kind in ("large int", "large Int64", "large Decimal")}
    | {
        "1 and 1.0": REPEATED,
        "categories 1 and 1.0": REPEATED,
        "date texts": REPEATED,
        "mixed": ["1", "a"],
        "truth texts": ["TRUE", "false"],
        "large float32": "got float32 beyond the integers that are all exact in it",
        "large uint64": [str(2**64 - 1), "2"],
        "large object": [str(2**70), "2"],
        "infinity": NO_INTEGER,
        "complex": "ids must be text or integers; got complex in row 1: convert it to text",
        "lists": "ids must be text or integers; got list in row 1: convert it to text",
        "intervals": "ids must be text or integers; got Interval in row 1: convert it to text",
    }
)


def frame(content):
    """Return a table with a column ``c``; a masked array has no names."""
    if isinstance(content, np.ma.MaskedArray):
        return np.ma.column_stack([content, np.ma.arange(len(content)) + 0.0])
    return pd.DataFrame({"c": content, "x": np.arange(float(len(content)))})


def of_boosting(content):
    table = read_table(frame(content))
    return table.texts[0] if 0 in table.texts else table.numbers[:, 0]


READERS = {
    "points": lambda content: check_points(frame(content))[:, 0],
    "boosting": of_boosting,
    "columns": lambda content: read_columns(frame(content)).columns[0],
    "classes": lambda content: read_classes(content, n_rows=2),
    "identifiers": lambda content: np.array(read_ids(content, 2), object),
}
PAIRS = [(reader, kind) for reader in READERS for kind in KINDS]


@pytest.mark.parametrize(("reader", "kind"), PAIRS)
def test_a_kind_is_read_or_refused_with_column_and_remedy(reader, kind):
    expected = EXPECTED[reader][kind]
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            READERS[reader](KINDS[kind])
    else:
        values = READERS[reader](KINDS[kind]).tolist()
        assert repr(values) == repr(expected)  # which tells 1 from "1" and from True


# The entry points use these readers, so each kind is refused there with the same text -------------


def supervised(estimator):
    return lambda X: estimator.fit([(X, np.arange(2.0) % 2)])


def applied(type, **field):
    schema = Schema({"schema": {"fields": [{"name": "c", "type": type, **field}]}})
    return lambda X: schema.apply(X)[0].X["c"].tolist()


KMEANS = FederatedKMeans(1, method="one_shot")  # takes tables of one row, too
FITS = {
    "points": [
        lambda X: HorizontalDBSCAN(1.0, 1).fit([X]),
        lambda X: clone(KMEANS).fit([X]),
        lambda X: clone(KMEANS).fit([pd.DataFrame({"c": [0.0, 1.0], "x": 0.0})]).predict(X),
    ],
    "boosting": [
        supervised(FederatedXGBClassifier(1, method="histogram")),
        supervised(FederatedXGBRegressor(1, method="histogram")),
    ],
    "columns": [
        lambda X: FederatedSummary().fit([X]),
        lambda X: FederatedPipeline(clone(KMEANS), encode="one_hot", impute="mean").fit([X]),
    ],
}


@pytest.mark.filterwarnings("ignore:feature 'c' extends over")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", FITS)
def test_every_fit_refuses_the_same_kinds(reader, kind):
    expected = EXPECTED[reader][kind]
    for fit in FITS[reader]:
        if isinstance(expected, str):
            with pytest.raises(ValueError, match=expected):
                fit(frame(KINDS[kind]))
        elif len(set(map(str, expected))) == 2 or reader != "points":
            fit(frame(KINDS[kind]))


@pytest.mark.parametrize("kind", ["Decimal", "objects", "float32", "1 and 1.0", "truth objects"])
def test_targets_and_weights_are_numbers_of_any_type(kind):
    expected = (NUMBERS | ONES)[kind]
    assert read_targets(KINDS[kind]).tolist() == expected
    assert read_weights(KINDS[kind]).tolist() == expected


# A schema ---------------------------------------------------------------------------------------

ODD = r"column 'c': {} cells? (is|are) not of the column's type"
BY_SCHEMA = [
    ("number", {}, "Decimal", [1.0, 2.0]),
    ("number", {}, "truth", [1.0, 0.0]),
    ("number", {}, "truth objects", [1.0, 0.0]),
    ("number", {}, "infinity", ODD.format(1)),
    ("number", {}, "bytes", "column 'c' contains bytes, which can be text of any encoding; decode"),
    ("number", {}, "surrogate", "column 'c' must be text of Unicode characters"),
    ("number", {}, "lists", ODD.format(2)),
    *(
        ("integer", {}, kind, ODD.format(1))
        for kind in KINDS
        if kind.startswith("large ") and kind != "large float32"
    ),
    ("string", {}, "Decimal", ["1", "2"]),
    ("string", {}, "1 and 1.0", ["1", "1"]),
    ("string", {}, "categories 1 and 1.0", ["1", "1"]),
    ("string", {}, "large int", [str(BIG), "2"]),
    ("string", {}, "large Int64", [str(BIG), "2"]),
    ("string", {}, "large uint64", [str(2**64 - 1), "2"]),
    ("string", {}, "large object", [str(2**70), "2"]),
    ("string", {}, "large Decimal", [str(BIG), "2"]),
    ("string", {}, "truth objects", ["true", "false"]),
    ("integer", {"constraints": {"enum": [1, 2]}}, "objects", ["1", "2"]),
    ("integer", {"constraints": {"enum": [1, 2]}}, "float32", ["1", "2"]),
    ("boolean", {}, "truth", [1.0, 0.0]),
    ("boolean", {}, "truth objects", [1.0, 0.0]),
    ("date", {}, "dates", [18292.0, 18292.0]),
    ("date", {}, "date objects", [18292.0, 18292.0]),
    ("date", {}, "date texts", [18292.0, 18292.0]),
    ("date", {}, "truth", ODD.format(2)),
    ("date", {}, "truth objects", ODD.format(2)),
    ("date", {}, "durations", "column 'c' contains durations; declare .* number and a unit"),
]


@pytest.mark.parametrize(("type", "field", "kind", "expected"), BY_SCHEMA)
def test_a_schema_reads_kinds_by_the_type_of_the_field(type, field, kind, expected):
    content = pd.DataFrame({"c": KINDS[kind]})
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            applied(type, **field)(content)
    else:
        assert repr(applied(type, **field)(content)) == repr(expected)


@pytest.mark.parametrize("kind", ["M8[ns]", "m8[ns]"])
def test_dates_and_durations_in_nanoseconds_are_no_integers(kind):
    values = np.array([1, 2], kind)
    for read in (read_classes, lambda given: read_ids(given, 2)):
        for given in (values, pd.Series(values)):
            with pytest.raises(ValueError, match="got a date in row 1: convert"):
                read(given)


def test_truth_values_as_classes_have_one_spelling():
    X, words = np.arange(8.0).reshape(4, 2), np.array(["TRUE", "FALSE"] * 2)
    parts = [(X, words), (X, words), (X, np.char.title(words))]
    with pytest.raises(
        ValueError, match="on how truth values are written: TRUE at .*; True at '2'"
    ):
        FederatedXGBClassifier(1, method="histogram").fit(parts, min_clients=3)
    model = FederatedXGBClassifier(1, method="histogram").fit(parts, min_clients=2)
    assert model.classes_.tolist() == ["FALSE", "TRUE"]


def test_dates_of_arrow_are_read_by_a_schema():
    pyarrow = pytest.importorskip("pyarrow")
    column = pd.Series([DAY, None], dtype=pd.ArrowDtype(pyarrow.date32()))
    assert repr(applied("date")(pd.DataFrame({"c": column}))) == repr([18292.0, NAN])


# Habits of scikit-learn -------------------------------------------------------------------------


def test_habits():
    X = np.array([[0.0, 1.0], [0.1, 1.0], [5.0, 2.0]])
    with pytest.raises(ValueError, match=r"got one table; for one client pass \[X\]"):
        HorizontalDBSCAN(1.0, 1).fit(X)
    for parts in ({"north": X, "south": X}, pd.Series({"north": X, "south": X})):
        assert len(HorizontalDBSCAN(1.0, 1).fit(parts).labels_) == 2
    named = pd.DataFrame(X, columns=["a", "b"], index=[7, 8, 9])
    model = FederatedPipeline(FederatedKMeans(1, method="one_shot"), scale="standard").fit([named])
    assert model.transform(named).index.tolist() == [7, 8, 9]
    assert model.predict(named[:0]).shape == (0,)


def test_names_of_one_hot_columns_that_collide_are_distinct():
    rows = pd.DataFrame({"a": ["b_c", "d"] * 10, "a_b": ["c", "e"] * 10, "x": np.arange(20.0)})
    model = FederatedPipeline(FederatedKMeans(2), encode="one_hot").fit([rows])
    names = model.transform(rows).columns
    assert len(names) == 5
    assert names.is_unique
