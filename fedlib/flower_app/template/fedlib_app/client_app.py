"""A site: its data, its client of the protocol that the run names, and its labels.

What a site says of itself is in its node's configuration: ``data`` is the file with its rows,
``target``, ``sample_weight``, ``ids`` and ``columns`` name columns of it, ``labels`` is the file
for the clusters of its rows, ``protocol`` the only one that it agrees to, ``passive=true`` makes it
share nothing, and ``client-…`` is an argument of the protocol's client.
"""

from pathlib import Path
from typing import Any

import fedlib  # noqa: F401  knows all protocols
from fedlib import cli, datasets
from fedlib.partition import split_columns, split_rows
from fedlib.protocol import Client
from fedlib.tables import Table, read_table, write_labels
from fedlib.transports.flower import Context, client_app

COLUMNS = ("columns", "target", "sample_weight", "ids")


def make_client(context: Context) -> Client:
    """Return the site's client of the protocol that the run names."""
    site: dict[str, Any] = dict(context.node_config)
    own = {
        name.removeprefix("client-"): value
        for name, value in site.items()
        if name.startswith("client-")
    }
    protocol = str(context.run_config["protocol"])
    return cli.make_client(protocol, site.get("protocol"), read(context), own, passive=False)


def read(context: Context) -> Table:
    """Return the site's rows: its file's, or its share of a data set to try things out with."""
    site: dict[str, Any] = dict(context.node_config)
    if "data" in site:
        named: dict[str, Any] = {name: site.get(name) for name in COLUMNS}
        return read_table(Path(site["data"]), **named)
    run: dict[str, Any] = dict(context.run_config)
    data, share = datasets.load(run["dataset"]), site["partition-id"]
    if run["split"] == "columns":
        columns = split_columns(data.X, run["n-clients"])[share]
        return Table(data.X[:, columns], data.y)
    rows = split_rows(data.X, run["n-clients"], data.y, random_state=0)[share]
    return Table(data.X[rows], data.y[rows])


def keep_labels(client: Client, context: Context) -> None:
    """Write the labels of the site's rows where its configuration says, once they are known."""
    site: dict[str, Any] = dict(context.node_config)
    if "labels" in site and hasattr(client.state, "labels"):
        write_labels(Path(site["labels"]), client.state.labels, read(context))


app = client_app(make_client, after=keep_labels)
