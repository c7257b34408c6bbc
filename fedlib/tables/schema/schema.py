"""The schema of a study: its descriptor, what it means for a run, and its comparison with another.

A study agrees on the columns of its rows before it computes. The schema is a Data Resource of the
standard Data Package, version 2 (https://datapackage.org), which programs in Python and R and data
portals read. One property per field, the object ``fedlib``, is not in the standard:

- ``role``: ``"feature"`` (the default), ``"target"``, ``"weight"``, ``"base_margin"``, or
  ``"ignore"`` for a column that is not read. Only base margins may be several columns, one per
  class. ``"target_upper"`` is the column with the latest times of rows for ``"survival:aft"``, of
  which the target is the earliest; a cell ``inf`` is a time that is only known to be later.
- ``unit``: the unit of measurement.
- ``outside``: what becomes of a value that is not accepted. It is ``"error"`` by default,
  ``"missing"`` (a gap), ``"clip"`` (the nearest limit) or ``"other"`` (this category).
- ``fill``: the value for gaps in a protected run, in which no statistic may choose it. In other
  runs gaps remain.
- ``unconfirmed``: the properties of a draft that a person must still confirm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from fedlib.core.agreed_columns import AgreedColumns
from fedlib.core.file_errors import reading
from fedlib.core.names import feature_names
from fedlib.core.texts import composed, printable
from fedlib.tables.files import Table
from fedlib.tables.schema.applying import apply_columns, check, to_table
from fedlib.tables.schema.columns import IDENTIFIER, Column
from fedlib.tables.schema.comparing import differences
from fedlib.tables.schema.descriptor import MAX_BYTES, check_resource, decode, short
from fedlib.tables.schema.fields import check_columns, missing_values, read_column, read_name
from fedlib.tables.schema.parts import AgreedParts
from fedlib.tables.schema.reading import Source, open_source
from fedlib.tables.schema.report import Report

VERSION = 1  # of the canonical form
MATCHES = ("exact", "equal", "subset")


class Schema(AgreedColumns):
    """The columns on which a study has agreed: names, types, limits, categories, roles and units.

    The descriptor is a Data Resource of the standard Data Package, version 2. Its columns are found
    by name in each site's file, and brought into the order of the schema.

    Parameters
    ----------
    descriptor : mapping
        The object of a JSON descriptor. The module `fedlib.tables.schema.schema` lists the
        properties that the standard lacks.

    Attributes
    ----------
    columns : tuple of Column
        All columns that are read, in the order of the schema.

    Raises
    ------
    ValueError
        When a property is invalid, or belongs to the standard but cannot be obeyed.

    Notes
    -----
    *Types.* A table of a run has columns of numbers and of text. Truth values become the numbers 0
    and 1. Dates become the days since 1970-01-01, also in limits. Numbers and integers with an enum
    are codes: the column is text, so 1.0 is the category ``"1"``. An integer may be written as
    ``41.0``.

    *Cells.* Blanks around a cell do not count. A blank cell is always a gap, and so is NaN in a
    column of numbers. Infinities and numbers beyond ±1e100 cannot be read.

    *Columns.* Columns of the file that the schema does not name are ignored, as if the standard's
    ``fieldsMatch`` were ``"subset"``. If it is ``"exact"`` or ``"equal"``, they are an error.

    Examples
    --------
    >>> import pandas as pd
    >>> age = {"name": "age", "type": "integer", "constraints": {"minimum": 18, "maximum": 99}}
    >>> sex = {"name": "sex", "type": "string", "constraints": {"enum": ["f", "m"]}}
    >>> schema = Schema(
    ...     {
    ...         "name": "cohort",
    ...         "path": "cohort.csv",
    ...         "schema": {
    ...             "fields": [
    ...                 age | {"fedlib": {"unit": "a", "outside": "clip"}},
    ...                 sex | {"fedlib": {"outside": "other"}},
    ...             ],
    ...             "missingValues": ["", "-9"],
    ...         },
    ...     }
    ... )
    >>> schema.limits, schema.categories
    ({'age': (18.0, 99.0)}, {'sex': ('f', 'm', 'other')})
    >>> rows = pd.DataFrame({"sex": ["f", "m ", "x"], "age": ["41", "-9", "120"], "id": [1, 2, 3]})
    >>> table, report = schema.apply(rows)
    >>> table.X
        age    sex
    0  41.0      f
    1   NaN      m
    2  99.0  other
    >>> print(report)
    column 'age': 1 number became the limit (row 3)
    column 'sex': 1 value became 'other' (row 3)
    columns that are not read: 'id'
    """

    def __init__(self, descriptor: Mapping[str, Any]):
        self._descriptor = dict(descriptor)
        schema, self._dialect, self._encoding = check_resource(self._descriptor)
        self._match = _match(schema.fields_match)
        key = _key(schema.primary_key)
        missing = missing_values("schema.missingValues", schema.missing_values)
        if self._dialect.null_sequence is not None:
            missing = (*missing, composed(self._dialect.null_sequence.strip()))
        fields, columns = [], []
        for i, content in enumerate(schema.fields):
            place = f"schema.fields[{i}]"
            fields.append(read_name(place, content))
            column = read_column(place, content, missing, key)
            columns += [column] if column is not None else []
        self._fields = tuple(fields)
        self.columns: tuple[Column, ...] = tuple(columns)
        check_columns(self._fields, self.columns, key)

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """Return the schema in a file.

        Raises
        ------
        ValueError
            When the file cannot be read or is not a valid descriptor.
        """
        with reading(path):
            with Path(path).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            return cls.from_json(data)

    @classmethod
    def from_json(cls, data: bytes) -> Schema:
        """Return the schema in a JSON text of at most 16 MiB.

        Raises
        ------
        ValueError
            When the text is not a valid descriptor.

        Examples
        --------
        >>> field = '{"name": "x", "type": "number"}'
        >>> Schema.from_json(f'{{"schema": {{"fields": [{field}]}}}}'.encode()).features
        ('x',)
        """
        return cls(decode(data))

    def to_json(self) -> bytes:
        """Return the descriptor as JSON text, with everything that it contains."""
        return msgspec.json.format(msgspec.json.encode(self._descriptor), indent=2) + b"\n"

    def __repr__(self) -> str:
        names = ", ".join(repr(printable(column.name, 60)) for column in self.columns[:5])
        more = ", …" if len(self.columns) > 5 else ""
        return f"<Schema {self.digest[:12]} of {len(self.columns)} columns: {names}{more}>"

    @property
    def skipped(self) -> tuple[str, ...]:
        """The names of the fields with the role ``"ignore"``, which are not read."""
        read = {column.name for column in self.columns}
        return tuple(name for name in self._fields if name not in read)

    @property
    def features(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the features, in the order of the schema."""
        return tuple(column.name for column in self.columns if column.role == "feature")

    @property
    def target(self) -> str | None:
        """The name of the column with the classes; None if there is none."""
        return self._with_role("target")

    @property
    def target_upper(self) -> str | None:
        """The name of the column with the latest times of rows; None if there is none."""
        return self._with_role("target_upper")

    @property
    def weight(self) -> str | None:  # type: ignore[override]
        """The name of the column with the weights of the rows; None if there is none."""
        return self._with_role("weight")

    @property
    def base_margin(self) -> tuple[str, ...]:
        """The names of the columns with the margins from which boosting starts, in their order."""
        return tuple(column.name for column in self.columns if column.role == "base_margin")

    @property
    def identifier(self) -> str | None:
        """The name of the primary key; None if there is none."""
        return self._with_role(IDENTIFIER)

    def _with_role(self, role: str) -> str | None:
        return next((column.name for column in self.columns if column.role == role), None)

    @property
    def limits(self) -> dict[str, tuple[float, float]]:  # type: ignore[override]
        """The smallest and the largest number of each column that has a limit.

        A limit that is not declared is infinite. Truth values have 0 and 1, dates days since
        1970-01-01.
        """
        return {c.name: c.limits for c in self.columns if c.limits is not None}

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """The categories of each enumerated column; ``"other"`` is the last one if it is used."""
        return {c.name: c.categories for c in self.columns if c.categories is not None}

    @property
    def classes(self) -> list[Any] | None:  # type: ignore[override]
        """The classes: the enum of the target, as texts or numbers; None if it has none.

        A truth value has the classes 0 and 1.
        """
        target = next((c for c in self.columns if c.role == "target"), None)
        if target is not None and target.type == "boolean":
            return [0.0, 1.0]
        if target is None or target.values is None:
            return None
        texts = list(target.values)
        return texts if target.type == "string" else [float(text) for text in texts]

    @property
    def kinds(self) -> dict[str, int]:
        """The kind of each column, as in `fedlib.core.columns`: 0 numbers, 1 text."""
        return {column.name: column.kind for column in self.columns}

    @property
    def fills(self) -> dict[str, float | str]:
        """The values for gaps in a protected run, of the columns that declare one."""
        return {c.name: c.fill for c in self.columns if c.fill is not None}

    @property
    def unconfirmed(self) -> dict[str, tuple[str, ...]]:
        """The properties of each column of a draft that a person must still confirm."""
        return {c.name: c.unconfirmed for c in self.columns if c.unconfirmed}

    @property
    def digest(self) -> str:  # type: ignore[override]
        """The SHA-256 of what matters for a run, in 64 hexadecimal digits.

        It does not depend on titles, descriptions, columns that are not read, or how a file is
        written: the dialect, the encoding, decimal characters, words for truth values and formats
        of dates. So sites with equal digests apply the same schema to files of their own forms.
        """
        content = [VERSION, [[column.name, column.canonical] for column in self.columns]]
        encoded = msgspec.json.encode(content, order="deterministic")
        return hashlib.sha256(encoded).hexdigest()

    def difference(self, other: Schema) -> list[str]:
        """Return what differs in another schema, one line per difference, for the operator.

        Parameters
        ----------
        other : Schema

        Returns
        -------
        list of str
            Empty if, and only if, the digests are equal.

        Examples
        --------
        >>> first, second = (
        ...     Schema(
        ...         {
        ...             "schema": {
        ...                 "fields": [
        ...                     {"name": "x", "type": "number", "constraints": {"maximum": high}}
        ...                 ]
        ...             }
        ...         }
        ...     )
        ...     for high in (9, 10)
        ... )
        >>> first.difference(second)
        ["column 'x': the maximum is 9 here and 10 there"]
        """
        return differences(self.columns, other.columns)

    def lacking(self) -> list[str]:
        """Return everything that a protected run needs and the schema does not declare."""
        return [what for column in self.columns for what in column.lacking()]

    def protected(self) -> Schema:
        """Return the schema as a protected run applies it.

        Every number is clipped, every text without a category becomes ``"other"``, and every truth
        value that cannot be read becomes a gap, whatever the columns declare. So the limits and the
        categories hold for any rows.

        Raises
        ------
        ValueError
            When columns lack limits or categories, or have unconfirmed properties; the text lists
            all of them.
        """
        if lacking := self.lacking():
            raise ValueError(f"a protected run needs {'; '.join(lacking)} in the schema")
        return self._with(tuple(column.protected() for column in self.columns))

    def apply(
        self,
        source: pd.DataFrame | str | Path,
        protected: bool = False,
        *,
        sheet: str | None = None,
    ) -> tuple[Table, Report]:
        """Return a site's rows as the study has agreed, and what was changed.

        Parameters
        ----------
        source : DataFrame, str or Path
            The rows, or a file with them. A text file (.csv, .tsv, .txt, also .gz) has the dialect
            and the encoding of the descriptor. Without a declared delimiter, it is the comma,
            semicolon, tab or bar that finds most of the names.
        protected : bool, default=False
            Whether the run is protected: `protected` describes what then holds. The gaps of columns
            with ``fill`` are filled, cells that cannot be read are gaps, and nothing that a feature
            contains is an error.
        sheet : str, optional
            The sheet of an Excel file; needed if there are several.

        Returns
        -------
        table : Table
            The features, classes, weights and identifiers. Numbers are float64 with NaN for a gap,
            texts are objects with None, and those of an enumerated feature pandas' categories.
        report : Report
            The counts of changes, for the site's operator only.

        Raises
        ------
        ValueError
            When the file cannot be read, a column is missing, or there are cells that the schema
            neither accepts nor treats. The text lists counts and rows by column, and no values.
        """
        schema = self.protected() if protected else self
        with _naming(source):
            values, given, report = schema._values(source, protected, sheet)
            check(schema.columns, report, protected)
            return to_table(schema.columns, values, given), report

    def clients(self, client_class: Any, protected: bool, roles: Any = ()) -> AgreedParts:
        """Return what makes a client of a raw part: it applies the schema first.

        Parameters
        ----------
        client_class : type
            The class of the clients.
        protected : bool
            Whether the run is protected; see `apply`.
        roles : tuple of str, default=()
            The columns that a client takes beside the features (`fedlib.core.client.roles_of`).
        """
        return AgreedParts(self, client_class, protected, roles)

    def rows(self, X: Any, protected: bool) -> Any:
        """Return new rows with the agreed features, for the predictions of a model.

        Parameters
        ----------
        X : DataFrame or array-like
            Rows with the features; an array, which has no names, is returned as it is.
        protected : bool
            Whether the model is of a protected run; see `apply`.

        Raises
        ------
        ValueError
            As `apply`.
        """
        if not isinstance(X, pd.DataFrame) or not feature_names(X):
            return X
        table, _ = self.of_new_rows().apply(X, protected)
        table.X.index = X.index
        return table.X

    def of_new_rows(self, *roles: str) -> Schema:
        """Return the schema of rows without classes and weights, such as those of predictions.

        Parameters
        ----------
        *roles : str
            The roles of further columns that the rows have.
        """
        wanted = ("feature", *roles)
        schema = self._with(tuple(column for column in self.columns if column.role in wanted))
        schema._match = "subset"
        return schema

    def _with(self, columns: tuple[Column, ...]) -> Schema:
        """Return the schema with other columns."""
        schema = object.__new__(Schema)
        schema.__dict__.update(self.__dict__)
        schema.columns = columns
        return schema

    def check(self, source: pd.DataFrame | str | Path, *, sheet: str | None = None) -> Report:
        """Return what a site's rows have that the schema does not accept.

        `apply` raises an error if, and only if, `Report.problems` is not empty.

        Raises
        ------
        ValueError
            When the file cannot be read or a column is missing.

        Examples
        --------
        >>> import pandas as pd
        >>> field = {"name": "x", "type": "number", "constraints": {"required": True}}
        >>> schema = Schema({"schema": {"fields": [field]}})
        >>> schema.check(pd.DataFrame({"x": ["1", "", "two"]})).problems
        ("column 'x': 1 cell is not of the column's type (row 3)", \
"column 'x': 1 required value is missing (row 2)")
        """
        with _naming(source):
            return self._values(source, False, sheet)[-1]

    def _values(
        self, source: Any, protected: bool, sheet: str | None
    ) -> tuple[dict[str, Any], dict[str, Any], Report]:
        """Return the values of all columns, those before gaps are filled, and the report."""
        opened = open_source(
            source, self.columns, self._fields, self._dialect, self._encoding, sheet
        )
        self._check_match(opened)
        return apply_columns(self.columns, opened, protected)

    def _check_match(self, source: Source) -> None:
        """Raise ValueError if the descriptor demands the same columns, and there are others."""
        if self._match == "subset":
            return
        fields, names = set(self._fields), set(source.names)
        extra = [name for name in source.names if name not in fields]
        absent = [name for name in self._fields if name not in names]
        if extra or absent:
            raise ValueError(
                f"the columns must be those of the schema, because its fieldsMatch is"
                f" {self._match!r}; {'not in the schema' if extra else 'missing'}:"
                f" {', '.join(repr(printable(name, 60)) for name in (extra or absent)[:20])}"
            )
        if self._match == "exact" and source.names != self._fields:
            raise ValueError(
                "the columns must have the order of the schema, because its fieldsMatch is 'exact'"
            )


def read_with_schema(
    path: str | Path, schema: Schema, protected: bool = False
) -> tuple[Table, Report]:
    r"""Return the rows in a site's file as a study has agreed, and what was changed.

    Parameters
    ----------
    path : str or Path
        A text file with the dialect of the descriptor, or another file that
        `fedlib.tables.files.read_table` reads.
    schema : Schema
    protected : bool, default=False
        Whether the run is protected; see `Schema.apply`.

    Raises
    ------
    ValueError
        When the file cannot be read, or its rows do not fit the schema.

    Examples
    --------
    >>> import tempfile
    >>> schema = Schema({"schema": {"fields": [{"name": "age", "type": "integer"}]}})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "site.csv")
    ...     _ = path.write_text("id;age\n1;41\n2;\n")
    ...     table, report = read_with_schema(path, schema)
    >>> table.X["age"].tolist(), report.columns[0].gaps
    ([41.0, nan], 1)
    """
    return schema.apply(Path(path), protected)


def _match(given: str | Sequence[str]) -> str:
    """Return how columns are matched; profile 2.0 has a list by mistake, the standard a text."""
    match = given if isinstance(given, str) else given[0] if len(given) == 1 else ""
    if match not in MATCHES:
        raise ValueError(
            f"schema.fieldsMatch must be one of {', '.join(MATCHES)}, got {short(given)}"
        )
    return match


def _key(given: str | Sequence[str]) -> str | None:
    """Return the primary key, which is one field."""
    names = [given] if isinstance(given, str) else list(given)
    if len(names) > 1:
        raise ValueError(f"schema.primaryKey must be one field, got {short(names)}")
    return composed(names[0].strip()) if names else None


def _naming(source: pd.DataFrame | str | Path) -> AbstractContextManager[None]:
    """Return a context that names the file, if there is one, in errors."""
    return nullcontext() if isinstance(source, pd.DataFrame) else reading(source)
