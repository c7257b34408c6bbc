#!/usr/bin/env bash
# One would guess: a column of pandas' categories comes back from a Parquet file as categories, whatever the categories are.
# What happens (pandas 3.1.1, pyarrow 26.0.1): categories of texts come back as categories, and categories of numbers as plain numbers
# (with a gap as floats), without a warning. Codes of diagnoses or wards then look like measurements. The file itself has the type: in
# the Arrow schema that the writer adds (`ARROW:schema`).
# Instead: make categories of the codes' texts before you write, or read the Arrow schema of the file and encode these columns again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -c 'import sys; sys.exit("this needs Python 3.12 or later") if sys.version_info < (3, 12) else None'
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pandas==3.1.1 pyarrow==26.0.1
cd "$folder"
venv/bin/python - <<'PYTHON'
import base64

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

frame = pd.DataFrame({"ward": pd.Categorical([1, 2, None]), "sex": pd.Categorical(["f", "m", None])})
frame.to_parquet("site.parquet")
found = pd.read_parquet("site.parquet")
print("written:", frame.dtypes.astype(str).to_dict())
print("read:   ", found.dtypes.astype(str).to_dict())
stored = pq.read_metadata("site.parquet").metadata[b"ARROW:schema"]
schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored)))
print("the type in the file:", schema.field("ward").type)
assert found["sex"].dtype == "category"
assert found["ward"].dtype == "float64"
assert pa.types.is_dictionary(schema.field("ward").type)
PYTHON
