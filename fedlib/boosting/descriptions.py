"""How clients describe their rows: the first messages of federated boosting.

With secure sums, clients describe them by two sums instead: the count of rows, from which the
digits of the next sum follow, and the sums over labels.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, fsum, log2
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from fedlib.boosting.categories import agree_on_kinds
from fedlib.boosting.classes import (
    Class,
    agree_on_kind,
    agree_on_two_classes,
    class_weights,
    problem_of_classes,
    warn_of_one_class,
)
from fedlib.boosting.data import agree_on_margins
from fedlib.boosting.label_sums import LabelSums
from fedlib.boosting.messages import (
    MAX_ROWS,
    MAX_WEIGHT,
    Fraction,
    ObjectiveName,
    RowLimit,
    Seed,
)
from fedlib.boosting.objectives import OBJECTIVES, Parameter, check_parameter, unit_bits
from fedlib.boosting.settings import Settings
from fedlib.core.aggregation import MAX_SHOWN, agree_on_features, settle
from fedlib.core.array_types import Floats32
from fedlib.core.columns import EMPTY
from fedlib.core.messages import Array, FeatureNames, Message, MessageError
from fedlib.core.protocol import Flow, Replies
from fedlib.core.wording import printable
from fedlib.protection.secure.fixed_point import Digits, add_rows, digits_of_limits, summed
from fedlib.protection.secure.points import NumberOfPoints

Kinds = Annotated[bytes, msgspec.Meta(max_length=2**16)]  # of features
LearningRate = Annotated[float, msgspec.Meta(gt=0, le=1)]
NumberOfMargins = Annotated[int, msgspec.Meta(ge=0, le=2**10)]
ROUNDING = 1e-5  # of sums of targets and gradients, which are float32


class Description(Message):
    """A client's features, its count of rows, and the learning rate that it prefers.

    ``kinds`` are those of `fedlib.boosting.categories.Table`. ``has_margins`` says whether rows
    start from base margins of their own, and ``n_margins`` is the count of their columns, also of
    margins that only rows for validation have. ``has_weights`` says whether they have sample
    weights.
    """

    discloses = "a client's features, its count of rows and learning rate"
    n_features: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    n_rows: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]
    learning_rate: LearningRate
    features: FeatureNames = ()
    kinds: Kinds = b""
    has_margins: bool = False
    has_weights: bool = False
    n_margins: NumberOfMargins = 0

    def check_rows(self, weight: float) -> None:
        """Raise MessageError when the parts do not fit each other, or rows of this weight."""
        kinds, names, n_features = self.kinds, self.features, self.n_features
        if len(kinds) not in (0, n_features) or max(kinds, default=0) > EMPTY:
            raise MessageError(f"there must be a kind from 0 to {EMPTY} for each of {n_features}")
        if len(names) not in (0, n_features):
            raise MessageError(f"{len(names)} names for {n_features} features")
        if weight > 0 == self.n_rows:
            raise MessageError(f"a weight of {weight} without rows")
        if self.has_margins and not self.n_margins:
            raise MessageError("base margins without columns")


class TrainingDescription(Description, kw_only=True):
    """A client's features, its count of rows, and the total weight of its rows in each class."""

    discloses = "the count of a client's rows in each class, its features and learning rate"
    classes: Annotated[tuple[Class, ...], msgspec.Meta(max_length=2**10)]
    weights: Annotated[np.ndarray, Array("float64", ("classes",), ge=0, le=MAX_WEIGHT)]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_rows(self.total_weight)
        if len(self.classes) != len(self.weights):
            raise MessageError(f"{len(self.weights)} weights for {len(self.classes)} classes")
        if problem := problem_of_classes(self.classes):
            raise MessageError(problem)

    @property
    def total_weight(self) -> float:
        """The weight of all rows."""
        return float(self.weights.sum())


class DescribeTraining(Message):
    """Describe your rows; reply with this learning rate unless you prefer another one.

    First draw the fraction ``validation_fraction`` of them with ``seed``, for validation only. If
    the columns are ``agreed``, leave out their kinds.
    """

    discloses = "the learning rate"
    effortless = ("seed",)
    reply: ClassVar[type[Message]] = TrainingDescription
    learning_rate: LearningRate
    validation_fraction: Fraction = 0.0
    seed: Seed = 0
    agreed: bool = False

    def accept(self, reply: Message) -> Any:
        """Raise MessageError if the reply has kinds of columns that are agreed."""
        assert isinstance(reply, Description)
        if self.agreed and reply.kinds:
            raise MessageError("kinds of columns, although a schema has them")
        return reply


class TargetDescription(Description, kw_only=True):
    """A client's features, its count of rows, and sums over the numbers that it learns.

    ``weight`` is the total weight w of the rows, ``total`` the sum of w·y and ``squares`` that of
    w·y². ``gradient`` and ``hessian`` are the sums for the prediction 0. With base margins,
    ``size`` is a power of two above the sums of absolute gradients and of hessians at these
    margins. The sums for the first tree also contain the
    gradients at these margins.
    """

    discloses = (
        "the mean and the variance of a client's targets, its count of rows, its features and "
        "learning rate"
    )
    weight: Annotated[float, msgspec.Meta(ge=0, le=MAX_WEIGHT)]
    total: Annotated[float, msgspec.Meta(ge=-MAX_WEIGHT, le=MAX_WEIGHT)]
    squares: Annotated[float, msgspec.Meta(ge=0, le=MAX_WEIGHT**2)]
    gradient: Annotated[float, msgspec.Meta(ge=-(2.0**80), le=2.0**80)]
    hessian: Annotated[float, msgspec.Meta(ge=0, le=2.0**80)]
    size: Annotated[float, msgspec.Meta(ge=0, le=2.0**82)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_rows(self.weight)
        if self.total**2 > (1 + 1e-6) * self.weight * self.squares:
            raise MessageError("the sum of the targets does not fit the sum of their squares")

    @property
    def total_weight(self) -> float:
        """The weight of all rows."""
        return self.weight


class DescribeTargets(DescribeTraining, kw_only=True):
    """Describe your rows for a regression; ``parameter`` is that of the objective.

    For the other fields see `DescribeTraining`.
    """

    discloses = "the objective and the learning rate"
    reply = TargetDescription
    objective: ObjectiveName
    parameter: Parameter

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parameter(self.objective, self.parameter)

    def accept(self, reply: Message) -> Any:
        """Raise MessageError if the reply has kinds that are agreed, or sums of other targets."""
        reply = super().accept(reply)
        assert isinstance(reply, TargetDescription)
        low, high = OBJECTIVES[self.objective].targets
        least, most = (limit * reply.weight if reply.weight else 0.0 for limit in (low, high))
        rounding = ROUNDING * reply.weight
        if not least - rounding <= reply.total <= most + rounding:
            raise MessageError(
                f"a sum of {reply.total} of targets with the weight {reply.weight}, which must be"
                f" {OBJECTIVES[self.objective].valid_targets}"
            )
        largest = OBJECTIVES[self.objective].largest_sums(LabelSums.of(reply), 0.0, self.parameter)
        allowed = (1 + ROUNDING) * max(largest) + rounding
        if max(abs(reply.gradient), reply.hessian) > allowed:
            raise MessageError(f"gradients beyond {allowed:.2g}, the largest of such targets")
        return reply


class ClassSums(Message):
    """The weight of the rows of each class, and how far the learning rate should be another one.

    ``shift`` is the weight of all rows times the difference of the preferred rate to that of the
    request.
    """

    discloses = "the weight of the rows of each class; the preferred learning rate"
    weights: Annotated[np.ndarray, Array("float64", ("classes",), ge=0)]
    shift: float


class SumClasses(Message):
    """Sum the weights of your rows by their classes, which must be among these.

    Larger weights are replaced by ``max_weight``. All clients together have ``n_rows`` rows.
    """

    discloses = "the classes, the learning rate, and the count of all rows"
    effortless = ("n_rows",)
    reply = ClassSums
    classes: Annotated[tuple[Class, ...], msgspec.Meta(min_length=1, max_length=2**10)]
    learning_rate: LearningRate
    max_weight: RowLimit
    n_rows: NumberOfPoints

    def reply_lengths(self) -> dict[str, int]:
        return {"classes": len(self.classes)}

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        largest = self.n_rows * self.max_weight
        return digits_of_limits({"weights": largest, "shift": largest}, n_clients)


class TargetSums(Message):
    """Sums over the targets, with the fields and the ``shift`` of `TargetDescription`."""

    discloses = "the mean and the variance of the targets; the preferred learning rate"
    weight: Annotated[float, msgspec.Meta(ge=0)]
    total: float
    squares: Annotated[float, msgspec.Meta(ge=0)]
    gradient: float
    hessian: Annotated[float, msgspec.Meta(ge=0)]
    shift: float


class SumTargets(Message):
    """Sum your targets; ``parameter`` is that of the objective.

    Weights above ``max_weight`` and targets beyond ±``max_target`` count as these. All clients
    together have ``n_rows`` rows.
    """

    discloses = "the objective, the learning rate, and the count of all rows"
    effortless = ("n_rows",)
    reply = TargetSums
    objective: ObjectiveName
    parameter: Parameter
    learning_rate: LearningRate
    max_weight: RowLimit
    max_target: RowLimit
    n_rows: NumberOfPoints

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parameter(self.objective, self.parameter)

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        weight, target = self.n_rows * self.max_weight, self.max_target
        largest = LabelSums(weight, total=weight * target, squares=weight * target**2)
        objective = OBJECTIVES[self.objective]
        gradient, hessian = objective.largest_sums(largest, 0.0, self.parameter)
        limits = {
            "weight": weight,
            "total": largest.total,
            "squares": largest.squares,
            "gradient": 2 * gradient,
            "hessian": 2 * hessian,
            "shift": weight,
        }
        return digits_of_limits(limits, n_clients)


def target_sums(y: Floats32, weight: Floats32, objective: str, parameter: Parameter) -> LabelSums:
    """Return the sums over the rows of a client with the targets ``y`` (n_rows,).

    Of two columns, only the weight is known. Gradients for the prediction 0 are 0 where no first
    prediction needs them.
    """
    chosen, wide = OBJECTIVES[objective], y.astype(np.float64)
    if chosen.n_columns > 1:
        return LabelSums(weight=fsum(weight))
    sums = LabelSums(weight=fsum(weight), total=fsum(weight * wide), squares=fsum(weight * wide**2))
    size = chosen.total(sums, [0.0], parameter)
    if size == 0 or chosen.estimate != "sums":
        return sums
    bits = unit_bits(size)
    at_zero = np.zeros((len(y), 1), np.float32)
    gradients = chosen.gradients(at_zero, y, weight, parameter, bits)
    gradient, hessian = (gradients[0].sum(axis=0) * 2.0**-bits).tolist()
    return replace(sums, gradient=gradient, hessian=hessian)


def reply_of_targets(
    request: SumTargets, y: Floats32, weight: Floats32, shift: float, digits: Digits | None
) -> TargetSums:
    """Return the reply of a client with the targets ``y`` (n_rows,).

    ``shift`` is the difference of the preferred learning rate to that of the request. With
    ``digits``, each term of a row is rounded to them (`add_rows`).
    """
    chosen, one, wide = OBJECTIVES[request.objective], weight.astype(np.float64), y.astype(float)
    terms = dict.fromkeys(TargetSums.__struct_fields__, np.zeros(len(one)))
    terms |= {"weight": one, "shift": one * shift}
    if chosen.n_columns == 1:
        terms |= {"total": one * wide, "squares": one * wide**2}
        if chosen.estimate == "sums":
            known = request.sum_digits(1) if digits is None else digits
            bits = min(known["gradient"] + known["hessian"])
            at_zero = np.zeros((len(y), 1), np.float32)
            rows = chosen.gradients(at_zero, y, weight, request.parameter, bits)[0]
            terms["gradient"], terms["hessian"] = np.ldexp(rows, -bits).T
    found = {k: add_rows(of_rows[:, None], digits, k)[0, 0] for k, of_rows in terms.items()}
    return summed(TargetSums, digits, **found)


def initial_scale(
    margins: Floats32, y: Floats32, weight: Floats32, objective: str, parameter: Parameter
) -> float:
    """Return a power of two above the sums of absolute gradients and hessians at base margins.

    For an objective with a scale, it is above the sums of all clients' rows if it is added up:
    above the sum of absolute residuals, which no scale exceeds on the mean.

    Parameters
    ----------
    margins : array (n_rows, n_outputs) of float32
    y, weight : array (n_rows,) of float32

    Raises
    ------
    ValueError
        When they may exceed 2**80.

    Examples
    --------
    >>> margins, one = np.array([[5.0]], np.float32), np.ones(1, np.float32)
    >>> initial_scale(margins, one, one, "reg:squarederror", 0.0)
    4.0
    """
    chosen, sums = OBJECTIVES[objective], target_sums(y, weight, objective, parameter)
    largest = float(np.abs(margins).max(initial=0))
    if chosen.scaled:
        limit = chosen.total(sums, [largest], parameter)
    else:
        limit = max(chosen.largest_sums(sums, largest, parameter))
    if limit > 2.0**80:
        raise ValueError(
            f"base_margin must be smaller for objective={objective!r}: gradients would be as large"
            f" as {limit:.1g}; got {largest:g} in size"
        )
    if limit == 0:
        return 0.0
    if chosen.scaled:
        return 2.0 ** ceil(log2(limit))
    bits = unit_bits(limit)
    gradients = chosen.gradients(margins, y, weight, parameter, bits)
    return 2.0 ** (ceil(log2(max(np.abs(gradients).sum(axis=1).max(), 1))) - bits)


REMEDY = "; objective='multi:softprob' allows more"
EVERYONE = "all clients"  # the name under which the server keeps sums over all clients


@dataclass(frozen=True)
class Pool:
    """What the server knows of all clients together, if their sums are masked.

    Attributes
    ----------
    members : tuple of str
        The clients whose rows are described.
    largest_weight : float
        An upper bound on a client's total weight.
    """

    members: tuple[str, ...]
    largest_weight: float


@dataclass(frozen=True, kw_only=True)
class Described:
    """The clients' descriptions of their rows.

    Attributes
    ----------
    sums : dict of str to LabelSums
        The sums over the labels of each client; with secure sums, those of `EVERYONE`.
    n_rows : dict of str to int
        The numbers of rows, with the same names.
    classes : list of bool, int, float or str
        All classes in ascending order; empty for a regression.
    n_features : int
    features : tuple of str
        The features' names; empty if they have none.
    texts : list of int
        The features that contain text.
    learning_rate : float
        The clients' mean, a float32 number.
    replies : Replies
        The descriptions of the clients that are left.
    pool : Pool, optional
        With secure sums, or with noise.
    first_sizes : mapping of str to float, optional
        If rows start from base margins of their own: the size of each client's first sums, where
        it does not follow from the weights of its rows.
    own_weights : mapping of str to float, optional
        If rows have sample weights: their sum at each client.
    reg_lambda : float
        The penalty on the weight of a leaf, if the settings leave it to the noise.
    """

    sums: dict[str, LabelSums]
    n_rows: dict[str, int]
    classes: list[Class]
    n_features: int
    features: tuple[str, ...]
    texts: Sequence[int]
    learning_rate: float
    replies: Replies
    pool: Pool | None = None
    first_sizes: Mapping[str, float] | None = None
    own_weights: Mapping[str, float] | None = None
    reg_lambda: float = 1.0

    @property
    def n_margins(self) -> dict[str, int]:
        """The count of columns of base margins of each client; protected clients have none."""
        return {name: getattr(reply, "n_margins", 0) for name, reply in self.replies.items()}

    @property
    def weights(self) -> dict[str, float]:
        """The weight of the rows of each client."""
        return {name: of_client.weight for name, of_client in self.sums.items()}


def agree_on_names(replies: Replies) -> tuple[str, ...]:
    """Return the features' names; warn of clients that sent none when others did."""
    names: dict[str, tuple[str, ...]] = {name: reply.features for name, reply in replies.items()}
    features = next(filter(None, names.values()), ())
    nameless = ", ".join(repr(client) for client, sent in names.items() if not sent)
    if features and nameless:
        warnings.warn(
            f"no feature names from {printable(nameless, MAX_SHOWN)}: assumed to be"
            f" {printable(', '.join(features), MAX_SHOWN)}, as at the other clients",
            stacklevel=2,
        )
    return features


def check_weight(weight: float) -> None:
    """Raise ValueError when no row has a weight."""
    if not weight:
        raise ValueError("at least one row must have a weight above 0; all clients together have 0")


def describe(settings: Settings) -> Flow[Described]:
    """Ask each client to describe its rows."""
    fraction, classes = settings.validation_fraction, list[Class]()
    common = {
        "learning_rate": settings.learning_rate,
        "validation_fraction": fraction,
        "seed": settings.seed if fraction else 0,
        "agreed": settings.agreed is not None,
    }
    if settings.is_regression:
        request = DescribeTargets(
            objective=settings.objective, parameter=settings.parameter, **common
        )
        replies = yield from settings.aggregation.describe(
            request, agree_on_kinds, agree_on_margins
        )
        sums = {name: LabelSums.of(reply) for name, reply in replies.items()}
        check_weight(sum(of_client.weight for of_client in sums.values()))
    else:
        replies = yield from settings.aggregation.describe(
            DescribeTraining(**common), agree_on_kinds, agree_on_kind, agree_on_margins
        )
        only_two = settings.objective == "binary:logistic" and not settings.by_classes
        if only_two:
            replies = yield from settle(replies, partial(agree_on_two_classes, remedy=REMEDY))
        classes, _ = class_weights(replies, only_two=only_two)
        if settings.method != "histogram":
            warn_of_one_class(replies, settings.method)
        scale = settings.scale_pos_weight if len(classes) == 2 else 1.0
        sums = {name: _class_sums(reply, classes).scaled(scale) for name, reply in replies.items()}
    return Described(
        sums=sums,
        n_rows={name: int(reply.n_rows) for name, reply in replies.items()},
        classes=classes,
        n_features=agree_on_features(replies),
        features=agree_on_names(replies),
        texts=agree_on_kinds(replies),
        learning_rate=_mean_learning_rate(
            replies, {name: of_client.weight for name, of_client in sums.items()}
        ),
        replies=replies,
        first_sizes={name: getattr(reply, "size", 0.0) for name, reply in replies.items()}
        if any(reply.has_margins for reply in replies.values())
        else None,
        own_weights={name: reply.total_weight for name, reply in replies.items()}
        if any(reply.has_weights for reply in replies.values())
        else None,
    )


def _class_sums(reply: TrainingDescription, classes: Sequence[Class]) -> LabelSums:
    """Return the weight of a client's rows in each class of all clients."""
    weights = dict(zip(reply.classes, reply.weights.tolist(), strict=True))
    return LabelSums(
        weight=float(reply.weights.sum()),
        classes=tuple(weights.get(label, 0.0) for label in classes),
    )


def _mean_learning_rate(replies: Replies, weights: dict[str, float]) -> float:
    """Return the mean of the clients' learning rates, weighted by rows and rounded to float32."""
    rates = {name: reply.learning_rate for name, reply in replies.items()}
    if len(set(rates.values())) == 1:  # not changed by rounding errors of a mean
        return float(np.float32(next(iter(rates.values()))))
    total = sum(weights.values())
    return float(np.float32(sum(rate * weights[name] for name, rate in rates.items()) / total))
