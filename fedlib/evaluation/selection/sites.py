"""Validation over sites, for the parts of one process: each fold is fitted without some sites."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.metrics import check_scoring
from sklearn.model_selection import LeaveOneOut, cross_validate

from fedlib.core.client import roles_of
from fedlib.core.column_names import as_table, by_client, in_common_order
from fedlib.core.estimator import Federated
from fedlib.core.points import with_weights
from fedlib.core.registry import innermost


def cross_validate_sites(
    estimator: Federated,
    parts: Any,
    *,
    cv: Any = None,
    groups: ArrayLike | None = None,
    scoring: Any = None,
    return_estimator: bool = False,
) -> dict[str, Any]:
    """Fit an estimator without the sites of each fold, and score it on the rows of these sites.

    It is `sklearn.model_selection.cross_validate` with one sample per site.

    Parameters
    ----------
    estimator : Federated
        An estimator that can score new rows; it is cloned for each fold.
    parts : list, mapping or Series
        One part per site, as for ``fit``; at least two.
    cv : int, splitter or iterable, optional
        As in scikit-learn, over the sites. By default each fold leaves one site out.
    groups : array-like (n_sites,), optional
        The group of each site, for a splitter such as `sklearn.model_selection.LeaveOneGroupOut`.
    scoring : str, callable, list or dict, optional
        As in scikit-learn; by default the estimator's ``score``. The rows of all sites that a fold
        leaves out are scored together, with their weights if they have some.
    return_estimator : bool, default=False
        Whether the result has the fitted estimators.

    Returns
    -------
    dict
        Arrays (n_folds,): ``test_score``, or one per metric, ``fit_time`` and ``score_time`` in
        seconds; ``test_sites``, for each fold a tuple with the names of the sites that it leaves
        out; and ``estimator`` if wanted.

    Raises
    ------
    ValueError
        When ``parts`` are no parts or have base margins, or the splitter does not fit them; when
        the sites of a fold have no rows; and what ``fit`` raises.
    TypeError
        When the estimator cannot score rows.

    Notes
    -----
    Each fold is a run of its own and costs as much as a fit. Over a network, use `LeaveOneSiteOut`,
    which is one run with one ledger and one epsilon. Do not repeat the folds there with
    ``secure=True`` and without noise: the sums of two folds differ by single sites. With
    ``epsilon``, a site's privacy losses of all folds in which it takes part add up, and the scores
    themselves have no noise: they describe the rows that a fold leaves out.

    Examples
    --------
    The third site has points elsewhere, so the centres of the others do not fit it.

    >>> from fedlib import FederatedKMeans
    >>> parts = {"A": [[0.0], [9.0]], "B": [[1.0], [8.0]], "C": [[30.0], [32.0]]}
    >>> model = FederatedKMeans(2, method="lloyd", init=[[0.0], [10.0]])
    >>> result = cross_validate_sites(model, parts)
    >>> result["test_sites"], result["test_score"].tolist()
    ([('A',), ('B',), ('C',)], [-40.5, -24.5, -1014.5])
    """
    named = in_common_order(by_client(parts)) if estimator.same_columns else by_client(parts)
    names, samples = list(named), list(named.values())
    scorer = check_scoring(estimator, scoring)

    def score(fitted: Any, held_out: list[Any], _: None = None) -> Any:
        X, y, weights = _pooled(fitted, held_out)
        if not len(X):
            empty = [name for name, one in named.items() if any(one is part for part in held_out)]
            raise ValueError(
                f"parts must have rows in each fold, but {', '.join(map(repr, empty))} has none:"
                " leave it out"
            )
        options = {} if weights is None else {"sample_weight": weights}
        return scorer(fitted, X, y, **options)

    result: dict[str, Any] = cross_validate(
        estimator,
        samples,
        groups=groups,
        cv=LeaveOneOut() if cv is None else cv,
        scoring=score,
        return_estimator=return_estimator,
        return_indices=True,
        error_score="raise",
    )
    folds = result.pop("indices")["test"]
    return result | {"test_sites": [tuple(names[i] for i in fold) for fold in folds]}


def _pooled(estimator: Any, parts: list[Any]) -> tuple[Any, Any, Any]:
    """Return the rows of several parts, their targets and their weights; None if there are none."""
    roles = roles_of(innermost(estimator).client_class)
    schema = getattr(estimator, "schema", None)
    if schema is not None:
        agreed = schema.clients(_Part, False, roles)
        parts = [agreed(part).content for part in parts]
    split = [_split(part, roles) for part in parts]
    tables = [as_table(X) for X, _, _ in split]
    if all(isinstance(table, pd.DataFrame) for table in tables):
        pooled = pd.concat(tables, ignore_index=True)
    else:
        pooled = np.concatenate([np.asarray(table) for table in tables])
    y = (
        np.concatenate([np.asarray(as_table(y)) for _, y, _ in split])
        if "target" in roles
        else None
    )
    if all(weight is None for _, _, weight in split):
        return pooled, y, None
    rows = [
        np.ones(len(X)) if w is None else np.asarray(as_table(w), np.float64) for X, _, w in split
    ]
    return pooled, y, np.concatenate(rows)


class _Part:
    """What a client takes of a part, after a schema was applied."""

    def __init__(self, content: Any):
        self.content = content


def _split(part: Any, roles: tuple[str, ...]) -> tuple[Any, Any, Any]:
    """Return the rows of a part, their targets and their weights, without rows for validation."""
    if "target" not in roles:
        X, weight = with_weights(part) if "weight" in roles else (part, None)
        return X, None, weight
    X, y, *rest = part
    if len(rest) > 2 and rest[2] is not None:
        raise ValueError(
            "parts must have no base margins, because scikit-learn's scorers do not pass them on;"
            " got some. LeaveOneSiteOut starts predictions from them"
        )
    return X, y, rest[0] if rest else None
