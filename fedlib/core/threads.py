"""Numbers of threads: one for BLAS and OpenMP, so that no sum depends on the count of cores."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import ContextDecorator
from functools import lru_cache
from numbers import Integral
from typing import Any

from threadpoolctl import OpenBLASController, ThreadpoolController

Limits = list[tuple[Any, int]]  # pairs of a loaded library and a count of threads


class _Local(threading.local):
    depth = 0  # of the blocks in which the thread is
    openmp_before: Limits  # which the outermost block found


_local = _Local()
_lock = threading.Lock()
_blas_users = 0  # threads inside `one_thread`; changed only with the lock
_blas_before: Limits = []  # the limits that the first of them found


class one_thread(ContextDecorator):  # noqa: N801, as it is used like a function
    """Limit BLAS and OpenMP to one thread while a block or a decorated function runs.

    OpenMP's limit belongs to the calling thread. The limit of BLAS belongs to the process, so it is
    restored when the last thread leaves its block. A block inside another one changes nothing.

    Examples
    --------
    >>> import numpy as np
    >>> with one_thread():
    ...     product = np.eye(2) @ np.ones((2, 2))
    """

    def __enter__(self) -> None:
        if _local.depth == 0:
            _begin()
        _local.depth += 1

    def __exit__(self, *error: object) -> None:
        _local.depth -= 1
        if _local.depth == 0:
            _end()


def _begin() -> None:
    """Set the limits, when a thread enters its outermost block."""
    global _blas_users, _blas_before
    _local.openmp_before = _limit("openmp")
    with _lock:
        _blas_users += 1
        if _blas_users == 1:
            _blas_before = _limit("blas")


def _end() -> None:
    """Restore the limits, when a thread leaves its outermost block."""
    global _blas_users
    with _lock:
        _blas_users -= 1
        if _blas_users == 0:
            _set(_blas_before)
    _set(_local.openmp_before)


def _limit(kind: str) -> Limits:
    """Limit these libraries to one thread; return the previous limits of those that had others."""
    libraries = _loaded_libraries(kind, len(sys.modules))
    before = [(library, n) for library in libraries if (n := library.get_num_threads()) != 1]
    _set([(library, 1) for library, _ in before])
    return before


@lru_cache(maxsize=2)
def _loaded_libraries(kind: str, n_modules: int) -> list[Any]:
    """Return the loaded libraries of a kind; search again only after new imports."""
    return list(ThreadpoolController().select(user_api=kind).lib_controllers)


def _set(limits: Limits) -> None:
    if not limits:
        return
    # OpenBLAS obeys only the first thread that called it, until that thread gives up control.
    OpenBLASController.clear_controlling_thread(force=True)
    for library, n_threads in limits:
        library.set_num_threads(n_threads)
    OpenBLASController.clear_controlling_thread(force=True)


def check_n_jobs(n_jobs: int | None) -> int:
    """Return the count of threads.

    Parameters
    ----------
    n_jobs : int or None
        At least 1, or -1 for one thread per core; None means 1.

    Raises
    ------
    ValueError
        When it is another value.

    Examples
    --------
    >>> check_n_jobs(None), check_n_jobs(3)
    (1, 3)
    """
    if n_jobs is None:
        return 1
    if not isinstance(n_jobs, Integral) or not (n_jobs == -1 or int(n_jobs) >= 1):
        raise ValueError(f"n_jobs must be -1 or an integer of at least 1, got {n_jobs!r}")
    return os.cpu_count() or 1 if n_jobs == -1 else int(n_jobs)
