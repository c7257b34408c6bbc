"""What a pipeline passes on to its estimator: methods, attributes, validation, categories."""

import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import fedlib
from fedlib import (
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedXGBClassifier,
    FederatedXGBRegressor,
    HorizontalDBSCAN,
)
from fedlib.sites import models
from fedlib.tables.pipeline import PipelineClient
from fedlib.tables.schema import Schema
from fedlib.testing import Recorder

from .test_pipeline import tables

FederatedPipeline = partial(fedlib.FederatedPipeline, min_category_count=1)
NAMES = ["age", "income", "constant", "sex_f", "sex_m"]


def rich(X):
    return np.where(X["income"] > 5000, "rich", "poor")


def encoded(X):
    """Return a raw table with one column per category."""
    hot = [(X["sex"] == sex).astype(float).rename(f"sex_{sex}") for sex in "fm"]
    return pd.concat([X.drop(columns="sex"), *hot], axis=1)


def test_a_classifier_with_rows_for_validation():
    """Everything is that of the estimator on encoded rows, for raw rows."""
    parts, held = tables(sizes=(60, 50)), tables(sizes=(30, 20), seed=1)
    raw = [(X, rich(X), None, (Z, rich(Z))) for X, Z in zip(parts, held, strict=True)]
    by_hand = [(encoded(X), y, None, (encoded(Z), z)) for X, y, _, (Z, z) in raw]
    estimator = FederatedXGBClassifier(
        4,
        eval_metric=["auc", "logloss"],
        monotone_constraints={"age": -1},
        interaction_constraints=[["age", "income"], ["sex_f"]],
    )
    model = FederatedPipeline(estimator, encode="one_hot").fit(raw)
    direct = clone(estimator).fit(by_hand)
    X, y = parts[0], rich(parts[0])
    assert model.evals_result_ == direct.evals_result_
    assert model.classes_.tolist() == ["poor", "rich"]
    assert model.feature_importances_.tolist() == direct.feature_importances_.tolist()
    assert model.score(X, y) == direct.score(encoded(X), y)
    assert model.score(X, y, np.arange(60)) == direct.score(encoded(X), y, np.arange(60))
    stages = list(model.staged_predict_proba(X))
    wanted = list(direct.staged_predict_proba(encoded(X)))
    assert np.array_equal(stages, wanted)
    assert len(stages) == 4
    assert model.estimator_.model_.features == tuple(NAMES)
    pytest.importorskip("xgboost")
    contributions = model.predict_contributions(X)
    assert np.array_equal(contributions, direct.predict_contributions(encoded(X)))
    assert model.to_xgboost().get_dump() == direct.to_xgboost().get_dump()


@pytest.mark.parametrize("form", ["list", "mapping"])
def test_several_sets_with_weights(form):
    parts, held = tables(sizes=(60, 50)), tables(sizes=(30, 20), seed=1)
    one, two = ((Z, rich(Z), np.arange(len(Z)) % 3) for Z in held)
    sets = [one, two[:2]] if form == "list" else {"validation_0": one, "validation_1": two[:2]}
    raw = [(X, rich(X), np.ones(len(X)), sets) for X in parts]
    hot = [(encoded(one[0]), *one[1:]), (encoded(two[0]), two[1])]
    by_hand = [(encoded(X), y, w, hot) for X, y, w, _ in raw]
    estimator = FederatedXGBClassifier(3, eval_sets=["validation_0", "validation_1"])
    model = FederatedPipeline(estimator, encode="one_hot").fit(raw)
    assert model.evals_result_ == clone(estimator).fit(by_hand).evals_result_
    assert set(model.evals_result_) == {"validation_0", "validation_1"}


def test_the_preprocessing_does_not_depend_on_rows_for_validation():
    """Gaps are filled and dropped in them by the rules of the rows for training."""
    parts = tables(sizes=(60, 50))
    far = parts[1].assign(age=1000.0 + parts[1]["age"])
    plain = [(X, rich(X)) for X in parts]
    more = [(X, y, None, (far, rich(far))) for X, y in plain]
    for impute in ("mean", "drop"):
        pipeline = FederatedPipeline(
            FederatedXGBClassifier(3, eval_metric="error"),
            scale="standard",
            impute=impute,
            encode="one_hot",
        )
        model, without = clone(pipeline).fit(more), clone(pipeline)
        without.set_params(estimator__eval_metric=None).fit(plain)
        assert model.transform(far).equals(without.transform(far))
        assert model.labels_[0].tolist() == without.labels_[0].tolist()
        complete = far.dropna() if impute == "drop" else far
        wrong = np.mean(without.predict(complete) != rich(complete))
        assert model.evals_result_["validation_0"]["error"][-1] == pytest.approx(wrong)


def test_clients_with_rows_for_validation_are_rebuilt():
    parts = tables(sizes=(60, 50))
    raw = {name: (X, rich(X), None, (X, rich(X))) for name, X in zip("AB", parts, strict=True)}
    pipeline = FederatedPipeline(FederatedXGBClassifier(2, eval_metric="auc"), encode="one_hot")

    def make(name):
        return PipelineClient(raw[name], FederatedXGBClassifier.client_class)

    there = clone(pipeline).fit(Recorder({name: make(name) for name in raw}, rebuild=make))
    assert there.evals_result_ == pipeline.fit(list(raw.values())).evals_result_


def test_all_partitions_have_the_rows_of_both_tables():
    """So a site with a minimum count can refine those of the pipeline by those of the trees."""
    X = tables(sizes=(60,))[0]
    part, lengths = (X, rich(X), None, (X[:20], rich(X[:20]))), []

    class Watched(PipelineClient):
        def handle(self, request):
            reply = super().handle(request)
            found = self.partition(request, singly=True) or ()
            lengths.extend((type(request).__name__, len(groups)) for groups in found)
            return reply

    client = Watched(part, FederatedXGBClassifier.client_class)
    estimator = FederatedXGBClassifier(1, eval_metric="logloss")
    FederatedPipeline(estimator, impute="drop", encode="one_hot").fit(Recorder({"A": client}))
    assert {length for _, length in lengths} == {80}
    assert {"DescribeColumns", "DescribeTraining", "CountBuckets"} <= dict(lengths).keys()


# Weights -----------------------------------------------------------------------------------------


def with_rows_of_weight_0(supervised=False, seed=3):
    """Return parts with rows of weight 0 that are far away, the same without them, and their y."""
    rng, parts = np.random.default_rng(seed), []
    for X in tables(sizes=(60, 50), seed=seed):
        far = X.assign(age=1e4, income=-1e6, constant=7.0, sex="unheard of").iloc[:8]
        table, weight = pd.concat([X, far], ignore_index=True), np.repeat([1.0, 0.0], [len(X), 8])
        order = rng.permutation(len(table))
        table, weight = table.iloc[order].reset_index(drop=True), weight[order]
        parts.append((table, rich(table), weight) if supervised else (table, weight))
    kept = [tuple(one[part[-1] > 0] for one in part) for part in parts]
    return parts, kept


@pytest.mark.parametrize(
    "options",
    [
        {"scale": "standard", "impute": "mean"},
        {"scale": "minmax", "impute": "median"},
        {"scale": "robust", "impute": "drop"},
        {"scale": "standard", "impute": "drop", "pca": 2},
    ],
)
def test_rows_of_weight_0_do_not_shape_the_preprocessing(options):
    parts, kept = with_rows_of_weight_0()
    make = partial(FederatedPipeline, FederatedKMeans(2, random_state=0), encode="one_hot")
    model, without = make(**options).fit(parts), make(**options).fit(kept)
    rules, wanted = model.model_.rules, without.model_.rules
    for name in rules.__struct_fields__:
        assert np.array_equal(getattr(rules, name), getattr(wanted, name)), name
    assert np.array_equal(model.cluster_centers_, without.cluster_centers_)
    assert [len(one) for one in model.labels_] == [68, 58]


def test_rows_of_weight_0_of_a_classifier_do_not_shape_the_preprocessing():
    parts, kept = with_rows_of_weight_0(supervised=True)
    pipeline = FederatedPipeline(FederatedXGBClassifier(2), scale="standard", encode="one_hot")
    model, without = clone(pipeline).fit(parts), clone(pipeline).fit(kept)
    X = kept[0][0]
    assert model.transform(X).equals(without.transform(X))
    assert model.predict_proba(X).tolist() == without.predict_proba(X).tolist()


def limited_schema(names):
    number = {"type": "number", "constraints": {"minimum": -1e6, "maximum": 1e6, "required": True}}
    fields = [{"name": name, **number, "fedlib": {"outside": "clip"}} for name in names]
    weight = {"constraints": {"minimum": 0, "maximum": 1}, "fedlib": {"role": "weight"}}
    return Schema(
        {"name": "s", "schema": {"fields": [*fields, {"name": "w", "type": "number", **weight}]}}
    )


@pytest.mark.usefixtures("fixed_noise")
@pytest.mark.parametrize("protection", [{"secure": True}, {"epsilon": 1e5}], ids=str)
@pytest.mark.parametrize("pca", [None, 1])
def test_rows_of_weight_0_do_not_shape_a_protected_preprocessing(protection, pca):
    """With noise, the scales are those without these rows but for the noise of a large epsilon."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal([20.0, 5e5], [1e5, 2e5], (300, 2)), columns=["a", "b"])
    far = pd.DataFrame({"a": [1e6] * 30, "b": [-1e6] * 30})
    table = pd.concat([X.assign(w=1.0), far.assign(w=0.0)], ignore_index=True)
    pipeline = FederatedPipeline(
        FederatedKMeans(2, init=np.outer([0.0, 1.0], np.ones(pca or 2)), max_iter=2, **protection),
        scale="standard",
        schema=limited_schema("ab"),
        pca=pca,
    )
    scales = []
    for part in (table, table[table["w"] > 0]):
        rules = clone(pipeline).fit([part] * 4).model_.rules
        scales.append(np.concatenate([rules.centre, rules.spread]))
        if pca is not None:
            scales[-1] = np.concatenate([scales[-1], np.abs(rules.components).ravel()])
    tolerance = 1e-12 if "secure" in protection else 1e-2
    np.testing.assert_allclose(scales[0], scales[1], rtol=tolerance, atol=1e5 * tolerance)


def test_partitions_leave_out_rows_of_weight_0():
    """So a site with a minimum count does not count them as rows behind a statistic."""
    (part, _), _ = with_rows_of_weight_0()
    excluded = part[1] == 0
    seen = []

    class Watched(PipelineClient):
        def handle(self, request):
            reply = super().handle(request)
            if type(request).__name__ in ("DescribeColumns", "SumColumns", "SumScatter"):
                seen.extend(self.partition(request) or ())
            return reply

    client = Watched(part, FederatedKMeans.client_class)
    pipeline = FederatedPipeline(
        FederatedKMeans(2, random_state=0), scale="standard", impute="drop", encode="one_hot", pca=2
    )
    pipeline.fit(Recorder({"A": client}))
    assert seen
    for groups in seen:
        assert len(groups) == len(excluded)
        assert (groups[excluded] == -1).all()
        assert (groups >= 0).any()


def test_weights_that_no_protocol_takes():
    part = (np.zeros((4, 2)), np.ones(4))
    for estimator in (
        HorizontalDBSCAN(1.0, 2),
        fedlib.FederatedPCA(1),
        fedlib.GaussianMixtureSelection(2),
        fedlib.DBDC(1.0, 2),
        FederatedPipeline(HorizontalDBSCAN(1.0, 2)),
        FederatedPipeline(fedlib.FederatedPCA(1)),
    ):
        with pytest.raises(ValueError, match="must be X alone, because this estimator takes no we"):
            estimator.fit([part])


@pytest.mark.parametrize(
    ("eval_set", "message"),
    [
        (([[1.0]],), r"an eval_set must be \(X, y\)"),
        (([[1.0, 2.0]], [0]), "eval_set must have 1 features; got 2"),
        (([[1.0]], ["a"]), "y of an eval_set must be text or numbers"),
    ],
)
def test_rows_for_validation_that_do_not_fit(eval_set, message):
    part = ([[0.0], [1.0]], [0, 1], None, eval_set)
    with pytest.raises(ValueError, match=message):
        FederatedPipeline(FederatedXGBClassifier(1)).fit([part])


# Native categories -------------------------------------------------------------------------------

NATIVE = FederatedXGBRegressor(
    3, min_category_count=1, interaction_constraints=[["town", "age"], ["code"]]
)


def towns(seed, n=80):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            "age": rng.normal(50, 10, n),
            "town": rng.choice(["Bern", "Genf", "7"], n),
            "code": rng.integers(1, 4, n).astype(float),
        }
    )
    y = (X["town"] == "Genf") + (X["code"] == 2) * 2.0 + X["age"] / 50
    X.loc[rng.random(n) < 0.1, "town"] = None
    return X, y.to_numpy()


def test_trees_take_text_as_categories():
    """Without one_hot, the trees are those of the estimator on a table with categories."""
    raw = [towns(0), towns(1)]
    pipeline = FederatedPipeline(NATIVE, impute="mean", categorical=["code"])
    model = clone(pipeline).fit([*raw[:1], (*raw[1], None, raw[0])])
    by_hand = [
        (X.astype({"town": "category"}).assign(code=X["code"].astype("category")), y)
        for X, y in raw
    ]
    direct = clone(NATIVE).fit(by_hand)
    for ours, theirs in zip(model.trees_, direct.trees_, strict=True):
        assert ours.to_frame().equals(theirs.to_frame())
    assert any(len(level or ()) for level in model.estimator_.model_.levels)
    X, y = towns(2)
    categories = X.astype({"town": "category"}).assign(code=X["code"].astype("category"))
    assert model.predict(X).tolist() == direct.predict(categories).tolist()
    assert model.transform(X).dtypes["town"] == "category"
    assert model.score(X, y) == direct.score(categories, y)


def test_categories_of_a_table_without_names():
    X, y = towns(0)
    rows = X.fillna("none").to_numpy(object).tolist()
    plain = FederatedXGBRegressor(3, min_category_count=1)
    model = FederatedPipeline(plain).fit([(rows, y)])
    direct = clone(plain).fit([(X.fillna("none").astype({"town": "category"}), y)])
    assert model.predict(rows).tolist() == direct.predict(X.fillna("none")).tolist()


def test_categories_of_a_schema(tmp_path):
    X, y = towns(0)
    fields = [
        {"name": "age", "type": "number", "constraints": {"minimum": 0, "maximum": 120}},
        {"name": "town", "type": "string", "constraints": {"enum": ["Bern", "Genf", "7"]}},
        {"name": "cost", "type": "number", "fedlib": {"role": "target"}},
    ]
    path = tmp_path / "schema.json"
    path.write_text(models.json.dumps({"schema": {"fields": fields}}))
    schema = Schema.read(path)
    table = X[["age", "town"]].assign(cost=y)
    plain = FederatedXGBRegressor(2, min_category_count=1)
    model = FederatedPipeline(plain, schema=schema, scale="minmax").fit([table])
    scaled = X[["age"]].assign(age=X["age"] / 120, town=X["town"].astype("category"))
    direct = clone(plain).fit([(scaled, y)])
    assert model.predict(table).tolist() == direct.predict(scaled).tolist()


def test_text_that_must_be_encoded():
    raw = [towns(0)]
    with pytest.raises(ValueError, match="unknown='error' needs encode='one_hot'.*'town'"):
        FederatedPipeline(NATIVE, unknown="error").fit(raw)
    with pytest.raises(ValueError, match="column 'town' contains text; set encode='one_hot'"):
        FederatedPipeline(HorizontalDBSCAN(1.0, 2)).fit([raw[0][0]])


def test_a_model_with_categories_is_stored(tmp_path):
    model = FederatedPipeline(NATIVE, categorical=["code"]).fit([towns(0)])
    models.save(model, tmp_path / "model.npz")
    loaded = models.load(tmp_path / "model.npz")
    assert loaded.predict(towns(1)[0]).tolist() == model.predict(towns(1)[0]).tolist()


# Attributes --------------------------------------------------------------------------------------


def test_clusters_and_mixtures():
    parts = [X.drop(columns="sex") for X in tables(sizes=(40, 40))]
    kmeans = FederatedPipeline(FederatedKMeans(2, random_state=0), scale="standard", impute="drop")
    model = kmeans.fit(parts)
    rows = model.transform(parts[0])
    kept = parts[0].notna().all(axis=1)
    assert model.cluster_centers_.shape == (2, 3)
    assert model.score(parts[0]) == model.estimator_.score(rows)
    assert [labels.tolist() for labels in clone(kmeans).fit_predict(parts)] == [
        labels.tolist() for labels in model.labels_
    ]
    mixture = FederatedPipeline(FederatedGaussianMixture(2, random_state=0), impute="drop")
    mixture.fit([X[["age", "income"]] for X in parts])
    densities = mixture.score_samples(parts[0][["age", "income"]])
    assert np.isnan(densities).tolist() == (~kept).tolist()
    assert len(mixture.sample(3)[0]) == 3


def test_what_is_not_passed_on():
    pipeline = FederatedPipeline(FederatedXGBClassifier(1), impute="drop")
    for name in ("n_trees", "secure", "from_xgboost", "_check_rows", "classes_", "nonsense"):
        assert not hasattr(pipeline, name)
    with pytest.raises(AttributeError, match="FederatedPipeline has no attribute 'nonsense'"):
        pipeline.nonsense  # noqa: B018
    with pytest.raises(NotFittedError):
        pipeline.score([[1.0]], [0])
    with pytest.raises(NotFittedError):
        pipeline.to_xgboost()
    pipeline.fit([([[0.0], [1.0], [None]], [0, 1, 1])])
    with pytest.raises(ValueError, match="got one in row 2"):
        pipeline.score([[1.0], [None]], [0, 1])
    again = pickle.loads(pickle.dumps(pipeline))  # noqa: S301
    assert again.predict_proba([[1.0]]).tolist() == pipeline.predict_proba([[1.0]]).tolist()
