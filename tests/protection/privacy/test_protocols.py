"""Every protocol with epsilon: its sensitivity, its conversation, its errors, and lost clients."""

import math
import re
import warnings
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from fedlib import FederatedGaussianMixture, FederatedKMeans, HorizontalDBSCAN
from fedlib.clustering.kmeans import flow as private_kmeans
from fedlib.clustering.kmeans.flow import SumClustersNoisily, spread_start, sum_noisily
from fedlib.clustering.mixtures import private as private_mixtures
from fedlib.clustering.mixtures.messages import Mixture
from fedlib.clustering.mixtures.private import (
    SumResponsibilitiesNoisily,
    sum_responsibilities_noisily,
)
from fedlib.core.in_process import InProcess
from fedlib.core.messages import MessageError, decode, encode
from fedlib.core.protocol import TooFewClients
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import Budget, Privacy, rho_of
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.sites.models import load, save
from fedlib.testing import Recorder, seeded_noise

RNG = np.random.default_rng(0)
CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [6.0, 6.0]])
POINTS = np.repeat(CENTRES, 250, axis=0) + RNG.normal(0, 0.7, (1000, 2))
PARTS = {name: POINTS[i::4] for i, name in enumerate("ABCD")}
BOUNDS = np.array([[-3.0, -3.0], [9.0, 9.0]])
ALMOST_NO_NOISE = 1e6

KMEANS = FederatedKMeans(4, method="lloyd", max_iter=4, random_state=0, bounds=BOUNDS, epsilon=1.0)
MIXTURE = FederatedGaussianMixture(
    4, method="em", max_rounds=4, random_state=0, bounds=BOUNDS, epsilon=1.0
)
ESTIMATORS = [KMEANS, MIXTURE]
each_estimator = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.name)


def fresh(estimator, **changes):
    return type(estimator)(**{**estimator.get_params(), **changes})


def clients_of(estimator, parts=PARTS):
    made = {name: estimator.client_class(part) for name, part in parts.items()}
    if not estimator.secure:
        return made
    identities = simulated_identities(list(made))
    return {name: SecureClient(one, identities[name]) for name, one in made.items()}


# Sensitivity ------------------------------------------------------------------------------------

coordinates = st.lists(st.floats(-5, 12), min_size=2, max_size=2)
rows = st.lists(coordinates, min_size=1, max_size=12)
FULL = np.repeat(np.eye(2)[np.newaxis], 4, axis=0)


def kmeans_request(centres):
    return SumClustersNoisily(Privacy(rho=1.0), BOUNDS, centres)


def mixture_request(kind, covariances):
    weights = np.full(4, 0.25)
    privacy = Privacy(rho=1.0)
    return SumResponsibilitiesNoisily(weights, CENTRES, covariances, kind, privacy, BOUNDS)


def without_noise(module, answer, X, request):
    """Return what is passed to `add_noise`: the values and the sensitivity."""
    passed = []

    def note(values, sensitivity, privacy, n_shares):
        passed.append((np.array(values), sensitivity))
        return np.zeros(np.shape(values))

    with mock.patch.object(module, "add_noise", note):
        answer(np.array(X), request, 1)
    return passed[0]


@settings(max_examples=25)
@given(X=rows)
@pytest.mark.parametrize(
    ("module", "answer", "request_"),
    [
        (private_kmeans, sum_noisily, kmeans_request(CENTRES)),
        (private_mixtures, sum_responsibilities_noisily, mixture_request("full", FULL)),
        (private_mixtures, sum_responsibilities_noisily, mixture_request("tied", FULL[:1])),
        (
            private_mixtures,
            sum_responsibilities_noisily,
            mixture_request("spherical", 40 * np.ones((4, 1, 1))),
        ),
    ],
    ids=["kmeans", "full", "tied", "spherical"],
)
def test_one_row_changes_the_sums_by_the_sensitivity_at_most(module, answer, request_, X):
    with_row, sensitivity = without_noise(module, answer, X, request_)
    without_row, same = without_noise(module, answer, X[:-1], request_) if X[:-1] else (0, None)
    assert same in (None, sensitivity)  # it does not depend on the rows
    change = np.ldexp(with_row - without_row, sensitivity.digits)
    assert (change == np.rint(change)).all()
    assert np.count_nonzero(change) <= sensitivity.n_entries
    assert np.abs(change).sum() <= sensitivity.units[0]
    assert np.sqrt(np.square(change).sum()) <= sensitivity.units[1]


def test_a_row_at_a_corner_reaches_the_sensitivity_of_k_means():
    values, sensitivity = without_noise(
        private_kmeans, sum_noisily, [[99.0, -99.0]], kmeans_request(CENTRES)
    )
    assert values.tolist() == [[0, 0, 0], [1, -1, 1], [0, 0, 0], [0, 0, 0]]
    assert (sensitivity.l1, sensitivity.l2) == (3.0, math.sqrt(3))


@pytest.mark.parametrize("bounds", [[[0.0, 0.0], [1.0, 0.0]], [[0.0], [5e-324]], [[0.0]]])
def test_a_client_never_divides_by_bounds_of_no_width(bounds):
    bounds = np.array(bounds)
    centres = np.zeros((2, bounds.shape[1]))
    with pytest.raises(MessageError, match="must be two rows, the lower below the upper"):
        SumClustersNoisily(Privacy(rho=1.0), bounds, centres)
    covariances, weights = np.ones((2, 1, 1)), np.array([0.5, 0.5])
    with pytest.raises(MessageError, match="must be two rows, the lower below the upper"):
        SumResponsibilitiesNoisily(
            weights, centres, covariances, "spherical", Privacy(rho=1.0), bounds
        )


def test_densities_that_underflow_are_no_error():
    narrow = Mixture(np.array([0.0, 1.0]), CENTRES[:2], np.full((2, 1, 1), 1e-200), "spherical")
    request = SumResponsibilitiesNoisily(
        narrow.weights, narrow.means, narrow.covariances, "spherical", Privacy(rho=1.0), BOUNDS
    )
    values, _ = without_noise(
        private_mixtures, sum_responsibilities_noisily, [[1.0, 5.0], [6.0, 0.0]], request
    )
    assert np.isfinite(values).all()


# Results -----------------------------------------------------------------------------------------


def test_without_noise_k_means_is_lloyds():
    start = CENTRES + 1.5
    model = fresh(KMEANS, init=start, epsilon=ALMOST_NO_NOISE, delta=1e-6)
    with seeded_noise(0):
        model.fit(list(PARTS.values()))
    pooled = KMeans(4, init=start, n_init=1, max_iter=4, tol=0).fit(POINTS)
    np.testing.assert_allclose(model.cluster_centers_, pooled.cluster_centers_, atol=0.05)
    assert model.n_iter_ == 4
    assert math.isnan(model.inertia_)


@pytest.mark.filterwarnings("ignore:.*did not converge")
@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_without_noise_mixtures_are_those_of_em(kind):
    shapes = {"full": FULL, "tied": FULL[0], "diag": np.ones((4, 2)), "spherical": np.ones(4)}
    start = {
        "weights_init": np.full(4, 0.25),
        "means_init": CENTRES + 1.0,
        "precisions_init": shapes[kind],
    }
    model = fresh(MIXTURE, covariance_type=kind, epsilon=ALMOST_NO_NOISE, delta=1e-6, **start)
    with seeded_noise(0):
        model.fit(list(PARTS.values()))
    pooled = GaussianMixture(4, covariance_type=kind, max_iter=4, tol=0, **start).fit(POINTS)
    np.testing.assert_allclose(model.means_, pooled.means_, atol=0.05)
    np.testing.assert_allclose(model.covariances_, pooled.covariances_, atol=0.05)
    np.testing.assert_allclose(model.weights_, pooled.weights_, atol=0.01)


@each_estimator
@pytest.mark.parametrize("secure", [False, True])
def test_clusters_are_found_in_spite_of_the_noise(estimator, secure):
    with seeded_noise(0):
        model = fresh(estimator, epsilon=4.0, delta=1e-6, secure=secure)
        model.fit(list(PARTS.values()))
    centres = model.cluster_centers_ if estimator is KMEANS else model.means_
    distances = np.linalg.norm(centres[:, np.newaxis] - CENTRES, axis=2)
    assert sorted(distances.argmin(axis=1)) == [0, 1, 2, 3]
    assert distances.min(axis=1).max() < 1


@each_estimator
def test_hopeless_noise_gives_a_valid_model(estimator):
    with seeded_noise(0):
        model = fresh(estimator, epsilon=1e-4).fit(list(PARTS.values()))
    centres = model.cluster_centers_ if estimator is KMEANS else model.means_
    assert ((centres >= BOUNDS[0]) & (centres <= BOUNDS[1])).all()
    assert len(model.predict(POINTS)) == len(POINTS)


@pytest.mark.usefixtures("fixed_noise")
@each_estimator
@seeded_noise(0)
@pytest.mark.parametrize("noise", [{}, {"delta": 1e-6}, {"secure": True, "delta": 1e-6}], ids=str)
def test_too_many_rounds_are_a_warning_that_names_fewer(estimator, noise):
    """With a few rounds fewer than named there is no warning, and with a few more there is."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(group, 1, (300, 2)) for group in (0.0, 6.0, 0.0, 6.0)]
    name = "max_iter" if estimator is KMEANS else "max_rounds"
    k = "n_clusters" if estimator is KMEANS else "n_components"
    many = fresh(estimator, **{k: 2, "epsilon": 0.8, name: 60}, **noise)
    with pytest.warns(
        UserWarning, match=rf"noise .* rows: in each of the rounds \({name}=60\)"
    ) as seen:
        many.fit(parts)
    fewer = int(re.search(rf"; {name}=(\d+) makes it less than 10%", str(seen[0].message))[1])
    assert 1 <= fewer < 60
    with warnings.catch_warnings(record=True) as none:
        warnings.simplefilter("always")
        fresh(many, **{name: max(1, fewer * 3 // 4)}).fit(parts)
    assert not none
    with pytest.warns(UserWarning, match="noise is too large for the rows"):
        fresh(many, **{name: 2 * fewer}).fit(parts)


def test_a_start_is_spread_between_the_bounds():
    start = spread_start(4, BOUNDS, seed=0)
    np.testing.assert_allclose(start[np.lexsort(start.T.round())], CENTRES, atol=0.6)


@each_estimator
def test_a_model_can_be_saved(estimator, tmp_path):
    with seeded_noise(0):
        model = fresh(estimator).fit(list(PARTS.values()))
    save(model, tmp_path / "model.json")
    loaded = load(tmp_path / "model.json")
    np.testing.assert_array_equal(loaded.predict(POINTS), model.predict(POINTS))


# Conversations and failures ----------------------------------------------------------------------


@each_estimator
def test_the_losses_of_the_conversation_add_up_to_the_guarantee(estimator):
    transport = Recorder(clients_of(estimator))
    fresh(estimator, delta=1e-6).fit(transport)
    asked = [exchange.requests["A"] for exchange in transport.exchanges]
    losses = [request.privacy.rho for request in asked[1:-1]]
    assert len(losses) == 4
    assert 0.999 < sum(losses) / rho_of(1.0, 1e-6) <= 1
    described, *_, result = transport.ledger.conversation()
    assert (described, result) == ("DescribeFeatures", "Done")
    for message in [*asked, *(e.replies["A"] for e in transport.exchanges)]:
        assert decode(encode(message)) == message


@each_estimator
def test_the_bytes_do_not_depend_on_the_rows(estimator):
    sizes = []
    for parts in (PARTS, {name: part[:0] for name, part in PARTS.items()}):
        transport = Recorder(clients_of(estimator, parts))
        fresh(estimator, delta=1e-6, init=CENTRES) if estimator is KMEANS else None
        fresh(estimator, delta=1e-6).fit(transport)
        sizes.append([e.bytes for e in transport.ledger if e.receiver == "server"])
    assert sizes[0] == sizes[1]


@each_estimator
@pytest.mark.parametrize("secure", [False, True])
def test_a_lost_client_does_not_end_the_run(estimator, secure):
    estimator = fresh(estimator, secure=secure, delta=1e-6)
    silent = {"D": lambda request, reply: None if b"centres" in request else reply}
    if estimator.name == "gaussian-mixture":
        silent = {"D": lambda request, reply: None if b"covariances" in request else reply}
    with seeded_noise(0):
        estimator.fit(Recorder(clients_of(estimator), tamper=silent), min_clients=3)
    assert list(estimator.ledger_.lost) == ["D"]


def changed(name, change):
    """Return a function that replaces the arrays in replies of a class."""

    def tamper(request, reply):
        message = decode(reply)
        if type(message).__name__ != name:
            return reply
        fields = {field: change(getattr(message, field)) for field in message.__struct_fields__}
        kind = type(message)
        with mock.patch("fedlib.core.messages.Array.problem", return_value=None):
            return encode(kind(**fields))

    return tamper


@each_estimator
@pytest.mark.parametrize(
    "change", [lambda a: a[:-1], lambda a: a * 0 + 1e308], ids=["shorter", "huge"]
)
def test_a_lying_client_leaves_the_run(estimator, change):
    name = "NoisyClusterSums" if estimator is KMEANS else "NoisyResponsibilitySums"
    liar = {"B": changed(name, change)}
    with seeded_noise(0):
        model = fresh(estimator).fit(Recorder(clients_of(estimator), tamper=liar), min_clients=3)
    assert model.ledger_.lost["B"].startswith("InvalidReply at Sum")


@each_estimator
def test_a_site_declines_when_its_budget_is_spent(estimator):
    """Two of the four rounds fit into the budget of one site; then it leaves."""
    policies = {name: Policy(budget=Budget(0.5 if name == "A" else 9.0)) for name in PARTS}
    clients = {
        name: GuardedClient(client, policies[name], estimator.name)
        for name, client in clients_of(estimator).items()
    }
    model = fresh(estimator).fit(Recorder(clients), min_clients=3)
    assert model.ledger_.lost["A"].startswith("Declined (budget) at Sum")
    assert policies["A"].budget.spent == 0.5
    assert policies["B"].budget.spent == 1.0
    plain = fresh(estimator, epsilon=None, bounds=None)
    with pytest.raises((ValueError, TooFewClients), match=r"declined|budget"):
        plain.fit(Recorder(clients))


@each_estimator
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0}, "'epsilon' parameter .* must be a float in the range \\(0.0, inf\\)"),
        ({"epsilon": -1.0}, "'epsilon' parameter"),
        ({"delta": 1.0}, "'delta' parameter .* must be a float in the range \\[0.0, 1.0\\)"),
        ({"delta": -0.1}, "'delta' parameter"),
        ({"epsilon": 1e-9}, "epsilon must be larger: epsilon=2.5e-10 needs noise"),
        ({"bounds": None}, "epsilon needs bounds, the smallest and the largest value"),
        ({"bounds": [[0, 0], [0, 1]]}, "bounds of column 0 must be two numbers, the lower below"),
        ({"bounds": [[0, 0], [1, np.inf]]}, "bounds of column 1 must be two numbers"),
        ({"bounds": [["a", 0], [1, 1]]}, "two rows with a number per column"),
        ({"secure": True}, "secure=True with epsilon needs delta > 0, .* .got delta=0.0"),
        ({"bounds": [[0], [1]]}, "bounds must have the 2 features of the clients' points, got 1"),
    ],
)
def test_bad_input_is_refused_before_data_leave(estimator, changes, message):
    transport = Recorder(clients_of(estimator))
    with pytest.raises(ValueError, match=message):
        fresh(estimator, **changes).fit(transport)
    assert all(e.message in ("DescribeFeatures", "Features") for e in transport.ledger or ())


def test_methods_without_sums_are_refused():
    with pytest.raises(ValueError, match="epsilon needs method='lloyd', .*got method='one_shot'"):
        fresh(KMEANS, method="one_shot").protocol()
    with pytest.raises(ValueError, match="epsilon needs method='em', .*got method='average'"):
        fresh(MIXTURE, method="average").protocol()
    with pytest.raises(ValueError, match="bounds must have the 1 features of init, got 2"):
        fresh(KMEANS, init=np.zeros((4, 1))).protocol()
    with pytest.raises(ValueError, match="means_init must have the 2 features"):
        fresh(MIXTURE, means_init=np.zeros((4, 1))).protocol()


# Cells -------------------------------------------------------------------------------------------

CELLS = HorizontalDBSCAN(1.0, 10, bounds=BOUNDS, epsilon=2.0, delta=1e-6)


@pytest.mark.parametrize("secure", [False, True])
def test_noisy_cells_give_almost_the_clusters_of_exact_ones(secure):
    exact = HorizontalDBSCAN(1.0, 10).fit(list(PARTS.values()))
    with seeded_noise(0):
        noisy = fresh(CELLS, secure=secure).fit(list(PARTS.values()))
    labels = np.concatenate(noisy.labels_)
    assert adjusted_rand_score(np.concatenate(exact.labels_), labels) > 0.9
    assert set(labels) == {-1, 0, 1, 2, 3}
    transport = Recorder(clients_of(fresh(CELLS, secure=secure)))
    fresh(CELLS, secure=secure).fit(transport)
    expected = ["DescribeFeatures", "Features", "CountWithNoise", "NoisyCounts"]
    assert secure or transport.ledger.conversation() == [*expected, "AssignCells", "Done"]


def test_no_empty_cell_is_occupied_by_noise_alone():
    """The threshold is exceeded anywhere with a probability of 5 %; the seeds are fixed."""
    empty = [np.empty((0, 2))] * 3
    wide = [[-1000.0, -1000.0], [1000.0, 1000.0]]
    found = []
    for seed in range(3):
        with seeded_noise(seed):
            model = fresh(CELLS, bounds=wide, cell_size=20.0).fit(empty)
        found.append(len(model.cells_))
    assert found == [0, 0, 0]


def test_rows_outside_of_the_grid_do_not_show():
    counts = []
    for part in (np.full((5, 2), 1e300), np.empty((0, 2))):
        with seeded_noise(0):
            counts.append(fresh(CELLS).fit([part, part]).cell_counts_)
    np.testing.assert_array_equal(*counts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounds": None}, "epsilon needs bounds, the smallest"),
        ({"epsilon": None}, "delta needs epsilon, got delta=1e-06"),
        ({"epsilon": None, "delta": 0.0}, "bounds need secure=True or epsilon"),
        ({"secure": True, "delta": 0.0}, "secure=True with epsilon needs delta > 0"),
        ({"epsilon": 1e-12, "delta": 0.0}, "epsilon must be larger"),
    ],
)
def test_bad_parameters_of_cells(changes, message):
    with pytest.raises(ValueError, match=message):
        fresh(CELLS, **changes).fit(list(PARTS.values()))


@each_estimator
def test_parameters_without_epsilon_are_refused(estimator):
    with pytest.raises(ValueError, match="bounds need (secure=True or )?epsilon"):
        fresh(estimator, epsilon=None).protocol()
    with pytest.raises(ValueError, match="delta needs epsilon"):
        fresh(estimator, epsilon=None, bounds=None, delta=0.1).protocol()


@each_estimator
def test_the_bytes_are_those_of_any_other_transport(estimator):
    """Noise is random, so it is seeded: then threads and rebuilt clients send the same bytes."""

    def bytes_sent(transport):
        with seeded_noise(3):
            return fresh(estimator).fit(transport).predict(POINTS).tobytes()

    made = clients_of(estimator)
    rebuilt = Recorder(made, rebuild=lambda name: estimator.client_class(PARTS[name]))
    assert bytes_sent(rebuilt) == bytes_sent(InProcess(clients_of(estimator), n_jobs=3))
