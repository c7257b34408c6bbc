"""Summaries with a schema: open, masked and noisy runs equal those of the pooled rows."""

import numpy as np
import pandas as pd
import pytest

from fedlib import FederatedSummary, Schema
from fedlib.core.columns import read_columns
from fedlib.core.in_process import InProcess
from fedlib.core.messages import MessageError, decode, encode
from fedlib.protection.privacy import Privacy
from fedlib.sites.site import make_client
from fedlib.tables.summary.client import SummaryClient
from fedlib.tables.summary.from_schema import (
    CountKnownCategories,
    CountValues,
    KnownCategoryCounts,
    ValueCounts,
    count_known,
)
from fedlib.tables.summary.messages import SumColumns, TableView
from fedlib.tables.summary.private import SumAgreedColumnsNoisily
from fedlib.testing import Recorder, seeded_noise

VIEW = TableView()
NONE = np.empty(0, np.int64)


def field(name, kind, own=(), **constraints):
    return {"name": name, "type": kind, "constraints": constraints, "fedlib": dict(own)}


FIELDS = [
    field("age", "integer", {"outside": "clip"}, minimum=0, maximum=100),
    field("sex", "string", {"outside": "other"}, enum=["m", "f"]),
    field("ok", "boolean"),
    field("lab", "number", {"outside": "missing"}, minimum=-5, maximum=5),
]
SCHEMA = Schema({"schema": {"fields": FIELDS}})
PROTECTED = {"quantiles": (), "schema": SCHEMA}


def site(seed, n=60):
    """Return a raw table with gaps and values outside, its columns in another order."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "sex": rng.choice(["m", "f ", "x", ""], n),
            "lab": np.where(rng.random(n) < 0.2, np.nan, rng.normal(0, 1, n)),
            "ok": rng.choice(["true", "False", ""], n),
            "age": rng.integers(-20, 120, n),
        }
    )


PARTS = {name: site(seed) for seed, name in enumerate("ABCD")}
POOLED = pd.concat([SCHEMA.apply(part)[0].X for part in PARTS.values()])


def assert_moments(model, **tolerance):
    table = model.to_frame()
    numbers = POOLED[["age", "ok", "lab"]].astype(float)
    np.testing.assert_allclose(table.loc[numbers.columns, "mean"], numbers.mean(), **tolerance)
    np.testing.assert_allclose(table.loc[numbers.columns, "std"], numbers.std(), **tolerance)
    assert table[["min", "max"]].isna().all(axis=None)


@pytest.mark.parametrize("options", [{}, {"secure": True, "quantiles": ()}])
def test_a_summary_is_that_of_the_pooled_rows(options):
    model = FederatedSummary(schema=SCHEMA, min_category_count=1, **options).fit(PARTS)
    assert_moments(model, rtol=1e-12)
    assert model.to_frame()["count"].tolist() == POOLED.count().tolist()
    assert model.categories_["sex"].to_dict() == POOLED["sex"].value_counts().to_dict()
    histogram, edges = np.histogram(POOLED["age"], 10, (0, 100))
    assert model.model_.histograms[0].tolist() == histogram.tolist()
    assert model.model_.edges[0].tolist() == edges.tolist()


def test_quantiles_are_those_of_the_pooled_rows():
    model = FederatedSummary(schema=SCHEMA).fit(PARTS)
    expected = POOLED[["age", "lab"]].quantile([0.25, 0.5, 0.75])
    np.testing.assert_array_equal(model.model_.quantiles[:, [0, 3]], expected)


def test_no_request_asks_for_kinds_extremes_or_names_of_categories():
    asked = {"DescribeColumns", "CountCategories", "FindExtremes"}
    model = FederatedSummary(schema=SCHEMA).fit(PARTS)
    assert not asked & {*model.ledger_.conversation()}
    noisy = FederatedSummary(**PROTECTED, epsilon=1.0).fit(PARTS)
    assert noisy.ledger_.conversation() == [
        "DescribeFeatures",
        "Features",
        "SumAgreedColumnsNoisily",
        "NoisyColumnSums",
    ]


def client_of(part, protected=True):
    return SCHEMA.clients(SummaryClient, protected)(part)


@pytest.mark.parametrize("secure", [False, True])
def test_noise_is_small_with_a_large_epsilon(secure):
    with seeded_noise(0):
        model = FederatedSummary(**PROTECTED, secure=secure, epsilon=1e4, delta=1e-6).fit(PARTS)
    assert_moments(model, rtol=0.02, atol=0.05)
    counts = model.categories_["sex"]
    expected = POOLED["sex"].value_counts()
    assert (counts - expected).abs().max() <= 2
    assert list(counts.index) == ["f", "m", "other"]


def test_one_row_changes_the_sums_by_at_most_the_sensitivity():
    client = client_of(PARTS["A"])
    texts, lengths = np.array([1]), np.array([3])
    request = SumAgreedColumnsNoisily(
        Privacy(epsilon=1e9),
        np.array([[0.0, 0.0, -5.0], [100.0, 1.0, 5.0]]),
        4,
        np.array([0, 2, 3]),
        texts,
        lengths,
        ("f", "m", "other"),
    )
    sensitivity = request.sensitivity()
    assert (sensitivity.l1, sensitivity.n_entries) == (14.0, 14)  # 1 row, 3 * 4, 1 category
    whole = client.handle(request).values
    for row in range(30):
        rest = client_of(PARTS["A"].drop(index=row)).handle(request).values
        change = np.round(whole - rest, 3)
        assert 0 < np.abs(change).sum() <= sensitivity.l1
        assert np.count_nonzero(change) <= sensitivity.n_entries


def test_rare_categories_are_withheld_in_open_runs():
    rows = pd.DataFrame({"age": 1, "sex": ["m"] * 7 + ["f"] * 4, "ok": True, "lab": 0.0})
    model = FederatedSummary(schema=SCHEMA).fit([rows, rows])
    assert model.categories_["sex"].to_dict() == {"f": 0, "m": 14, "other": 0}
    assert model.to_frame().loc["sex", ["count", "other", "top"]].tolist() == [22, 8, "m"]


def test_the_groups_of_a_reply_are_those_of_its_counts():
    """Withheld texts are one group: the rows with a value, without those that were counted."""
    client = client_of(pd.DataFrame({"age": 1, "sex": ["m", "m", "f", ""], "ok": 1, "lab": 0.0}))
    request = CountKnownCategories(*VIEW, np.array([1]), np.array([2]), ("f", "m"), 2)
    assert client.handle(request).counts.tolist() == [0, 2]
    assert [groups.tolist() for groups in client.rows_by_known_category(request)] == [[1, 1, 2, -1]]


def test_texts_are_gaps_of_sums():
    """A request for sums of text is answered, so that no error depends on the kind of a column."""
    client = SummaryClient(pd.DataFrame({"a": ["x", "y"], "b": [1.0, 2.0]}))
    total = client.handle(SumColumns(*VIEW, 2, np.array([0, 1]), np.zeros(2)))
    assert total.sums.tolist() == [0.0, 3.0]


def test_bounds_override_limits():
    model = FederatedSummary(schema=SCHEMA, bounds={"age": (20, 60)}).fit(PARTS)
    assert model.model_.edges[0, [0, -1]].tolist() == [20.0, 60.0]
    assert model.model_.edges[3, [0, -1]].tolist() == [-5.0, 5.0]


def test_a_client_with_other_columns_leaves_the_run():
    clients = {name: client_of(part) for name, part in PARTS.items()}
    clients["D"] = SummaryClient(np.zeros((3, 3)))
    clients["C"] = SummaryClient(pd.DataFrame(np.zeros((3, 4)), columns=list("wxyz")))
    model = FederatedSummary(schema=SCHEMA).fit(Recorder(clients), min_clients=2)
    assert model.model_.n_rows == 120
    assert {*model.ledger_.lost} == {"C", "D"}
    with pytest.raises(ValueError, match="the schema has 4 features, the clients 3"):
        FederatedSummary(schema=SCHEMA).fit(Recorder({"D": SummaryClient(np.zeros((3, 3)))}))


def test_more_rows_with_categories_than_values_exclude_a_client():
    def tamper(request, data):
        reply = decode(data)
        if isinstance(reply, KnownCategoryCounts):
            return encode(KnownCategoryCounts(reply.counts + 60))
        return data

    clients = {name: client_of(part) for name, part in PARTS.items()}
    model = FederatedSummary(schema=SCHEMA).fit(Recorder(clients, {"A": tamper}), min_clients=3)
    assert model.ledger_.lost["A"].startswith("InvalidReply at CountKnownCategories")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: CountKnownCategories(*VIEW, np.array([0]), np.array([2]), ("a",), 1),
            "lengths must sum",
        ),
        (
            lambda: CountKnownCategories(*VIEW, np.array([0]), np.array([2]), ("a", "a"), 1),
            "categories must be distinct",
        ),
        (
            lambda: CountValues(*VIEW).accept(ValueCounts(1, np.array([2]))),
            "at most n_rows",
        ),
        (
            lambda: CountKnownCategories(*VIEW, np.array([0]), np.array([1]), ("a",), 1).accept(
                KnownCategoryCounts(NONE)
            ),
            "must have 1 entries, got 0",
        ),
    ],
)
def test_impossible_messages_are_refused(make, text):
    with pytest.raises(MessageError, match=text):
        make()


def test_numbers_are_counted_as_their_texts():
    table = read_columns(pd.DataFrame({"code": [1.0, 2.0, np.nan, 2.0]}))
    assert count_known(table, np.array([0]), [("1", "2", "x")], 1)[0].tolist() == [1, 2, 0]


def test_one_text_does_not_change_how_truth_values_count():
    """Without a schema, a table spells true as True only if there are no other texts."""
    counts = [
        count_known(read_columns(pd.DataFrame({"a": texts})), np.array([0]), [("true", "x")], 1)[0]
        for texts in (["true", "TRUE", "false"], ["true", "TRUE", "false", "x"])
    ]
    assert [one.tolist() for one in counts] == [[2, 0], [2, 1]]


def test_a_text_needs_categories():
    free = Schema({"schema": {"fields": [*FIELDS, field("note", "string")]}})
    with pytest.raises(ValueError, match="needs in the schema of all sites an enum of 'note'"):
        FederatedSummary(schema=free).protocol()
    with pytest.raises(ValueError, match="categorical=None, because codes"):
        FederatedSummary(schema=SCHEMA, categorical=["age"]).protocol()


STUDY = Schema(
    {
        "schema": {
            "primaryKey": "id",
            "fields": [
                {
                    "name": "ill",
                    "type": "string",
                    "constraints": {"enum": ["no", "yes"]},
                    "fedlib": {"role": "target"},
                },
                {
                    "name": "crp",
                    "type": "number",
                    "constraints": {"minimum": 0, "maximum": 100},
                    "fedlib": {"fill": 10},
                },
                {
                    "name": "ward",
                    "type": "string",
                    "constraints": {"enum": ["A", "B"]},
                    "fedlib": {"fill": "A", "outside": "other"},
                },
                {"name": "id", "type": "string"},
                {
                    "name": "w",
                    "type": "number",
                    "constraints": {"minimum": 0, "maximum": 4},
                    "fedlib": {"role": "weight"},
                },
            ],
        }
    }
)


def study_rows():
    rng = np.random.default_rng(3)
    rows = pd.DataFrame({"crp": rng.uniform(0, 30, 120).round(1), "ill": ["no", "yes", "no"] * 40})
    rows["ward"], rows["w"] = rng.choice(["A", "B"], 120), rng.integers(1, 4, 120)
    rows["id"] = [f"p{i}" for i in range(120)]
    rows.loc[::3, "crp"], rows.loc[::4, "ward"] = np.nan, None
    return rows


KINDS = [{}, {"secure": True}, {"epsilon": 1e5}, {"max_weight": 4}]
WAYS = [(way, kind) for way in ("frames", "files", "tables") for kind in KINDS]
WAYS.remove(("tables", {"secure": True}))  # the programs of sites would need keys


@pytest.mark.usefixtures("fixed_noise")
@pytest.mark.parametrize(("source", "options"), WAYS)
def test_gaps_are_counted_before_they_are_filled_and_the_target_is_described(
    source, options, tmp_path
):
    rows = study_rows()
    parts = [rows[:40], rows[40:80], rows[80:]]
    estimator = FederatedSummary(schema=STUDY, quantiles=None, **options)
    protected = bool(options) and "max_weight" not in options
    if source == "files":
        paths = [tmp_path / f"{i}.csv" for i in range(3)]
        for part, path in zip(parts, paths, strict=True):
            part.to_csv(path, index=False)
        parts = paths
    if source == "tables":  # as the programs of sites read them
        tables = [STUDY.apply(part, protected)[0] for part in parts]
        assert tables[0].X["crp"].isna().any() != protected  # what other protocols get
        parts = InProcess({str(i): make_client("summary", one) for i, one in enumerate(tables)})
    frame = estimator.fit(parts).to_frame()
    assert frame.index.tolist() == ["crp", "ward", "ill", "w"]
    tolerance = 0.01 if "epsilon" in options else 1e-6
    assert frame["missing"].tolist() == pytest.approx([40, 30, 0, 0], abs=100 * tolerance)
    weights = rows["w"] if "max_weight" in options else rows["w"] * 0 + 1
    known = rows["crp"].notna()
    mean = np.average(rows["crp"][known], weights=weights[known])
    assert frame["mean"]["crp"] == pytest.approx(mean, rel=tolerance)
    known = {"no": 80, "yes": 40} | ({"other": 0} if protected else {})
    assert estimator.categories_["ill"].to_dict() == pytest.approx(known, abs=1)
    expected = rows["ward"].value_counts().to_dict() | {"other": 0}
    assert estimator.categories_["ward"].to_dict() == pytest.approx(expected, abs=1)
