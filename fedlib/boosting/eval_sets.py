"""What boosted estimators share beside their own parameters: validation and constraints.

The parameters, the attributes and the figure of rows that clients keep for validation, and the
constraints on the features of trees.
"""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedlib.boosting.row_client import RowsClient
from fedlib.boosting.scores import by_set
from fedlib.boosting.settings import Constraints, Feature
from fedlib.boosting.trees import BoostedTrees
from fedlib.core.client import Client
from fedlib.core.parameters import KW_ONLY, Fraction, Kind, OptionalNames, OptionalPositiveInt
from fedlib.core.wording import composed
from fedlib.protection.estimator import ProtectedFederated

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Validated(ProtectedFederated):
    """Base class of boosted estimators with rows for validation."""

    model_: BoostedTrees
    _: KW_ONLY
    validation_fraction: Annotated[
        Fraction,
        """
        The fraction of its rows that each client keeps from training, in 0..1 without 1. After each
        round, the clients send the metrics of these rows as sums, which costs one exchange. Which
        rows are kept does not depend on the client. Instead or in addition, a part can be ``(X, y,
        sample_weight, (X_eval, y_eval))``, with None for no weights. Rows there without this
        parameter, `eval_metric`, `eval_sets` or `early_stopping_rounds` are not evaluated, with a
        warning.
        """,
    ] = 0.0
    eval_sets: Annotated[
        OptionalNames,
        """
        The names of several sets of rows for validation. The metrics are then those of each set,
        for one more exchange per set and round, and the last set decides on early stopping. The
        fourth entry of a part is a mapping of names to ``(X, y)`` or ``(X, y, sample_weight)``, or
        a list of these, which are named ``"validation_0"``, ``"validation_1"``, …. A client need
        not have all sets. None: all rows for validation are one set, ``"validation_0"``.
        """,
    ] = None
    early_stopping_rounds: Annotated[
        OptionalPositiveInt,
        """
        End when the last metric has not become better for this count of rounds, at least 1, and
        keep the trees up to the best round. Independent of ``tol``.
        """,
    ] = None

    def _eval_sets(self) -> tuple[str, ...]:
        """Return the names of the sets of rows for validation; empty if they are one set."""
        given = tuple(self.eval_sets or ())
        are_names = all(isinstance(name, str) and name for name in given)
        if not are_names or len(set(given)) < len(given):
            raise ValueError(f"eval_sets must be distinct names; got {self.eval_sets!r}")
        if given and self.validation_fraction:
            raise ValueError(
                "validation_fraction must be 0 with eval_sets, because drawn rows are in none of"
                f" them; got {self.validation_fraction}"
            )
        return tuple(map(str, given))

    def _check_clients(self, clients: dict[str, Client]) -> None:
        super()._check_clients(clients)
        given = [name for name, one in clients.items() if getattr(one, "eval_sets", None)]
        validates = self.validation_fraction or self.early_stopping_rounds or self.eval_sets
        if given and not validates and not getattr(self, "eval_metric", None):
            warnings.warn(
                f"parts[{given[0]}]: the rows for validation are not evaluated without a parameter"
                " for them: set eval_metric, early_stopping_rounds or eval_sets, or leave the rows"
                " out",
                stacklevel=2,
            )
        known = set(self._eval_sets() or ["validation_0"])
        for name, client in clients.items():
            if isinstance(client, RowsClient) and (more := set(client.eval_sets) - known):
                raise ValueError(
                    f"parts[{name}]: eval_sets must name the sets of rows for validation, such as"
                    f" eval_sets={sorted(client.eval_sets)}; got {self.eval_sets!r}, without"
                    f" {', '.join(map(repr, sorted(more)))}"
                )

    def _set_evaluations(self, model: BoostedTrees) -> None:
        """Set the attributes about rows for validation; none if there are no metrics."""
        if not model.metrics:
            return
        self.evals_result_ = by_set(model.eval_sets, model.metrics, model.evaluations)
        self.best_iteration_ = model.best_round
        self.best_score_ = model.evaluations[-1][model.best_round or 0]  # NaN if all values are
        of_last_set = model.evaluation_errors[-len(model.metrics) :]
        errors = dict(zip(model.metrics, of_last_set, strict=True))
        self.auc_error_, self.aucpr_error_ = errors.get("auc", []), errors.get("aucpr", [])

    def plot(
        self, metric: str | None = None, ax: Axes | None = None, *, eval_set: str | None = None
    ) -> Axes:
        """Draw a metric of the rows for validation after each round, and mark the best round.

        Parameters
        ----------
        metric : str, optional
            One of the model's metrics; by default the last one, which decides on early stopping.
        ax : Axes, optional
            By default the current ones.
        eval_set : str, optional
            One of the sets of rows; by default the last one, which decides on early stopping.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        ValueError
            When the model has no such metric or set.
        """
        check_is_fitted(self, "model_")
        metrics = self.model_.metrics
        name = metrics[-1] if metric is None and metrics else metric
        if name is None or name not in metrics:
            raise ValueError(
                f"metric must be one of {', '.join(metrics) or 'none'}; got {metric!r}"
            )
        sets = list(self.evals_result_)
        chosen = sets[-1] if eval_set is None else eval_set
        if chosen not in sets:
            raise ValueError(f"eval_set must be one of {', '.join(sets)}; got {eval_set!r}")
        from fedlib.figures.scores import learning_curve

        decides = (chosen, name) == (sets[-1], metrics[-1])
        best = self.model_.best_round if decides else None
        return learning_curve(self.evals_result_[chosen][name], name, best=best, ax=ax)


class Constrained(ProtectedFederated):
    """Base class of estimators whose trees can be constrained."""

    _: KW_ONLY
    monotone_constraints: Annotated[
        Any,
        dict,
        "array-like",
        None,
        Kind("dict of str or int to int, or array-like (n_features,) of int"),
        """
        1 for a feature in which predictions may only increase, -1 if they may only decrease, else
        0: one entry per feature, or a mapping of features' names or indices, such as ``{"age":
        1}``. The command line takes JSON. ``"histogram"`` only.
        """,
    ] = None
    interaction_constraints: Annotated[
        Any,
        list,
        tuple,
        None,
        Kind("list of lists of str or int"),
        """
        Groups of features, by name or index, that may be on one path of a tree: after a split, the
        path continues with the features that it has, and with those of every group that contains
        all of these. A feature of no group is alone on its paths. None: all may be together. The
        command line takes JSON, such as ``[["age", "sex"], ["bmi"]]``. ``"histogram"`` only.
        """,
    ] = None

    def _constraints(self) -> Constraints:
        """Return the constraints.

        Raises
        ------
        ValueError
            When they are malformed.
        """
        return Constraints(self._monotone(), self._interactions())

    def _monotone(self) -> tuple[int, ...] | dict[Feature, int]:
        given = self.monotone_constraints
        if given is None:
            return ()
        by_feature = isinstance(given, dict)
        directions = np.asarray(list(given.values()) if by_feature else given)
        if directions.ndim != 1 or not np.isin(directions, [-1, 0, 1]).all():
            raise ValueError(
                f"monotone_constraints must contain one of -1, 0 and 1 per feature; got {given!r}"
            )
        plain = tuple(map(int, directions))
        if not by_feature:
            return plain
        features = (_feature(one, "monotone_constraints", given) for one in given)
        return dict(zip(features, plain, strict=True))

    def _interactions(self) -> tuple[tuple[Feature, ...], ...]:
        given, name = self.interaction_constraints, "interaction_constraints"
        groups = () if given is None else given
        if not all(isinstance(group, list | tuple) for group in groups):
            raise ValueError(
                f"{name} must be a list of lists of features, such as [[0, 1], [2]]; got {given!r}"
            )
        return tuple(tuple(_feature(one, name, given) for one in group) for group in groups)


def _feature(given: Any, parameter: str, value: Any) -> Feature:
    """Return the name or the index of a feature as a plain value."""
    if isinstance(given, str):
        return composed(given)
    if isinstance(given, Integral) and not isinstance(given, bool | np.bool_):
        return int(given)
    raise ValueError(f"{parameter} must contain names or indices of features; got {value!r}")
