#!/usr/bin/env bash
# One would guess: Arrow's cast of a decimal column (NUMERIC in a database, DECIMAL in Parquet) to float64 gives the nearest float64,
# as Python's float(Decimal) and every reader of CSV do, at least for numbers with at most 15 digits, which a float64 tells apart.
# What happens (pyarrow 26.0.1): `cast(pa.float64())` divides by a power of ten, so that about one in fourteen of these numbers with
# eleven decimals becomes a neighbouring float, without a warning. A number of such a column can then differ from the same digits in
# a CSV file, so that equal values of two sites are different ones.
# Instead: cast by text, `cast(pa.string()).cast(pa.float64())`, which gives the nearest float64.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -c 'import sys; sys.exit("this needs Python 3.12 or later") if sys.version_info < (3, 12) else None'
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
cd "$folder"
venv/bin/python - <<'PYTHON'
import random
from decimal import Decimal

import pyarrow as pa

random.seed(0)
unit = Decimal(1).scaleb(-11)
values = [
    Decimal(random.randrange(10**15)).scaleb(-random.randrange(1, 12)).quantize(unit)
    for _ in range(20000)
]
column = pa.array(values, pa.decimal128(38, 11))
nearest = [float(value) for value in values]


def differing(floats):
    return sum(a != b for a, b in zip(floats.to_pylist(), nearest, strict=True))


direct, by_text = differing(column.cast(pa.float64())), differing(column.cast(pa.string()).cast(pa.float64()))
print("numbers that are not the nearest float64, of 20,000:", direct, "by a cast, and", by_text, "by text")
assert direct > 1000
assert by_text == 0
PYTHON
