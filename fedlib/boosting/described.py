"""What the server knows of the clients' rows before the first tree."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedlib.boosting.categories import agree_on_kinds
from fedlib.boosting.classes import (
    Class,
    agree_on_kind,
    agree_on_two_classes,
    class_weights,
    warn_of_one_class,
)
from fedlib.boosting.data import agree_on_margins
from fedlib.boosting.descriptions import (
    DescribeTargets,
    DescribeTraining,
    TargetDescription,
    TrainingDescription,
)
from fedlib.boosting.label_sums import LabelSums
from fedlib.core.aggregation import MAX_SHOWN, agree_on_features, settle
from fedlib.core.protocol import Flow, Replies

if TYPE_CHECKING:  # a client imports this module, and the settings import scikit-learn
    from fedlib.boosting.settings import Settings
from fedlib.core.texts import printable

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
    if settings.is_regression:
        request = DescribeTargets(
            settings.objective,
            settings.parameter,
            settings.learning_rate,
            *_held_out(settings),
            settings.agreed is not None,
        )
        replies = yield from settings.aggregation.describe(
            request, agree_on_kinds, agree_on_margins
        )
        classes: list[Class] = []
        sums = {name: _target_sums(reply) for name, reply in replies.items()}
        check_weight(sum(of_client.weight for of_client in sums.values()))
    else:
        training = DescribeTraining(
            settings.learning_rate, *_held_out(settings), settings.agreed is not None
        )
        replies = yield from settings.aggregation.describe(
            training, agree_on_kinds, agree_on_kind, agree_on_margins
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


def _held_out(settings: Settings) -> tuple[float, int]:
    """Return how clients draw their rows for validation."""
    fraction = settings.validation_fraction
    return fraction, settings.seed if fraction else 0


def _target_sums(reply: TargetDescription) -> LabelSums:
    return LabelSums(
        weight=reply.weight,
        total=reply.total,
        squares=reply.squares,
        gradient=reply.gradient,
        hessian=reply.hessian,
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
