#!/usr/bin/env bash
# One would guess: a column that is made with an Arrow type refuses values that the type cannot hold, as a cast to this type does, so
# that a table can be built safely from a database's rows with `pa.array(values, type)`.
# What happens (pyarrow 26.0.1): `pa.array([1.5, 2.9], pa.int64())` is [1, 2] without a warning, while
# `pa.array([1.5, 2.9]).cast(pa.int64())` raises an error. If the type comes from the first block of a database's rows, which has
# integers, the fractions of later blocks are lost.
# Instead: let Arrow infer the type of each block and cast it (`pa.array(values).cast(type)`), which checks.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -c 'import sys; sys.exit("this needs Python 3.12 or later") if sys.version_info < (3, 12) else None'
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
cd "$folder"
venv/bin/python - <<'PYTHON'
import pyarrow as pa

made = pa.array([1.5, 2.9], pa.int64()).to_pylist()
print("1.5 and 2.9 as int64:", made)
assert made == [1, 2]
try:
    pa.array([1.5, 2.9]).cast(pa.int64())
except pa.ArrowInvalid as error:
    print("a cast raises:", error)
else:
    raise AssertionError("the cast is not checked")
PYTHON
