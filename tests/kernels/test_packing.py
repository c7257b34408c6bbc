"""The kernels that pack and add sums give the results of the same steps on whole arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib.kernels.histograms import add_dense, add_histograms
from fedlib.kernels.packing import BLOCK, Packed, add_packed

from ..boosting.common import pack_rows, pack_sums

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
    bits = np.packbits(filled.ravel(), bitorder="little")
    return shift, width, bits, as_bytes[:, :width].ravel()


def unpack_arrays(filled, values, width, shift, n_nodes, n_bins):
    """Return the sums of packed histograms, computed on whole arrays."""
    filled = np.unpackbits(filled, count=n_nodes * n_bins, bitorder="little").astype(bool)
    as_bytes = np.zeros((2 * filled.sum(), 8), np.uint8)
    as_bytes[:, :width] = values.reshape(-1, width)
    unused = 8 * (8 - width)
    integers = (as_bytes.view("<i8").ravel() << unused) >> unused
    sums = np.zeros((n_nodes * n_bins, 2), np.int64)
    sums[filled] = (integers << shift).reshape(-1, 2)
    return sums.reshape(n_nodes, n_bins, 2)


def add_up(replies, offsets, n_nodes):
    """Return the sums of packed histograms and what is measured; a reply is a tuple of fields."""
    shift, width, filled, values = zip(*replies, strict=True)
    first = np.append(0, np.cumsum([len(v) for v in values]))[:-1]
    packed = Packed(
        np.stack(filled), np.concatenate(values), first, np.array(width), np.array(shift)
    )
    sums = np.zeros((n_nodes, offsets[-1], 2), np.int64)
    return sums, *add_packed(packed, np.arange(n_nodes), offsets, sums)


@pytest.mark.parametrize("shape", [(0, 5, 2), (1, 1, 2), (3, 7, 2), (4, 64, 2), (2, 130, 2)])
@pytest.mark.parametrize("bits", [0, 7, 8, 15, 16, 31, 47, 62])
@pytest.mark.parametrize("shift", [0, 5, 40])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_packed_sums_are_those_of_whole_arrays(shape, bits, shift, density):
    largest = 2 ** max(bits - shift, 0)
    sums = RNG.integers(-largest, largest, shape, endpoint=True) << min(shift, bits)
    sums *= RNG.random((*shape[:2], 1)) < density
    packed = pack_sums(sums)
    *numbers, filled, values = pack_arrays(sums)
    assert [packed.shift, packed.width] == numbers
    assert packed.filled.tobytes() == filled.tobytes()
    assert packed.values.tobytes() == values.tobytes()
    fields = packed.shift, packed.width, packed.filled, packed.values
    added, totals, _, extremes = add_up([fields], np.array([0, shape[1]]), shape[0])
    np.testing.assert_array_equal(added, sums)
    np.testing.assert_array_equal(totals[0], sums.sum(axis=1))
    g, h = sums[..., 0], sums[..., 1]
    found = [g.min(initial=0), g.max(initial=0), h.min(initial=0), h.max(initial=0)]
    np.testing.assert_array_equal(extremes[0] << packed.shift, found)


@pytest.mark.parametrize("width", range(1, 9))
def test_any_bytes_give_the_sums_of_whole_arrays(width):
    """Also bytes that no site with our code sends: bits beyond the last bin, and any sums."""
    filled = RNG.integers(0, 256, 5, np.uint8)
    n_values = 2 * int(np.unpackbits(filled, count=39, bitorder="little").sum())
    values = RNG.integers(0, 256, width * n_values, np.uint8)
    sums = add_up([(0, width, filled, values)], np.array([0, 5, 13]), 3)[0]
    np.testing.assert_array_equal(sums, unpack_arrays(filled, values, width, 0, 3, 13))


@st.composite
def rows_of_clients(draw):
    """Return rows in bins and nodes, few or many, whose features fill one block or several."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = draw(
        st.lists(st.sampled_from([1, 2, 9, 70, BLOCK // 2, BLOCK + 1]), min_size=1, max_size=6)
    )
    offsets = np.append(0, np.cumsum(sizes))
    n_nodes, n_outputs = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    clients = []
    for n in draw(st.lists(st.sampled_from([0, 1, 7, 300]), min_size=1, max_size=3)):
        bins = (rng.random((n, len(sizes))) * sizes).astype(np.int64) + offsets[:-1]
        nodes = rng.integers(0, n_nodes + 1, (n_outputs, n)).astype(np.int32)
        gradients = rng.integers(-2, 3, (n_outputs, n, 2)) << draw(st.integers(0, 30))
        clients.append((bins.astype(np.uint16), nodes, gradients))
    return offsets, n_nodes, clients


@given(rows_of_clients())
def test_packed_rows_add_up_to_dense_histograms(case):
    """Sums that cancel out are left out, as are the rows in no node that is wanted."""
    offsets, n_nodes, clients = case
    replies, expected = [], np.zeros((n_nodes, offsets[-1], 2), np.int64)
    measured = []
    for bins, nodes, gradients in clients:
        packed = pack_rows(bins, nodes, gradients, offsets, n_nodes)
        replies.append((packed.shift, packed.width, packed.filled, packed.values))
        dense = np.zeros_like(expected)
        for k, of_output in enumerate(nodes):
            slot = np.where(of_output < n_nodes, of_output, -1).astype(np.int32)
            add_histograms(bins, slot, gradients[k], dense, False)
        for found, computed in zip(replies[-1], pack_arrays(dense), strict=True):
            np.testing.assert_array_equal(found, computed)
        measured.append(add_dense(dense, np.arange(n_nodes), offsets, expected))
    sums, totals, are_equal, extremes = add_up(replies, offsets, n_nodes)
    np.testing.assert_array_equal(sums, expected)
    for c, (of_client, is_equal, found) in enumerate(measured):
        np.testing.assert_array_equal(totals[c], of_client)
        assert is_equal  # each row is in one bin of each feature
        assert are_equal[c]
        np.testing.assert_array_equal(extremes[c] << replies[c][0], found)


def test_features_with_different_sums_are_noticed():
    """And only at the client that has them."""
    offsets = np.array([0, 2, 4])
    right = np.array([[[1, 2], [3, 4], [4, 6], [0, 0]]])
    fields = [pack_arrays(right)]
    for b, k in np.ndindex(right.shape[1:]):
        wrong = right.copy()
        wrong[0, b, k] += 1
        are_equal = add_up([*fields, pack_arrays(wrong), *fields], offsets, 1)[2]
        assert are_equal.tolist() == [True, False, True]
