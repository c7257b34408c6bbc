#!/usr/bin/env bash
# One would guess: a column of codes such as "2023_01" or "1_1" is described as text, and does not pass as a column of integers:
# neither Table Schema, nor pandas, nor Arrow takes an underscore for a part of a number.
# What happens (frictionless 5.21.0): `describe` calls such a column an integer, `validate` accepts it as one, and `extract` reads
# 202301 and 11. So months become numbers of six digits, the codes 1_1 and 11 become equal, and amounts written as "1_000" are
# thousands. (Python's own `int` and `Decimal` take underscores, and frictionless calls them.)
# Instead: declare columns of codes as "string" with a pattern in the schema; do not take the types of `describe` as they are.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -c 'import sys; sys.exit("this needs Python 3.12 or later") if sys.version_info < (3, 12) else None'
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check frictionless==5.21.0 pandas==3.1.1 pyarrow==26.0.1
cd "$folder"
venv/bin/python - <<'PYTHON'
import pandas as pd
from frictionless import Resource, Schema, describe, extract, validate
from pyarrow import csv

with open("visits.csv", "w") as file:
    file.write("month,stage,cost\n2023_01,1_1,1_000.5\n2023_02,11,2_000\n")
types = {field.name: field.type for field in describe("visits.csv").schema.fields}
(rows,) = extract("visits.csv").values()
declared = {"month": "integer", "stage": "integer", "cost": "number"}
integers = Schema.from_descriptor({"fields": [{"name": name, "type": kind} for name, kind in declared.items()]})
report = validate(Resource(path="visits.csv", schema=integers))
print("described:", types)
print("read:", rows)
print("valid as integers:", report.valid)
print("pandas:", pd.read_csv("visits.csv").dtypes.astype(str).to_dict())
print("Arrow:", {field.name: str(field.type) for field in csv.read_csv("visits.csv").schema})
assert types == {"month": "integer", "stage": "integer", "cost": "number"}
assert [(row["month"], row["stage"]) for row in rows] == [(202301, 11), (202302, 11)]
assert report.valid
assert all(str(field.type) == "string" for field in csv.read_csv("visits.csv").schema)
assert not any(pd.api.types.is_numeric_dtype(kind) for kind in pd.read_csv("visits.csv").dtypes)
PYTHON
