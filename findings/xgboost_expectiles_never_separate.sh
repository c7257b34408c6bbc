#!/usr/bin/env bash
# One would guess: several expectiles in one XGBoost model (`expectile_alpha=[0.2, 0.8]`) differ after some rounds,
# wherever they start, as several quantiles do: a given `base_score` only costs more rounds.
# What happens (xgboost 3.4.1): with one `base_score`, the outputs of all levels are equal to about 2e-6 for every row,
# after 200 rounds and after 1,000. Without `base_score`, each level has a first prediction of its own, and the levels
# differ by up to about 4.9 in this example. Quantiles (`reg:quantileerror`) differ in both cases. There is no warning.
# Instead: leave `base_score` out for several expectiles, or train one model for each level. A fixed
# start for each level can be passed as `base_margin` with one column per level.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -c 'import sys; sys.exit("this needs Python 3.12 or later") if sys.version_info < (3, 12) else None'
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xgboost==3.4.1 numpy==2.5.5 scipy==1.18.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import xgboost

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(4000, 2)).astype(np.float32)
y = np.exp(X[:, 0]) * np.exp(rng.normal(0, 0.3, 4000))
data = xgboost.DMatrix(X, y)


def gap(objective, levels, n_rounds=200, **options):
    """Return the largest difference of the two outputs of any row."""
    settings = {"objective": objective, levels: [0.2, 0.8], "max_depth": 3, "seed": 1, **options}
    outputs = xgboost.train(settings, data, n_rounds).predict(data)
    return float(np.abs(outputs[:, 1] - outputs[:, 0]).max())


def margins_gap():
    """Return the same for expectiles that start at -1 and 1, by base margins."""
    settings = {"objective": "reg:expectileerror", "expectile_alpha": [0.2, 0.8], "max_depth": 3, "seed": 1}
    start = np.tile([1.0, 2.0], (len(y), 1))
    rows = xgboost.DMatrix(X, y, base_margin=start)
    outputs = xgboost.train(settings, rows, 200).predict(rows)
    return float(np.abs(outputs[:, 1] - outputs[:, 0]).max())


expectiles, quantiles = ("reg:expectileerror", "expectile_alpha"), ("reg:quantileerror", "quantile_alpha")
usual, given = gap(*expectiles), [gap(*expectiles, n, base_score=1.5) for n in (200, 1000)]
of_quantiles = [gap(*quantiles), gap(*quantiles, base_score=1.5)]
print(xgboost.__version__, "expectiles:", usual, "with base_score:", given, "with base_margin:", margins_gap())
print("quantiles, without and with base_score:", of_quantiles)
assert usual > 4 and min(of_quantiles) > 4
assert max(given) < 1e-4
assert margins_gap() > 1
PYTHON
