"""The server: run the protocol named in the run's configuration."""

import time
import tomllib
from pathlib import Path
from typing import Any

from fedlib.sites import models
from fedlib.sites.site import make_estimator
from fedlib.tables.columns import csv_bytes
from fedlib.tables.files import write_file
from fedlib.transports.flower import FIN, Context, Grid, ServerApp, show_errors_in_one_line

app = ServerApp()
show_errors_in_one_line()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the protocol, print a summary of the messages, and write model and ledger."""
    run: dict[str, Any] = dict(context.run_config)
    estimator = make_estimator(run["protocol"], read_parameters(run["parameters"]))
    schema = getattr(estimator, "schema", None)
    if schema is not None and schema.digest != run["schema-digest"]:
        raise ValueError(
            f"schema-digest must be that of the schema, {schema.digest}; got"
            f" {run['schema-digest']!r}"
        )
    folder = Path(run["output"]) if run["output"] else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    fin = FIN(
        estimator,
        n_clients=run["n-clients"],
        min_clients=run["min-clients"] or None,
        join_timeout=run["join-timeout"],
    )
    start = time.perf_counter()
    result = fin.start(grid, timeout=run["request-timeout"])
    exchanges, seconds = len(result.train_metrics_clientapp), time.perf_counter() - start
    print(f"{exchanges} exchanges in {seconds:.2f} s")
    print(result.ledger.summary().to_string(index=False))
    for client, why in result.ledger.lost.items():
        print(f"client {client} was lost: {why}")
    if folder:
        models.save(estimator, folder / "model.npz")
        write_file(folder / "ledger.csv", csv_bytes(result.ledger.to_frame()))


def read_parameters(text: str) -> dict[str, Any]:
    """Return the parameters of the protocol in the run's configuration."""
    try:
        given: dict[str, Any] = tomllib.loads(f"given = {{{text}}}")["given"]
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f'parameters must be like "eps = 0.3, min_samples = 5", got {text!r}: {error}'
        ) from error
    return given
