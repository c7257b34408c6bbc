"""Agreeing: whether a site has the schema of the run, and for its operator what differs."""

from __future__ import annotations

from fedlib.core.texts import printable
from fedlib.tables.schema.schema import Schema


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
    fedlib.tables.schema.agreeing.OtherSchema: the run has another schema: column 'x': the type is \
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
