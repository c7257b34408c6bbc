"""Each kind of attack is found again when the fix for it is taken back."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fedlib.boosting.client import BoostingClient
from fedlib.clustering.kmeans import private
from fedlib.core.client import Client
from fedlib.core.messages import Declined
from fedlib.core.site_memory import TableMemory
from fedlib.protection.policy import guard
from fedlib.protection.secure import SecureClient
from fedlib.testing import Recorder

from ..core.test_site_memory import Site
from . import test_audit as audit
from .policy import test_groups
from .secure import test_memory
from .secure.toy import IDENTITIES, PARTS, ToyClient


@pytest.fixture(autouse=True)
def attempts(monkeypatch):
    monkeypatch.setattr(audit, "N", 50)


def test_errors_that_depend_on_rows(monkeypatch):
    def refuse(client, classes):
        codes = {label: code for code, label in enumerate(classes)}
        return np.array([codes[label] for label in client.y.tolist()], np.int64)

    monkeypatch.setattr(BoostingClient, "_codes", refuse)
    with pytest.raises(AssertionError, match="MaskingFailed"):
        audit.test_masked_replies_do_not_depend_on_rows("xgboost, masked")


def test_failures_that_depend_on_rows(monkeypatch):
    monkeypatch.setattr(
        guard.GuardedClient, "_answer", lambda site, _, asked: site.inner.answer(asked)
    )
    with pytest.raises(AssertionError, match="Failure"):
        audit.test_with_a_minimum_count_no_failure_depends_on_rows("horizontal-dbscan, option 0")


def test_deliveries_that_read_rows(monkeypatch):
    def answer(client, request):
        if request.asks_for_data and client.passive:
            return Declined()
        return client.handle(request)

    monkeypatch.setattr(Client, "answer", answer)
    with pytest.raises(AssertionError, match="Failure"):
        audit.test_a_passive_site_discloses_nothing("horizontal-dbscan")


def test_a_row_beyond_its_limits(monkeypatch):
    def unclipped(X, bounds):
        half = (bounds[1] - bounds[0]) / 2
        return (X - bounds[0]) / half - 1

    monkeypatch.setattr(private, "to_unit", unclipped)
    with pytest.raises(AssertionError, match=r"\) <= \d"):  # more than declared
        audit.test_one_row_changes_no_more_than_declared("kmeans, noisy")


def test_groups_by_themselves(monkeypatch):
    monkeypatch.setattr(guard, "_refined", lambda classes, groups: groups + 1)
    found = 0
    for seed in range(40):
        try:
            test_groups.test_no_difference_of_sums_belongs_to_fewer_rows(seed)
        except (AssertionError, pytest.fail.Exception):
            found += 1
    assert found > 5


def test_a_memory_that_ends(monkeypatch):
    """Without its folder, a site answers after a restart as if nothing had been asked before."""
    monkeypatch.setattr(TableMemory, "records", lambda memory: nullcontext([]))
    few = settings(max_examples=50, deadline=None, phases=[Phase.generate], database=None)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Site, settings=few)


def test_differences_between_sums():
    """A site that forgets what it has confirmed gives the values of D away."""

    class Forgetful(SecureClient):
        def _keep(self, **changes):
            super()._keep(**changes | {"confirmed": ()})

    clients = {name: Forgetful(ToyClient(X), IDENTITIES[name]) for name, X in PARTS.items()}
    (everybody,) = test_memory.sums(Recorder(clients))
    (others,) = test_memory.sums(Recorder(clients, test_memory.LOST), first=2)
    difference = everybody.total.counts - others.total.counts
    assert difference.tolist() == PARTS["D"].tolist()
