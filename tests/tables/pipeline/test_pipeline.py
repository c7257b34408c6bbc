"""Pipelines: by hand, against scikit-learn on the pooled table, on every transport."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, RobustScaler, StandardScaler

import fedlib
from fedlib import (
    DBDC,
    PPDBDC,
    FederatedKMeans,
    FederatedSummary,
    FederatedXGBClassifier,
    HorizontalDBSCAN,
    VerticalDBSCAN,
)
from fedlib.clustering.density.horizontal import CountCells, HorizontalDBSCANClient
from fedlib.core.client import LostState
from fedlib.core.messages import Labels, MessageError, decode, encode
from fedlib.core.protocol import TooFewClients
from fedlib.sites import models
from fedlib.sites.site import make_client, make_estimator
from fedlib.tables.files import Table
from fedlib.tables.pipeline import PipelineClient, PipelineState, Preprocess
from fedlib.testing import Recorder

# These tests compare all categories with those of the pooled rows.
FederatedPipeline = partial(fedlib.FederatedPipeline, min_category_count=1)

SCALERS = {"standard": StandardScaler, "minmax": MinMaxScaler, "robust": RobustScaler}
GRID = HorizontalDBSCAN(0.4, 3)


def tables(sizes=(70, 1, 0, 50), seed=0):
    """Return tables of two groups of rows, with different scales, gaps and text."""
    rng = np.random.default_rng(seed)
    parts = []
    for n in sizes:
        group = rng.integers(0, 2, n)
        frame = pd.DataFrame(
            {
                "age": 30.0 + 30 * group + rng.normal(size=n),
                "income": 1000.0 + 8000 * group + 500 * rng.normal(size=n),
                "constant": np.full(n, 3.0),
                "sex": rng.choice(["m", "f"], n),
            }
        )
        frame.loc[rng.random(n) < 0.1, "age"] = np.nan
        frame.loc[rng.random(n) < 0.1, "sex"] = None
        parts.append(frame)
    return parts


def test_a_toy_by_hand():
    """The values 0, 4 and 8 have the mean 4, which fills the gap, and the variance 32 / 4 = 8."""
    parts = [
        pd.DataFrame({"x": [0.0, 4.0], "s": ["b", "a"]}),
        pd.DataFrame({"x": [8.0, None], "s": ["b", None]}),
    ]
    model = FederatedPipeline(GRID, scale="standard", impute="mean", encode="one_hot").fit(parts)
    X = model.transform(parts[1])
    assert X.columns.tolist() == ["x", "s_a", "s_b"]
    np.testing.assert_allclose(X, [[4 / np.sqrt(8), 0, 1], [0, 0, 0]])
    assert model.feature_names_in_.tolist() == ["x", "s"]
    assert model.n_features_in_ == 2


def reference(scale, impute, pooled):
    """Return scikit-learn's preprocessing, fitted to the pooled table."""
    steps = [SimpleImputer(strategy=impute)] if impute in ("mean", "median") else []
    steps += [SCALERS[scale]()] if scale else []
    encoder = OneHotEncoder(categories=[["f", "m"]], handle_unknown="ignore", sparse_output=False)
    transformer = ColumnTransformer(
        [
            (
                "numbers",
                make_pipeline(*steps) if steps else "passthrough",
                ["age", "income", "constant"],
            ),
            ("texts", encoder, ["sex"]),
        ]
    )
    return transformer.fit(pooled)


@pytest.mark.filterwarnings("ignore:feature 'income' extends over")  # without scaling
@pytest.mark.parametrize("scale", [*SCALERS, None])
@pytest.mark.parametrize("impute", ["mean", "median", "drop"])
def test_equal_to_scikit_learn_on_the_pooled_table(scale, impute):
    parts = tables()
    model = FederatedPipeline(GRID, scale=scale, impute=impute, encode="one_hot").fit(parts)
    kept = [part.dropna() for part in parts] if impute == "drop" else parts
    transformer = reference(scale, impute, pd.concat(kept))
    expected = [transformer.transform(part) if len(part) else np.empty((0, 5)) for part in kept]
    for part, wanted in zip(parts, expected, strict=True):
        np.testing.assert_allclose(model.transform(part), wanted, rtol=1e-12, atol=1e-12)
    names = ["age", "income", "constant", "sex_f", "sex_m"]
    # Rounded, because scikit-learn's constant column is -4e-16 instead of 0, which is another cell.
    frames = [pd.DataFrame(np.round(X, 9), columns=names) for X in expected]
    direct = clone(GRID).fit(frames)
    assert model.estimator_.cells_.tolist() == direct.cells_.tolist()
    for part, labels, wanted in zip(parts, model.labels_, direct.labels_, strict=True):
        complete = part.notna().all(axis=1) if impute == "drop" else np.ones(len(part), bool)
        assert labels[complete].tolist() == wanted.tolist()
        assert (labels[~complete] == -1).all()
        if len(part):
            assert model.predict(part).tolist() == labels.tolist()


def test_without_scaling_clusters_are_nonsense_and_with_it_they_are_right():
    """The feature of the larger scale hides the other one; a warning says so."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"share": np.repeat([0.1, 0.9], 200), "income": rng.uniform(0, 9000, 400)})
    with pytest.warns(UserWarning, match="feature 'income' extends over .* but 'share' over 1, so"):
        raw = HorizontalDBSCAN(20.0, 1, adjacency="full").fit([X])
    assert not set(raw.labels_[0][:200]).isdisjoint(raw.labels_[0][200:])
    scaled = FederatedPipeline(HorizontalDBSCAN(0.2, 3), scale="minmax").fit([X])
    assert scaled.labels_[0].tolist() == [0] * 200 + [1] * 200


PIPELINE = FederatedPipeline(
    HorizontalDBSCAN(0.4, 3), scale="robust", impute="median", encode="one_hot"
)


def pipeline_client(part, **options):
    return PipelineClient(part, HorizontalDBSCANClient, **options)


def test_the_conversation():
    """Only the statistics that the rules need, then the rules, then the protocol's messages."""
    parts = [part[["age", "income"]].dropna() for part in tables()]
    asks = ["DescribeColumns", "ColumnDescription"]
    begins = ["Preprocess", "Done", "CountCells", "CellCounts", "AssignCells", "Done"]
    sums, extremes = ["SumValues", "ValueMoments"], ["FindExtremes", "Extremes"]
    expected = {
        None: [],
        "standard": sums,
        "minmax": extremes,
        "robust": ["CountBins", "BinCounts"] * 8,
    }
    for scale, steps in expected.items():
        model = FederatedPipeline(GRID, scale=scale).fit(parts)
        assert model.ledger_.conversation() == [*asks, *steps, *begins]
    bounds = {"age": (0, 120), "income": (0, 1e5)}
    model = FederatedPipeline(GRID, scale="minmax", bounds=bounds).fit(parts)
    assert model.ledger_.conversation() == [*asks, *begins]
    assert model.transform(parts[0])["age"].tolist() == (parts[0]["age"] / 120).tolist()
    model = FederatedPipeline(GRID, scale="standard", impute="mean").fit(parts)
    assert model.ledger_.conversation() == [*asks, *sums, *asks, *sums, *begins]


def test_every_message_has_its_disclosure_in_the_ledger():
    ledger = FederatedPipeline(GRID, scale="minmax").fit([[[0.0], [1.0]]]).ledger_.to_frame()
    texts = ledger.set_index("message")["discloses"]
    assert texts["Extremes"].endswith("which are values of rows")
    assert (texts != "").all()


def fitted(model):
    """Return everything that a model predicts and has sent."""
    return list(model.ledger_), encode(model.model_.rules), model.estimator_.cells_.tolist()


def test_rebuilt_clients_continue():
    """The state contains the rules and the inner state, and the labels of all rows."""
    parts = dict(zip("ABCD", tables(), strict=True))
    here = clone(PIPELINE).fit(list(parts.values()))
    recorder = Recorder(
        {name: pipeline_client(part) for name, part in parts.items()},
        rebuild=lambda name: pipeline_client(parts[name]),
    )
    there = clone(PIPELINE).fit(recorder)
    names = {"server": "server", **dict(zip("ABCD", "0123", strict=True))}
    entries = [
        entry._replace(sender=names[entry.sender], receiver=names[entry.receiver])
        for entry in there.ledger_
    ]
    assert (entries, *fitted(there)[1:]) == fitted(here)
    for labels, client in zip(here.labels_, recorder.members.values(), strict=True):
        assert decode(encode(client.state)).labels.tolist() == labels.tolist()


def test_over_flower():
    pytest.importorskip("flwr")
    from fedlib.transports.flower import Flower, LocalFlowerGrid, client_app

    parts = tables()
    grid = LocalFlowerGrid(
        client_app(
            lambda context: make_client(
                "pipeline/horizontal-dbscan", Table(parts[context.node_config["partition-id"]])
            )
        ),
        len(parts),
    )
    there = clone(PIPELINE).fit(Flower(grid, len(parts)))
    assert fitted(there) == fitted(clone(PIPELINE).fit(parts))


def test_over_http(tmp_path):
    pytest.importorskip("starlette")
    from concurrent.futures import ThreadPoolExecutor

    from fedlib.transports.http import HTTP, Limits, digest, join, new_token

    parts = tables()
    tokens = {str(i): new_token() for i in range(len(parts))}
    digests = {name: digest(token) for name, token in tokens.items()}
    labels = {}

    def site(name, url):
        made = []

        def make(served):
            made.append(make_client(served, Table(parts[int(name)])))
            return made[0]

        outcome = join(url, make, tokens[name], state_dir=tmp_path / name)
        labels[name] = made[0].state.labels.tolist()
        return outcome

    model = clone(PIPELINE)
    with (
        HTTP(
            digests, "127.0.0.1:0", protocol=model.name, limits=Limits(join_timeout=60)
        ) as transport,
        ThreadPoolExecutor(len(parts)) as pool,
    ):
        sites = [pool.submit(site, name, transport.url) for name in tokens]
        model.fit(transport)
        transport.finish()
        assert [one.result(60) for one in sites] == ["finished"] * len(parts)
    here = clone(PIPELINE).fit(parts)
    assert fitted(model) == fitted(here)
    assert [labels[name] for name in tokens] == [part.tolist() for part in here.labels_]


# Other protocols


def test_a_classifier_with_classes_and_gaps():
    """The boosted trees accept gaps; with impute="drop", classes and weights are dropped too."""
    parts = [
        (X, (X["income"] > 5000).map({True: "rich", False: "poor"}).to_numpy()) for X in tables()
    ]
    model = FederatedPipeline(FederatedXGBClassifier(3), encode="one_hot").fit(parts)
    encoded = [
        (
            pd.get_dummies(X, columns=["sex"], dtype=float).reindex(
                columns=["age", "income", "constant", "sex_f", "sex_m"], fill_value=0.0
            ),
            y,
        )
        for X, y in parts
    ]
    direct = FederatedXGBClassifier(3).fit(encoded)
    for (X, _), (Z, _), labels in zip(parts, encoded, model.labels_, strict=True):
        if len(X):
            assert model.predict_proba(X).tolist() == direct.predict_proba(Z).tolist()
            assert model.decision_function(X).tolist() == direct.decision_function(Z).tolist()
            assert model.predict(X).tolist() == labels.tolist() == direct.predict(Z).tolist()
    weighted = [(X, y, np.ones(len(X))) for X, y in parts]
    dropped = FederatedPipeline(FederatedXGBClassifier(3), impute="drop", encode="one_hot")
    dropped.fit(weighted)
    complete = [
        (Z[X.notna().all(axis=1)], y[X.notna().all(axis=1)])
        for (X, y), (Z, _) in zip(parts, encoded, strict=True)
    ]
    again = FederatedXGBClassifier(3).fit(complete)
    assert (
        dropped.estimator_.decision_function(encoded[0][0]).tolist()
        == again.decision_function(encoded[0][0]).tolist()
    )
    with pytest.raises(ValueError, match="X must have no gaps with impute='drop', got one in row"):
        dropped.predict(parts[0][0])
    assert np.isnan(dropped.predict_proba(parts[0][0])).any()
    with pytest.raises(ValueError, match=r"a part must be \(X, y\)"):
        FederatedPipeline(FederatedXGBClassifier(3)).fit([parts[0][0]])


@pytest.mark.parametrize(
    "estimator",
    [FederatedKMeans(2, random_state=0), DBDC(0.5, 3), PPDBDC(0.5, 3, random_state=0)],
    ids=lambda estimator: estimator.name,
)
def test_any_protocol(estimator):
    parts = tables(sizes=(40, 40))
    model = FederatedPipeline(estimator, scale="standard", impute="mean", encode="one_hot")
    options = [{"random_state": i} for i in range(2)] if estimator.name == "ppdbdc" else None
    model._fit(parts, options=options)
    direct = clone(estimator)._fit([model.transform(part) for part in parts], options=options)
    for labels, wanted in zip(model.labels_, direct.labels_, strict=True):
        assert labels.tolist() == wanted.tolist()


def test_passive_clients_get_labels():
    parts = tables(sizes=(50, 50))
    model = clone(PIPELINE).fit(parts, passive=[1])
    alone = clone(PIPELINE).fit(parts[:1])
    assert encode(model.model_.rules) == encode(alone.model_.rules)
    assert model.labels_[1].tolist() == alone.predict(parts[1]).tolist()


def test_protocols_that_need_no_pipeline():
    with pytest.raises(
        ValueError, match="FederatedSummary takes raw tables itself; it needs no pipeline"
    ):
        FederatedPipeline(FederatedSummary()).protocol()
    with pytest.raises(
        ValueError, match="VerticalDBSCAN cannot be part of a pipeline: its clients"
    ):
        FederatedPipeline(VerticalDBSCAN(1.0, 2)).protocol()


# Prediction, model files, conventions


def test_categories_that_no_client_has():
    parts = [pd.DataFrame({"s": ["a", "b", "a", "b"]})]
    unknown = pd.DataFrame({"s": ["z"]})
    model = FederatedPipeline(HorizontalDBSCAN(0.5, 1), encode="one_hot").fit(parts)
    assert model.transform(unknown).to_numpy().tolist() == [[0.0, 0.0]]
    model.set_params(unknown="error").fit(parts)
    with pytest.raises(
        ValueError, match="column 's' must contain one of the 2 categories of fit, got 'z'"
    ):
        model.predict(unknown)


@pytest.mark.parametrize("form", ["npz", "json"])
@pytest.mark.parametrize(
    "estimator", [GRID, FederatedKMeans(2, random_state=0)], ids=["grid", "kmeans"]
)
def test_a_loaded_pipeline_predicts_the_same(estimator, form, tmp_path):
    bounds = {"age": (0.0, 120.0)}
    model = FederatedPipeline(
        estimator, scale="minmax", impute="median", encode="one_hot", bounds=bounds
    ).fit(tables())
    models.save(model, tmp_path / f"model.{form}")
    loaded = models.load(tmp_path / f"model.{form}")
    assert repr(loaded) == repr(model)
    new = tables(sizes=(100,), seed=1)[0]
    assert loaded.predict(new).tolist() == model.predict(new).tolist()
    assert loaded.bounds == bounds


def test_a_forged_pipeline_is_refused(tmp_path):
    model = FederatedPipeline(GRID, scale="minmax").fit([[[0.0], [1.0]]])
    models.save(model, tmp_path / "model.npz")
    document, arrays = models._parse((tmp_path / "model.npz").read_bytes())
    forgeries = [
        (("parameters", "estimator", "estimator"), "unheard-of", "unknown protocol 'unheard-of'"),
        (("parameters", "estimator", "estimator"), "kmeans", "does not fit FederatedKMeans"),
        (("parameters", "estimator"), 1, "must not be of the class GridModel"),
        (("model", "fields", "model", "class"), "KMeansModel", "must not be of the class"),
        (("protocol",), "pipeline/unheard-of", "unknown protocol"),
    ]
    for path, value, message in forgeries:
        forged = models.json.loads(models.json.dumps(document))
        place = forged
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        forged["checksum"] = models._checksum(forged, arrays)
        (tmp_path / "forged.npz").write_bytes(models._to_npz(forged, arrays))
        with pytest.raises(models.ModelFileError, match=message):
            models.load(tmp_path / "forged.npz")


def test_estimator_conventions():
    assert clone(PIPELINE).get_params(deep=False).keys() == PIPELINE.get_params(deep=False).keys()
    assert PIPELINE.get_params()["estimator__cell_size"] == 0.4
    assert PIPELINE.name == "pipeline/horizontal-dbscan"
    with pytest.raises(NotFittedError):
        PIPELINE.predict([[0.0]])
    assert hasattr(PIPELINE, "predict")
    assert not hasattr(PIPELINE, "predict_proba")
    model = clone(PIPELINE).fit(tables())
    with pytest.raises(ValueError, match="'income', 'constant', 'sex' are missing"):
        model.predict(pd.DataFrame({"age": [1.0]}))
    with pytest.raises(ValueError, match="X must have 4 columns, got 1"):
        model.predict([[1.0]])


def test_estimators_by_name():
    given = {"n_clusters": 2, "impute": "mean", "bounds": {"age": (0, 1)}}
    estimator = make_estimator("pipeline/kmeans", given)
    assert (estimator.estimator.n_clusters, estimator.impute) == (2, "mean")
    assert type(make_estimator("kmeans", {"n_clusters": 2})) is FederatedKMeans
    with pytest.raises(
        ValueError, match="protocol must be one of .*kmeans.*; got 'pipeline/kmean'"
    ):
        make_estimator("pipeline/kmean", {})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"estimator": 3}, "'estimator' parameter"),
        ({"estimator": HorizontalDBSCAN(-1.0, 3)}, "'cell_size' parameter"),
        ({"scale": "z"}, "'scale' parameter"),
        ({"impute": "zero"}, "'impute' parameter"),
        ({"encode": "ordinal"}, "'encode' parameter"),
        ({"bounds": {"a": (0, 1)}}, "bounds need scale='minmax', got scale=None"),
        ({"scale": "minmax", "bounds": {"a": (1, 0)}}, "bounds of 'a' must be two numbers"),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        FederatedPipeline(**{"estimator": GRID, **parameters}).protocol()


def test_rare_categories_have_no_column():
    """A category that every client withholds is treated like an unknown one."""
    parts = [pd.DataFrame({"town": list("aab")}), pd.DataFrame({"town": list("aaac")})]
    model = FederatedPipeline(GRID, encode="one_hot", min_category_count=2).fit(parts)
    assert model.transform(parts[0])["town_a"].tolist() == [1, 1, 0]
    with pytest.raises(ValueError, match="min_category_count above 1 needs unknown='ignore'.*2"):
        FederatedPipeline(GRID, unknown="error", min_category_count=2).protocol()


# Data that do not fit the rules: an error before the first message


@pytest.mark.parametrize(
    ("parts", "parameters", "message"),
    [
        (
            [{"s": ["m"]}],
            {},
            "column 's' contains text; set encode='one_hot', or leave the column out",
        ),
        ([{"x": [1.0]}, {"x": [None]}], {}, "column 'x' has gaps at client '1'; set impute='mean'"),
        (
            [{"x": [np.nan]}],
            {"impute": "mean"},
            "column 'x' has no value at any client; leave it out",
        ),
        (
            [{"x": [np.nan, 1], "y": [1, np.nan]}],
            {"impute": "drop"},
            "have no rows after rows with",
        ),
        ([{"x": []}], {}, "the clients have no rows"),
        (
            [{"x": [1]}, {"x": ["a"]}],
            {"encode": "one_hot"},
            "clients disagree on the content of column 'x'.* declare them: .*--text x",
        ),
        (
            [{"x": ["a", "b", "c"]}],
            {"encode": "one_hot", "max_categories": 2},
            "max_categories=2 cat",
        ),
        ([{"x": [1]}], {"scale": "minmax", "bounds": {"y": (0, 1)}}, "bounds must be of columns"),
        ([{"x": [1]}], {"categorical": ["y"]}, "there is no column y; the columns are x"),
    ],
)
def test_data_that_do_not_fit_the_rules(parts, parameters, message, monkeypatch):
    monkeypatch.setattr("fedlib.core.estimator.run", None)  # no message may leave
    model = FederatedPipeline(GRID, **parameters)
    with pytest.raises(ValueError, match=message):
        model.fit([pd.DataFrame(part) for part in parts])


# Clients that fail or lie


def recorder(tamper=None, **parts):
    return Recorder({name: pipeline_client(part) for name, part in parts.items()}, tamper)


def test_a_client_with_gaps_leaves():
    whole = pd.DataFrame({"x": [0.0, 0.1, 0.2, 9.0]})
    gaps = whole.assign(x=[0.0, None, 0.2, 9.0])
    model = FederatedPipeline(GRID).fit(recorder(A=whole, B=gaps), min_clients=1)
    assert model.ledger_.lost == {"B": "InvalidReply at DescribeColumns, step 1"}
    with pytest.raises(ValueError, match="column 'x' has gaps at client 'B'; set impute="):
        FederatedPipeline(GRID).fit(recorder(A=whole, B=gaps))


@pytest.mark.parametrize("step", [1, 2, 5, 19])
def test_a_client_lost_in_the_preprocessing_has_no_part_in_it(step):
    parts = dict(zip("ABC", tables(sizes=(40, 40, 40)), strict=True))
    seen = []

    def fail(request, reply):
        seen.append(request)
        return None if len(seen) >= step else reply

    model = clone(PIPELINE).fit(recorder({"A": fail}, **parts), min_clients=2)
    assert list(model.ledger_.lost) == ["A"]
    alone = clone(PIPELINE).fit([parts["B"], parts["C"]])
    assert encode(model.model_.rules) == encode(alone.model_.rules)
    seen.clear()
    with pytest.raises(TooFewClients, match="Lost: 'A'"):
        clone(PIPELINE).fit(recorder({"A": fail}, **parts))


def test_a_client_lost_after_the_preprocessing():
    parts = dict(zip("ABC", tables(sizes=(40, 40, 40)), strict=True))

    def fail(request, reply):
        return None if b"CountCells" in request else reply

    model = clone(PIPELINE).fit(recorder({"A": fail}, **parts), min_clients=2)
    assert list(model.ledger_.lost) == ["A"]
    counts = model.estimator_.cell_counts_
    assert counts.sum() == 80


def test_a_lost_state():
    client = pipeline_client([[1.0]])
    assert client.state is None
    with pytest.raises(LostState, match="PipelineClient has no Preprocess"):
        client.handle(CountCells(1.0))
    with pytest.raises(LostState, match="but a Labels"):
        client.state = Labels(np.zeros(1, np.int64))
    client.state = None
    assert client.state is None


def rules(**changes):
    content = {
        "features": ("x",),
        "kinds": np.zeros(1, np.uint8),
        "categorical": (),
        "gaps": "keep",
        "fill": np.zeros(1),
        "centre": np.zeros(1),
        "spread": np.ones(1),
        "lengths": np.zeros(1, np.int64),
        "categories": (),
        "unknown": "ignore",
    }
    return Preprocess(**{**content, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spread": np.zeros(1)}, "spread must be positive"),
        ({"categories": ("a",)}, "lengths must sum to the number of categories"),
        ({"features": ("x", "y")}, "features must have one name per column"),
        ({"gaps": "guess"}, "Invalid enum value|not a message"),
        (
            {
                "kinds": np.ones(1, np.uint8),
                "lengths": np.array([2**14 + 1]),
                "categories": tuple(map(str, range(2**14 + 1))),
            },
            "at most 16384 columns, one per number and category, got 16385; leave out",
        ),
    ],
)
def test_impossible_rules_are_refused(changes, message):
    with pytest.raises(MessageError, match=message):
        decode(encode(rules(**changes)))


def test_a_state_without_labels():
    state = PipelineState(encode(rules()), b"", np.ones(1, bool))
    assert not hasattr(state, "labels")


def test_a_run_without_any_feature_names_the_reason():
    parts = [pd.DataFrame({"ward": list("abc")}), pd.DataFrame({"ward": list("abd")})]
    with pytest.raises(ValueError, match="no category of 'ward' has min_category_count=5 rows"):
        fedlib.FederatedPipeline(fedlib.FederatedKMeans(2), encode="one_hot").fit(parts)


def test_texts_that_are_all_numbers_stay_text_where_the_rules_know_text():
    codes = pd.Categorical(["01", "1", "2+"] * 20)
    rows = pd.DataFrame({"code": codes, "age": np.arange(60.0)})
    model = FederatedPipeline(FederatedKMeans(2, random_state=0), encode="one_hot").fit([rows])
    new = pd.DataFrame({"code": ["01", "1", "01"], "age": [0.0, 1.0, 2.0]})
    hot = model.transform(new)[["code_01", "code_1"]].to_numpy()
    assert hot.tolist() == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    assert model.transform(new.assign(code=1))["code_1"].tolist() == [1.0] * 3
