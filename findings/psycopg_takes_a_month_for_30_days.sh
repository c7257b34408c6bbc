#!/usr/bin/env bash
# One would guess: an interval of PostgreSQL that a Python timedelta cannot hold, such as '1 mon' from age(), is refused by psycopg, or
# it keeps its months.
# What happens (psycopg 3.3.9): a month becomes 30 days and a year 365 days, without a warning. So the month from 2024-02-01 to
# 2024-03-01, which age() gives and in which 29 days have passed, is 30 days, and eleven months are 330.
# Instead: ask the server for a number, such as extract(epoch from a - b) or a::date - b::date, which is a count of days.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -c 'import sys; sys.exit("this needs Python 3.12 or later") if sys.version_info < (3, 12) else None'
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "psycopg[binary]==3.3.9"
cd "$folder"
venv/bin/python - <<'PYTHON'
# The loader gets what a server sends for such intervals: microseconds, days and months. No server is needed.
import struct

from psycopg.types.datetime import IntervalBinaryLoader

sent = {"1 mon": (0, 0, 1), "11 mons": (0, 0, 11), "1 year 1 day": (0, 1, 12)}
found = {text: IntervalBinaryLoader(1186).load(struct.pack("!qii", *parts)).days for text, parts in sent.items()}
print(found)
assert found == {"1 mon": 30, "11 mons": 330, "1 year 1 day": 366}
PYTHON
