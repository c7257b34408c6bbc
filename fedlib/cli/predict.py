"""``fedlib predict``: the clusters or classes of new rows by a saved model."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import numpy as np

from fedlib.cli.common import (
    EXISTING,
    OUTPUT,
    Flag,
    InputFile,
    Reading,
    check_reading,
    command,
    in_one_line,
    naming,
    read_rows,
    read_schema,
    report_changes,
    writing,
)
from fedlib.cli.data import DataOptions
from fedlib.core.client import roles_of
from fedlib.core.estimator import Federated
from fedlib.core.registry import innermost
from fedlib.core.wording import printable
from fedlib.protection.estimator import is_protected
from fedlib.sites.models import ModelFileError, load
from fedlib.tables.files import write_labels

if TYPE_CHECKING:
    from fedlib.cli.common import Rows
    from fedlib.tables.files import Table
    from fedlib.tables.schema import Schema
    from fedlib.tables.streams import ReadOptions


@command
def predict(
    model: Annotated[Path, EXISTING],
    data: DataOptions,
    reading: Reading,
    *,
    schema: Annotated[
        InputFile,
        "This site's copy of the schema of the run (JSON), if its files are written in another way:"
        " separator, decimal character, encoding. By default that of the model.",
    ] = None,
    labels_out: Annotated[
        Path,
        OUTPUT,
        "Write the cluster or class of each row, in the order of the rows: .csv or .npy.",
    ],
    probabilities: Annotated[
        Flag, "Also write one column per cluster or class with its probability (CSV only)."
    ] = False,
) -> None:
    """Write the clusters or classes of new rows.

    MODEL is a file that `fedlib serve --model-out` or fedlib.sites.models.save has written. The
    columns that --target, --sample-weight and --ids name are not used as features. If the run had a
    schema, the rows are read by it, or by this site's copy of it, and a file with its primary key
    needs no --ids. If sites gave base margins, new rows need them, too.
    """
    if probabilities and labels_out.suffix == ".npy":
        raise click.UsageError("--probabilities needs a .csv file for --labels-out")
    with in_one_line(ModelFileError):
        estimator = load(model)
    for method in ["predict", *(["predict_proba"] if probabilities else [])]:
        if not hasattr(estimator, method):
            lacking = "predictions for new rows" if method == "predict" else "probabilities"
            raise click.ClickException(f"{estimator.name} has no {lacking}")
    rows = data.rows
    agreed = _copy_of(getattr(estimator, "schema", None), schema)
    if agreed is None:
        table = read_rows(rows, reading, getattr(estimator.client_class, "raw", False))
    else:
        table = _agreed(estimator, agreed, rows, reading)
        estimator = copy(estimator)
        setattr(estimator, "schema", None)  # noqa: B010 - the rows have the agreed form already
    more: dict[str, Any] = {}
    roles = roles_of(innermost(estimator).client_class)
    if table.base_margin is not None and "base_margin" in roles:
        more["base_margin"] = table.base_margin
    with naming(rows):
        labels = estimator.predict(table.X, **more)
        shares = _probabilities(estimator, table.X, **more) if probabilities else {}
        with writing(labels_out):
            write_labels(labels_out, labels, table, shares)


def _copy_of(schema: Schema | None, copy: Path | None) -> Schema | None:
    """Return the schema by which the rows are read: that of the model, or this site's copy of it.

    A copy may say that files are written in another way, such as with decimal commas.
    """
    own = read_schema(copy)
    if own is None:
        return schema
    if schema is None:
        raise click.UsageError("the run of the model had no schema: leave --schema out")
    if own.digest != schema.digest:
        differences = "; ".join(map(printable, own.difference(schema)))
        raise click.ClickException(f"{copy} is no copy of the schema of the model: {differences}")
    return own


def _agreed(estimator: Federated, schema: Schema, data: Rows, options: ReadOptions) -> Table:
    """Return the rows as the model's schema has them; classes and weights are not needed.

    The rows have identifiers if the file contains the primary key.
    """
    protected = is_protected(innermost(estimator))
    check_reading(schema, options)
    with naming(data):
        new = schema.of_new_rows("base_margin")
        table, changes = new.apply(data, protected, sheet=options.sheet)
        if options.ids is not None or schema.identifier in changes.ignored:
            new = schema.of_new_rows("base_margin", "identifier")
            table, changes = new.apply(data, protected, sheet=options.sheet)
    report_changes(data, changes)
    return table


def _probabilities(estimator: Federated, X: Any, **more: Any) -> dict[str, np.ndarray]:
    """Return one column per class, or per component of a mixture."""
    shares = estimator.predict_proba(X, **more)
    classes = getattr(estimator, "classes_", range(shares.shape[1]))
    return {f"probability_{name}": shares[:, i] for i, name in enumerate(classes)}
