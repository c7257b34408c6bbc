"""The rounds: small examples by hand, agreement with scikit-learn, and properties of the result."""

import warnings
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from fedlib import FederatedGaussianMixture
from fedlib.clustering.mixtures.checks import log_density_range
from fedlib.clustering.mixtures.client import GaussianMixtureClient
from fedlib.clustering.mixtures.em import NOTHING_GIVEN, fit_mixture, log_joint
from fedlib.clustering.mixtures.flow import federated_gaussian_mixture, step_of_em
from fedlib.clustering.mixtures.messages import (
    AssignComponents,
    IntroducePoints,
    Mixture,
    PointsIntroduction,
    ResponsibilitySums,
    SumResponsibilities,
    positive_definite,
    sklearn_shape,
)
from fedlib.core.in_process import InProcess
from fedlib.core.ledger import Ledger
from fedlib.core.messages import Done, MessageError
from fedlib.core.protocol import Replies, run

from .points import (
    COVARIANCE_TYPES,
    METHODS,
    ONES,
    START,
    blobs,
    divided,
    draw_start,
    each_covariance_type,
    each_method,
)

# Small examples, by hand --------------------------------------------------------------------------


FIRST = [[-1.0], [1.0], [99.0]]
SECOND = [[3.0], [101.0]]


@each_covariance_type
def test_one_round_of_em(covariance_type):
    """The mean of -1, 1 and 3 is 1, the variance 8/3; of 99 and 101 they are 100 and 1."""
    model = FederatedGaussianMixture(
        2,
        "em",
        covariance_type=covariance_type,
        reg_covar=0.25,
        precisions_init=ONES[covariance_type],
        max_rounds=1,
        tol=0,
        **START,
    ).fit([FIRST, SECOND])
    assert model.weights_.tolist() == pytest.approx([0.6, 0.4])
    assert model.means_.ravel().tolist() == pytest.approx([1, 100])
    # Tied: the squared distances from the means sum to 8 and 2, for 5 points.
    wanted = [2 + 0.25] if covariance_type == "tied" else [8 / 3 + 0.25, 1.25]
    assert model.covariances_.ravel().tolist() == pytest.approx(wanted)
    assert model.covariances_.shape == ONES[covariance_type].shape
    assert [labels.tolist() for labels in model.labels_] == [[0, 0, 1], [0, 1]]
    assert (model.n_rounds_, model.converged_, model.n_features_in_) == (1, False, 1)
    # A point's likelihood is its component's: the squared distances from the first means sum to 11
    # and 2.
    density = 0.5 * np.log(2 * np.pi) + np.log(2)
    assert model.lower_bound_ == pytest.approx(-density - (1 + 1 + 9 + 1 + 1) / 2 / 5)


@pytest.mark.filterwarnings("ignore:.*have fewer than")
def test_one_round_of_averages():
    """A has the means 0 and 99 and three of five points, B the means 3 and 101 and two points."""
    model = FederatedGaussianMixture(
        2, "average", precisions_init=ONES["full"], reg_covar=0.5, max_rounds=1, tol=0, **START
    ).fit([FIRST, SECOND])
    assert model.weights_.tolist() == pytest.approx([(3 * 2 / 3 + 2 / 2) / 5, 2 / 5])
    assert model.means_.ravel().tolist() == pytest.approx([6 / 5, (3 * 99 + 2 * 101) / 5])
    # The variances are 1 and 0 at A, 0 and 0 at B, plus reg_covar.
    assert model.covariances_.ravel().tolist() == pytest.approx([3 / 5 + 0.5, 0.5])


def test_the_conversation_of_em():
    """One request and one reply per round. With a complete start, no client fits one."""
    model = FederatedGaussianMixture(
        2, "em", precisions_init=ONES["full"], max_rounds=3, tol=0, **START
    ).fit([FIRST, SECOND])
    rounds = ["SumResponsibilities", "ResponsibilitySums"] * 3
    first = ["IntroducePoints", "PointsIntroduction"]
    assert model.ledger_.conversation() == [*first, *rounds, "AssignComponents", "Done"]


def test_the_conversation_of_averages():
    """Exactly one client fits the first mixture."""
    model = FederatedGaussianMixture(2, "average", max_rounds=2, tol=0, random_state=0)
    model.fit(divided(blobs()))
    messages = model.ledger_.conversation()
    start = ["IntroducePoints", "PointsIntroduction", "FitMixture", "LocalMixture"]
    rounds = ["ImproveMixture", "ImprovedMixture"] * 2
    assert messages == [*start, *rounds, "AssignComponents", "Done"]
    assert [entry.message for entry in model.ledger_].count("FitMixture") == 1


def test_the_flow_by_hand():
    flow = FederatedGaussianMixture(
        2, "em", precisions_init=ONES["diag"], covariance_type="diag", max_rounds=1, **START
    ).protocol()
    assert next(flow) == IntroducePoints(2)
    request = flow.send(Replies({"A": PointsIntroduction(1, True, 7)}))
    start = np.array([0.5, 0.5]), np.array([[0.0], [100.0]]), np.ones((2, 1, 1)), "diag"
    assert request == SumResponsibilities(*start)
    sums = np.array([2.0, 2.0]), np.array([[2.0], [0.0]]), np.array([[[4.0]], [[6.0]]])
    request = flow.send(Replies({"A": ResponsibilitySums(4, -8.0, *sums)}))
    assert isinstance(request, AssignComponents)
    assert request.means.ravel().tolist() == pytest.approx([1, 100])
    assert request.covariances.ravel().tolist() == pytest.approx([1 + 1e-6, 3 + 1e-6])
    with pytest.raises(StopIteration) as finished:
        flow.send(Replies({"A": Done()}))
    assert finished.value.value.log_likelihoods == [-2.0]


# Agreement with scikit-learn ----------------------------------------------------------------------


def steps_of_sklearn(X, k, covariance_type, start, n_steps):
    """Yield scikit-learn's mixture after 1, 2, … steps; a warm start continues from the last."""
    model = GaussianMixture(
        k, covariance_type=covariance_type, tol=0, max_iter=1, warm_start=True, **start
    )
    with (
        warnings.catch_warnings(),
        threadpool_limits(1),
    ):  # threads only slow such small matrices down
        warnings.simplefilter("ignore", ConvergenceWarning)
        for _ in range(n_steps):
            yield model.fit(X)


def rounds_of(X, parts, k, covariance_type, start, n_rounds):
    """Yield the mixture that the server sends after each round and the round's likelihood."""
    clients = {str(i): GaussianMixtureClient(part) for i, part in enumerate(parts)}
    flow = FederatedGaussianMixture(
        k, "em", covariance_type=covariance_type, tol=0, max_rounds=n_rounds, **start
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


@each_covariance_type
@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=3)
def test_each_of_100_rounds_is_one_of_sklearns(covariance_type, seed, k, d, n_clients):
    """The division of the rows does not matter, if no component collapses to a point."""
    rng = np.random.default_rng(seed)
    X = StandardScaler().fit_transform(blobs(200, d, seed, apart=2.0))
    start = draw_start(X, k, covariance_type, rng)
    parts = divided(X, n_clients, seed)
    steps = list(rounds_of(X, parts, k, covariance_type, start, 100))
    assert len(steps) == 100
    assume(min(200 * step.weights.min() for step, _ in steps) > d + 2)
    for (ours, likelihood), theirs in zip(
        steps, steps_of_sklearn(X, k, covariance_type, start, 100), strict=True
    ):
        np.testing.assert_allclose(ours.weights, theirs.weights_, rtol=0, atol=1e-8)
        np.testing.assert_allclose(ours.means, theirs.means_, rtol=0, atol=1e-8)
        covariances = sklearn_shape(ours.covariances, covariance_type)
        np.testing.assert_allclose(covariances, theirs.covariances_, rtol=0, atol=1e-8)
        assert likelihood == pytest.approx(theirs.lower_bound_, abs=1e-8)


@each_covariance_type
def test_it_stops_when_scikit_learn_stops(covariance_type):
    X = blobs()
    start = draw_start(X, 3, covariance_type, np.random.default_rng(1))
    theirs = GaussianMixture(
        3, covariance_type=covariance_type, max_iter=500, tol=1e-5, **start
    ).fit(X)
    model = FederatedGaussianMixture(
        3, "em", covariance_type=covariance_type, max_rounds=500, tol=1e-5, **start
    ).fit(divided(X))
    assert (model.n_rounds_, model.converged_) == (theirs.n_iter_, True)
    assert model.lower_bound_ == pytest.approx(theirs.lower_bound_, abs=1e-10)
    assert model.lower_bounds_ == pytest.approx(theirs.lower_bounds_, abs=1e-10)
    assert (np.diff(model.lower_bounds_) > 0).all()
    labels = np.concatenate(model.labels_)
    assert (labels == theirs.predict(np.concatenate(divided(X)))).all()


# Properties of the result -------------------------------------------------------------------------


def test_averages_of_one_client_are_em_on_its_points():
    X = blobs()
    start = draw_start(X, 3, "full", np.random.default_rng(0))
    model = FederatedGaussianMixture(
        3, "average", max_rounds=1, tol=0, max_local_iter=7, **start
    ).fit([X])
    em = FederatedGaussianMixture(3, "em", max_rounds=7, tol=0, **start).fit([X])
    np.testing.assert_allclose(model.means_, em.means_, atol=1e-12)


@pytest.mark.parametrize(
    ("covariance_type", "needed"), [("full", 6), ("tied", 4), ("diag", 4), ("spherical", 4)]
)
def test_averages_warn_when_a_client_has_few_points(covariance_type, needed):
    """Two components in the plane. EM has no such limit, and a site without points is no reason."""
    X = blobs(60)
    options = {"covariance_type": covariance_type, "max_rounds": 1, "tol": 0, "random_state": 0}
    average = FederatedGaussianMixture(2, "average", **options)
    few = f"1 of 3 clients have fewer than {needed} points.* '1' \\({needed - 1}\\).*method='em'"
    with pytest.warns(ConvergenceWarning, match=few):
        average.fit([X, X[: needed - 1], X[:0]])
    with warnings.catch_warnings(action="error"):
        average.fit([X, X[:needed], X[:0]])
        average.set_params(method="em").fit([X, X[: needed - 1], X[:0]])


@each_covariance_type
@pytest.mark.parametrize("seed", range(3))
def test_averages_find_the_mixture_of_em(covariance_type, seed):
    """The rows are divided at random, and the clusters are far apart."""
    X = blobs(600, seed=seed, apart=12.0)
    parts = divided(X, 4, seed)
    start = draw_start(X, 3, covariance_type, np.random.default_rng(seed))
    start["means_init"] = fit_mixture(X, 3, random_state=seed).means
    options = {"covariance_type": covariance_type, **start}
    average = FederatedGaussianMixture(3, "average", **options).fit(parts)
    em = FederatedGaussianMixture(3, "em", **options).fit(parts)
    assert average.converged_
    assert average.score(X) == pytest.approx(em.score(X), abs=0.02)
    assert em.score(X) >= average.score(X) - 1e-3
    assert all((a == b).mean() > 0.98 for a, b in zip(average.labels_, em.labels_, strict=True))


@pytest.mark.filterwarnings(
    "ignore:.*(have no points|are equal|have fewer than|have different kinds of points)"
)
@given(st.integers(0, 2**31), st.sampled_from(COVARIANCE_TYPES), st.sampled_from(METHODS))
@settings(max_examples=15)
@example(760, "full", "average")  # two equal points far from the mean: asymmetric by rounding
def test_covariances_stay_positive_definite(seed, covariance_type, method):
    """Clients may have points of one cluster only, few points, or many equal points."""
    rng = np.random.default_rng(seed)
    X = np.round(blobs(60, 2, seed), 0)
    cuts = np.sort(rng.integers(0, 61, size=3))
    parts = np.split(X[np.argsort(X[:, 0])], cuts)
    model = FederatedGaussianMixture(
        3,
        method,
        covariance_type=covariance_type,
        max_rounds=9,
        tol=0,
        max_local_iter=9,
        random_state=seed,
    ).fit(parts)
    spread = model.covariances_
    if covariance_type in ("full", "tied"):
        spread = np.linalg.eigvalsh(spread)
    assert (spread > 0).all()
    assert np.isfinite(model.means_).all()
    assert np.isfinite(model.lower_bounds_).all()
    assert model.weights_.sum() == pytest.approx(1)


@each_method
def test_the_order_of_clients_and_rows_does_not_matter(method):
    X = blobs()
    start = draw_start(X, 3, "full", np.random.default_rng(0))
    parts = divided(X)
    wanted = FederatedGaussianMixture(3, method, **start).fit(parts)
    reversed_parts = [part[::-1] for part in parts[::-1]]
    model = FederatedGaussianMixture(3, method, **start).fit(reversed_parts)
    np.testing.assert_allclose(model.means_, wanted.means_, rtol=1e-9)
    for one, other in zip(wanted.labels_, model.labels_[::-1], strict=True):
        assert (one == other[::-1]).all()


@each_covariance_type
def test_no_digits_are_lost_far_from_the_origin(covariance_type):
    """Second moments about an origin at a distance of 1e6 leave four digits of a variance of 1."""
    X = np.round(blobs() * 2**10) / 2**10
    far = X + 2**20
    start = draw_start(X, 3, covariance_type, np.random.default_rng(0))
    here = FederatedGaussianMixture(
        3, "em", covariance_type=covariance_type, tol=0, max_rounds=20, **start
    )
    there = clone(here).set_params(means_init=start["means_init"] + 2**20)
    here.fit(divided(X))
    there.fit(divided(far))
    np.testing.assert_allclose(there.covariances_, here.covariances_, rtol=1e-7)
    np.testing.assert_allclose(there.means_ - 2**20, here.means_, atol=1e-8)


@pytest.mark.filterwarnings("ignore:.*(have no points|are equal)")
@each_covariance_type
@each_method
def test_a_component_without_points(covariance_type, method):
    """It keeps its mean, and its covariance unless that is tied. Its weight becomes almost 0."""
    X = blobs(60, apart=0)
    precisions = {"full": [np.eye(2)] * 2, "tied": np.eye(2), "diag": np.ones((2, 2))}
    model = FederatedGaussianMixture(
        2,
        method,
        covariance_type=covariance_type,
        weights_init=[0.5, 0.5],
        means_init=[[0, 0], [1e4, 0]],
        precisions_init=precisions.get(covariance_type, np.ones(2)),
        tol=0,
        max_rounds=5,
    ).fit(divided(X))
    assert model.means_[1].tolist() == [1e4, 0]
    assert 0 < model.weights_[1] < 1e-10
    if covariance_type != "tied":
        assert np.array_equal(
            model.covariances_[1],
            np.ones_like(model.covariances_)[1] * (np.eye(2) if covariance_type == "full" else 1),
        )
    assert not np.concatenate(model.labels_).any()
    assert (model.to_sklearn().predict(X) == 0).all()


def test_points_far_from_all_components():
    """Their densities underflow to 0, their responsibilities do not."""
    X = np.array([[0.0], [1.0], [1e6], [-1e6]])
    start = {**START, "means_init": [[0.0], [1.0]], "precisions_init": ONES["full"]}
    model = FederatedGaussianMixture(2, "em", max_rounds=1, tol=0, **start).fit([X])
    assert np.isfinite(model.lower_bound_)
    assert model.means_.ravel().tolist() == pytest.approx([-5e5, 5e5], rel=0.5)


# Clients with few points, and covariances that collapse -------------------------------------------


@pytest.mark.filterwarnings("ignore:.*have fewer than")
@each_method
def test_clients_with_few_points(method):
    """Empty clients change nothing, and in averages, clients with too few points do not either."""
    X = blobs()
    parts = divided(X)
    start = draw_start(X, 3, "full", np.random.default_rng(0))
    small = [[] if method == "em" else X[:2], X[:0]]
    small = [np.reshape(part, (-1, 2)) for part in small]
    options = {"tol": 0, "max_rounds": 5}
    wanted = FederatedGaussianMixture(3, method, **options, **start).fit(parts)
    model = FederatedGaussianMixture(3, method, **options, **start).fit([*small, *parts])
    np.testing.assert_allclose(model.means_, wanted.means_, rtol=1e-12)
    assert [len(part) for part in model.labels_] == [len(part) for part in [*small, *parts]]


@pytest.mark.parametrize(
    ("method", "start", "text"),
    [
        ("em", {}, "n_components=2 needs at least 2 distinct points"),
        ("em", {"precisions_init": ONES["full"]} | START, "the clients have no points"),
        (
            "average",
            {"precisions_init": ONES["full"]} | START,
            "no client can improve the mixture: it needs one point per component",
        ),
    ],
)
def test_only_empty_clients(method, start, text):
    with pytest.raises(ValueError, match=text):
        FederatedGaussianMixture(2, method, **start).fit([np.empty((0, 1))] * 2)


def test_covariances_that_collapse():
    """Without reg_covar, equal points have no covariance. The error suggests remedies."""
    X = [[0.0], [0.0], [1.0], [2.0]]
    start = {"weights_init": [0.5, 0.5], "means_init": [[0], [100]]}
    with pytest.raises(MessageError, match="fewer components, a larger reg_covar"):
        FederatedGaussianMixture(
            1, "em", reg_covar=0, weights_init=[1], means_init=[[0]], precisions_init=[[[1]]]
        ).fit([X[:2]])
    model = FederatedGaussianMixture(2, "em", precisions_init=ONES["full"], **start)
    with pytest.warns(ConvergenceWarning, match=r"the components \[1\] have no points"):
        assert model.fit([X]).converged_


NEARLY_SINGULAR = {
    "a constant column": lambda B: np.c_[B, np.ones(len(B))],
    "a multiple": lambda B: np.c_[B, 2 * B[:, 0]],
    "a sum": lambda B: np.c_[B, B.sum(axis=1)],
    "scales apart": lambda B: B * [1e-9, 1e3],
}


@each_method
@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
@pytest.mark.parametrize("columns", NEARLY_SINGULAR)
def test_without_reg_covar_no_client_is_rejected(columns, covariance_type, method):
    """A singular fit ends with the documented error; rounding decides for collinear columns."""
    X = NEARLY_SINGULAR[columns](blobs())
    transport = InProcess(dict(zip("ABC", map(GaussianMixtureClient, divided(X)), strict=True)))
    model = FederatedGaussianMixture(
        2, method, covariance_type=covariance_type, reg_covar=0, max_rounds=20, tol=1e-9,
        random_state=0,
    )  # fmt: skip
    ledger, problem, likelihoods = Ledger(), "", [0.0]
    try:
        fitted = run(model.protocol(), transport, min_clients=1, ledger=ledger)
        likelihoods = fitted.log_likelihoods
    except ValueError as error:
        problem = str(error)
    assert np.isfinite(likelihoods).all()
    assert "larger reg_covar" in problem or columns != "a constant column"
    assert problem == "" or ("larger reg_covar" in problem and columns != "scales apart")
    assert ledger.lost == {}
    assert transport.errors == {}


def test_clients_of_a_similar_size_stay_when_the_fit_is_singular():
    """Without the third client, the points would be on a line, too, but its rows are no lie."""
    line = np.c_[np.arange(20.0), np.arange(20.0)]
    parts = {"A": line, "B": line + np.array([0, 1e-3]), "C": 4.0 * line}
    transport = InProcess({name: GaussianMixtureClient(X) for name, X in parts.items()})
    whole = step_of_em

    def singular_with_all(mixture, replies, reg_covar):
        if len(replies) == 3:
            raise MessageError("covariances must be positive definite")
        return whole(mixture, replies, reg_covar)

    ledger, flow = Ledger(), FederatedGaussianMixture(1, "em", random_state=0).protocol()
    with (
        mock.patch("fedlib.clustering.mixtures.flow.step_of_em", singular_with_all),
        pytest.raises(MessageError, match="positive definite"),
    ):
        run(flow, transport, min_clients=1, ledger=ledger)
    assert ledger.lost == {}


@pytest.mark.parametrize("seed", range(20))
def test_the_range_of_log_densities_contains_those_of_all_points(seed):
    """Also for covariances that are singular but for rounding, and features of unequal scales."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 6))
    factors = rng.normal(size=(3, d, d)) * 10.0 ** rng.uniform(-9, 9, d)[:, np.newaxis]
    factors[:, :, 0] *= 10.0 ** rng.uniform(-9, 0)
    matrices = factors @ factors.mT
    matrices = (matrices + matrices.mT) / 2
    if not positive_definite(matrices, "full"):
        matrices = matrices + np.eye(d) * 1e-12 * np.abs(matrices).max()
    limit = 10.0 ** rng.uniform(-2, 6)
    mixture = Mixture(rng.dirichlet(np.ones(3)), rng.normal(size=(3, d)) * limit, matrices, "full")
    X = np.r_[rng.uniform(-limit, limit, (500, d)), limit * rng.choice([-1.0, 1.0], (500, d))]
    densities = np.logaddexp.reduce(log_joint(np.r_[X, mixture.means], mixture), axis=1)
    low, high = log_density_range(mixture, limit + np.abs(mixture.means))
    assert low - 1e-6 * abs(low) <= densities[:-3].min()
    assert densities.max() <= high + 1e-6 * abs(high)


def test_the_flow_checks_its_method():
    with pytest.raises(ValueError, match="method must be one of 'average', 'em'; got 'x'"):
        next(federated_gaussian_mixture(2, "x", "full", 0.0, NOTHING_GIVEN, 1, 0.0, 1, 1, 0, ()))
