"""Sums of rounded terms modulo 2**64, for masked sums (`fedlib.protection.secure.fixed_point`)."""

import numpy as np

from fedlib.kernels import kernel

HALF, MODULUS = 2.0**63, 2.0**64


@kernel
def add_units(terms, scales, groups, words):
    """Add what rows add (n, m), in units of 1 / ``scales`` (m,), to sums (k, m) of their groups.

    Each term is rounded to an integer, and is left out if it is not finite. ``words`` of int64 are
    the sums modulo 2**64, and 0 at the start.
    """
    for i in range(terms.shape[0]):
        group = groups[i]
        for j in range(terms.shape[1]):
            units = np.rint(terms[i, j] * scales[j])
            if abs(units) < HALF:
                words[group, j] += np.int64(units)
            elif np.isfinite(units):  # a multiple of 2**11, so the remainder is exact
                rest = np.fmod(units, MODULUS)
                rest -= MODULUS * np.rint(rest / MODULUS)
                words[group, j] += np.int64(rest if rest < HALF else -HALF)
