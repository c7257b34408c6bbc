"""Model files: save a fitted estimator, and load it again without running its protocol.

A model file contains the estimator's parameters and its ``model_``, so a loaded estimator predicts
exactly what the saved one predicts. It contains neither the labels of the clients' rows nor the
ledger.

The format:

- A file is a NumPy ``.npz`` archive without pickled objects. It contains the model's arrays under
  the names of their fields, and a JSON document with everything else under ``model.json``.
- The document has the ``format`` and its ``version``, the ``protocol``, the name of the
  ``estimator``, its ``parameters``, the names of the ``features``, the ``model``, the dtype and
  shape of all ``arrays``, the ``versions`` of the packages, and a ``checksum`` of the document and
  the arrays.
- In the document, ``{"array": name}`` stands for an array, ``{"class": name, "fields": {...}}`` for
  a dataclass, a NamedTuple or a `Message`, ``{"tuple": [...]}`` for a tuple, ``{"scalar": value,
  "dtype": ...}`` for a NumPy scalar and ``{"float": "nan"}`` for a float that JSON cannot contain.
  A parameter may also be ``{"dict": [[key, value], ...]}``, for a schema ``{"schema": text}``, or
  for an estimator ``{"estimator": protocol, "parameters": {...}}``.
- A ``.json`` file is the same document, with the values of the arrays in it.

A file contains only the names of classes. `load` accepts a class only if the annotation of the
parameter of ``_set_model``, or an annotation inside that class, refers to it. So loading a file
cannot run code of the file's author.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.lib import format as npy
from sklearn.utils.validation import check_is_fitted

from fedlib import __version__
from fedlib.core.estimator import Federated
from fedlib.core.parameters import class_of
from fedlib.sites.model_codec import (
    DOCUMENT,
    ModelFileError,
    Reader,
    Writer,
    check_dtype,
    find_class,
    fitting,
    hints_of,
    table_of,
)
from fedlib.tables.files import write_file

FORMAT, VERSION = "fedlib model", 1
MIN_LIMIT, MAX_RATIO = 2**26, 100  # of the unpacked arrays: bytes, and times the file


def save(estimator: Federated, path: str | Path) -> None:
    """Write a fitted estimator to a model file.

    Parameters
    ----------
    estimator : Federated
        A fitted estimator.
    path : path
        If the name ends with ``.json``, the file is written as JSON text, otherwise as an ``.npz``
        archive.

    Warns
    -----
    UserWarning
        When ``random_state`` is a generator object, which is stored as None.

    Raises
    ------
    NotFittedError
        When the estimator is not fitted.
    ModelFileError
        When a parameter or a field of the model has a type that a model file cannot contain, or a
        field has a type that its annotation does not allow.
    OSError
        When the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from fedlib import FederatedKMeans
    >>> model = FederatedKMeans(2, init=[[0.0], [8.0]]).fit([[[0.0], [0.2]], [[8.0], [8.2]]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, Path(folder, "model.npz"))
    ...     loaded = load(Path(folder, "model.npz"))
    >>> (loaded.predict([[1.0], [7.0]]) == model.predict([[1.0], [7.0]])).all()
    np.True_
    """
    write_file(Path(path), to_bytes(estimator, as_json=Path(path).suffix == ".json"))


def to_bytes(estimator: Federated, as_json: bool = False) -> bytes:
    """Return the content of a model file; errors as in `save`. Equal models give equal bytes."""
    check_is_fitted(estimator, "model_")
    writer = Writer()
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "protocol": estimator.name,
        "estimator": type(estimator).__name__,
        "parameters": writer.write_parameters(estimator, "parameters"),
        "features": list(getattr(estimator, "feature_names_in_", ())),
        "model": writer.write(estimator.model_, ""),
        "arrays": table_of(writer.arrays),
        "versions": {
            "fedlib": __version__,
            **{name: version(name) for name in ("numpy", "scikit-learn")},
        },
    }
    document["checksum"] = _checksum(document, writer.arrays)
    # Refuse now a type that `load` would refuse.
    _restore(type(estimator), document, Reader(writer.arrays, build=False))
    return (_to_json if as_json else _to_npz)(document, writer.arrays)


def load(path: str | Path, *, max_bytes: int | None = None) -> Federated:
    """Return the fitted estimator in a model file.

    The file may come from a stranger: sizes, types, shapes and the structure of trees are checked
    before anything is computed with them.

    Parameters
    ----------
    path : path
        A file written by `save`.
    max_bytes : int, optional
        The largest size of all unpacked arrays, in bytes; by default 100 times the size of the
        file, and at least 64 MiB. Files that `save` has written are never larger than that.

    Returns
    -------
    Federated
        An estimator of the class that `fedlib.core.registry.protocols` lists under the stored name
        of the protocol. Import the module of a protocol that does not belong to this package first.

    Raises
    ------
    ModelFileError
        When the file is damaged, is not a model file, has a newer format, belongs to an unknown
        protocol, or does not fit the protocol's estimator.
    OSError
        When the file cannot be read.
    """
    try:
        return from_bytes(Path(path).read_bytes(), max_bytes)
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from error


def from_bytes(data: bytes, max_bytes: int | None = None) -> Federated:
    """Return the fitted estimator in the content of a model file; see `load`."""
    document, arrays = _parse(data, max_bytes)
    estimator_class = find_class(document.get("protocol"))
    parameters, model = _restore(estimator_class, document, Reader(arrays))
    with fitting(estimator_class):
        estimator = estimator_class(**parameters)
        estimator._validate_params()
        estimator._set_model(model)
        estimator._set_names(_names_in(document))
    return estimator


def _names_in(document: Mapping[str, Any]) -> list[str]:
    """Return the names of the columns of `fit`; none from a file of an earlier version."""
    names = document.get("features", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelFileError("damaged: the names of the columns are no list of texts")
    return names


def _restore(
    estimator_class: type[Federated],
    document: Mapping[str, Any],
    reader: Reader,
) -> tuple[dict[str, Any], Any]:
    """Return the parameters and the model, whose class is the one that the estimator declares."""
    stored, model = document.get("parameters"), document.get("model")
    if not isinstance(stored, dict):
        raise ModelFileError("damaged: the file has no parameters")
    parameters = reader.read_parameters(estimator_class, stored, "parameters")
    hint = _model_hint(estimator_class, parameters)
    return parameters, reader.read(model, hint, "model")


def _model_hint(estimator_class: type[Federated], parameters: Mapping[str, Any]) -> Any:
    """Return the class of the model.

    The class of a pipeline's model has an argument. The model of `AlignedRows` is that of its
    estimator, so its annotation is a type variable.
    """
    hints = hints_of(estimator_class._set_model)
    hint = next((hint for name, hint in hints.items() if name != "return"), Any)
    if hint is Any:
        raise ModelFileError(
            f"the parameter of {estimator_class.__name__}._set_model must be annotated with the"
            " class of the model"
        )
    inner = parameters.get("estimator")
    if not isinstance(inner, Federated) or not (get_args(hint) or isinstance(hint, TypeVar)):
        return hint
    inner_hint = _model_hint(type(inner), inner.get_params(deep=False))
    return inner_hint if isinstance(hint, TypeVar) else class_of(hint)[inner_hint]


# Files


def _to_npz(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    data = io.BytesIO()
    text = json.dumps(document, indent=1, allow_nan=False)
    members: dict[str, Any] = {DOCUMENT: np.array(text), **arrays}
    np.savez_compressed(data, **members)
    size = sum(np.asarray(member).nbytes for member in members.values())
    if size > _size_limit(data.tell()) // 2:  # `load` would take it for an archive that explodes
        data = io.BytesIO()
        np.savez(data, **members)
    return data.getvalue()


def _size_limit(n_bytes: int) -> int:
    """Return the largest size of the unpacked arrays of a file of this size, in bytes."""
    return max(MIN_LIMIT, MAX_RATIO * n_bytes)


def _to_json(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    writer = Writer()
    table = {
        name: {**entry, "values": writer.write(arrays[name].ravel(order="C").tolist(), name)}
        for name, entry in document["arrays"].items()
    }
    return json.dumps({**document, "arrays": table}, indent=1, allow_nan=False).encode()


def _parse(
    data: bytes, max_bytes: int | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the document and the arrays in a model file."""
    try:
        limit = _size_limit(len(data)) if max_bytes is None else max_bytes
        document, arrays = (_from_npz if data.startswith(b"PK") else _from_json)(data, limit)
    except ModelFileError:
        raise
    # Damaged archives make zipfile, zlib and numpy raise errors of many classes.
    except Exception as error:
        raise ModelFileError(f"not a model file, or damaged: {error}") from error
    if document.get("format") != FORMAT or not isinstance(document.get("version"), int):
        raise ModelFileError("not a model file of fedlib")
    if document["version"] > VERSION:
        raise ModelFileError(
            f"has format version {document['version']}, but this version of fedlib reads at most"
            f" {VERSION}; install a newer version"
        )
    if table_of(arrays) != document.get("arrays"):
        raise ModelFileError("damaged: the arrays do not have the stated names, dtypes and shapes")
    if document.pop("checksum", None) != _checksum(document, arrays):
        raise ModelFileError("damaged: the checksum is wrong")
    return document, arrays


def _from_npz(data: bytes, max_bytes: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        names = [member.filename.removesuffix(".npy") for member in members]
        if DOCUMENT not in names:
            raise ModelFileError("not a model file of fedlib: it has no model.json")
        if len(set(names)) < len(names):
            raise ModelFileError("damaged: two arrays have the same name")
        if {member.compress_type for member in members} - {
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        }:
            raise ModelFileError("damaged: an array is compressed by an unknown method")
        _check_size(sum(member.file_size for member in members), max_bytes)
        arrays = {
            name: _parse_array(_unpack(archive, member))
            for name, member in zip(names, members, strict=True)
        }
    text = arrays.pop(DOCUMENT)
    return _parse_document(str(text)), arrays


def _check_size(size: int, max_bytes: int) -> None:
    """Refuse arrays that need more memory than is allowed."""
    if size > max_bytes:
        raise ModelFileError(
            f"the arrays have {size} bytes when they are unpacked, more than max_bytes ="
            f" {max_bytes}; if you trust the file, call load(path, max_bytes={size})"
        )


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return the content of a member, and never unpack more than the size that is stated.

    `ZipFile.read` would unpack everything before it compares the sizes.
    """
    with archive.open(member) as stream:
        content = stream.read(member.file_size)
        if len(content) < member.file_size or stream.read(1):
            raise ModelFileError(f"damaged: {member.filename[:100]} has another size than stated")
        return content


def _parse_array(data: bytes) -> np.ndarray:
    """Return the array in an ``.npy`` file; check the length before memory is allocated."""
    stream = io.BytesIO(data)
    if npy.read_magic(stream) != (1, 0):
        raise ModelFileError("an array has an unknown format")
    shape, _, dtype = npy.read_array_header_1_0(stream)
    check_dtype(dtype, "an array")
    if len(data) - stream.tell() != math.prod(shape) * dtype.itemsize:
        raise ModelFileError("damaged: an array is incomplete")
    stream.seek(0)
    array: np.ndarray = npy.read_array(stream, allow_pickle=False)
    return array


def _from_json(data: bytes, max_bytes: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    document = _parse_document(data.decode())
    arrays, size = {}, 0
    for name, entry in document.get("arrays", {}).items():
        dtype, shape = np.dtype(entry["dtype"]), entry["shape"]
        check_dtype(dtype, name)
        size += len(entry["values"]) * dtype.itemsize  # a short text may state a long dtype
        _check_size(size, max_bytes)
        reader = Reader({})
        values = [reader.read(value, Any, name) for value in entry.pop("values")]
        array = np.array(values, dtype).reshape(shape)
        arrays[name] = np.asarray(array, order=entry["order"])
    return document, arrays


def _parse_document(text: str) -> dict[str, Any]:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ModelFileError("not a model file of fedlib")
    return document


def _checksum(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of a document without its checksum, and of its arrays."""
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes(order="C"))
    return digest.hexdigest()
