"""Damaged files of every kind that fedlib reads: each is read, or one error names the file.

``DAMAGED_FILES`` is the count of damaged files per kind (by default 60).
"""

import json
import os
import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
from sheets import write_dataset, write_excel, write_ods

from fedlib import HorizontalDBSCAN
from fedlib.cli.common import read_token
from fedlib.cli.preparation import make_tokens, read_clients
from fedlib.core.journal import read_ledger, run_id
from fedlib.core.site_memory import TableMemory
from fedlib.protection.policy import Policy
from fedlib.protection.secure import Identity
from fedlib.protection.secure.identities import read_public_keys
from fedlib.sites.models import load, save
from fedlib.tables.files import read_array, read_table
from fedlib.tables.schema import Schema
from fedlib.transports.http import Checkpoint

N_FILES = int(os.environ.get("DAMAGED_FILES", 60))
FRAME = pd.DataFrame({"age": [1.5, 2.0, 3.0], "kind": ["a", "b", "a"], "n": [1, 2, 3]})
TYPES = {"age": "float", "kind": "string", "n": "integer"}
COLUMNS = {name: (kind, FRAME[name].tolist()) for name, kind in TYPES.items()}
ARFF = "@relation r\n@attribute age numeric\n@attribute kind {a,b}\n@data\n1.5,a\n2,b\n"
RULES = "min_count = 5\n[budget]\nepsilon = 1.0\n[protocols.kmeans]\nmax_rounds = 3\n"
FIELDS = [{"name": "age", "type": "number"}, {"name": "kind", "type": "string"}]
SCHEMA = {"schema": {"fields": [*FIELDS, {"name": "n", "type": "integer"}]}}


def write_array(path):
    np.save(path, np.arange(20.0).reshape(10, 2))


def write_sheet(path):
    write = write_excel if path.suffix == ".xlsx" else write_ods
    write(path, {"one": [list(FRAME.columns), *FRAME.astype(object).to_numpy().tolist()]})


def fit(**options):
    return HorizontalDBSCAN(1.0, 2).fit([[[0.1], [0.2]], [[5.0]]], **options)


def write_memory(path):
    memory = TableMemory(path)
    memory.add("sum", "x", ["a", "b"])
    memory.add("noise", "y", 3)


def write_checkpoint(path):
    Checkpoint("run", "0", 3, b"reply", b"state").save(path.parent)


def write_keys(path):
    make_tokens(["a", "b"], path.parent / "tokens", {})
    for name in ("a.key", "a.token", "keys.json", "clients.json"):
        shutil.copy(path.parent / "tokens" / name, path.parent)


def read_raw(path):
    return read_table(path, raw=True)


def apply_schema(path):
    return Schema(SCHEMA).apply(path)


TABLES = {
    "t.npy": write_array,
    "t.parquet": FRAME.to_parquet,
    "t.arff": lambda path: path.write_text(ARFF),
    "t.csv": lambda path: FRAME.to_csv(path, index=False),
    "t.csv.gz": lambda path: FRAME.to_csv(path, index=False),
    "t.xlsx": write_sheet,
    "t.ods": write_sheet,
    "t.json": lambda path: write_dataset(path, COLUMNS),
    "t.ndjson": lambda path: write_dataset(path, COLUMNS),
}
READERS = {
    **{(name, "raw"): (write, read_raw) for name, write in TABLES.items()},
    **{(name, "schema"): (write, apply_schema) for name, write in TABLES.items()},
    ("array.npy", ""): (write_array, read_array),
    ("array.csv", ""): (lambda path: path.write_text("1,2\n3,4\n"), read_array),
    ("schema.json", ""): (lambda path: path.write_text(json.dumps(SCHEMA)), Schema.read),
    ("policy.toml", ""): (lambda path: path.write_text(RULES), Policy.read),
    ("a.key", ""): (write_keys, Identity.read),
    ("a.token", ""): (write_keys, read_token),
    ("keys.json", ""): (write_keys, read_public_keys),
    ("clients.json", ""): (write_keys, read_clients),
    ("run.journal", ""): (lambda path: fit(journal=path), lambda p: (run_id(p), read_ledger(p))),
    ("memory.jsonl", ""): (write_memory, lambda path: TableMemory(path).values("sum")),
    ("client.state", ""): (write_checkpoint, lambda path: Checkpoint.read(path.parent)),
    ("model.json", ""): (lambda path: save(fit(), path), load),
    ("model.npz", ""): (lambda path: save(fit(), path), load),
}


def damaged(rng, data):
    """Return bytes that were changed, removed, repeated, added or cut, as by a broken transfer."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        i, j = sorted(int(k) for k in rng.integers(len(data) + 1, size=2))
        match rng.integers(6):
            case 0 if i < len(data):
                data[i] ^= 1 << int(rng.integers(8))
            case 1:
                del data[i : min(j, i + 8)]
            case 2:
                data[i:i] = data[i : min(j, i + 64)]
            case 3:
                data[i:i] = rng.bytes(int(rng.integers(1, 9)))
            case 4:
                del data[i:]
            case _:
                data[i : i + 4] = rng.bytes(4)
    return bytes(data)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reader", READERS, ids="-".join)
def test_a_damaged_file_is_read_or_named_in_one_error(reader, tmp_path):
    name, _ = reader
    write, read = READERS[reader]
    path = tmp_path / name
    write(path)
    if reader != ("t.npy", "schema") and reader != ("t.arff", "schema"):  # other columns
        read(path)
    data, rng, n_refused = path.read_bytes(), np.random.default_rng(0), 0
    fixed = [
        b"",
        b"[" * 10**5,
        b'{"a":' * 10**5,
        b"a=" + b"[" * 10**5,
        data.replace(b"), }", b" }"),
    ]
    for content in [*fixed, *(damaged(rng, data) for _ in range(N_FILES))]:
        path.unlink()
        path.write_bytes(content)
        try:
            with warnings.catch_warnings(action="ignore"):
                read(path)
        except Exception as error:
            n_refused += 1
            known = isinstance(error, ValueError) or type(error).__name__ == "UsageError"
            if not known or name not in str(error):
                raise
    assert n_refused > 5
