"""The kernels that pack sums give the bytes of the same steps on whole arrays."""

import numpy as np
import pytest

from fedlib.boosting.packing import PackedHistograms, pack, unpack

RNG = np.random.default_rng(0)


def pack_arrays(sums):
    """Return the fields of packed histograms, computed on whole arrays."""
    filled = (sums != 0).any(axis=2)
    values = sums[filled].ravel()
    used = int(np.bitwise_or.reduce(values)) if len(values) else 0
    shift = (used & -used).bit_length() - 1 if used else 0
    values = values >> shift
    largest = max(int(values.max(initial=0)), -int(values.min(initial=0)) - 1)
    width = max(1, (largest.bit_length() + 8) // 8)
    as_bytes = values.astype("<i8").view(np.uint8).reshape(-1, 8)
    return shift, width, np.packbits(filled.ravel()), as_bytes[:, :width].T.ravel()


def unpack_arrays(packed, n_nodes, n_bins):
    """Return the sums of packed histograms, computed on whole arrays."""
    filled = np.unpackbits(packed.filled, count=n_nodes * n_bins).astype(bool)
    as_bytes = np.zeros((2 * filled.sum(), 8), np.uint8)
    as_bytes[:, : packed.width] = packed.planes.reshape(packed.width, -1).T
    unused = 8 * (8 - packed.width)
    values = (as_bytes.view("<i8").ravel() << unused) >> unused
    sums = np.zeros((n_nodes * n_bins, 2), np.int64)
    sums[filled] = (values << packed.shift).reshape(-1, 2)
    return sums.reshape(n_nodes, n_bins, 2)


@pytest.mark.parametrize("shape", [(0, 5, 2), (1, 1, 2), (3, 7, 2), (4, 64, 2)])
@pytest.mark.parametrize("bits", [0, 7, 8, 15, 16, 31, 47, 62])
@pytest.mark.parametrize("shift", [0, 5, 40])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_packed_sums_are_those_of_whole_arrays(shape, bits, shift, density):
    largest = 2 ** max(bits - shift, 0)
    sums = RNG.integers(-largest, largest, shape, endpoint=True) << min(shift, bits)
    sums *= RNG.random((*shape[:2], 1)) < density
    packed = pack(sums, 0.0)
    *numbers, filled, planes = pack_arrays(sums)
    assert [packed.shift, packed.width] == numbers
    assert (packed.filled.tobytes(), packed.planes.tobytes()) == (
        filled.tobytes(),
        planes.tobytes(),
    )
    np.testing.assert_array_equal(unpack(packed, *shape[:2]).sums, sums)


@pytest.mark.parametrize("width", range(1, 9))
def test_any_bytes_give_the_sums_of_whole_arrays(width):
    """Also bytes that no site with our code sends: bits beyond the last bin, and any sums."""
    filled = RNG.integers(0, 256, 5, np.uint8)
    n_values = 2 * int(np.unpackbits(filled, count=39).sum())
    planes = RNG.integers(0, 256, width * n_values, np.uint8)
    packed = PackedHistograms(shift=0, width=width, filled=filled, planes=planes, loss=0.0)
    np.testing.assert_array_equal(unpack(packed, 3, 13).sums, unpack_arrays(packed, 3, 13))
