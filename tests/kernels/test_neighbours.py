"""The kernels of vertical DBSCAN: finding, packing and reading blocks of later neighbours."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.cluster import DBSCAN

from fedlib.kernels import neighbours as kernels


def matrix_of(bits, n, first):
    """Return a block as a boolean matrix with all n columns."""
    wide = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")
    assert not wide[:, n:].any()
    return wide[:, :n].astype(bool)


def later(near, first, stop):
    """Return the rows first..stop of a relation, restricted to later columns."""
    return np.triu(near, 1)[first:stop]


@st.composite
def blocks(draw):
    """Draw a number of rows, a block of them, and a relation between each row and later ones."""
    n = draw(st.integers(1, 150))
    first = draw(st.integers(0, n - 1))
    stop = draw(st.integers(first + 1, n))
    density = draw(st.sampled_from([0.0, 0.02, 0.3, 1.0]))
    near = np.random.default_rng(draw(st.integers(0, 2**32))).random((n, n)) < density
    expected = later(near, first, stop)
    bits = np.zeros((stop - first, (n + 63) // 64 * 64), bool)
    bits[:, :n] = expected
    return n, first, stop, expected, np.packbits(bits, axis=1, bitorder="little").view(np.uint64)


def as_gaps(bits, first):
    data = np.empty(10 * bits.shape[0] * (64 * bits.shape[1] + 1), np.uint8)
    return data[: kernels.write_gaps(bits, first, data)]


def as_bits(bits, n, first):
    data = np.zeros(kernels.count_bit_bytes(n, first, first + len(bits)), np.uint8)
    kernels.write_bits(bits, n, first, data)
    return data


@given(blocks())
def test_both_forms_preserve_a_block(block):
    """Reading returns the block that was written, in either form."""
    n, first, _, _, bits = block
    for read, data in (
        (kernels.read_gaps, as_gaps(bits, first)),
        (kernels.read_bits, as_bits(bits, n, first)),
    ):
        again = np.zeros_like(bits)
        assert read(data, n, first, again)
        np.testing.assert_array_equal(again, bits)


def test_gaps_by_hand():
    """Row 0 has the later neighbours 1 and 200: gaps 1 and 199, the latter in two bytes, and 0.

    Row 1 has none: only 0.
    """
    bits = np.zeros((2, 4), np.uint64)
    bits[0, 0] = 1 << 1
    bits[0, 3] = 1 << (200 - 192)
    assert as_gaps(bits, 0).tolist() == [1, (199 & 127) | 128, 1, 0, 0]


@given(blocks())
def test_gaps_are_written_only_if_they_fit(block):
    """They are written into exactly enough bytes, and not into one byte less."""
    _, first, *_, bits = block
    size = len(as_gaps(bits, first))
    assert kernels.write_gaps(bits, first, np.empty(size, np.uint8)) == size
    assert kernels.write_gaps(bits, first, np.empty(size - 1, np.uint8)) == -1


@given(blocks(), st.integers(0, 2**32), st.sampled_from([0.0, 0.01, 0.3, 2.0]))
def test_a_sweep_writes_the_gaps_of_the_bits_that_it_fills(block, seed, eps):
    """It writes them into exactly enough bytes, and returns none if it has one byte less."""
    n, first, stop, _, bits = block
    values = np.random.default_rng(seed).random(n).round(2)  # with ties
    order = np.argsort(values)
    windows = kernels.find_windows(values[order], order, eps or 1e-9)
    none = np.full(n, -1)
    kernels.sweep_neighbours(order, windows, none, first, into := np.zeros_like(bits))
    expected = as_gaps(into, first)
    turns = np.argsort(values[first:stop])
    gaps = kernels.sweep_gaps(order, windows, turns, first, len(expected))
    np.testing.assert_array_equal(gaps, expected)
    assert not len(kernels.sweep_gaps(order, windows, turns, first, len(expected) - 1))


@given(blocks())
def test_reading_overwrites_a_block(block):
    """The bits of an earlier block do not remain."""
    n, first, _, _, bits = block
    for read, data in (
        (kernels.read_gaps, as_gaps(bits, first)),
        (kernels.read_bits, as_bits(bits, n, first)),
    ):
        again = np.full_like(bits, 2**64 - 1)
        assert read(data, n, first, again)
        np.testing.assert_array_equal(again, bits)


@given(blocks(), st.data())
def test_a_damaged_block_is_rejected_or_is_another_block(block, data):
    """Bytes of another length are rejected; arbitrary bytes set only bits of later rows."""
    n, first, _, _, bits = block
    gaps = as_gaps(bits, first)
    assert not kernels.read_gaps(gaps[:-1], n, first, np.zeros_like(bits))
    assert not kernels.read_gaps(np.append(gaps, 0).astype(np.uint8), n, first, np.zeros_like(bits))
    packed = as_bits(bits, n, first)
    longer = np.append(packed, 0).astype(np.uint8)
    assert not kernels.read_bits(longer, n, first, np.zeros_like(bits))
    arbitrary = data.draw(hnp.arrays(np.uint8, st.integers(0, 60)))
    for read in (kernels.read_gaps, kernels.read_bits):
        into = np.zeros_like(bits)
        read(arbitrary, n, first, into)
        assert not matrix_of(into, n, first)[:, : first + 1].any()


@pytest.mark.parametrize("data", [[128] * 20, [255] * 9 + [127, 0], [1, 0, 5], []])
def test_invalid_gaps_are_rejected(data):
    """One row out of ten: a number without an end, a huge gap, trailing bytes, no bytes."""
    bits = np.zeros((1, 1), np.uint64)
    assert not kernels.read_gaps(np.array(data, np.uint8), 10, 0, bits)


def test_bits_beyond_the_last_row_are_rejected():
    """Of ten rows, nine are later than row 0, so the tenth bit must not be set."""
    bits = np.zeros((1, 1), np.uint64)
    assert kernels.read_bits(np.array([0, 1], np.uint8), 10, 0, bits)
    assert not kernels.read_bits(np.array([0, 2], np.uint8), 10, 0, bits)


@given(blocks(), st.integers(0, 2**32))
def test_pairs_are_the_bits_set_in_both_blocks(block, seed):
    """Listing pairs returns the rows and columns of the common bits in order."""
    _, first, _, expected, bits = block
    rng = np.random.default_rng(seed)
    kept = rng.integers(0, 2**64, bits.shape, np.uint64)
    others = bits & kept | ~bits & rng.integers(0, 2**64, bits.shape, np.uint64)
    kept = np.unpackbits(kept.view(np.uint8), axis=1, bitorder="little")[:, : expected.shape[1]]
    counts, leaders, columns = kernels.list_pairs(bits, others, first)
    lists = np.split(columns, np.cumsum(counts)[:-1])
    for row, leader in enumerate(leaders - first):
        listed = lists[leader][lists[leader] > first + row]
        np.testing.assert_array_equal(listed, np.flatnonzero(expected[row] & kept[row]))


def test_rows_with_the_same_neighbours_are_listed_once():
    """Two places in turns, in two blocks: each block has a list for each place.

    Row 6 has a neighbour less at the other client, so that it cannot share the list.
    """
    near = np.tile(np.eye(2, dtype=bool), (5, 5))
    bits = np.zeros((10, 64), bool)
    bits[:, :10] = np.triu(near, 1)
    bits = np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
    counts, leaders, columns = kernels.list_pairs(bits[:5], bits[:5], 0)
    assert counts.tolist() == [4, 4, 0, 0, 0]
    assert leaders.tolist() == [0, 1, 0, 1, 0]
    assert columns.tolist() == [2, 4, 6, 8, 3, 5, 7, 9]
    others = bits[5:].copy()
    others[1] = 0
    counts, leaders, columns = kernels.list_pairs(bits[5:], others, 5)
    assert counts.tolist() == [2, 0, 0, 0, 0]
    assert leaders.tolist() == [5, 6, 5, 8, 5]
    assert columns.tolist() == [7, 9]


@given(
    n=st.integers(1, 60),
    n_places=st.integers(1, 60),
    density=st.sampled_from([0.0, 0.05, 0.15, 0.4]),
    flipped=st.sampled_from([0.0, 0.01]),
    min_samples=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_labels_of_a_graph_are_those_of_dbscan(n, n_places, density, flipped, min_samples, seed):
    """Core rows, border rows and numbering are those of scikit-learn on the same graph.

    Rows at the same place have the same neighbours, except for pairs that are flipped.
    """
    rng = np.random.default_rng(seed)
    places = rng.integers(0, n_places, n)
    near = rng.random((n_places, n_places)) < density
    near = (near | near.T | np.eye(n_places, dtype=bool))[np.ix_(places, places)]
    near = np.triu(near ^ (rng.random((n, n)) < flipped), 1)
    bits = np.packbits(np.pad(near, [(0, 0), (0, 64 - n)]), axis=1, bitorder="little")
    bits = bits.view(np.uint64)
    cut = rng.integers(0, n)
    parts = [kernels.list_pairs(bits[a:b], bits[a:b], a) for a, b in [(0, cut), (cut, n)]]
    counts, leaders, columns = map(np.concatenate, zip(*parts, strict=True))
    start = np.append(0, np.cumsum(counts))
    labels = kernels.label_rows(start, columns, leaders, min_samples)
    apart = 1.0 - (near | near.T | np.eye(n, dtype=bool))
    central = DBSCAN(eps=0.5, min_samples=min_samples, metric="precomputed").fit_predict(apart)
    np.testing.assert_array_equal(labels, central)
