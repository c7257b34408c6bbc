import re
import warnings

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from fedlib import FederatedGaussianMixture
from fedlib.messages import Done, Labels, MessageError, decode, encode
from fedlib.mixtures.federated import (
    AssignComponents,
    FitMixture,
    GaussianMixtureClient,
    ImprovedMixture,
    ImproveMixture,
    IntroducePoints,
    LocalMixture,
    Mixture,
    PointsIntroduction,
    ResponsibilitySums,
    SumResponsibilities,
    federated_gaussian_mixture,
    fit_mixture,
    improve,
    outward,
)
from fedlib.partition import split_rows
from fedlib.protocol import Replies, TooFewClients, serve
from fedlib.transports.in_process import InProcess

KINDS = ["full", "tied", "diag", "spherical"]
METHODS = ["average", "em"]
each_kind = pytest.mark.parametrize("kind", KINDS)
each_method = pytest.mark.parametrize("method", METHODS)


def blobs(n=240, d=2, seed=0, apart=4.0):
    """Return points of three clusters of different shapes."""
    rng = np.random.default_rng(seed)
    shapes = rng.normal(size=(3, d, d)) + np.eye(d)
    centres = apart * rng.normal(size=(3, d))
    own = rng.integers(3, size=n)
    return np.einsum("nij,nj->ni", shapes[own], rng.normal(size=(n, d))) + centres[own]


def dealt(X, n_clients=3, seed=0):
    return [X[own] for own in split_rows(X, n_clients, how="uniform", random_state=seed)]


# A toy, by hand ---------------------------------------------------------------------------------

# Two components so far apart that a point belongs to one of them, wholly.
START = {"weights_init": [0.5, 0.5], "means_init": [[0.0], [100.0]]}
ONES = {
    "full": np.ones((2, 1, 1)),
    "tied": np.ones((1, 1)),
    "diag": np.ones((2, 1)),
    "spherical": np.ones(2),
}
FIRST = [[-1.0], [1.0], [99.0]]
SECOND = [[3.0], [101.0]]


@each_kind
def test_one_round_of_em(kind):
    """-1, 1, 3 have the mean 1 and the variance 8/3; 99 and 101 have 100 and 1."""
    model = FederatedGaussianMixture(
        2,
        "em",
        covariance_type=kind,
        reg_covar=0.25,
        precisions_init=ONES[kind],
        max_rounds=1,
        tol=0,
        **START,
    ).fit([FIRST, SECOND])
    assert model.weights_.tolist() == pytest.approx([0.6, 0.4])
    assert model.means_.ravel().tolist() == pytest.approx([1, 100])
    # Tied: the squares about the means are 8 and 2, of 5 points.
    wanted = [2 + 0.25] if kind == "tied" else [8 / 3 + 0.25, 1.25]
    assert model.covariances_.ravel().tolist() == pytest.approx(wanted)
    assert model.covariances_.shape == ONES[kind].shape
    assert [own.tolist() for own in model.labels_] == [[0, 0, 1], [0, 1]]
    assert (model.n_rounds_, model.converged_, model.n_features_in_) == (1, False, 1)
    # Each point has the density of its component: the squares about the first means are 11 and 2.
    density = 0.5 * np.log(2 * np.pi) + np.log(2)
    assert model.lower_bound_ == pytest.approx(-density - (1 + 1 + 9 + 1 + 1) / 2 / 5)


def test_one_round_of_averages():
    """A has the means 0 and 99, B 3 and 101; A counts three of five, B is not larger than two."""
    model = FederatedGaussianMixture(
        2, precisions_init=ONES["full"], reg_covar=0.5, max_rounds=1, tol=0, **START
    ).fit([FIRST, SECOND])
    assert model.weights_.tolist() == pytest.approx([(3 * 2 / 3 + 2 / 2) / 5, 2 / 5])
    assert model.means_.ravel().tolist() == pytest.approx([6 / 5, (3 * 99 + 2 * 101) / 5])
    # Variances: 1 and 0 at A, 0 and 0 at B, and reg_covar.
    assert model.covariances_.ravel().tolist() == pytest.approx([3 / 5 + 0.5, 0.5])


def test_the_conversation_of_em():
    """One question and one answer a round; with a whole start nobody fits one."""
    model = FederatedGaussianMixture(
        2, "em", precisions_init=ONES["full"], max_rounds=3, tol=0, **START
    ).fit([FIRST, SECOND])
    rounds = ["SumResponsibilities", "ResponsibilitySums"] * 3
    first = ["IntroducePoints", "PointsIntroduction"]
    assert model.ledger_.conversation() == [*first, *rounds, "AssignComponents", "Done"]


def test_the_conversation_of_averages():
    """One client, and only one, fits the first mixture."""
    model = FederatedGaussianMixture(2, max_rounds=2, tol=0, random_state=0).fit(dealt(blobs()))
    said = model.ledger_.conversation()
    start = ["IntroducePoints", "PointsIntroduction", "FitMixture", "LocalMixture"]
    rounds = ["ImproveMixture", "ImprovedMixture"] * 2
    assert said == [*start, *rounds, "AssignComponents", "Done"]
    assert [entry.message for entry in model.ledger_].count("FitMixture") == 1


def test_the_flow_by_hand():
    flow = FederatedGaussianMixture(
        2, "em", precisions_init=ONES["diag"], covariance_type="diag", max_rounds=1, **START
    ).protocol()
    assert next(flow) == IntroducePoints(2)
    said = flow.send(Replies({"A": PointsIntroduction(1, True)}))
    start = np.array([0.5, 0.5]), np.array([[0.0], [100.0]]), np.ones((2, 1, 1)), "diag"
    assert said == SumResponsibilities(*start)
    sums = np.array([2.0, 2.0]), np.array([[2.0], [0.0]]), np.array([[[4.0]], [[6.0]]])
    said = flow.send(Replies({"A": ResponsibilitySums(4, -8.0, *sums)}))
    assert isinstance(said, AssignComponents)
    assert said.means.ravel().tolist() == pytest.approx([1, 100])
    assert said.covariances.ravel().tolist() == pytest.approx([1 + 1e-6, 3 + 1e-6])
    with pytest.raises(StopIteration) as finished:
        flow.send(Replies({"A": Done()}))
    assert finished.value.value.log_likelihoods == [-2.0]


# scikit-learn as the reference ------------------------------------------------------------------


def start_of(X, k, kind, rng):
    """Draw a first mixture; return it as scikit-learn's parameters."""
    d = X.shape[1]
    one = {"full": np.eye(d), "tied": np.eye(d), "diag": np.ones(d), "spherical": 1.0}[kind]
    scale = rng.uniform(0.5, 2, size=k)
    precisions = np.multiply.outer(scale, one) if kind != "tied" else scale[0] * one
    return {
        "weights_init": rng.dirichlet(np.full(k, 5.0)),
        "means_init": X[rng.choice(len(X), k, replace=False)],
        "precisions_init": precisions,
    }


def steps_of_sklearn(X, k, kind, start, n_steps):
    """Yield scikit-learn's mixture after 1, 2, … steps: a warm start goes on where it was."""
    model = GaussianMixture(k, covariance_type=kind, tol=0, max_iter=1, warm_start=True, **start)
    with warnings.catch_warnings(), threadpool_limits(1):  # on matrices of 4 rows threads only wait
        warnings.simplefilter("ignore", ConvergenceWarning)
        for _ in range(n_steps):
            yield model.fit(X)


def rounds_of(X, parts, k, kind, start, n_rounds):
    """Yield the mixture that the server sends after each round, and the round's likelihood."""
    clients = {str(i): GaussianMixtureClient(part) for i, part in enumerate(parts)}
    flow = FederatedGaussianMixture(
        k, "em", covariance_type=kind, tol=0, max_rounds=n_rounds, **start
    ).protocol()
    request = next(flow)
    n_rounds = -1
    while True:
        replies = {name: client.handle(request) for name, client in clients.items()}
        try:
            request = flow.send(Replies(replies))
        except StopIteration:
            return
        n_rounds += 1
        if n_rounds:
            yield request, sum(reply.log_likelihood for reply in replies.values()) / len(X)


@each_kind
@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=3)
def test_each_of_100_rounds_is_one_of_sklearns(kind, seed, k, d, n_clients):
    """However rows are dealt; on standardised data where no component collapses onto a point."""
    rng = np.random.default_rng(seed)
    X = StandardScaler().fit_transform(blobs(200, d, seed, apart=2.0))
    start = start_of(X, k, kind, rng)
    parts = dealt(X, n_clients, seed)
    steps = list(rounds_of(X, parts, k, kind, start, 100))
    assert len(steps) == 100
    assume(min(200 * step.weights.min() for step, _ in steps) > d + 2)
    for (ours, likelihood), theirs in zip(
        steps, steps_of_sklearn(X, k, kind, start, 100), strict=True
    ):
        np.testing.assert_allclose(ours.weights, theirs.weights_, rtol=0, atol=1e-8)
        np.testing.assert_allclose(ours.means, theirs.means_, rtol=0, atol=1e-8)
        covariances = outward(ours.covariances, kind)
        np.testing.assert_allclose(covariances, theirs.covariances_, rtol=0, atol=1e-8)
        assert likelihood == pytest.approx(theirs.lower_bound_, abs=1e-8)


@each_kind
def test_it_stops_where_sklearn_stops(kind):
    X = blobs()
    start = start_of(X, 3, kind, np.random.default_rng(1))
    theirs = GaussianMixture(3, covariance_type=kind, max_iter=500, tol=1e-5, **start).fit(X)
    model = FederatedGaussianMixture(
        3, "em", covariance_type=kind, max_rounds=500, tol=1e-5, **start
    ).fit(dealt(X))
    assert (model.n_rounds_, model.converged_) == (theirs.n_iter_, True)
    assert model.lower_bound_ == pytest.approx(theirs.lower_bound_, abs=1e-10)
    assert model.lower_bounds_ == pytest.approx(theirs.lower_bounds_, abs=1e-10)
    assert (np.diff(model.lower_bounds_) > 0).all()
    labels = np.concatenate(model.labels_)
    assert (labels == theirs.predict(np.concatenate(dealt(X)))).all()


@each_kind
@pytest.mark.parametrize("seed", range(3))
def test_the_first_fit_is_sklearns(kind, seed):
    X = blobs(seed=seed)
    theirs = GaussianMixture(3, covariance_type=kind, max_iter=500, random_state=seed).fit(X)
    ours = fit_mixture(X, 3, kind, random_state=seed, max_iter=500)
    np.testing.assert_allclose(ours.means, theirs.means_, atol=1e-9)
    np.testing.assert_allclose(outward(ours.covariances, kind), theirs.covariances_, atol=1e-9)


@each_kind
@each_method
def test_to_sklearn(kind, method):
    X = blobs(d=3)
    model = FederatedGaussianMixture(3, method, covariance_type=kind, random_state=0).fit(dealt(X))
    theirs = model.to_sklearn()
    assert (theirs.predict(X) == model.predict(X)).all()
    np.testing.assert_allclose(theirs.predict_proba(X), model.predict_proba(X))
    if kind in ("full", "tied"):
        product, one = theirs.precisions_ @ theirs.covariances_, np.eye(3)
    else:
        product, one = theirs.precisions_ * theirs.covariances_, 1
    np.testing.assert_allclose(product, np.broadcast_to(one, product.shape), atol=1e-9)
    # The likelihood at which scikit-learn would go on from here is the score.
    again = GaussianMixture(
        3,
        covariance_type=kind,
        weights_init=model.weights_,
        means_init=model.means_,
        precisions_init=theirs.precisions_,
        max_iter=1,
        tol=1e9,
    )
    with pytest.warns(ConvergenceWarning):
        assert model.score(X) == pytest.approx(again.fit(X).lower_bound_)
    n_parameters = {"full": 18, "tied": 6, "diag": 9, "spherical": 3}[kind] + 9 + 2
    assert model.aic(X) == pytest.approx(2 * n_parameters - 2 * 240 * model.score(X))
    assert model.bic(X) == pytest.approx(np.log(240) * n_parameters - 2 * 240 * model.score(X))
    theirs.means_[:] = 0
    assert model.means_.any()


# What the method promises -----------------------------------------------------------------------


def test_averages_of_one_client_are_its_own_em():
    X = blobs()
    start = start_of(X, 3, "full", np.random.default_rng(0))
    model = FederatedGaussianMixture(3, max_rounds=1, tol=0, max_local_iter=7, **start).fit([X])
    em = FederatedGaussianMixture(3, "em", max_rounds=7, tol=0, **start).fit([X])
    np.testing.assert_allclose(model.means_, em.means_, atol=1e-12)


@each_kind
@pytest.mark.parametrize("seed", range(3))
def test_averages_find_what_em_finds(kind, seed):
    """On rows dealt at random, in clusters that lie apart."""
    X = blobs(600, seed=seed, apart=12.0)
    parts = dealt(X, 4, seed)
    start = start_of(X, 3, kind, np.random.default_rng(seed))
    start["means_init"] = fit_mixture(X, 3, random_state=seed).means
    average = FederatedGaussianMixture(3, covariance_type=kind, **start).fit(parts)
    em = FederatedGaussianMixture(3, "em", covariance_type=kind, **start).fit(parts)
    assert average.converged_
    assert average.score(X) == pytest.approx(em.score(X), abs=0.02)
    assert em.score(X) >= average.score(X) - 1e-3
    assert all((a == b).mean() > 0.98 for a, b in zip(average.labels_, em.labels_, strict=True))


@given(st.integers(0, 2**31), st.sampled_from(KINDS), st.sampled_from(METHODS))
@settings(max_examples=15)
@example(760, "full", "average")  # two equal points far from the mean: asymmetric by rounding
def test_covariances_stay_positive_definite(seed, kind, method):
    """Also where clients see one cluster only, few points, or the same point many times."""
    rng = np.random.default_rng(seed)
    X = np.round(blobs(60, 2, seed), 0)
    cuts = np.sort(rng.integers(0, 61, size=3))
    parts = np.split(X[np.argsort(X[:, 0])], cuts)
    model = FederatedGaussianMixture(
        3,
        method,
        covariance_type=kind,
        max_rounds=9,
        tol=0,
        max_local_iter=9,
        random_state=seed,
    ).fit(parts)
    spread = model.covariances_
    if kind in ("full", "tied"):
        spread = np.linalg.eigvalsh(spread)
    assert (spread > 0).all()
    assert np.isfinite(model.means_).all()
    assert np.isfinite(model.lower_bounds_).all()
    assert model.weights_.sum() == pytest.approx(1)


@each_method
def test_the_order_of_clients_and_rows_does_not_matter(method):
    X = blobs()
    start = start_of(X, 3, "full", np.random.default_rng(0))
    parts = dealt(X)
    wanted = FederatedGaussianMixture(3, method, **start).fit(parts)
    turned = FederatedGaussianMixture(3, method, **start).fit([part[::-1] for part in parts[::-1]])
    np.testing.assert_allclose(turned.means_, wanted.means_, rtol=1e-9)
    for one, other in zip(wanted.labels_, turned.labels_[::-1], strict=True):
        assert (one == other[::-1]).all()


@each_method
def test_messages_are_the_same_however_many_work_at_once(method, relay):
    parts = dealt(blobs(2000), 5)
    bytes_said = []
    for n_jobs in (1, 4):
        transport = relay({str(i): GaussianMixtureClient(X) for i, X in enumerate(parts)})
        transport._pool = InProcess({"x": None, "y": None}, n_jobs)._pool
        FederatedGaussianMixture(3, method, random_state=1).fit(transport)
        bytes_said.append(transport.all_bytes)
    assert bytes_said[0] == bytes_said[1]


@each_kind
def test_no_digits_are_lost_far_from_the_origin(kind):
    """Raw second moments at 1e6 would leave four digits of a variance of 1."""
    X = np.round(blobs() * 2**10) / 2**10
    far = X + 2**20
    start = start_of(X, 3, kind, np.random.default_rng(0))
    here = FederatedGaussianMixture(3, "em", covariance_type=kind, tol=0, max_rounds=20, **start)
    there = clone(here).set_params(means_init=start["means_init"] + 2**20)
    here.fit(dealt(X))
    there.fit(dealt(far))
    np.testing.assert_allclose(there.covariances_, here.covariances_, rtol=1e-7)
    np.testing.assert_allclose(there.means_ - 2**20, here.means_, atol=1e-8)


@each_kind
@each_method
def test_a_component_without_points(kind, method):
    """It keeps its mean; it keeps its covariance, unless that is tied; its weight is nearly 0."""
    X = blobs(60, apart=0)
    precisions = {"full": [np.eye(2)] * 2, "tied": np.eye(2), "diag": np.ones((2, 2))}
    model = FederatedGaussianMixture(
        2,
        method,
        covariance_type=kind,
        weights_init=[0.5, 0.5],
        means_init=[[0, 0], [1e4, 0]],
        precisions_init=precisions.get(kind, np.ones(2)),
        tol=0,
        max_rounds=5,
    ).fit(dealt(X))
    assert model.means_[1].tolist() == [1e4, 0]
    assert 0 < model.weights_[1] < 1e-10
    if kind != "tied":
        assert np.array_equal(
            model.covariances_[1],
            np.ones_like(model.covariances_)[1] * (np.eye(2) if kind == "full" else 1),
        )
    assert not np.concatenate(model.labels_).any()
    assert (model.to_sklearn().predict(X) == 0).all()


def test_points_far_out_are_no_trouble():
    """Their densities are zero in floating point; their shares are not."""
    X = np.array([[0.0], [1.0], [1e6], [-1e6]])
    start = {**START, "means_init": [[0.0], [1.0]], "precisions_init": ONES["full"]}
    model = FederatedGaussianMixture(2, "em", max_rounds=1, tol=0, **start).fit([X])
    assert np.isfinite(model.lower_bound_)
    assert model.means_.ravel().tolist() == pytest.approx([-5e5, 5e5], rel=0.5)


def test_what_is_given_of_the_start_is_used(relay):
    transport = relay({"A": GaussianMixtureClient(blobs())})
    means = [[50.0, 50.0], [0.0, 0.0]]
    FederatedGaussianMixture(2, "em", means_init=means, random_state=0).fit(transport)
    request = decode(transport.exchanges[1].request_bytes["A"], FitMixture)
    assert request.means.tolist() == means
    assert request.weights.size == request.covariances.size == 0


def test_no_warning_with_all_rounds_wanted_and_one_with_not_enough():
    X = dealt(blobs())
    model = FederatedGaussianMixture(3, "em", tol=0, max_rounds=2, random_state=0).fit(X)
    assert not model.converged_
    with pytest.warns(ConvergenceWarning, match="tol=1e-09 within max_rounds=2"):
        model.set_params(tol=1e-9).fit(X)


# Clients with little, or nothing to share -------------------------------------------------------


@each_method
def test_clients_with_hardly_anything(method):
    """Empty ones, and in averages those with fewer points than components, change nothing."""
    X = blobs()
    parts = dealt(X)
    start = start_of(X, 3, "full", np.random.default_rng(0))
    small = [[] if method == "em" else X[:2], X[:0]]
    small = [np.reshape(own, (-1, 2)) for own in small]
    options = {"tol": 0, "max_rounds": 5}
    wanted = FederatedGaussianMixture(3, method, **options, **start).fit(parts)
    model = FederatedGaussianMixture(3, method, **options, **start).fit([*small, *parts])
    np.testing.assert_allclose(model.means_, wanted.means_, rtol=1e-12)
    assert [len(own) for own in model.labels_] == [len(own) for own in [*small, *parts]]


@each_method
def test_the_client_that_starts_has_enough_points(method):
    X = blobs()
    parts = [X[:0], X[:1], np.zeros((50, 2)), X]
    for seed in range(5):
        model = FederatedGaussianMixture(3, method, random_state=seed).fit(parts)
        asked = [entry.receiver for entry in model.ledger_ if entry.message == "FitMixture"]
        assert asked == ["3"]


@pytest.mark.parametrize(
    ("method", "start", "text"),
    [
        ("em", {}, "n_components=2 needs at least 2 distinct points"),
        ("em", {"precisions_init": ONES["full"]} | START, "the clients have no points"),
        ("average", {"precisions_init": ONES["full"]} | START, "no client has as many points"),
    ],
)
def test_only_empty_clients(method, start, text):
    with pytest.raises(ValueError, match=text):
        FederatedGaussianMixture(2, method, **start).fit([np.empty((0, 1))] * 2)


@each_method
def test_passive_clients(method):
    """They count for nothing and get labels all the same."""
    parts = dealt(blobs())
    model = FederatedGaussianMixture(3, method, random_state=0).fit(parts, passive=[1])
    wanted = FederatedGaussianMixture(3, method, random_state=0).fit([parts[0], parts[2]])
    assert np.array_equal(model.means_, wanted.means_)
    assert (model.labels_[1] == model.predict(parts[1])).all()
    with pytest.raises(ValueError, match="every client is passive"):
        model.fit(parts, passive=[0, 1, 2])


@each_method
def test_clients_may_be_made_anew(method, reborn):
    parts = dealt(blobs())
    transport = reborn(GaussianMixtureClient, dict(zip("ABC", parts, strict=True)))
    model = FederatedGaussianMixture(3, method, random_state=0).fit(transport)
    wanted = FederatedGaussianMixture(3, method, random_state=0).fit(parts)
    assert np.array_equal(model.means_, wanted.means_)
    for state, labels in zip(transport.states.values(), wanted.labels_, strict=True):
        assert (decode(state, Labels).labels == labels).all()


# Clients that leave, and clients that lie -------------------------------------------------------


class Leaving(GaussianMixtureClient):
    """A client that is gone from the nth request of a kind on."""

    def __init__(self, X, at, after=0):
        super().__init__(X)
        self.at, self.after = at, after

    def answer(self, request):
        if isinstance(request, self.at):
            self.after -= 1
            if self.after < 0:
                raise ConnectionError
        return super().answer(request)


def clients_with(last, parts):
    return {"A": GaussianMixtureClient(parts[0]), "B": GaussianMixtureClient(parts[1]), "C": last}


@pytest.mark.parametrize(
    ("method", "at"), [("em", SumResponsibilities), ("average", ImproveMixture)]
)
def test_a_client_leaves_between_rounds(method, at):
    """The rounds go on with the others' points, from the mixture that was."""
    parts = dealt(blobs())
    start = start_of(blobs(), 3, "full", np.random.default_rng(0))
    clients = clients_with(Leaving(parts[2], at, after=2), parts)
    estimator = FederatedGaussianMixture(3, method, max_rounds=5, tol=0, **start)
    model = clone(estimator).fit(InProcess(clients), min_clients=2)
    assert model.ledger_.lost == {"C": f"ConnectionError at {at.__name__}, step 4"}
    two = clone(estimator).set_params(max_rounds=2).fit(parts)
    then = {
        "weights_init": two.weights_,
        "means_init": two.means_,
        "precisions_init": two.to_sklearn().precisions_,
    }
    rest = clone(estimator).set_params(max_rounds=3, **then).fit(parts[:2])
    np.testing.assert_allclose(model.means_, rest.means_, rtol=1e-9)
    with pytest.raises(TooFewClients, match="2 of 3 clients left"):
        estimator.fit(InProcess(clients_with(Leaving(parts[2], at), parts)))


def test_likelihoods_of_other_clients_stop_nothing():
    """With this tol any two rounds are alike, but not those between which a client left."""
    parts = dealt(blobs())
    for after, n_rounds in ((9, 2), (1, 3)):
        last = Leaving(parts[2], SumResponsibilities, after)
        model = FederatedGaussianMixture(3, "em", tol=1e9, random_state=0)
        model.fit(InProcess(clients_with(last, parts)), min_clients=2)
        assert model.n_rounds_ == n_rounds


def test_another_client_starts_where_one_fails():
    X = blobs()
    clients = {name: Leaving(X, FitMixture) for name in "AB"} | {"C": GaussianMixtureClient(X)}
    for seed in range(4):
        model = FederatedGaussianMixture(3, "em", random_state=seed)
        model.fit(InProcess(clients), min_clients=1)
        assert set(model.ledger_.lost) <= {"A", "B"}
        asked = [entry.receiver for entry in model.ledger_ if entry.message == "FitMixture"]
        assert asked[-1] == "C"
        assert model.converged_


def test_labels_of_a_lost_part():
    """A part too far out is lost; its labels are None and the others' are there."""
    X = blobs()
    start = start_of(X, 2, "full", np.random.default_rng(0))
    model = FederatedGaussianMixture(2, "em", **start).fit([X, [[1e200, 0]]], min_clients=1)
    assert model.labels_[1] is None
    assert len(model.labels_[0]) == len(X)
    assert list(model.ledger_.lost) == ["1"]


def float64(*values):
    array = np.array(values, float)
    return ["float64", list(array.shape), array.tobytes()]


EYE, MEANS = np.eye(2), [[0.0, 0.0], [1.0, 1.0]]
LIES = {
    "ResponsibilitySums": {
        "a count below zero": {"counts": float64(-1.0, 5.0)},
        "counts of more points": {"counts": float64(3.0, 3.0)},
        "NaN": {"sums": float64([np.nan, 0], [0, 0])},
        "infinite": {"products": float64(np.inf * np.ones((2, 2)), EYE)},
        "another dimension": {"sums": float64([0.0], [0.0])},
        "one component": {
            "counts": float64(4.0),
            "sums": float64([0, 0]),
            "products": float64(EYE),
        },
        "products of another kind": {"products": float64(EYE)},
        "a negative variance": {"products": float64(-EYE, EYE)},
        "no covariance": {"products": float64([[1, 3], [3, 1]], EYE)},
        "sums larger than the products allow": {"sums": float64([9, 9], [0, 0])},
        "a sum of no points": {"counts": float64(0.0, 4.0), "sums": float64([1, 0], [0, 0])},
        "a mean out of range": {
            "sums": float64([2e100, 0], [0, 0]),
            "products": float64(1e201 * EYE, EYE),
        },
        "points below zero": {"n_points": -4},
        "a likelihood": {"log_likelihood": float("nan")},
    },
    "ImprovedMixture": {
        "weights of two": {"weights": float64(1.0, 1.0)},
        "a weight below zero": {"weights": float64(-0.5, 1.5)},
        "NaN": {"means": float64([np.nan, 0], [0, 0])},
        "no covariance": {"covariances": float64([[1, 2], [2, 1]], EYE)},
        "a skew covariance": {"covariances": float64([[1, 0.5], [0, 1]], EYE)},
        "singular": {"covariances": float64(np.zeros((2, 2)), EYE)},
        "another kind": {"covariance_type": "diag", "covariances": float64([[1, 1]], [[1, 1]])},
        "another dimension": {"means": float64([0], [1]), "covariances": float64([[1]], [[1]])},
        "one component": {
            "weights": float64(1.0),
            "means": float64([0, 0]),
            "covariances": float64(EYE),
        },
        "points below zero": {"n_points": -1},
        "improved on nothing": {"n_points": 0, "improved": True},
    },
    "LocalMixture": {
        "NaN": {"means": float64([np.nan, 0], [0, 0])},
        "another dimension": {"means": float64([0], [1]), "covariances": float64([[1]], [[1]])},
    },
}


@pytest.mark.parametrize(
    ("kind", "lie"), [(kind, lie) for kind, lies in LIES.items() for lie in lies]
)
def test_a_lying_client(relay, kind, lie):
    """It is lost with a `MessageError`; the run goes on and is that of the others."""
    X = blobs()
    parts = [X[:80], X[80:160], X[160:164]]
    told = []

    def tell(request, reply):
        fields = msgspec.msgpack.decode(reply)
        if fields["type"] != kind:
            return reply
        told.append(fields | LIES[kind][lie])
        return msgspec.msgpack.encode(told[-1])

    liar = "ABC" if kind == "LocalMixture" else "C"
    method = "average" if kind == "ImprovedMixture" else "em"
    start = {}
    if kind != "LocalMixture":
        start = start_of(X, 2, "full", np.random.default_rng(0))
    clients = clients_with(GaussianMixtureClient(parts[2]), parts)
    model = FederatedGaussianMixture(2, method, tol=0, max_rounds=2, random_state=0, **start)
    if kind == "LocalMixture":
        with pytest.raises(TooFewClients, match="InvalidReply at FitMixture"):
            model.fit(relay(clients, dict.fromkeys(liar, tell)), min_clients=1)
        return
    model.fit(relay(clients, {"C": tell}), min_clients=2)
    assert model.ledger_.lost["C"].startswith("InvalidReply at ")
    assert len(told) == 1
    assert np.array_equal(model.means_, clone(model).fit(parts[:2]).means_)


def test_shares_that_underflow_are_no_lie():
    """Sums of so small shares have few digits left, and no variance below zero is meant."""
    client = GaussianMixtureClient(blobs(30, apart=0))
    for apart in np.linspace(34, 42, 400):
        means = np.array([[0.0, 0.0], [apart, apart / 7]])
        request = SumResponsibilities(np.array([0.5, 0.5]), means, np.array([EYE, EYE]), "full")
        request.accept(client.handle(request))


def test_the_lies_differ_from_a_truth():
    """What is changed above was valid."""
    mixture = np.array([0.5, 0.5]), np.array(MEANS), np.array([EYE, EYE]), "full"
    sums = np.array([2.0, 2.0]), np.zeros((2, 2)), np.array([EYE, EYE])
    SumResponsibilities(*mixture).accept(ResponsibilitySums(4, -1.0, *sums))
    reply = ImprovedMixture(*mixture, 4, -1.0, True)
    ImproveMixture(*mixture, 1e-6, 10, 1e-3).accept(reply)


def test_the_most_that_a_client_may_say_overflows_nothing(relay):
    """A mean far out, within what is allowed, spoils the mixture, not the run."""

    def tell(request, reply):
        fields = msgspec.msgpack.decode(reply)
        if fields["type"] != "ResponsibilitySums":
            return reply
        lie = {
            "n_points": 2**40,
            "counts": float64(2.0**39, 2.0**39),
            "sums": float64([1e110, 0], [-1e110, 0]),
            "products": float64(1e240 * EYE, 1e240 * EYE),
            "log_likelihood": -1e200,
        }
        return msgspec.msgpack.encode(fields | lie)

    X = blobs()
    start = start_of(X, 2, "full", np.random.default_rng(0))
    clients = {"A": GaussianMixtureClient(X), "B": GaussianMixtureClient(X[:9])}
    model = FederatedGaussianMixture(2, "em", tol=0, max_rounds=4, **start)
    model.fit(relay(clients, {"B": tell}), min_clients=1)
    assert np.isfinite(model.means_).all()
    assert np.isfinite(model.covariances_).all()


def test_points_of_another_space(relay):
    parts = {"A": blobs(), "B": blobs(d=3)}
    with pytest.raises(ValueError, match="number of features: 2 at '0'; 3 at '1'"):
        FederatedGaussianMixture(2).fit(list(parts.values()))
    clients = {name: GaussianMixtureClient(X) for name, X in parts.items()}
    with pytest.raises(ValueError, match="number of features: 2 at 'A'; 3 at 'B'"):
        FederatedGaussianMixture(2).fit(relay(clients))
    named = [pd.DataFrame(blobs(), columns=list(names)) for names in ("xy", "yx")]
    clients = {name: GaussianMixtureClient(X) for name, X in zip("AB", named, strict=True)}
    with pytest.raises(ValueError, match="the features: x, y at 'A'; y, x at 'B'"):
        FederatedGaussianMixture(2).fit(relay(clients))


def test_a_lone_point_is_what_the_ledger_says_it_is():
    """A client with one point gives it away under em: sums over counts are the point."""
    mixture = np.array([0.5, 0.5]), np.array(MEANS), np.array([EYE, EYE]), "full"
    said = GaussianMixtureClient([[7.0, 8.0]]).handle(SumResponsibilities(*mixture))
    assert (said.sums[0] / said.counts[0] + MEANS[0]).tolist() == pytest.approx([7, 8])
    assert "(of one: itself)" in said.discloses


# Bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_components", 0),
        ("n_components", 1.5),
        ("method", "fedavg"),
        ("covariance_type", "round"),
        ("reg_covar", -1e-9),
        ("reg_covar", np.inf),
        ("max_rounds", 0),
        ("tol", -1.0),
        ("max_local_iter", 0),
        ("random_state", "seed"),
        ("weights_init", [0.5, 0.6]),
        ("weights_init", [1.0]),
        ("weights_init", [-1.0, 2.0]),
        ("means_init", [0.0, 1.0]),
        ("means_init", [[0.0], [np.nan]]),
        ("means_init", [[0.0]] * 3),
        ("precisions_init", np.ones((2, 2))),
        ("precisions_init", [np.eye(2), -np.eye(2)]),
        ("precisions_init", np.ones((2, 2, 3))),
    ],
)
def test_bad_parameters(name, value):
    """They are refused by name before any message leaves."""
    parameters = {"n_components": 2} | {name: value}
    with pytest.raises(ValueError, match=name):
        FederatedGaussianMixture(**parameters).protocol()


@pytest.mark.parametrize(
    "start",
    [
        {"means_init": [[0.0], [1.0]]},
        {"precisions_init": [np.eye(3), np.eye(3)]},
        {"covariance_type": "diag", "precisions_init": np.ones((2, 1))},
    ],
)
def test_a_start_of_another_dimension(start):
    with pytest.raises(ValueError, match=r"_init has \d features, the clients' points 2"):
        FederatedGaussianMixture(2, **start).fit(dealt(blobs()))


def test_covariances_that_collapse():
    """Without reg_covar equal points have no covariance; the error says what helps."""
    X = [[0.0], [0.0], [1.0], [2.0]]
    start = {"weights_init": [0.5, 0.5], "means_init": [[0], [100]]}
    with pytest.raises(MessageError, match="fewer components, a larger reg_covar"):
        FederatedGaussianMixture(
            1, "em", reg_covar=0, weights_init=[1], means_init=[[0]], precisions_init=[[[1]]]
        ).fit([X[:2]])
    model = FederatedGaussianMixture(2, "em", precisions_init=ONES["full"], **start)
    assert model.fit([X]).converged_


def test_functions_check_what_they_are_told():
    with pytest.raises(ValueError, match="method must be 'average' or 'em'; got 'x'"):
        next(federated_gaussian_mixture(2, "x"))
    with pytest.raises(NotFittedError):
        FederatedGaussianMixture(2).predict([[0.0, 0.0]])
    model = FederatedGaussianMixture(2, random_state=0).fit(dealt(blobs()))
    with pytest.raises(ValueError, match="the points have 3 features, the mixture 2"):
        model.predict(np.zeros((1, 3)))


def test_a_mixture_is_one():
    for wrong in (
        {"weights": np.array([0.5, 0.6])},
        {"covariances": np.array([-EYE, EYE])},
        {"covariances": np.array([EYE])},
    ):
        parts = {
            "weights": np.array([0.5, 0.5]),
            "means": np.array(MEANS),
            "covariances": np.array([EYE, EYE]),
            "covariance_type": "full",
        }
        Mixture(**parts)
        with pytest.raises(MessageError, match="Mixture"):
            Mixture(**parts | wrong)


def test_random_state():
    parts = dealt(blobs(apart=1.0))
    models = [FederatedGaussianMixture(3, random_state=s).fit(parts) for s in (1, 1, 2)]
    assert np.array_equal(models[0].means_, models[1].means_)
    assert not np.array_equal(models[0].means_, models[2].means_)


def test_it_is_an_estimator_of_scikit_learn():
    model = FederatedGaussianMixture(2, "em", tol=0.1)
    assert clone(model).get_params() == model.get_params()
    assert re.search(r"method='em', n_components=2", repr(model))
    parts = [part.copy() for part in dealt(blobs())]
    before = [part.copy() for part in parts]
    model.fit(parts)
    assert all(map(np.array_equal, parts, before))


def test_improve_stops_by_tol():
    X = blobs()
    mixture = fit_mixture(X, 3, random_state=0, max_iter=1)
    one = improve(X, mixture, max_iter=1)
    far = improve(X, mixture, tol=1e9)
    assert not np.array_equal(one.means, far.means)
    assert np.array_equal(far.means, improve(X, one, max_iter=1).means)


def test_a_client_keeps_no_state_but_labels():
    client = GaussianMixtureClient(blobs())
    nothing = np.empty(0), np.empty((0, 1)), np.empty((0, 1, 1))
    for request in (IntroducePoints(2), FitMixture(2, 2, "full", 1e-6, 0, *nothing)):
        reply = decode(serve(client, encode(request), print))
        assert client.state is None
    assert isinstance(reply, LocalMixture)
