"""The objectives of boosting: everything in which one differs from another, as pure functions.

Gradients, hessians, links and initial margins are XGBoost's. The ``parameter`` of an objective is
the slope of the pseudo-Huber loss, the maximum step of Poisson regression, the variance power of
Tweedie regression, the levels of quantiles or expectiles, or the distribution of the logarithm of a
survival time and its scale; otherwise 0. While trees grow, the scale of each output's residuals is
at its end if the objective is ``scaled``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, isfinite, log, log2
from typing import Any, Literal

import numpy as np
import scipy

from fedlib.boosting import label_sums as follow
from fedlib.boosting.label_sums import SMALLEST_POSITIVE, LabelSums
from fedlib.boosting.rules import RulesName
from fedlib.core.array_types import Floats, Floats32, Ints
from fedlib.core.messages import MessageError
from fedlib.kernels import forests as kernels
from fedlib.kernels import objectives

Parameter = float | tuple[float, ...]

SUM_BITS = 52  # no sum of a client reaches 2**52 units, so each is exact as a float64

LARGEST_LIKELIHOOD = 160.0  # -log(1e-12), of the smallest time and of the smallest scale, together
SCALED = (
    "the scale of the gradients is a sum over all rows without noise, so that one row changes the"
    " gradients of all others"
)
RANKED = "its leaves are quantiles of residuals before, which no sums over rows give"
DISTRIBUTIONS = ("normal", "logistic", "extreme")  # of a survival time's logarithm, by their codes


@dataclass(frozen=True, kw_only=True)
class Objective:
    """One objective.

    Attributes
    ----------
    gradients : callable (margins, targets, weights, parameter, bits) -> array (outputs, n, 2)
        The gradients and hessians of rows as integers; see `fedlib.kernels.objectives`.
    losses : callable (margins, targets, weights, parameter) -> array (n,) of float64
        The loss of each row.
    base_scores : callable (sums, is_scaled) -> list of float32
        The initial predictions as XGBoost estimates them; ``is_scaled`` says whether
        ``scale_pos_weight`` is not 1.
    link : callable (scores) -> array (outputs,) of float32
        The margins of these predictions.
    response : callable (margins (n, outputs)) -> array (n, columns) of float64
        The predictions of these margins: probabilities, or the target itself.
    first_sums : callable (sums, margins, parameter) -> array (outputs, 2) or None
        The sums of a client's gradients and hessians in the first tree; None: they are unknown.
    largest_sums : callable (sums, largest margin, parameter) -> (float, float)
        Upper bounds of the sums of absolute gradients and of hessians, for one output.
    largest_loss : callable (sums, largest margin, parameter) -> float
        An upper bound of the loss.
    total : callable (sums, margins, parameter) -> float
        The size of all clients' sums, which determines the unit of gradients; ``margins`` are those
        before the first tree.
    default_metric : str
        XGBoost's metric for validation.
    check_score : callable (score) -> bool
        Whether a given ``base_score`` is valid.
    valid_scores : str
        Which ones are, in words.
    targets : tuple of float
        The smallest and the largest target allowed.
    valid_targets : str
        Which ones are, in words.
    parameter_name : str
        XGBoost's name of the parameter; empty if there is none.
    estimate : {"sums", "step", "quantiles"}
        How the first predictions follow from all rows: from ``base_scores``, or by further sums
        (`fedlib.boosting.first_scores`).
    row_limits : callable (largest gradient, parameter) -> (float, float) or None
        Upper bounds of a row's absolute gradient and hessian, for one output, if gradients are
        clipped to the first argument; None: there are none, for the reason ``unbounded``.
    unbounded : str
    has_levels : bool
        Whether there is one output per number of the parameter.
    scaled : bool
        Whether gradients have a scale, the mean root of absolute residuals over all rows, squared.
    n_columns : int
        The count of columns of the targets.
    needs_size : bool
        Whether sums grow with the targets.
    fast_loss : callable (margins, targets, weights, parameter) -> float, optional
        The sum of the losses; None: they are added up.
    since : str
        The first release of XGBoost with these rules.
    before : str
        What is different before.
    """

    gradients: Callable[..., Ints]
    losses: Callable[..., Floats]
    base_scores: Callable[[LabelSums, bool], list[np.float32]] = follow.mean
    link: Callable[[Sequence[Any]], Floats32] = follow.identity
    response: Callable[[Floats32], Floats] = follow.as_float64
    first_sums: Callable[[LabelSums, Sequence[float], Any], Floats | None] = follow.unknown_sums
    largest_sums: Callable[[LabelSums, float, Any], tuple[float, float]]
    largest_loss: Callable[[LabelSums, float, Any], float]
    total: Callable[[LabelSums, Sequence[float], Any], float]
    default_metric: str
    check_score: Callable[[float], bool] = lambda score: True
    valid_scores: str = "a finite number"
    targets: tuple[float, float] = (-float("inf"), float("inf"))
    valid_targets: str = "a finite number"
    parameter_name: str = ""
    estimate: Literal["sums", "step", "quantiles"] = "sums"
    row_limits: Callable[[float, Any], tuple[float, float]] | None = None
    unbounded: str = "the hessians have no bound"
    has_levels: bool = False
    scaled: bool = False
    n_columns: int = 1
    needs_size: bool = True
    fast_loss: Callable[..., float] | None = None
    since: RulesName = "3.2"
    before: str = ""

    def loss(self, margins: Floats32, targets: Any, weights: Floats32, parameter: Any) -> float:
        """Return the sum of the rows' losses."""
        if self.fast_loss is not None:
            return float(self.fast_loss(margins, targets, weights, parameter))
        return float(sum_in_order(self.losses(margins, targets, weights, parameter)))

    @property
    def has_several_numbers(self) -> bool:
        """Whether the parameter is a tuple."""
        return self.has_levels or self.scaled or self.n_columns > 1


# What the objectives share whose margins are the logarithm of a prediction, or log-odds.
OF_LOGARITHMS: dict[str, Any] = {
    "link": follow.log_link,
    "response": follow.exp_response,
    "check_score": lambda score: score > 0,
    "valid_scores": "above 0",
    "targets": (0.0, float("inf")),
    "valid_targets": "at least 0",
}
OF_PROBABILITIES: dict[str, Any] = {
    "losses": objectives.logistic_of_fractions_losses,
    "link": follow.log_odds,
    "response": follow.expit,
    "largest_sums": follow.largest_logistic,
    "largest_loss": follow.largest_logistic_loss,
    "total": lambda sums, margins, parameter: sums.weight,
    "check_score": lambda score: 0 < score < 1,
    "valid_scores": "above 0 and below 1",
    "row_limits": lambda largest, parameter: (1.0, 0.25),
}

OBJECTIVES: Mapping[str, Objective] = {
    "binary:logistic": Objective(
        **OF_PROBABILITIES,
        gradients=objectives.logistic,
        fast_loss=objectives.logistic_loss,
        base_scores=follow.fraction,
        first_sums=follow.first_logistic,
        default_metric="logloss",
    ),
    "reg:logistic": Objective(
        **OF_PROBABILITIES,
        gradients=objectives.logistic_of_fractions,
        base_scores=follow.fraction_of_totals,
        first_sums=follow.first_fractions,
        default_metric="rmse",
        targets=(0.0, 1.0),
        valid_targets="in 0..1",
        needs_size=False,
    ),
    "multi:softprob": Objective(
        gradients=objectives.softmax,
        losses=objectives.softmax_losses,
        base_scores=follow.centred_log_fractions,
        response=lambda margins: scipy.special.softmax(margins.astype(np.float64), axis=1),
        first_sums=follow.first_softmax,
        largest_sums=lambda sums, margin, parameter: (sums.weight, sums.weight / 2),
        largest_loss=lambda sums, margin, parameter: (
            sums.weight * (2 * margin + log(max(len(sums.classes), 2)))
        ),
        total=lambda sums, margins, parameter: 2 * sums.weight,
        default_metric="mlogloss",
        row_limits=lambda largest, parameter: (1.0, 0.5),
    ),
    "reg:squarederror": Objective(
        gradients=objectives.squared_error,
        losses=objectives.squared_error_losses,
        first_sums=follow.first_squared,
        largest_sums=follow.largest_squared,
        largest_loss=lambda sums, margin, parameter: 2 * (sums.weight * margin**2 + sums.squares),
        total=lambda sums, margins, parameter: max(sums.weight, 4 * sums.absolute),
        default_metric="rmse",
        row_limits=lambda largest, parameter: (largest, 1.0),
    ),
    "reg:pseudohubererror": Objective(
        gradients=objectives.pseudo_huber,
        losses=objectives.pseudo_huber_losses,
        base_scores=follow.newton_step_from_0,
        largest_sums=lambda sums, margin, parameter: (sums.weight * parameter, sums.weight),
        largest_loss=lambda sums, margin, parameter: (
            parameter * (sums.weight * margin + sums.absolute)
        ),
        total=lambda sums, margins, parameter: sums.weight * max(parameter, 1.0),
        default_metric="mphe",
        parameter_name="huber_slope",
        row_limits=lambda largest, parameter: (largest, 1.0),
    ),
    "count:poisson": Objective(
        **OF_LOGARITHMS,
        gradients=objectives.poisson,
        losses=objectives.poisson_losses,
        first_sums=follow.first_poisson,
        largest_sums=follow.largest_poisson,
        largest_loss=follow.largest_poisson_loss,
        total=lambda sums, margins, parameter: (
            2.0**6 * exp(parameter) * max(sums.weight, sums.total)
        ),
        default_metric="poisson-nloglik",
        parameter_name="max_delta_step",
    ),
    "reg:gamma": Objective(
        **OF_LOGARITHMS
        | {"targets": (SMALLEST_POSITIVE, float("inf")), "valid_targets": "above 0"},
        gradients=objectives.gamma,
        losses=objectives.gamma_losses,
        first_sums=follow.first_gamma,
        largest_sums=follow.largest_gamma,
        largest_loss=follow.largest_gamma_loss,
        total=follow.total_gamma,
        default_metric="gamma-nloglik",
    ),
    "reg:tweedie": Objective(
        **OF_LOGARITHMS,
        gradients=objectives.tweedie,
        losses=objectives.tweedie_losses,
        first_sums=follow.first_tweedie,
        largest_sums=follow.largest_tweedie,
        largest_loss=follow.largest_tweedie_loss,
        total=follow.total_tweedie,
        default_metric="tweedie-nloglik",
        parameter_name="tweedie_variance_power",
    ),
    "reg:quantileerror": Objective(
        gradients=follow.with_array(kernels.quantile),
        losses=follow.with_array(kernels.quantile_losses),
        base_scores=follow.unknown,
        response=follow.quantiles,
        largest_sums=follow.largest_quantile,
        largest_loss=follow.largest_absolute_loss,
        total=follow.total_quantile,
        default_metric="quantile",
        parameter_name="quantile_alpha",
        estimate="quantiles",
        unbounded=SCALED,
        has_levels=True,
        scaled=True,
        since="3.4",
        before=RANKED,
    ),
    "reg:absoluteerror": Objective(
        gradients=follow.with_array(kernels.absolute_error),
        losses=follow.with_array(kernels.absolute_error_losses),
        largest_sums=follow.largest_absolute,
        largest_loss=follow.largest_absolute_loss,
        total=follow.total_quantile,
        default_metric="mae",
        estimate="step",
        unbounded=SCALED,
        scaled=True,
        since="3.4",
        before=RANKED,
    ),
    "reg:expectileerror": Objective(
        gradients=follow.with_array(kernels.expectile),
        losses=follow.with_array(kernels.expectile_losses),
        link=follow.gaps,
        response=follow.expectiles,
        largest_sums=follow.largest_expectile,
        largest_loss=follow.largest_expectile_loss,
        total=follow.total_expectile,
        default_metric="expectile",
        parameter_name="expectile_alpha",
        estimate="step",
        row_limits=lambda largest, parameter: (largest, float(len(parameter))),
        has_levels=True,
        since="3.3",
        before="earlier releases do not have it",
    ),
    "survival:aft": Objective(
        **OF_LOGARITHMS,
        gradients=follow.with_array(objectives.aft),
        losses=follow.with_array(objectives.aft_losses),
        base_scores=lambda sums, is_scaled: [np.float32(0.5)],
        largest_sums=lambda sums, margin, parameter: (
            objectives.LARGEST_STEP * sums.weight,
            objectives.LARGEST_STEP * sums.weight,
        ),
        largest_loss=lambda sums, margin, parameter: LARGEST_LIKELIHOOD * sums.weight,
        total=lambda sums, margins, parameter: 2.0**4 * sums.weight,
        default_metric="aft-nloglik",
        parameter_name="aft_loss_distribution_scale",
        row_limits=lambda largest, parameter: (objectives.LARGEST_STEP, objectives.LARGEST_STEP),
        n_columns=2,
        needs_size=False,
    ),
}


def sum_in_order(values: Floats) -> Any:
    """Return the sums over the first axis, added one after the other; numpy adds pairs."""
    start = np.zeros((1, *values.shape[1:]))
    return np.cumsum(np.concatenate([start, values]), axis=0)[-1]


def unit_bits(total: float) -> int:
    """Return the ``bits`` of the unit 2**-bits of sums of at most ``total``, above 0."""
    return SUM_BITS - ceil(log2(total))


def parameter_of(objective: str, values: Mapping[str, Any]) -> Parameter:
    """Return the parameter of an objective from values by XGBoost's names.

    Examples
    --------
    >>> parameter_of("survival:aft",
    ...              {"aft_loss_distribution": "extreme", "aft_loss_distribution_scale": 2})
    (2.0, 2.0)
    >>> parameter_of("reg:quantileerror", {"quantile_alpha": [0.25, 0.5]})
    (0.25, 0.5)
    """
    chosen = OBJECTIVES[objective]
    if not chosen.parameter_name:
        return () if chosen.scaled else 0.0
    given = values[chosen.parameter_name]
    if chosen.has_levels:
        return tuple(float(np.float32(level)) for level in np.atleast_1d(given).tolist())
    if chosen.n_columns > 1:
        code = DISTRIBUTIONS.index(values["aft_loss_distribution"])
        return float(code), float(np.float32(given))
    return float(np.float32(given))


def options_of(objective: str, parameter: Parameter) -> dict[str, Any]:
    """Return what `parameter_of` reads."""
    chosen = OBJECTIVES[objective]
    if not chosen.parameter_name:
        return {}
    if not isinstance(parameter, tuple):
        return {chosen.parameter_name: parameter}
    if chosen.has_levels:
        return {chosen.parameter_name: list(parameter)}
    code, scale = parameter
    distribution = DISTRIBUTIONS[int(code)]
    return {"aft_loss_distribution": distribution, chosen.parameter_name: scale}


def n_outputs_of(objective: str, parameter: Parameter, n_classes: int) -> int:
    """Return the count of margins of a row.

    Parameters
    ----------
    objective : str
    parameter : float or tuple of float
        That of the run, without scales.
    n_classes : int
        0 for a regression.

    Examples
    --------
    >>> n_outputs_of("reg:quantileerror", (0.1, 0.5, 0.9), 0), n_outputs_of("multi:softprob", 0, 4)
    (3, 4)
    """
    if isinstance(parameter, tuple) and OBJECTIVES[objective].has_levels:
        return len(parameter)
    return n_classes if objective == "multi:softprob" else 1


def check_parameter(objective: str, parameter: Parameter, n_outputs: int | None = None) -> None:
    """Raise MessageError when a parameter is none of the objective, so that no kernel reads it.

    Parameters
    ----------
    objective : str
    parameter : float or tuple of float
    n_outputs : int, optional
        The count of outputs while trees grow: the parameter then has scales, if the objective has.
    """
    chosen = OBJECTIVES[objective]
    if objective == "reg:tweedie" and not (
        isinstance(parameter, float | int) and 1.001 <= parameter <= 1.999
    ):
        raise MessageError(f"a variance power of {parameter}, outside of 1.001..1.999")
    if isinstance(parameter, tuple) != chosen.has_several_numbers:
        raise MessageError(f"{objective} with the parameter {parameter}")
    if not isinstance(parameter, tuple):
        return
    if not all(map(isfinite, parameter)):
        raise MessageError("a parameter is not finite")
    if chosen.n_columns > 1:
        code, scale = parameter if len(parameter) == 2 else (-1.0, 0.0)
        if code not in range(len(DISTRIBUTIONS)) or not scale > 0:
            raise MessageError(f"no distribution and its scale: {parameter}")
        return
    n_scales = n_outputs if n_outputs is not None and chosen.scaled else 0
    own, scales = parameter[: len(parameter) - n_scales], parameter[len(parameter) - n_scales :]
    n_own = len(own) if n_outputs is None else n_outputs
    if len(own) != (n_own if chosen.has_levels else 0) or len(scales) != n_scales:
        raise MessageError(f"{len(parameter)} parameters of {objective}")
    if chosen.has_levels and (not own or list(own) != sorted(own) or own[0] < 0 or own[-1] > 1):
        raise MessageError(f"levels that are not in 0..1 in ascending order: {own}")
    if min(scales, default=0.0) < 0:
        raise MessageError("a negative scale")
