"""The rules in which the releases of XGBoost differ: one set per release line.

A run follows the rules of one release, whichever XGBoost its sites have installed; it needs none.
The rules travel with the first request and are kept in the model.

What differs, and what does not:

- Until 3.3, a node whose hessians sum to less than ``min_child_weight`` weighs 0: a root with
  few rows predicts nothing, and rare categories are sorted as if their weight was 0. Since 3.4,
  ``min_child_weight`` only forbids splits.
- Until 3.3, gains are computed in float32: as quotients, or from limited weights without the
  penalty ``reg_alpha``. Since 3.4, they follow from the weights and contain the penalty.
- A split that separates missing from present values has a threshold below all values: since 3.3
  it is −∞, in 3.2 just below the least value of the training rows. fedlib has −∞ with all rules,
  because the server does not know the least value; so a new row with a lower value goes with
  the present values.
- Ties are broken alike: the lower feature, then the lower cut with missing values right, then the
  higher cut with missing values left. The initial predictions of the objectives here are the same.
  XGBoost's own bins differ, but a run has bins of its own (`fedlib.boosting.cuts`).
- XGBoost 3.4 predicts no row with a category that is not in the model. fedlib predicts it with
  all rules, as XGBoost did before.

- The rules are those of XGBoost's processor code. Its ``device="cuda"`` was compared with it once,
  on one H200 with 3.4.1: without missing values, all 12,314 nodes were equal (three data sets,
  three objectives, 20 trees each); with missing values, another cut wins where two have one gain.

``make test-exact`` compares each set of rules with its release, node by node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from fedlib.kernels.gains import SplitRule

RulesName = Literal["3.2", "3.3", "3.4"]


class Rules(NamedTuple):
    """The rules of a release line of XGBoost; see the module.

    Attributes
    ----------
    by_weight : bool
        Whether gains follow from weights, and ``min_child_weight`` only forbids splits; see
        `fedlib.kernels.gains.SplitRule`.
    """

    by_weight: bool


RULES: Mapping[RulesName, Rules] = {
    "3.2": Rules(by_weight=False),
    "3.3": Rules(by_weight=False),
    "3.4": Rules(by_weight=True),
}
NEWEST_RULES: RulesName = get_args(RulesName)[-1]


def split_rule(unit: float, run: Any, limits: Any, constrained: bool = False) -> SplitRule:
    """Return the rule for splits by sums in a unit.

    Parameters
    ----------
    unit : float
    run : object
        With ``reg_alpha``, ``max_delta_step`` and ``xgboost_rules``, such as the settings.
    limits : object
        With ``gamma``, ``min_child_weight`` and a ``reg_lambda`` that is known.
    constrained : bool
        Whether any feature has a monotone constraint.
    """
    return SplitRule(
        unit,
        limits.reg_lambda,
        limits.gamma,
        limits.min_child_weight,
        run.reg_alpha,
        run.max_delta_step,
        constrained,
        RULES[run.xgboost_rules].by_weight,
    )


def rules_of(version: str | None = None) -> RulesName:
    """Return the name of the rules of a version of XGBoost, by default of the installed one.

    Parameters
    ----------
    version : str, optional
        Such as ``"3.4.1"``.

    Raises
    ------
    ImportError
        When there is no version and xgboost is not installed.
    ValueError
        When the rules of this version are not known.

    Examples
    --------
    >>> rules_of("3.2.0")
    '3.2'
    """
    if version is None:
        import xgboost

        version = xgboost.__version__
    line = ".".join(version.split(".")[:2])
    for known in RULES:
        if known == line:
            return known
    raise ValueError(
        f"fedlib does not know the rules of XGBoost {version}, but those of {', '.join(RULES)}:"
        f" choose one of these with xgboost_rules, such as {NEWEST_RULES!r}, or use a newer fedlib"
    )
