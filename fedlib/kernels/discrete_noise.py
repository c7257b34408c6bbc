"""Exact samples of the discrete Gaussian and of the discrete Laplace distribution.

The samplers use whole numbers only, so a sample has exactly the stated probability. They read
uniform random words from a buffer. If the buffer ends within a sample, the caller passes the words
of this sample again, followed by new ones, so that no value is preferred.

The ``state`` of a buffer has two entries: the index of the next word, and 1 if the buffer has
ended.

Sources: C. F. F. Karney, Sampling exactly from the normal distribution, ACM Transactions on
Mathematical Software 42, 2016 (algorithm D, for a whole standard deviation); C. L. Canonne,
G. Kamath, T. Steinke, The discrete Gaussian for differential privacy, NeurIPS 2020 (algorithms 1
and 2).
"""

import numpy as np

from fedlib.kernels import kernel

MAX_SCALE = 2**40  # so that no product below has more than 63 bits
MAX_STEPS = 2**20  # no value is so many scales away from 0: the probability is below exp(-2**20)
NEXT, ENDED = 0, 1


@kernel
def add_gaussian(values, scale, words, first):
    """Add discrete Gaussian noise to ``values`` (n,) in place, from the entry ``first`` on.

    A value x of the noise has a probability proportional to ``exp(-x**2 / (2 * scale**2))``, for a
    whole ``scale`` in 1..MAX_SCALE. An entry uses about 20 of the ``words`` (n_words,).

    Returns the number of entries that have their noise, and the number of words used for them.
    """
    state = np.zeros(2, np.int64)
    for i in range(first, len(values)):
        used = state[NEXT]
        noise = _gaussian(scale, words, state)
        if state[ENDED]:
            return i, used
        values[i] += noise
    return len(values), state[NEXT]


@kernel
def add_laplace(values, scale, words, first):
    """Add discrete Laplace noise to ``values`` in place; see `add_gaussian`.

    A value x of the noise has a probability proportional to ``exp(-abs(x) / scale)``.
    """
    state = np.zeros(2, np.int64)
    for i in range(first, len(values)):
        used = state[NEXT]
        noise = _laplace(scale, words, state)
        if state[ENDED]:
            return i, used
        values[i] += noise
    return len(values), state[NEXT]


@kernel
def _gaussian(scale, words, state):
    while not state[ENDED]:
        k = 0  # the number of whole scales, with a probability proportional to exp(-k**2 / 2)
        while k < MAX_STEPS and _bernoulli_exp(1, 2, 1, 1, words, state):
            k += 1
        if not _all_bernoulli_exp(k * (k - 1), 1, 2, 1, 1, words, state):
            continue
        negative = _below(2, words, state) == 1
        rest = _below(scale, words, state)
        if k == 0 and rest == 0 and negative:  # or 0 would be drawn twice as often
            continue
        # With f = rest / scale, accept with the probability exp(-f * (2 * k + f) / 2).
        low, high = 2 * k * scale + rest, 2 * (k + 1) * scale
        if _all_bernoulli_exp(k + 1, rest, scale, low, high, words, state):
            size = k * scale + rest
            return -size if negative else size
    return 0


@kernel
def _laplace(scale, words, state):
    while not state[ENDED]:
        rest = _below(scale, words, state)
        if not _bernoulli_exp(rest, scale, 1, 1, words, state):
            continue
        k = 0
        while k < MAX_STEPS and _bernoulli_exp(1, 1, 1, 1, words, state):
            k += 1
        negative = _below(2, words, state) == 1
        if k == 0 and rest == 0 and negative:
            continue
        size = k * scale + rest
        return -size if negative else size
    return 0


@kernel
def _all_bernoulli_exp(n, a, b, c, d, words, state):
    """Return whether n draws of `_bernoulli_exp` are all True."""
    for _ in range(n):  # noqa: SIM110  # numba has no generators within `all`
        if not _bernoulli_exp(a, b, c, d, words, state):
            return False
    return True


@kernel
def _bernoulli_exp(a, b, c, d, words, state):
    """Return True with the probability exp(-(a / b) * (c / d)), for fractions in 0..1.

    The k-th event of a series has the probability (a / b) * (c / d) / k. The number of the first
    event that does not occur is odd with the stated probability.
    """
    k = 1
    while True:
        occurs = (
            _below(b, words, state) < a
            and _below(d, words, state) < c
            and _below(k, words, state) == 0
        )
        if state[ENDED]:
            return False
        if not occurs:
            return k % 2 == 1
        k += 1


@kernel
def _below(n, words, state):
    """Return a uniform whole number in 0..n-1; 0 if the buffer has ended."""
    if n == 1:
        return 0
    mask = n - 1
    for shift in (1, 2, 4, 8, 16, 32):
        mask |= mask >> shift
    while state[NEXT] < len(words):
        value = np.int64(words[state[NEXT]] & np.uint64(mask))
        state[NEXT] += 1
        if value < n:
            return value
    state[ENDED] = 1
    return 0
