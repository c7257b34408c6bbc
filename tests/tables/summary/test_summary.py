"""Summaries: by hand, against pandas on the pooled table, and with clients that fail or lie."""

from functools import partial

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import fedlib
from fedlib.core.aggregation import Disagreement
from fedlib.core.messages import Declined, MessageError, encode
from fedlib.core.protocol import TooFewClients
from fedlib.sites import models
from fedlib.tables.summary import (
    BinCounts,
    CategoryCounts,
    ColumnDescription,
    CountBins,
    CountCategories,
    DescribeColumns,
    Extremes,
    FindExtremes,
    SummaryClient,
    SumValues,
    ValueMoments,
)
from fedlib.tables.summary.messages import TableView
from fedlib.testing import Recorder

# These tests compare all categories with those of the pooled rows.
FederatedSummary = partial(fedlib.FederatedSummary, min_category_count=1)

VIEW = TableView()


def tables(seed=0, sizes=(60, 1, 0, 41)):
    """Return tables with columns of different scales, gaps and text."""
    rng = np.random.default_rng(seed)
    parts = []
    for i, n in enumerate(sizes):
        frame = pd.DataFrame(
            {
                "age": rng.integers(18, 90, n).astype(float),
                "income": rng.lognormal(8 + i, 2, n),
                "shifted": 1e6 + rng.normal(size=n),
                "constant": np.full(n, 3.0),
                "sex": rng.choice(["m", "f"], n),
                "town": rng.choice(["Łódź", "Oslo", "Ulm"][: i + 1], n),
            }
        )
        frame.loc[rng.random(n) < 0.2, "age"] = np.nan
        frame.loc[rng.random(n) < 0.1, "sex"] = None
        parts.append(frame)
    return parts


def test_a_toy_by_hand():
    """Two sites: 1, 3 and a gap; 5, 7. The mean is 4, the squares 9 + 1 + 1 + 9 = 20."""
    model = FederatedSummary(quantiles=[0, 0.5, 1], n_bins=2).fit([[[1], [None], [3]], [[5], [7]]])
    row = model.to_frame().loc["0"]
    assert row[["count", "missing", "mean", "min", "0%", "50%", "100%", "max"]].tolist() == [
        4, 1, 4.0, 1.0, 1.0, 4.0, 7.0, 7.0,
    ]  # fmt: skip
    assert row["std"] ** 2 == pytest.approx(20 / 3)
    assert model.model_.edges.tolist() == [[1.0, 4.0, 7.0]]
    assert model.model_.histograms.tolist() == [[2, 2]]  # the right edge belongs to the last bin


@pytest.mark.parametrize("seed", range(3))
def test_equal_to_pandas_on_the_pooled_table(seed):
    parts = tables(seed)
    model = FederatedSummary(quantiles=[0.05, 0.25, 0.5, 0.75, 0.95]).fit(parts)
    frame, pooled = model.to_frame(), pd.concat(parts)
    numbers = pooled.select_dtypes("number")
    assert frame["content"].tolist() == ["numbers"] * 4 + ["text"] * 2
    assert frame["count"].tolist() == pooled.count().tolist()
    assert frame["missing"].tolist() == pooled.isna().sum().tolist()
    described = frame.loc[numbers.columns]
    np.testing.assert_allclose(described["mean"], numbers.mean(), rtol=1e-12)
    np.testing.assert_allclose(described["std"], numbers.std(), rtol=1e-12)
    for name, expected in [("min", numbers.min()), ("max", numbers.max())]:
        assert described[name].tolist() == expected.tolist()
    for q in (0.05, 0.25, 0.5, 0.75, 0.95):
        np.testing.assert_allclose(described[f"{100 * q:g}%"], numbers.quantile(q), rtol=1e-15)
    assert not model.model_.rank_errors.any()
    for j, name in enumerate(numbers):
        values = pooled[name].dropna()
        counts, edges = np.histogram(values, 10)
        np.testing.assert_allclose(model.model_.edges[j], edges, rtol=1e-15)
        assert model.model_.histograms[j].tolist() == counts.tolist()
    for name in ("sex", "town"):
        expected = pooled[name].value_counts().sort_index()
        assert model.categories_[name].to_dict() == expected.to_dict()
        assert frame.loc[name, "top"] == expected.idxmax()


column = st.lists(st.none() | st.floats(-1e100, 1e100) | st.integers(-3, 3).map(float), max_size=8)


@settings(max_examples=15)
@given(
    st.lists(column, min_size=1, max_size=4).filter(
        lambda p: any(v is not None for c in p for v in c)
    ),
    st.lists(st.floats(0, 1), min_size=1, max_size=3),
)
def test_quantiles_are_exact_for_any_values(parts, fractions):
    frames = [pd.DataFrame({"x": pd.array(part, "Float64").astype(float)}) for part in parts]
    model = FederatedSummary(quantiles=fractions, n_bins=0).fit(frames)
    values = np.sort([v for part in parts for v in part if v is not None])
    for q, found in zip(fractions, model.model_.quantiles[:, 0], strict=True):
        place = q * (len(values) - 1)
        low, high = values[int(np.floor(place))], values[int(np.ceil(place))]
        assert min(low, high) <= found <= max(low, high)
        if place == int(place):
            assert found == low


@pytest.mark.parametrize("rank_error", [0.001, 0.01, 0.1])
def test_the_error_of_the_rank_is_at_most_the_stated_one(rank_error):
    rng = np.random.default_rng(0)
    parts = [rng.lognormal(i, 2, (1000, 1)) for i in range(3)]
    model = FederatedSummary(rank_error=rank_error, n_bins=0).fit(parts)
    values = np.sort(np.concatenate(parts), axis=None)
    errors = model.model_.rank_errors[:, 0]
    assert (errors <= rank_error * len(values)).all()
    for q, value, error in zip(
        (0.25, 0.5, 0.75), model.model_.quantiles[:, 0], errors, strict=True
    ):
        assert abs(np.searchsorted(values, value) - q * (len(values) - 1)) <= error + 1
    exact = FederatedSummary(n_bins=0).fit(parts)
    assert len(model.ledger_) < len(exact.ledger_)
    assert model.ledger_.bytes < exact.ledger_.bytes


def test_the_conversation():
    """At most 8 rounds for exact quantiles, each of at most 2 kB per rank."""
    model = FederatedSummary(n_bins=5).fit(tables())
    steps = [
        ("DescribeColumns", "ColumnDescription"),
        ("SumValues", "ValueMoments"),
        ("FindExtremes", "Extremes"),
        *[("CountBins", "BinCounts")] * 8,
        ("CountBins", "BinCounts"),  # the histograms
        ("CountCategories", "CategoryCounts"),
    ]
    assert model.ledger_.conversation() == [name for step in steps for name in step]
    replies = [entry.bytes for entry in model.ledger_ if entry.message == "BinCounts"]
    assert max(replies) <= 2 * 3 * 4 * 2048 + 100  # two ranks, three quantiles, four columns


def test_only_what_is_needed_is_asked():
    text = FederatedSummary().fit([[["a"], ["b"]]])
    assert text.ledger_.conversation()[2:] == ["CountCategories", "CategoryCounts"]
    few = FederatedSummary(quantiles=[], n_bins=0, bounds={"0": (0, 9)}).fit([[[1.0], [2.0]]])
    assert few.ledger_.conversation()[2:] == ["SumValues", "ValueMoments"]
    assert np.isnan(few.model_.minima).all()


def test_given_bounds_replace_the_extremes():
    model = FederatedSummary(bounds={"x": (0, 10)}, n_bins=2, quantiles=[]).fit(
        [pd.DataFrame({"x": [1.0, 6.0, 99.0], "y": [1.0, 2.0, 3.0]})]
    )
    assert np.isnan(model.model_.minima).tolist() == [True, False]
    assert model.model_.histograms.tolist() == [[1, 1], [1, 2]]  # 99 lies outside
    with pytest.raises(ValueError, match="bounds must be of columns of the data, 0; got x"):
        FederatedSummary(bounds={"x": (0, 1)}).fit([[[1.0]]])


def test_codes_are_categories_if_they_are_listed():
    model = FederatedSummary(categorical=["code"]).fit([pd.DataFrame({"code": [1, 2, 2]})])
    assert model.categories_["code"].to_dict() == {"1": 1, "2": 2}
    assert FederatedSummary(categorical=[0]).fit([[[1], [7]]]).categories_["0"].tolist() == [1, 1]


def test_rare_categories_are_withheld():
    """Site 0 has Ulm once, which it withholds; site 1 has it twice."""
    parts = [[["Ulm"], ["Oslo"], ["Oslo"]], [["Ulm"], ["Ulm"], ["Bonn"], [None]]]
    recorder = Recorder(clients(A=parts[0], B=parts[1]))
    model = FederatedSummary(min_category_count=2).fit(recorder)
    assert model.categories_["0"].to_dict() == {"Oslo": 2, "Ulm": 2}
    assert model.to_frame().loc["0", ["count", "other"]].tolist() == [6, 2]
    assert b"Bonn" not in recorder.all_bytes
    assert b"Ulm" not in encode(recorder.exchanges[-1].replies["A"])
    ids = pd.DataFrame({"id": pd.Categorical(range(3000))})  # declared as categories
    many = FederatedSummary(min_category_count=2).fit([ids])
    assert many.to_frame().loc["id", ["categories", "other"]].tolist() == [0, 3000]


def test_columns_without_values():
    """At one client they agree with anything; at all clients they have no statistics."""
    parts = [
        pd.DataFrame({"a": [None, None], "b": [None, None], "c": [np.nan, np.nan]}),
        pd.DataFrame({"a": ["x", None], "b": [1.0, 2.0], "c": [None, None]}),
    ]
    frame = FederatedSummary().fit(parts).to_frame()
    assert frame["content"].tolist() == ["text", "numbers", "nothing"]
    assert frame["count"].tolist() == [1, 2, 0]
    assert np.isnan(frame.loc["c", "mean"])
    assert FederatedSummary().fit([np.empty((0, 2))]).to_frame()["count"].tolist() == [0, 0]


def test_values_too_close_for_a_histogram():
    model = FederatedSummary(quantiles=[]).fit([[[1e20], [1e20]]])
    assert model.to_frame().loc["0", "mean"] == 1e20
    assert not model.model_.histograms.any()


def test_the_table_and_the_figure():
    model = FederatedSummary()
    with pytest.raises(NotFittedError):
        model.to_frame()
    with pytest.raises(NotFittedError):
        model.plot()
    assert "FederatedSummary" in model._repr_mimebundle_()["text/html"]
    model.fit(tables())
    shown = model._repr_mimebundle_()
    assert "<table" in shown["text/html"]
    assert "█" in shown["text/html"]
    assert shown["text/plain"] == repr(model)
    figure = model.plot()
    titles = [ax.get_title() for ax in figure.axes]
    assert titles[:2] == [
        f"age ({model.to_frame().loc['age', 'missing']} missing)",
        "income (0 missing)",
    ]
    assert len(figure.axes[0].patches) == 1  # the steps of the histogram
    assert len(figure.axes[4].patches) == 2  # one bar per category


def test_conventions(tmp_path):
    model = FederatedSummary(bounds={"age": (0, 120)}, categorical=["code"])
    assert clone(model).get_params() == model.get_params()
    parts = [pd.DataFrame({"age": [1.0, 2.0], "code": [1, 1]})]
    models.save(model.fit(parts), tmp_path / "summary.json")
    loaded = models.load(tmp_path / "summary.json")
    assert loaded.get_params() == model.get_params()
    pd.testing.assert_frame_equal(loaded.to_frame(), model.to_frame())
    assert not hasattr(model, "labels_")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"quantiles": [1.5]}, "quantiles must be numbers in .0, 1., such as"),
        ({"rank_error": 1.0}, "'rank_error' parameter"),
        (
            {"bounds": {"a": (2, 1)}},
            "bounds of 'a' must be two numbers, the lower below .*got \\(2, 1\\)",
        ),
        ({"bounds": {"a": 3}}, "bounds of 'a' must be two numbers"),
        ({"n_bins": -1}, "'n_bins' parameter"),
        ({"max_categories": 0}, "'max_categories' parameter"),
        ({"categorical": "age"}, "'categorical' parameter"),
    ],
)
def test_bad_parameters(parameters, message):
    """They are rejected before the first message."""
    with pytest.raises(ValueError, match=message):
        FederatedSummary(**parameters).protocol()


# Clients that differ, fail or lie


def clients(**parts):
    return {name: SummaryClient(part) for name, part in parts.items()}


def test_columns_that_differ_are_named_before_the_first_message():
    with pytest.raises(Disagreement, match="column 'sex': numbers at '0'; text at '1'"):
        FederatedSummary().fit([pd.DataFrame({"sex": [0, 1]}), pd.DataFrame({"sex": ["m", "f"]})])
    with pytest.raises(Disagreement, match="the features: 'a', 'b' at '0'; 'b' is missing at '1'"):
        FederatedSummary().fit([pd.DataFrame({"a": [1], "b": [1]}), pd.DataFrame({"a": [1]})])
    day = pd.DataFrame({"day": ["2020-01-31"]})
    with pytest.raises(ValueError, match=r"parts\[1\]: column 'day' must contain numbers or text"):
        FederatedSummary().fit([pd.DataFrame({"day": [1.0]}), day])


def test_the_minority_leaves():
    numbers, text = pd.DataFrame({"sex": [0, 1]}), pd.DataFrame({"sex": ["m", "f"]})
    recorder = Recorder(clients(A=text, B=numbers, C=text))
    model = FederatedSummary().fit(recorder, min_clients=2)
    assert model.ledger_.lost == {"B": "InvalidReply at DescribeColumns, step 1"}
    assert model.categories_["sex"].tolist() == [2, 2]


def test_too_many_categories():
    many = [[f"c{i}"] for i in range(6)]
    model = FederatedSummary(max_categories=5)
    recorder = Recorder(clients(A=[["c0"]], B=many))
    assert model.fit(recorder, min_clients=1).categories_["0"].to_dict() == {"c0": 1}
    assert model.ledger_.lost == {"B": "ValueError at CountCategories, step 2"}
    assert "max_categories=5 categories, got 6; leave it out" in str(recorder.errors["B"])
    with pytest.raises(
        ValueError, match="column '0' must have at most max_categories=5 cat.*got 6"
    ):
        FederatedSummary(max_categories=5).fit([many[:3], many[3:]])


def test_a_client_with_which_there_are_too_many_categories_leaves():
    """Of 3 allowed categories, A and C have 2. With 2 others at B there are 4."""
    parts = {"A": [["f"], ["m"]], "B": [["x"], ["y"], ["m"]], "C": [["f"], ["m"]]}
    summary = FederatedSummary(max_categories=3)
    model = summary.fit(Recorder(clients(**parts)), min_clients=2)
    assert model.ledger_.lost == {"B": "InvalidReply at CountCategories, step 2"}
    assert model.categories_["0"].to_dict() == {"f": 2, "m": 2}
    with pytest.raises(Disagreement, match="at most max_categories=3 categories, got 4"):
        summary.fit(Recorder(clients(**parts)))


def test_too_many_categories_without_a_single_cause():
    """Without B, or without C, there would be 3 categories: nobody is expelled."""
    parts = {"A": [["f"]], "B": [["x"], ["f"], ["y"]], "C": [["f"], ["z"]]}
    summary = FederatedSummary(max_categories=3)
    with pytest.raises(Disagreement, match="at most max_categories=3 categories, got 4") as raised:
        summary.fit(Recorder(clients(**parts)), min_clients=1)
    assert raised.value.minority == []


def result(model):
    return model.to_frame().to_csv(), str(model.model_)


@pytest.mark.parametrize("step", [1, 2, 3, 6, 11, 12, 13])
def test_a_lost_client_has_no_part_in_the_statistics(step):
    """The statistics are computed again, so that all of them describe the same rows."""
    parts = dict(zip("ABCD", tables(), strict=True))
    seen = []

    def fail(request, reply):
        seen.append(request)
        return None if len(seen) == step else reply

    recorder = Recorder(clients(**parts), {"A": fail})
    model = FederatedSummary().fit(recorder, min_clients=3)
    assert list(model.ledger_.lost) == ["A"]
    assert result(model) == result(FederatedSummary().fit([parts[name] for name in "BCD"]))
    seen.clear()
    with pytest.raises(TooFewClients, match="Lost: 'A': "):
        FederatedSummary().fit(Recorder(clients(**parts), {"A": fail}))


def array(field):
    dtype, shape, data = field
    return np.frombuffer(data, dtype).reshape(shape).copy()


def plus_one(name, place=0):
    """Return a lie that adds 1 to one entry of an array."""

    def change(reply):
        value = array(reply[name])
        value.flat[place] += 1
        return {name: value}

    return change


def at(number, change):
    """Return a lie in the reply with this number only."""
    seen = []

    def lie(reply):
        seen.append(reply)
        return change(reply) if len(seen) == number else {}

    return lie


LIES = {
    "more values than rows": ("ColumnDescription", lambda: plus_one("counts", 1)),
    "values in no column": (
        "ColumnDescription",
        lambda: lambda r: {"kinds": 0 * array(r["kinds"]) + 2},
    ),
    "a column less": (
        "ColumnDescription",
        lambda: lambda r: {k: array(r[k])[1:] for k in ("kinds", "counts")} | {"features": []},
    ),
    "text instead of numbers": (
        "ColumnDescription",
        lambda: lambda r: {"kinds": np.array([1, 0, 0, 0, 1, 1], np.uint8)},
    ),
    "moments of other columns": (
        "ValueMoments",
        lambda: lambda r: dict.fromkeys(("means", "remainders", "squares"), np.zeros(1)),
    ),
    "remainders that are no rounding": ("ValueMoments", lambda: plus_one("remainders")),
    "extremes in the wrong order": (
        "Extremes",
        lambda: lambda r: {"minima": array(r["maxima"]) + 1},
    ),
    "other counts in bins": ("BinCounts", lambda: plus_one("counts")),
    "other counts in later bins": ("BinCounts", lambda: at(4, plus_one("counts"))),
    "more values in a histogram": ("BinCounts", lambda: at(9, plus_one("counts", 12))),
    "other counts of categories": ("CategoryCounts", lambda: plus_one("counts")),
    "values that it withholds": ("CategoryCounts", lambda: plus_one("others")),
    "a category twice": (
        "CategoryCounts",
        lambda: lambda r: {"categories": ["f"] * len(r["categories"])},
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_a_liar_leaves(name):
    kind, make = LIES[name]
    lie = make()

    def tamper(request, reply):
        fields = msgspec.msgpack.decode(reply)
        changed = lie(fields) if fields["type"] == kind else {}
        changed = {
            k: [v.dtype.name, v.shape, v.tobytes()] if isinstance(v, np.ndarray) else v
            for k, v in changed.items()
        }
        return msgspec.msgpack.encode(fields | changed)

    parts = dict(zip("ABC", tables(sizes=(30, 40, 30)), strict=True))
    model = FederatedSummary().fit(Recorder(clients(**parts), {"B": tamper}), min_clients=2)
    assert list(model.ledger_.lost) == ["B"]
    assert model.ledger_.lost["B"].startswith("InvalidReply at ")
    assert result(model) == result(FederatedSummary().fit([parts["A"], parts["C"]]))


def test_moments_without_values():
    """A client without values in a column reports 0."""

    def tamper(request, reply):
        moments = ValueMoments(np.array([5.0]), np.zeros(1), np.zeros(1))
        return encode(moments) if msgspec.msgpack.decode(reply)["type"] == "ValueMoments" else reply

    recorder = Recorder(clients(A=[[1.0]], B=[[None]]), {"B": tamper})
    model = FederatedSummary().fit(recorder, min_clients=1)
    assert model.ledger_.lost == {"B": "InvalidReply at SumValues, step 2"}
    assert model.model_.means.tolist() == [1.0]


def test_sharing_after_declining():
    replies = []

    def decline_first(request, reply):
        replies.append(reply)
        return encode(Declined()) if len(replies) == 1 else reply

    recorder = Recorder(clients(A=[[1.0]], B=[[5.0]]), {"B": decline_first})
    model = FederatedSummary().fit(recorder, min_clients=1)
    assert model.ledger_.lost == {"B": "InvalidReply at SumValues, step 2"}
    assert model.model_.means.tolist() == [1.0]


def test_a_passive_client_shares_nothing():
    model = FederatedSummary().fit([[[1.0]], [[5.0]]], passive=[1])
    assert model.model_.means.tolist() == [1.0]
    assert {e.message for e in model.ledger_ if e.sender == "1"} == {"Declined"}


COLUMNS = np.array([0, 1])
KEYS = np.array([0, 0], np.uint64)
COUNTS = np.array([1, 1])


def categories(lengths, names, counts, others=0):
    return CategoryCounts(lengths, tuple(names), counts, 0 * lengths + others)


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (DescribeColumns(*VIEW), ColumnDescription(1, np.zeros(2, np.uint8), COUNTS + 1)),
        (DescribeColumns(*VIEW), ColumnDescription(1, np.zeros(2, np.uint8), COUNTS - 1)),
        (DescribeColumns(*VIEW), ColumnDescription(1, np.zeros(2, np.uint8), COUNTS, ("a",))),
        (SumValues(*VIEW, COLUMNS), ValueMoments(*np.zeros((3, 1)))),
        (FindExtremes(*VIEW, COLUMNS), Extremes(np.zeros(3), np.zeros(3))),
        (FindExtremes(*VIEW, COLUMNS), Extremes(np.ones(2), np.zeros(2))),
        (CountBins(*VIEW, COLUMNS, KEYS, KEYS, 3), BinCounts(np.zeros((2, 2), np.int64))),
        (CountCategories(*VIEW, COLUMNS, 9, 1), categories(COUNTS[:1], "a", COUNTS[:1])),
        (CountCategories(*VIEW, COLUMNS, 9, 1), categories(COUNTS, "a", COUNTS[:1])),
        (CountCategories(*VIEW, COLUMNS, 9, 1), categories(COUNTS, "abc", COUNTS)),
        (CountCategories(*VIEW, COLUMNS, 1, 1), categories(2 * COUNTS, "abab", np.ones(4, int))),
        (CountCategories(*VIEW, COLUMNS, 2, 1), categories(2 * COUNTS, "abba", np.ones(4, int))),
        (CountCategories(*VIEW, COLUMNS, 9, 2), categories(COUNTS, "ab", COUNTS)),
        (CountCategories(*VIEW, COLUMNS, 9, 1), categories(COUNTS, "ab", COUNTS, 1)),
    ],
)
def test_impossible_replies_are_refused(request_, reply):
    with pytest.raises(MessageError):
        request_.accept(reply)


def test_an_interval_must_not_be_empty():
    with pytest.raises(MessageError, match=r"CountBins\.low must be at most CountBins\.high"):
        CountBins(*VIEW, COLUMNS, KEYS + np.uint64(1), KEYS, 3)
