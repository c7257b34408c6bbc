#!/usr/bin/env bash
# One would guess: a boosted model that was trained with dropout (DART) and is converted to ONNX predicts the same,
# or the conversion fails, because XGBoost stores such a model under the name of its booster, "dart".
# What happens (xgboost 3.4.1, onnxmltools 1.16.0, onnxruntime 1.32.0): XGBoost stores the model as "gbtree" and adds
# a list "weight_drop" with one factor per tree, also if only `rate_drop` was set and no booster was named. The
# converter does not read the list. The ONNX model predicts as if every factor were 1, without a warning: in this
# example, its predictions are off by up to about 1.47, for a target with a standard deviation of about 1.
# treelite 4.8.1 reads the list: its predictions are XGBoost's.
# Instead: multiply the leaves of each tree by its factor before you convert the model, or use treelite; in any case,
# compare predictions on some rows after each conversion.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -c 'import sys; sys.exit("this needs Python 3.12 or later") if sys.version_info < (3, 12) else None'
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  xgboost==3.4.1 numpy==2.5.5 onnx==1.23.2 onnxmltools==1.16.0 skl2onnx==1.20.0 onnxruntime==1.32.0 treelite==4.8.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import json

import numpy as np
import onnxmltools
import onnxruntime
import treelite
import xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 3)).astype(np.float32)
y = X[:, 0] + rng.normal(scale=0.1, size=300)
data = xgboost.DMatrix(X, y)


def differences(**options):
    """Return the largest differences of ONNX and of treelite from XGBoost, and the stored booster."""
    booster = xgboost.train({"eta": 0.3, "max_depth": 2, "seed": 1, **options}, data, 8)
    expected = booster.predict(data)
    converted = onnxmltools.convert_xgboost(
        booster, initial_types=[("x", FloatTensorType([None, 3]))]
    ).SerializeToString()
    (by_onnx,) = onnxruntime.InferenceSession(converted).run(None, {"x": X})
    by_treelite = treelite.gtil.predict(treelite.frontend.from_xgboost(booster), X)
    stored = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]
    return (
        float(abs(by_onnx.ravel() - expected).max()),
        float(abs(by_treelite.ravel() - expected).max()),
        stored["name"],
        len(stored["model"].get("weight_drop", [])),
    )


plain, dropout = differences(), differences(rate_drop=0.5)
print("without dropout (onnx, treelite, name, factors):", plain)
print("with dropout (onnx, treelite, name, factors):", dropout)
assert max(plain[:2]) < 1e-5 and plain[2:] == ("gbtree", 0)
assert dropout[1] < 1e-5 and dropout[2:] == ("gbtree", 8)
assert 1.4 < dropout[0] < 1.6
PYTHON
