"""What a row adds to a sum is fixed at a site with a minimum count, and noise must be noise."""

from typing import Annotated

import msgspec
import numpy as np
import pandas as pd
import pytest
from all_protocols import CASES
from msgspec.structs import replace

from fedlib import (
    FederatedKMeans,
    FederatedPCA,
    FederatedPipeline,
    FederatedXGBClassifier,
    FederatedXGBRegressor,
)
from fedlib.boosting.client import BoostingClient, RegressionClient
from fedlib.boosting.descriptions import DescribeTargets
from fedlib.clustering.density.horizontal import CountCells, HorizontalDBSCANClient
from fedlib.clustering.kmeans import FederatedKMeansClient
from fedlib.clustering.kmeans.flow import SumClustersNoisily
from fedlib.clustering.kmeans.messages import (
    AssignCentres,
    FindCentres,
    SumClusters,
    SummariseGroups,
    SumWeightedClusters,
)
from fedlib.core.client import Client, WrappingClient, handles, partitions
from fedlib.core.messages import Declined, Done, Message, MessageError, encode
from fedlib.core.protocol import run
from fedlib.evaluation.clustering import ClusteringScoreClient
from fedlib.evaluation.messages import CountClassScores, CountScores, SumErrors, SumLabelledRows
from fedlib.evaluation.regression_scores import RegressionScoreClient
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import Privacy
from fedlib.protection.secure import SecureClient, secure_sum, simulated_identities
from fedlib.protection.secure.points import DescribeFeatures
from fedlib.sites.leave_one_out.flow import BeginFold, LeftOutClient, TakeModel
from fedlib.sites.models import to_bytes
from fedlib.tables.components.flow import PCAClient, SumScatter
from fedlib.tables.pipeline import PipelineClient
from fedlib.tables.pipeline.messages import Preprocess, PreprocessAndProject
from fedlib.tables.summary.client import SummaryClient
from fedlib.tables.summary.messages import SumColumns, SumValues
from fedlib.tables.summary.private import SumWeightedColumns
from fedlib.testing import Recorder

RNG = np.random.default_rng(0)
SMALL = Declined("min_count")


def guarded(client, protocol="", name="A", **rules):
    site = GuardedClient(client, Policy.from_dict({"min_count": 10} | rules), protocol)
    site.enter(name, 4)
    return site


# Terms -------------------------------------------------------------------------------------------


class TermSum(Message):
    discloses = "a sum"
    total: float


class SumAbove(Message):
    discloses = "a threshold"
    reply = TermSum
    threshold: Annotated[float, msgspec.Meta(ge=0)]


class CountAbove(SumAbove):
    discloses = "a threshold"


class Shift(Message):
    discloses = "a number"
    asks_for_data = False
    amount: float


class RestartSums(Message):
    discloses = "nothing"
    asks_for_data = False
    begins = True


class ThresholdClient(Client):
    """A client whose author has forgotten to state the terms of one of two requests."""

    def __init__(self, X):
        self.X = X

    @handles(SumAbove)
    def sum_above(self, request):
        return TermSum(float((request.threshold < self.X).sum()))

    @partitions(SumAbove)
    def all_rows(self, request):
        yield np.zeros(len(self.X), np.int64)

    @handles(CountAbove)
    def count_above(self, request):
        return TermSum(float((request.threshold < self.X).sum()))

    @partitions(CountAbove, terms=())
    def rows_above(self, request):
        yield (request.threshold < self.X).astype(np.int64)

    @handles(Shift)
    def shift(self, request):
        return Done()

    @handles(RestartSums)
    def restart(self, request):
        return Done()


def test_a_request_whose_terms_nobody_states_is_answered_for_one_choice_of_fields():
    site = guarded(ThresholdClient(np.arange(40.0)))
    assert site.answer(SumAbove(20.0)) == site.answer(SumAbove(20.0)) == TermSum(19.0)
    assert site.answer(SumAbove(21.0)) == SMALL
    site = guarded(ThresholdClient(np.arange(40.0)))
    assert [site.answer(CountAbove(t)).total for t in (20.0, 10.0)] == [19.0, 29.0]
    assert guarded(ThresholdClient(np.arange(40.0)), min_count=1).answer(SumAbove(1.0)).total == 38


def test_the_answer_is_refused_before_any_row_is_read(monkeypatch):
    site = guarded(ThresholdClient(np.arange(40.0)), max_declines=5)
    site.answer(SumAbove(20.0))
    again = guarded(ThresholdClient(np.arange(40.0)), max_declines=5)
    again.state = site.state  # as on a transport that keeps no process alive
    monkeypatch.setattr(again.inner, "handle", lambda request: pytest.fail("it was computed"))
    assert again.answer(SumAbove(21.0)) == SMALL
    assert not again.records.values("declined")  # no bit about the rows


def test_a_delivered_result_is_a_term_until_the_client_forgets_it():
    site = guarded(ThresholdClient(np.arange(40.0)))
    for request, expected in (
        (SumAbove(20.0), TermSum(19.0)),
        (Shift(1.0), Done()),
        (RestartSums(), Done()),
        (SumAbove(20.0), TermSum(19.0)),
        (CountAbove(20.0), TermSum(19.0)),
        (Shift(1.0), Done()),
        (CountAbove(20.0), SMALL),
    ):
        assert site.answer(request) == expected


class Prepared(Message):
    discloses = "nothing"
    asks_for_data = False


class ForgetfulWrapper(WrappingClient):
    """A wrapper whose author has not stated what it makes of the rows."""

    prepares = Prepared

    def __init__(self, X, client_class):
        self.X, self._class = X, client_class

    @handles(Prepared)
    def prepare(self, request):
        self._wrap(self._class(self.X), np.arange(len(self.X)))
        return Done()


def test_a_wrapper_that_states_nothing_sends_only_counts():
    X = RNG.random((40, 1))
    site = guarded(ForgetfulWrapper(X, HorizontalDBSCANClient))
    site.answer(Prepared())
    assert site.answer(CountCells(1.0)).counts.tolist() == [40]
    site = guarded(ForgetfulWrapper(X, FederatedKMeansClient))
    site.answer(Prepared())
    assert site.answer(SumClusters(np.zeros((1, 1, 1)))) == SMALL


# Rules of preprocessing --------------------------------------------------------------------------

TABLE = pd.DataFrame(
    {
        "age": [*RNG.integers(20, 60, 99) * 1.0, 97.0],
        "income": RNG.integers(10, 99, 100) * 1.0,
        "town": ["north", "south"] * 50,
    }
)


def rules(categories, lengths, kind=Preprocess, gaps="fill", centre=0.0, **more):
    """Return rules that make columns of the categories of age and of town."""
    kinds = np.array([lengths[0] > 0, 0, 1], np.uint8)
    zero, one = np.full(3, centre), np.ones(3)
    names = ("age",) if lengths[0] else ()
    lengths = np.array([lengths[0], 0, lengths[1]])
    columns = ("age", "income", "town")
    return kind(
        columns, kinds, names, gaps, 0 * zero, zero, one, lengths, categories, "ignore", **more
    )


ONE = rules(("97", "23", "north"), (2, 1))  # of the hundred, one is 97
HALVES = rules(("north", "south"), (0, 2))
ASKED = {
    "scatter": lambda d: SumScatter(np.zeros(d)),
    "groups": lambda d: SummariseGroups(0),
    "clusters": lambda d: SumClusters(np.zeros((1, 1, d))),
    "centres": lambda d: FindCentres(1, 0.0, 1, 10, 0.0, 0),
}


@pytest.mark.parametrize("groups", ["together", "singly"])
@pytest.mark.parametrize("asked", ASKED)
def test_categories_that_a_server_chooses_are_groups(asked, groups):
    for delivered, d, wanted in ((ONE, 4, False), (HALVES, 4, True)):
        site = guarded(PipelineClient(TABLE, FederatedKMeansClient), groups=groups)
        site.answer(delivered)
        assert isinstance(site.answer(ASKED[asked](d)), Declined) != wanted


def test_filled_gaps_and_components_of_categories_are_groups():
    table = TABLE.assign(income=[np.nan, *TABLE["income"][1:]])
    site = guarded(PipelineClient(table, FederatedKMeansClient))
    site.answer(HALVES)
    assert site.answer(SumScatter(np.zeros(4))) == SMALL  # of one row, the income was unknown
    site = guarded(PipelineClient(TABLE, FederatedKMeansClient))
    mean, components = np.zeros(4), np.eye(1, 4)
    site.answer(
        rules(("97", "23", "north"), (2, 1), PreprocessAndProject, mean=mean, components=components)
    )
    assert site.answer(SumClusters(np.zeros((1, 1, 1)))) == SMALL


def test_an_honest_pipeline_under_a_minimum_count():
    """All categories and the products of them have enough rows at each site."""
    tables = [TABLE.assign(age=TABLE["age"].clip(upper=59))] * 3
    estimator = FederatedPipeline(FederatedPCA(1), encode="one_hot", scale="standard")
    make, options = estimator._client_factory([{}] * 3)
    sites = {
        name: guarded(make(table, **one), estimator.name, name)
        for name, table, one in zip("ABC", tables, options, strict=True)
    }
    assert estimator.fit(Recorder(sites)).ledger_.lost == {}
    assert not any(site.state.declined for site in sites.values())


# Models ------------------------------------------------------------------------------------------

X = RNG.random((60, 2))
Y = np.round(RNG.uniform(0, 100, 60), 2)
EXAMPLES = [(np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([0, 1]))]


def constant(number):
    """Return a model that predicts one number for all rows."""
    model = FederatedXGBRegressor(1, max_depth=1, base_score=float(number))
    return to_bytes(model.fit([(EXAMPLES[0][0], np.full(2, float(number)))]))


def of_classes(threshold):
    """Return a model with two probabilities, on either side of a threshold."""
    rows = np.array([[threshold - 1e-3, 0.0], [threshold + 1e-3, 0.0]] * 20)
    estimator = FederatedXGBClassifier(1, max_depth=1, learning_rate=0.01, base_score=0.5)
    return to_bytes(estimator.fit([(rows, np.array([0, 1] * 20))]))


@pytest.mark.parametrize("groups", ["together", "singly"])
def test_only_one_delivered_model_is_scored(groups):
    """The sum of the sizes of errors has a kink at each target."""
    site = guarded(LeftOutClient((X, Y), RegressionClient), groups=groups)
    for number, expected in ((10, True), (11, False)):
        site.answer(BeginFold())
        assert site.answer(TakeModel(constant(number))) == Done()
        reply = site.answer(SumErrors(0.0))
        assert isinstance(reply, Declined) != expected
        if expected:  # about another centre, too: the errors stay
            assert site.answer(SumErrors(50.0)).absolute_errors == reply.absolute_errors


@pytest.mark.parametrize(
    "request_", [CountScores((0, 1), 1, 1), CountClassScores(classes=(0, 1), n_bins=1)]
)
def test_two_probabilities_inside_one_bin_are_two_groups(request_):
    x = np.sort(X[:, 0])
    for threshold, expected in (((x[0] + x[1]) / 2, False), ((x[29] + x[30]) / 2, True)):
        site = guarded(LeftOutClient((X, (Y > 50) * 1), BoostingClient))
        site.answer(BeginFold())
        site.answer(TakeModel(of_classes(threshold)))
        assert isinstance(site.answer(request_), Declined) != expected, threshold


def test_the_folds_of_an_honest_server_are_answered():
    """What was delivered in one fold is no term of the next one."""
    inner = FederatedKMeans(2, init=[[0.0, 0.0], [4.0, 0.0]], method="lloyd", max_iter=1)
    model = to_bytes(inner.fit(CASES["kmeans"][2]()))
    site = guarded(LeftOutClient(CASES["kmeans"][2]()[0], FederatedKMeansClient), min_count=2)
    for request in [
        *(BeginFold(), SumClusters(np.array([[[0.0, 0.0], [4.0, 0.0]]]))),
        *(AssignCentres(np.zeros((1, 2))), BeginFold(), TakeModel(model)),
        *(SumLabelledRows("exclude", 1, 10), BeginFold()),
        SumClusters(np.array([[[0.0, 0.0], [4.0, 0.0]]])),
    ]:
        assert not isinstance(site.answer(request), Declined), request


# Objectives, and centres that round --------------------------------------------------------------


def test_the_slope_of_pseudo_huber_is_a_term():
    """With a slope of almost 0, a sum of gradients is a count of signs."""
    requests = [
        DescribeTargets(0.3, objective="reg:pseudohubererror", parameter=slope)
        for slope in (1.0, 1e-9)
    ]
    assert guarded(RegressionClient((X, Y))).answer(requests[0]) == SMALL
    site = guarded(RegressionClient((X, Y)), groups="singly")
    assert site.answer(requests[0]).n_rows == 60
    assert site.answer(requests[0]).n_rows == 60
    assert site.answer(requests[1]) == SMALL


AGES = np.array([*RNG.uniform(1, 60, 59), 97.0])
FAR = -(2.0**59)  # next to it, floats are multiples of 128: only the last age is above 64
# Two groups with the same sums of values and of squares, and hardly any value in common.
TWINS = [np.repeat(values, 20)[:, np.newaxis] for values in ([0.0, 4.0, 5.0], [1.0, 2.0, 6.0])]
CENTRES = [*RNG.uniform(-10, 10, 50).tolist(), 0.0, 0.1, 1e100, FAR]


def sum_columns(centre, filled=()):
    values = np.array(filled, np.float64)
    fills = np.zeros(len(values), np.int64), values
    return SumColumns((), False, *fills, 1, np.array([0]), np.array([centre]))


@pytest.mark.parametrize(
    ("client_of", "asked"),
    [
        (PCAClient, lambda c: SumScatter(np.array([c]))),
        (lambda X: RegressionScoreClient((X, X[:, 0])), SumErrors),
        (SummaryClient, sum_columns),
        (lambda X: SummaryClient(np.vstack([X, X * np.nan])), lambda c: sum_columns(c, [0.7 * c])),
        (
            lambda X: SummaryClient(np.vstack([X, X * np.nan])),
            lambda c: SumValues((), False, np.array([0]), np.array([c]), np.array([0])),
        ),
        (FederatedKMeansClient, lambda c: SumClusters(np.array([[[c]]]))),
        (
            lambda X: FederatedKMeansClient((X, np.ones(len(X)))),
            lambda c: SumWeightedClusters(np.array([[[c]]])),
        ),
    ],
)
def test_the_last_bits_of_a_sum_about_a_centre_do_not_depend_on_single_rows(client_of, asked):
    """A difference from a centre is rounded: a function of the row that the server chooses."""
    direct = [[np.square(X - c).sum() for X in TWINS] for c in CENTRES]
    assert np.mean([one != other for one, other in direct]) > 0.5
    sites = [guarded(client_of(X)) for X in TWINS]
    for centre in CENTRES:
        first, second = (site.answer(asked(centre)) for site in sites)
        assert not isinstance(first, Declined)
        assert encode(first) == encode(second), centre


@pytest.mark.parametrize(
    "changed", [{"bounds": np.array([[0.1], [8.0]])}, {"max_weight": 1.1}], ids=list
)
def test_limits_that_scale_values_are_terms(changed):
    none = np.empty(0, np.int64)
    asked = SumWeightedColumns(np.array([[0.0], [8.0]]), np.array([0]), 0, 1.0, none, none, ())
    site = guarded(SummaryClient((TWINS[0], np.ones(60))))
    assert not isinstance(site.answer(asked), Declined)
    assert site.answer(replace(asked, **changed)) == SMALL


def test_a_request_scales_a_column_once():
    none = np.empty(0, np.int64)
    with pytest.raises(MessageError, match="SumWeightedColumns.columns must be different"):
        SumWeightedColumns(
            np.array([[0.0, 1.0], [8.0, 8.0]]), np.zeros(2, int), 0, 1.0, none, none, ()
        )


def project(centre=0.0, fill=0.0, mean=0.0, component=1.0):
    one = np.ones(1)
    return PreprocessAndProject(
        *((), np.zeros(1, np.uint8), (), "fill", fill * one, centre * one, one, np.zeros(1, int)),
        *((), "ignore", mean * one, np.full((1, 1), component)),
    )


@pytest.mark.parametrize(
    ("rules", "answered"),
    [
        (project(centre=50.0, mean=-50.0, component=1e-9), True),
        (project(component=5e-324), False),  # it rounds each row to an integer
        (project(centre=2.0**20, mean=-(2.0**40)), False),  # one step after the other
        (project(fill=2.0**59, mean=2.0**59), False),  # next to what the server has filled
    ],
)
def test_preprocessing_that_rounds_rows_is_declined(rules, answered):
    ages = np.append(AGES, [np.nan] * 20)[:, np.newaxis]
    site = guarded(PipelineClient(ages, FederatedKMeansClient))
    assert site.answer(rules) == Done()
    assert isinstance(site.answer(SumScatter(np.zeros(1))), Declined) != answered


@pytest.mark.parametrize(
    ("tiny", "answered"),
    [
        (np.full(12, 5e-17), True),  # all become the same number
        (np.full(5, 5e-17), False),
        (np.append(np.full(12, 5e-17), 1e-11), False),  # keeps 10 bits
    ],
)
def test_tiny_values_that_become_equal_are_a_group(tiny, answered):
    site = guarded(PipelineClient(np.append(AGES, tiny)[:, None], FederatedKMeansClient))
    zero = np.zeros(1)
    site.answer(
        Preprocess(
            *((), np.zeros(1, np.uint8), (), "fill", zero, zero + 50.0, zero + 1),
            *(np.zeros(1, np.int64), (), "ignore"),
        )
    )
    assert isinstance(site.answer(SumScatter(zero)), Declined) != answered


def mix(centre, spread, mean=0.0):
    """Return rules whose first component is ``centre - age + income / spread``."""
    zeros = np.zeros(2)
    return PreprocessAndProject(
        *((), zeros.astype(np.uint8), (), "fill", zeros, np.array([centre, 0.0])),
        *(np.array([1.0, spread]), zeros.astype(np.int64), (), "ignore", np.full(2, mean)),
        np.array([[-1.0, 1.0], [1.0, 0.0]]),
    )


@pytest.mark.parametrize(
    ("rules", "answered"),
    [
        (mix(50.0, 1000.0), True),
        (mix(50.0, 1e9), True),
        (mix(3e5, 2 * 2e5 / np.spacing(3e5)), False),  # an income above 2e5 adds the last bit
        (mix(0.0, 1e15, mean=1.0), False),
    ],
)
def test_a_component_that_rounds_a_feature_is_declined(rules, answered):
    table = np.column_stack([AGES, RNG.uniform(1e4, 5e4, len(AGES))])
    site = guarded(PipelineClient(table, FederatedKMeansClient))
    assert site.answer(rules) == Done()
    assert isinstance(site.answer(SumScatter(np.zeros(2))), Declined) != answered


def test_codes_for_missing_values_do_not_hide_that_the_others_are_rounded():
    """Next to 2**59, the 59 ages up to 60 are equal, and that of 97 is another number."""
    nodata = np.full(10, np.finfo(np.float32).min)
    for centre, answered in ((50.0, True), (FAR, False)):
        site = guarded(PipelineClient(np.append(AGES, nodata)[:, None], FederatedKMeansClient))
        zero = np.zeros(1)
        site.answer(
            Preprocess(
                *((), np.zeros(1, np.uint8), (), "fill", zero, np.array([centre]), zero + 1),
                *(np.zeros(1, np.int64), (), "ignore"),
            )
        )
        asked = SumClusters(np.array([[[-centre], [nodata[0]]]]))
        assert isinstance(site.answer(asked), Declined) != answered


@pytest.mark.parametrize("n_components", [1, 2, 3])
def test_components_of_unrelated_columns_are_answered(n_components):
    """What adds only rounding errors to a component is left out of it."""
    columns = RNG.normal(size=(3, 200)) * [[1e6], [1.0], [1e-6]]
    parts = {n: columns[:, i::4].T.copy() for i, n in enumerate("ABCD")}
    sites = {n: guarded(PipelineClient(X, FederatedKMeansClient), name=n) for n, X in parts.items()}
    start = {"init": np.zeros((1, n_components)), "n_init": 1, "max_iter": 2}
    model = FederatedPipeline(FederatedKMeans(1, **start), pca=n_components)
    model.fit(Recorder(sites))
    assert model.model_.rules.n_new == n_components


def test_few_rows_of_noise_are_withheld():
    labels = np.repeat([0, 1, 2, -1], [20, 20, 12, 2])
    for noise in ("exclude", "cluster"):
        site = guarded(ClusteringScoreClient((np.arange(54.0)[:, np.newaxis], labels)))
        reply = site.answer(SumLabelledRows(noise, 15, 10))
        assert (reply.n_noise, reply.n_withheld) == (0, 14)
        assert site.answer(SumLabelledRows(noise, 1, 10)) == SMALL


def test_what_a_client_does_not_handle_makes_the_guard_forget_nothing():
    """And a preprocessing outlives the beginning of a fold."""
    for client in (
        PipelineClient(AGES[:, np.newaxis], FederatedKMeansClient),
        LeftOutClient(AGES[:, np.newaxis], PipelineClient, client_class=FederatedKMeansClient),
    ):
        site = guarded(client)
        site.answer(BeginFold())
        site.answer(project())
        assert not isinstance(site.answer(SumScatter(np.zeros(1))), Declined)
        site.answer(BeginFold())
        site.answer(project(centre=1.0))
        assert site.answer(SumScatter(np.zeros(1))) == SMALL


# Noise -------------------------------------------------------------------------------------------

BOUNDS = np.array([[0.0, 0.0], [1.0, 1.0]])
BUDGET = {"epsilon": 1e6, "delta": 1e-6}


def noisy(**loss):
    return SumClustersNoisily(Privacy(**loss), BOUNDS, X[:2])


@pytest.mark.parametrize(
    ("loss", "rules", "expected"),
    [
        ({"rho": 1e300}, {}, "budget"),
        ({"rho": 0.1}, {}, "budget"),
        ({"rho": 0.1}, {"budget": BUDGET}, ""),
        ({"epsilon": 1.0}, {"budget": BUDGET}, ""),
        ({"rho": 0.51}, {"budget": BUDGET}, "max_epsilon"),
        ({"epsilon": 1.01}, {"budget": BUDGET}, "max_epsilon"),
        ({"epsilon": 1.01}, {"budget": BUDGET, "max_epsilon": 2}, ""),
        ({"epsilon": 3.0}, {"min_count": 1, "max_epsilon": 2.5}, "max_epsilon"),
        ({"epsilon": 3.0}, {"min_count": 1}, ""),
    ],
)
def test_noise_that_hides_no_row_is_no_exception_of_a_minimum_count(loss, rules, expected):
    site = guarded(FederatedKMeansClient(X), **rules)
    reply = site.answer(noisy(**loss))
    assert reply.rule == expected if expected else hasattr(reply, "counts")
    names = list("ABCD")
    identities = simulated_identities(names)
    clients = {n: SecureClient(FederatedKMeansClient(X), identities[n]) for n in names}
    sites = {n: guarded(client, name=n, **rules) for n, client in clients.items()}
    request = noisy(**loss)
    if "rho" in loss:
        try:
            run(secure_sum(request, iter([1]), request.sum_digits(4)), Recorder(sites))
        except Exception:
            assert expected
        assert {site.state.declined for site in sites.values()} == {expected}


@pytest.mark.parametrize("value", [0, -1.0, True, "1", float("inf")])
def test_the_largest_loss_of_a_reply_is_a_number_above_0(value):
    with pytest.raises(ValueError, match="max_epsilon must be a number above 0"):
        Policy.from_dict({"max_epsilon": value})


def test_what_describes_no_rows_is_answered():
    assert guarded(FederatedKMeansClient(X)).answer(DescribeFeatures()).n_features == 2
