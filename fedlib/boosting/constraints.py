"""Constraints on the features of trees, which are given by the features' names or their indices.

They restrict the splits that the server chooses. No message differs, so they need nothing from
clients and apply to every kind of sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, Any

import numpy as np

from fedlib.core.names import composed
from fedlib.core.parameters import KW_ONLY, Kind
from fedlib.protection.estimator import ProtectedFederated

Feature = int | str


@dataclass(frozen=True)
class Constraints:
    """The constraints of a run as they were given.

    Attributes
    ----------
    monotone : tuple of int or dict of int or str to int
        The direction of each feature, or of those that are named; empty if there is none.
    interactions : tuple of tuples of int or str
        The groups of features that may interact; empty if all may.
    """

    monotone: tuple[int, ...] | Mapping[Feature, int] = ()
    interactions: tuple[tuple[Feature, ...], ...] = ()

    def directions(self, n_features: int, names: Sequence[str]) -> tuple[int, ...]:
        """Return the monotone constraint of each feature; empty if there is none.

        Raises
        ------
        ValueError
            When a feature is unknown, or there is not one constraint per feature.

        Examples
        --------
        >>> Constraints({"age": 1}).directions(2, ("sex", "age"))
        (0, 1)
        """
        given = self.monotone
        if isinstance(given, Mapping):
            found = [0] * n_features
            for feature, direction in given.items():
                found[_index(feature, n_features, names, "monotone_constraints")] = direction
            return tuple(found)
        if len(given) not in (0, n_features):
            raise ValueError(
                f"monotone_constraints must have one entry per feature, {n_features}; got"
                f" {len(given)}"
            )
        return given

    def groups(self, n_features: int, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the indices of the features of each group that may interact.

        Raises
        ------
        ValueError
            When a feature is unknown.

        Examples
        --------
        >>> Constraints(interactions=(("age", "sex"), (2,))).groups(3, ("sex", "age", "bmi"))
        ((1, 0), (2,))
        """
        return tuple(
            tuple(_index(one, n_features, names, "interaction_constraints") for one in group)
            for group in self.interactions
        )


def _index(feature: Feature, n_features: int, names: Sequence[str], parameter: str) -> int:
    """Return the index of a feature that is given by its name or its index."""
    if isinstance(feature, str):
        if feature in names:
            return names.index(feature)
        known = f"the features {', '.join(map(repr, names))}" if names else (
            "indices, because the clients' features have no names"
        )  # fmt: skip
        raise ValueError(f"{parameter} must contain {known}; got {feature!r}")
    if not 0 <= feature < n_features:
        raise ValueError(
            f"{parameter} must contain indices of features, 0..{n_features - 1}; got {feature}"
        )
    return feature


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
