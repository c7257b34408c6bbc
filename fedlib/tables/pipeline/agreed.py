"""Pipelines with a schema: the rules follow from what the sites have agreed on, and from sums.

The columns, their kinds, categories and limits are facts of the schema, so no request asks for
them. Only means and spreads depend on rows. They are sums over the clients, which can be masked and
have noise, like those of the protocol after them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pandas as pd

from fedlib.core.aggregation import Aggregation
from fedlib.core.array_types import Floats, Ints
from fedlib.core.columns import NUMBER, TEXT, read_columns
from fedlib.core.names import check_names, listed
from fedlib.core.protocol import Flow
from fedlib.protection.secure.points import agree_on_bounded_features
from fedlib.protection.sums import NoisySums
from fedlib.tables.components.flow import check_n_components
from fedlib.tables.components.messages import component_names
from fedlib.tables.pipeline.flow import PipelineModel, Rules, project_rows
from fedlib.tables.pipeline.messages import KEPT_TEXT, Preprocess
from fedlib.tables.schema.cells import Column
from fedlib.tables.summary.agreed import UNLIMITED, sum_between
from fedlib.tables.summary.private import SumChosenColumnsNoisily, noisy_moments

Model = TypeVar("Model")
Limits = dict[str, tuple[float, float]]


def problems_of(columns: Sequence[Column], rules: Rules, protected: bool) -> list[str]:
    """Return everything that the rules need and the schema does not declare.

    Parameters
    ----------
    columns : sequence of Column
        The features.
    rules : Rules
    protected : bool
        Whether the server sees only sums over the clients, or noise.
    """
    problems = []
    for column in columns:
        limits, name = column.limits, repr(column.name)
        if column.kind == TEXT and column.values is None:
            problems.append(f"an enum of {name}")
        elif column.kind == NUMBER:
            limited = limits is not None and np.isfinite(limits).all()
            if rules.scale == "minmax" and not limited:
                problems.append(f"a minimum and a maximum of {name}")
            if protected and rules.impute is None and column.fill is None and not column.required:
                problems.append(f"a fill for the gaps of {name} or required=true")
    return problems


def agreed_pipeline(
    columns: Sequence[Column],
    rules: Rules,
    protected: bool,
    aggregation: Aggregation,
    protocol: Callable[[Limits], Flow[Model]],
    fitted: Preprocess | None,
) -> Flow[PipelineModel[Model]]:
    """Return the server flow: the rules from the schema and sums, then the protocol.

    Parameters
    ----------
    columns : sequence of Column
        The features, as the run applies them.
    rules : Rules
    protected : bool
        Whether the server sees only sums over the clients, or noise.
    aggregation : Aggregation
        Adds up the columns.
    protocol : callable
        Returns the flow of the protocol for the limits of the transformed columns, by name.
    fitted : Preprocess or None
        The rules, if the protocol continues a model.
    """
    names = tuple(column.name for column in columns)
    if fitted is not None:
        check_names(names, fitted.features)
    aggregation.features = names
    yield from agree_on_bounded_features(aggregation, len(names))
    if fitted is None:
        fitted = yield from _fit_rules(columns, rules, protected, aggregation)
        yield fitted
        limits = _limits_after(fitted, *_ends(columns))
        if rules.n_components is not None:
            ends = np.array(list(limits.values())).T
            bounds = ends if protected else None
            fitted, found = yield from project_rows(fitted, rules.n_components, aggregation, bounds)
            limits = dict(zip(found.names, found.limits(*ends).T.tolist(), strict=True))
    else:
        yield fitted
        limits = {} if rules.n_components is not None else _limits_after(fitted, *_ends(columns))
    model = yield from protocol(limits)
    return PipelineModel(fitted, model)


def _fit_rules(
    columns: Sequence[Column], rules: Rules, protected: bool, aggregation: Aggregation
) -> Flow[Preprocess]:
    """Return the rules that follow from the schema and from sums over the clients."""
    numbers = np.array([j for j, column in enumerate(columns) if column.kind == NUMBER], np.int64)
    low, high = _ends(columns)
    fill, centre, spread = low + (high - low) / 2, np.zeros(len(low)), np.ones(len(low))
    for j in numbers.tolist():
        fill[j] = fill[j] if columns[j].fill is None else float(columns[j].fill or 0.0)
    if rules.scale == "standard" or rules.impute == "mean":
        limits = np.array([low[numbers], high[numbers]])
        means, variances = yield from _moments(rules, len(low), numbers, limits, aggregation)
        if rules.impute == "mean":
            fill[numbers] = means
        if rules.scale == "standard":
            hidden = np.isnan(variances)
            if hidden.any():
                _warn_of_hidden([columns[j].name for j in numbers[hidden]])
            half = (limits[1] - limits[0]) / 2
            means = np.where(hidden, limits[0] + half, means)
            deviations = np.where(hidden, half, np.sqrt(variances))
            constant = deviations <= 10 * np.finfo(float).eps * np.maximum(np.abs(means), 1.0)
            centre[numbers], spread[numbers] = means, np.where(constant, 1.0, deviations)
    if rules.scale == "minmax":
        centre[numbers], spread[numbers] = low[numbers], (high - low)[numbers]
    fill[np.setdiff1d(np.arange(len(low)), numbers)] = 0.0
    return _preprocess(columns, rules, protected, (fill, centre, spread))


def _warn_of_hidden(names: Sequence[str]) -> None:
    """Warn that columns are scaled by their limits, because noise hides their variances."""
    warnings.warn(
        f"the noise is too large for the rows: the variance of {listed(names)} is not above its"
        " noise, so that the limits of the schema scale these columns to -1 and 1 in place of"
        " scale='standard'; a larger epsilon_fraction, more rows or a larger epsilon help",
        stacklevel=2,
    )


def limits_without_scale(columns: Sequence[Column], rules: Rules) -> Limits:
    """Return the limits of the columns as if they were not scaled, to check a protocol with.

    Principal components have any limits.
    """
    low, high = _ends(columns)
    zero, one = np.zeros(len(columns)), np.ones(len(columns))
    limits = _limits_after(_preprocess(columns, rules, False, (zero, zero, one)), low, high)
    if rules.n_components is None:
        return limits
    check_n_components(rules.n_components, len(limits), "pca")
    n_components = int(rules.n_components) or len(limits)  # of a fraction, all
    return dict.fromkeys(component_names(n_components), (-1.0, 1.0))


def _ends(columns: Sequence[Column]) -> tuple[Floats, Floats]:
    """Return the smallest and the largest value of each column; 0 for text."""
    low, high = np.array([column.limits or (0.0, 0.0) for column in columns]).reshape(-1, 2).T
    return np.maximum(low, -UNLIMITED), np.minimum(high, UNLIMITED)


def _preprocess(
    columns: Sequence[Column], rules: Rules, protected: bool, values: tuple[Floats, ...]
) -> Preprocess:
    """Return the rules with these fills, centres and spreads."""
    fill, centre, spread = values
    kinds = rules.kinds(np.array([column.kind for column in columns], np.uint8))
    categories = [
        () if kind == KEPT_TEXT else column.categories or ()
        for column, kind in zip(columns, kinds, strict=True)
    ]
    return Preprocess(
        tuple(column.name for column in columns),
        kinds,
        (),
        "fill" if protected and rules.gaps == "keep" else rules.gaps,
        fill,
        centre,
        np.where(spread > 0, spread, 1.0),
        np.array([len(one) for one in categories], np.int64),
        tuple(category for one in categories for category in one),
        rules.unknown,
    )


def _moments(
    rules: Rules, n_columns: int, numbers: Ints, limits: Floats, aggregation: Aggregation
) -> Flow[tuple[Floats, Floats]]:
    """Return the mean and the variance of each column of numbers; NaN if noise hides a variance."""
    if isinstance(aggregation, NoisySums):
        noisily = SumChosenColumnsNoisily(aggregation.privacy, limits, 0, numbers)
        total, clients = yield from aggregation.sum(noisily)
        return noisy_moments(limits, total.values, aggregation.noise(noisily, len(clients)))
    _, means, variances = yield from sum_between(
        rules.view, n_columns, numbers, limits, aggregation
    )
    return means, variances


def _limits_after(fitted: Preprocess, low: Floats, high: Floats) -> Limits:
    """Return the limits of the transformed columns; those of a category are 0 and 1."""
    empty = pd.DataFrame({name: np.empty(0) for name in fitted.features})
    X, _ = fitted.transform(read_columns(empty))
    ends = [(ends - fitted.centre) / fitted.spread for ends in (low, high)]
    limits = {
        name: (float(ends[0][j]), float(ends[1][j]))
        for j, name in enumerate(fitted.features)
        if fitted.kinds[j] == NUMBER
    }
    return {name: limits.get(name, (0.0, 1.0)) for name in X.columns}
