"""A rule about a parameter holds for the requests of approximate DBSCAN that follow from it."""

import numpy as np
import pandas as pd
import pytest
from all_protocols import CASES, make_client

from fedlib.clustering.density.approximate import ApproximateDBSCANClient, CountSmallCells
from fedlib.clustering.density.bounded_cells import CountGrid, CountWithNoise
from fedlib.clustering.density.neighbouring_cells import cell_side
from fedlib.core.client import BadRequest
from fedlib.core.messages import Declined, MessageError, decode, encode
from fedlib.evaluation.messages import CountScores
from fedlib.evaluation.predictions import EvaluationClient
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import Privacy
from fedlib.sites.site import make_estimator
from fedlib.tables.summary.client import SummaryClient
from fedlib.tables.summary.messages import CountBins, to_keys
from fedlib.tables.summary.private import SumWeightedColumns
from fedlib.testing import Recorder

PLACE = np.zeros(1, np.int64), np.array([10])


@pytest.mark.parametrize("secret", [False, True])
@pytest.mark.parametrize(
    ("eps", "rho", "permitted"), [(1.0, 0.5, True), (0.9, 0.5, False), (2.0, 0.4, False)]
)
def test_the_cells_of_approximate_dbscan_obey_rules_of_eps_and_rho(eps, rho, permitted, secret):
    rules = {"eps": {"min": 1.0}, "rho": {"min": 0.5}}
    policy = {"protocols": {"approximate-dbscan": {"parameters": rules}}}
    client = ApproximateDBSCANClient(np.random.default_rng(0).random((60, 1)))
    more = {"privacy": Privacy(epsilon=1.0)} if secret else {}
    kind = CountWithNoise if secret else CountGrid
    request = kind(cell_side(eps, rho, 1), *PLACE, eps=eps, rho=rho, **more)
    for asked, expected in ((request, permitted), (kind(0.001, *PLACE, **more), False)):
        site = GuardedClient(client, Policy.from_dict(policy), "approximate-dbscan")
        reply = site.answer(decode(encode(asked)))
        assert hasattr(reply, "counts") == expected
        assert expected or reply == Declined("parameters")
    with pytest.raises(BadRequest, match="must have eps and rho"):
        client.answer(kind(0.001, *PLACE, **more))


@pytest.mark.parametrize("given", [{"eps": 1.0, "rho": 0.5}, {"eps": 1.0}, {"rho": 0.5}])
def test_a_request_with_other_cells_than_it_states_cannot_be_made(given):
    for kind, more in ((CountGrid, {}), (CountWithNoise, {"privacy": Privacy(epsilon=1.0)})):
        with pytest.raises(MessageError, match=r"that of eps and rho|both eps and rho"):
            kind(0.001, *PLACE, **given, **more)
        with pytest.raises(MessageError):
            kind(1.0, PLACE[0][:0], PLACE[1][:0], eps=1.0, rho=0.5, **more)


NOTHING = (), False, np.empty(0, np.int64), np.empty(0)


def test_many_intervals_of_one_column_are_many_bins():
    ends = np.linspace(0.0, 100.0, 1001)
    low, high = to_keys(ends[:-1]), to_keys(ends[1:])
    rules = {"protocols": {"summary": {"parameters": {"n_bins": {"max": 10}}}}}
    for n, permitted in ((10, True), (11, False), (1000, False)):
        request = CountBins(*NOTHING, np.zeros(n, np.int64), low[:n], high[:n], 1)
        site = GuardedClient(
            SummaryClient(np.arange(50.0)[:, None]), Policy.from_dict(rules), "summary"
        )
        assert (site.answer(request) != Declined("parameters")) == permitted


def test_weighted_sums_count_rare_categories_which_a_rule_forbids():
    table = pd.DataFrame({"town": ["often"] * 49 + ["rare"], "age": np.arange(50.0)})
    rules = {"protocols": {"summary": {"parameters": {"min_count": {"min": 10}}}}}
    bounds, age, town = np.array([[0.0], [100.0]]), np.array([1]), np.array([0])
    for texts, names, permitted in ((town, ("often", "rare"), False), (town[:0], (), True)):
        lengths = np.full(len(texts), len(names))
        request = SumWeightedColumns(bounds, age, 0, 1.0, texts, lengths, names)
        site = GuardedClient(SummaryClient(table), Policy.from_dict(rules), "summary")
        assert (site.answer(request) != Declined("parameters")) == permitted


@pytest.mark.parametrize(
    ("request_class", "arguments", "rule", "permitted"),
    [
        (CountScores, ((0, 1), 10, 10), {"n_bins": {"max": 10}}, True),
        (CountScores, ((0, 1), 10, 11), {"n_bins": {"max": 10}}, False),
        (CountSmallCells, (1.0, 0.5), {"cell_size": {"min": 0.1}}, True),
        (CountSmallCells, (1.0, 0.4), {"cell_size": {"min": 0.1}}, False),
    ],
)
def test_other_names_of_a_parameter_are_it(request_class, arguments, rule, permitted):
    X = np.random.default_rng(0).random((50, 4))
    probabilities = np.column_stack([1 - X[:, 0], X[:, 0]])
    client, protocol = ApproximateDBSCANClient(X), "approximate-dbscan"
    if request_class is CountScores:
        client, protocol = EvaluationClient((probabilities, np.arange(50) % 2)), "evaluation"
    policy = Policy.from_dict({"protocols": {protocol: {"parameters": rule}}})
    reply = GuardedClient(client, policy, protocol).answer(request_class(*arguments))
    assert (reply != Declined("parameters")) == permitted


# Every parameter that a rule can be about -------------------------------------------------------


def requests_to_the_first(case, **other):
    """Return the requests for data that the first client of a case receives."""
    name, parameters, parts = CASES[case]
    estimator = make_estimator(name, parameters | other)
    recorder = Recorder({f"{i}": make_client(estimator, part) for i, part in enumerate(parts())})
    estimator.fit(recorder)
    received = [one.requests["0"] for one in recorder.exchanges if "0" in one.requests]
    return [one for one in received if one.asks_for_data]


def others(value):
    """Return other values of a parameter."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    return [value + 1, value - 1] if isinstance(value, int) else [value * 0.75, value * 1.25]


@pytest.mark.parametrize("case", [one for one in CASES if "sked" not in one and "noisy" not in one])
@pytest.mark.filterwarnings("ignore")
def test_the_first_request_that_a_parameter_changes_states_it(case):
    """Otherwise a rule about the parameter would not hold for that request."""
    usual = requests_to_the_first(case)
    stated = {name for one in usual for name in one.__struct_fields__}
    values = make_estimator(*CASES[case][:2]).get_params()
    n_found = 0
    for name in stated & set(values):
        for other in others(values[name]):
            try:
                changed = requests_to_the_first(case, **{name: other})
            except ValueError:
                continue  # the value is impossible
            pairs = zip(usual, changed, strict=False)
            first = next((both for both in pairs if encode(both[0]) != encode(both[1])), ())
            assert all(hasattr(one, name) for one in first), (name, other)
            n_found += bool(first)
            break
    assert n_found or not any(others(values[name]) for name in stated & set(values))
