"""A site: its data, its client for the protocol of the run, and its labels.

The configuration of the site's node describes the site:

- ``data`` is the file with its rows. ``columns``, ``target``, ``sample_weight``, ``base_margin``
  and ``ids`` are names of columns in it. The other fields of
  `fedlib.tables.streams.ReadOptions`, such as ``separator`` and ``text``, say how it is
  written.
- ``schema`` is the site's copy of the schema of the study (JSON), by which the columns are read.
  Its digest must be the ``schema-digest`` of the run.
- ``labels`` is the file to which the clusters of its rows are written.
- ``protocol`` is the only protocol to which the site agrees.
- ``policy`` is the file (TOML) with the rules about what may leave the site.
- ``ledger`` is the file to which the messages to and from the site are written.
- ``secure-key`` is the file with the site's private key, and ``public-keys`` that with the keys of
  all sites; the sites' names are their partition-ids. The site then sends data only as terms of
  secure sums.
- ``passive=true`` makes it receive the result and share nothing.
- ``client-NAME`` is the argument NAME of the protocol's client. For a secret, it is the file that
  contains the secret.
- ``demo=true`` replaces ``data``: the site gets a part of the run's demonstration data set. It is
  the default in Flower's simulation, which has no configuration per node.

What the site remembers about its rows over all runs, such as a spent budget, is in the folder
``$FEDLIB_STATE`` of the node, by default ``~/.local/state/fedlib``.

Any other key is an error, so that misspelt keys are reported.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedlib import datasets
from fedlib.core.client import Client
from fedlib.core.site_memory import TableMemory
from fedlib.datasets.partition import split_columns, split_rows
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.secure import Identity
from fedlib.sites import site
from fedlib.tables.columns import csv_bytes
from fedlib.tables.files import Table, read_table, write_file, write_labels
from fedlib.tables.schema import Schema
from fedlib.tables.schema.schema import check_options, check_same
from fedlib.tables.streams import ReadOptions
from fedlib.transports.flower import Context, client_app

READING = tuple(field.name for field in fields(ReadOptions))
NUMBERS = ("partition-id", "num-partitions")  # Flower's simulation sets both, and nothing else
FILES = {"data", "labels", "schema", "policy", "ledger", "secure-key", "public-keys"}
KNOWN = {*NUMBERS, *READING, *FILES, "protocol", "passive", "demo"}
CLIENT = "client-"


def make_client(context: Context) -> Client:
    """Return the site's client for the protocol of the run, guarded by the site's rules."""
    config, protocol = configuration(context), str(context.run_config["protocol"])
    policy = Policy.read(config["policy"]) if "policy" in config else None
    identity = None
    if "secure-key" in config:
        identity = Identity.read(config["secure-key"], config.get("public-keys"))
    client = site.make_client(
        protocol,
        read(context),
        client_options(config),
        agreed=config.get("protocol"),
        identity=identity,
        memory=memory_of(config),
    )
    return GuardedClient(client, policy, protocol) if policy or "ledger" in config else client


def memory_of(config: Mapping[str, Any]) -> TableMemory | None:
    """Return what the site remembers about its rows over all runs; None for a demonstration."""
    if "data" not in config:
        return None
    key = config.get("secure-key")
    return TableMemory.of_file(Path(config["data"]), None if key is None else Path(key))


def configuration(context: Context) -> dict[str, Any]:
    """Return the node's configuration. Raises ValueError if it has an unknown key."""
    config = dict(context.node_config)
    unknown = [name for name in config if name not in KNOWN and not name.startswith(CLIENT)]
    if unknown:
        known = ", ".join([*sorted(KNOWN), f"{CLIENT}…"])
        raise ValueError(f"node-config must have only the keys {known}; got {', '.join(unknown)}")
    return config


def client_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the additional arguments of the protocol's client."""
    return {
        name.removeprefix(CLIENT).replace("-", "_"): value
        for name, value in config.items()
        if name.startswith(CLIENT)
    }


def read(context: Context) -> Table:
    """Return the rows in the site's file, or the site's part of the demonstration data set."""
    config = configuration(context)
    demo = config.get("demo", config.keys() == set(NUMBERS))
    if not isinstance(demo, bool) or demo == ("data" in config):
        raise ValueError(
            'node-config must have either data="FILE" or demo=true;'
            f" got data={config.get('data')!r}, demo={demo!r}"
        )
    if not demo:
        schema = Schema.read(config["schema"]) if "schema" in config else None
        check_same(schema, str(context.run_config["schema-digest"]))
        options: dict[str, Any] = {name: config[name] for name in READING if name in config}
        if schema is not None:
            protected = "secure-key" in config or "epsilon" in str(context.run_config["parameters"])
            check_options(schema, ReadOptions(**options))
            return schema.apply(Path(config["data"]), protected, sheet=options.get("sheet"))[0]
        raw = site.takes_raw_tables(str(context.run_config["protocol"]))
        return read_table(Path(config["data"]), raw=raw, **options)
    run: dict[str, Any] = dict(context.run_config)
    data, partition = datasets.load(run["dataset"]), config["partition-id"]
    if run["split"] == "columns":
        features = split_columns(data.X, run["n-clients"])[partition]
        return Table(data.X[:, features], data.y)
    rows = split_rows(data.X, run["n-clients"], data.y, random_state=0)[partition]
    return Table(data.X[rows], data.y[rows])


def keep_results(client: Client, context: Context) -> None:
    """Write the labels of the site's rows, once they are known, and the site's ledger."""
    config = configuration(context)
    if "ledger" in config and isinstance(client, GuardedClient):
        write_file(Path(config["ledger"]), csv_bytes(client.ledger.to_frame()), mode=0o600)
    if "labels" in config and hasattr(client.state, "labels"):
        write_labels(Path(config["labels"]), client.state.labels, read(context))


app = client_app(make_client, after=keep_results)
