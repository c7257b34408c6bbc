"""What protocols need of a study's schema, which `fedlib.tables.schema` reads and applies."""

from __future__ import annotations

from typing import Any


class AgreedColumns:
    """The interface of `fedlib.Schema` for estimators.

    Attributes
    ----------
    columns : tuple of fedlib.tables.schema.cells.Column
        All columns that are read.
    features : tuple of str
        The names of the features, in their order.
    limits : dict of str to tuple
        The smallest and the largest number of each column that has a limit.
    weight : str or None
        The name of the column with the weights of the rows.
    classes : list or None
        The classes that the target may have.
    digest : str
        The SHA-256 of what matters for a run.
    """

    columns: tuple[Any, ...]
    features: tuple[str, ...]
    limits: dict[str, tuple[float, float]]
    weight: str | None
    classes: list[Any] | None
    digest: str

    def lacking(self) -> list[str]:
        """Return everything that a protected run needs and the schema does not declare."""
        raise NotImplementedError

    def clients(self, client_class: Any, protected: bool, roles: tuple[str, ...] = ()) -> Any:
        """Return what makes a client of a raw part: it brings the part into the agreed form."""
        raise NotImplementedError

    def rows(self, X: Any, protected: bool) -> Any:
        """Return new rows with the agreed features; an array is returned as it is."""
        raise NotImplementedError

    def to_json(self) -> bytes:
        """Return the descriptor as JSON text."""
        raise NotImplementedError
