"""Keys have the order of the numbers, and intervals of keys are divided without loss."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from fedlib.tables.summary.messages import HIGHEST, count_keys, from_key, sub_interval, to_keys

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(finite, min_size=1))
def test_keys_have_the_order_of_the_values(values):
    array = np.array(values)
    keys = to_keys(array)
    assert keys[np.argsort(array, kind="stable")].tolist() == sorted(keys.tolist())
    assert [from_key(key) for key in keys.tolist()] == array.tolist()


@example([5], [0, HIGHEST], 1)
@given(
    st.lists(st.integers(0, HIGHEST)),
    st.tuples(st.integers(0, HIGHEST), st.integers(0, HIGHEST)).map(sorted),
    st.integers(1, 300),
)
def test_every_key_of_an_interval_lies_in_the_counted_part(values, interval, n_bins):
    low, high = interval
    counts = count_keys(np.array(values, np.uint64), low, high, n_bins)
    parts = [sub_interval(low, high, n_bins, i) for i in range(n_bins)]
    assert counts.tolist() == [sum(a <= v <= b for v in values) for a, b in parts]
    assert counts.sum() == sum(low <= v <= high for v in values)
