"""A site's rules: the schema, every rule for several protocols, and the site's ledger."""

import msgspec
import numpy as np
import pandas as pd
import pytest

from fedlib import (
    DBDC,
    AlignedRows,
    FederatedClusteringScore,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedPipeline,
    FederatedSummary,
    FederatedXGBClassifier,
    GaussianMixtureDBSCAN,
    HorizontalDBSCAN,
    VerticalDBSCAN,
)
from fedlib.clustering.density.horizontal import CellCounts, CountCells, HorizontalDBSCANClient
from fedlib.clustering.density.vertical import VerticalDBSCANClient
from fedlib.clustering.kmeans.messages import FindCentres, LocalCentres
from fedlib.core.client import LostState
from fedlib.core.in_process import InProcess
from fedlib.core.messages import Declined, Done, Labels, decode, encode
from fedlib.core.protocol import TooFewClients
from fedlib.core.registry import protocols
from fedlib.evaluation.messages import MeasureDistances, SumLabelledRows
from fedlib.protection.policy import Allowed, GuardedClient, GuardedState, Policy, Rules
from fedlib.protection.policy.guard import _with_groups
from fedlib.protection.privacy import NoisyRequest
from fedlib.tables.alignment import AlignedClient
from fedlib.tables.pipeline import PipelineClient
from fedlib.testing import Recorder

GRID = HorizontalDBSCAN(cell_size=1.0, min_samples=3)
RNG = np.random.default_rng(0)
POINTS = {
    name: np.concatenate([RNG.normal(0.5, 0.1, (20, 2)), RNG.normal(4.5, 0.1, (20, 2)), [[9, i]]])
    for i, name in enumerate("ABC")
}
CLASSES = np.repeat([0, 1], [20, 21])


def guarded(estimator, policy, name="A", part=None, **options):
    """Return a client of an estimator's protocol that obeys a policy."""
    part = POINTS[name] if part is None else part
    wraps = isinstance(estimator, FederatedPipeline | AlignedRows)
    if wraps:
        options["client_class"] = estimator.estimator.client_class
    client = estimator.client_class(part, **options)
    return GuardedClient(client, Policy.from_dict(policy), estimator.name)


def fit(estimator, policies, min_clients=1, parts=None):
    """Fit with one policy per client; return the estimator, or the error, and the transport."""
    clients = {
        name: guarded(estimator, policies.get(name, {}), name, (parts or POINTS)[name])
        for name in parts or POINTS
    }
    transport = Recorder(clients)
    try:
        return estimator.fit(transport, min_clients=min_clients), transport
    except (TooFewClients, ValueError) as error:
        return error, transport


def replies_of(transport, name):
    return [e.discloses for e in transport.ledger if (e.sender, e.message) == (name, "Declined")]


# The schema --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min_cuont = 5", "min_cuont is not a rule; the rules are min_clients, min_count, "),
        ("min_count = 0", "min_count must be an integer from 1 on; got 0"),
        ("min_count = true", "min_count must be an integer from 1 on; got True"),
        ("max_bytes = 1e6", "max_bytes must be an integer from 1 on; got 1000000.0"),
        ('extremes = "no"', "extremes must be true or false; got 'no'"),
        ("protocols = 1", "protocols must be a table, one table per protocol; got 1"),
        ("[protocols.kmean]", 'protocols."kmean" is not a protocol; the protocols are .*dbdc, '),
        ("protocols.kmeans = 1", 'protocols."kmeans" must be a table, the rules for this'),
        ("[protocols.kmeans]\nmin_rows = 1", 'protocols."kmeans".min_rows is not a rule; the '),
        ("[protocols.kmeans]\nmax_rounds = -1", 'protocols."kmeans".max_rounds must be an integer'),
        ("[protocols.kmeans]\nparameters = 1", "parameters must be a table, one entry per"),
        (
            "[protocols.kmeans.parameters]\nk = {max = 3}",
            "parameters.k: the requests of this protocol have no such parameter; they have .*"
            "n_clusters",
        ),
        ("[protocols.kmeans.parameters]\nn_clusters = 3", "n_clusters must be { min = NUMBER"),
        ("[protocols.kmeans.parameters]\nn_clusters = {max = 'x'}", "got {'max': 'x'}"),
        ("[protocols.kmeans.parameters]\nn_clusters = {min = 3, max = 2}", "got {'min': 3"),
        ("[protocols.kmeans.parameters]\nn_clusters = {in = []}", "got {'in': \\[\\]}"),
        ("[protocols.kmeans.parameters]\nn_clusters = {}", "got {}"),
        ("min_count = ", "cannot be read: Invalid value"),
        ("", "policy.toml: there is no rule; min_count = 1 alone allows everything"),
        ("# min_count = 5", "there is no rule"),
        ("\udcff", "cannot be read"),
    ],
)
def test_an_invalid_policy_is_refused_by_name(text, message, tmp_path):
    path = tmp_path / "policy.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=message):
        Policy.read(path)


def test_a_valid_policy(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(
        'min_clients = 3\nextremes = false\n[protocols."pipeline/dbdc"]\nmin_count = 5\n'
        'parameters.local_model = { in = ["kmeans"] }\nparameters.eps = { min = 1 }\n'
        "[protocols.kmeans]\nmin_clients = 9\n"
    )
    policy = Policy.read(path)
    allowed = {"local_model": Allowed(values=("kmeans",)), "eps": Allowed(min=1)}
    assert policy.rules("pipeline/dbdc") == Rules(3, 5, extremes=False, parameters=allowed)
    assert policy.rules("kmeans") == Rules(9, extremes=False)
    assert policy.rules("dbdc") is None
    assert Policy().rules("dbdc") == Rules()
    with pytest.raises(ValueError, match="cannot be read"):
        Policy.read(tmp_path / "none.toml")


def test_allowed_values():
    assert [str(Allowed(min=1)), str(Allowed(max=2)), str(Allowed(1, 2))] == [
        "at least 1",
        "at most 2",
        "at least 1 and at most 2",
    ]
    assert str(Allowed(values=("a", 1))) == "in ['a', 1]"
    assert not Allowed(max=2).permits(None)
    assert not Allowed(min=2).permits("3")


# The rules ---------------------------------------------------------------------------------------


def test_small_cells_do_not_leave_and_the_site_logs_it(caplog):
    """The 40 points in two cells leave A, the five single points in other cells do not."""
    parts = POINTS | {"A": np.concatenate([POINTS["A"][:40], [[9, i] for i in range(5)]])}
    model, transport = fit(GRID, {"A": {"min_count": 5}}, parts=parts)
    counts = {n: r.counts.tolist() for n, r in transport.exchanges[0].replies.items()}
    assert [sorted(counts[name]) for name in "ABC"] == [[20, 20], [1, 20, 20], [1, 20, 20]]
    assert "left 5 of 7 groups out of CellCounts: fewer than 5 rows (min_count)" in caplog.text
    assert transport.members["A"].state.labels.tolist() == [0] * 20 + [1] * 20 + [-1] * 5
    without = GRID.fit([X[:40] if i == 0 else X for i, X in enumerate(POINTS.values())])
    assert model.cell_counts_.tolist() == without.cell_counts_.tolist()


def test_a_small_rest_takes_a_large_group_with_it():
    """A server that knows the count of all rows would find the rest of one row by subtraction."""
    together = guarded(GRID, {"min_count": 5}).answer(CountCells(1.0))
    singly = guarded(GRID, {"min_count": 5, "groups": "singly"}).answer(CountCells(1.0))
    assert (together.counts.tolist(), singly.counts.tolist()) == ([20], [20, 20])


def test_small_clusters_do_not_leave():
    """Each client has two clusters of 20 points, and one of a single point."""
    estimator = FederatedKMeans(2, method="one_shot", random_state=0)
    request = FindCentres(3, 0.0, 3, 100, 1e-4, 0)
    everything = guarded(estimator, {}).answer(request)
    assert sorted(everything.counts) == [1, 20, 20]
    reply = guarded(estimator, {"min_count": 2, "groups": "singly"}).answer(request)
    assert isinstance(reply, LocalCentres)
    assert reply.counts.tolist() == [20, 20]
    assert set(map(tuple, reply.centres)) < set(map(tuple, everything.centres))


DECLINING = {  # estimators whose reply cannot leave out small groups, and the request declined
    "kmeans": (FederatedKMeans(3, method="lloyd", random_state=0), "SumClusters"),
    "gaussian-mixture": (FederatedGaussianMixture(3, random_state=0), "IntroducePoints"),
    "gaussian-mixture-dbscan": (
        GaussianMixtureDBSCAN(0.5, 1, n_components=2, random_state=0),
        "DescribeClusters",
    ),
    "summary": (FederatedSummary(), "FindExtremes"),
    "dbdc": (DBDC(0.5, 3), "BuildLocalModel"),
}


@pytest.mark.parametrize("name", DECLINING)
def test_requests_for_small_groups_are_declined(name, caplog):
    """The client that declines leaves or is passive; the run goes on with the others."""
    estimator, request = DECLINING[name]
    model, transport = fit(estimator, {one: {"min_count": 5} for one in "ABC"})
    assert isinstance(model, TooFewClients | ValueError)
    declined = [n for n in "ABC" if replies_of(transport, n)]
    assert declined
    for one in declined:
        assert replies_of(transport, one)[0] == (
            "the rule that forbids the reply (min_count), which depends on the rows"
        )
        assert f"client {one!r} declined {request} (min_count)" in caplog.text
        assert f"declined {request}: " in caplog.text  # at the site


def test_distances_of_a_small_cluster_are_declined():
    """Distances from centroids that the server chooses are no sums over groups of rows."""
    labels = np.repeat([0, 1, 2], [20, 20, 1])
    client = guarded(FederatedClusteringScore(), {"min_count": 5}, part=(POINTS["A"], labels))
    request = MeasureDistances("cluster", 1, np.array([0, 1, 2]), np.zeros((3, 2)))
    assert client.answer(request) == Declined("min_count")
    policy = {"min_count": 5, "groups": "singly"}
    client = guarded(FederatedClusteringScore(), policy, part=(POINTS["A"], labels))
    assert client.answer(SumLabelledRows("cluster", 5, 10)) == Declined("min_count")  # the rest
    labels[-5:] = 2
    client = guarded(FederatedClusteringScore(), policy, part=(POINTS["A"], labels))
    moments = client.answer(SumLabelledRows("cluster", 5, 10))
    assert moments.counts.tolist() == [20, 16, 5]


def test_single_rows_are_declined_for_vertical_protocols():
    parts = {"A": POINTS["A"][:, :1], "B": POINTS["A"][:, 1:]}
    error, transport = fit(VerticalDBSCAN(1.0, 3), {"A": {"min_count": 5}}, None, parts)
    assert "Declined (min_count) at FindNeighbours, step 2" in str(error)
    assert transport.ledger.lost == {"A": "Declined (min_count) at FindNeighbours, step 2"}


def test_a_few_values_in_a_column_are_too_few_for_a_mean():
    """The filled gaps do not count: they would make the mean look like one of many values."""
    table = pd.DataFrame({"x": [1.0] * 8, "y": [3.0, *[None] * 7]})
    rest = pd.DataFrame({"x": [1.0] * 8, "y": [3.0] * 8})
    estimator = FederatedPipeline(GRID, scale="standard", impute="mean")
    _, transport = fit(estimator, {"A": {"min_count": 2}}, parts={"A": table, "B": rest, "C": rest})
    assert replies_of(transport, "A")
    _, transport = fit(estimator, {"B": {"min_count": 2}}, parts={"A": table, "B": rest, "C": rest})
    assert not transport.ledger.lost


@pytest.mark.parametrize("wanted", [None, 3])
def test_declined_requests_with_and_without_min_clients(wanted):
    """A client that declines from the start stays and receives the result; later it is lost."""
    policy = {"protocols": {"kmeans": {}}}
    model, transport = fit(GRID, {"B": policy}, wanted)
    assert replies_of(transport, "B") == ["the rule that forbids the reply (protocol)"]
    assert transport.members["B"].state.labels.tolist() == model.predict(POINTS["B"]).tolist()
    estimator = FederatedPipeline(GRID, scale="minmax")
    error, transport = fit(estimator, {"B": {"extremes": False}}, wanted)
    assert isinstance(error, TooFewClients)
    assert "'B': Declined (extremes) at FindExtremes, step 2" in str(error)
    model, transport = fit(estimator, {"B": {"extremes": False}}, 2)
    assert set(transport.ledger.lost) == {"B"}
    expected = FederatedPipeline(GRID, scale="minmax").fit([POINTS["A"], POINTS["C"]])
    assert model.estimator_.cell_counts_.tolist() == expected.estimator_.cell_counts_.tolist()


def test_all_clients_decline():
    error, _ = fit(GRID, {one: {"protocols": {}} for one in "ABC"})
    assert str(error) == "every client is passive or declined, so nobody shares any data"


@pytest.mark.parametrize(
    ("estimator", "parameters", "permitted"),
    [
        (GRID, {"cell_size": {"min": 2}}, False),
        (GRID, {"cell_size": {"min": 0.5, "max": 1}}, True),
        (DBDC(0.5, 3), {"min_samples": {"min": 5}}, False),
        (DBDC(0.5, 3), {"local_model": {"in": ["kmeans"]}}, False),
        (DBDC(0.5, 3), {"local_model": {"in": ["core", "kmeans"]}}, True),
        (FederatedKMeans(3, method="one_shot", random_state=0), {"n_clusters": {"max": 2}}, False),
        (FederatedKMeans(3, init=np.eye(3, 2)), {"n_clusters": {"max": 2}}, False),  # of centres
        (FederatedPipeline(GRID), {"cell_size": {"max": 0.5}}, False),
    ],
)
def test_parameters_beyond_their_range_are_declined(estimator, parameters, permitted, caplog):
    policy = {"protocols": {estimator.name: {"parameters": parameters}}}
    _, transport = fit(estimator, {"A": policy})
    declined = {"the rule that forbids the reply (parameters)"}
    assert set(replies_of(transport, "A")) == (set() if permitted else declined)
    if not permitted:
        assert f"{next(iter(parameters))} must be " in caplog.text


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        ({"protocols": {}}, "protocol"),
        ({"min_clients": 4}, "min_clients"),
        ({"budget": {"epsilon": 1.0}}, "budget"),
        ({"protocols": {GRID.name: {"parameters": {"cell_size": {"min": 2}}}}}, "parameters"),
        ({"max_declines": 1}, "max_declines"),
    ],
)
def test_whether_a_request_may_be_asked_is_decided_without_the_rows(policy, rule, monkeypatch):
    client = guarded(GRID, policy)
    client.enter("A", 3)
    client.records.add("declined", GRID.name)
    monkeypatch.delattr(client.inner, "X")
    monkeypatch.setattr(client.inner, "handle", lambda request: pytest.fail("it was computed"))
    assert client.answer(CountCells(1.0)) == Declined(rule)


def test_the_number_of_clients_comes_from_the_transport(caplog):
    request, policy = CountCells(1.0), {"min_clients": 3}
    for n_clients, permitted in ((None, False), (2, False), (3, True)):
        client = guarded(GRID, policy)
        client.enter("A", n_clients)
        reply = client.answer(request)
        assert reply == (client.inner.answer(request) if permitted else Declined("min_clients"))
    assert "must have at least 3 clients, has an unknown number" in caplog.text
    assert not fit(GRID, dict.fromkeys("ABC", policy))[1].ledger.lost


def test_rounds_and_bytes_are_limited_for_the_whole_run():
    """They are part of the state, so a client that is rebuilt continues to count."""
    estimator = FederatedKMeans(3, method="lloyd", random_state=0, max_iter=5, n_init=1)
    make = {n: (lambda n=n: guarded(estimator, {"max_rounds": 2}, n)) for n in "ABC"}
    recorder = Recorder({n: one() for n, one in make.items()}, rebuild=lambda n: make[n]())
    with pytest.raises(TooFewClients, match=r"Declined \(max_rounds\) at SumClusters, step 3"):
        estimator.fit(recorder)
    _, transport = fit(estimator, {"A": {"max_bytes": 500}})
    assert transport.ledger.lost["A"].startswith("Declined (max_bytes) at SumClusters")
    sent = sum(e.bytes for e in transport.ledger if e.sender == "A" and e.message != "Declined")
    assert 0 < sent <= 500


def test_a_client_that_has_declined_declines_the_rest():
    """The first reply is too large, the later ones would not be; the client takes no part."""
    estimator = FederatedKMeans(3, method="lloyd", random_state=0, max_iter=5, n_init=1)
    model, transport = fit(estimator, {"A": {"max_bytes": 300}}, 3)
    assert not transport.ledger.lost
    assert set(replies_of(transport, "A")) == {
        "the rule that forbids the reply (max_bytes), which depends on the rows"
    }
    expected = FederatedKMeans(3, method="lloyd", random_state=0, max_iter=5, n_init=1)
    expected.fit([POINTS["B"], POINTS["C"]])
    assert model.cluster_centers_.tolist() == expected.cluster_centers_.tolist()


def test_rules_do_not_hold_back_results():
    """A result is delivered even when nothing may leave: the reply has no content."""
    client = guarded(GRID, {"protocols": {}, "max_rounds": 1})
    assert client.answer(CountCells(1.0)) == Declined("protocol")
    model = GRID.fit(list(POINTS.values()))
    request = Recorder({"A": HorizontalDBSCANClient(POINTS["A"])})
    model = GRID.fit(request)
    assert client.answer(request.exchanges[-1].requests["A"]) == Done()
    assert client.state.labels.tolist() == model.predict(POINTS["A"]).tolist()


def test_a_passive_client_gives_no_rule():
    client = guarded(GRID, {"protocols": {}})
    client.passive = True
    assert client.answer(CountCells(1.0)) == Declined()


def test_a_person_may_refuse_a_reply():
    seen = []
    client = GuardedClient(
        HorizontalDBSCANClient(POINTS["A"]), review=lambda *pair: seen.append(pair) or False
    )
    assert client.answer(CountCells(1.0)) == Declined("review")
    assert [type(one) for one in seen[0]] == [CountCells, CellCounts]


def test_alignment_under_rules():
    """Pseudonyms describe single rows, so a minimum count declines them."""
    estimator = AlignedRows(VerticalDBSCAN(1.0, 2))
    members = {}
    for i, (name, policy) in enumerate((("A", {"min_count": 2}), ("B", {}))):
        client = AlignedClient(
            POINTS["A"][:, [i]], VerticalDBSCANClient, ids=range(41), key=bytes(32)
        )
        members[name] = GuardedClient(client, Policy.from_dict(policy), estimator.name)
    with pytest.raises(ValueError, match=r"every client is needed, .* decline: \['A'\]"):
        estimator.fit(InProcess(members))


def test_boosting_under_rules():
    estimator = FederatedXGBClassifier(n_trees=1, method="top_splits")
    parts = {name: (X, CLASSES) for name, X in POINTS.items()}
    _, transport = fit(estimator, {"A": {"min_count": 2}}, 2, parts)
    assert transport.ledger.lost["A"].startswith("Declined (min_count) at ProposeSplits")


def test_scores_of_clusters_under_rules():
    """Each client has one point apart, in a cluster of its own: it is withheld, or A declines."""
    labels = np.repeat([0, 1, 2], [20, 20, 1])
    parts = {name: (X, labels) for name, X in POINTS.items()}
    rules = {"A": {"min_count": 2}}
    model, transport = fit(FederatedClusteringScore(min_group_size=2), rules, 3, parts)
    assert (model.n_withheld_, transport.ledger.lost) == (2, {})  # A would show a rest of one row
    model, transport = fit(FederatedClusteringScore(), rules, 2, parts)
    assert replies_of(transport, "A")
    assert model.model_.counts.tolist() == [40, 40, 2]
    client = guarded(FederatedClusteringScore(), rules["A"], part=parts["A"])
    request = MeasureDistances("exclude", 1, np.array([0, 1, 2]), np.zeros((3, 2)))
    assert client.answer(request) == Declined("min_count")


def test_scores_from_distances_are_not_known_with_a_minimum_count():
    labels = np.repeat([0, 1], [20, 21])
    parts = {name: (X, labels) for name, X in POINTS.items()}
    with pytest.warns(UserWarning, match="only Calinski-Harabasz is known: 'A' declined Measure"):
        model, transport = fit(FederatedClusteringScore(), {"A": {"min_count": 5}}, None, parts)
    assert not transport.ledger.lost
    known = {name for name, score in model.scores_.items() if np.isfinite(score)}
    assert known == {"Calinski-Harabasz"}


def test_lloyd_ends_with_its_last_model():
    """A round that moves a single row is declined; the centres before it stay, and A gets them."""
    X = np.arange(12.0)[:, np.newaxis]
    parts = {"A": X, "B": X + 0.25, "C": X + 0.5}
    estimator = FederatedKMeans(2, method="lloyd", init=[[0.0], [5.0]], tol=0)
    expected = FederatedKMeans(2, method="lloyd", init=[[0.0], [5.0]], tol=0, max_iter=2)
    expected.fit(list(parts.values()))
    with pytest.warns(UserWarning, match="ended early: 'A' declined SumClusters .min_count"):
        model, transport = fit(estimator, {"A": {"min_count": 2}}, None, parts)
    assert model.n_iter_ == 2
    assert np.isnan(model.inertia_)
    assert model.cluster_centers_.tolist() == expected.cluster_centers_.tolist()
    assert transport.members["A"].state.labels.tolist() == model.predict(X).tolist()
    assert not transport.ledger.lost
    drawn = FederatedKMeans(2, method="lloyd", random_state=0)
    error, _ = fit(drawn, {"A": {"min_count": 3}}, None, parts)
    assert "give init as an array, and so n_init=1" in str(error)


def test_one_shot_kmeans_without_its_inertia():
    estimator = FederatedKMeans(2, method="one_shot", random_state=0)
    with pytest.warns(UserWarning, match="there is no inertia: 'A' declined MeasureInertia"):
        model, _ = fit(estimator, {"A": {"min_count": 2}})
    assert np.isnan(model.inertia_)


# The declarations --------------------------------------------------------------------------------


def test_the_replies_that_a_minimum_count_always_declines():
    """All others are sums over groups of rows, which the client states."""
    kinds = [estimator.client_class for estimator in protocols().values()]
    requests = {
        request: kind.partitioners.get(request, ("", None))[1]
        for kind in [*kinds, AlignedClient, PipelineClient]
        for request in kind.handlers
        if request.asks_for_data and request.reply.__module__.startswith("fedlib.")
    }
    noisy = {request for request in requests if issubclass(request, NoisyRequest)}
    no_rows = {request for kind in kinds for request in kind.open_requests}
    declined = {kind.__name__ for kind, singly in requests.items() if singly is None}
    declined -= {request.__name__ for request in noisy | no_rows}
    mixtures = {"IntroducePoints", "FitMixture", "SumResponsibilities", "ImproveMixture"}
    mixtures |= {"MeasureLikelihood", "DescribeClusters"}
    mixtures |= {"SumWeightedResponsibilities", "ImproveWeightedMixture"}
    single_rows = {"FindNeighbours", "ListPseudonyms", "BuildLocalModel", "ChooseRepresentatives"}
    chosen = {"MeasureInertia", "MeasureDistances", "ProposeSplits", "EvaluateSplits", "ScoreRows"}
    extremes = {"FindExtremes"}
    # only of runs with secure sums
    masked = {"SumPoints", "SumClasses", "SumTargets"}
    masked |= {"CountPoints", "SumClippedClusters"}
    masked |= {"SumClippedResponsibilities", "SumWeightedPoints", "SumClippedWeightedClusters"}
    masked |= {"SumClippedWeightedResponsibilities", "SumClippedColumns"}
    assert declined == mixtures | single_rows | chosen | extremes | masked
    singly = {kind.__name__ for kind, one in requests.items() if one}
    histograms = {"BuildHistograms", "BuildPackedHistograms", "SumHistograms"}
    residuals = {"SumResiduals", "SumRoots"}
    assert singly == histograms | residuals | {"SumLeaves", "ReportMagnitude", "DescribeTargets"}


def test_leaving_out_small_groups_shortens_every_array_of_the_axis():
    reply = LocalCentres(np.arange(6.0).reshape(3, 2), np.array([4, 1, 5]), ("x", "y"))
    shorter = _with_groups(reply, np.array([True, False, True]))
    assert shorter.centres.tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert shorter.features == ("x", "y")
    assert _with_groups(reply, np.zeros(3, bool)).centres.shape == (0, 2)


# The ledger and the state ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator",
    [
        GRID,
        DBDC(0.5, 3),
        FederatedKMeans(3, method="lloyd", random_state=0),
        FederatedPipeline(GRID, scale="standard"),
        FederatedSummary(),
    ],
    ids=lambda estimator: estimator.name,
)
@pytest.mark.parametrize("policy", [{}, {"max_rounds": 1}])
def test_the_ledger_of_a_site_is_its_part_of_the_servers(estimator, policy):
    _, transport = fit(estimator, {"A": policy})
    for name, client in transport.members.items():
        expected = [e for e in transport.ledger if name in (e.sender, e.receiver)]
        assert client.ledger.entries == expected
        assert client.state.ledger == client.ledger
        assert client.state.n_bytes == sum(e.bytes for e in expected if e.sender == name)


def test_a_failure_is_in_the_ledger_of_the_site():
    class Failing(HorizontalDBSCANClient):
        def handle(self, request):
            raise OSError("disk full")

    clients = {
        "A": GuardedClient(Failing(POINTS["A"])),
        "B": HorizontalDBSCANClient(POINTS["B"]),
    }
    transport = Recorder(clients)
    GRID.fit(transport, min_clients=1)
    expected = [e for e in transport.ledger if "A" in (e.sender, e.receiver)]
    assert clients["A"].ledger.entries == expected
    assert expected[-1].discloses == "the type of an error (OSError)"


def test_without_rules_nothing_changes():
    """The same bytes pass, for clients that are rebuilt too."""
    for estimator in (GRID, FederatedPipeline(GRID, scale="minmax")):
        options = {"client_class": HorizontalDBSCANClient} if estimator is not GRID else {}
        plain = Recorder({n: estimator.client_class(X, **options) for n, X in POINTS.items()})
        estimator.fit(plain)
        other = Recorder(
            {n: guarded(estimator, {}, n) for n in "ABC"},
            rebuild=lambda n, e=estimator: guarded(e, {}, n),
        )
        estimator.fit(other)
        assert other.all_bytes == plain.all_bytes
        for name in "ABC":
            labels = [one.members[name].state.labels.tolist() for one in (plain, other)]
            assert labels[0] == labels[1]


def test_states():
    client = guarded(GRID, {})
    assert client.state == GuardedState()
    client.answer(CountCells(1.0))
    again = guarded(GRID, {})
    again.state = decode(encode(client.state))
    assert again.state == client.state
    again.state = None
    assert again.state == GuardedState()
    with pytest.raises(LostState, match="no GuardedState but a Labels"):
        again.state = Labels(np.zeros(1, np.int64))
    assert not hasattr(client.state, "labels")


def test_over_flower():
    pytest.importorskip("flwr")
    from fedlib.transports.flower import Flower, LocalFlowerGrid, client_app

    policies = [{"min_count": 2, "min_clients": 3}, {"max_rounds": 1}, {"protocols": {}}]

    def make(context):
        i = context.node_config["partition-id"]
        return guarded(GRID, policies[i], "ABC"[i])

    there = HorizontalDBSCAN(1.0, 3).fit(Flower(LocalFlowerGrid(client_app(make), 3), 3))
    clients = {str(i): guarded(GRID, policy, "ABC"[i]) for i, policy in enumerate(policies)}
    here = HorizontalDBSCAN(1.0, 3).fit(InProcess(clients))
    assert there.ledger_ == here.ledger_
    assert there.cell_counts_.tolist() == here.cell_counts_.tolist()


def test_the_rule_is_a_word():
    """The server cannot receive a text from a site in the place of the rule."""
    fields = msgspec.msgpack.decode(encode(Declined("min_count")))
    assert fields == {"type": "Declined", "rule": "min_count"}
    for rule in ("patient 7", "x" * 33):
        with pytest.raises(ValueError, match="rule"):
            decode(msgspec.msgpack.encode(fields | {"rule": rule}))
    assert encode(Declined()) == msgspec.msgpack.encode({"type": "Declined"})
