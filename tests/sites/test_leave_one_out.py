"""Leave-one-site-out: the scores, what each site is asked, budgets, policies and lost sites."""

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import numpy as np
import pandas as pd
import pytest
from all_protocols import fitted, frozen

from fedlib import (
    AlignedRows,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedPCA,
    FederatedPipeline,
    FederatedXGBClassifier,
    FederatedXGBRegressor,
    LeaveOneSiteOut,
    Schema,
    VerticalDBSCAN,
)
from fedlib.boosting.client import BoostingClient, RegressionClient
from fedlib.boosting.messages import BeginBoosting
from fedlib.core.client import LostState
from fedlib.core.messages import Declined, decode, encode, privacy_of
from fedlib.core.protocol import TooFewClients
from fedlib.core.site_memory import TableMemory
from fedlib.evaluation.messages import CountClassScores, SumLabelledRows
from fedlib.evaluation.selection import cross_validate_sites
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import Privacy
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.protection.secure.points import DescribeFeatures
from fedlib.sites.leave_one_out.flow import BeginFold, LeftOutClient, TakeModel
from fedlib.sites.models import load, save, to_bytes
from fedlib.sites.site import make_client, make_estimator
from fedlib.tables.files import Table
from fedlib.tables.pipeline.client import PipelineClient
from fedlib.tables.pipeline.messages import Preprocess
from fedlib.testing import Recorder, seeded_noise

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 2)) + 3 * (np.arange(120) % 2)[:, np.newaxis]
Y = (X.sum(axis=1) + RNG.normal(size=120) > 3).astype(int)
ROWS = dict(zip("ABCD", np.array_split(np.arange(120), 4), strict=True))
TABLES = {name: X[rows] for name, rows in ROWS.items()}
LABELLED = {name: (X[rows], Y[rows]) for name, rows in ROWS.items()}
NUMBERS = {name: (X[rows], X[rows].sum(axis=1)) for name, rows in ROWS.items()}
TREES = FederatedXGBClassifier(3, max_depth=2)
KMEANS = FederatedKMeans(2, init=[[0.0, 0.0], [3.0, 3.0]])
PIPELINE = FederatedPipeline(TREES, scale="standard", impute="mean", pca=2)
BOUNDS = [[-6.0, -6.0], [10.0, 10.0]]
NOISY = {"bounds": BOUNDS, "epsilon": 8.0}
PRIVATE = FederatedXGBClassifier(2, max_depth=2, method="histogram", classes=[0, 1], **NOISY)
PRIVATE_NUMBERS = FederatedXGBRegressor(
    2, max_depth=2, method="histogram", base_score=3.0, max_gradient=1.0, **NOISY
)
LIMITS = {"minimum": -6, "maximum": 10, "required": True}
SCHEMA = Schema.from_json(
    json.dumps(
        {
            "schema": {
                "fields": [
                    *({"name": name, "type": "number", "constraints": LIMITS} for name in "ab"),
                    {
                        "name": "y",
                        "type": "integer",
                        "constraints": {"enum": [0, 1], "required": True},
                        "fedlib": {"role": "target"},
                    },
                ]
            }
        }
    ).encode()
)


@pytest.fixture(autouse=True)
def same_noise():
    """Draw the same noise in every run, because noise can end a tree early."""
    with seeded_noise(0):
        yield


def clients_of(estimator, parts, wrap=lambda client, name: client):
    make, options = estimator._client_factory([{}] * len(parts))
    return {
        name: wrap(make(part, **given), name)
        for (name, part), given in zip(parts.items(), options, strict=True)
    }


def masked(parts):
    identities = simulated_identities(list(parts))
    return lambda client, name: SecureClient(client, identities[name])


def guarded(rules, protocol):
    return lambda client, _: GuardedClient(client, Policy.from_dict(rules), protocol)


# Scores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [TREES, PIPELINE], ids=["boosting", "pipeline"])
def test_classes_are_scored_as_in_one_process(estimator):
    model = LeaveOneSiteOut(estimator).fit(LABELLED)
    wanted = cross_validate_sites(estimator, LABELLED, scoring=["accuracy", "neg_log_loss"])
    assert model.sites_ == tuple("ABCD")
    assert model.scores_["accuracy"].tolist() == wanted["test_accuracy"].tolist()
    np.testing.assert_allclose(model.scores_["log-loss"], -wanted["test_neg_log_loss"])
    assert model.to_frame().index.tolist() == list("ABCD")
    assert "Brier score" in model.report()


def test_numbers_and_clusters_are_scored_as_in_one_process():
    trees = FederatedXGBRegressor(3, max_depth=2)
    model = LeaveOneSiteOut(trees).fit(NUMBERS)
    wanted = cross_validate_sites(trees, NUMBERS)["test_score"]
    np.testing.assert_allclose(model.scores_["R2"], wanted)
    for estimator in (KMEANS, FederatedGaussianMixture(2, random_state=0)):
        model = LeaveOneSiteOut(estimator).fit(TABLES)
        folds = cross_validate_sites(
            estimator, TABLES, scoring=lambda *_: 0, return_estimator=True
        )["estimator"]
        for one, rows, score in zip(folds, TABLES.values(), model.model_.scores, strict=True):
            labels = one.predict(rows)
            assert score.counts.tolist() == np.bincount(labels).tolist()
            expected = [rows[labels == k].mean(axis=0) for k in score.labels]
            np.testing.assert_allclose(score.means, expected)


def test_a_schema_and_rows_left_out():
    tables = {
        name: pd.DataFrame(rows, columns=["a", "b"]).assign(y=y)
        for name, (rows, y) in LABELLED.items()
    }
    trees = FederatedXGBClassifier(3, max_depth=2, schema=SCHEMA)
    model = LeaveOneSiteOut(trees).fit(tables)
    assert model.scores_["accuracy"].tolist() == (
        LeaveOneSiteOut(TREES).fit(LABELLED).scores_["accuracy"].tolist()
    )
    holes = {name: (rows.copy(), y) for name, (rows, y) in LABELLED.items()}
    holes["B"][0][:5, 0] = np.nan
    model = LeaveOneSiteOut(FederatedPipeline(TREES, impute="drop")).fit(holes)
    assert model.model_.scores[1].confusion.sum() == len(ROWS["B"]) - 5


@pytest.mark.parametrize("estimator", [TREES, FederatedXGBRegressor(2), KMEANS])
def test_an_empty_site_has_no_score_and_the_others_have_theirs(estimator):
    parts = {**LABELLED, "lake": (X[:0], Y[:0])}
    if estimator is KMEANS:
        parts = {**TABLES, "lake": X[:0]}
        model = LeaveOneSiteOut(estimator).fit(parts)
        assert np.isnan(model.to_frame().loc["lake"]).all()
    else:
        text = "there is no score of site 'lake': it has no rows"
        with pytest.warns(UserWarning, match=text) as caught:
            model = LeaveOneSiteOut(estimator).fit(parts)
        assert len(caught) == 1
    assert model.to_frame().loc[list("ABCD")].notna().all(axis=None)


def test_a_site_without_which_nothing_can_be_fitted_has_no_score():
    """Only it has one of the classes, or rows at all."""
    (rows, y), empty = LABELLED["A"], (X[:0], Y[:0])

    def texts_of(parts, error=None):
        estimator = LeaveOneSiteOut(FederatedXGBClassifier(2, objective="binary:logistic"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with nullcontext() if error is None else pytest.raises(ValueError, match=error):
                estimator.fit(parts)
        return estimator, [str(one.message) for one in caught]

    nothing, one_class = "there is no score of site", "the rows have one class, so the AUC is NaN"
    estimator, texts = texts_of({"A": (rows, y), "B": (rows, y * 0), "C": (rows, y * 0)})
    assert texts[0].startswith(f"{nothing} 'A': without it, there must be 2 classes")
    assert texts[1:] == [f"site 'B': {one_class}", f"site 'C': {one_class}"]
    assert estimator.sites_ == ("B", "C")
    error = "no site has a score: all are passive, empty or declined"
    _, texts = texts_of({"A": (rows, y), "B": empty, "C": empty}, error)
    assert texts[0].startswith(f"{nothing} 'A': without it, there must be 2 classes")
    assert texts[1:] == [f"{nothing} 'B': it has no rows", f"{nothing} 'C': it has no rows"]
    texts_of(dict.fromkeys("ABC", (rows, y * 0)), "there must be 2 classes")


def test_predictions_start_from_base_margins():
    trees = FederatedXGBRegressor(2, max_depth=2)
    margins = {name: 10.0 * rows[:, 1] for name, rows in TABLES.items()}
    parts = {name: (rows, y, None, None, margins[name]) for name, (rows, y) in NUMBERS.items()}
    model = LeaveOneSiteOut(trees).fit(parts)
    others = trees.fit([parts[name] for name in "ACD"])
    rows, y = NUMBERS["B"]
    wanted = others.predict(rows, base_margin=margins["B"])
    squared = model.scores_["mean squared error"][1]
    assert squared == pytest.approx(np.square(wanted - y).mean())


def test_weights_count_in_folds_only():
    weights = {name: np.arange(len(rows)) % 3.0 for name, rows in TABLES.items()}
    parts = {name: (rows, weights[name]) for name, rows in TABLES.items()}
    model = LeaveOneSiteOut(KMEANS).fit(parts)
    others = KMEANS.fit([parts[name] for name in "BCD"])
    assert model.model_.scores[0].counts.tolist() == (
        np.bincount(others.predict(TABLES["A"])).tolist()
    )


def test_a_site_with_a_new_class_or_without_an_answer_has_no_score():
    strange = LABELLED | {"D": (TABLES["D"], np.where(Y[ROWS["D"]], 2, 0))}
    parts = {name: strange[name] for name in "ABD"}
    trees = FederatedXGBClassifier(2, max_depth=2, objective="multi:softprob")
    with pytest.warns(UserWarning, match="no score of site 'D': its class 2 is new"):
        model = LeaveOneSiteOut(trees).fit(parts)
    assert model.sites_ == ("A", "B")
    with pytest.warns(UserWarning, match="no score of site 'B': passive, declined or lost"):
        model = LeaveOneSiteOut(KMEANS).fit(TABLES, passive=[1])
    assert model.sites_ == tuple("ACD")
    assert model.ledger_.lost == {}
    alone = KMEANS.fit([TABLES["C"], TABLES["D"]])
    assert model.model_.scores[0].counts.tolist() == (
        np.bincount(alone.predict(TABLES["A"])).tolist()
    )


def test_a_saved_model_has_the_scores(tmp_path):
    for number, estimator in enumerate((LeaveOneSiteOut(TREES), LeaveOneSiteOut(PIPELINE))):
        model = estimator.fit(LABELLED)
        for form in ("npz", "json"):
            path = tmp_path / f"{number}.{form}"
            save(model, path)
            assert fitted(load(path)) == fitted(model)


# The conversation --------------------------------------------------------------------------------


def test_a_site_has_no_part_in_its_own_fold():
    """It gets no request, but for the model of the others at the end."""
    recorder = Recorder(clients_of(LeaveOneSiteOut(TREES), LABELLED))
    model = LeaveOneSiteOut(TREES).fit(recorder)
    steps = [{name: type(r) for name, r in one.requests.items()} for one in recorder.exchanges]
    begins = [i for i, step in enumerate(steps) if BeginFold in step.values()]
    (end,) = [i for i, step in enumerate(steps) if TakeModel in step.values()]
    assert begins[0] == 0
    assert len(begins) == 4
    for site, first, last in zip("ABCD", begins, [*begins[1:], end], strict=True):
        assert steps[first].keys() == set("ABCD")
        assert {name for step in steps[first + 1 : last] for name in step} == set("ABCD") - {site}
    assert steps[end].keys() == set("ABCD")
    assert len(model.ledger_.to_frame()["step"].unique()) == len(steps)


def test_a_fold_is_a_run_of_the_other_sites():
    """Its messages are those of a run without the site, byte by byte."""
    recorder = Recorder(clients_of(LeaveOneSiteOut(PIPELINE), LABELLED))
    LeaveOneSiteOut(PIPELINE).fit(recorder)
    kinds = [type(next(iter(one.requests.values()))) for one in recorder.exchanges]
    begins = [i for i, kind in enumerate(kinds) if kind is BeginFold]
    third = recorder.exchanges[begins[2] + 1 : begins[3]]
    others = {name: LABELLED[name] for name in "ABD"}
    alone = Recorder(clients_of(PIPELINE, others))
    PIPELINE.fit(alone)
    assert [(one.request_bytes, one.reply_bytes) for one in third] == [
        (one.request_bytes, one.reply_bytes) for one in alone.exchanges
    ]


@pytest.mark.parametrize(
    ("estimator", "parts"),
    [(TREES, LABELLED), (PIPELINE, LABELLED), (PRIVATE, LABELLED), (KMEANS, TABLES)],
)
def test_clients_that_are_built_again_continue(estimator, parts):
    validation = LeaveOneSiteOut(estimator)
    with seeded_noise(0):
        here = LeaveOneSiteOut(estimator).fit(parts)
    with seeded_noise(0):
        whole = clients_of(validation, parts)
        rebuild = lambda name: clients_of(validation, parts)[name]  # noqa: E731
        there = LeaveOneSiteOut(estimator).fit(Recorder(whole, rebuild=rebuild))
    assert fitted(there) == fitted(here)
    assert there.ledger_ == here.ledger_


def test_a_journal_continues_a_run(tmp_path, monkeypatch):
    trees = FederatedXGBClassifier(3, max_depth=2, random_state=0)
    journal, whole = tmp_path / "run.journal", LeaveOneSiteOut(trees).fit(LABELLED)
    monkeypatch.setattr(LeaveOneSiteOut, "_fitted", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        LeaveOneSiteOut(trees).fit(LABELLED, journal=journal)
    monkeypatch.undo()
    again = LeaveOneSiteOut(trees).fit(LABELLED, journal=journal)
    assert fitted(again) == fitted(whole)
    assert again.ledger_ == whole.ledger_


def site_of(protocol, name):
    rows, y = LABELLED[name]
    return make_client(protocol, Table(rows, y))


def test_over_flower():
    pytest.importorskip("flwr")
    from fedlib.transports.flower import Flower, LocalFlowerGrid, client_app

    names, validation = list(LABELLED), LeaveOneSiteOut(PIPELINE)
    here = validation.fit(list(LABELLED.values()))

    def make(context):
        return site_of(validation.name, names[context.node_config["partition-id"]])

    there = LeaveOneSiteOut(PIPELINE).fit(Flower(LocalFlowerGrid(client_app(make), 4), 4))
    assert frozen(there.model_) == frozen(here.model_)
    assert there.ledger_ == here.ledger_


def test_over_dask():
    pytest.importorskip("distributed")
    from distributed import Client, LocalCluster

    from fedlib.transports.dask import Dask

    here = LeaveOneSiteOut(TREES).fit(list(LABELLED.values()))
    parts = [partial(tuple, part) for part in LABELLED.values()]
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as workers,
    ):
        there = LeaveOneSiteOut(TREES).fit(Dask(parts, workers, combine=False))
    assert frozen(there.model_) == frozen(here.model_)


@pytest.mark.parametrize("estimator", [TREES, PIPELINE, PRIVATE])
def test_over_http(estimator):
    pytest.importorskip("starlette")
    from fedlib.transports.http import HTTP, Limits, digest, join, new_token

    validation = LeaveOneSiteOut(estimator)
    with seeded_noise(0):
        here = LeaveOneSiteOut(estimator).fit(LABELLED)
    with seeded_noise(0):
        tokens = {name: new_token() for name in LABELLED}
        digests = {name: digest(token) for name, token in tokens.items()}
        limits = Limits(join_timeout=60)
        with (
            HTTP(digests, "127.0.0.1:0", protocol=validation.name, limits=limits) as transport,
            ThreadPoolExecutor(4) as pool,
        ):
            outcomes = [
                pool.submit(join, transport.url, partial(site_of, name=name), token)
                for name, token in tokens.items()
            ]
            validation.fit(transport)
            transport.finish()
            assert [one.result() for one in outcomes] == ["finished"] * 4
    assert fitted(validation) == fitted(here)
    assert validation.ledger_ == here.ledger_


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "problem"),
    [
        (VerticalDBSCAN(1.0, 3), "must predict rows of one site.* got VerticalDBSCAN"),
        (AlignedRows(VerticalDBSCAN(1.0, 3)), "must predict rows of one site"),
        (FederatedPCA(), "must predict rows of one site.* got FederatedPCA"),
        (LeaveOneSiteOut(TREES), "must be no LeaveOneSiteOut"),
        (
            FederatedXGBClassifier(2, bounds=BOUNDS, classes=[0, 1], secure=True),
            "secure=True needs epsilon, because two folds have other members",
        ),
        (FederatedKMeans(2, **NOISY), "scores of clusters have no noise .got FederatedKMeans"),
        (PRIVATE_NUMBERS, "epsilon needs target_bounds"),
        (FederatedXGBClassifier(-1), "n_trees"),
    ],
)
def test_what_cannot_be_validated_is_refused_before_any_message(estimator, problem):
    recorder = Recorder({})
    with pytest.raises(ValueError, match=problem):
        LeaveOneSiteOut(estimator).fit(recorder)
    assert recorder.exchanges == []


def test_scores_need_a_part_of_the_budget_and_runs_three_sites():
    with pytest.raises(ValueError, match="score_fraction above 0"):
        LeaveOneSiteOut(PRIVATE, score_fraction=0.0).protocol()
    with pytest.raises(ValueError, match="needs at least 3 sites.* got 2"):
        LeaveOneSiteOut(KMEANS).fit([TABLES["A"], TABLES["B"]])


def test_names_of_protocols():
    name = "leave-one-site-out/pipeline/xgboost"
    made = make_estimator(name, {"n_trees": 2, "scale": "minmax", "n_bins": 9})
    assert made.name == name
    assert (made.n_bins, made.estimator.scale, made.estimator.estimator.n_trees) == (9, "minmax", 2)
    for wrong in ("pipeline/leave-one-site-out/kmeans", "leave-one-site-out/kmean"):
        with pytest.raises(ValueError, match="is unknown here"):
            make_client(wrong, Table(TABLES["A"]))
        with pytest.raises(ValueError, match="or leave-one-site-out/NAME; got"):
            make_estimator(wrong, {})


# Noise and masks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("kind", ["classes", "numbers", "pipeline"])
def test_one_budget_is_enough_for_all_folds_and_scores(kind, delta):
    """The charges of every site add up to the epsilon of the run and not to more."""
    private = {"classes": PRIVATE, "numbers": PRIVATE_NUMBERS, "pipeline": PRIVATE}[kind]
    estimator = private.__class__(**private.get_params(deep=False) | {"delta": delta})
    parts, options = LABELLED, {}
    if kind == "numbers":
        parts, options = NUMBERS, {"target_bounds": [[-12.0], [20.0]]}
    if kind == "pipeline":
        names = ["a", "b", "y"]
        parts = {
            name: pd.DataFrame(np.column_stack(part), columns=names)
            for name, part in LABELLED.items()
        }
        estimator.set_params(bounds=None, classes=None)
        estimator = FederatedPipeline(estimator, scale="standard", schema=SCHEMA)
    validation = LeaveOneSiteOut(estimator, n_bins=5, **options)
    budget = {"budget": {"epsilon": 8.0, "delta": delta}}
    sites = clients_of(validation, parts, guarded(budget, validation.name))
    model = validation.fit(Recorder(sites))
    assert model.sites_ == tuple("ABCD")
    of_trees_fraction = 0.9 if kind == "pipeline" else 1.0
    per_fold = 4 + (kind == "pipeline")  # two levels of two trees, and the scale
    for site in sites.values():
        *of_folds, score = site.budget.charges
        # Noise may end a tree after its first level.
        assert 3 * (per_fold - 2) <= len(of_folds) <= 3 * per_fold
        assert site.budget.spent <= 8.0
        if not delta:
            assert score.epsilon == 0.8
            of_trees = [c.epsilon for c in of_folds if c.request == "SumNoisyHistograms"]
            of_scale = [c.epsilon for c in of_folds if c.request != "SumNoisyHistograms"]
            assert of_trees == [pytest.approx(0.9 * of_trees_fraction / 12 * 8)] * len(of_trees)
            assert of_scale == [pytest.approx(0.9 * 0.1 / 3 * 8)] * (3 * (kind == "pipeline"))


def test_every_reply_about_rows_has_noise():
    recorder = Recorder(clients_of(LeaveOneSiteOut(PRIVATE), LABELLED))
    LeaveOneSiteOut(PRIVATE, n_bins=5).fit(recorder)
    requests = [request for one in recorder.exchanges for request in one.requests.values()]
    plain = {type(r) for r in requests if r.asks_for_data and privacy_of(r) is None}
    assert plain == {DescribeFeatures, BeginBoosting}
    assert plain <= {*BoostingClient.open_requests}
    assert {type(r).__name__ for r in requests if privacy_of(r) is not None} == (
        {"SumNoisyHistograms", "CountClassScores"}
    )


def test_masked_and_noisy_folds_have_one_score_of_all_sites():
    trees = FederatedXGBClassifier(
        **PRIVATE.get_params(deep=False) | {"epsilon": 400.0, "delta": 1e-6, "secure": True}
    )
    validation = LeaveOneSiteOut(trees, n_bins=4)
    recorder = Recorder(clients_of(validation, LABELLED, masked(LABELLED)))
    model = validation.fit(recorder)
    replies = {type(reply).__name__ for one in recorder.exchanges for reply in one.replies.values()}
    steps = {"SignedKeys", "EncryptedShares", "MaskedValues", "Confirmation", "RevealedShares"}
    assert replies == steps | {"Done", "Features", "BoostingBegun"} & replies
    assert model.sites_ == ()
    assert model.to_frame().index.tolist() == ["all sites"]
    (score,) = model.model_.scores
    assert abs(score.confusion.sum() - 120) < 30
    assert 0.6 < model.scores_["accuracy"][0] <= 1
    with pytest.raises(TooFewClients, match="2 clients remain in a secure sum, at least 3"):
        LeaveOneSiteOut(trees).fit([LABELLED[name] for name in "ABC"])


# Policies and lost sites -------------------------------------------------------------------------


def run_with(rules, estimator=KMEANS, parts=TABLES, **options):
    validation = LeaveOneSiteOut(estimator)
    sites = clients_of(validation, parts)
    sites["B"] = GuardedClient(sites["B"], Policy.from_dict(rules), validation.name)
    return validation.fit(Recorder(sites), **options), sites["B"]


def test_a_site_agrees_to_the_protocol_by_its_name():
    name = "leave-one-site-out/kmeans"
    model, _ = run_with({"protocols": {name: {"parameters": {"min_group_size": {"max": 9}}}}})
    assert model.sites_ == tuple("ABCD")
    with pytest.raises(TooFewClients, match="'B': Declined .parameters. at SumLabelledRows"):
        run_with({"protocols": {name: {"parameters": {"min_group_size": {"min": 2}}}}})
    with pytest.warns(UserWarning, match="no score of site 'B'"):
        model, site = run_with({"protocols": {"kmeans": {}}})
    assert site.state.declined == "protocol"


def test_the_minimum_of_sites_is_that_of_a_fold():
    assert run_with({"min_clients": 3})[0].sites_ == tuple("ABCD")
    with pytest.warns(UserWarning, match="no score of site 'B'"):
        _, site = run_with({"min_clients": 4})
    assert site.state.declined == "min_clients"


def test_small_groups_count_over_all_folds():
    """Two rows lie in one cluster without A and in the other with it, so B declines the third."""
    near, far = np.zeros((20, 1)), np.full((20, 1), 10.0)
    usual = np.concatenate([near, far])
    parts = {"A": np.concatenate([near, np.full((60, 1), 14.0)]), "C": usual, "D": usual}
    parts["B"] = np.concatenate([usual, np.full((2, 1), 5.5)])
    parts = {name: parts[name] for name in "ABCD"}
    one_round = FederatedKMeans(2, init=[[0.0], [10.0]], max_iter=1)
    sites = clients_of(one_round, {name: parts[name] for name in "BCD"})
    sites["B"] = GuardedClient(sites["B"], Policy.from_dict({"min_count": 4}), one_round.name)
    assert one_round.fit(Recorder(sites)).ledger_.lost == {}  # the first fold alone
    rules = {"min_count": 4}
    early = pytest.warns(UserWarning, match="'B' declined SumClusters .min_count")
    with early, pytest.raises(TooFewClients, match="'B': .*declined in an earlier fold"):
        run_with(rules, one_round, parts)
    with early:
        model, site = run_with(rules, one_round, parts, min_clients=3)
    assert site.state.declined == "min_count"
    assert model.sites_ == tuple("ACD")
    rest = {name: parts[name] for name in "ACD"}
    alone = LeaveOneSiteOut(one_round).fit(rest)
    assert frozen(model.model_.scores[1:]) == frozen(alone.model_.scores[1:])


def test_the_same_members_are_no_folds():
    trees = FederatedXGBClassifier(
        **PRIVATE.get_params(deep=False) | {"delta": 1e-6, "secure": True}
    )
    validation = LeaveOneSiteOut(trees, n_bins=4)
    sites = clients_of(validation, LABELLED, masked(LABELLED))
    rules = Policy.from_dict({"same_members": True})
    sites["D"] = GuardedClient(sites["D"], rules, validation.name)
    with pytest.raises(TooFewClients, match="'D': Declined .same_members."):
        validation.fit(Recorder(sites))


@pytest.mark.parametrize("estimator", [TREES, PIPELINE])
def test_a_lost_site_leaves_all_later_folds(estimator):
    sites = clients_of(LeaveOneSiteOut(estimator), LABELLED)
    whole = Recorder(sites)
    LeaveOneSiteOut(estimator).fit(whole)
    asked = sum("B" in one.requests for one in whole.exchanges)
    for step in (0, 1, asked // 3, asked // 2, asked - 2, asked - 1):
        seen = []

        def vanish(request, reply, seen=seen, step=step):
            seen.append(request)
            return None if len(seen) > step else reply

        recorder = Recorder(clients_of(LeaveOneSiteOut(estimator), LABELLED), {"B": vanish})
        warned = pytest.warns(UserWarning, match="no score of site 'B'")
        with warned if step >= asked - 2 else nullcontext():
            model = LeaveOneSiteOut(estimator).fit(recorder, min_clients=3)
        assert list(model.ledger_.lost) == ["B"]
        assert model.sites_ == tuple("ACD")
        recorder = Recorder(clients_of(LeaveOneSiteOut(estimator), LABELLED), {"B": vanish})
        seen.clear()
        with pytest.raises(TooFewClients, match="'B'"):
            LeaveOneSiteOut(estimator).fit(recorder)
    rest = {name: LABELLED[name] for name in "ACD"}
    first_lost = Recorder(clients_of(LeaveOneSiteOut(estimator), LABELLED), {"B": lambda *_: None})
    model = LeaveOneSiteOut(estimator).fit(first_lost, min_clients=3)
    assert frozen(model.model_) == frozen(LeaveOneSiteOut(estimator).fit(rest).model_)


NOISY_SCORES = CountClassScores(classes=(0, 1), n_bins=2, privacy=Privacy(epsilon=1.0))


# The client --------------------------------------------------------------------------------------


def client_with(part, model, estimator=TREES):
    (client,) = clients_of(LeaveOneSiteOut(estimator), {"A": part}).values()
    client.answer(BeginFold())
    client.answer(TakeModel(model))
    return client


def test_a_model_that_does_not_fit_is_no_secret(tmp_path):
    """Whether it fits does not depend on the rows, so nothing locks."""
    other = to_bytes(KMEANS.fit(list(TABLES.values())))
    wider = [(np.column_stack([rows, rows]), y) for rows, y in LABELLED.values()]
    for data in (b"no model", other, to_bytes(TREES.fit(wider))):
        client = client_with(LABELLED["A"], data)
        client.memory = TableMemory(tmp_path / "rows.memory")
        for request in (SumLabelledRows("exclude", 1, 10), NOISY_SCORES):
            with pytest.raises(LostState):
                client.answer(request)
        assert client.problems
        assert client.answer(BeginFold()) is not None
        client.answer(TakeModel(to_bytes(TREES.fit(list(LABELLED.values())))))
        assert client.answer(DescribeFeatures()).n_features == 2


def test_rows_that_cannot_be_predicted_take_no_part(tmp_path):
    """The others are scored, and nothing locks, whatever the request is."""
    tables = [pd.DataFrame({"a": ["x", "y"] * 30, "b": np.arange(60.0)})] * 2
    y = np.arange(60) % 2
    strict = FederatedPipeline(TREES, encode="one_hot", unknown="error", min_category_count=1)
    model = to_bytes(strict.fit([(table, y) for table in tables]))
    strange = tables[0].assign(a=["z", *tables[0]["a"][1:]])
    client = client_with((strange, y), model, strict)
    usual = client_with((tables[0][1:], y[1:]), model, strict)
    assert client.problems[0].startswith("TakeModel: 1 of 60 rows take no part in scores: ")
    request = CountClassScores(classes=(0, 1), n_bins=2)
    for asked in (DescribeFeatures(), request):
        assert client.answer(asked) == usual.answer(asked)
    again = clients_of(LeaveOneSiteOut(strict), {"A": (strange, y)})["A"]
    again.state = decode(encode(client.state))
    again.memory = TableMemory(tmp_path / "rows.memory")
    assert again.answer(request) == usual.answer(request)
    assert again.answer(NOISY_SCORES).values.shape == usual.answer(NOISY_SCORES).values.shape


def test_a_new_session_forgets_the_model():
    model = to_bytes(TREES.fit(list(LABELLED.values())))
    client = client_with(LABELLED["A"], model)
    assert client.answer(DescribeFeatures()).n_features == 2
    client.renew(client.state)
    with pytest.raises(LostState, match="no BeginFold"):
        client.answer(DescribeFeatures())
    client.passive = True
    client.answer(BeginFold())
    assert client.answer(DescribeFeatures()) == Declined()


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "survival:aft"},
        {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.9]},
    ],
)
def test_scores_of_numbers_do_not_apply_to_the_objective(options):
    """The error comes before any message."""
    model = LeaveOneSiteOut(FederatedXGBRegressor(1, **options))
    with pytest.raises(ValueError, match=f"one target .*{options['objective']}.*use rows for vali"):
        model.protocol()


def test_the_innermost_client_knows_what_the_site_is_after_each_delivery_and_a_restart():
    """Whether sums are masked, how many share the noise, the limit of work, and the memory."""
    rng, one = np.random.default_rng(0), np.ones(2)
    columns = np.zeros(2, np.uint8), (), "fill", 0 * one, 0 * one, one, np.zeros(2, np.int64)
    rules = Preprocess((), *columns, (), "ignore")
    part = rng.normal(size=(30, 2)), rng.normal(size=30)
    identity = simulated_identities(["A", "B", "C"])["A"]

    def site():
        left = LeftOutClient(part, PipelineClient, client_class=RegressionClient)
        left.memory = TableMemory()
        guarded = GuardedClient(SecureClient(left, identity), Policy.from_dict({"max_work": 7**7}))
        guarded.enter("A", 3)
        return guarded, left

    guarded, left = site()
    guarded.answer(BeginFold())
    guarded.answer(rules)
    restored, other = site()
    restored.state = decode(encode(guarded.state))
    for client in (left, other):
        innermost = client.inner.inner
        assert type(innermost) is RegressionClient
        assert (innermost.masked, innermost.n_shares, innermost.max_work) == (True, 3, 7**7)
        assert innermost.memory is client.memory is not None
        assert (innermost.name, innermost.n_clients) == ("A", 3)
