"""Summaries with noise."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import FederatedSummary
from fedlib.core.columns import read_columns
from fedlib.protection.privacy import Privacy, privacy_of
from fedlib.tables.summary import private
from fedlib.tables.summary.client import SummaryClient
from fedlib.tables.summary.private import SumColumnsNoisily, sum_columns_noisily
from fedlib.testing import Recorder, seeded_noise

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"age": RNG.uniform(20, 80, 400), "weight": RNG.normal(75, 10, 400)})
TABLE.iloc[:40, 0] = np.nan
PARTS = [TABLE[:150], TABLE[150:]]
BOUNDS = {"age": (0, 100), "weight": (30, 150)}


def summary(**changes):
    given = {"quantiles": (), "bounds": BOUNDS, "epsilon": 2.0, **changes}
    return FederatedSummary(**given)


@pytest.mark.parametrize("options", [{}, {"delta": 1e-6, "secure": True}])
def test_statistics_are_near_those_of_the_rows(options):
    with seeded_noise(0):
        model = summary(epsilon=20.0, **options).fit(PARTS)
    frame = model.to_frame()
    np.testing.assert_allclose(frame["count"], [360, 400], atol=15)
    np.testing.assert_allclose(frame["mean"], TABLE.mean(), atol=3)
    np.testing.assert_allclose(frame["std"], TABLE.std(), atol=4)
    assert frame[["min", "max"]].isna().all(axis=None)
    edges = model.model_.edges[1]
    exact = np.histogram(TABLE["weight"], edges)[0]
    np.testing.assert_allclose(model.model_.histograms[1], exact, atol=15)


def test_the_conversation_has_one_request_for_data():
    transport = Recorder({str(i): SummaryClient(part) for i, part in enumerate(PARTS)})
    summary().fit(transport)
    expected = ["DescribeFeatures", "Features", "SumColumnsNoisily", "NoisyColumnSums"]
    assert transport.ledger.conversation() == expected
    assert privacy_of(transport.exchanges[1].requests["0"]) == Privacy(epsilon=2.0)


def sums(X):
    request = SumColumnsNoisily(Privacy(rho=1.0), np.array([[0.0, 30.0], [100.0, 150.0]]), 4)
    passed = []

    def note(values, sensitivity, privacy, n_shares):
        passed.append((values, sensitivity))
        return np.zeros(np.shape(values))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private, "add_noise", note)
        sum_columns_noisily(read_columns(np.array(X, float).reshape(-1, 2)), request, 1)
    return passed[0]


entries = st.one_of(st.floats(-200, 200), st.just(float("nan")), st.sampled_from([0.0, 100.0]))


@settings(max_examples=30)
@given(st.lists(st.tuples(entries, entries), min_size=1, max_size=8))
def test_one_row_changes_the_sums_by_the_sensitivity_at_most(rows):
    (with_row, sensitivity), (without_row, same) = sums(rows), sums(rows[:-1])
    assert same == sensitivity
    change = np.ldexp(with_row - without_row, sensitivity.digits)
    assert (change == np.rint(change)).all()
    assert np.abs(change).sum() <= sensitivity.units[0]
    assert np.sqrt(np.square(change).sum()) <= sensitivity.units[1]


def test_a_toy_by_hand():
    """Age 100 is at the upper bound, so scaled 1 and in the last bin; weight 90 is scaled 0."""
    values, _ = sums([[100.0, 90.0], [np.nan, 30.0]])
    assert values.tolist() == [2, 1, 1, 1, 0, 0, 0, 1, 2, -1, 1, 1, 0, 1, 0]


def test_a_table_without_rows_gives_a_valid_summary():
    with seeded_noise(1):
        model = summary().fit([TABLE[:0], TABLE[:0]])
    frame = model.to_frame()
    assert frame["mean"].isna().all()  # the noise is all there is
    assert (model.model_.histograms >= 0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"quantiles": (0.5,)},
            "epsilon needs quantiles=None .got .0.5,",
        ),
        ({"categorical": ["age"]}, "epsilon needs categorical=None, .*got categorical=..age"),
        ({"bounds": None}, "epsilon needs bounds, .*bounds=None"),
        ({"bounds": {"age": (0, 100)}}, "bounds of other columns: 'weight' is additional"),
        (
            {"bounds": {"weight": (0, 1), "age": (0, 1)}},
            "columns: the order differs: 'weight'",
        ),
        ({"secure": True}, "secure=True with epsilon needs delta > 0"),
        ({"epsilon": None, "delta": 0.1}, "delta needs epsilon"),
        ({"epsilon": 1e-9}, "epsilon must be larger"),
    ],
)
def test_bad_input_is_refused_before_data_leave(changes, message):
    transport = Recorder({str(i): SummaryClient(part) for i, part in enumerate(PARTS)})
    with pytest.raises(ValueError, match=message):
        summary(**changes).fit(transport)
    assert all(e.message in ("DescribeFeatures", "Features") for e in transport.ledger or ())


def test_a_client_with_other_columns_leaves_the_run():
    """Two clients have no names and the third has wrong ones: only the third leaves."""
    tables = [np.zeros((5, 2)), np.ones((5, 2)), pd.DataFrame(np.ones((5, 2)), columns=["u", "v"])]
    clients = {name: SummaryClient(X) for name, X in zip("ABC", tables, strict=True)}
    run = Recorder(clients)
    FederatedSummary(quantiles=(), n_bins=2, bounds={"x": (0, 1), "y": (0, 1)}, epsilon=1.0).fit(
        run, min_clients=2
    )
    assert list(run.ledger.lost) == ["C"]
