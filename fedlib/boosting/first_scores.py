"""First predictions for which sums over labels are not enough: steps from the mean, and quantiles.

As XGBoost 3.4 does it on all rows:

- An expectile starts with one Newton step from the mean, and so does the median of
  ``"reg:absoluteerror"``, whose gradients have a scale: the squared mean of the roots of absolute
  residuals.
- A quantile starts with that of the targets. Without weights, it lies between two neighbouring
  targets; with weights, it is the first target up to which the rows have its fraction of the
  weight. Weights of 0 and 1 count as none.

A quantile is found as in `fedlib.tables.summary`: by counts in ever smaller ranges of targets. Each
of four exchanges divides a range of the float32 numbers into 256.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import floor, fsum
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.cuts import float_keys, float_values
from fedlib.boosting.descriptions import Described
from fedlib.boosting.label_sums import LabelSums, largest_root, mean
from fedlib.boosting.messages import (
    MAX_WEIGHT,
    ObjectiveName,
    RowLimit,
    Splits,
    check_length,
)
from fedlib.boosting.objectives import (
    OBJECTIVES,
    Parameter,
    check_parameter,
    sum_in_order,
    unit_bits,
)
from fedlib.boosting.server_state import reasons
from fedlib.boosting.settings import Settings
from fedlib.core.array_types import Floats, Floats32, Ints
from fedlib.core.messages import Array, Message, MessageError
from fedlib.core.protocol import Flow, Replies
from fedlib.kernels.forests import weighted_roots
from fedlib.protection.secure.fixed_point import Digits, add_rows, digits_of_limits, summed
from fedlib.protection.secure.points import NumberOfPoints

N_PARTS = 256  # of a range of targets
N_DIVISIONS = 4  # of the 2**32 keys of float32 numbers, until each has a part of its own
LEAST_HESSIAN = 1e-6  # XGBoost's, of all rows
ROUNDING = 1e-6  # of a client's sums; clients add in another order
Prefix = Annotated[np.ndarray, Array("uint32", ("ranges",))]


class ResidualSums(Message):
    """Sums over residuals: their weight, the roots of their sizes, and gradients.

    ``roots`` has one sum per output. ``gradients`` has the sums of gradients and hessians for each
    of the parameters that were requested.
    """

    discloses = (
        "the mean root of the residuals of a client's targets from one prediction, or from those of"
        " the trees; for a first prediction, also how many targets lie below it"
    )
    weight: Annotated[float, msgspec.Meta(ge=0, le=MAX_WEIGHT)]
    roots: Annotated[np.ndarray, Array("float64", ("outputs",), ge=0, le=2.0**80)]
    gradients: Annotated[np.ndarray, Array("float64", ("parameters", "pair"), -(2.0**80), 2.0**80)]


class SumResiduals(Message):
    """Sum the residuals of your targets from one prediction, before the first tree.

    Sum gradients for each of ``parameters``, those of an objective with one output. Weights above
    ``max_weight`` and targets beyond ±``max_target`` count as these. All clients together have
    ``n_rows`` rows.
    """

    discloses = "a prediction near the mean of all targets, and the scale of all residuals from it"
    reply = ResidualSums
    effortless = ("n_rows",)
    objective: ObjectiveName
    margin: float
    parameters: Annotated[tuple[tuple[float, ...], ...], msgspec.Meta(max_length=2**10)]
    max_weight: RowLimit
    max_target: RowLimit
    n_rows: NumberOfPoints

    def __post_init__(self) -> None:
        super().__post_init__()
        if OBJECTIVES[self.objective].n_columns > 1:
            raise MessageError(f"{self.objective} has no residuals")
        for parameter in self.parameters:
            check_parameter(self.objective, parameter, 1)

    def reply_lengths(self) -> dict[str, int]:
        return {"outputs": 1, "parameters": len(self.parameters), "pair": 2}

    def work(self) -> float:
        return float(1 + len(self.parameters))

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        weight, target = self.n_rows * self.max_weight, self.max_target
        largest = LabelSums(weight, total=weight * target, squares=weight * target**2)
        limits = [self.limits(largest, parameter) for parameter in self.parameters]
        return digits_of_limits(
            {
                "weight": weight,
                "roots": largest_root(largest, abs(self.margin)),
                "gradients": np.max([*limits, (0.0, 0.0)], axis=0),
            },
            n_clients,
        )

    def limits(self, sums: LabelSums, parameter: Parameter) -> tuple[float, float]:
        """Return the largest sums of gradients and hessians of rows with these labels."""
        return OBJECTIVES[self.objective].largest_sums(sums, abs(self.margin), parameter)

    def accept(self, reply: Message) -> ResidualSums:
        """Raise MessageError unless there is one sum per output and parameter."""
        assert isinstance(reply, ResidualSums)
        check_length("outputs", len(reply.roots), 1)
        check_length("parameters", len(reply.gradients), len(self.parameters))
        check_length("sums", reply.gradients.shape[1], 2)
        if (reply.gradients[:, 1] < 0).any():
            raise MessageError("a negative sum of hessians")
        return reply

    def problem(self, reply: ResidualSums, sums: LabelSums) -> str | None:
        """Return why rows with these labels cannot have these sums; None if they can."""
        if differ(reply.weight, sums.weight, sums.weight):
            return "the rows do not weigh what the client declared"
        more = 1 + ROUNDING
        if reply.roots[0] > more * largest_root(sums, abs(self.margin)):
            return "the residuals exceed what the declared rows can have"
        for found, parameter in zip(np.abs(reply.gradients), self.parameters, strict=True):
            if (found > more * np.array(self.limits(sums, parameter))).any():
                return "the gradients exceed what the declared rows can have"
        return None


class SumRoots(Splits, kw_only=True):
    """Sum the roots of your absolute residuals from the trees so far.

    For ``n_rounds`` see `fedlib.boosting.histograms.SumHistograms`. No client's rows weigh
    more than ``max_sum``. ``weight`` is the largest sum of roots.
    """

    discloses = "the splits chosen last and the leaves of the finished tree"
    reply = ResidualSums
    n_outputs: Annotated[int, msgspec.Meta(ge=1, le=2**10)]
    n_rounds: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    max_sum: Annotated[float, msgspec.Meta(gt=0, le=MAX_WEIGHT)]

    def reply_lengths(self) -> dict[str, int]:
        return {"outputs": self.n_outputs, "parameters": 0, "pair": 2}

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        limits = {"weight": self.max_sum, "roots": self.weight, "gradients": 0.0}
        return digits_of_limits(limits, n_clients)

    def accept(self, reply: Message) -> ResidualSums:
        """Raise MessageError unless there is one possible sum per output."""
        assert isinstance(reply, ResidualSums)
        check_length("outputs", len(reply.roots), self.n_outputs)
        check_length("parameters", len(reply.gradients), 0)
        if reply.roots.max(initial=0) > (1 + ROUNDING) * self.weight:
            raise MessageError("the residuals exceed what the declared rows can have")
        return reply


class TargetCounts(Message):
    """The weight of rows in each part of some ranges of targets.

    ``n_weighted`` is the count of rows with another weight than 0 and 1.
    """

    discloses = (
        "how many of a client's targets lie in each of 256 ranges, and around a quantile in ever"
        " smaller ones, down to single numbers"
    )
    extremes = True
    weights: Annotated[np.ndarray, Array("float64", ("ranges", "parts"), ge=0, le=MAX_WEIGHT)]
    n_weighted: Annotated[int, msgspec.Meta(ge=0, le=2**50)]


class CountTargets(Message):
    """Sum the weights of your rows in the 256 parts of some ranges of targets.

    A range has the numbers whose keys (`fedlib.boosting.cuts.float_keys`) begin with the
    8 * ``depth`` bits of ``prefix``. For the limits see `SumResiduals`.
    """

    discloses = "ranges that contain quantiles of all targets"
    reply = TargetCounts
    advice = "quantiles of few targets: give a base_score, or let the sites lower min_count"
    effortless = ("depth", "n_rows")
    objective: ObjectiveName
    depth: Annotated[int, msgspec.Meta(ge=0, lt=N_DIVISIONS)]
    prefix: Prefix
    max_weight: RowLimit
    max_target: RowLimit
    n_rows: NumberOfPoints

    def __post_init__(self) -> None:
        super().__post_init__()
        if OBJECTIVES[self.objective].n_columns > 1:
            raise MessageError(f"{self.objective} has no quantiles")
        if len(np.unique(self.prefix)) < len(self.prefix):
            raise MessageError("a range occurs twice")

    def reply_lengths(self) -> dict[str, int]:
        return {"ranges": len(self.prefix), "parts": N_PARTS}

    def work(self) -> float:
        return float(len(self.prefix))

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        return digits_of_limits({"weights": self.n_rows * self.max_weight}, n_clients)

    def accept(self, reply: Message) -> TargetCounts:
        """Raise MessageError unless there is one sum per part, and no target beyond the limit."""
        assert isinstance(reply, TargetCounts)
        check_length("ranges", len(reply.weights), len(self.prefix))
        check_length("parts", reply.weights.shape[1], N_PARTS)
        n_keys = 2 ** (24 - 8 * self.depth)  # of a part
        parts = N_PARTS * self.prefix.astype(np.int64)[:, np.newaxis] + np.arange(N_PARTS)
        least, most = keys_within(self.max_target)
        if reply.weights[(parts * n_keys + n_keys <= least) | (parts * n_keys > most)].any():
            raise MessageError(f"targets beyond ±{self.max_target:g}")
        return reply

    def groups(self, y: Floats32) -> list[Ints]:
        """Return, per range, the part of each target, -1 outside of the range."""
        keys = float_keys(y).astype(np.uint64)
        part = ((keys >> np.uint64(24 - 8 * self.depth)) % N_PARTS).astype(np.int64)
        inside = keys >> np.uint64(32 - 8 * self.depth)
        return [np.where(inside == one, part, -1) for one in self.prefix.astype(np.uint64)]


def residual_sums(
    request: SumResiduals, y: Floats32, weight: Floats32, digits: Digits | None = None
) -> ResidualSums:
    """Return the sums over the rows of a client with the targets ``y`` (n_rows,).

    With ``digits``, each term of a row is rounded to them (`add_rows`).

    Examples
    --------
    >>> request = SumResiduals("reg:absoluteerror", 1.0, ((1.0,),), 1.0, 9.0, 2)
    >>> sums = residual_sums(request, np.array([0, 2], np.float32), np.ones(2, np.float32))
    >>> sums.roots.tolist(), sums.gradients.round(3).tolist()
    ([2.0], [[0.0, 1.414]])
    """
    margins = np.full((len(y), 1), request.margin, np.float32)
    wide, roots = y.astype(np.float64), weighted_roots(margins, y, weight)
    gradients = np.zeros((len(request.parameters), 2))
    chosen = OBJECTIVES[request.objective].gradients
    if digits is not None:
        found, bits = np.zeros(gradients.shape, np.int64), min(digits["gradients"])
        for i, parameter in enumerate(request.parameters):
            rows = np.ldexp(chosen(margins, y, weight, parameter, bits)[0], -bits)
            found[i] = add_rows(rows, digits, "gradients")[0]
        weights = add_rows(weight[:, np.newaxis], digits, "weight")[0, 0]
        of_roots = add_rows(roots, digits, "roots")[0]
        return summed(ResidualSums, digits, weight=weights, roots=of_roots, gradients=found)
    sums = LabelSums(fsum(weight), total=fsum(weight * wide), squares=fsum(weight * wide**2))
    for of_parameter, parameter in zip(gradients, request.parameters, strict=True):
        if (size := max(request.limits(sums, parameter))) > 0:
            bits = unit_bits(size)
            integers = chosen(margins, y, weight, parameter, bits)[0]
            of_parameter[:] = integers.sum(axis=0) * 2.0**-bits
    return ResidualSums(sums.weight, sum_in_order(roots), gradients)


def target_counts(
    request: CountTargets, y: Floats32, weight: Floats32, digits: Digits | None = None
) -> TargetCounts:
    """Return the weights of a client's rows with the targets ``y`` (n_rows,).

    With ``digits``, each weight is rounded to them (`add_rows`).
    """

    def weights(part: Ints) -> NDArray[Any]:
        inside, of_rows = part[part >= 0], weight[part >= 0, np.newaxis]
        sums: NDArray[Any] = add_rows(of_rows, digits, "weights", inside, N_PARTS)[:, 0]
        return sums

    counted = [weights(part) for part in request.groups(y)]
    kind = np.float64 if digits is None else np.int64
    return summed(
        TargetCounts,
        digits,
        weights=np.array(counted, kind).reshape(-1, N_PARTS),
        n_weighted=int(np.count_nonzero((weight != 0) & (weight != 1))),
    )


def squared_mean_roots(total: ResidualSums, largest: float) -> tuple[float, ...]:
    """Return the scale of each output: the squared mean of the roots, a float32 number.

    It is at most the ``largest`` residual, which no honest sums exceed.

    Examples
    --------
    >>> squared_mean_roots(ResidualSums(2.0, np.array([6.0]), np.empty((0, 2))), 100.0)
    (9.0,)
    """
    if total.weight < LEAST_HESSIAN:
        return (0.0,) * len(total.roots)
    scales = np.minimum(np.square(total.roots / total.weight), largest)
    return tuple(scales.astype(np.float32).astype(float).tolist())


def keys_within(max_target: float) -> tuple[int, int]:
    """Return the keys of the smallest and the largest target."""
    least, most = float_keys(np.array([-max_target, max_target], np.float32)).tolist()
    return least, most


def differ(found: float, expected: float, size: float) -> bool:
    """Return whether two sums of weights differ by more than rounding."""
    return abs(found - expected) > ROUNDING * size


def step_from_mean(settings: Settings, described: Described) -> Flow[list[np.float32]]:
    """Return one Newton step per level from the mean of all targets, in ascending order."""
    (centre,) = mean(LabelSums.of_all(list(described.sums.values())), False)

    def ask(parameters: tuple[tuple[float, ...], ...]) -> Flow[ResidualSums]:
        request = SumResiduals(
            settings.objective, float(centre), parameters, *_limits(settings, described)
        )

        def check(replies: Replies) -> Mapping[str, str]:
            return _wrong(
                replies, described, lambda name, reply: request.problem(reply, described.sums[name])
            )

        total, _ = yield from settings.aggregation.sum(request, check)
        sums: ResidualSums = total
        return sums

    parameters: tuple[tuple[float, ...], ...]
    if OBJECTIVES[settings.objective].scaled:
        total = yield from ask(())
        parameters = (squared_mean_roots(total, abs(float(centre)) + settings.max_target),)
    else:
        assert isinstance(settings.parameter, tuple)
        parameters = tuple((level,) for level in settings.parameter)
    total = yield from ask(parameters)
    g, h = total.gradients.T
    steps = (-g / np.maximum(h, LEAST_HESSIAN)).astype(np.float32)
    return list(np.maximum.accumulate(centre + steps))


def quantiles_of_targets(settings: Settings, described: Described) -> Flow[list[np.float32]]:
    """Return the quantile of all targets for each level.

    If a client is lost meanwhile, the quantiles lie in the ranges that were found with it.
    """
    weight_in: dict[str, dict[int, float]] = {}  # of the ranges that each client has counted

    def problem(name: str, reply: TargetCounts) -> str | None:
        weight = described.sums[name].weight
        before = weight_in.get(name, {0: weight})
        for prefix, parts in zip(request.prefix.tolist(), reply.weights, strict=True):
            if differ(parts.sum(), before.get(prefix, 0.0), weight):
                return "the weights in a range do not add up to what the client sent before"
        if reply.n_weighted > described.n_rows[name]:
            return "more weights than rows"
        return None

    def check(replies: Replies) -> Mapping[str, str]:
        wrong = _wrong(replies, described, problem)
        for name, reply in replies.items():
            weight_in[name] = {
                N_PARTS * prefix + part: weight
                for prefix, parts in zip(request.prefix.tolist(), reply.weights, strict=True)
                for part, weight in enumerate(parts.tolist())
            }
        return wrong

    places: list[_Place] = []
    for depth in range(N_DIVISIONS):
        prefixes = sorted({place.prefix for place in places}) if depth else [0]
        request = CountTargets(
            settings.objective,
            depth,
            np.array(prefixes, np.uint32),
            *_limits(settings, described),
        )
        total, _ = yield from settings.aggregation.sum(request, check)
        if not depth:
            weight = float(total.weights.sum())
            places = _places(settings.parameter, weight, total.n_weighted > 0)
        parts = dict(zip(prefixes, total.weights, strict=True))
        places = [place.in_part(parts[place.prefix]) for place in places]
    # Behind masks, false sums can lead to any key.
    keys = np.clip([place.prefix for place in places], *keys_within(settings.max_target))
    found = float_values(keys)
    scores: dict[int, np.float32] = {}
    for place, value in zip(places, found, strict=True):
        before = scores.get(place.level, value)
        scores[place.level] = np.float32(
            float(before) + place.fraction * float(np.float32(value - before))
        )
    return [scores[level] for level in sorted(scores)]


class _Place:
    """Where a quantile is: after ``weight`` in the range of targets with ``prefix``.

    Of two places of one level, the second one is a ``fraction`` of the way from the first one.
    """

    def __init__(self, level: int, weight: float, fraction: float = 0.0, prefix: int = 0):
        self.level, self.weight, self.fraction, self.prefix = level, weight, fraction, prefix

    def in_part(self, weights: Floats) -> _Place:
        """Return the place in the part of the range that contains it; ``weights`` (256,)."""
        ends = np.cumsum(weights)
        reached = np.flatnonzero((ends >= self.weight) & (ends > 0))
        filled = np.flatnonzero(weights)
        part = int(reached[0] if len(reached) else filled[-1] if len(filled) else 0)
        rest = self.weight - float(ends[part] - weights[part])
        return _Place(self.level, rest, self.fraction, N_PARTS * self.prefix + part)


def _places(levels: Parameter, weight: float, is_weighted: bool) -> list[_Place]:
    """Return the places of the quantiles among rows of this weight, in XGBoost's arithmetic."""
    assert isinstance(levels, tuple)
    places = []
    for k, level in enumerate(levels):
        if is_weighted:
            places.append(_Place(k, float(np.float32(np.float32(weight) * level))))
            continue
        if level <= 1 / (weight + 1):
            places.append(_Place(k, 1.0))
        elif level >= weight / (weight + 1):
            places.append(_Place(k, weight))
        else:
            rank = level * (weight + 1)
            places += [
                _Place(k, float(floor(rank))),
                _Place(k, floor(rank) + 1.0, rank - 1 - (floor(rank) - 1)),
            ]
    return places


def _limits(settings: Settings, described: Described) -> tuple[float, float, int]:
    """Return the largest weight and target of a row, and the count of all rows."""
    n_rows = max(sum(described.n_rows.values()), 1)
    return settings.max_weight, settings.max_target, n_rows


def _wrong(
    replies: Replies, described: Described, problem: Callable[[str, Any], str | None]
) -> dict[str, str]:
    """Return the reason to exclude each client whose sums do not fit its declared rows."""
    declined = "sums from a client that declined to describe its rows"
    return reasons(
        {
            name: problem(name, reply) if name in described.sums else declined
            for name, reply in replies.items()
        }
    )


FIRST_SCORES: Mapping[str, Any] = {"step": step_from_mean, "quantiles": quantiles_of_targets}
