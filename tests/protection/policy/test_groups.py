"""The groups behind replies: every client states them rightly, and a site counts them together."""

import warnings

import numpy as np
import pandas as pd
import pytest
from all_protocols import CASES, estimator_of, make_client

from fedlib.boosting.client import BoostingClient, RegressionClient
from fedlib.boosting.descriptions import DescribeTargets, DescribeTraining
from fedlib.boosting.first_scores import CountTargets
from fedlib.clustering.density.bounded_cells import CountGrid
from fedlib.clustering.density.horizontal import CountCells, HorizontalDBSCANClient
from fedlib.clustering.kmeans.estimator import FederatedKMeansClient
from fedlib.clustering.kmeans.messages import (
    MeasureInertia,
    SumClusters,
    SummariseGroups,
    SumWeightedClusters,
)
from fedlib.core.client import Client
from fedlib.core.messages import Declined
from fedlib.core.registry import find_estimator, protocols, wrappers
from fedlib.evaluation.messages import SumClippedErrors
from fedlib.evaluation.regression_scores import RegressionScoreClient
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.policy.guard import _refined, sizes_of, without_small
from fedlib.protection.sums import RowTotals
from fedlib.tables.components.flow import PCAClient, SumClippedScatter, SumScatter
from fedlib.tables.pipeline.client import PipelineClient
from fedlib.tables.pipeline.messages import Preprocess
from fedlib.tables.summary.client import SummaryClient
from fedlib.tables.summary.messages import CountBins, SumClippedColumns, TableView, to_keys
from fedlib.tables.summary.private import SumWeightedColumns
from fedlib.testing import Recorder

OPEN = [case for case in CASES if "masked" not in case and "noisy" not in case]
# Fields with counts of rows; those of a floating-point type are weights of rows.
COUNTS = {"counts", "n_rows", "n_points", "groups", "above", "others", "n_outside", "n_withheld"}


class Watched(Client):
    """A client that keeps the partitions behind each of its replies."""

    def __init__(self, client):
        self.inner, self.seen = client, []
        self.X, self.features = client.X, client.features

    @property
    def state(self):
        return self.inner.state

    @state.setter
    def state(self, state):
        self.inner.state = state

    def enter(self, name, n_clients, run=""):
        self.inner.enter(name, n_clients, run)

    def answer(self, request):
        reply = self.inner.answer(request)
        found = self.inner.partition(request, singly=True)
        if request.asks_for_data and found is not None:
            self.seen.append((request, reply, [np.asarray(groups) for groups in found]))
        return reply


@pytest.mark.parametrize("case", OPEN)
def test_counts_in_replies_are_sizes_of_the_stated_groups(case):
    estimator, (_, _, parts) = estimator_of(case), CASES[case]
    clients = {f"{i}": Watched(make_client(estimator, part)) for i, part in enumerate(parts())}
    estimator.fit(Recorder(clients))
    for client in clients.values():
        n_rows = len(client.X)
        for request, reply, partitions in client.seen:
            sizes = {0}
            for groups in partitions:
                assert groups.shape == (n_rows,), request
                assert groups.min(initial=0) >= -1, request
                sizes |= set(np.bincount(groups + 1).tolist())
            for name in COUNTS & set(reply.__struct_fields__):
                counts = np.ravel(getattr(reply, name))
                if counts.dtype.kind == "i":  # others are sums of weights
                    assert set(counts.tolist()) <= sizes, (request, name)


def _site(X, least, client_class=FederatedKMeansClient, **policy):
    site = GuardedClient(client_class(X), Policy.from_dict({"min_count": least, **policy}))
    site.enter("A", 5)
    return site


@pytest.mark.parametrize("seed", range(40))
def test_no_difference_of_sums_belongs_to_fewer_rows(seed):
    """Exactly, for random requests: a server that solves for rows finds groups of ``least`` rows.

    What it can compute from all replies together is the span of the groups' indicators. A vector of
    that span with integer entries 0 and 1 that marks fewer rows would be a smaller group.
    """
    rng = np.random.default_rng(seed)
    X, least = rng.random((int(rng.integers(6, 14)), 1)), int(rng.integers(2, 5))
    site, answered, classes = _site(X, least), [], np.zeros(len(X), np.int64)
    for _ in range(6):
        site._keep(declined="")  # a server may begin again with another run of few requests
        centres = rng.random((int(rng.integers(1, 3)), int(rng.integers(1, 4)), 1))
        request = SumClusters(centres)
        if isinstance(site.answer(request), Declined):
            continue
        for of_start in centres:
            answered.append(np.abs(X - of_start.T).argmin(axis=1))
            classes = _refined(classes, answered[-1])
    indicators = [groups == group for groups in answered for group in np.unique(groups)]
    basis = np.array(indicators, float).reshape(-1, len(X))
    rank = np.linalg.matrix_rank(basis) if len(basis) else 0
    for size in range(1, least):
        for first in range(len(X)):
            rows = np.zeros(len(X))
            rows[(first + np.arange(size)) % len(X)] = 1
            if len(basis) and np.linalg.matrix_rank(np.vstack([basis, rows])) == rank:
                pytest.fail(f"the sums of {size} rows follow from the replies")
    assert (np.bincount(classes) >= least).all() or len(X) < least


def test_requests_that_are_declined():
    X = np.sort(np.random.default_rng(3).random((60, 1)), axis=0)
    borders = np.linspace(X[20, 0] + 1e-9, X[39, 0], 400)
    many_starts = SumClusters(np.stack([borders - 1, borders + 1], 1).reshape(-1, 2, 1))
    assert _site(X, 20).answer(many_starts) == Declined("min_count")
    assert _site(X, 20, groups="singly").answer(many_starts).counts.shape == (400, 2)
    assert _site(X, 20).answer(MeasureInertia(np.zeros((1, 1)))) == Declined("min_count")
    X = np.arange(40.0)[:, np.newaxis]
    low = to_keys(np.linspace(0, 20, 500))  # overlapping intervals of about twenty rows
    high = np.full(500, to_keys(X[39])[0])
    intervals = CountBins(*TableView(), np.zeros(500, np.int64), low, high, 1)
    assert _site(X, 5, SummaryClient).answer(intervals) == Declined("min_count")


def test_the_classes_outlive_the_client():
    X = np.arange(12.0)[:, np.newaxis]
    site, again = _site(X, 3), _site(X, 3)
    assert site.answer(SumClusters(np.array([[[0.0], [9.0]]]))).counts.tolist() == [[5, 7]]
    again.state = site.state
    assert again.answer(SumClusters(np.array([[[0.0], [11.0]]]))) == Declined("min_count")
    assert _site(X, 3).answer(SumClusters(np.array([[[0.0], [11.0]]]))).counts.sum() == 12


@pytest.mark.parametrize(
    ("sizes", "least", "outside", "kept"),
    [
        ([9, 2, 6], 5, 0, [True, False, False]),
        ([9, 2, 6], 5, 3, [True, False, True]),
        ([9, 6], 5, 0, [True, True]),
        ([4], 5, 0, [False]),
        ([], 5, 2, []),
    ],
)
def test_which_groups_may_leave(sizes, least, outside, kept):
    groups = np.repeat(np.arange(-1, len(sizes)), [outside, *sizes])
    left = without_small(groups, least, np.empty(0, np.int64))
    assert [group in left for group in range(len(sizes))] == kept
    large = {group for group, size in enumerate(sizes) if size >= least}
    assert set(without_small(groups, least).tolist()) - {-1} == large


@pytest.mark.parametrize("seed", range(50))
def test_what_is_left_out_leaves_no_small_class(seed):
    rng = np.random.default_rng(seed)
    groups, least = rng.integers(-1, 6, 40), 4
    classes = np.full(40, 0)
    for part in (rng.integers(0, 3, 40), rng.integers(0, 2, 40)):
        classes = _refined(classes, without_small(part, least, classes))
    refined = _refined(classes, without_small(groups, least, classes))
    assert (np.bincount(refined) >= least).all()


def test_means_for_starts_count_with_everything_else():
    """The means of neighbouring points and a start divide the rows further than either."""
    X = np.arange(12.0)[:, np.newaxis]
    site = _site(X, 3)
    assert site.answer(SummariseGroups(4)).counts.tolist() == [6, 6]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reply = site.answer(SumClusters(np.array([[[0.0], [9.0]]])))
    assert reply == Declined("min_count")  # the sixth row is in the first half, and in the second


def guarded(client, **rules):
    """Return a client with a minimum count of 20 rows."""
    site = GuardedClient(client, Policy.from_dict({"min_count": 20} | rules))
    site.enter("A", 3)
    return site


def test_clipped_sums_would_tell_single_values():
    """The sums of values up to two limits next to each other count the values above them."""
    X = np.sort(np.random.default_rng(0).normal(50, 10, 100)).reshape(-1, 1)
    ends = [np.array([[0.0], [high]]) for high in (X[-2, 0], X[-2, 0] + 1e-3)]
    points = PCAClient(X)
    sums = [points.answer(SumClippedScatter(bounds)).values[1] for bounds in ends]
    clipped = [
        (total / 100 + 1) / 2 * bounds[1, 0] for total, bounds in zip(sums, ends, strict=True)
    ]
    assert (clipped[1] - clipped[0]) * 100 == pytest.approx(1e-3)  # one value is larger
    assert guarded(points).answer(SumClippedScatter(ends[0])) == Declined("min_count")
    columns = SumClippedColumns(*TableView(), 1, np.array([0]), np.zeros(1), ends[0], 100)
    assert guarded(SummaryClient(X)).answer(columns) == Declined("min_count")
    errors = SumClippedErrors(ends[0])
    assert guarded(RegressionScoreClient((X, X[:, 0]))).answer(errors) == Declined("min_count")
    pipeline = PipelineClient(X, PCAClient)
    one, none, kinds = np.ones(1), np.zeros(1, np.int64), np.zeros(1, np.uint8)
    pipeline.handle(Preprocess((), kinds, (), "fill", one, 0 * one, one, none, (), "ignore"))
    assert isinstance(pipeline.answer(SumClippedScatter(ends[0])), RowTotals)
    assert guarded(pipeline).answer(SumClippedScatter(ends[0])) == Declined("min_count")


def weighted_columns(low, high, max_weight):
    """Return a request for the weighted sums of one column."""
    none, bounds = np.empty(0, np.int64), np.array([[low], [high]])
    return SumWeightedColumns(bounds, np.array([0]), 0, max_weight, none, none, ())


def test_clipped_values_and_weights_are_groups():
    """Of a hundred rows, one lies above 78 and one has a weight of 3."""
    X, weight = np.linspace(20, 79, 100).reshape(-1, 1), np.repeat([1.0, 3.0], [99, 1])
    client = SummaryClient((X, weight))
    assert guarded(client).answer(weighted_columns(0.0, 100.0, 3.0)).values[0] == 100
    for request in (
        weighted_columns(0.0, 78.9, 3.0),
        weighted_columns(20.1, 100.0, 3.0),
        weighted_columns(0.0, 100.0, 2.9),
    ):
        assert guarded(client).answer(request) == Declined("min_count")


def test_no_other_reply_with_limits_of_the_server_is_a_sum_over_groups():
    clients = {find_estimator(name).client_class for name in protocols()}
    clients |= {wrapper.client_class for wrapper in wrappers().values()}
    limits = {"bounds", "low", "high", "max_weight", "max_target", "max_gradient"}
    found = {
        request
        for client in clients
        for request, stated in client.partitioners.items()
        if not stated.singly and limits & set(request.__struct_fields__)
    }
    # the limits divide the rows
    assert found == {SumWeightedColumns, CountBins, CountGrid, CountTargets}


def test_no_row_has_more_than_its_share_of_the_weight_of_a_group():
    """The mean of a group with one heavy row is nearly that row."""
    X = np.arange(42.0)[:, np.newaxis]
    request = SumWeightedClusters(np.array([[[10.0], [30.0]]]))  # 21 rows each
    light, heavy = np.ones(42), np.ones(42)
    light[3], heavy[3] = 0.5, 1000.0
    for make in (FederatedKMeansClient, wrapped):
        assert guarded(make((X, heavy))).answer(request) == Declined("min_count")
        assert guarded(make((X, light))).answer(request).counts.tolist() == [[20.5, 21.0]]
        site = guarded(make((X, light)), min_count=21)
        assert site.answer(request) == Declined("min_count")
    zero = np.repeat([1.0, 0.0], [22, 20])  # 20 rows of weight 0 next to one
    site = guarded(FederatedKMeansClient((X, zero)))
    assert site.answer(request) == Declined("min_count")


def wrapped(part):
    """Return a pipeline's client that hands these rows on; others are dropped for their gaps."""
    X, weight = part
    table, weight = np.vstack([np.full((21, 1), np.nan), X]), np.append(np.full(21, 1e6), weight)
    client = PipelineClient((table, weight), FederatedKMeansClient)
    one, none, kinds = np.ones(1), np.zeros(1, np.int64), np.zeros(1, np.uint8)
    client.handle(Preprocess((), kinds, (), "drop", one, 0 * one, one, none, (), "ignore"))
    return client


@pytest.mark.parametrize("seed", range(20))
def test_a_union_of_large_groups_is_large(seed):
    rng = np.random.default_rng(seed)
    groups, weights = rng.integers(0, 5, 60), rng.choice([0.0, 1.0, 2.5, 40.0], 60)
    sizes = sizes_of(groups, weights)
    for one in range(5):
        for other in range(one):
            union = sizes_of(np.zeros(60, np.int64), weights * np.isin(groups, [one, other]))[0]
            assert union >= min(sizes[one], sizes[other]) * (1 - 1e-12)
    assert sizes_of(groups, np.full(60, 0.1)).tolist() == np.bincount(groups).tolist()


def test_a_failure_would_tell_the_largest_value():
    """A cell of this size has no index for points farther away."""
    inside, outside = np.ones((60, 1)), np.ones((60, 1))
    outside[7] = 1e12
    request = CountCells(1e-8)
    with pytest.raises(ValueError, match="cell_size"):
        HorizontalDBSCANClient(outside).answer(request)
    assert guarded(HorizontalDBSCANClient(inside)).answer(request).counts.tolist() == [60]
    site = guarded(HorizontalDBSCANClient(outside), max_declines=1)
    assert site.answer(request) == Declined("min_count")
    site.state = None  # another run
    assert site.answer(CountCells(1.0)) == Declined("max_declines")


@pytest.mark.parametrize("value", [3.0, "x"])
def test_the_kind_of_a_column_would_tell_a_single_value(value):
    """A column without values has a kind of its own."""
    X = pd.DataFrame({"usual": np.arange(60.0), "rare": pd.Series([None] * 60, dtype=object)})
    request, y = DescribeTraining(0.3), np.repeat([0, 1], 30)
    assert guarded(BoostingClient((X, y)), groups="singly").answer(request).n_rows == 60
    targets = DescribeTargets(0.3, objective="reg:squarederror", parameter=0.0)
    X.loc[7, "rare"] = value
    for client, asked in ((BoostingClient, request), (RegressionClient, targets)):
        assert guarded(client((X, y)), groups="singly").answer(asked) == Declined("min_count")
    X["rare"] = [value] * 20 + [None] * 40
    assert guarded(BoostingClient((X, y)), groups="singly").answer(request).n_rows == 60


def test_requests_of_other_protocols_fail_for_all_rows():
    site = guarded(HorizontalDBSCANClient(np.ones((60, 1))))
    with pytest.raises(TypeError, match="has no handler for SumClippedScatter"):
        site.answer(SumClippedScatter(np.array([[0.0], [1.0]])))
    assert site.answer(CountCells(1.0)).counts.tolist() == [60]


def one_after_the_other(groups, least, classes, weights):
    """Do the same as `without_small` by looking at all rows again for each group."""
    groups = groups.copy()
    while True:
        sizes = sizes_of(groups + 1, weights)
        sizes[0] = least
        small = sizes[groups + 1] < least
        if classes is not None and not small.any():
            cells = _refined(classes, groups)
            small = sizes_of(cells, weights)[cells] < least
            rest = small & (groups < 0)
            if rest.any():
                row = int(np.argmax(rest))
                same = groups >= 0
                if len(classes):
                    same &= classes == classes[row]
                if not same.any():
                    return groups
                candidates = groups[same]
                small = groups == candidates[np.argmin(sizes[candidates + 1])]
        if not small.any():
            return groups
        groups[np.isin(groups, groups[small & (groups >= 0)])] = -1


@pytest.mark.parametrize("seed", range(4))
def test_small_groups_are_left_out_as_if_one_after_the_other(seed):
    rng = np.random.default_rng(seed)
    for _ in range(1000):
        n, least = int(rng.integers(0, 40)), int(rng.integers(1, 6))
        groups = rng.integers(-1, max(1, int(rng.integers(1, 15))), n)
        classes = (None, np.empty(0, np.int64), rng.integers(0, rng.integers(1, 8), n))
        weights = rng.choice([0, 0.5, 1, 1, 1, 2, 3, 10.0], n)
        arguments = (
            groups,
            least,
            classes[int(rng.integers(3))],
            None if rng.random() < 0.5 else weights,
        )
        expected = one_after_the_other(*arguments)
        assert without_small(*arguments).tolist() == expected.tolist(), arguments


def test_a_rest_in_each_of_many_classes_is_hidden():
    """Each of 20,000 classes must leave out one group. Looking at all rows again takes hours."""
    classes = np.repeat(np.arange(20_000), 10)
    groups = 3 * classes + np.tile([0] * 5 + [1] * 4 + [2], 20_000)
    left = without_small(groups, 2, classes)
    assert np.count_nonzero(left < 0) == 5 * 20_000


@pytest.mark.parametrize("kind", ["products", "inertias", "squares"])
def test_numbers_whose_squares_underflow_are_single_rows(kind):
    """Such squares are 0 or the least float: a sum of them counts the rows above a threshold."""
    X = np.random.default_rng(0).uniform(20, 97, (300, 1))
    for scale, permitted in ((1.0, True), (1e-163, False), (1e-123, False), (1e-100, True)):
        if kind == "products":
            client, request = PCAClient(scale * X), SumScatter(np.zeros(1))
        elif kind == "inertias":
            client, request = FederatedKMeansClient(scale * X), SumClusters(np.zeros((1, 1, 1)))
        else:
            client, request = FederatedKMeansClient(scale * X), SummariseGroups(0)
        site = GuardedClient(client, Policy.from_dict({"min_count": 20}), "kmeans")
        assert (site.answer(request) != Declined("min_count")) == permitted
