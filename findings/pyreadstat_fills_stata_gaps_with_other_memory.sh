#!/usr/bin/env bash
# One would guess: with `user_missing=True`, `pyreadstat.read_dta` gives the extended missing values of Stata (.a to .z) as letters and
# system missing values (.) as gaps.
# What happens (pyreadstat 1.3.7, pandas 3.1.1): in a column of integers that has both, the data frame has arbitrary integers in
# place of the system missing values behind the first letter: memory that was never written. They look like data, and another run may
# give others. Without `user_missing` all of them are gaps.
# Instead: read with `output_format="dict"`, which has None there, or without `user_missing`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -c 'import sys; sys.exit("this needs Python 3.12 or later") if sys.version_info < (3, 12) else None'
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyreadstat==1.3.7 pandas==3.1.1
cd "$folder"
venv/bin/python - <<'PYTHON'
import pandas as pd
import pyreadstat

n = 64
frame = pd.DataFrame({"age": [41, "a"] + [None] * n + [57]}, dtype=object)
pyreadstat.write_dta(
    frame, "site.dta", missing_user_values={"age": ["a"]}, variable_format={"age": "%8.0g"}
)
found, meta = pyreadstat.read_dta("site.dta", user_missing=True)
print("stored as", meta.readstat_variable_types["age"])
gaps = found["age"].iloc[2 : 2 + n]
print("system missing values as a data frame:", gaps.head(4).tolist())
right, _ = pyreadstat.read_dta("site.dta", user_missing=True, output_format="dict")
print("as a dictionary:", right["age"][:4])
assert right["age"][2 : 2 + n] == [None] * n
assert not gaps.isna().all(), "the gaps are gaps"
PYTHON
