"""Tools that the tests of DBDC, SDBDC and PPDBDC share."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlib.core.messages import decode, encode


@pytest.fixture(scope="session")
def deal():
    """Return a function that distributes rows over one to four clients, each in some order."""

    def rows_of_clients(data, X):
        n_clients = data.draw(st.integers(1, 4))
        client = data.draw(hnp.arrays(np.int64, len(X), elements=st.integers(0, n_clients - 1)))
        rows = data.draw(st.permutations(range(len(X))))
        return [np.array([i for i in rows if client[i] == c], np.int64) for c in range(n_clients)]

    return rows_of_clients


@pytest.fixture(scope="session")
def by_row():
    """Return a function that puts the labels of the clients' rows in the order of all rows."""

    def in_order(rows, labels):
        everything = np.full(sum(map(len, rows)), -9)
        for indices, part in zip(rows, labels, strict=True):
            everything[indices] = part
        return everything

    return in_order


@pytest.fixture(scope="session")
def sends():
    """Return a function that makes a `Recorder`'s tamper, which replaces replies of one class."""

    def tamper_with(false_reply):
        def tamper(request, reply):
            return encode(false_reply) if type(decode(reply)) is type(false_reply) else reply

        return tamper

    return tamper_with
