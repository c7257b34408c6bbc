"""Requests that deliver a result are answered with `Done`, whatever the rows of the site are."""

import re
from functools import cache

import numpy as np
import pandas as pd
import pytest
from all_protocols import OURS, PROTOCOLS

from fedlib import FederatedPipeline, HorizontalDBSCAN
from fedlib.boosting.client import BoostingClient
from fedlib.clustering.density.horizontal import AssignCells, HorizontalDBSCANClient
from fedlib.clustering.density.vertical import VerticalDBSCANClient
from fedlib.clustering.kmeans import FederatedKMeansClient
from fedlib.core.client import Client, handles
from fedlib.core.messages import Declined, Done, decode, encode, registry
from fedlib.core.protocol import serve
from fedlib.core.registry import protocols
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.protection.secure.points import DescribeFeatures
from fedlib.tables.alignment import AlignedClient, KeepRows
from fedlib.tables.pipeline import PipelineClient
from fedlib.tables.pipeline.messages import Preprocess
from fedlib.testing import Recorder

IDENTITY = simulated_identities(["0", "1", "2"])["0"]
STRICT = Policy.from_dict({"min_count": 10**6, "extremes": False, "max_rounds": 1, "max_bytes": 1})
TABLES = {
    "ordinary": lambda X: X,
    "one row": lambda X: X[:1],
    "no rows": lambda X: X[:0],
    "huge": lambda X: np.full_like(X, 1e300),
    "one huge row": lambda X: np.concatenate([X, np.full_like(X[:1], -1.7e308)]),
    "infinite": lambda X: np.full_like(X, np.inf),
    "gaps": lambda X: np.full_like(X, np.nan),
    "another width": lambda X: np.concatenate([X, X], axis=1),
}


DELIVERING = [
    name
    for name in sorted(OURS)
    if not all(kind.asks_for_data for kind in protocols()[name].client_class.handlers)
]


@cache
def delivery(name):
    """Return the request of the last delivery in a run of a protocol."""
    parameters, parts = PROTOCOLS[name]
    estimator = protocols()[name](**parameters)
    clients = {str(i): estimator.client_class(part) for i, part in enumerate(parts())}
    recorder = Recorder(clients)
    estimator.fit(recorder)
    sent = [one for exchange in recorder.exchanges for one in exchange.requests.values()]
    return [request for request in sent if not request.asks_for_data][-1]


def test_every_request_that_asks_for_no_data_is_tested():
    ours = {kind for kind in registry.values() if kind.__module__.startswith("fedlib.")}
    quiet = {kind.__name__ for kind in ours if not kind.asks_for_data}
    elsewhere = {"KeepRows", "Preprocess", "PreprocessAndProject"}  # of wrappers, below
    elsewhere |= {"BeginFold", "TakeModel"}  # tests/sites/test_leave_one_out.py
    assert quiet == {type(request).__name__ for request in map(delivery, DELIVERING)} | elsewhere


def wrapped(client, protection):
    """Return a client with the protection that a site may have."""
    if "masked" in protection:
        client = SecureClient(client, IDENTITY)
    return GuardedClient(client, STRICT, "any") if "guarded" in protection else client


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("protection", ["plain", "passive", "guarded", "passive masked guarded"])
@pytest.mark.parametrize("protocol", DELIVERING)
def test_a_delivery_is_answered_with_done(protocol, protection, table):
    """The client is made from ordinary rows, and then has others, as after a faulty check."""
    parts = PROTOCOLS[protocol][1]
    client = protocols()[protocol].client_class(parts()[0])
    client.X = TABLES[table](np.asarray(client.X, np.float64))
    client.passive = "passive" in protection
    site = wrapped(client, protection)
    site.enter("0", 3)
    request = delivery(protocol)
    assert decode(serve(site, encode(request))) == Done()
    assert decode(serve(site, encode(request))) == Done()


@pytest.mark.parametrize("table", ["one row", "no rows", "huge", "one huge row"])
@pytest.mark.parametrize("protocol", DELIVERING)
def test_the_kind_of_state_after_a_delivery_does_not_depend_on_rows(protocol, table):
    states = []
    for one in ("ordinary", table):
        client = protocols()[protocol].client_class(PROTOCOLS[protocol][1]()[0])
        client.X = TABLES[one](np.asarray(client.X, np.float64))
        client.answer(delivery(protocol))
        states.append(type(client.state))
    assert states[0] is states[1]


def test_a_row_out_of_range_has_no_label_and_the_site_learns_it(caplog):
    request = delivery("horizontal-dbscan")
    client = HorizontalDBSCANClient([[0.0, 0.0], [1e300, 0.0]])
    assert client.answer(request) == Done()
    assert client.state.labels.tolist() == [request.place(np.zeros((1, 2)))[0], -1]
    assert client.problems == (
        "AssignCells: 1 of 2 rows, the first is row 1, are so large that they have no cell of the"
        " size 0.5; their label is -1",
    )
    assert client.problems[0] in caplog.text


RULES = {"features": ("size", "sex"), "kinds": np.array([0, 1], np.uint8), "categorical": ()}
RULES |= {name: np.ones(2) for name in ("fill", "centre", "spread")}
RULES |= {"gaps": "fill", "lengths": np.array([0, 2]), "categories": ("f", "m")}
CELLS = AssignCells(1.0, np.array([[0, 0, 1]]), np.array([0]), "point", "full")


@pytest.mark.parametrize(
    ("column", "values", "problem"),
    [
        ("sex", ["f", "x", "x"], "column 'sex' must contain one of the 2 categories of fit"),
        ("size", ["a", "b", "c"], "column 'size' must contain numbers, got 'a' in row 1"),
    ],
)
def test_rows_that_do_not_fit_a_preprocessing_take_no_part(column, values, problem):
    """What the server sees is the same as for a table that fits."""
    table = pd.DataFrame({"size": [1.0, 1.0, 1.0], "sex": ["f", "m", "f"]})
    odd = table.assign(**{column: values})
    requests = [Preprocess(**RULES, unknown="error"), CELLS]
    replies = {}
    for name, part in {"fits": table, "odd": odd}.items():
        client = PipelineClient(part, HorizontalDBSCANClient)
        client.passive = True
        replies[name] = [serve(client, encode(request)) for request in requests]
    assert replies["odd"] == replies["fits"]
    assert client.problems[0].startswith(f"Preprocess: {3 if column == 'size' else 2} of 3 rows")
    assert problem in client.problems[0]
    assert client.state.labels[-1] == -1


def preprocessing(**changes):
    return Preprocess(**RULES | {"unknown": "ignore"} | changes)


WORDS = {"kinds": np.array([0, 3], np.uint8), "lengths": np.zeros(2, int), "categories": ()}
TINY = {"spread": np.array([1e-99, 1.0])}


@pytest.mark.parametrize(
    ("rules", "value", "client_class"),
    [
        (TINY, 12.0, FederatedKMeansClient),
        (TINY, 12.0, HorizontalDBSCANClient),
        ({"spread": np.array([1e-37, 1.0])}, 30.0, BoostingClient),
        ({"spread": np.array([5e-324, 1.0])}, 1.5, BoostingClient),
        ({"gaps": "keep"}, np.nan, FederatedKMeansClient),
        ({"gaps": "keep"}, np.nan, HorizontalDBSCANClient),
        ({"fill": np.array([1e100, 1.0]), **TINY}, np.nan, FederatedKMeansClient),
        (WORDS, 1.0, FederatedKMeansClient),
        (WORDS, 1.0, BoostingClient),
    ],
)
def test_whether_rules_are_applied_does_not_depend_on_rows(rules, value, client_class):
    """A row that the protocol's client cannot take, takes no part: free requests do not show it."""
    table = pd.DataFrame({"size": [1.0, 2.0, 3.0, 2.0], "sex": ["f", "m", "f", "7"]})
    odd = table.assign(size=[1.0, value, 3.0, 2.0])
    seen = {}
    for name, part in {"usual": table, "odd": odd}.items():
        part = (part, [0, 1, 0, 1]) if client_class is BoostingClient else part
        client = PipelineClient(part, client_class)
        replies = [client.answer(preprocessing(**one)) for one in ({}, rules)]
        replies += [client.answer(DescribeFeatures()), client.answer(CELLS)]
        again = PipelineClient(part, client_class)
        again.state = decode(encode(client.state))
        seen[name] = [*replies, again.answer(DescribeFeatures())]
    assert seen["odd"] == seen["usual"]
    if rules is not WORDS:
        part = odd.drop(1)
        part = (part, [0, 0, 1]) if client_class is BoostingClient else part
        usual = PipelineClient(part, client_class)
        usual.answer(preprocessing(**rules))
        np.testing.assert_array_equal(np.asarray(client.inner.X), np.asarray(usual.inner.X))


def test_rows_that_a_client_cannot_take_are_found_by_asking_it():
    class Particular(HorizontalDBSCANClient):
        def __init__(self, X):
            if (np.asarray(X, float) == 13).any():
                raise ValueError("13")
            super().__init__(X)

    client = PipelineClient(np.arange(20.0)[:, np.newaxis], Particular)
    zero, one, lengths = np.zeros(1), np.ones(1), np.zeros(1, int)
    kinds = np.zeros(1, np.uint8)
    rules = Preprocess((), kinds, (), "fill", zero, zero, one, lengths, (), "ignore")
    client.answer(rules)
    assert client.inner.X[:, 0].tolist() == [x for x in range(20) if x != 13]
    assert client.problems == ("Preprocess: 1 of 20 rows take no part: ValueError: 13",)


def test_a_preprocessing_that_does_not_fit_the_table_is_answered_with_done():
    client = PipelineClient(pd.DataFrame({"age": [1.0]}), HorizontalDBSCANClient)
    client.passive = True
    for request in (Preprocess(**RULES, unknown="error"), CELLS):
        assert decode(serve(client, encode(request))) == Done()
    assert "'size', 'sex' are missing" in client.problems[0]


def test_a_mark_per_row_that_does_not_fit_is_answered_with_done():
    request = KeepRows(np.array([True, False]))
    shorter = AlignedClient([[0.0]], VerticalDBSCANClient, ids=["a"], key=bytes(32))
    assert shorter.answer(request) == Done()
    assert "there must be 1 marks, one per row; got 2" in shorter.problems[0]


# In Python -----------------------------------------------------------------------------------


def far_away():
    return [[[0.1, 0.0], [0.2, 0.0]], [[1e300, 0.0]]]


def test_fit_refuses_a_part_whose_rows_do_not_fit_the_result():
    text = "parts[1]: AssignCells: 1 of 1 rows, the first is row 0, are so large"
    with pytest.raises(ValueError, match=re.escape(text)):
        HorizontalDBSCAN(1.0, 2).fit(far_away(), passive=[1])


def test_fit_warns_of_such_a_part_if_clients_may_be_lost():
    with pytest.warns(UserWarning, match=r"parts\[1\]: AssignCells"):
        model = HorizontalDBSCAN(1.0, 2).fit(far_away(), passive=[1], min_clients=1)
    assert [labels.tolist() for labels in model.labels_] == [[0, 0], [-1]]


def test_a_passive_part_with_an_unknown_category_is_refused_by_name():
    parts = [pd.DataFrame({"s": ["a", "b"] * 3}), pd.DataFrame({"s": ["z"]})]
    model = FederatedPipeline(
        HorizontalDBSCAN(0.5, 1), encode="one_hot", unknown="error", min_category_count=1
    )
    with pytest.raises(ValueError, match=r"parts\[1\]: Preprocess: .* got 'z' in row 1"):
        model.fit(parts, passive=[1])


# Failures of other requests stay failures ---------------------------------------------------------


class Stubborn(Client):
    """A client that fails at every request."""

    def __init__(self):
        self.X = np.zeros((1, 1))

    @handles(AssignCells)
    def fail_at(self, request):
        raise RuntimeError("a text about the rows")


def test_the_reason_stays_at_the_site_and_a_request_for_data_still_fails(caplog):
    client = Stubborn()
    assert decode(serve(client, encode(CELLS))) == Done()
    assert client.problems == ("AssignCells: a text about the rows",)
    assert "a text about the rows" in caplog.text
    asked = next(iter(HorizontalDBSCAN(1.0, 2).protocol()))
    assert type(decode(serve(client, encode(asked)))).__name__ == "Failure"
    client.passive = True
    assert decode(serve(client, encode(asked))) == Declined()
