"""The bits of a word."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedlib.kernels import packing as bits


@given(st.integers(0, 2**64 - 1))
def test_bits_of_a_word(word):
    """Python counts the bits, and finds the lowest one, by other means."""
    assert bits.count_ones(np.uint64(word)) == word.bit_count()
    assert bits.lowest(np.uint64(word)) == ((word & -word).bit_length() - 1 if word else 64)
