"""A request for too much work is refused before anything is computed from rows."""

import pytest
from all_protocols import CASES
from hostile_server import conversation, make_client, subject

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
