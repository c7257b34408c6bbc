"""A request for too much work is refused before anything is computed from rows."""

import numpy as np
import pytest
from all_protocols import CASES
from hostile_server import conversation, make_client, subject

from fedlib.clustering.density.bounded_cells import CountGrid
from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.core.messages import Declined
from fedlib.core.work import TooMuchWork
from fedlib.protection.policy import GuardedClient, Policy


@pytest.mark.parametrize("case", [case for case in CASES if "masked" not in case])
def test_too_much_work_is_refused_before_it_is_computed(case, monkeypatch):
    estimator, parts = subject(case)
    client = make_client(estimator, parts()[0])
    monkeypatch.setattr(client, "handle", lambda request: pytest.fail("it was computed"))
    costly = [one for one in conversation(case) if one.asks_for_data and one.work() > 1]
    for request in costly:
        client.max_work = request.work() - 1
        with pytest.raises(TooMuchWork):
            client.answer(request)
        site = GuardedClient(client, Policy.from_dict({"max_work": 1}), estimator.name)
        site.enter("A", 5)
        assert site.answer(request) == Declined("max_work")


def test_a_reply_of_more_than_a_gigabyte_is_refused_whatever_the_limit():
    """Each cell of this grid has a count of eight bytes."""
    client = HorizontalDBSCANClient([[0.5, 0.5]])
    client.max_work, shape = 10**18, np.array([2**14, 2**14])
    with pytest.raises(TooMuchWork, match="asks for .* values, more than 134217728"):
        client.answer(CountGrid(2**-14, np.zeros(2, np.int64), shape))
