"""The server: runs the protocol that the run's configuration names."""

import time
import tomllib
from pathlib import Path
from typing import Any

import fedlib  # noqa: F401  knows all protocols
from fedlib.cli import save_model
from fedlib.federated import protocols
from fedlib.transports.flower import FIN, Context, Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    run: dict[str, Any] = dict(context.run_config)
    parameters = tomllib.loads(f"given = {{{run['parameters']}}}")["given"]
    estimator = protocols()[run["protocol"]](**parameters)
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
    if run["output"]:
        folder = Path(run["output"])
        folder.mkdir(parents=True, exist_ok=True)
        save_model(estimator, folder / "model.npz")
        result.ledger.to_frame().to_csv(folder / "ledger.csv", index=False)
