"""One flow on all four kinds of sums: the protocol that the page on FIN writes in one file."""

from pathlib import Path

import numpy as np
import pytest
from study.running import covariance
from study.running.covariance import CovarianceClient, FederatedCovariance, SumProducts
from test_imports import lines_of_code

from fedlib.core.client import Client
from fedlib.core.messages import Declined, encode
from fedlib.core.protocol import serve
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import Budget
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.protection.sums import MaskedNoisySums, NoisySums, RowTotals
from fedlib.testing import Recorder, seeded_noise

# What follows from the declaration --------------------------------------------------------------

RNG = np.random.default_rng(0)
PARTS = [np.abs(RNG.normal(size=(400, 2))) @ [[1.0, 0.5], [0.0, 2.0]] for _ in range(4)]
BOUNDS = [[0.0, 0.0], [12.0, 12.0]]
OPTIONS = {
    "clear": {},
    "masked": {"secure": True},
    "noisy": {"epsilon": 50.0, "delta": 1e-6},
    "masked and noisy": {"secure": True, "epsilon": 50.0, "delta": 1e-6},
}
EXPECTED = np.cov(np.concatenate(PARTS).T, ddof=0)


def test_a_protocol_on_sums_is_one_file_of_fewer_than_60_lines():
    assert 20 < lines_of_code(Path(covariance.__file__).read_text()) < 60


@pytest.mark.parametrize("kind", OPTIONS)
def test_one_flow_gives_the_same_with_all_kinds_of_sums(kind):
    with seeded_noise(0):
        found = FederatedCovariance(BOUNDS, **OPTIONS[kind]).fit(PARTS).model_
    np.testing.assert_allclose(
        np.maximum(found, found.T), EXPECTED, atol=1e-3 if "noisy" not in kind else 0.5
    )


def test_masks_cost_no_digit_that_matters():
    """If the count of rows is known. Each row is rounded, so the digits depend on the count."""
    n_rows = sum(map(len, PARTS))
    clear, masked, first = (
        FederatedCovariance(BOUNDS, **options).fit(PARTS).model_
        for options in ({}, {"secure": True, "n_rows": n_rows}, {"secure": True})
    )
    np.testing.assert_allclose(clear, masked, rtol=1e-9)
    np.testing.assert_allclose(clear, first, rtol=1e-7)


def recorded(**options):
    """Return the conversation of a run, and the sizes of the clients' replies with data."""
    estimator = FederatedCovariance(BOUNDS, **options)
    clients = {name: CovarianceClient(X) for name, X in zip("ABCD", PARTS, strict=True)}
    if estimator.secure:
        identities = simulated_identities(list(clients))
        clients = {name: SecureClient(one, identities[name]) for name, one in clients.items()}
    transport = Recorder(clients)
    estimator.fit(transport)
    return estimator, transport


def test_the_server_sees_single_replies_only_in_the_clear():
    _, open_run = recorded()
    _, masked = recorded(secure=True)
    assert "RowTotals" in open_run.ledger.conversation()
    assert "RowTotals" not in masked.ledger.conversation()
    assert b"RowTotals" not in masked.all_bytes


@pytest.mark.parametrize("secure", [False, True])
def test_the_noise_is_that_of_the_declared_sensitivity(secure):
    """400 sums of rows that do not exist: what remains is the noise."""
    sums = (MaskedNoisySums if secure else NoisySums)(
        FederatedCovariance(BOUNDS, secure, 1.0, 1e-6)._noisy_sums(1).privacy
    )
    sums.n_clients = 4
    request = SumProducts(np.array([[0.0] * 30, [1.0] * 30]), privacy=sums.privacy)
    client = Client()
    client.n_shares = sums.n_shares
    with seeded_noise(1):
        shares = [request.total(np.empty((0, 30)), client).values for _ in range(4)]
    deviation = sums.deviation(request.sensitivity())
    assert np.sum(shares, axis=0).std() == pytest.approx(deviation, rel=0.1)


def test_a_site_computes_the_digits_itself():
    _, transport = recorded(secure=True)
    [request] = {
        encode(one.requests["A"]): one.requests["A"]
        for one in transport.exchanges
        if type(one.requests["A"]).__name__ == "MaskValues"
    }.values()
    asked = SumProducts(np.array(BOUNDS))
    assert request.digits == dict(asked.sum_digits(4))
    assert FederatedCovariance(BOUNDS, True, 1.0, 1e-6)._noisy_sums(1).privacy is not None


def test_a_budget_is_charged_for_noise_and_declines_without():
    budget = Budget(2.0, 1e-5)
    site = GuardedClient(CovarianceClient(PARTS[0]), Policy(budget=budget), "covariance")
    privacy = FederatedCovariance(BOUNDS, False, 1.0, 1e-6)._noisy_sums(1).privacy
    assert isinstance(site.answer(SumProducts(np.array(BOUNDS), privacy=privacy)), RowTotals)
    assert 0 < budget.spent <= 1.001
    other = GuardedClient(CovarianceClient(PARTS[0]), Policy(budget=budget), "covariance")
    assert other.answer(SumProducts(np.array(BOUNDS))) == Declined("budget")


def test_rows_beyond_the_bounds_are_clipped_whatever_they_are():
    client = CovarianceClient([[1e300, -1e300], [0.5, 0.5]])
    request = SumProducts(np.array([[0.0, 0.0], [1.0, 1.0]]))
    assert client.answer(request).values.tolist() == [2.0, 1.0, -1.0, 1.0, -1.0, 1.0]
    assert b"RowTotals" in serve(client, encode(request))
