"""Sums in fewer bytes: without bins that are 0, and with integers as wide as they need to be.

The first bin is the highest bit of the first byte, as in `numpy.packbits`. The bytes of all
integers lie in planes: first the lowest bytes, then the next ones.
"""

import numpy as np

from fedlib.kernels import kernel

N_BYTES = 8  # of an integer


@kernel
def measure_sums(sums):
    """Return which bins of ``sums`` (n, 2) are not 0, and how wide their integers are.

    Returns
    -------
    filled : array (n / 8, rounded up) of uint8
        One bit per bin.
    n_filled : int
        The count of these bins.
    used : int
        The bits that any sum has.
    magnitude : int
        The bits in which any sum differs from its sign. Its highest bit is that of the largest.
    """
    filled = np.zeros((sums.shape[0] + 7) // 8, np.uint8)
    n_filled, used, magnitude = 0, np.int64(0), np.int64(0)
    for i in range(sums.shape[0]):
        first, second = sums[i, 0], sums[i, 1]
        if first | second:
            filled[i >> 3] |= np.uint8(128 >> (i & 7))
            n_filled += 1
            used |= first | second
            magnitude |= (first ^ (first >> 63)) | (second ^ (second >> 63))
    return filled, n_filled, used, magnitude


@kernel
def pack_sums(sums, n_filled, shift, width):
    """Return the planes of the integers in ``sums`` (n, 2) that are in bins other than 0.

    The planes have 2 * ``n_filled`` bytes each. An integer loses its lowest ``shift`` bits, and
    keeps the lowest ``width`` bytes of the others.
    """
    planes, j = np.empty((width, 2 * n_filled), np.uint8), 0
    for i in range(sums.shape[0]):
        if sums[i, 0] | sums[i, 1]:
            first, second = sums[i, 0] >> shift, sums[i, 1] >> shift
            for k in range(width):
                planes[k, j] = np.uint8(first & 255)
                planes[k, j + 1] = np.uint8(second & 255)
                first, second = first >> 8, second >> 8
            j += 2
    return planes


@kernel
def count_filled(filled, n):
    """Return how many of the first ``n`` bits are set."""
    n_filled = 0
    for i in range(n):
        if (filled[i >> 3] >> (7 - (i & 7))) & 1:
            n_filled += 1
    return n_filled


@kernel
def unpack_sums(filled, planes, shift, sums):
    """Write the ``sums`` (n, 2), which are 0 before; return the largest magnitude before the shift.

    ``planes`` (width, 2 * n_filled) are those of `pack_sums`. The sums are right if the magnitude,
    a float, times 2**shift is less than 2**63.
    """
    largest, j = 0.0, 0
    unused = 8 * (N_BYTES - planes.shape[0])
    for i in range(sums.shape[0]):
        if (filled[i >> 3] >> (7 - (i & 7))) & 1:
            for side in range(2):
                value = np.int64(0)
                for k in range(planes.shape[0]):
                    value |= np.int64(planes[k, j]) << (8 * k)
                value = (value << unused) >> unused  # with the sign
                largest = max(largest, abs(np.float64(value)))
                sums[i, side] = value << shift
                j += 1
    return largest
