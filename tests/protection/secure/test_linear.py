"""Masked replies are sums over rows: no site compares its own sum with a threshold."""

import numpy as np
import pandas as pd
import pytest

from fedlib.boosting.client import RegressionClient
from fedlib.boosting.first_scores import SumRoots
from fedlib.boosting.histograms import SumHistograms
from fedlib.boosting.messages import BeginBoosting
from fedlib.core.messages import Message, MessageError, registry
from fedlib.core.site_memory import TableMemory
from fedlib.protection.secure import SecureClient, WrongDigits, simulated_identities
from fedlib.protection.secure.fixed_point import (
    WordSums,
    add_rows,
    check_digits,
    to_words,
)
from fedlib.protection.secure.points import CountPoints, PointCount
from fedlib.tables.summary.client import SummaryClient
from fedlib.tables.summary.from_schema import CountKnownCategories
from fedlib.tables.summary.private import SumWeightedColumns

NOTHING = (), False, np.empty(0, np.int64), np.empty(0)
IDENTITY = simulated_identities(["A", "B", "C"])["A"]
TABLE = pd.DataFrame({"diagnosis": ["rare"] * 3 + ["common"] * 57})


def known(least):
    return CountKnownCategories(*NOTHING, np.array([0]), np.array([1]), ("rare",), least)


def test_a_count_with_a_threshold_is_not_masked():
    client = SummaryClient(TABLE)
    check_digits(known(1), {}, client.sum_digits(known(1)))
    with pytest.raises(WrongDigits, match="CountKnownCategories cannot be masked"):
        check_digits(known(2), {}, client.sum_digits(known(2)))
    assert client.answer(known(4)).counts.tolist() == [0]


class CountQuietly(Message):
    """A request whose author has forgotten to state that its reply is a sum."""

    discloses = "nothing"
    reply = PointCount


def test_a_request_that_states_nothing_is_not_masked():
    """Also if its reply has only integers, which need no digits."""
    request = CountQuietly()
    with pytest.raises(WrongDigits, match="CountQuietly cannot be masked"):
        check_digits(request, {}, request.sum_digits(4))
    check_digits(CountPoints(), {}, CountPoints().sum_digits(4))
    silent = {name for name, kind in registry.items() if kind.sum_digits is Message.sum_digits}
    assert {"CountLevels", "SumLeaves", "EvaluateSplits", "BuildHistograms"} <= silent


def histograms(most_loss, most_weight):
    nothing = np.empty(0, np.float32)
    return SumHistograms(
        *(0, np.empty(0, np.int32), nothing, np.empty(0, bool), nothing, 0, 1, 0.0),
        wanted=np.ones(1, bool),
        n_bins=2,
        n_rounds=0,
        max_loss=most_loss,
        max_sum=most_weight,
    )


@pytest.mark.parametrize(("most_loss", "most_weight"), [(1e9, 1e9), (4.0, 2.0), (0.0, 0.0)])
@pytest.mark.parametrize("margin", [0.5, 3e38])
def test_losses_are_clipped_by_row_and_weights_are_not(most_loss, most_weight, margin):
    X, y = np.arange(9.0)[:, np.newaxis], np.array([0, 1, 2, 3, 4, 5, 6, 7, 30.0])
    begin = BeginBoosting(
        *((), margin, 10, np.array([0, 2]), np.array([4.5, 1e30], np.float32)),
        objective="count:poisson",
    )
    replies = []
    for rows in (slice(0, 4), slice(4, 9), slice(0, 9)):
        client = RegressionClient((X[rows], y[rows]))
        client.answer(begin)
        replies.append(client.answer(histograms(most_loss, most_weight)))
    first, second, both = replies
    assert first.weight + second.weight == both.weight == 9
    assert first.loss + second.loss == pytest.approx(both.loss)
    assert (first.sums + second.sums == both.sums).all()
    assert both.loss <= 9 * most_loss


def test_levels_of_other_features_are_refused_and_lock_nothing(tmp_path):
    client = RegressionClient((np.zeros((3, 1)), np.zeros(3)))
    client.memory = TableMemory(tmp_path / "rows.jsonl")
    bins = np.array([0, 1]), np.zeros(1, np.float32)
    more = {"objective": "reg:squarederror", "levels": (("a",), None)}
    begin = BeginBoosting((), 0.0, 10, *bins, **more)
    with pytest.raises(ValueError, match="levels must be those of 1 features; got 2"):
        client.answer(begin)
    assert client.state is None
    assert not client.memory.lock.path.exists()


def test_no_sum_of_a_site_is_clipped_to_a_limit_of_the_request():
    """Of its weights, and of the roots of its residuals."""
    client = RegressionClient((np.zeros((9, 1)), np.arange(9.0)))
    bins = np.array([0, 1]), np.zeros(1, np.float32)
    options = {"objective": "reg:absoluteerror", "parameter": (1.0,)}
    client.answer(BeginBoosting((), 0.0, 10, *bins, **options))
    nothing = np.empty(0, np.float32)
    empty = 0, np.empty(0, np.int32), nothing, np.empty(0, bool), nothing, 0, 1
    replies = [
        client.answer(SumRoots(*empty, limit, n_outputs=1, n_rounds=0, max_sum=limit))
        for limit in (1.0, 1e9)
    ]
    assert replies[0] == replies[1]
    assert replies[0].weight == 9 < replies[0].roots[0]


def weight_in_units(n_rows, max_weight):
    """Return the integer that a site with so many equal rows masks for the sum of their weights."""
    client = SummaryClient(np.full((n_rows, 1), 0.5))
    SecureClient(client, IDENTITY)
    nothing = np.empty(0, np.int64)
    request = SumWeightedColumns(
        np.array([[0.0], [1.0]]), np.array([0]), 0, max_weight, nothing, nothing, ()
    )
    return int(to_words(client.answer(request), client.sum_digits(request))[2])


def test_coarse_digits_do_not_show_how_large_a_sum_is():
    """A site rounds what a row adds. Its rounded sum would show whether it is above half a unit."""
    limits = np.logspace(0, 12, 60).tolist()
    small, large = (np.array([weight_in_units(n, one) for one in limits]) for n in (3, 60))
    assert (large == 20 * small).all()
    assert small[0] > 0 == small[-1]


@pytest.mark.parametrize("n_rows", [2**4, 2**8 + 1, 2**10 + 1])
def test_a_sum_is_not_rounded_to_the_bits_of_a_float(n_rows):
    """Each row adds an odd number of units, which a sum of float64 would not keep."""
    terms, digits = np.full((n_rows, 1), 2.0**52 + 1), {"values": (0,)}
    assert add_rows(terms, digits, "values").item() == n_rows * (2**52 + 1)
    many = np.full((2**12, 1), 2.0**52 + 1)
    assert add_rows(many, digits, "values").item() == 2**12  # modulo 2**64


def test_no_limit_of_a_reply_is_a_threshold():
    """Sums of roots beyond the limit of the field: behind masks nothing checks it."""
    client = RegressionClient((np.zeros((9, 1)), np.full(9, 50.0)))
    client.masked = True
    bins = np.array([0, 1]), np.zeros(1, np.float32)
    options = {"objective": "reg:absoluteerror", "parameter": (1.0,), "scale_pos_weight": 2.0**39}
    client.answer(BeginBoosting((), 1e38, 10, *bins, **options))
    nothing = np.empty(0, np.float32)
    empty = 0, np.empty(0, np.int32), nothing, np.empty(0, bool), nothing, 0, 1
    request = SumRoots(*empty, 1.0, n_outputs=1, n_rounds=0, max_sum=1.0)
    assert isinstance(client.answer(request), WordSums)
    client.masked = False
    with pytest.raises(MessageError, match="roots"):
        client.answer(request)
