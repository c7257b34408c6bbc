"""FIN: a Flower strategy that runs any flow; and what Flower's log shows of an error."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass, field
from typing import Any, cast

from flwr.app import MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedlib.core.ledger import Ledger
from fedlib.core.protocol import Flow, TooFewClients, run
from fedlib.core.wording import printable
from fedlib.transports.flower.transport import Flower

logger = logging.getLogger(__name__)


@dataclass(repr=False)
class FINResult(Result):
    """The result of a run under `FIN`: Flower's result with the model and the ledger.

    Attributes
    ----------
    model : object
        The fitted estimator, or the model that the flow returned.
    ledger : Ledger
        The ledger of the run.
    train_metrics_clientapp : dict of int to MetricRecord
        For each step of the flow, the count of messages and of bytes that were sent.
    """

    model: Any = None
    ledger: Ledger = field(default_factory=Ledger)


class FIN(Strategy):
    """A Flower strategy that runs a flow until it returns.

    The flow decides which requests to send, to which clients, and how often. There are no rounds:
    Flower's `configure_train`, `aggregate_train` and their counterparts for evaluation raise
    TypeError. The run continues without a lost node as long as ``min_clients`` remain.

    Parameters
    ----------
    protocol : estimator or flow
        An estimator of this package, which each call of `start` fits again, or a flow (a
        generator), which can run only once.
    n_clients : int
        As in `Flower`.
    min_clients : int, optional
        The count of clients that must remain until the end; by default all.
    join_timeout : float, default=600
        As in `Flower`, in seconds.

    Examples
    --------
    The main function of a ServerApp needs only one line:

    >>> from fedlib import HorizontalDBSCAN
    >>> from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
    >>> from fedlib.transports.flower import LocalFlowerGrid, client_app
    >>> def main(grid, context):
    ...     return FIN(HorizontalDBSCAN(cell_size=1.0, min_samples=2), n_clients=1).start(grid)
    >>> app = client_app(lambda context: HorizontalDBSCANClient([[0.1], [0.2], [5.0]]))
    >>> result = main(LocalFlowerGrid(app, n_nodes=1), context=None)
    >>> result.model.cell_labels_
    array([ 0, -1])
    >>> result.ledger.conversation()
    ['CountCells', 'CellCounts', 'AssignCells', 'Done']
    """

    def __init__(
        self,
        protocol: Any,
        n_clients: int,
        *,
        min_clients: int | None = None,
        join_timeout: float = 600,
    ):
        self.protocol = protocol
        self.n_clients = n_clients
        self.min_clients = min_clients
        self.join_timeout = join_timeout

    def start(self, grid: Grid, *, timeout: float = 3600) -> FINResult:  # type: ignore[override]
        """Run the protocol on a grid and return its result.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
        timeout : float, default=3600
            The time, in seconds, within which a node must answer one request; positive.

        Raises
        ------
        ValueError
            When the flow has already been started, or for the reasons listed in
            `fedlib.core.protocol.run` and `Flower`.
        TooFewClients
            When fewer than ``min_clients`` remain.
        """
        flow: Flow[Any] = self.protocol
        if inspect.isgenerator(flow) and inspect.getgeneratorstate(flow) != inspect.GEN_CREATED:
            raise ValueError("the flow has already been started; each start needs a new flow")
        self.summary()
        transport = Flower(
            grid,
            self.n_clients,
            join_timeout=self.join_timeout,
            request_timeout=timeout,
            schema=getattr(self.protocol, "schema", None),
        )
        if hasattr(self.protocol, "fit"):
            model = self.protocol.fit(transport, min_clients=self.min_clients)
            ledger: Ledger = model.ledger_
        else:
            ledger = Ledger()
            model = run(flow, transport, min_clients=self.min_clients, ledger=ledger)
        return FINResult(train_metrics_clientapp=_metrics(ledger), model=model, ledger=ledger)

    def summary(self) -> None:
        """Log which protocol is about to run, and with how many clients."""
        logger.info("FIN runs %r with %d clients", self.protocol, self.n_clients)

    def _no_rounds(self, *_: Any, **__: Any) -> Any:
        raise TypeError("FIN has no rounds: call start, which runs the flow to its end")

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _no_rounds


def _metrics(ledger: Ledger) -> dict[int, MetricRecord]:
    """Return the count of messages and of bytes per step."""
    metrics: dict[int, MetricRecord] = {}
    for entry in ledger:
        step = metrics.setdefault(entry.step, MetricRecord({"messages": 0, "bytes": 0}))
        step["messages"] = cast(int, step["messages"]) + 1
        step["bytes"] = cast(int, step["bytes"]) + entry.bytes
    return metrics


class OneLineErrors(logging.Filter):
    """Replaces the traceback of an error that the user can repair by its text."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten the record; return True, since every record is shown."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ValueError | TooFewClients):
            text = f"{record.getMessage()}: {printable(str(error))}"
            record.msg, record.args, record.exc_info = "%s", (text,), None
        return True


def show_errors_in_one_line() -> None:
    """Let Flower's log show a mistake in the configuration of a run as one line.

    This holds for every ValueError, such as an unknown parameter of a protocol, and for
    `TooFewClients`. Other errors keep their traceback.

    Examples
    --------
    >>> show_errors_in_one_line()
    """
    logger = logging.getLogger("flwr")
    if not any(isinstance(known, OneLineErrors) for known in logger.filters):
        logger.addFilter(OneLineErrors())
