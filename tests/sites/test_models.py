"""Model files: every model returns bit for bit, and every other file is refused."""

import io
import json
import tempfile
import tracemalloc
import warnings
import zipfile
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from fedlib import FederatedXGBClassifier, HorizontalDBSCAN, VerticalDBSCAN
from fedlib.clustering.density.vertical import RowLabels
from fedlib.core.estimator import Federated
from fedlib.core.messages import Array, Message
from fedlib.core.registry import protocols
from fedlib.sites import models
from fedlib.sites.models import ModelFileError, load, save

FORMS = ("npz", "json")
each_form = pytest.mark.parametrize("form", FORMS)


def bits(value):
    """Return a value as tuples, strings and bytes that are equal only if every bit is."""
    if isinstance(value, np.ndarray):
        order = value.flags.c_contiguous, value.flags.f_contiguous
        return value.dtype.str, value.shape, order, value.tobytes()
    if isinstance(value, np.generic):
        return value.dtype.str, value.tobytes()
    if isinstance(value, Message):
        return type(value), [bits(getattr(value, name)) for name in value.__struct_fields__]
    if is_dataclass(value):
        return type(value), [bits(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, list | tuple):
        return type(value), [bits(item) for item in value]
    if isinstance(value, dict):
        return [(key, bits(item)) for key, item in value.items()]
    return type(value), repr(value)


def state(estimator):
    """Return everything in which a loaded estimator must equal the saved one."""
    attributes = {
        name: value
        for name, value in sorted(vars(estimator).items())
        if name.endswith("_") and name not in {"labels_", "ledger_"}
    }
    return bits(attributes), bits(estimator.get_params())


# The protocols of the package


def blobs():
    rng = np.random.default_rng(0)
    centres = np.repeat([[0.0, 0.0], [4.0, 1.0], [1.0, 5.0]], 30, axis=0)
    return rng.permutation(centres + rng.normal(scale=0.4, size=(90, 2)))


def rows():
    return np.array_split(blobs(), 3)


def columns():
    return [blobs()[:, :1], blobs()[:, 1:]]


def classes():
    return [(X, np.array(["left", "right"])[(X[:, 0] > 2).astype(int)]) for X in rows()]


def numbers():
    return [(X, np.abs(X[:, 0])) for X in rows()]


def labelled():
    return [(X, (X[:, 0] > 2).astype(int) - (X[:, 1] > 5)) for X in rows()]


def predictions():
    return [(X[:, 0] % 1, y) for X, y in classes()]


def shares():
    """Return probabilities of three classes, which are 0, 1 and 2 in turn."""
    parts = [np.column_stack([X, X[:, 0] + X[:, 1]]) ** 2 + 1 for X in rows()]
    return [(X / X.sum(axis=1, keepdims=True), np.arange(len(X)) % 3) for X in parts]


DENSITY = {"eps": 0.5, "min_samples": 4}
PROTOCOLS = {
    "horizontal-dbscan": [
        ({"cell_size": 0.5, "min_samples": 4, "border": border, "assign": assign}, rows)
        for border in ("nearest", "absorb")
        for assign in ("point", "cell")
    ],
    "approximate-dbscan": [(DENSITY | {"rho": 0.3}, rows)],
    "vertical-dbscan": [(DENSITY, columns)],
    "dbdc": [(DENSITY, rows), (DENSITY | {"local_model": "kmeans"}, rows)],
    "sdbdc": [(DENSITY, rows)],
    "ppdbdc": [(DENSITY | {"random_state": 0}, rows)],
    "kmeans": [
        ({"n_clusters": 3, "method": method, "random_state": 0}, rows)
        for method in ("one_shot", "lloyd")
    ],
    "gaussian-mixture": [
        ({"n_components": 3, "random_state": 0, "method": method, "covariance_type": kind}, rows)
        for method in ("average", "em")
        for kind in ("full", "tied", "diag", "spherical")
    ],
    "gaussian-mixture-dbscan": [(DENSITY | {"n_components": 3, "random_state": 0}, rows)],
    "suggest": [({"min_samples": 4}, rows)],
    "kmeans-selection": [({"max_clusters": 3, "n_init": 1, "random_state": 0}, rows)],
    "gaussian-mixture-selection": [({"max_components": 2, "random_state": 0}, rows)],
    "clustering-score": [({"noise": "cluster", "min_group_size": 2}, labelled)],
    "regression-score": [({}, lambda: [(X[:, 0], y) for X, y in numbers()])],
    "evaluation": [({"n_bins": 7}, predictions), ({"classes": [0, 1, 2]}, shares)],
    "summary": [({"bounds": {"0": (-3.0, 8.0)}, "quantiles": [0.5], "rank_error": 0.1}, rows)],
    "pca": [({"n_components": 1, "whiten": whiten}, rows) for whiten in (False, True)],
    "xgboost": [
        ({"n_trees": 3, "method": "top_splits"}, classes),
        ({"n_trees": 2, "method": "histogram"}, classes),
        ({"n_trees": 2, "method": "histogram", "objective": "multi:softprob"}, classes),
    ],
    "xgb-regressor": [
        ({"n_trees": 2}, numbers),
        ({"objective": "count:poisson", "n_trees": 5}, numbers),
        ({"objective": "reg:quantileerror", "quantile_alpha": [0.2, 0.5]}, numbers),
    ],
}
CASES = [(name, *case) for name, cases in PROTOCOLS.items() for case in cases]


@each_form
@pytest.mark.parametrize(("name", "parameters", "parts"), CASES)
def test_a_loaded_estimator_predicts_the_same(name, parameters, parts, form, tmp_path):
    estimator = protocols()[name](**parameters).fit(parts())
    save(estimator, tmp_path / f"model.{form}")
    loaded = load(tmp_path / f"model.{form}")
    assert type(loaded) is type(estimator)
    assert state(loaded) == state(estimator)
    assert not hasattr(loaded, "ledger_")
    X = np.concatenate([blobs(), np.random.default_rng(1).uniform(-3, 8, (200, 2))])
    for method in ("predict", "predict_proba", "decision_function"):
        if hasattr(estimator, method):
            expected = getattr(estimator, method)(X)
            assert bits(getattr(loaded, method)(X)) == bits(expected)


def test_every_protocol_of_the_package_is_tested():
    package = {n for n, kind in protocols().items() if kind.__module__.startswith("fedlib.")}
    assert package == set(PROTOCOLS)


# An estimator with fields of every kind


class ToyCounts(Message):
    discloses = "nothing: it is for tests"
    counts: Annotated[np.ndarray, Array("int64", ("groups",), ge=0)]
    share: float
    names: tuple[str, ...] = ()


class Bounds(NamedTuple):
    low: int
    high: float | None


@dataclass(frozen=True)
class Leaf:
    values: NDArray[np.float32]
    name: str


@dataclass(frozen=True)
class ToyModel:
    points: NDArray[np.float64]
    anything: NDArray[Any]
    leaves: list[Leaf]
    bounds: Bounds
    counts: ToyCounts
    rule: Literal["near", "far"]
    limit: float | None
    losses: list[float]
    flag: bool
    box: tuple[int, float]
    words: tuple[str | int, ...]

    def __post_init__(self):
        if len(self.points) > 100:
            raise ValueError("too many points")


class Toy(Federated):
    def __init__(self, size=1, start=None, random_state=None):
        self.size = size
        self.start = start
        self.random_state = random_state

    def _set_model(self, model: ToyModel) -> None:
        super()._set_model(model)
        self.model_ = model
        self.n_features_in_ = model.points.shape[1]


@pytest.fixture(autouse=True, scope="module")
def toy_protocol():
    """Give the toy its protocol's name, so that it is found, during these tests only."""
    Toy.name = "toy-for-test"
    yield
    del Toy.name


def toy(**changes):
    """Return a fitted toy."""
    content = {
        "points": np.array([[0.1, -0.0], [np.inf, np.nan]]),
        "anything": np.array([True, False]),
        "leaves": [Leaf(np.array([0.1], np.float32), "a"), Leaf(np.empty(0, np.float32), "é")],
        "bounds": Bounds(-(2**70), None),
        "counts": ToyCounts(np.array([1, 2]), 0.5, ("x",)),
        "rule": "near",
        "limit": np.inf,
        "losses": [0.1, np.float64(0.2), np.float32(0.3), 1],
        "flag": True,
        "box": (1, 2.0),
        "words": ("a", 1),
    }
    estimator = Toy(start=np.eye(2))
    estimator._set_model(ToyModel(**{**content, **changes}))
    return estimator


def as_bytes(estimator, form="npz"):
    """Return the content of an estimator's model file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"model.{form}")
        save(estimator, path)
        return path.read_bytes()


def from_bytes(data):
    """Return the estimator in the content of a model file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model")
        path.write_bytes(data)
        return load(path)


@each_form
def test_fields_of_every_kind(form):
    estimator = toy()
    loaded = from_bytes(as_bytes(estimator, form))
    assert state(loaded) == state(estimator)
    assert loaded.n_features_in_ == 2


any_float = st.floats(allow_nan=False) | st.just(np.nan)
shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


def arrays_of(*dtypes, shape=shapes, finite=False):
    """Return a strategy of arrays, in C or Fortran order."""
    elements = {"allow_nan": False} if finite else None
    return st.builds(
        lambda array, order: np.asarray(array, order=order),
        st.one_of(
            *(
                npst.arrays(d, shape, elements=elements if np.dtype(d).kind == "f" else None)
                for d in dtypes
            )
        ),
        st.sampled_from("CF"),
    )


def toys(finite):
    """Return a strategy of fitted toys; in ``finite`` ones no array contains NaN."""
    wide = npst.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=4)
    kinds = ("bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64", "<U3")
    scalars = st.sampled_from([np.float64(0.1), np.float32(0.1), np.float64("inf"), np.int8(-1)])
    leaf = st.builds(Leaf, arrays_of("float32", finite=finite), st.text(max_size=5))
    counts = npst.arrays("int64", st.integers(0, 4), elements=st.integers(0, 2**62))
    return st.builds(
        toy,
        points=arrays_of("float64", shape=wide, finite=finite),
        anything=arrays_of(*kinds, finite=finite),
        leaves=st.lists(leaf, max_size=3),
        bounds=st.builds(Bounds, st.integers(), st.none() | any_float),
        counts=st.builds(ToyCounts, counts, st.floats(allow_nan=False, allow_infinity=False)),
        rule=st.sampled_from(["near", "far"]),
        limit=st.none() | any_float,
        losses=st.lists(any_float | st.integers() | scalars, max_size=4),
        flag=st.booleans(),
        box=st.tuples(st.integers(), any_float),
        words=st.lists(st.text(max_size=3) | st.integers(), max_size=3).map(tuple),
    )


@given(toys(finite=False))
def test_generated_models_are_restored_exactly(estimator):
    assert state(from_bytes(as_bytes(estimator))) == state(estimator)


@given(toys(finite=True))
def test_generated_models_are_restored_exactly_from_text(estimator):
    assert state(from_bytes(as_bytes(estimator, "json"))) == state(estimator)


@each_form
@given(data=st.data())
def test_a_changed_byte_is_detected(form, data):
    """The exceptions are bytes without meaning, such as the date in an archive."""
    original = toy()
    content = bytearray(as_bytes(original, form))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    try:
        loaded = from_bytes(bytes(content))
    except ModelFileError:
        return
    assert state(loaded) == state(original)


@each_form
@given(data=st.data())
def test_a_truncated_file_is_refused(form, data):
    content = as_bytes(toy(), form)
    length = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(ModelFileError):
        from_bytes(content[:length])


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(content):
    for start in (b"", b"PK\x03\x04", b"{"):
        with pytest.raises(ModelFileError):
            from_bytes(start + content)


# What the file looks like


def test_the_arrays_have_the_names_of_their_fields(tmp_path):
    save(toy(), tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as file:
        names = {"points", "anything", "leaves.0.values", "leaves.1.values", "counts.counts"}
        assert set(file) == names | {"parameters.start", "model.json"}
        document = json.loads(str(file["model.json"]))
    assert document["format"] == "fedlib model"
    assert document["version"] == 1
    assert document["protocol"] == "toy-for-test"
    assert document["estimator"] == "Toy"
    assert document["parameters"]["size"] == 1
    assert set(document["versions"]) == {"fedlib", "numpy", "scikit-learn"}


def test_the_text_form_has_the_same_document():
    document, arrays = models._parse(as_bytes(toy()))
    text, text_arrays = models._parse(as_bytes(toy(), "json"))
    assert document == text
    assert bits(arrays) == bits(text_arrays)


def test_two_arrays_never_have_one_name(tmp_path):
    """A parameter's and a field's name cannot clash with each other or with the document's."""
    writer = models.Writer()
    first = [writer._add(np.zeros(1), name) for name in ("a.b", "a.b", "model.json", "")]
    assert first == ["a.b", "a.b_", "model.json_", "model"]


@pytest.mark.parametrize("source", [np.random.RandomState(0), np.random.default_rng(0)])
def test_a_generator_is_stored_as_none(source, tmp_path):
    estimator = toy()
    estimator.random_state = source
    with pytest.warns(UserWarning, match="random_state is a .*, which is stored as None"):
        save(estimator, tmp_path / "model.npz")
    assert load(tmp_path / "model.npz").random_state is None


# What cannot be stored


def test_only_a_fitted_estimator_is_saved(tmp_path):
    with pytest.raises(NotFittedError):
        save(Toy(), tmp_path / "model.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limit": object()}, "limit cannot be stored: it is a object"),
        ({"losses": [0.1, {1, 2}]}, "losses.1 cannot be stored: it is a set"),
        ({"anything": np.array([object()])}, "anything cannot be stored: its dtype is object"),
        ({"anything": np.zeros(1, "datetime64[s]")}, "anything cannot be stored: its dtype is"),
        ({"anything": np.zeros(1, np.longdouble)}, "anything cannot be stored: its dtype is"),
        ({"points": np.zeros((1, 1), np.float32)}, "model.points must be .*, got float32"),
        ({"flag": 1}, "model.flag must be bool, got int"),
        ({"box": (True, 1.0)}, "model.box.0 must be int, got bool"),
        ({"box": (1, 1.0, 2)}, "model.box must not be a tuple of 3 items"),
        ({"leaves": (1,)}, "model.leaves must not be a tuple of 1 items"),
        ({"losses": ["a"]}, "model.losses.0 must be float, got str"),
        ({"rule": "none"}, "model.rule must be Literal.*, got str"),
        ({"limit": Bounds(1, None)}, "model.limit must not be of the class Bounds"),
    ],
)
def test_a_model_that_could_not_be_loaded_is_not_saved(changes, message, tmp_path):
    with pytest.raises(ModelFileError, match=message):
        save(toy(**changes), tmp_path / "model.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_parameter_of_a_class_is_not_saved(tmp_path):
    estimator = toy()
    estimator.start = Bounds(1, None)
    with pytest.raises(ModelFileError, match=r"parameters\.start must not be of the class Bounds"):
        save(estimator, tmp_path / "model.npz")


@pytest.mark.parametrize(
    ("annotation", "message"),
    [(Any, "must be annotated"), (None, "must be annotated"), ("Missing", "cannot be resolved")],
)
def test_the_class_of_the_model_must_be_annotated(annotation, message, tmp_path, monkeypatch):
    estimator = toy()

    def set_model(self, model):
        self.model_ = model

    if annotation is not None:
        set_model.__annotations__["model"] = annotation
    monkeypatch.setattr(Toy, "_set_model", set_model)
    with pytest.raises(ModelFileError, match=message):
        save(estimator, tmp_path / "model.npz")


# What is refused


def forged(change):
    """Return a file whose content has been changed, with a valid checksum."""
    document, arrays = models._parse(as_bytes(toy()))
    change(document, arrays)
    document["arrays"] = models.table_of(arrays)
    document["checksum"] = models._checksum(document, arrays)
    return models._to_npz(document, arrays)


def put(*path, value):
    """Return a change that puts a value into the document."""

    def change(document, arrays):
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = value

    return change


def replace_array(name, value):
    def change(document, arrays):
        arrays[name] = value

    return change


MODEL = ("model", "fields")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("format", value="model"), "not a model file of fedlib"),
        (put("version", value=2), "has format version 2, but this version of fedlib reads at most"),
        (put("version", value="1"), "not a model file of fedlib"),
        (put("protocol", value="unheard-of"), "unknown protocol 'unheard-of'; import the module"),
        (put("protocol", value=None), "unknown protocol None"),
        (put("protocol", value="kmeans"), "model must not be of the class ToyModel"),
        (put("parameters", value=[]), "the file has no parameters"),
        (put("parameters", "colour", value=1), "does not fit Toy: .*colour"),
        (put("model", value=None), "model must be ToyModel, got NoneType"),
        (put("model", "class", value="Leaf"), "model must not be of the class Leaf"),
        (put(*MODEL, value={}), "model: .*missing"),
        (put(*MODEL, "colour", value=1), "model: ToyModel has no field colour"),
        (put(*MODEL, "flag", value=0), "model.flag must be bool, got int"),
        (put(*MODEL, "points", value={"array": "none"}), "model.points contains"),
        (put(*MODEL, "limit", value={"float": "1"}), "model.limit contains"),
        (put(*MODEL, "limit", value={"scalar": 1, "dtype": "O"}), "is not a scalar|stored"),
        (put(*MODEL, "limit", value={"scalar": 1, "dtype": "?"}), "is not a scalar"),
        (put(*MODEL, "limit", value={"scalar": 300, "dtype": "i1"}), "is not a scalar"),
        (put(*MODEL, "limit", value={"scalar": "x", "dtype": "nonsense"}), "is not a scalar"),
        (put(*MODEL, "limit", value={"a": 1}), "model.limit contains"),
        (put(*MODEL, "limit", value=10**400), "model.limit must be .*, got a larger integer"),
        (replace_array("points", np.zeros((2, 2), np.float32)), "model.points must be .* float32"),
        (replace_array("points", np.zeros((101, 2))), "model: too many points"),
        (replace_array("points", np.zeros(2)), "does not fit Toy"),
        (replace_array("counts.counts", np.array([-1])), "counts must be at least 0"),
        (replace_array("counts.counts", np.zeros((1, 1), int)), "must be an array of int64"),
    ],
)
def test_a_forged_file_is_refused(change, message):
    with pytest.raises(ModelFileError, match=message):
        from_bytes(forged(change))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("points", np.zeros((2, 2)), "the checksum is wrong"),
        ("points", np.zeros((2, 3)), "do not have the stated names, dtypes and shapes"),
        ("points", np.zeros((2, 2), np.float32), "do not have the stated names"),
        ("further", np.zeros(1), "do not have the stated names"),
        ("points", np.array([object()]), "its dtype is object"),
        ("points", np.zeros(1, [("a", int)]), "its dtype is"),
    ],
)
def test_exchanged_arrays_are_detected(name, value, message, tmp_path):
    save(toy(), tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as file:
        members = dict(file)
    members[name] = value
    np.savez(tmp_path / "model.npz", **members)
    with pytest.raises(ModelFileError, match=message):
        load(tmp_path / "model.npz")


def test_a_large_array_is_not_allocated_for_a_short_file():
    """The lengths in the header of an array are checked against the bytes that are there."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (2**50,)}
    )
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("points.npy", header.getvalue())
        archive.writestr("model.json.npy", b"")
    with pytest.raises(ModelFileError, match="an array is incomplete"):
        from_bytes(data.getvalue())


def archive_of(members, sizes=None, **options):
    """Return an archive, whose directory can state other sizes than the members have."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two members with one name
        for name, content in members:
            archive.writestr(name, content, **options)
        for member in archive.infolist():
            member.file_size = (sizes or {}).get(member.filename, member.file_size)
    return data.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            archive_of([("model.json.npy", b""), ("x.npy", bytes(2**27))]),
            r"134217728 bytes when they are unpacked, more than max_bytes = 67108864; if you trust",
        ),
        (
            archive_of([("model.json.npy", b""), ("x.npy", bytes(2**27))], {"x.npy": 100}),
            "damaged|unknown format",
        ),
        (archive_of([("model.json.npy", b"")] * 2), "two arrays have the same name"),
        (
            archive_of([("model.json.npy", b"")], compress_type=zipfile.ZIP_LZMA),
            "compressed by an unknown method",
        ),
    ],
)
def test_an_archive_that_explodes_is_refused_before_it_is_unpacked(data, message):
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=message):
        from_bytes(data)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**24


def test_a_model_that_compresses_well_can_be_loaded(tmp_path):
    """A file that `load` would take for an archive that explodes is stored without compression."""
    estimator = VerticalDBSCAN(eps=0.5, min_samples=2).fit(columns())
    estimator._set_model(RowLabels(np.zeros(2**24, np.int64)))
    save(estimator, tmp_path / "model.npz")
    assert len(load(tmp_path / "model.npz").model_.labels) == 2**24


# Altered models: whatever an array contains, no kernel reads outside of it

ODD = [0, -1, 1, 2**31 - 2, -(2**31), 2**62, 0.5, 1e300, -1e300, np.nan, np.inf]


def altered(rng, array):
    """Return an array with other values, another length, another shape or another dtype."""
    array = np.array(array)
    kind = rng.integers(7)
    if kind < 4 and array.size and array.dtype.kind in "biuf":
        flat = array.reshape(-1)
        some = rng.integers(len(flat), size=rng.integers(1, 4))
        with np.errstate(invalid="ignore", over="ignore"):
            flat[some] = np.array(ODD[rng.integers(len(ODD))]).astype(array.dtype)
        return array
    if kind == 4 and array.ndim:
        return np.concatenate([array, array[:1]]) if rng.integers(2) else array[:-1]
    if kind == 5 and array.ndim:
        return array[..., :-1] if rng.integers(2) else array[np.newaxis]
    return array.astype(rng.choice(["float64", "int64", "int32", "float32", "uint8"]))


# The model of regression-score has no array.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "parameters", "parts"), [case for case in CASES if case[0] != "regression-score"]
)
def test_an_altered_model_is_refused_or_predicts(name, parameters, parts):
    document, arrays = models._parse(as_bytes(protocols()[name](**parameters).fit(parts())))
    rng, X = np.random.default_rng(0), np.concatenate([blobs(), [[1e200, -1e200], [0.0, 0.0]]])
    n_refused = 0
    for _ in range(40):
        changed = dict(arrays)
        one = rng.choice(sorted(arrays))
        with warnings.catch_warnings(action="ignore"):
            changed[one] = altered(rng, arrays[one])
        content = {**document, "arrays": models.table_of(changed)}
        content["checksum"] = models._checksum(content, changed)
        try:
            loaded = from_bytes(models._to_npz(content, changed))
        except ModelFileError:
            n_refused += 1
            continue
        if hasattr(loaded, "predict"):
            with suppress(ValueError):
                assert len(loaded.predict(X)) == len(X)
    assert n_refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left": 2**31 - 2}, "Tree.left must be below 3"),
        ({"left": 0}, "children of a tree's nodes do not follow"),
        ({"feature": 2}, "Tree.feature must be below 2"),
        ({"feature": -1}, "nodes, but the splits make"),
        ({"threshold": np.nan}, "Tree.threshold must be finite"),
        ({"value": np.inf}, "Tree.value must be finite"),
    ],
)
def test_a_tree_whose_nodes_are_no_tree_is_refused(change, message):
    parts = [(X, (X[:, 0] > 2).astype(int)) for X in rows()]
    estimator = FederatedXGBClassifier(n_trees=2, max_depth=2).fit(parts)
    document, arrays = models._parse(as_bytes(estimator))
    field, value = next(iter(change.items()))
    name = f"trees.0.{field}"
    arrays[name] = arrays[name].copy()
    arrays[name][0] = value
    document["checksum"] = models._checksum(document, arrays)
    with pytest.raises(ModelFileError, match=message):
        from_bytes(models._to_npz(document, arrays))


def test_foreign_files_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    (tmp_path / "b.json").write_text("[1, 2]")
    (tmp_path / "c.json").write_text('{"protocol": "kmeans"}')
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        archive.writestr("text.txt", "text")
    (tmp_path / "e.npz").write_bytes(b"")
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(ModelFileError, match="not a model file"):
            load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.npz")


def test_former_names_of_parameters_and_files_without_names_are_read(tmp_path):
    """A file of an earlier version: another name of the bounds, and no names of columns."""
    rows = [[[0.1, 0.2], [0.3, 0.1]], [[0.2, 0.2], [0.9, 0.9]], [[0.1, 0.1], [0.2, 0.1]]]
    bounds = [[0.0, 0.0], [1.0, 1.0]]
    model = HorizontalDBSCAN(0.5, 2, secure=True, bounds=bounds).fit(rows)
    save(model, tmp_path / "model.json")
    document = json.loads((tmp_path / "model.json").read_text())
    del document["features"], document["parameters"]["schema"]
    document["parameters"]["grid_bounds"] = document["parameters"].pop("bounds")
    document.pop("checksum")
    arrays = {
        name: np.array(one["values"], one["dtype"]).reshape(one["shape"])
        for name, one in document["arrays"].items()
    }
    plain = {
        k: {n: v for n, v in one.items() if n != "values"} for k, one in document["arrays"].items()
    }
    document["checksum"] = models._checksum({**document, "arrays": plain}, arrays)
    (tmp_path / "old.json").write_text(json.dumps(document))
    old = load(tmp_path / "old.json")
    assert old.bounds == bounds
    assert old.predict(rows[0]).tolist() == model.predict(rows[0]).tolist()
    assert not hasattr(old, "feature_names_in_")


def test_boosted_trees_of_versions_without_rules_follow_those_of_3_2(tmp_path):
    parts = [(X, (X[:, 0] > 2).astype(int)) for X in rows()]
    model = FederatedXGBClassifier(n_trees=2, max_depth=2, xgboost_rules="3.3").fit(parts)
    assert from_bytes(as_bytes(model)).xgboost_rules == "3.3"
    document, arrays = models._parse(as_bytes(model))

    def changed():
        checksum = models._checksum(document, arrays)
        return from_bytes(models._to_npz({**document, "checksum": checksum}, arrays))

    fields = document["model"]["fields"]
    del document["parameters"]["xgboost_rules"], fields["xgboost_rules"]
    old = changed()
    assert old.xgboost_rules == old.model_.xgboost_rules == "3.2"
    fields["xgboost_rules"] = "2.9"
    with pytest.raises(ModelFileError, match="xgboost_rules"):
        changed()
