"""The protocols that work with secure sums: equal to the plain runs, and clients that are lost."""

from itertools import count, pairwise, product

import numpy as np
import pandas as pd
import pytest

from fedlib import (
    ApproximateDBSCAN,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedPipeline,
    FederatedSummary,
    HorizontalDBSCAN,
)
from fedlib.clustering.kmeans import FederatedKMeansClient
from fedlib.clustering.kmeans.messages import SumClippedClusters
from fedlib.clustering.mixtures.client import SumClippedResponsibilities
from fedlib.clustering.mixtures.messages import MATRICES, covariance_shape
from fedlib.core.client import Client
from fedlib.core.in_process import InProcess
from fedlib.core.ledger import SERVER
from fedlib.core.messages import decode
from fedlib.core.protocol import TooFewClients, run
from fedlib.protection.estimator import mask_clients
from fedlib.protection.secure import ImpossibleSum, SecureClient, secure_sum, simulated_identities
from fedlib.protection.secure.messages import MaskValues, RevealShares
from fedlib.testing import Recorder

from .toy import at, changed

RNG = np.random.default_rng(0)
N_CLIENTS = 5
BLOBS = np.concatenate([RNG.normal(centre, 1, (60, 2)) for centre in ((0, 0), (9, 0), (0, 9))])
RNG.shuffle(BLOBS)
DYADIC = np.round(BLOBS * 2**20) / 2**20  # sums of these are exact in float64
START = DYADIC[:3]
BOUNDS = [[-12.0, -12.0], [40.0, 40.0]]
ONE = {"weights_init": [1.0], "means_init": [[3.0, 3.0]], "precisions_init": [np.eye(2)]}
IDENTITIES = simulated_identities([str(i) for i in range(N_CLIENTS)])


def parts(X):
    return np.array_split(X, N_CLIENTS)


def kmeans(X, **parameters):
    return FederatedKMeans(3, method="lloyd", init=START, **parameters).fit(parts(X))


def masked_kmeans(**parameters):
    parameters = {"bounds": BOUNDS} | parameters
    return FederatedKMeans(3, method="lloyd", init=START, secure=True, **parameters)


def masked_mixture(**parameters):
    parameters = ONE | {"bounds": BOUNDS} | parameters
    return FederatedGaussianMixture(1, method="em", secure=True, **parameters)


def transport(X, tamper=None, kind=FederatedKMeansClient):
    clients = {
        name: SecureClient(kind(part), IDENTITIES[name])
        for name, part in zip(IDENTITIES, parts(X), strict=True)
    }
    return Recorder(clients, tamper)


def mixture_clients(tamper=None):
    return transport(DYADIC, tamper, FederatedGaussianMixture.client_class)


@pytest.mark.parametrize("tol", [0, 1e-4])
def test_kmeans_is_bit_identical_when_the_sums_are_exact(tol):
    plain, secure = kmeans(DYADIC, tol=tol), masked_kmeans(tol=tol).fit(parts(DYADIC))
    assert secure.cluster_centers_.tolist() == plain.cluster_centers_.tolist()
    assert secure.n_iter_ == plain.n_iter_
    assert secure.inertia_ == pytest.approx(plain.inertia_, rel=1e-12)
    for ours, theirs in zip(secure.labels_, plain.labels_, strict=True):
        assert ours.tolist() == theirs.tolist()


def test_kmeans_keeps_the_stated_error():
    """One iteration, from the same start: the counts are equal, the sums are not."""
    X = BLOBS * np.pi
    plain, secure = kmeans(X, max_iter=1), masked_kmeans(max_iter=1).fit(parts(X))
    smallest = np.bincount(plain.predict(X)).min()
    limit = np.abs(BOUNDS).max()
    bound = N_CLIENTS**2 * 2.0**-62 * limit * len(X) / smallest
    error = np.abs(secure.cluster_centers_ - plain.cluster_centers_).max()
    assert error <= bound + 2 * np.spacing(limit)  # and the rounding of both


def test_kmeans_clips_points_to_the_bounds():
    bounds = np.array([[-1.0, -1.0], [8.0, 9.5]])
    inside = np.clip(DYADIC, *bounds)
    assert (inside != DYADIC).any(axis=0).all()
    expected = kmeans(inside)
    secure = masked_kmeans(bounds=bounds).fit(parts(DYADIC))
    assert secure.cluster_centers_.tolist() == expected.cluster_centers_.tolist()
    assert secure.n_iter_ == expected.n_iter_


def test_the_digits_of_kmeans_do_not_depend_on_the_points():
    """The requests before the first result, and the digits of all of them."""

    def digits(X):
        run = transport(X)
        masked_kmeans(max_iter=1, tol=0).fit(run)
        steps = [exchange.requests["0"] for exchange in run.exchanges]
        return [step.digits for step in steps if isinstance(step, MaskValues)]

    found = digits(DYADIC)
    assert [sorted(one) for one in found[:2]] == [[], ["inertias", "sums"]]
    assert digits(DYADIC / 2)[:2] == digits(DYADIC[::-1] + 1)[:2] == found[:2]


def test_a_site_refuses_other_digits_of_kmeans():
    request = SumClippedClusters(START[np.newaxis], np.array(BOUNDS), n_points=len(DYADIC))
    flow = secure_sum(request, count(1), {"sums": (8, 8), "inertias": (8,)})
    with pytest.raises(TooFewClients, match="WrongDigits at MaskValues"):
        run(flow, transport(DYADIC))


def test_no_message_of_kmeans_describes_one_client_alone():
    run = transport(DYADIC)
    masked_kmeans().fit(run)
    sent = {entry.message for entry in run.ledger if entry.sender != SERVER}
    assert sent == {
        "Features",
        "SignedKeys",
        "EncryptedShares",
        "MaskedValues",
        "Confirmation",
        "RevealedShares",
        "Done",
    }
    for part in parts(DYADIC):
        for value in (len(part), part.sum(axis=0)):
            assert np.asarray(value).astype("<f8").tobytes() not in run.all_bytes


def test_kmeans_goes_on_without_lost_clients():
    """From the sixth sum on: three of five clients are not enough, four are."""
    run = transport(DYADIC, {"1": at(MaskValues, None, nth=6)})
    model = masked_kmeans().fit(run, min_clients=4)
    assert list(model.ledger_.lost) == ["1"]
    assert model.n_iter_ > 1
    two = {name: at(RevealShares, None, nth=6) for name in "12"}
    with pytest.raises(TooFewClients, match="3 of 5 clients remain, 4 are needed"):
        masked_kmeans().fit(transport(DYADIC, two), min_clients=4)


def test_a_false_sum_ends_the_run_with_a_typed_error():
    lie = changed(words=lambda words: words + np.uint64(2**63))
    with pytest.raises(ImpossibleSum, match="so at least one client has sent wrong values"):
        masked_kmeans().fit(transport(DYADIC, {"2": at(MaskValues, lie)}))


def test_a_site_with_keys_takes_part_in_no_plain_run():
    with pytest.raises(TooFewClients, match="NotMasked at SummariseGroups"):
        FederatedKMeans(3, method="lloyd", init=START).fit(transport(DYADIC))


def test_a_site_without_keys_takes_part_in_no_secure_run():
    clients: dict[str, Client] = {
        str(i): FederatedKMeansClient(part) for i, part in enumerate(parts(DYADIC))
    }
    with pytest.raises(TypeError, match="TypeError at AdvertiseKeys"):
        masked_kmeans().fit(InProcess(clients))


def test_a_run_continues_from_its_journal(tmp_path):
    """Also in the middle of a sum: the states of the clients are in the journal."""
    path = tmp_path / "run.journal"
    estimator = masked_kmeans()
    whole = masked_kmeans().fit(parts(DYADIC))

    class Stop(BaseException):
        pass

    n_exchanges = [0]
    exchange = InProcess.exchange

    def until(self, requests):
        n_exchanges[0] += 1
        if n_exchanges[0] == 14:  # of the third sum
            raise Stop
        return exchange(self, requests)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcess, "exchange", until)
        with pytest.raises(Stop):
            estimator.fit(parts(DYADIC), journal=path)
    continued = estimator.fit(parts(DYADIC), journal=path)
    assert continued.cluster_centers_.tolist() == whole.cluster_centers_.tolist()
    assert continued.ledger_.lost == {}


# Summary ----------------------------------------------------------------------------------------


LIMITS = {"large": (1e6 - 8, 1e6 + 8), "small": (-8e-6, 8e-6), "gaps": (0, 8), "none": (-1, 1)}


def table(n=50):
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "large": rng.normal(1e6, 1, n),
            "small": rng.normal(0, 1e-6, n),
            "gaps": np.where(rng.random(n) < 0.3, np.nan, rng.integers(0, 9, n)),
            "none": np.full(n, np.nan),
        }
    )


def test_the_summary_has_the_moments_of_the_plain_run():
    frame = table()
    tables = [frame[:20], frame[20:21], frame[21:]]
    options = {"quantiles": (), "n_bins": 4, "bounds": LIMITS}
    plain, secure = (
        FederatedSummary(**options, secure=secure).fit(tables).model_ for secure in (False, True)
    )
    assert secure.counts.tolist() == plain.counts.tolist()
    assert (secure.n_rows, secure.features) == (50, plain.features)
    widths = np.array([high - low for low, high in LIMITS.values()])[:3]
    error = np.abs(secure.means - plain.means)[:3]
    bound = 3**2 * 2.0**-61 * widths * 50 / plain.counts[:3]
    assert (error <= bound + 2 * np.spacing(np.abs(plain.means[:3]))).all()
    np.testing.assert_allclose(secure.variances, plain.variances, rtol=1e-9)
    assert secure.histograms[:3].tolist() == plain.histograms[:3].tolist()
    assert np.isnan(secure.minima).all()
    assert np.isnan([secure.means[3], secure.variances[3]]).all()


def test_the_summary_clips_values_to_the_bounds_and_takes_texts_as_gaps():
    """One site has a text in the second column, so it has no numbers there."""
    tables = [
        pd.DataFrame({"x": [-5.0, 1.0], "y": ["1", "two"]}),
        pd.DataFrame({"x": [9.0], "y": [3]}),
    ]
    clients = {
        name: FederatedSummary.client_class(one) for name, one in zip("AB", tables, strict=True)
    }
    summary = FederatedSummary(quantiles=(), secure=True, bounds={"x": (0, 4), "y": (0, 4)})
    model = summary.fit(Recorder(mask_clients(clients))).model_
    assert model.counts.tolist() == [3, 1]
    assert model.means == pytest.approx([5 / 3, 3.0], rel=1e-15)  # of 0, 1 and 4
    with pytest.raises(ValueError, match="column 'y' must contain numbers"):
        summary.fit(tables)


def test_no_message_of_the_summary_describes_one_client_alone():
    run = Recorder(mask_clients({n: FederatedSummary.client_class(table()) for n in "ABC"}))
    FederatedSummary(quantiles=(), secure=True, bounds=LIMITS).fit(run)
    sent = {entry.message for entry in run.ledger if entry.sender != SERVER}
    steps = {"SignedKeys", "EncryptedShares", "MaskedValues", "Confirmation", "RevealedShares"}
    assert sent == {"Features", *steps}


def test_the_summary_of_no_rows():
    empty = pd.DataFrame({"x": np.empty(0)})
    summary = FederatedSummary(quantiles=(), secure=True, bounds={"x": (0, 1)})
    model = summary.fit([empty, empty]).model_
    assert (model.n_rows, model.counts.tolist()) == (0, [0])


# Mixture ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_the_mixture_is_that_of_the_plain_run(kind):
    precisions = {"full": [np.eye(2)] * 3, "tied": np.eye(2), "diag": np.ones((3, 2))}
    models = [
        FederatedGaussianMixture(
            3,
            method="em",
            covariance_type=kind,
            weights_init=[0.2, 0.3, 0.5],
            means_init=START,
            precisions_init=precisions.get(kind, np.ones(3)),
            max_rounds=5,
            tol=0,
            **protection,
        ).fit(parts(BLOBS))
        for protection in ({}, {"secure": True, "bounds": BOUNDS})
    ]
    plain, secure = models
    np.testing.assert_allclose(secure.means_, plain.means_, atol=1e-12)
    np.testing.assert_allclose(secure.covariances_, plain.covariances_, atol=1e-11)
    np.testing.assert_allclose(secure.lower_bounds_, plain.lower_bounds_, atol=1e-12)
    assert [x.tolist() for x in secure.labels_] == [x.tolist() for x in plain.labels_]


def test_the_mixture_clips_points_to_the_bounds():
    bounds = np.array([[-1.0, -1.0], [8.0, 9.5]])
    inside = np.clip(BLOBS, *bounds)
    assert (inside != BLOBS).any(axis=0).all()
    plain = FederatedGaussianMixture(1, method="em", max_rounds=1, tol=0, **ONE).fit(parts(inside))
    secure = masked_mixture(max_rounds=1, tol=0, bounds=bounds).fit(parts(BLOBS))
    np.testing.assert_allclose(secure.means_, plain.means_, atol=1e-12)
    np.testing.assert_allclose(secure.covariances_, plain.covariances_, atol=1e-11)
    np.testing.assert_allclose(secure.lower_bounds_, plain.lower_bounds_, atol=1e-12)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_the_digits_of_mixtures_have_room_for_points_at_the_bounds(kind):
    """Every sum of a client with all points on one corner is below the limit of its digits."""
    request = SumClippedResponsibilities(
        np.array([0.25, 0.75]),
        np.array([[-9.0, 40.0], [3.0, 0.0]]),
        np.full(covariance_shape(2, 2, kind), 0.5) * (np.eye(2) if kind in MATRICES else 1.0),
        kind,
        np.array(BOUNDS),
        n_points=50,
    )
    digits = request.sum_digits(N_CLIENTS)
    for corner in product(*np.transpose(BOUNDS)):
        client = FederatedGaussianMixture.client_class(np.tile(2.0 * np.array(corner), (50, 1)))
        sums = client.handle(request)
        for name, places in digits.items():
            room = 2.0 ** (63 - np.array(places)) / N_CLIENTS
            assert (np.abs(getattr(sums, name)) <= room).all(), (name, corner)


def test_a_site_refuses_other_digits_of_mixtures():
    spread = np.eye(2)[np.newaxis]
    points = np.array(BOUNDS), len(DYADIC)
    request = SumClippedResponsibilities(np.ones(1), START[:1], spread, "full", *points)
    digits = dict.fromkeys(("log_likelihood", "counts", "sums", "products"), (8,))
    with pytest.raises(TooFewClients, match="WrongDigits at MaskValues"):
        run(secure_sum(request, count(1), digits), mixture_clients())


def test_a_mixture_too_narrow_for_fixed_point_is_refused_by_the_server():
    """No site has sent a value: only the number of the points is known."""
    recorder = mixture_clients()
    narrow = masked_mixture(precisions_init=[1e300 * np.eye(2)])
    with pytest.raises(
        ValueError, match=r"must be below 2\*\*55, but a client's part of it can be"
    ):
        narrow.fit(recorder)
    asked = [step.requests["0"] for step in recorder.exchanges]
    assert sum(isinstance(step, MaskValues) for step in asked) == 1


# Cells ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("border", ["nearest", "absorb"])
def test_cells_are_those_of_the_plain_run(border):
    options = {"cell_size": 0.7, "min_samples": 3, "border": border, "random_state": 0}
    plain = HorizontalDBSCAN(**options).fit(parts(BLOBS))
    bounds = [BLOBS.min(axis=0) - 1, BLOBS.max(axis=0) + 2]
    secure = HorizontalDBSCAN(**options, secure=True, bounds=bounds).fit(parts(BLOBS))
    assert secure.cells_.tolist() == plain.cells_.tolist()
    assert secure.cell_counts_.tolist() == plain.cell_counts_.tolist()
    assert secure.cell_labels_.tolist() == plain.cell_labels_.tolist()
    assert [x.tolist() for x in secure.labels_] == [x.tolist() for x in plain.labels_]


def test_points_outside_of_the_grid_are_reported():
    """The points -0.5 and 7 are outside; -0.5 is next to a cluster."""
    model = HorizontalDBSCAN(1.0, 2, secure=True, bounds=[[0.0], [5.0]])
    with pytest.warns(UserWarning, match="2 points lie outside of the bounds"):
        model.fit([[[0.1], [-0.5]], [[0.2], [7.0]]])
    assert [labels.tolist() for labels in model.labels_] == [[0, 0], [0, -1]]


# Bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "text"),
    [
        (FederatedKMeans(2, bounds=BOUNDS), "bounds need secure=True or epsilon"),
        (masked_kmeans(bounds=None), "secure=True needs bounds, the smallest"),
        (masked_kmeans(bounds=[[0.0], [1.0]]), "bounds must have the 2 features of init, got 1"),
        (
            FederatedKMeans(2, method="one_shot", secure=True),
            "needs method='lloyd' and an array",
        ),
        (FederatedKMeans(2, secure=True), "got method='lloyd' and init='k-means"),
        (FederatedSummary(secure=True), r"needs quantiles=None"),
        (FederatedGaussianMixture(2, secure=True), "needs method='em', weights_init"),
        (FederatedGaussianMixture(1, bounds=BOUNDS), "bounds need secure=True or epsilon"),
        (masked_mixture(bounds=None), "secure=True needs bounds, the smallest"),
        (masked_mixture(bounds=[[0.0], [1.0]]), "means_init must have the 1 features"),
        (HorizontalDBSCAN(1.0, 2, secure=True), "secure=True needs bounds, the smallest"),
        (HorizontalDBSCAN(1.0, 2, bounds=[[0.0], [1.0]]), "bounds need secure=True or eps"),
        (
            HorizontalDBSCAN(1e-9, 2, secure=True, bounds=[[0.0], [1.0]]),
            "at most 16777216 cells, got 1e",
        ),
        (
            HorizontalDBSCAN(1.0, 2, secure=True, bounds=[[1.0], [0.0]]),
            "bounds of column 0 must be two numbers, the lower below the upper",
        ),
        (
            ApproximateDBSCAN(1.0, 2, secure=True),
            "secure=True needs bounds, the smallest",
        ),
        (
            ApproximateDBSCAN(1.0, 2, secure=True, bounds=[[0.0], [1.0]], max_cells=2**24 + 1),
            "max_cells must be at most 16777216 with bounds, got 16777217",
        ),
        (
            FederatedPipeline(FederatedKMeans(2, method="lloyd", init=START, secure=True)),
            "secure=True needs schema, because the pipeline",
        ),
    ],
)
def test_bad_parameters_raise_before_any_message(estimator, text):
    with pytest.raises(ValueError, match=text):
        estimator.protocol()


def test_bad_parts_raise_before_any_message():
    estimator = HorizontalDBSCAN(1.0, 2, secure=True, bounds=[[0.0], [5.0]])
    with pytest.raises(ValueError, match="secure=True needs at least 2 clients, got 1"):
        estimator.fit([[[1.0]]])
    with pytest.raises(ValueError, match="bounds must have the 2 features"):
        estimator.fit([[[1.0, 2.0]], [[1.0, 2.0]]])
    with pytest.raises(ValueError, match="bounds must have the 1 features of the clients' points"):
        masked_kmeans().fit([[[1.0]], [[2.0]]])
    with pytest.raises(ValueError, match="the clients have no points"):
        masked_kmeans().fit([np.empty((0, 2)), np.empty((0, 2))])


def test_requests_of_the_server_differ_per_round():
    """A message in the middle of a sum contains the protocol's request, which all must see."""
    run = transport(DYADIC)
    masked_kmeans(tol=0).fit(run)
    asked = [
        decode(exchange.requests["0"].request)
        for exchange in run.exchanges
        if isinstance(exchange.requests["0"], MaskValues)
    ]
    rounds = [request for request in asked if isinstance(request, SumClippedClusters)]
    assert len(rounds) > 2
    assert all(one != other for one, other in pairwise(rounds))


def test_products_that_no_points_have_end_the_run():
    """The last number of a sum is the variance of the last feature, and becomes negative."""
    lie = changed(words=lambda words: np.concatenate([words[:-1], words[-1:] - np.uint64(2**61)]))
    with pytest.raises(ImpossibleSum, match="covariances must be positive definite"):
        masked_mixture(max_rounds=2).fit(mixture_clients({"2": at(MaskValues, lie, nth=2)}))
