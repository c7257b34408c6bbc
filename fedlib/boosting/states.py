"""The states of the clients of boosting."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fedlib.boosting.classes import Class
from fedlib.boosting.messages import Levels, ObjectiveName
from fedlib.messages import Array, Message

__all__ = ["Growing", "HeldOut", "PredictedTargets", "Predictions"]


class HeldOut(Message):
    """The state of a client before the first tree: how it draws its rows for validation."""

    discloses = "nothing: it stays with the client"
    validation_fraction: float
    seed: int


class Growing(Message):
    """The state of a client while trees grow.

    ``margins`` are the rows' log-odds by all finished trees, or what the objective has in their
    place. ``node`` is each row's node in the growing tree of each output, below ``n_nodes``, which
    follows from the requests alone. ``ended`` is the node in
    which the client found no split for the row, or -1. For the other fields see `BeginBoosting`.
    """

    discloses = "nothing: it stays with the client"
    classes: tuple[Class, ...]
    bits: int
    offsets: Annotated[np.ndarray, Array("int64", ("edges",))]
    thresholds: Annotated[np.ndarray, Array("float32", ("bins",))]
    objective: ObjectiveName
    parameter: float
    scale_pos_weight: float
    subsample: float
    seed: int
    reg_alpha: float
    max_delta_step: float
    levels: Levels
    n_rounds: int
    held_out: tuple[float, int]
    n_nodes: int
    margins: Annotated[np.ndarray, Array("float32", ("rows", "outputs"))]
    node: Annotated[np.ndarray, Array("int32", ("outputs", "rows"))]
    ended: Annotated[np.ndarray, Array("int32", ("outputs", "rows"))]


class Predictions(Message):
    """The state of a client at the end: the number of each row's class, and the probabilities.

    For two classes, ``probabilities`` has one column, that of the second class.
    """

    discloses = "nothing: it stays with the client"
    labels: Annotated[np.ndarray, Array("int64", ("rows",), ge=0, le=2**10)]
    probabilities: Annotated[np.ndarray, Array("float64", ("rows", "columns"), ge=0, le=1)]


class PredictedTargets(Message):
    """The state of a client at the end of a regression: the prediction for each row."""

    discloses = "nothing: it stays with the client"
    labels: Annotated[np.ndarray, Array("float64", ("rows",))]
