"""What changes from round to round at the server alone: learning rates, and reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

Callback = Callable[["RoundReport"], Any]


@dataclass(frozen=True)
class RoundReport:
    """What the server knows after a round; the callback of a run receives it.

    Attributes
    ----------
    n_rounds : int
        The number of finished rounds, at least 1; a run that continues a model counts through.
    n_trees : int
        The maximum number of rounds.
    learning_rate : float
        The learning rate of the round.
    loss : float or None
        The mean training loss before the round; None if there is none, as with noise.
    evaluations : dict of str to dict of str to float
        The values of the metrics after the round, by set of rows for validation.
    """

    n_rounds: int
    n_trees: int
    learning_rate: float
    loss: float | None
    evaluations: dict[str, dict[str, float]]


def rates_of(given: Any, n_trees: int) -> tuple[float, ...]:
    """Return the learning rate of each round; empty if it is one number.

    Parameters
    ----------
    given : float, array-like or callable
        The parameter ``learning_rate``.
    n_trees : int
        The maximum number of rounds.

    Raises
    ------
    ValueError
        When there are fewer rates than rounds, or a rate is not above 0 and at most 1.

    Examples
    --------
    >>> rates_of([0.5, 0.25], 2), rates_of(lambda i: 0.5**i, 3), rates_of(0.3, 2)
    ((0.5, 0.25), (1.0, 0.5, 0.25), ())
    """
    if isinstance(given, Real):
        return ()
    rates = [given(i) for i in range(n_trees)] if callable(given) else np.asarray(given).tolist()
    if not isinstance(rates, list) or len(rates) < n_trees:
        raise ValueError(
            f"learning_rate must be a number, or one number per round, {n_trees} or more; got"
            f" {given!r}"
        )
    wrong = [rate for rate in rates if not (isinstance(rate, Real) and 0 < float(rate) <= 1)]
    if wrong:
        raise ValueError(
            f"learning_rate must be above 0 and at most 1 in each round; got {wrong[0]!r}"
        )
    return tuple(float(np.float32(rate)) for rate in rates[:n_trees])
