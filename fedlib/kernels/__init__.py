"""Compiled inner loops on arrays.

The functions here do not check their arguments; their callers do. Arrays that belong together are
passed as one named tuple. Every function is single-threaded and releases the global interpreter
lock, so that several clients can compute at the same time in threads and a thread that sends signs
of life is not blocked.
"""

from numba import njit

kernel = njit(nogil=True, cache=True)

# For sums whose order compilers may choose, so that they are computed in vector registers. Their
# last bits depend on the processor.
reordering_kernel = njit(nogil=True, cache=True, fastmath={"contract", "reassoc"})
