#!/usr/bin/env bash
# One would guess: Flower's strategy for XGBoost, `FedXgbBagging`, adds up the trees of all clients for every objective that
# XGBoost has; with three classes, each round adds three trees per client, one per class.
# What happens (flwr 1.42.0, xgboost 3.4.1): the strategy takes `num_parallel_tree` trees of each reply, which is 1, and files
# them under the first class. With "multi:softprob", only the first reply of the first round keeps a tree for each class; all
# other trees are for the first class, without a warning. In this example, twenty rounds of three clients leave 62 trees, of which
# 60 are for the first class. The accuracy is about 0.80 (0.71 after the first round), and 0.95 for XGBoost on the pooled rows.
# Instead: train one binary model per class, or count the trees of each class (`tree_info` of the saved model) before you trust
# a model with several classes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -c 'import sys; sys.exit("this needs Python 3.12 or later") if sys.version_info < (3, 12) else None'
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check flwr==1.42.0 xgboost==3.4.1 numpy==2.5.5
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import json
import logging

import numpy as np
import xgboost
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedXgbBagging
from flwr.supercore.task_identity import TaskIdentity

logging.getLogger("flwr").setLevel(logging.ERROR)
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as a running server app has them
rng = np.random.default_rng(0)
X = rng.normal(size=(1500, 4))
values = np.sin(3 * X[:, 0]) + X[:, 1]
y = np.digitize(values, np.quantile(values, [1 / 3, 2 / 3]))
PARTS = [xgboost.DMatrix(X[i::3], y[i::3]) for i in range(3)]
OPTIONS = {"objective": "multi:softprob", "num_class": 3, "max_depth": 3}


def reply(part, model, client):
    """Return what a client of Flower's example sends: the trees of one more round."""
    if model:
        booster = xgboost.Booster(OPTIONS)
        booster.load_model(bytearray(model))
        n_rounds = booster.num_boosted_rounds()
        booster.update(part, n_rounds)
        booster = booster[n_rounds:]
    else:
        booster = xgboost.train(OPTIONS, part, 1)
    array = np.frombuffer(bytes(booster.save_raw("json")), dtype=np.uint8)
    metrics = MetricRecord({"num-examples": part.num_row()})
    content = RecordDict({"arrays": ArrayRecord([array]), "metrics": metrics})
    request = Message(RecordDict(), dst_node_id=client, message_type="train")
    return Message(content, reply_to=request)


def bagged(n_rounds):
    """Return the model of Flower's strategy."""
    strategy, model = FedXgbBagging(), b""
    for round_ in range(1, n_rounds + 1):
        strategy.current_bst = model
        replies = [reply(part, model, i + 1) for i, part in enumerate(PARTS)]
        arrays, _ = strategy.aggregate_train(round_, replies)
        model = arrays["0"].numpy().tobytes()
    booster = xgboost.Booster(OPTIONS)
    booster.load_model(bytearray(model))
    return booster


def judged(booster):
    """Return the accuracy, and the count of the trees of each class."""
    accuracy = float((booster.predict(xgboost.DMatrix(X)).argmax(axis=1) == y).mean())
    saved = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]
    return round(accuracy, 3), np.bincount(saved["tree_info"], minlength=3).tolist()


first, last = judged(bagged(1)), judged(bagged(20))
pooled = judged(xgboost.train(OPTIONS, xgboost.DMatrix(X, y), 20))
print("accuracy, trees per class after 1 round: ", *first)
print("accuracy, trees per class after 20 rounds:", *last)
print("the same for XGBoost on the pooled rows:  ", *pooled)
assert first[1] == [3, 1, 1] and last[1] == [60, 1, 1] and pooled[1] == [20, 20, 20]
assert first[0] < 0.75 < last[0] < 0.85 < 0.93 < pooled[0]
PYTHON
