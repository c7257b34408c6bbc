"""The parts of a run in one process, or on workers, with a schema applied to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedlib.core.names import as_table
from fedlib.tables.files import Table


@dataclass(frozen=True)
class AgreedParts:
    """Makes clients of raw parts: it applies a schema and calls the class of the clients.

    Attributes
    ----------
    schema : Schema
    client_class : type
    protected : bool
        Whether the run is protected; see `Schema.apply`.
    roles : tuple of str
        The columns that a client takes beside the features (`fedlib.core.client.roles_of`).
    """

    schema: Any
    client_class: Any
    protected: bool
    roles: tuple[str, ...] = ()

    @property
    def combinable(self) -> Any:
        """The requests whose replies a transport may combine: those of the class."""
        return self.client_class.combinable

    def __call__(self, part: Any, **options: Any) -> Any:
        """Return a client.

        Parameters
        ----------
        part : DataFrame, path or tuple
            A table with all columns of the schema, a file with one, or a tuple with the features in
            a table of their own: ``(X, y)`` or ``(X, y, sample_weight)``, and ``(X,
            sample_weight)`` for a client that takes no classes. The fourth of ``(X, y,
            sample_weight, eval_set)`` are rows for validation, in one of these forms,
            or a mapping or a list of these. Base margins are the fifth, and the fourth of the tuple
            of rows for validation.
        **options
            Further arguments of the client.
        """
        return self.client_class(self._of(part), **options)

    def _of(self, part: Any) -> Any:
        """Return what the client takes of a part: the features, or a tuple with them."""
        evaluated = None
        if isinstance(part, tuple) and len(part) > 3:
            evaluated, part = part[3], (*part[:3], *part[4:])
        table = self._table(part)
        if evaluated is None:
            return table.part(self.roles)
        sets: Any
        if isinstance(evaluated, dict):
            sets = {name: self._eval_set(one) for name, one in evaluated.items()}
        elif isinstance(evaluated, list):
            sets = [self._eval_set(one) for one in evaluated]  # as XGBoost takes them
        else:
            sets = self._eval_set(evaluated)
        return (table.X, table.y, table.sample_weight, sets, table.base_margin)

    def _eval_set(self, part: Any) -> tuple[Any, ...]:
        """Return rows for validation as a client takes them."""
        return self._table(part).eval_set

    def _table(self, part: Any) -> Table:
        schema = self.schema
        if isinstance(part, tuple):
            X, *rest = part
            X = self._named(X)
            for role, values in zip(self.roles, rest, strict=False):
                if values is not None:
                    names = self._columns(role)
                    columns = np.asarray(as_table(values)).reshape(len(X), -1).T
                    X = X.assign(**dict(zip(names, columns, strict=True)))
            part = X
        elif not isinstance(part, str | Path):
            part = self._named(part)
        table: Table = schema.apply(part, self.protected)[0]
        if "target" in self.roles and table.y is None:
            raise ValueError("the schema has no field with the role 'target'")
        return table

    def _columns(self, role: str) -> Sequence[str]:
        """Return the names of the columns with a role, which a part has beside its table."""
        names: str | Sequence[str] | None = getattr(self.schema, role)
        if not names:
            raise ValueError(
                f"the part has values with the role {role!r}, and the schema no such field: leave"
                " them out, or declare the field in the copies of all sites"
            )
        upper = self.schema.target_upper if role == "target" else None
        found = [names] if isinstance(names, str) else names
        return [*found, upper] if upper else found

    def _named(self, X: Any) -> pd.DataFrame:
        """Return a table with names; those of an array are the features of the schema."""
        X = as_table(X)
        if isinstance(X, pd.DataFrame):
            return X
        array, features = np.asarray(X), list(self.schema.features)
        if array.ndim != 2 or array.shape[1] != len(features):
            raise ValueError(
                f"an array must have the {len(features)} features of the schema in their order, got"
                f" the shape {array.shape}; a DataFrame with names may have them in any order"
            )
        return pd.DataFrame(array, columns=features)
