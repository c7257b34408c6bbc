"""Measuring times and memory."""

import time
import tracemalloc


def timed(work, *arguments, n_repeats=1, clock=time.perf_counter, **options):
    """Return the seconds of each call of a function, and the result of the last one.

    Parameters
    ----------
    work : callable
    *arguments, **options
        Of the call.
    n_repeats : int, default=1
    clock : callable, optional
        Such as ``time.process_time``, for the processor time.

    Examples
    --------
    >>> ticks = iter([0.0, 2.0, 5.0, 6.0])
    >>> timed(round, 2.5, n_repeats=2, clock=lambda: next(ticks))
    ([2.0, 1.0], 2)
    """
    seconds = []
    for _ in range(n_repeats):
        start = clock()
        result = work(*arguments, **options)
        seconds.append(clock() - start)
    return seconds, result


def fastest(work, *arguments, **options):
    """Return the seconds of the fastest call; see `timed`."""
    return min(timed(work, *arguments, **options)[0])


def peak_bytes(work, *arguments, **options):
    """Return the most memory that a call has allocated at a time, in bytes.

    Examples
    --------
    >>> peak_bytes(bytes, 10**6) >= 10**6
    True
    """
    tracemalloc.start()
    try:
        work(*arguments, **options)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
