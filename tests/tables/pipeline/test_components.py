"""Pipelines whose columns become principal components, against scikit-learn on pooled rows."""

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedlib import (
    FederatedKMeans,
    FederatedPCA,
    FederatedPipeline,
    FederatedXGBClassifier,
    HorizontalDBSCAN,
    Schema,
)
from fedlib.core.client import BadRequest
from fedlib.core.messages import Done, MessageError, decode, encode, privacy_of
from fedlib.protection.privacy.accounting import privacy_per_request
from fedlib.sites.models import load, save
from fedlib.tables.components import SumScatter
from fedlib.tables.pipeline import PipelineClient, Preprocess, PreprocessAndProject
from fedlib.testing import Recorder, seeded_noise

RNG = np.random.default_rng(0)
NAMES = ["a", "b", "c", "d"]
ROWS = np.concatenate([RNG.normal(centre, 0.5, (60, 4)) * [1, 50, 1, 9] for centre in (0, 3)])
TABLE = pd.DataFrame(RNG.permutation(ROWS), columns=NAMES)
PARTS = [TABLE[:30], TABLE[30:31], TABLE[31:]]
LIMITS = {name: (float(TABLE[name].min()) - 1, float(TABLE[name].max()) + 1) for name in NAMES}
SCHEMA = Schema(
    {
        "schema": {
            "fields": [
                {
                    "name": name,
                    "type": "number",
                    "constraints": {"minimum": low, "maximum": high, "required": True},
                }
                for name, (low, high) in LIMITS.items()
            ]
        }
    }
)
LLOYD = {"method": "lloyd", "init": [[-1.0, 0.0], [1.0, 0.0]], "max_iter": 5}


def pooled(n_components=2):
    return make_pipeline(StandardScaler(), PCA(n_components, svd_solver="full")).fit(TABLE)


@pytest.mark.parametrize("n_components", [1, 2, 4, 0.5, 0.99])
@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_rows_are_projected_as_by_scikit_learn(n_components, schema):
    inner = HorizontalDBSCAN(0.5, 3)
    model = FederatedPipeline(inner, scale="standard", pca=n_components, schema=schema).fit(PARTS)
    expected = pooled(n_components).transform(TABLE)
    found = model.transform(TABLE)
    assert found.columns.tolist() == [f"pca{i}" for i in range(expected.shape[1])]
    np.testing.assert_allclose(found, expected, atol=1e-10)
    alone = HorizontalDBSCAN(0.5, 3).fit([expected[:30], expected[30:31], expected[31:]])
    for labels, others in zip(model.labels_, alone.labels_, strict=True):
        np.testing.assert_array_equal(labels, others)
    np.testing.assert_array_equal(model.predict(TABLE), np.concatenate(model.labels_))


def test_columns_without_names_have_components_without_names():
    model = FederatedPipeline(FederatedKMeans(2, **LLOYD), pca=2).fit([p.to_numpy() for p in PARTS])
    found = model.transform(TABLE.to_numpy())
    np.testing.assert_allclose(found, PCA(2).fit_transform(TABLE), atol=1e-9)


def test_masked_sums_give_the_same():
    """The limits of the components contain all rows, so that nothing is clipped."""
    plain = FederatedPipeline(FederatedKMeans(2, **LLOYD), scale="standard", pca=2, schema=SCHEMA)
    masked = FederatedPipeline(
        FederatedKMeans(2, **LLOYD, secure=True), scale="standard", pca=2, schema=SCHEMA
    )
    parts = [TABLE[:30], TABLE[30:60], TABLE[60:]]
    plain.fit(parts)
    masked.fit(parts)
    np.testing.assert_allclose(masked.transform(TABLE), plain.transform(TABLE), atol=1e-8)
    np.testing.assert_allclose(
        masked.estimator_.cluster_centers_, plain.estimator_.cluster_centers_, atol=1e-8
    )


def test_with_little_noise_the_components_are_nearly_the_same():
    noisy = FederatedPipeline(
        FederatedKMeans(2, **LLOYD, epsilon=5000.0, delta=1e-6),
        scale="standard",
        pca=2,
        schema=SCHEMA,
        epsilon_fraction=0.5,
    )
    with seeded_noise(0):
        noisy.fit([TABLE[:30], TABLE[30:60], TABLE[60:]])
    first = pooled().transform(TABLE)[:, 0]
    assert abs(np.corrcoef(noisy.transform(TABLE)["pca0"], first)[0, 1]) > 0.99


def test_one_epsilon_for_all_sums():
    estimator = FederatedKMeans(2, **LLOYD, epsilon=1.0, delta=1e-6)
    model = FederatedPipeline(estimator, scale="standard", pca=2, schema=SCHEMA)
    make, (options,) = model._client_factory([{}])
    recorder = Recorder({str(i): make(part, **options) for i, part in enumerate(PARTS)})
    with seeded_noise(0):
        model.fit(recorder)
    asked = [type(one.requests["0"]).__name__ for one in recorder.exchanges]
    assert asked == [
        "DescribeFeatures",
        "SumChosenColumnsNoisily",
        "Preprocess",
        "SumClippedScatter",
        "PreprocessAndProject",
        "DescribeFeatures",
        *["SumClustersNoisily"] * 5,
        "AssignCentres",
    ]
    losses = [privacy_of(one.requests["0"]) for one in recorder.exchanges]
    own, inner = privacy_per_request(0.1, 1e-7, 2).rho, privacy_per_request(0.9, 9e-7, 5).rho
    assert [loss.rho for loss in losses if loss] == [own] * 2 + [inner] * 5


def test_gaps_and_text_are_prepared_first():
    frame = TABLE.assign(town=np.where(TABLE["a"] > 1, "north", "south"))
    frame.loc[3, "b"] = np.nan
    parts = [frame[:40], frame[40:]]
    model = FederatedPipeline(
        FederatedKMeans(2, **LLOYD), scale="standard", impute="mean", encode="one_hot", pca=2
    ).fit(parts)
    filled = frame.fillna({"b": frame["b"].mean()})
    numbers = StandardScaler().fit_transform(filled[NAMES])
    hot = pd.get_dummies(filled["town"]).to_numpy(float)
    expected = PCA(2).fit_transform(np.hstack([numbers, hot]))
    np.testing.assert_allclose(model.transform(frame), expected, atol=1e-10)
    dropped = FederatedPipeline(FederatedKMeans(2, **LLOYD), impute="drop", encode="one_hot", pca=2)
    dropped.fit(parts)
    assert dropped.labels_[0][3] == -1


def test_boosting_on_components_needs_numbers():
    y = (TABLE["a"] > 1).astype(int).to_numpy()
    parts = [(TABLE[:60], y[:60]), (TABLE[60:], y[60:])]
    trees = FederatedXGBClassifier(2, max_depth=2)
    model = FederatedPipeline(trees, pca=2).fit(parts)
    assert model.predict(TABLE).shape == (120,)
    frame = TABLE.assign(a=TABLE["a"].where(TABLE["a"] < 3))
    with pytest.raises(ValueError, match="column 'a' has gaps at client '0'"):
        FederatedPipeline(trees, pca=2).fit([(frame[:60], y[:60]), (frame[60:], y[60:])])
    texts = TABLE.assign(a="x")
    with pytest.raises(ValueError, match="column 'a' contains text; set encode='one_hot'"):
        FederatedPipeline(trees, pca=2).fit([(texts[:60], y[:60]), (texts[60:], y[60:])])


def test_a_model_file_has_the_components(tmp_path):
    model = FederatedPipeline(FederatedKMeans(2, **LLOYD), scale="standard", pca=2).fit(PARTS)
    save(model, tmp_path / "model.json")
    loaded = load(tmp_path / "model.json")
    np.testing.assert_array_equal(loaded.transform(TABLE), model.transform(TABLE))
    np.testing.assert_array_equal(loaded.predict(TABLE), model.predict(TABLE))


def test_principal_components_of_a_scaled_table():
    model = FederatedPipeline(FederatedPCA(2), scale="standard").fit(PARTS)
    expected = pooled().named_steps["pca"]
    np.testing.assert_allclose(
        model.estimator_.explained_variance_, expected.explained_variance_, rtol=1e-10
    )


def test_a_client_that_is_built_again_for_each_request_gives_the_same():
    def client(i):
        return PipelineClient(PARTS[int(i)], FederatedKMeans.client_class)

    def fitted(**options):
        model = FederatedPipeline(FederatedKMeans(2, **LLOYD), scale="standard", pca=2)
        recorder = Recorder({str(i): client(i) for i in range(3)}, **options)
        return model.fit(recorder), [one.state.labels for one in recorder.members.values()]

    model, labels = fitted()
    again, others = fitted(rebuild=client)
    np.testing.assert_array_equal(np.concatenate(others), np.concatenate(labels))
    assert again.model_.rules == model.model_.rules


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_more_components_than_columns(schema):
    with pytest.raises(ValueError, match="pca must be at most the number of features, 4, got 5"):
        FederatedPipeline(HorizontalDBSCAN(1.0, 2), pca=5, schema=schema).fit(PARTS)


def rules(**changes):
    fields = {
        "features": ("a", "b"),
        "kinds": np.zeros(2, np.uint8),
        "categorical": (),
        "gaps": "keep",
        "fill": np.zeros(2),
        "centre": np.zeros(2),
        "spread": np.ones(2),
        "lengths": np.zeros(2, np.int64),
        "categories": (),
        "unknown": "ignore",
    }
    return fields | changes


def test_the_rules_fit_their_columns():
    components = {"mean": np.zeros(2), "components": np.eye(2)[:1]}
    request = PreprocessAndProject(**rules(), **components)
    assert decode(encode(request)) == request
    with pytest.raises(MessageError, match="mean must have 2 entries, one per column of numbers"):
        PreprocessAndProject(**rules(), mean=np.zeros(3), components=np.eye(3))
    with pytest.raises(MessageError, match="must have no text as it is"):
        PreprocessAndProject(**rules(kinds=np.array([0, 3], np.uint8)), **components)


def test_there_are_no_sums_of_text():
    part = pd.DataFrame({"a": [1.0], "b": ["x"]}), [0]
    client = PipelineClient(part, FederatedXGBClassifier.client_class)
    assert client.answer(Preprocess(**rules(kinds=np.array([0, 3], np.uint8)))) == Done()
    with pytest.raises(BadRequest, match="no sums of columns of text"):
        client.answer(SumScatter(np.zeros(2)))
