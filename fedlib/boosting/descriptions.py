"""How clients describe their rows: the first messages of federated boosting.

With secure sums, clients describe them by three sums instead: the magnitudes of weights and
targets, from which the digits of the next sum follow, and the sums over labels.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from fedlib.boosting.classes import Class, problem_of_classes
from fedlib.boosting.messages import MAX_ROWS, MAX_WEIGHT, Fraction, ObjectiveName, Seed
from fedlib.core.columns import EMPTY
from fedlib.core.messages import Array, FeatureNames, Message, MessageError
from fedlib.protection.secure.points import N_MAGNITUDES

__all__ = [
    "ClassSums",
    "LabelMagnitudes",
    "TargetDescription",
    "TargetSums",
    "TrainingDescription",
]

Kinds = Annotated[bytes, msgspec.Meta(max_length=2**16)]  # of features


class TrainingDescription(Message):
    """A client's features, its number of rows, and the total weight of its rows in each class.

    ``kinds`` are those of `fedlib.boosting.categories.Table`.
    """

    discloses = "the number of a client's rows in each class, its features and learning rate"
    n_features: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    n_rows: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]
    classes: Annotated[tuple[Class, ...], msgspec.Meta(max_length=2**10)]
    weights: Annotated[np.ndarray, Array("float64", ("classes",), ge=0, le=MAX_WEIGHT)]
    learning_rate: Annotated[float, msgspec.Meta(gt=0, le=1)]
    features: FeatureNames = ()
    kinds: Kinds = b""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_kinds(self.kinds, self.n_features)
        if len(self.classes) != len(self.weights):
            raise MessageError(f"{len(self.weights)} weights for {len(self.classes)} classes")
        if len(self.features) not in (0, self.n_features):
            raise MessageError(f"{len(self.features)} names for {self.n_features} features")
        if problem := problem_of_classes(self.classes):
            raise MessageError(problem)


class DescribeTraining(Message):
    """Describe your rows; reply with this learning rate unless you prefer another one.

    First draw the fraction ``validation_fraction`` of them with ``seed``, for validation only. If
    the columns are ``agreed``, leave out their kinds.
    """

    discloses = "the learning rate"
    reply = TrainingDescription
    learning_rate: float
    validation_fraction: Fraction = 0.0
    seed: Seed = 0
    agreed: bool = False

    def accept(self, reply: Message) -> TrainingDescription:
        """Raise MessageError if the reply has kinds of columns that are agreed."""
        assert isinstance(reply, TrainingDescription)
        _check_agreed(self.agreed, reply.kinds)
        return reply


class TargetDescription(Message):
    """A client's features, its number of rows, and sums over the numbers that it learns.

    ``weight`` is the total weight w of the rows, ``total`` the sum of w·y and ``squares`` that of
    w·y². ``gradient`` and ``hessian`` are the sums for the prediction 0. ``kinds`` are those of
    `fedlib.boosting.categories.Table`.
    """

    discloses = (
        "the mean and the variance of a client's targets, its number of rows, its features and "
        "learning rate"
    )
    n_features: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    n_rows: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]
    weight: Annotated[float, msgspec.Meta(ge=0, le=MAX_WEIGHT)]
    total: Annotated[float, msgspec.Meta(ge=-MAX_WEIGHT, le=MAX_WEIGHT)]
    squares: Annotated[float, msgspec.Meta(ge=0, le=MAX_WEIGHT**2)]
    gradient: Annotated[float, msgspec.Meta(ge=-(2.0**80), le=2.0**80)]
    hessian: Annotated[float, msgspec.Meta(ge=0, le=2.0**80)]
    learning_rate: Annotated[float, msgspec.Meta(gt=0, le=1)]
    features: FeatureNames = ()
    kinds: Kinds = b""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_kinds(self.kinds, self.n_features)
        if len(self.features) not in (0, self.n_features):
            raise MessageError(f"{len(self.features)} names for {self.n_features} features")
        if self.total**2 > (1 + 1e-6) * self.weight * self.squares:
            raise MessageError("the sum of the targets does not fit the sum of their squares")


class DescribeTargets(Message):
    """Describe your rows for a regression; ``parameter`` is that of the objective.

    Reply with this learning rate unless you prefer another one. First draw the fraction
    ``validation_fraction`` of the rows with ``seed``, for validation only. If the columns are
    ``agreed``, leave out their kinds.
    """

    discloses = "the objective and the learning rate"
    reply = TargetDescription
    objective: ObjectiveName
    parameter: float
    learning_rate: float
    validation_fraction: Fraction = 0.0
    seed: Seed = 0
    agreed: bool = False

    def accept(self, reply: Message) -> TargetDescription:
        """Raise MessageError if the reply has kinds of columns that are agreed."""
        assert isinstance(reply, TargetDescription)
        _check_agreed(self.agreed, reply.kinds)
        return reply


class LabelMagnitudes(Message):
    """The number of a client's rows, and 1 at the magnitudes of its largest weight and target."""

    discloses = "the number of rows; how many clients have weights and targets of each magnitude"
    n_rows: Annotated[int, msgspec.Meta(ge=0, le=2**50)]
    weights: Annotated[np.ndarray, Array("int64", ("magnitudes",), ge=0, le=2**30)]
    targets: Annotated[np.ndarray, Array("int64", ("magnitudes",), ge=0, le=2**30)]


class CountLabelMagnitudes(Message):
    """Count your rows, and mark the orders of magnitude of your largest weight and target."""

    discloses = "nothing"
    reply = LabelMagnitudes

    def reply_lengths(self) -> dict[str, int]:
        return {"magnitudes": N_MAGNITUDES}


class ClassSums(Message):
    """The weight of the rows of each class, and how far the learning rate should be another one.

    ``shift`` is the weight of all rows times the difference of the preferred rate to that of the
    request.
    """

    discloses = "the weight of the rows of each class; the preferred learning rate"
    weights: Annotated[np.ndarray, Array("float64", ("classes",), ge=0)]
    shift: float


class SumClasses(Message):
    """Sum the weights of your rows by their classes, which must be among these."""

    discloses = "the classes and the learning rate"
    reply = ClassSums
    classes: Annotated[tuple[Class, ...], msgspec.Meta(min_length=1, max_length=2**10)]
    learning_rate: float

    def reply_lengths(self) -> dict[str, int]:
        return {"classes": len(self.classes)}


class TargetSums(Message):
    """Sums over the numbers that clients learn, as in `TargetDescription`; ``shift`` as before."""

    discloses = "the mean and the variance of the targets; the preferred learning rate"
    weight: Annotated[float, msgspec.Meta(ge=0)]
    total: float
    squares: Annotated[float, msgspec.Meta(ge=0)]
    gradient: float
    hessian: Annotated[float, msgspec.Meta(ge=0)]
    shift: float


class SumTargets(Message):
    """Sum your targets; ``parameter`` is that of the objective."""

    discloses = "the objective and the learning rate"
    reply = TargetSums
    objective: ObjectiveName
    parameter: float
    learning_rate: float


def _check_agreed(agreed: bool, kinds: bytes) -> None:
    if agreed and kinds:
        raise MessageError("kinds of columns, although a schema has them")


def _check_kinds(kinds: bytes, n_features: int) -> None:
    if len(kinds) not in (0, n_features) or max(kinds, default=0) > EMPTY:
        raise MessageError(f"there must be a kind from 0 to {EMPTY} for each of {n_features}")
