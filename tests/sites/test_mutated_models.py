"""Model files of every protocol with random changes: `load` refuses, or prediction is possible.

``MODEL_MUTATIONS`` is the number of changed files (by default a few hundred). ``make test-models``
makes 100,000, with compiled kernels that check every index.
"""

import copy
import io
import json
import os
import tempfile
import tracemalloc
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from all_protocols import CASES, estimator_of

from fedlib.sites import models
from fedlib.sites.models import ModelFileError, load, save

N_CHANGES = -(-int(os.environ.get("MODEL_MUTATIONS", 360)) // len(CASES))  # per case
ODD = [0, -1, 1, 2**31 - 2, -(2**31), 2**62, 0.5, 1e300, -1e300, np.nan, np.inf]
ODD_VALUES = [None, True, -1, 0, 2**70, 1e308, "", "x" * 99, [], {}, [[]], {"float": "nan"}]
ODD_VALUES += [{"array": "no such"}, {"class": "Path", "fields": {}}, {"tuple": []}]
INDICES = {"labels", "left", "feature"}
X = np.array([[0.0, 0.0], [4.0, 0.1], [1e200, -1e200], [-3.0, 7.0]])


def altered(rng, data):
    """Return bytes of which some are changed, removed, repeated or added."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        i, j = sorted(int(k) for k in rng.integers(len(data) + 1, size=2))
        match rng.integers(5):
            case 0 if i < len(data):
                data[i] ^= 1 << int(rng.integers(8))
            case 1:
                del data[i : min(j, i + 8)]
            case 2:
                data[i:i] = data[i : min(j, i + 64)]
            case 3:
                data[i:i] = rng.bytes(int(rng.integers(1, 9)))
            case _:
                data[i : i + 4] = rng.bytes(4)
    return bytes(data)


def altered_array(rng, array):
    """Return an array with other values, another shape, another length or another dtype."""
    array = np.array(array)
    match rng.integers(6):
        case 0 if array.ndim:
            return array[:-1]
        case 1 if array.ndim:
            return np.concatenate([array, array[:1]])
        case 2:
            return array[np.newaxis] if rng.integers(2) else array.reshape(-1)
        case 3:
            return array.astype(rng.choice(["float64", "int64", "int32", "float32", "uint8", "U3"]))
    if array.size and array.dtype.kind in "biuf":
        flat = array.reshape(-1)
        flat[rng.integers(len(flat), size=2)] = np.array(ODD[rng.integers(len(ODD))]).astype(
            array.dtype
        )
    return array


def places(value, path=()):
    """Yield the path of every value in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


def altered_document(rng, document):
    """Return a document with another value, or without one, somewhere."""
    document = copy.deepcopy(document)
    paths = list(places(document))
    *path, key = paths[rng.integers(len(paths))]
    inside = document
    for step in path:
        inside = inside[step]
    if rng.integers(4):
        inside[key] = copy.deepcopy(ODD_VALUES[rng.integers(len(ODD_VALUES))])
    else:
        del inside[key]
    return document


def forged(rng, data):
    """Return a model file with changes of somebody who knows how to make its checksum."""
    document, arrays = models._parse(data)
    if arrays and rng.integers(2):
        name = sorted(arrays)[rng.integers(len(arrays))]
        arrays = {**arrays, name: altered_array(rng, arrays[name])}
        document["arrays"] = models.table_of(arrays)
    else:
        document = altered_document(rng, document)
    document["checksum"] = models._checksum(document, arrays)
    form = models._to_npz if rng.integers(2) else models._to_json
    try:
        return form(document, arrays)
    except (AttributeError, KeyError, TypeError, ValueError):  # cannot be written in this form
        return json.dumps(document).encode()


@pytest.mark.parametrize("change", [{"schema": "x"}, {"n_clusters": -1}, {"random_state": "x"}])
def test_parameters_of_a_file_are_checked_like_those_of_fit(change, tmp_path):
    save(estimator_of("kmeans").fit(CASES["kmeans"][2]()), tmp_path / "model.npz")
    document, arrays = models._parse((tmp_path / "model.npz").read_bytes())
    document["parameters"] |= change
    document["checksum"] = models._checksum(document, arrays)
    (tmp_path / "forged.npz").write_bytes(models._to_npz(document, arrays))
    with pytest.raises(ModelFileError, match=f"does not fit.*{next(iter(change))}"):
        load(tmp_path / "forged.npz")


def of_json(arrays):
    content = {"format": "fedlib model", "version": 1, "protocol": "kmeans", "arrays": arrays}
    return json.dumps(content).encode()


def npz(member, content):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return data.getvalue()


def npy(descr, shape):
    """Return a header that states more than follows."""
    data = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(data, header)
    return data.getvalue() + bytes(8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "data",
    [
        of_json({"x": {"dtype": "<f8", "shape": [10**12], "order": "C", "values": [0.0]}}),
        of_json({"x": {"dtype": "<f8", "shape": [-1, 0], "order": "C", "values": []}}),
        of_json({"x": {"dtype": f"<U{2**28}", "shape": [1], "order": "C", "values": ["x"]}}),
        b"[" * 10**5,
        b'{"a":' * 10**5,
        npz("model.json.npy", bytes(2**26 + 1)),
        npz("model.json.npy", npy("<f8", (2**40,))),
        npz("model.json.npy", npy("<f8", (2**32, 2**32))),
        npz("model.json.npy", npy(f"<U{2**29}", ())),
        npz("model.json.npy", npy("<U0", (2**60,))),
    ],
)
def test_false_sizes_allocate_nothing(data, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(ModelFileError):
        load(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**24


def with_integer(data, name, place, number):
    """Return a model file with another integer at a place of an array, and a right checksum."""
    document, arrays = models._parse(data)
    array = np.array(arrays[name])
    array.reshape(-1)[place] = number
    document["checksum"] = models._checksum(document, {**arrays, name: array})
    return models._to_npz(document, {**arrays, name: array})


def peak_of(call):
    """Return the result of a call, or its ValueError, and the most bytes that it allocates."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    except ValueError as error:
        return error, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_large_integers_take_no_memory(case, tmp_path):
    """Neither when a model is loaded nor when it predicts."""
    path = tmp_path / "model.npz"
    save(estimator_of(case).fit(CASES[case][2]()), path)
    data, n_refused = path.read_bytes(), 0
    for name, array in models._parse(data)[1].items():
        if array.dtype.kind != "i" or not array.size:
            continue
        for number in (10**6, 10**8, np.iinfo(array.dtype).max):
            path.write_bytes(with_integer(data, name, -1, number))
            loaded, most = peak_of(lambda: load(path))
            assert most < 2**24, (name, number)
            if isinstance(loaded, ModelFileError):
                n_refused += 1
            elif hasattr(loaded, "predict"):
                _, most = peak_of(lambda loaded=loaded: loaded.predict(X))
                assert most < 2**24, (name, number)
    predicts, arrays = hasattr(models.from_bytes(data), "predict"), models._parse(data)[1]
    # Noise can leave no cells, so that there is nothing to refuse.
    if predicts and any(a.size for name, a in arrays.items() if name.rpartition(".")[2] in INDICES):
        assert n_refused >= 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_a_changed_model_is_refused_or_predicts(case):
    estimator = estimator_of(case).fit(CASES[case][2]())
    rng, n_refused = np.random.default_rng(0), 0
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for form in ("npz", "json"):
            path = Path(folder, f"model.{form}")
            save(estimator, path)
            files.append(path.read_bytes())
        for i in range(N_CHANGES):
            original = files[rng.integers(2)]
            with warnings.catch_warnings(action="ignore"):
                data = forged(rng, original) if i % 3 else altered(rng, original)
            path.write_bytes(data)
            try:
                loaded = load(path)
            except ModelFileError:
                n_refused += 1
                continue
            for method in ("predict", "predict_proba"):
                if not hasattr(loaded, method):
                    continue
                with suppress(ValueError):
                    assert len(getattr(loaded, method)(X)) == len(X)
    assert n_refused
