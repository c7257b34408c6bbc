"""PPDBDC: examples by hand, what a client must never send, its noise, and false replies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score

from fedlib import PPDBDC
from fedlib.clustering.density.engine.dbscan import dbscan
from fedlib.clustering.density.ppdbdc import (
    AnotherDraw,
    BlurredRepresentatives,
    DrawRepresentatives,
    PPDBDCClient,
    blur,
)
from fedlib.clustering.density.representatives import RelabelPoints
from fedlib.core.messages import Failure, MessageError, decode, encode
from fedlib.core.protocol import serve
from fedlib.datasets.partition import split_rows
from fedlib.datasets.stand_ins import shapes

KINDS = ["one_sided", "centred"]


def request(eps_rep, n_representatives=None, noise=0.5, noise_kind="one_sided", min_weight=3):
    return DrawRepresentatives(eps_rep, n_representatives, noise, noise_kind, min_weight)


# Examples by hand -------------------------------------------------------------------------------

# With eps_rep 0.45, any point of a group covers the group.
FIRST = np.array([[0.0], [0.1], [0.4], [5.0], [9.0], [9.0], [9.0]])
SECOND = np.array([[1.0], [1.1], [1.3], [2.0], [2.3]])


def test_two_clients_by_hand():
    """0.1667 and 1.1333 represent three points each and are 0.967 apart, less than eps.

    5.0 is a single point, 9.0 are equal points, and 2.0 and 2.3 are two: their means get noise.
    """
    model = PPDBDC(eps=1.0, min_samples=6, random_state=0).fit([FIRST, SECOND])
    order = np.argsort(model.representatives_.ravel())
    places, weights = model.representatives_.ravel()[order], model.weights_[order]
    np.testing.assert_allclose(places[:2], [0.5 / 3, 3.4 / 3], rtol=1e-12)
    shifts = places[2:] - [2.15, 5.0, 9.0]
    assert (shifts > 0).all()
    assert (shifts < 0.5 * 0.45).all()
    assert weights.tolist() == [3, 3, 2, 1, 3]
    assert model.representative_labels_[order].tolist()[:2] == [0, 0]
    assert [part.tolist() for part in model.labels_] == [
        [0, 0, 0, -1, -1, -1, -1],
        [0, 0, 0, *[model.representative_labels_[order][2]] * 2],
    ]
    assert not hasattr(model, "radii_")
    assert model.ledger_.conversation() == [
        "DrawRepresentatives",
        "BlurredRepresentatives",
        "RelabelPoints",
        "Done",
    ]


def test_neighbourhoods_are_not_enlarged():
    """Slightly more than eps apart, two core representatives are two clusters."""
    three = np.array([[0.0], [0.1], [0.25]])  # their mean is not one of them, so it gets no noise
    for gap, clusters in ((0.99, 1), (1.01, 2)):
        model = PPDBDC(1.0, 3, random_state=0).fit([three, three + gap])
        assert len(set(model.representative_labels_.tolist())) == clusters


@pytest.mark.parametrize("eps_rep", [None, 0.45])
def test_the_default_radius(eps_rep):
    """It is below eps / 2, as P requires."""
    assert next(PPDBDC(1.0, 3, eps_rep=eps_rep).protocol()) == request(0.45)


# What a client must never send ------------------------------------------------------------------


@st.composite
def clients(draw):
    """Draw a client and a request. On a lattice, many points are equal, or equal to means."""
    n, d = draw(st.integers(0, 60)), draw(st.integers(1, 3))
    step = draw(st.sampled_from([1.0, 0.1, 1e-6, 1e6]))
    far = draw(st.sampled_from([0.0, 1e3, -1e6]))
    X = draw(hnp.arrays(np.int64, (n, d), elements=st.integers(-5, 5))) * step + far * step
    drawn_request = request(
        step * draw(st.sampled_from([0.4, 1.0, 1.5, 3.0])),
        draw(st.sampled_from([None, 1, 5])),
        draw(st.sampled_from([0.01, 0.5, 2.0])),
        draw(st.sampled_from(KINDS)),
        draw(st.integers(1, 4)),
    )
    return PPDBDCClient(X, random_state=draw(st.integers(0, 99))), drawn_request


@given(clients())
@settings(max_examples=300)
def test_a_client_never_sends_one_of_its_points(drawn):
    """It sends nothing that equals a point up to rounding, for any data and parameters."""
    client, drawn_request = drawn
    representatives = client.handle(drawn_request).representatives
    gaps = np.linalg.norm(representatives[:, None] - client.X, axis=2)
    assert gaps.min(initial=np.inf) > 0.9e-6 * drawn_request.noise * drawn_request.eps_rep


@given(clients())
def test_means_weights_and_noise(drawn):
    """Each point counts once; a representative is the mean of its points, perhaps with noise."""
    client, drawn_request = drawn
    eps_rep, amplitude = drawn_request.eps_rep, drawn_request.noise * drawn_request.eps_rep
    reply = client.handle(drawn_request)
    owner = client.state.owner
    n_representatives = len(reply.weights)
    counts = np.bincount(owner[owner >= 0], minlength=n_representatives)
    assert counts.tolist() == reply.weights.tolist()
    assert n_representatives <= (drawn_request.n_representatives or len(owner))
    if drawn_request.n_representatives is None:
        assert (owner >= 0).all()
    rounding = 1e-9 * eps_rep + 1e-14 * np.abs(client.X).max(initial=0)
    for r, place in enumerate(reply.representatives):
        covered = client.X[owner == r]
        mean = covered.mean(axis=0)
        assert np.linalg.norm(covered[:, None] - covered, axis=2).min(axis=0).max() <= eps_rep
        shift = place - mean
        few = len(np.unique(covered, axis=0)) < drawn_request.min_weight
        if np.abs(shift).max() > rounding:
            nearest = np.linalg.norm(client.X - mean, axis=1).min()
            assert few or nearest < 1.1e-6 * amplitude + rounding
            lowest = 0.0 if drawn_request.noise_kind == "one_sided" else -amplitude
            assert (shift >= lowest - rounding).all()
            assert (shift <= amplitude + rounding).all()
        else:
            assert not few


def test_few_representatives_are_enough():
    """No representative was covered before, so far fewer than 3,000 cover 3,000 points."""
    X = np.random.default_rng(0).random((3000, 2))
    client = PPDBDCClient(X, random_state=0)
    reply = client.handle(request(0.1))
    owner = client.state.owner
    width = [np.ptp(X[owner == r], axis=0).max() for r in range(len(reply.weights))]
    assert max(width) <= 0.2
    assert len(reply.weights) < 400


def test_no_coordinates_are_sent(relay):
    """No coordinate of a client's points is in the bytes of a run.

    The points are in general position; on a lattice, a mean may share a coordinate with a point.
    """
    rng = np.random.default_rng(0)
    parts = rng.uniform(size=(2, 60, 2))
    transport = relay({name: PPDBDCClient(X, 0) for name, X in zip("AB", parts, strict=True)})
    PPDBDC(0.2, 4).fit(transport)
    assert not [x for x in parts.ravel() if x.tobytes() in transport.all_bytes]


# Noise ------------------------------------------------------------------------------------------


def test_one_sided_noise_shifts_and_centred_noise_does_not():
    """Both move each coordinate by half the amplitude on average, P's noise always upwards."""
    X = np.arange(4000.0).reshape(-1, 2)
    shift = {
        kind: blur(X, np.ones(2000, bool), X, 0.5, kind, np.random.default_rng(0)) - X
        for kind in KINDS
    }
    for kind in KINDS:  # the standard error is 0.5 / sqrt(12 * 4000) = 0.0023
        assert abs(np.abs(shift[kind]).mean() - 0.25) < 0.01
    assert shift["one_sided"].min() > 0
    assert abs(shift["centred"].mean()) < 0.02
    assert 0.4 < (shift["centred"] > 0).mean() < 0.6


def test_noise_too_small_to_move_a_point():
    """The client fails instead of disclosing a point."""
    client = PPDBDCClient([[1e18, 0.0], [-1e18, 0.0]])
    with pytest.raises(
        ValueError, match="noise of at most 0.5 is lost in the rounding of coordinates up to 1e"
    ):
        blur(
            np.array([[1e18]]),
            np.array([True]),
            np.array([[1e18]]),
            0.5,
            "centred",
            np.random.default_rng(0),
        )
    assert serve(client, encode(request(1e-3)), print)
    on_a_line = PPDBDCClient([[1e18], [-1e18]])
    reply = serve(on_a_line, encode(request(1e-3)), lambda error: None)
    assert decode(reply) == Failure("ValueError")
    assert on_a_line.state is None


def test_the_seed_stays_with_the_client():
    """The server's requests are the same for every seed; each part gets another seed."""
    assert next(PPDBDC(1.0, 3, random_state=1).protocol()) == next(PPDBDC(1.0, 3).protocol())
    X = np.random.default_rng(0).random((100, 2))

    def places(random_state):
        return PPDBDC(0.3, 5, random_state=random_state).fit([X, X]).representatives_.tolist()

    assert places(0) == places(0)
    assert places(0) != places(1)
    assert places(None) != places(None)
    both = places(0)
    assert both[: len(both) // 2] != both[len(both) // 2 :]


def test_repeating_a_request_does_not_average_the_noise_out():
    X = np.random.default_rng(0).random((50, 2))
    for random_state in (None, 3):
        client = PPDBDCClient(X, random_state)
        assert client.handle(request(0.05)) == client.handle(request(0.05))


OTHER_DRAWS = {
    "noise": request(0.2, noise=1.0),
    "radius": request(0.1),
    "number": request(0.2, n_representatives=2),
    "kind": request(0.2, noise_kind="centred"),
    "weight": request(0.2, min_weight=1),
}


@pytest.mark.parametrize("draw", OTHER_DRAWS.values(), ids=OTHER_DRAWS)
@pytest.mark.parametrize("relabelled", [False, True])
def test_a_second_request_with_other_parameters_is_refused(draw, relabelled):
    """Also by a client that is rebuilt from its state; without it, two replies disclose points."""
    X = np.random.default_rng(0).random((50, 2)) * 9
    client, first, none = PPDBDCClient(X, 0), request(0.2), np.zeros(0, int)
    reply = client.handle(first)
    if relabelled:
        client.handle(RelabelPoints(none, np.zeros((0, 2)), np.zeros(0), none))
    rebuilt = PPDBDCClient(X)
    rebuilt.state = decode(encode(client.state))
    for one in (client, rebuilt):
        with pytest.raises(AnotherDraw, match="has answered DrawRepresentatives with other"):
            one.handle(draw)
        assert one.handle(first) == reply

    forgetful = PPDBDCClient(X, 0)
    double = forgetful.handle(request(0.2, noise=1.0))  # twice the noise of the first reply
    guesses = 2 * reply.representatives - double.representatives
    distances = np.linalg.norm(guesses[:, None] - X, axis=2).min(axis=1)
    assert (distances[reply.weights == 1] < 1e-9).mean() > 0.9


@pytest.mark.parametrize("random_state", [-1, "secret"])
def test_invalid_seeds(random_state):
    with pytest.raises((ValueError, TypeError)):
        PPDBDCClient(FIRST, random_state)


# Accuracy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_kind", KINDS)
def test_it_agrees_with_dbscan(noise_kind, by_row):
    """The shapes are far apart, over five clients, with the parameters of DBSCAN."""
    X, _ = shapes(4000)
    rows = split_rows(X, 5, how="uniform", random_state=0)
    model = PPDBDC(1.8, 10, noise_kind=noise_kind, random_state=0).fit([X[part] for part in rows])
    assert adjusted_rand_score(dbscan(X, 1.8, 10), by_row(rows, model.labels_)) > 0.99


def test_with_a_tiny_radius_it_is_dbscan(by_row):
    """Each point represents itself, and noise hardly moves it."""
    X, _ = shapes(1000)
    rows = split_rows(X, 4, how="uniform", random_state=0)
    model = PPDBDC(3.0, 8, eps_rep=1e-6, random_state=0).fit([X[part] for part in rows])
    assert adjusted_rand_score(dbscan(X, 3.0, 8), by_row(rows, model.labels_)) == 1.0


def test_an_early_stop():
    """Points that are not covered go to the nearest clustered representative within eps."""
    near, far = np.linspace(0, 0.9, 10)[:, None], np.array([[50.0]])
    model = PPDBDC(1.0, 2, eps_rep=0.2, n_representatives=1, random_state=3)
    model.fit([np.concatenate([near, far]), near + 0.01])
    assert len(model.representatives_) == 2
    assert model.weights_.sum() < 21
    expected = model.predict(far).tolist()
    assert model.labels_[0].tolist() == [0] * 10 + expected == [0] * 10 + [-1]


# False replies and invalid input ----------------------------------------------------------------


def test_too_many_representatives(relay, sends):
    """The client that sends them is lost."""
    false_reply = BlurredRepresentatives(np.array([[0.0], [1.0]]), np.array([5, 5]))
    clients = {"A": PPDBDCClient(FIRST, 0), "B": PPDBDCClient(SECOND, 0)}
    transport = relay(clients, {"B": sends(false_reply)})
    model = PPDBDC(1.0, 3, n_representatives=1).fit(transport, min_clients=1)
    assert model.ledger_.lost == {"B": "InvalidReply at DrawRepresentatives, step 1"}
    assert len(model.representatives_) == 1


@pytest.mark.parametrize("weights", [[0], [2**40 + 1], [1, 1]])
def test_invalid_weights(weights):
    with pytest.raises(MessageError):
        BlurredRepresentatives(np.array([[0.0]]), np.array(weights))


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"eps": np.inf}, "eps"),
        ({"min_samples": 0}, "min_samples"),
        ({"eps_rep": 0}, "eps_rep"),
        ({"n_representatives": 0}, "n_representatives"),
        ({"noise": 0}, "noise"),
        ({"noise_kind": "gaussian"}, "noise_kind"),
        ({"min_weight": 0}, "min_weight"),
        ({"random_state": "x"}, "random_state"),
    ],
)
def test_errors_name_the_parameter(parameters, name):
    with pytest.raises(ValueError, match=f"'{name}' parameter"):
        PPDBDC(**({"eps": 1.0, "min_samples": 3} | parameters)).fit([FIRST])


def test_parts_that_are_not_a_list():
    with pytest.raises(ValueError, match="parts must be a list"):
        PPDBDC(1.0, 3).fit(5)


def test_estimator_conventions():
    model = PPDBDC(0.5, 3, noise_kind="centred", random_state=0)
    assert repr(clone(model)) == repr(model)
    assert clone(model).get_params()["random_state"] == 0
