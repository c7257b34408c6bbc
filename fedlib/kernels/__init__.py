"""The hot loops: arrays in, arrays out, nothing else. Callers have validated what they pass.

Every kernel is single-threaded and releases the interpreter lock, so that clients run side by
side in threads and heartbeats go on while one computes.
"""

from numba import njit

kernel = njit(nogil=True, cache=True)
