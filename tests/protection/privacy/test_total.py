"""With noise, whether a client answers does not depend on its rows, nor does the size of its reply.

Every case is a conversation with a client of some rows, and with one that has a row more or none at
all. The requests may be nonsense, as long as they can be sent: a curious server chooses them.
"""

from unittest import mock

import hostile_server
import msgspec
import numpy as np
import pandas as pd
import pytest

from fedlib import (
    ApproximateDBSCAN,
    FederatedEvaluation,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedPCA,
    FederatedRegressionScore,
    FederatedSummary,
    FederatedXGBClassifier,
    FederatedXGBRegressor,
    HorizontalDBSCAN,
)
from fedlib.boosting import tree_client
from fedlib.boosting.client import BoostingClient, RegressionClient
from fedlib.boosting.cuts import bounded_cuts
from fedlib.boosting.descriptions import DescribeTargets, DescribeTraining
from fedlib.boosting.histograms import SumNoisyHistograms
from fedlib.boosting.messages import BeginBoosting, StartTrees
from fedlib.boosting.secure import gradient_limits, row_sensitivity
from fedlib.clustering.density.bounded_cells import CountWithNoise
from fedlib.clustering.kmeans.flow import SumClustersNoisily
from fedlib.clustering.mixtures.private import SumResponsibilitiesNoisily
from fedlib.core.messages import MessageError, decode, encode
from fedlib.core.protocol import TooFewClients
from fedlib.core.registry import protocols
from fedlib.evaluation.messages import CountClassScores, SumClippedErrors
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import NoisyRequest, Privacy
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.protection.secure.points import DescribeFeatures
from fedlib.tables.components.flow import SumClippedScatter
from fedlib.tables.summary.client import SummaryClient
from fedlib.tables.summary.private import (
    SumAgreedColumnsNoisily,
    SumColumnsNoisily,
    SumWeightedColumns,
)
from fedlib.testing import Recorder, seeded_noise

PRIVACY = Privacy(rho=1e-3)
BUDGET = {"budget": {"epsilon": 9.0, "delta": 1e-6}}
RNG = np.random.default_rng(0)
POINTS = RNG.random((30, 2)).astype(np.float32)
CUTS = bounded_cuts(np.array([[0.0, 0.0], [1.0, 1.0]]), 4)
MAX = np.finfo(np.float32).max


def answers(client, requests, protocol="", policy=BUDGET):
    """Return the kind and the size of each reply of a site with a budget."""
    return hostile_server.answers(
        GuardedClient(client, Policy.from_dict(policy), protocol), requests
    )


# Boosting ----------------------------------------------------------------------------------------


def begin(objective="binary:logistic", n_outputs=1, *, max_gradient=1.0, **options):
    """Return the request that starts a run over two features."""
    bits = row_sensitivity(gradient_limits(objective, max_gradient), 2, n_outputs).digits
    classes = () if objective.startswith("reg") else tuple(range(max(n_outputs, 2)))
    several = {"base_margins": (0.0,) * n_outputs} if n_outputs > 1 else {}
    return BeginBoosting(
        classes, 0.0, bits, CUTS.offsets, CUTS.thresholds, objective, **several, **options
    )


def histograms(feature=(), values=(), n_open=1, **changes):
    """Return a request for noisy histograms after the splits of some nodes."""
    n = len(feature)
    fields = {
        "decided": 0,
        "feature": np.array(feature, np.int32),
        "threshold": np.full(n, 0.5, np.float32),
        "missing_left": np.ones(n, bool),
        "values": np.array(values, np.float32),
        "first": 0,
        "n_open": n_open,
        "weight": 0.0,
        "wanted": np.ones(n_open, bool),
        "n_bins": len(CUTS.thresholds),
        "n_rounds": 0,
        "privacy": PRIVACY,
        "max_gradient": 1.0,
    }
    return SumNoisyHistograms(**{**fields, **changes})


def start(value):
    """Return a tree with two leaves, from which a run continues."""
    return StartTrees(
        base_margin=0.0,
        sizes=np.array([3]),
        feature=np.array([0, -1, -1], np.int32),
        threshold=np.array([0.5, 0.0, 0.0], np.float32),
        missing_left=np.ones(3, bool),
        value=np.array([0.0, value, -value], np.float32),
    )


HUGE = [0.0, MAX, MAX, -MAX, -MAX]
CONVERSATIONS = {
    "a node without a value": [begin(), histograms([0], [0.1, 0.2])],
    "a node of another round without a value": [
        begin(),
        histograms([0]),
        histograms([0, -1], [0, 0, 0], decided=1),
    ],
    "no values of roots": [begin("multi:softprob", 3), histograms(values=[0.0], n_open=3)],
    "another number of bins": [begin(), histograms(n_bins=0)],
    "no open node": [begin(), histograms(n_open=0)],
    "nodes beyond the tree": [begin(), histograms(first=7, n_open=3)],
    "splits of nodes that do not exist": [begin(), histograms([1, 0], decided=70)],
    "a split between the bins": [begin(), histograms([0], threshold=np.float32([0.123]))],
    "a missing feature": [begin(), histograms([2])],
    "parents of other nodes": [begin(), histograms([0, 1], parents=(0, 9), decided=1)],
    "another unit": [begin("reg:squarederror", max_gradient=1e6), histograms()],
    "huge leaves": [
        begin(),
        histograms([0], [0, MAX, MAX]),
        histograms([0], [0, MAX, MAX], n_rounds=1),
        histograms(n_rounds=2),
    ],
    "exponentials that underflow": [
        begin("multi:softprob", 3),
        histograms([0, 0, 0], [0, 0, 0, *[-1e30] * 6], n_open=3),
        histograms(n_rounds=1, n_open=3),
    ],
    "a huge margin": [begin(scale_pos_weight=2.0**40), start(MAX), histograms()],
    "infinite margins": [
        BeginBoosting((0, 1), 1e308, begin().bits, CUTS.offsets, CUTS.thresholds),
        histograms(),
    ],
    "no bins": [
        BeginBoosting((0, 1), 0.0, begin().bits, np.zeros(3, int), np.zeros(0, np.float32)),
        histograms(n_bins=0),
    ],
    "bins of another table": [
        BeginBoosting((0, 1), 0.0, begin().bits, np.array([0, 2]), np.ones(2, np.float32)),
        histograms(n_bins=2),
    ],
    "categories of numbers": [begin(levels=(("a", "b"), None)), histograms()],
    "categories of another table": [begin(levels=(None,) * 3), histograms()],
    "classes of text": [
        BeginBoosting(("0", "1"), 0.0, begin().bits, CUTS.offsets, CUTS.thresholds),
        histograms(),
    ],
    "a class that no row has": [
        BeginBoosting((7, 2**63), 0.0, begin().bits, CUTS.offsets, CUTS.thresholds),
        histograms(),
    ],
    "a regression of classes": [begin("reg:squarederror"), histograms()],
    "a sample of the rows": [begin(subsample=0.5), histograms()],
    "rows for validation": [DescribeTraining(0.3, 0.5, 1), begin(), histograms()],
}
ODD_ROWS = {
    "no row": [],
    "above": [[0.97, 0.5]],
    "far": [[1e38, -1e38]],
    "missing": [[np.nan, np.nan]],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_boosting_answers_for_all_rows_or_for_none(name):
    """The rows of the first client are all on one side of the splits at 0.5."""
    left = POINTS[POINTS[:, 0] < 0.5]
    found = set()
    for labels in (np.int64, bool):
        for more in ODD_ROWS.values():
            for rows in (left, left[:0]):
                X = np.vstack([rows, *np.float32(more).reshape(-1, 2)])
                client = BoostingClient((X, np.ones(len(X), labels)))
                found.add(tuple(answers(client, CONVERSATIONS[name], "xgboost")))
    assert len(found) == 1


def answers_for_targets(requests):
    """Return the replies of a site without rows, of one with huge targets, of one row."""
    parts = [(POINTS[:0], np.empty(0)), (POINTS, np.linspace(-1e12, 1e12, 30)), ([[0, 0]], [0.0])]
    return [answers(RegressionClient(part), requests, "xgb-regressor") for part in parts]


@pytest.mark.parametrize("objective", ["squarederror", "pseudohubererror", "logistic"])
@pytest.mark.parametrize("parameter", [0.0, 1e-300, 1e300])
def test_regressions_answer_for_all_targets(objective, parameter):
    requests = [begin(f"reg:{objective}", parameter=parameter), histograms()]
    found = answers_for_targets(requests)
    assert found[0] == found[1] == found[2]
    assert found[0][1][0] == "NoisyHistograms"


def test_an_objective_without_limits_of_a_row_has_no_noise_whatever_the_targets():
    start = msgspec.structs.replace(begin("reg:squarederror"), objective="reg:gamma")
    found = answers_for_targets([start, histograms()])
    assert found[0] == found[1] == found[2]
    assert found[0][1][0] != "NoisyHistograms"


TEXTS = pd.DataFrame({"a": [0.1] * 4, "b": np.array([None] * 4, object)})


@pytest.mark.parametrize("text", ["rare", "0.3", "1e3", ""])
def test_a_text_is_no_error(text):
    """In a column of texts without any, one text makes it a column of text."""
    more = pd.concat([TEXTS, pd.DataFrame({"a": [0.1], "b": [text]})], ignore_index=True)
    requests = [DescribeFeatures(), begin(), histograms()]
    found = [
        answers(BoostingClient((table, [0] * len(table))), requests, "xgboost")
        for table in (TEXTS, more)
    ]
    assert found[0] == found[1]
    assert [kind for kind, *_ in found[0]] == ["Features", "Done", "NoisyHistograms"]
    requests = [DescribeFeatures(), SumColumnsNoisily(PRIVACY, np.array([[0.0, 0], [1, 1]]), 3)]
    found = [answers(SummaryClient(table), requests, "summary") for table in (TEXTS, more)]
    assert found[0] == found[1]
    assert found[0][1][0] == "NoisyColumnSums"


def sums_without_noise(part, requests, kind=BoostingClient):
    """Return the last sums of a client and their sensitivity."""
    passed = []

    def note(values, sensitivity, privacy, n_shares):
        passed.append((np.array(values), sensitivity))
        return np.zeros(np.shape(values))

    client = kind(part)
    with mock.patch.object(tree_client, "add_noise", note):
        for request in requests:
            client.handle(decode(encode(request)))
    return passed[-1]


MEETINGS = {
    "one after the other": [histograms([0]), histograms([0, -1], decided=1, n_open=7)],
    "parents": [
        histograms([0], parents=(0,), decided=3),
        histograms([0], parents=(1,), decided=3, n_open=7),
    ],
    "a root": [histograms([0], parents=(0,), decided=1, n_open=7)],
}


@pytest.mark.parametrize("name", MEETINGS)
def test_the_rows_of_two_outputs_never_meet(name):
    """In one bin, the clipped gradients of both would add up.

    The gradients of a heavy row of the third class are 1 for the first two classes.
    """
    requests = [begin("multi:softprob", 3), *MEETINGS[name]]
    X, y, weight = np.full((2, 2), 0.3, np.float32), np.array([0, 2]), np.array([1.0, 1e6])
    whole, sensitivity = sums_without_noise((X, y, weight), requests)
    rest, _ = sums_without_noise((X[:1], y[:1], weight[:1]), requests)
    change = np.ldexp(whole - rest, sensitivity.digits)
    assert change.any()
    assert np.linalg.norm(change) <= sensitivity.units[1]


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
def test_a_run_has_as_many_margins_as_its_objective(objective):
    """Otherwise a client would read gradients beyond the end of their array."""
    classes = (0, 1) if objective.startswith("binary") else ()
    with pytest.raises(MessageError, match=f"{objective} with . classes has 1 margins, got 2"):
        BeginBoosting(
            classes, 0.0, 20, CUTS.offsets, CUTS.thresholds, objective, base_margins=(0.0, 0.0)
        )


def test_a_repeated_request_moves_no_row_again():
    once = [begin("multi:softprob", 2), histograms([0, 1], first=2, n_open=4)]
    first, _ = sums_without_noise((POINTS, [0, 1] * 15), once)
    again, _ = sums_without_noise((POINTS, [0, 1] * 15), [*once, once[1]])
    assert first.any()
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("n_more", [1, 3])
def test_equal_texts_and_numbers_are_counted_row_by_row(n_more):
    """Rows after the first ones turn the column into text; "0.3" is the same number before."""
    requests = [begin(), histograms()]
    few = pd.DataFrame({"a": [0.1], "b": ["0.3"]})
    more = pd.DataFrame({"a": [0.9] * n_more, "b": ["rare"] * n_more})
    parts = [few, more, pd.concat([few, more], ignore_index=True)]
    sums = [sums_without_noise((part, [1] * len(part)), requests)[0] for part in parts]
    np.testing.assert_array_equal(sums[0] + sums[1], sums[2])


def test_labels_are_either_text_or_numbers():
    """Otherwise one row more would turn the labels of all others into text."""
    for y in ([0, 1, "1"], np.array([0, 1, "1"], object)):
        with pytest.raises(ValueError, match="y must be either text or numbers; got both"):
            BoostingClient((POINTS[:3], y))
    with pytest.raises(ValueError, match="must be text or numbers like the other y; got '0' next"):
        BoostingClient((POINTS[:2], [0, 1], None, (POINTS[:2], ["0", "1"])))


@pytest.mark.parametrize("estimator", [FederatedXGBClassifier, FederatedXGBRegressor])
def test_a_sample_of_the_rows_is_refused(estimator):
    options = {"classes": [0, 1]}
    if estimator is FederatedXGBRegressor:
        options = {"base_score": 0.5, "max_gradient": 1.0}
    bounds = [[0, 0], [1, 1]]
    with pytest.raises(ValueError, match=r"epsilon needs subsample=1\.0 .got 0\.5"):
        estimator(
            method="histogram",
            epsilon=1.0,
            subsample=0.5,
            bounds=bounds,
            tol=None,
            **options,
        ).protocol()
    for requests in (
        CONVERSATIONS["a sample of the rows"],
        CONVERSATIONS["rows for validation"],
    ):
        client = BoostingClient((POINTS, [0, 1] * 15))
        for request in requests[:-1]:
            client.handle(request)
        with pytest.raises(ValueError, match="sums with noise must be over all rows"):
            client.handle(requests[-1])


# Sums of tables and points -----------------------------------------------------------------------

BOUNDS = np.array([[0.0, 0.0], [1.0, 1.0]])
NARROW = np.array([[[1e-300, 0.0], [0.0, 1e200]]])


def mixture(covariances, kind="full"):
    weights, means = np.array([0.5, 0.5]), np.array([[0.0, 0.0], [1e100, -1e100]])
    with mock.patch("fedlib.clustering.mixtures.messages.positive_definite", return_value=True):
        return SumResponsibilitiesNoisily(weights, means, covariances, kind, PRIVACY, BOUNDS)


def weighted(bounds, n_bins, max_weight, texts=(), lengths=(), categories=()):
    columns = np.arange(bounds.shape[1])
    texts, lengths = np.array(texts, np.int64), np.array(lengths, np.int64)
    return SumWeightedColumns(
        bounds, columns, n_bins, max_weight, texts, lengths, categories, privacy=PRIVACY
    )


def cells(low, shape, cell_size=0.1):
    return CountWithNoise(cell_size, np.array(low), np.array(shape), PRIVACY)


REQUESTS = {
    "no bins": (FederatedSummary, SumColumnsNoisily(PRIVACY, BOUNDS, 0)),
    "columns of another table": (FederatedSummary, SumColumnsNoisily(PRIVACY, BOUNDS[:, :1], 2)),
    "narrow bounds": (FederatedSummary, SumColumnsNoisily(PRIVACY, BOUNDS * 1e-320, 2)),
    "categories of numbers, and texts that are no categories": (
        FederatedSummary,
        SumAgreedColumnsNoisily(
            PRIVACY,
            BOUNDS[:, :1],
            2,
            np.array([0]),
            np.array([1, 1]),
            np.array([2, 1]),
            ("0.5", "true", "x"),
        ),
    ),
    "no centres": (FederatedKMeans, SumClustersNoisily(PRIVACY, BOUNDS, np.empty((0, 2)))),
    "far centres": (FederatedKMeans, SumClustersNoisily(PRIVACY, BOUNDS, BOUNDS * 1e100)),
    "features of other points": (
        FederatedKMeans,
        SumClustersNoisily(PRIVACY, BOUNDS[:, :1], BOUNDS[:, :1]),
    ),
    "a covariance that is not positive": (
        FederatedGaussianMixture,
        mixture(np.array([[[1.0, 2.0], [2.0, 1.0]]] * 2)),
    ),
    "densities that underflow": (FederatedGaussianMixture, mixture(np.repeat(NARROW, 2, 0))),
    "narrow components": (
        FederatedGaussianMixture,
        mixture(np.full((2, 1, 1), 5e-324), "spherical"),
    ),
    "the last cells": (HorizontalDBSCAN, cells([2**62, 2**62], [3, 3], 2.0**-62)),
    "cells beyond all numbers": (HorizontalDBSCAN, cells([2**62, 0], [2, 2], 1e300)),
    "the smallest cells": (ApproximateDBSCAN, cells([-(2**62), 2**62], [4, 4], 5e-324)),
    "too many cells": (ApproximateDBSCAN, cells([0, 0], [2**24, 2**24])),
    "cells of other points": (ApproximateDBSCAN, cells([0], [4])),
    "products of narrow limits": (
        FederatedPCA,
        SumClippedScatter(BOUNDS * 1e-320, privacy=PRIVACY),
    ),
    "products of other points": (FederatedPCA, SumClippedScatter(BOUNDS[:, :1], privacy=PRIVACY)),
    "tiny weights": (FederatedSummary, weighted(BOUNDS, 0, 5e-324)),
    "weights, and texts that are no categories": (
        FederatedSummary,
        weighted(BOUNDS[:, :1], 2, 1.0, [1, 1], [2, 1], ("0.5", "true", "x")),
    ),
    "weights of another table": (
        FederatedSummary,
        weighted(np.array([[0.0] * 3, [1.0] * 3]), 2, 1.0),
    ),
    "classes that rows do not have": (
        FederatedEvaluation,
        CountClassScores(classes=(1, 2), n_bins=3, privacy=PRIVACY),
    ),
    "probabilities of other classes": (
        FederatedEvaluation,
        CountClassScores(classes=(0, 1, 2), n_bins=3, privacy=PRIVACY),
    ),
    "errors between narrow limits": (
        FederatedRegressionScore,
        SumClippedErrors(BOUNDS[:, :1] * 1e-320, privacy=PRIVACY),
    ),
}
PARTS = {  # of an array of two columns
    FederatedEvaluation: lambda X: (np.clip(X[:, 0], 0, 1), (X[:, 1] > 0.5).astype(int)),
    FederatedRegressionScore: lambda X: (X[:, 0], X[:, 1]),
}
FAR = [1e300, -1e300, 5e-324, 0.0, 1.0, np.nextafter(1.0, 2.0), 1.0 + 2**-50, 1e100]


def client_of(estimator, table):
    part = PARTS.get(estimator, lambda X: X)
    return estimator.client_class(part(table))


@pytest.mark.parametrize("name", REQUESTS)
def test_sums_are_answered_for_all_rows_or_for_none(name):
    estimator, request = REQUESTS[name]
    largest = 1e100 if estimator in (FederatedSummary, FederatedRegressionScore) else 1e300
    found = set()
    tables = [np.empty((0, 2)), POINTS, *([[x, y]] for x in FAR for y in FAR)]
    with mock.patch("fedlib.clustering.mixtures.messages.positive_definite", return_value=True):
        for table in tables:
            try:
                client = client_of(estimator, np.clip(np.float64(table), -largest, largest))
            except ValueError:  # the site does not start with these rows
                continue
            found.add(tuple(answers(client, [DescribeFeatures(), request], estimator.name)))
    assert len(found) == 1


def test_a_summary_without_bins():
    table = pd.DataFrame({"a": [0.1, 0.2, 0.9]})
    with seeded_noise(0):
        model = FederatedSummary(
            quantiles=(), bounds={"a": (0.0, 1.0)}, n_bins=0, epsilon=50.0, delta=1e-5
        ).fit([table, table])
    assert model.model_.histograms.shape == (1, 0)
    assert model.to_frame()["mean"]["a"] == pytest.approx(0.4, abs=0.1)


def test_text_in_a_summary_with_noise_is_refused_before_any_message():
    tables = [pd.DataFrame({"a": [0.5]}), pd.DataFrame({"a": ["x"]})]
    with pytest.raises(ValueError, match=r"parts\[1\]: column 'a' must contain numbers, got 'x'"):
        FederatedSummary(quantiles=(), bounds={"a": (0, 1)}, epsilon=1.0).fit(tables)


# A site with a budget ----------------------------------------------------------------------------


def test_every_protocol_with_noise_is_in_the_table():
    """The cases above have all requests with noise that any client answers."""
    tested = {type(request) for _, request in REQUESTS.values()} | {SumNoisyHistograms}
    answered = {
        request
        for estimator in protocols().values()
        if estimator.__module__.startswith("fedlib.")
        for request in estimator.client_class.handlers
        if issubclass(request, NoisyRequest)
    }
    assert answered == tested


def test_open_requests_do_not_depend_on_rows():
    """These are free of charge; a new one needs a case above."""
    described = {
        request
        for estimator in protocols().values()
        if estimator.__module__.startswith("fedlib.")
        for request in estimator.client_class.open_requests
    }
    assert described == {DescribeFeatures, BeginBoosting, StartTrees}


@pytest.mark.parametrize("n_rows", [0, 1, 4, 5])
def test_the_number_of_rows_does_not_decide_on_replies_with_noise(n_rows):
    """A minimum count would disclose on which side of it the number of rows is."""
    policy = {**BUDGET, "min_count": 5}
    for estimator, request in REQUESTS.values():
        kinds = []
        for points in (POINTS[:n_rows], POINTS[:6]):
            client = client_of(estimator, points.astype(float))
            replies = answers(client, [DescribeFeatures(), request], "", policy)
            kinds.append([kind for kind, *_ in replies])
        assert kinds[0] == kinds[1]
        assert kinds[0][0] == "Features"
    client = BoostingClient((POINTS[:n_rows], [0] * n_rows))
    kinds = [kind for kind, *_ in answers(client, [begin(), histograms()], "xgboost", policy)]
    assert kinds == ["Done", "NoisyHistograms"]


def test_a_minimum_count_does_not_decline_masked_sums_with_noise():
    """The noise protects single rows; without it, the site cannot know the sums and declines."""
    parts = dict(zip("ABC", np.array_split(POINTS[:9].astype(float), 3), strict=True))
    identities = simulated_identities(list(parts))
    for options in ({"epsilon": 1.0, "delta": 1e-6}, {}):
        clients = {
            name: GuardedClient(
                SecureClient(FederatedKMeans.client_class(X), identities[name]),
                Policy.from_dict({"min_count": 5} | (BUDGET if options else {})),
                "kmeans",
            )
            for name, X in parts.items()
        }
        model = FederatedKMeans(
            2, method="lloyd", max_iter=2, secure=True, init=BOUNDS, bounds=BOUNDS, **options
        )
        if options:
            assert model.fit(Recorder(clients)).cluster_centers_.shape == (2, 2)
        else:
            with pytest.raises((TooFewClients, ValueError), match=r"min_count|declined"):
                model.fit(Recorder(clients))


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_no_power_whose_sums_no_reply_may_contain(power):
    with pytest.raises(MessageError, match=r"variance power of \d"):
        DescribeTargets(0.3, objective="reg:tweedie", parameter=power)
