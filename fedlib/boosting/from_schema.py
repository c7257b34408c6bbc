"""What a study's schema fixes before a run: the features, their categories and their bounds.

With a schema, clients describe no kinds of columns and count no categories. The categories of a
feature are those of its enum in ascending order, so the trees are those of a run whose clients
count the same categories. A text without a category is what the schema makes of it: a gap, or
the category ``"other"``, which a protected run always has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedlib.boosting.categories import listed
from fedlib.boosting.cuts import MAX_VALUE
from fedlib.boosting.messages import Levels
from fedlib.boosting.trees import BoostedTrees
from fedlib.core.aggregation import AgreedColumns
from fedlib.core.column_names import check_names
from fedlib.core.columns import NUMBER, TEXT
from fedlib.core.points import Bounds, check_bounds
from fedlib.tables.schema.cells import Column


@dataclass(frozen=True)
class AgreedFeatures:
    """The features of a schema.

    Attributes
    ----------
    limits : mapping of str to (low, high)
        Those of the features of numbers that have limits.
    names : tuple of str
    texts : tuple of int
        The features that contain text.
    levels : tuple of tuple of str or None
        The categories of each feature, None for a feature of numbers; empty if all features are
        numbers.
    n_categories : dict of int to int
        The count of different numbers that rows have, per feature of text: the categories, and 1
        if the schema has some that the model which the run continues does not have.
    """

    limits: Mapping[str, tuple[float, float]]
    names: tuple[str, ...]
    texts: tuple[int, ...]
    levels: Levels
    n_categories: Mapping[int, int]

    def bounds(self, given: Any = None) -> Bounds:
        """Return the bounds of all features; those of features of text have no meaning.

        Parameters
        ----------
        given : mapping of str to (low, high), or array-like (2, n_features), optional
            The bounds of the features of numbers; by default the limits of the schema.

        Raises
        ------
        ValueError
            When a feature of numbers has no bounds, or a feature of text has some.
        """
        bounds = check_bounds(self.limits if given is None else given, MAX_VALUE)
        known = bounds.by_index(self.names)
        if wrong := [f for f in known if f in self.texts]:
            raise ValueError(
                "bounds must be those of features of numbers, by their names; got bounds of"
                f" {listed(wrong, self.names)}, whose categories are in the schema"
            )
        features = range(len(self.names))
        if missing := [f for f in features if f not in known and f not in self.texts]:
            raise ValueError(
                "bounds must be those of all features of numbers; there are none of"
                f" {listed(missing, self.names)}"
            )
        limits = np.array([known.get(f, (0.0, 0.0)) for f in features])
        return Bounds(limits.T.copy(), self.names)


def problems_of(columns: Sequence[Column], protected: bool, without_classes: bool) -> list[str]:
    """Return everything that a run needs and the schema does not declare.

    Parameters
    ----------
    columns : sequence of Column
        All columns of the schema.
    protected : bool
        Whether the server sees only sums over the clients, or noise.
    without_classes : bool
        Whether the labels are classes and no parameter lists them.

    Examples
    --------
    >>> columns = [Column("age", "number"), Column("town", "string")]
    >>> problems_of(columns, protected=True, without_classes=False)
    ["a minimum and a maximum of 'age'", "an enum of 'town'", "a field with the role 'target'"]
    """
    problems = []
    for column in columns:
        target, truth = column.role == "target", column.type == "boolean"
        lists = column.values is not None or truth
        if protected and target and without_classes and not lists:
            problems.append(f"an enum of {column.name!r} (the classes)")
            problems += replace(column, values=()).lacking()  # what else it lacks
        elif protected:
            problems += column.lacking()
        elif column.role == "feature" and column.kind == TEXT and not lists:
            problems.append(f"an enum of {column.name!r}")
    if not any(column.role == "target" for column in columns):
        problems.append("a field with the role 'target'")
    return problems


def agreed_features(
    schema: AgreedColumns | None,
    protected: bool,
    start: BoostedTrees | None = None,
) -> AgreedFeatures | None:
    """Return the features of a schema as a run applies them; None without a schema.

    The schema must have everything that the run needs (`problems_of`).

    Parameters
    ----------
    schema : AgreedColumns, optional
    protected : bool
        Whether the server sees only sums over the clients, or noise.
    start : BoostedTrees, optional
        The model that the run continues. Its categories stay, and further ones count as other
        texts.

    Raises
    ------
    ValueError
        When the model has other features.

    Examples
    --------
    >>> from fedlib import Schema
    >>> sex = {"name": "sex", "type": "string", "constraints": {"enum": ["m", "f"]}}
    >>> ill = {"name": "ill", "type": "boolean", "fedlib": {"role": "target"}}
    >>> schema = Schema({"schema": {"fields": [{"name": "age", "type": "integer"}, sex, ill]}})
    >>> agreed_features(schema, False).levels
    (None, ('f', 'm'))
    """
    if schema is None:
        return None
    columns = [column for column in schema.columns if column.role == "feature"]
    if protected:
        columns = [column.protected() for column in columns]
    names = tuple(column.name for column in columns)
    if start is not None:
        check_names(names, start.features)
        if start.n_features != len(names):
            raise ValueError(
                f"the schema must have the {start.n_features} features of the model; got"
                f" {len(names)}"
            )
    declared = [None if c.kind == NUMBER else tuple(sorted(c.categories or ())) for c in columns]
    texts = tuple(f for f, known in enumerate(declared) if known is not None)
    levels = start.levels if start is not None else ()
    levels = levels or (tuple(declared) if texts else ())
    n_categories = {
        f: len(known) + bool({*(declared[f] or ())} - {*known})
        for f, known in enumerate(levels)
        if known is not None
    }
    limits = {column.name: column.limits for column in columns if column.limits is not None}
    return AgreedFeatures(limits, names, texts, levels, n_categories)
