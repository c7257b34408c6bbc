"""Each kind of attack is found again when the fix for it is taken back."""

import sys
from contextlib import nullcontext

import numpy as np
import pytest
from hostile_server import MASKED_CASES
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fedlib.boosting.client import BoostingClient
from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.clustering.kmeans import flow as private
from fedlib.core.client import Client
from fedlib.core.messages import Declined
from fedlib.core.site_memory import TableMemory
from fedlib.protection.policy import guard
from fedlib.protection.secure import SecureClient
from fedlib.protection.secure.fixed_point import WordSums, add_rows
from fedlib.tables.pipeline import client as pipeline
from fedlib.tables.pipeline.messages import Transformed
from fedlib.testing import Recorder

from ..core import test_delivered
from ..core.test_site_memory import Site
from . import test_audit as audit
from .policy import test_groups, test_terms
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


def test_terms_that_a_server_chooses(monkeypatch):
    monkeypatch.setattr(guard.GuardedClient, "_terms", lambda site, request: b"")
    with pytest.raises(AssertionError):
        test_terms.test_only_one_delivered_model_is_scored("together")
    with pytest.raises(AssertionError):
        test_terms.test_the_slope_of_pseudo_huber_is_a_term()


def test_noise_that_hides_no_row(monkeypatch):
    monkeypatch.setattr(guard.GuardedClient, "_check_loss", lambda *arguments: None)
    for loss, rules in (({"rho": 1e300}, {}), ({"rho": 0.51}, {"budget": test_terms.BUDGET})):
        with pytest.raises(AttributeError, match="rule"):  # the reply is no `Declined`
            test_terms.test_noise_that_hides_no_row_is_no_exception_of_a_minimum_count(
                loss, rules, "max_epsilon"
            )


@pytest.mark.filterwarnings("ignore:3 of n_clusters=3 clusters have no points")
def test_thresholds_of_a_masked_sum(monkeypatch):
    answer = Client.answer

    def suppressed(client, request):
        reply = answer(client, request)
        if not isinstance(reply, WordSums):
            return reply
        return WordSums(reply.words * (reply.words > 2**50).astype(np.uint64))

    monkeypatch.setattr(Client, "answer", suppressed)
    with pytest.raises(AssertionError, match="SumPoints"):
        audit.test_what_is_masked_is_a_sum_over_rows(monkeypatch, "kmeans, masked")


@pytest.mark.parametrize("case", [case for case in MASKED_CASES if "dbscan" not in case])
def test_sums_that_a_site_rounds(monkeypatch, case):
    """To the digits of the request, to which it must round what each row adds."""

    def add_floats(terms, digits, name, groups=None, n_groups=1):
        sums = add_rows(terms, None, name, groups, n_groups)
        return np.rint(np.ldexp(sums, np.array(digits[name]))).astype(np.int64)

    modules = [one for name, one in sys.modules.items() if name.startswith("fedlib.")]
    for module in modules:
        if hasattr(module, "add_rows"):
            monkeypatch.setattr(module, "add_rows", add_floats)
    with pytest.raises(AssertionError, match=r"\["):
        audit.test_what_is_masked_is_a_sum_over_rows(monkeypatch, case)


def test_deliveries_whose_effect_depends_on_rows(monkeypatch):
    def all_or_none(use, rows):
        use(rows)
        return rows, ""

    monkeypatch.setattr(Transformed, "within", lambda table, *_: table)
    monkeypatch.setattr(pipeline, "usable_rows", all_or_none)
    case = test_delivered.TINY, 12.0, HorizontalDBSCANClient
    with pytest.raises((AssertionError, ValueError)):
        test_delivered.test_whether_rules_are_applied_does_not_depend_on_rows(*case)
