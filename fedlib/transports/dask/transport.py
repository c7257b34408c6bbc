"""The transport to the partitions of a data set on a Dask cluster."""

from __future__ import annotations

import copy
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle
from typing import Any, Self, TypeVar

import dask
import distributed
from distributed import CancelledError, Future, LocalCluster
from distributed.utils import is_kernel
from tqdm import tqdm

from fedlib.core.client import Client
from fedlib.core.journal import Place
from fedlib.core.ledger import Ledger
from fedlib.core.messages import Failure, decode, encode
from fedlib.core.parameters import check_option
from fedlib.transports.dask import tasks
from fedlib.transports.dask.tasks import Partitions, Seat, Sent, gather_labels, is_delayed


class Progress:
    """A progress bar: that of ``distributed`` in a notebook, that of tqdm elsewhere.

    Parameters
    ----------
    title : str or None
        None for no progress bar.
    futures : sequence of Future
    """

    def __init__(self, title: str | None, futures: Sequence[Future]):
        self._futures = futures
        self._bar: Any = None
        if title is not None and is_kernel():
            distributed.progress(list(futures))
        elif title is not None:
            self._bar = tqdm(total=len(futures), desc=title, unit="partition")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self.update()
            self._bar.close()

    def update(self) -> None:
        """Count the tasks that have ended."""
        if self._bar is not None:
            self._bar.update(sum(future.done() for future in self._futures) - self._bar.n)


POLL = 0.5  # seconds between two looks at the workers

Result = TypeVar("Result")
Tasks = Mapping[tuple[str, ...], Future]  # by the clients that a task is about


class Watch:
    """Waits for the tasks of one step and cancels those that no worker can finish.

    Dask itself waits for a new worker without end.

    Parameters
    ----------
    client : distributed.Client
    homes : mapping of str to str
        The address of the only worker of a client, for clients that have one.
    worker_timeout : float
        The time, in seconds, for which there may be no worker.
    progress : str, optional
        The title of a progress bar; by default there is none.

    Attributes
    ----------
    gone : dict of str to str
        The error of each client whose tasks were cancelled: NoWorker or WorkerLost.
    """

    def __init__(
        self,
        client: distributed.Client,
        homes: Mapping[str, str],
        worker_timeout: float,
        progress: str | None = None,
    ):
        self._client, self._homes, self._worker_timeout = client, homes, worker_timeout
        self._progress = progress
        self.gone: dict[str, str] = {}

    def wait(self, tasks: Tasks) -> None:
        """Wait until each task has ended."""
        with Progress(self._progress, list(tasks.values())) as bar:
            while left := {names: task for names, task in tasks.items() if not task.done()}:
                with suppress(CancelledError):  # of one task; the others go on
                    self._watch(partial(distributed.wait, list(left.values())), left, bar.update)

    def gather(self, tasks: Tasks) -> dict[tuple[str, ...], Any]:
        """Return the results of the tasks that have one."""
        self.wait(tasks)
        results: dict[tuple[str, ...], Any] = {}
        while left := {
            names: task
            for names, task in tasks.items()
            if task.status == "finished" and names not in results
        }:
            with suppress(CancelledError):
                results |= self._watch(partial(self._client.gather, left), left)
        return results

    def _watch(
        self, call: Callable[[], Result], tasks: Tasks, update: Callable[[], object] = lambda: None
    ) -> Result:
        """Return the result of a call that ends when all tasks have ended."""
        last_worker = time.monotonic()
        with futures.ThreadPoolExecutor(1, thread_name_prefix="dask") as pool:
            try:
                called = pool.submit(call)
                while not futures.wait([called], timeout=POLL).done:
                    update()
                    workers = self._client.scheduler_info(n_workers=-1)["workers"]
                    last_worker = time.monotonic() if workers else last_worker
                    if time.monotonic() - last_worker > self._worker_timeout:
                        waiting = [name for names in tasks for name in names]
                        self._give_up(dict.fromkeys(waiting, "NoWorker"), tasks)
                    lost = [name for name, home in self._homes.items() if home not in workers]
                    self._give_up(dict.fromkeys(lost, "WorkerLost"), tasks)
                return called.result()
            except CancelledError:
                raise
            except BaseException:  # such as KeyboardInterrupt: the workers should not continue
                self._client.cancel(list(tasks.values()))
                raise

    def _give_up(self, gone: Mapping[str, str], tasks: Tasks) -> None:
        """Cancel the tasks about these clients."""
        self.gone = {**gone, **self.gone}
        abandoned = [task for names, task in tasks.items() if not gone.keys().isdisjoint(names)]
        if abandoned:
            self._client.cancel(abandoned)


FAN_IN = 16  # replies that one task combines

logger = logging.getLogger(__name__)


class ClientError(RuntimeError):
    """The error of a partition's client on its worker, with the type and the text of that error."""


class Dask:
    """A transport to clients on the workers of a Dask cluster, one client per partition.

    Only messages travel between the workers and this process. The result is the same as in process,
    byte by byte.

    Parameters
    ----------
    partitions : Dask DataFrame or Array, tuple of them, or list
        Each partition is one part of the data. A list contains paths of .parquet and .npy files
        that the workers can read, or functions without arguments that return a part. A tuple, such
        as (X, y), gives parts that are tuples, for protocols with labels; None in it is None in
        each of them.
    client : distributed.Client, optional
        The connection to the cluster; by default the current one or, if there is none, a new
        `LocalCluster` with one worker process per processor, which listens on this machine only
        and which `close` ends.
    keep : {"memory", "reload"}, default="memory"
        ``"memory"``: the data stay in the memory of the workers during the run. ``"reload"``: they
        are read again for each request, so that a worker has one partition per thread at a time.
    lost : {"recompute", "client"}, default="recompute"
        What happens to the partitions of a worker that dies. ``"recompute"``: other workers read
        their data again and repeat the requests that have changed their states. ``"client"``: they
        leave the run, see ``min_clients`` in `fit`; replies are not combined then.
    combine : bool, default=True
        Whether the workers combine replies, if the protocol allows it, so that the server reads one
        reply instead of one per partition. Groups of 16 neighbours are combined, then 16 of the
        results, and so on. The ledger contains the combined reply. Sums of integers are exact,
        so that this does not change the result.
    progress : bool, default=False
        Whether each step shows a progress bar.
    y : Dask DataFrame, Series or Array, or list, optional
        The targets of the rows, for protocols with labels, in as many partitions as the rows:
        ``Dask(X, y=y)`` equals ``Dask((X, y))``.
    worker_timeout : float, default=60
        The time, in seconds, for which the cluster may have no worker; positive. After that, the
        clients that have not answered are lost (NoWorker).

    Attributes
    ----------
    clients : list of str
        The clients' names: "0", "1" and so on, in the order of the partitions.
    client : distributed.Client
        The connection to the cluster.
    errors : mapping of str to exception
        A `ClientError` for each client whose last reply was a failure.
    ledger : Ledger or None
        The ledger of the current run.
    journaled : bool
        Whether the run has a journal.
    combines : bool
        Whether replies may be combined.

    Raises
    ------
    ValueError
        When a parameter is out of range, or the partitions are of another type.

    See Also
    --------
    predict : the labels of other points in a Dask collection.

    Notes
    -----
    *Labels.* After `fit`, ``labels_`` is a Dask Series with the index and the partitions of the
    DataFrame, or a Dask Array for an Array. For files and functions it is a Series whose index
    counts the rows of each partition. ``labels_.to_frame().to_parquet(folder)`` writes it. A lost
    client has no rows in it. The workers keep the labels in the smallest type of integers that
    holds them, until ``labels_`` is deleted.

    *Resilience.* A state is the result of a task that depends on the last state and on the request.
    When a worker dies, Dask repeats these tasks. With a journal, a run continues after a crash of
    this process, too: states are not stored but computed again. The digests that the journal needs
    cost one more pass over the data.

    *Trust.* All partitions belong to one user: the text of an error comes back, and no message is
    encrypted beyond what the cluster does. So `fit` refuses an estimator with ``secure=True``:
    masks would hide the user's data from the user.

    *Cost.* Some milliseconds of the scheduler per partition and request. Partitions of 10 to 100
    MB are a good size.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from distributed import Client
    >>> from fedlib import HorizontalDBSCAN
    >>> X = da.from_array(np.array([[0.1], [0.2], [0.3], [5.0]]), chunks=(2, 1))
    >>> with Client(processes=False, dashboard_address="127.0.0.1:0") as client:
    ...     model = HorizontalDBSCAN(cell_size=1.0, min_samples=2).fit(Dask(X, client=client))
    ...     model.labels_.compute()
    array([ 0,  0,  0, -1])
    """

    def __init__(
        self,
        partitions: Any,
        client: distributed.Client | None = None,
        *,
        keep: str = "memory",
        lost: str = "recompute",
        combine: bool = True,
        progress: bool = False,
        y: Any = None,
        worker_timeout: float = 60,
    ):
        check_option("keep", keep, ("memory", "reload"))
        check_option("lost", lost, ("recompute", "client"))
        if not worker_timeout > 0:
            raise ValueError(f"worker_timeout must be positive, got {worker_timeout}")
        self.partitions = Partitions.of(partitions if y is None else (partitions, y))
        self.clients: Sequence[str] = [str(i) for i in range(len(self.partitions.parts))]
        self.keep, self.lost, self.worker_timeout = keep, lost, worker_timeout
        self.combines = combine and lost == "recompute"
        self.progress = progress
        self._errors: dict[str, BaseException] = {}
        self.errors: Mapping[str, BaseException] = self._errors
        self.ledger: Ledger | None = None
        self.journaled = False
        self._seats: dict[str, Seat] = {}
        self._members: dict[str, Future] = {}
        self._states: dict[str, Future] = {}  # the last answer that has changed the state
        self._n_changes = dict.fromkeys(self.clients, 0)
        self._homes: dict[str, str] = {}  # the address of the only worker of each client
        self._cluster: LocalCluster | None = None
        self.client = client or self._connect()

    def _connect(self) -> distributed.Client:
        """Return the current connection, or a connection to a new cluster on this machine."""
        try:
            return distributed.get_client()
        except ValueError:
            self._cluster = LocalCluster(
                n_workers=os.cpu_count(), threads_per_worker=1, dashboard_address="127.0.0.1:0"
            )
            return distributed.Client(self._cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the data and states on the workers; end the cluster if the transport started it.

        ``labels_`` keeps the labels, unless the cluster ends.
        """
        self._members, self._states = {}, {}
        if self._cluster is not None:
            self.client.close()
            self._cluster.close()

    # A run

    def create_clients(
        self,
        client_class: type[Client],
        options: Sequence[Mapping[str, Any]],
        passive: Collection[int] = (),
    ) -> None:
        """Create the clients of a new run where their data are. `fit` calls it.

        Parameters
        ----------
        client_class : type of Client
        options : sequence of mapping
            Further arguments of the client of each partition.
        passive : collection of int
            The indices of the partitions that share nothing.
        """
        self._seats = {
            name: Seat(name, len(self.clients), client_class, options[i], i in passive)
            for i, name in enumerate(self.clients)
        }
        self._n_changes = dict.fromkeys(self.clients, 0)
        self._states = {}
        self._homes = {}
        if self.lost == "client":
            workers = self.client.scheduler_info(n_workers=-1)["workers"]
            self._homes = dict(zip(self.clients, cycle(workers), strict=False))
        self._members = {}
        if self.keep == "memory":
            self._members = {
                name: self._submit(name, tasks.join, seat, data)
                for (name, seat), data in zip(self._seats.items(), self._data(), strict=True)
            }

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Deliver the requests and return each client's reply, a combined one, or `Failure`."""
        for name in requests:
            self._errors.pop(name, None)
        with _large_requests():
            answers, asked = self._answer(requests)
        sent: dict[tuple[str, ...], Future] = {
            (name,): self._submit(name, tasks.extract, name, answered)
            for name, answered in answers.items()
        }
        watch = Watch(self.client, self._homes, self.worker_timeout, self._title())
        watch.wait(sent)
        if self.combines:
            sent = self._combine(sent, requests, asked)
        found = watch.gather(sent)
        results = [
            found[names] if names in found else _failed(names, future, watch.gone)
            for names, future in sent.items()
        ]
        together: dict[str, bytes] = {}
        for result in results:
            together |= result.all_replies()
            for name in result.changed:
                self._n_changes[name] += 1
                self._states[name] = answers[name]
            for name, text in result.errors.items():
                logger.warning("the client of partition %s failed: %s", name, text)
                self._errors[name] = ClientError(f"partition {name}: {text}")
        return {name: together[name] for name in requests}

    def _answer(self, requests: Mapping[str, bytes]) -> tuple[dict[str, Future], dict[int, Future]]:
        """Submit the tasks of the clients; return them, and each distinct request on the cluster.

        A request is the result of a task and not scattered data, so that it survives the loss of
        a worker.
        """
        if missing := [name for name in requests if name not in self._seats]:
            raise ValueError(f"the clients {missing} do not exist; call create_clients before run")
        distinct = {id(data): data for data in requests.values()}
        asked = {key: self.client.submit(bytes, data, pure=False) for key, data in distinct.items()}
        data = self._members or dict(zip(self.clients, self._data(requests), strict=True))
        answers = {
            name: self._submit(
                name,
                tasks.answer,
                self._seats[name],
                data[name],
                self._states.get(name),
                asked[id(request)],
            )
            for name, request in requests.items()
        }
        return answers, asked

    def _data(self, names: Collection[str] | None = None) -> list[Any]:
        """Return the data of the clients as arguments of tasks; None for one without a name."""
        wanted = self.clients if names is None else names
        parts = [
            part if name in wanted else None
            for name, part in zip(self.clients, self.partitions.parts, strict=True)
        ]
        lazy = [part for part in parts if is_delayed(part)]
        computed = iter(self.client.compute(lazy) if lazy else [])
        return [next(computed) if is_delayed(part) else part for part in parts]

    def _submit(self, name: str, function: Callable[..., Any], *arguments: Any) -> Future:
        """Submit a task of a client, to the worker of that client if it has one."""
        home = self._homes.get(name)
        workers = None if home is None else [home]
        return self.client.submit(function, *arguments, pure=False, workers=workers)

    def _combine(
        self,
        sent: Mapping[tuple[str, ...], Future],
        requests: Mapping[str, bytes],
        asked: Mapping[int, Future],
    ) -> dict[tuple[str, ...], Future]:
        """Submit tasks that combine replies to the same request; return what is left to collect.

        A task without a result is left out: it would make the combined one fail, too.
        """
        client_class = next(iter(self._seats.values())).client_class
        groups: dict[int, dict[tuple[str, ...], Future]] = {}
        for names, future in sent.items():
            groups.setdefault(id(requests[names[0]]), {})[names] = future
        left: dict[tuple[str, ...], Future] = {}
        for key, group in groups.items():
            request = requests[next(iter(group))[0]]
            if decode(request).reply in client_class.combinable:
                good = {names: one for names, one in group.items() if one.status == "finished"}
                left |= self._tree(good, client_class, asked[key])
                group = {names: one for names, one in group.items() if names not in good}
            left |= group
        return left

    def _tree(
        self, group: dict[tuple[str, ...], Future], client_class: type[Client], request: Future
    ) -> dict[tuple[str, ...], Future]:
        """Combine neighbours, then the results, until one is left."""
        while len(group) > 1:
            members = list(group.items())
            group = {}
            for first in range(0, len(members), FAN_IN):
                names, futures = zip(*members[first : first + FAN_IN], strict=True)
                merged = self.client.submit(
                    tasks.combine, client_class, request, list(futures), pure=False
                )
                group[sum(names, ())] = merged
        return group

    def _title(self) -> str | None:
        """Return the title of the progress bar, if there is one."""
        return self.ledger.entries[-1].message if self.progress and self.ledger else None

    # After a run

    def labels(self, read: Callable[[Any], Any], lost: Collection[str] = ()) -> Any:
        """Return the labels of all rows as a lazy Dask Series, or Array if the data are one.

        Parameters
        ----------
        read : callable
            Returns the labels of the rows of one client after a run. It runs on the workers.
        lost : collection of str
            Clients without labels.
        """
        kept = {name: self._states.get(name) for name in self.clients if name not in lost}
        read = copy.deepcopy(read)  # `fit` may change the estimator before the labels are computed
        return gather_labels(self.client, read, self._seats, kept, self.partitions)

    # For a journal

    def data_digests(self) -> dict[str, str]:
        """Return a digest of the data of each client; they cost a pass over the data."""
        data = self._members or dict(zip(self.clients, self._data(), strict=True))
        digests = {
            name: self._submit(name, tasks.digest, seat, data[name])
            for name, seat in self._seats.items()
        }
        found = self.client.gather(digests, errors="skip")
        return {name: found.get(name, "") for name in self.clients}

    def states(self, clients: Collection[str]) -> dict[str, bytes]:
        """Return for each client whose state has changed how often it has.

        The states themselves would fill the journal: labels have one number per row.
        """
        changes = {name: self._n_changes[name] for name in clients}
        return {name: str(n).encode() for name, n in changes.items() if n}

    def repeat(self, requests: Mapping[str, bytes]) -> None:
        """Give the clients again the requests that have changed their states before a crash."""
        if requests:
            with _large_requests():
                answers, _ = self._answer(requests)
            self._states |= answers
            for name in requests:
                self._n_changes[name] += 1

    def resume(self, place: Place) -> None:
        """Do nothing: `repeat` has brought the clients to this place."""


def _failed(names: Sequence[str], future: Future, gone: Mapping[str, str]) -> Sent:
    """Return a `Failure` for each of these clients, whose task has no result."""
    error = future.exception() if future.status == "error" else None
    kinds = {name: gone.get(name, "WorkerLost") for name in names}
    if error is not None:
        kinds = dict.fromkeys(names, type(error).__name__)
    errors = {} if error is None else dict.fromkeys(names, f"{type(error).__name__}: {error}")
    return Sent({name: encode(Failure(kind)) for name, kind in kinds.items()}, errors=errors)


@contextmanager
def _large_requests() -> Iterator[None]:
    """Turn off Dask's warning of large arguments: a request is sent to the scheduler only once."""
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"}):
        yield
