"""A study's schema: the columns on which the sites agree before they compute.

The descriptor is a Data Resource of the standard Data Package, version 2
(https://datapackage.org), in JSON. `Schema.apply` brings the rows of a site into the agreed form,
and `Schema.digest` tells whether two sites have agreed on the same one.
"""

from fedlib.tables.schema.applying import ColumnReport, Report
from fedlib.tables.schema.schema import Schema, read_with_schema

__all__ = ["ColumnReport", "Report", "Schema", "read_with_schema"]
