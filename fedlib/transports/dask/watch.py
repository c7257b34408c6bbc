"""Wait for tasks on workers that may disappear."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent import futures
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import distributed
from distributed import CancelledError, Future

from fedlib.transports.dask.progress import Progress

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
