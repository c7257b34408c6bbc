"""The parts of a run in one process, or on workers, with a schema applied to each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedlib.tables.files import Table

__all__ = ["AgreedParts"]


@dataclass(frozen=True)
class AgreedParts:
    """Makes clients of raw parts: it applies a schema and calls the class of the clients.

    Attributes
    ----------
    schema : Schema
    client_class : type
    protected : bool
        Whether the run is protected; see `Schema.apply`.
    supervised : bool
        Whether a client takes classes and weights.
    """

    schema: Any
    client_class: Any
    protected: bool
    supervised: bool = False

    @property
    def combinable(self) -> Any:
        """The requests whose replies a transport may combine: those of the class."""
        return self.client_class.combinable

    def __call__(self, part: Any, **options: Any) -> Any:
        """Return a client.

        Parameters
        ----------
        part : DataFrame, path or tuple
            A table with all columns of the schema, a file with one, or ``(X, y)`` or ``(X, y,
            sample_weight)`` with the features in a table of their own.
        **options
            Further arguments of the client.
        """
        return self.client_class(self._of_client(self._table(part)), **options)

    def _table(self, part: Any) -> Table:
        schema = self.schema
        if isinstance(part, tuple):
            X, *rest = part
            if not isinstance(X, pd.DataFrame):
                X = pd.DataFrame(np.asarray(X), columns=list(schema.features))
            columns = dict(zip((schema.target, schema.weight), rest, strict=False))
            part = X.assign(**{name: v for name, v in columns.items() if name is not None})
        elif not isinstance(part, pd.DataFrame | str | Path):
            part = pd.DataFrame(np.asarray(part), columns=list(schema.features))
        return schema.apply(part, self.protected)[0]

    def _of_client(self, table: Table) -> Any:
        if not self.supervised:
            return table.X
        if table.y is None:
            raise ValueError("the schema has no field with the role 'target'")
        weights = () if table.sample_weight is None else (table.sample_weight,)
        return (table.X, table.y, *weights)
