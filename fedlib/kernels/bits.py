"""The bits of a word: how many are set, and the position of the lowest.

They are counted as in H. S. Warren, "Hacker's Delight", 2nd edition, 2012, §5-1. Compilers replace
this by one instruction of the processor.
"""

import numpy as np

from fedlib.kernels import kernel

ONE = np.uint64(1)
PAIRS = np.uint64(0x5555555555555555)  # the even bits
NIBBLES = np.uint64(0x3333333333333333)  # the lower two of every four bits
BYTES = np.uint64(0x0F0F0F0F0F0F0F0F)  # the lower four of every eight bits
SUM_BYTES = np.uint64(0x0101010101010101)  # a product with it has the sum of the bytes on top


@kernel
def count_ones(word):
    """Return the number of bits that are set."""
    pairs = word - ((word >> np.uint64(1)) & PAIRS)
    nibbles = (pairs & NIBBLES) + ((pairs >> np.uint64(2)) & NIBBLES)
    return (((nibbles + (nibbles >> np.uint64(4))) & BYTES) * SUM_BYTES) >> np.uint64(56)


@kernel
def lowest(word):
    """Return the position of the lowest bit that is set, or 64 if there is none."""
    return count_ones(~word & (word - ONE))
