"""The schema of a study: its descriptor, what it means for a run, and its comparison with another.

A study agrees on the columns of its rows before it computes. The schema is a Data Resource of the
standard Data Package, version 2 (https://datapackage.org), which programs in Python and R and data
portals read. One property per field, the object ``fedlib``, is not in the standard:

- ``role``: ``"feature"`` (the default), ``"target"``, ``"weight"``, ``"base_margin"``, or
  ``"ignore"`` for a column that is not read. Only base margins may be several columns, one per
  class. ``"target_upper"`` is the column with the latest times of rows for ``"survival:aft"``, of
  which the target is the earliest; a cell ``inf`` is a time that is only known to be later.
- ``unit``: the unit of measurement. A duration of a file or a database becomes a number in this
  unit, which is then s, min, h or d.
- ``timezone``: for a date, the zone of the place in which a time with a zone has its calendar day,
  such as ``"Europe/Berlin"``. Without it, such times are refused.
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
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from fedlib.core.aggregation import AgreedColumns
from fedlib.core.column_names import as_table, feature_names
from fedlib.core.file_errors import reading
from fedlib.core.wording import composed, printable
from fedlib.tables.databases import Database
from fedlib.tables.files import Table
from fedlib.tables.schema.applying import Report, apply_columns, check, to_table
from fedlib.tables.schema.cells import IDENTIFIER, Column
from fedlib.tables.schema.descriptor import MAX_BYTES, check_resource, decode, short
from fedlib.tables.schema.fields import check_columns, missing_values, read_column, read_name
from fedlib.tables.schema.reading import Source, open_source
from fedlib.tables.streams import ReadOptions


def differences(columns: Sequence[Column], others: Sequence[Column]) -> list[str]:
    """Return what differs between columns here and there, one line per difference.

    Examples
    --------
    >>> differences([Column("x", "number")], [Column("x", "integer"), Column("y", "number")])
    ["column 'x': the type is number here and integer there", "column 'y' is only there"]
    """
    here, there = ({c.name: c.canonical for c in some} for some in (columns, others))
    lines = []
    for name in dict.fromkeys([*here, *there]):
        column = f"column {printable(name, 60)!r}"
        if name not in there or name not in here:
            lines.append(f"{column} is only {'here' if name in here else 'there'}")
            continue
        lines += [
            f"{column}: the {what} is {_shown(value)} here and {_shown(remote)} there"
            for (what, value), remote in zip(here[name].items(), there[name].values(), strict=True)
            if value != remote
        ]
    common = [[name for name in one if name in two] for one, two in ((here, there), (there, here))]
    return [*lines, "the order of the columns differs"] if common[0] != common[1] else lines


def _shown(value: object) -> str:
    """Return a property in a line of a difference."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "not declared" if value is None else printable(str(value), 60)


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

    *Labels.* The labels of ``categories`` and of missing values have no effect. `check` reports the
    codes that have another label in a file of SAS, SPSS or Stata.

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
        source: pd.DataFrame | str | Path | Database,
        protected: bool = False,
        *,
        sheet: str | None = None,
    ) -> tuple[Table, Report]:
        """Return a site's rows as the study has agreed, and what was changed.

        Parameters
        ----------
        source : DataFrame, str, Path or Database
            The rows, or a file or a database with them. A text file (.csv, .tsv, .txt, also .gz)
            has the dialect and the encoding of the descriptor. Without a declared delimiter, it is
            the comma, semicolon, tab or bar that finds most of the names.
        protected : bool, default=False
            Whether the run is protected: `protected` describes what then holds. The gaps of columns
            with ``fill`` are filled, cells that cannot be read are gaps, and nothing that a feature
            contains is an error.
        sheet : str, optional
            The sheet of an .xlsx or .ods file; needed if there are several.

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

    def check(
        self, source: pd.DataFrame | str | Path | Database, *, sheet: str | None = None
    ) -> Report:
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


def _naming(source: pd.DataFrame | str | Path | Database) -> AbstractContextManager[None]:
    """Return a context that names the file, if there is one, in errors."""
    return nullcontext() if isinstance(source, pd.DataFrame) else reading(str(source))


class OtherSchema(ValueError):
    """A site and the run have different schemas, or only one of them has one.

    Parameters
    ----------
    schema : Schema or None
        That of the site.
    digest : str
        The digest of that of the run; empty if there is none.
    descriptor : str
        That of the run as JSON text; empty if it is not known.
    """

    def __init__(self, schema: Schema | None, digest: str, descriptor: str = ""):
        self.schema, self.digest = schema, digest
        super().__init__(_differences(schema, digest, descriptor))

    def with_descriptor(self, descriptor: str) -> OtherSchema:
        """Return the error with the differences to the schema of the run."""
        return OtherSchema(self.schema, self.digest, descriptor)


def check_same(schema: Schema | None, digest: str, descriptor: str = "") -> None:
    """Raise `OtherSchema` unless a site has the schema of the run, or neither has one.

    The text names the differences, which depend on the schemas only. It is for the operator of the
    site.

    Examples
    --------
    >>> first, second = (
    ...     Schema({"schema": {"fields": [{"name": "x", "type": kind}]}})
    ...     for kind in ("number", "integer")
    ... )
    >>> check_same(first, second.digest, second.to_json().decode())
    Traceback (most recent call last):
    ...
    fedlib.tables.schema.schema.OtherSchema: the run has another schema: column 'x': the type is \
number here and integer there
    """
    if (schema.digest if schema else "") != digest:
        raise OtherSchema(schema, digest, descriptor)


def _differences(schema: Schema | None, digest: str, descriptor: str) -> str:
    if schema is None:
        return f"the run has the schema {digest[:12]}, and this site none: give it its copy"
    if not digest:
        return "the run has no schema, and this site has one: join without a schema"
    lines = [f"its digest is {digest}, and that of this site {schema.digest}"]
    if descriptor:
        lines = schema.difference(Schema.from_json(descriptor.encode())) or lines
    return f"the run has another schema: {'; '.join(map(printable, lines))}"


# Where a schema has what the options of reading say.
IN_SCHEMA = {
    "columns": "give the role 'ignore' to the fields of the other columns",
    "header": "declare header in its dialect",
    "skip_lines": "remove the lines from the file",
    "separator": "declare delimiter in its dialect",
    "decimal": "declare decimalChar in the fields",
    "encoding": "declare encoding in it",
    "na_values": "declare missingValues in it",
    "text": "give the type string or an enum to the fields",
}


def check_options(schema: Schema, options: ReadOptions) -> None:
    """Raise ValueError if options say something else than a schema.

    They may name the columns as the schema does, and the sheet of an .xlsx or .ods file.

    Examples
    --------
    >>> field = {"name": "ill", "type": "integer", "fedlib": {"role": "target"}}
    >>> schema = Schema({"schema": {"fields": [{"name": "age", "type": "integer"}, field]}})
    >>> check_options(schema, ReadOptions(target="ill"))
    >>> check_options(schema, ReadOptions(target="sick", sample_weight="n", decimal=","))
    Traceback (most recent call last):
    ...
    ValueError: a schema says how its columns are read; these options do not fit: target 'sick' \
(the schema has 'ill'), sample-weight 'n' (the schema has no such column), decimal (declare \
decimalChar in the fields); how a file is written, such as its separator, this site declares in \
its own copy of the schema, which --schema names
    """
    roles: dict[str, Any] = {
        "target": schema.target,
        "target_upper": schema.target_upper,
        "sample_weight": schema.weight,
        "ids": schema.identifier,
        "base_margin": schema.base_margin or None,
    }
    wrong = []
    for field in fields(ReadOptions):
        option, value = field.name.replace("_", "-"), getattr(options, field.name)
        if field.name in roles and value not in (None, known := roles[field.name]):
            has = "no such column" if known is None else repr(known)
            wrong.append(f"{option} {value!r} (the schema has {has})")
        elif field.name in IN_SCHEMA and value not in (None, field.default, ()):
            wrong.append(f"{option} ({IN_SCHEMA[field.name]})")
    if wrong:
        raise ValueError(
            f"a schema says how its columns are read; these options do not fit: {', '.join(wrong)};"
            " how a file is written, such as its separator, this site declares in its own copy of"
            " the schema, which --schema names"
        )
