"""A rule about a parameter holds for the requests of approximate DBSCAN that follow from it."""

import numpy as np
import pytest

from fedlib.clustering.density.approximate import ApproximateDBSCANClient
from fedlib.clustering.density.bounded_cells import CountGrid, CountWithNoise
from fedlib.clustering.density.near_cells import cell_side
from fedlib.core.client import Unanswerable
from fedlib.core.messages import Declined, MessageError, decode, encode
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import Privacy

PLACE = np.zeros(1, np.int64), np.array([10])


@pytest.mark.parametrize("secret", [False, True])
@pytest.mark.parametrize(
    ("eps", "rho", "permitted"), [(1.0, 0.5, True), (0.9, 0.5, False), (2.0, 0.4, False)]
)
def test_the_cells_of_approximate_dbscan_obey_rules_of_eps_and_rho(eps, rho, permitted, secret):
    rules = {"eps": {"min": 1.0}, "rho": {"min": 0.5}}
    policy = {"protocols": {"approximate-dbscan": {"parameters": rules}}}
    client = ApproximateDBSCANClient(np.random.default_rng(0).random((60, 1)))
    more = {"privacy": Privacy(epsilon=1.0)} if secret else {}
    kind = CountWithNoise if secret else CountGrid
    request = kind(cell_side(eps, rho, 1), *PLACE, eps=eps, rho=rho, **more)
    for asked, expected in ((request, permitted), (kind(0.001, *PLACE, **more), False)):
        site = GuardedClient(client, Policy.from_dict(policy), "approximate-dbscan")
        reply = site.answer(decode(encode(asked)))
        assert hasattr(reply, "counts") == expected
        assert expected or reply == Declined("parameters")
    with pytest.raises(Unanswerable, match="must have eps and rho"):
        client.answer(kind(0.001, *PLACE, **more))


@pytest.mark.parametrize("given", [{"eps": 1.0, "rho": 0.5}, {"eps": 1.0}, {"rho": 0.5}])
def test_a_request_with_other_cells_than_it_states_cannot_be_made(given):
    for kind, more in ((CountGrid, {}), (CountWithNoise, {"privacy": Privacy(epsilon=1.0)})):
        with pytest.raises(MessageError, match=r"that of eps and rho|both eps and rho"):
            kind(0.001, *PLACE, **given, **more)
        with pytest.raises(MessageError):
            kind(1.0, PLACE[0][:0], PLACE[1][:0], eps=1.0, rho=0.5, **more)
