"""What a request causes by itself is a refusal: it locks no site, and the next one is answered."""

from itertools import count

import numpy as np
import pytest

from fedlib.clustering.kmeans import FederatedKMeansClient
from fedlib.clustering.kmeans.flow import SumClustersNoisily
from fedlib.core.messages import decode, encode
from fedlib.core.protocol import run, serve
from fedlib.core.site_memory import TableMemory
from fedlib.protection.privacy import Privacy
from fedlib.protection.secure import SecureClient, secure_sum, simulated_identities
from fedlib.testing import Recorder

X, BOUNDS = np.random.default_rng(0).random((50, 2)), np.array([[0.0, 0.0], [1.0, 1.0]])
GOOD = SumClustersNoisily(Privacy(rho=0.1), BOUNDS, X[:2])
LOSSES = [{"rho": 1e-300}, {"rho": 5e-324}, {"epsilon": 1e-300}, {"epsilon": 5e-324}]


@pytest.mark.parametrize("loss", LOSSES)
def test_noise_that_no_type_can_hold_is_refused(loss, tmp_path):
    site = FederatedKMeansClient(X)
    site.memory = TableMemory(tmp_path / "table.jsonl")
    request = SumClustersNoisily(Privacy(**loss), BOUNDS, X[:2])
    replies = [decode(serve(site, encode(one), lambda error: None)) for one in (request, GOOD)]
    assert replies[0].error == "BadRequest"
    assert replies[1].counts.shape == (2,)
    assert not site.memory.lock.path.exists()


@pytest.mark.parametrize("loss", LOSSES)
def test_so_is_it_behind_masks(loss):
    names = list("ABCD")
    identities = simulated_identities(names)
    sites = Recorder({n: SecureClient(FederatedKMeansClient(X), identities[n]) for n in names})
    numbers, request = count(1), SumClustersNoisily(Privacy(**loss), BOUNDS, X[:2])
    with pytest.raises(Exception, match="BadRequest|of 4 clients"):
        run(secure_sum(request, numbers, request.sum_digits(4)), sites)
    assert not any(site.state.failed for site in sites.members.values())
    total, _ = run(secure_sum(GOOD, numbers, GOOD.sum_digits(4)), sites)
    assert total.counts.shape == (2,)
