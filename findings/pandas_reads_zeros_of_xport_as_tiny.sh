#!/usr/bin/env bash
# One would guess: a zero in a SAS transport file (.xpt, in which registries and health surveys publish tables) is read as 0.
# What happens (pandas 3.1.1): `pandas.read_sas` reads each zero as 5.397605346934028e-79, without a warning, in files of version 5,
# the only ones that it reads. Then no value equals 0: counts of zeros are 0, codes 0/1 have the other value 5e-79, and logarithms
# of zeros are -179 in place of -inf. pyreadstat 1.3.7 reads 0 from the same file.
# Instead: read .xpt files with pyreadstat, or set values below 1e-78 in size to 0 after `read_sas`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -c 'import sys; sys.exit("this needs Python 3.12 or later") if sys.version_info < (3, 12) else None'
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pandas==3.1.1 pyreadstat==1.3.7 numpy==2.5.5
cd "$folder"
venv/bin/python - <<'PYTHON'
import pandas as pd
import pyreadstat

table = pd.DataFrame({"SMOKER": [0.0, 1.0, 0.0, 1.0], "CIGS": [0.0, 20.0, 0.0, 0.5]})
pyreadstat.write_xport(table, "survey.xpt", file_format_version=5)
by_pandas = pd.read_sas("survey.xpt", format="xport")
by_pyreadstat, _ = pyreadstat.read_xport("survey.xpt")
print("pandas:    ", by_pandas["SMOKER"].tolist(), "zeros:", int((by_pandas == 0).sum().sum()))
print("pyreadstat:", by_pyreadstat["SMOKER"].tolist(), "zeros:", int((by_pyreadstat == 0).sum().sum()))
assert by_pandas["SMOKER"].tolist() == [5.397605346934028e-79, 1.0, 5.397605346934028e-79, 1.0]
assert by_pandas["CIGS"].tolist() == [5.397605346934028e-79, 20.0, 5.397605346934028e-79, 0.5]
assert by_pyreadstat.equals(table)
PYTHON
