"""A site: its data, its client of the protocol that the run names, and its labels.

What a site says of itself is in its node's configuration: ``data`` is the file with its rows,
``target``, ``sample_weight``, ``ids`` and ``columns`` name columns of it, ``labels`` is the file
for the clusters of its rows, ``protocol`` the only one that it agrees to, ``passive=true`` makes it
share nothing, and ``client-…`` is an argument of the protocol's client: of a secret, the file that
holds it. Without a file, ``demo=true`` gives it a share of the run's data set. Anything else there
is an error, so that no slip of the pen goes unseen.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedlib  # noqa: F401  knows all protocols
from fedlib import datasets
from fedlib.cli import main as cli
from fedlib.files import Table, read_table, write_labels
from fedlib.partition import split_columns, split_rows
from fedlib.protocol import Client
from fedlib.transports.flower import Context, client_app

COLUMNS = ("columns", "target", "sample_weight", "ids")
NUMBERS = ("partition-id", "num-partitions")  # the second one by Flower's custom
KNOWN = {*NUMBERS, "data", *COLUMNS, "labels", "protocol", "passive", "demo"}
OWN = "client-"


def make_client(context: Context) -> Client:
    """Return the site's client of the protocol that the run names."""
    site = configuration(context)
    protocol = str(context.run_config["protocol"])
    return cli.make_client(
        protocol, site.get("protocol"), read(context), arguments(site), passive=False
    )


def configuration(context: Context) -> dict[str, Any]:
    """Return the node's configuration; ValueError where it holds what nobody asks for."""
    site = dict(context.node_config)
    strangers = [name for name in site if name not in KNOWN and not name.startswith(OWN)]
    if strangers:
        known = ", ".join([*sorted(KNOWN), f"{OWN}…"])
        raise ValueError(f"node-config has {', '.join(strangers)}; it may have {known}")
    return site


def arguments(site: Mapping[str, Any]) -> dict[str, Any]:
    """Return the further arguments of the protocol's client, secrets read from their files."""
    options = cli.client_options()
    given = {
        name.removeprefix(OWN).replace("-", "_"): value
        for name, value in site.items()
        if name.startswith(OWN)
    }
    secrets = [name for name in given if name in options and options[name].type is cli.EXISTING]
    return given | {name: Path(given[name]).read_bytes() for name in secrets}


def read(context: Context) -> Table:
    """Return the site's rows: its file's, or its share of a data set to try things out with."""
    site = configuration(context)
    demo = site.get("demo", False)
    if not isinstance(demo, bool) or demo == ("data" in site):
        raise ValueError(
            'node-config must have data="FILE", the site\'s own, or demo=true, and not both;'
            f" got data={site.get('data')!r}, demo={demo!r}"
        )
    if not demo:
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
    site = configuration(context)
    if "labels" in site and hasattr(client.state, "labels"):
        write_labels(Path(site["labels"]), client.state.labels, read(context))


app = client_app(make_client, after=keep_labels)
