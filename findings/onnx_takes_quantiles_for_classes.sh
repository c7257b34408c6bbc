#!/usr/bin/env bash
# One would guess: a regression with several outputs (several quantiles, or several targets) that is converted to ONNX
# gives one column per output, or the conversion fails.
# What happens (xgboost 3.4.1, onnxmltools 1.16.0, onnxruntime 1.32.0): the conversion ends without a warning. A model
# of two quantiles becomes a classifier: its first output is an integer label, 0 for every row. A model of two
# targets puts the sum of all trees into the first column and 0 into the second; the runtime only logs that the shape
# is not the declared one. With one output, count, gamma and Tweedie regressions are converted right, but
# "reg:logistic" is not (the differences are larger than 1 for a target between 0 and 1).
# treelite 4.8.1 gives XGBoost's predictions for both models.
# Instead: train one model per quantile or target with an objective that is converted right, or use treelite; compare
# predictions on some rows after each conversion.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -c 'import sys; sys.exit("this needs Python 3.12 or later") if sys.version_info < (3, 12) else None'
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  xgboost==3.4.1 numpy==2.5.5 onnx==1.23.2 onnxmltools==1.16.0 skl2onnx==1.20.0 onnxruntime==1.32.0 treelite==4.8.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import onnxmltools
import onnxruntime
import treelite
import xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 3)).astype(np.float32)
y = X[:, 0] + rng.normal(scale=0.1, size=300)


def predictions(labels, **options):
    """Return the predictions of XGBoost, all outputs of ONNX, and the predictions of treelite."""
    data = xgboost.DMatrix(X, labels)
    booster = xgboost.train({"max_depth": 2, "verbosity": 0, **options}, data, 8)
    converted = onnxmltools.convert_xgboost(
        booster, initial_types=[("x", FloatTensorType([None, 3]))]
    ).SerializeToString()
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    outputs = onnxruntime.InferenceSession(converted, quiet).run(None, {"x": X})
    expected = booster.predict(data)
    by_treelite = treelite.gtil.predict(treelite.frontend.from_xgboost(booster), X)
    assert abs(by_treelite.reshape(expected.shape) - expected).max() < 1e-5
    return expected, outputs


expected, outputs = predictions(y, objective="reg:quantileerror", quantile_alpha=[0.1, 0.9])
print("quantiles:", expected[0], "ONNX:", [out.dtype.name for out in outputs], outputs[0][:5])
assert expected.shape == (300, 2)
assert len(outputs) == 2 and outputs[0].dtype == np.int64 and not outputs[0].any()

expected, outputs = predictions(np.column_stack([y, -y]))
print("two targets:", expected[0], "ONNX:", outputs[0][0])
assert abs(outputs[0] - expected).max() > 0.1 and not outputs[0][:, 1].any()

expected, outputs = predictions(np.exp(y), objective="count:poisson")
print("counts:", expected[0], "ONNX:", outputs[0][0])
assert abs(outputs[0].ravel() - expected).max() < 1e-4

expected, outputs = predictions((y > 0) * 1.0, objective="reg:logistic")
print("logistic regression:", expected[0], "ONNX:", outputs[0][0])
assert abs(outputs[0].ravel() - expected).max() > 1
PYTHON
