"""PPDBDC: toys by hand, what it may never send, its noise, and lies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score

from fedlib import PPDBDC
from fedlib.datasets.shapes import shapes
from fedlib.dbscan import dbscan
from fedlib.messages import Failure, MessageError, decode, encode
from fedlib.partition import split_rows
from fedlib.protocol import serve
from fedlib.representatives.ppdbdc import (
    BlurredRepresentatives,
    DrawRepresentatives,
    PPDBDCClient,
    blur,
)
from fedlib.transports.in_process import InProcess

KINDS = ["one_sided", "centred"]


def request(eps_rep, n_representatives=None, noise=0.5, noise_kind="one_sided", min_weight=3):
    return DrawRepresentatives(eps_rep, n_representatives, noise, noise_kind, min_weight)


def fitted(model, X, rows):
    """Fit clients with these rows of X; return the labels in the order of X."""
    model.fit([X[own] for own in rows])
    labels = np.empty(len(X), int)
    for own, part in zip(rows, model.labels_, strict=True):
        labels[own] = part
    return labels


# A toy, by hand ---------------------------------------------------------------------------------

# Groups so narrow that whichever point is drawn covers its group: eps_rep 0.45.
FIRST = np.array([[0.0], [0.1], [0.4], [5.0], [9.0], [9.0], [9.0]])
SECOND = np.array([[1.0], [1.1], [1.3], [2.0], [2.3]])


def test_toy():
    """Eps 1: 0.1667 stands for three, 1.1333 for three; together six, and they are 0.967 apart.

    5.0 is alone, 9.0 is three times the same place, and 2.0 and 2.3 are two: these get noise.
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


def test_neighbourhoods_are_not_widened():
    """At the distance eps + a little two heavy representatives stay two clusters."""
    three = np.array([[0.0], [0.1], [0.25]])  # their mean is none of them, so no noise is added
    for gap, clusters in ((0.99, 1), (1.01, 2)):
        model = PPDBDC(1.0, 3, random_state=0).fit([three, three + gap])
        assert len(set(model.representative_labels_.tolist())) == clusters


@pytest.mark.parametrize("eps_rep", [None, 0.45])
def test_the_default_radius(eps_rep):
    """The default lies below eps / 2, as P demands."""
    assert next(PPDBDC(1.0, 3, eps_rep=eps_rep).protocol()) == request(0.45)


# What may never be sent -------------------------------------------------------------------------


@st.composite
def clients(draw):
    """Draw points on a lattice, where means coincide with points and points with one another."""
    n, d = draw(st.integers(0, 60)), draw(st.integers(1, 3))
    step = draw(st.sampled_from([1.0, 0.1, 1e-6, 1e6]))
    far = draw(st.sampled_from([0.0, 1e3, -1e6]))
    X = draw(hnp.arrays(np.int64, (n, d), elements=st.integers(-5, 5))) * step + far * step
    asked = request(
        step * draw(st.sampled_from([0.4, 1.0, 1.5, 3.0])),
        draw(st.sampled_from([None, 1, 5])),
        draw(st.sampled_from([0.01, 0.5, 2.0])),
        draw(st.sampled_from(KINDS)),
        draw(st.integers(1, 4)),
    )
    return PPDBDCClient(X, random_state=draw(st.integers(0, 99))), asked


@given(clients())
@settings(max_examples=300)
def test_a_client_never_sends_a_point_of_its_own(drawn):
    """Nor anything nearer to one than rounding could bridge, whatever its data and parameters."""
    client, asked = drawn
    said = client.handle(asked).representatives
    gaps = np.linalg.norm(said[:, None] - client.X, axis=2)
    assert gaps.min(initial=np.inf) > 0.9e-6 * asked.noise * asked.eps_rep


@given(clients())
def test_means_weights_and_noise(drawn):
    """Each point counts once; a representative is the mean of its points, or near it by noise."""
    client, asked = drawn
    said = client.handle(asked)
    owner = client.state.owner
    assert np.bincount(owner[owner >= 0], minlength=len(said.weights)).tolist() == list(
        said.weights
    )
    assert len(said.weights) <= (asked.n_representatives or len(owner))
    if asked.n_representatives is None:
        assert (owner >= 0).all()
    rounding = 1e-9 * asked.eps_rep + 1e-14 * np.abs(client.X).max(initial=0)
    amplitude = asked.noise * asked.eps_rep
    for r, place in enumerate(said.representatives):
        covered = client.X[owner == r]
        centre = covered.mean(axis=0)
        assert np.linalg.norm(covered[:, None] - covered, axis=2).min(axis=0).max() <= asked.eps_rep
        shift = place - centre
        if np.abs(shift).max() > rounding:
            few = len(np.unique(covered, axis=0)) < asked.min_weight
            meets = np.linalg.norm(client.X - centre, axis=1).min() < 1.1e-6 * amplitude + rounding
            assert few or meets
            least = 0.0 if asked.noise_kind == "one_sided" else -amplitude
            assert (shift >= least - rounding).all()
            assert (shift <= amplitude + rounding).all()
        else:
            assert len(np.unique(covered, axis=0)) >= asked.min_weight


def test_candidates_are_apart():
    """Who is a candidate was not covered before: of 3,000 points far fewer represent all."""
    X = np.random.default_rng(0).random((3000, 2))
    client = PPDBDCClient(X, random_state=0)
    said = client.handle(request(0.1))
    owner = client.state.owner
    reach = [np.ptp(X[owner == r], axis=0).max() for r in range(len(said.weights))]
    assert max(reach) <= 0.2
    assert len(said.weights) < 400


def test_no_coordinates_travel(relay):
    """No point of a client is in the bytes of a run, neither as a row nor coordinate by coordinate.

    In general position; on a lattice a mean may well share one coordinate with a point.
    """
    rng = np.random.default_rng(0)
    parts = rng.uniform(size=(2, 60, 2))
    transport = relay({name: PPDBDCClient(X, 0) for name, X in zip("AB", parts, strict=True)})
    PPDBDC(0.2, 4).fit(transport)
    assert not [x for x in parts.ravel() if x.tobytes() in transport.all_bytes]


# Noise ------------------------------------------------------------------------------------------


def test_one_sided_noise_shifts_and_centred_noise_does_not():
    """P's noise moves each coordinate by 0.25 eps_rep on average, upwards; the other by as much."""
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
    """Rather than give a point away the client fails."""
    client = PPDBDCClient([[1e18, 0.0], [-1e18, 0.0]])
    with pytest.raises(ValueError, match="noise up to 0.5 is lost in coordinates up to 1e"):
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
    """The server's messages are the same for every seed; each part gets a seed of its own."""
    assert next(PPDBDC(1.0, 3, random_state=1).protocol()) == next(PPDBDC(1.0, 3).protocol())
    X = np.random.default_rng(0).random((100, 2))

    def places(random_state):
        return PPDBDC(0.3, 5, random_state=random_state).fit([X, X]).representatives_.tolist()

    assert places(0) == places(0)
    assert places(0) != places(1)
    assert places(None) != places(None)
    said = places(0)
    assert said[: len(said) // 2] != said[len(said) // 2 :]


def test_asking_again_does_not_average_the_noise_out():
    X = np.random.default_rng(0).random((50, 2))
    for random_state in (None, 3):
        client = PPDBDCClient(X, random_state)
        assert client.handle(request(0.05)) == client.handle(request(0.05))


@pytest.mark.parametrize("random_state", [-1, "secret"])
def test_a_bad_seed(random_state):
    with pytest.raises((ValueError, TypeError)):
        PPDBDCClient(FIRST, random_state)


# Accuracy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_kind", KINDS)
def test_it_agrees_with_dbscan(noise_kind):
    """Shapes far apart, over five clients, with DBSCAN's own parameters."""
    X, _ = shapes(4000)
    rows = split_rows(X, 5, how="uniform", random_state=0)
    model = PPDBDC(1.8, 10, noise_kind=noise_kind, random_state=0)
    assert adjusted_rand_score(dbscan(X, 1.8, 10), fitted(model, X, rows)) > 0.99


def test_with_a_tiny_radius_it_is_dbscan():
    """Each point represents itself, moved by next to nothing."""
    X, _ = shapes(1000)
    rows = split_rows(X, 4, how="uniform", random_state=0)
    labels = fitted(PPDBDC(3.0, 8, eps_rep=1e-6, random_state=0), X, rows)
    assert adjusted_rand_score(dbscan(X, 3.0, 8), labels) == 1.0


def test_an_early_stop():
    """What the representatives do not stand for looks for the nearest of a cluster within eps."""
    near, far = np.linspace(0, 0.9, 10)[:, None], np.array([[50.0]])
    model = PPDBDC(1.0, 2, eps_rep=0.2, n_representatives=1, random_state=3)
    model.fit([np.concatenate([near, far]), near + 0.01])
    assert len(model.representatives_) == 2
    assert model.weights_.sum() < 21
    expected = model.predict(far).tolist()
    assert model.labels_[0].tolist() == [0] * 10 + expected == [0] * 10 + [-1]


# Lies and mistakes ------------------------------------------------------------------------------


class Liar(PPDBDCClient):
    """A client that sends two representatives whatever it is asked for."""

    def draw(self):
        return BlurredRepresentatives(np.array([[0.0], [1.0]]), np.array([5, 5]))

    def answer(self, request):
        return self.draw() if isinstance(request, DrawRepresentatives) else super().answer(request)


def test_a_lying_client():
    clients = {"A": PPDBDCClient(FIRST, 0), "B": Liar(SECOND)}
    model = PPDBDC(1.0, 3, n_representatives=1).fit(InProcess(clients), min_clients=1)
    assert model.ledger_.lost == {"B": "InvalidReply at DrawRepresentatives, step 1"}
    assert len(model.representatives_) == 1


@pytest.mark.parametrize("weights", [[0], [2**40 + 1], [1, 1]])
def test_no_such_weights(weights):
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
def test_bad_parameters_name_themselves(parameters, name):
    with pytest.raises(ValueError, match=f"'{name}' parameter"):
        PPDBDC(**({"eps": 1.0, "min_samples": 3} | parameters)).fit([FIRST])


def test_parts_that_are_no_list():
    with pytest.raises(ValueError, match="parts must be a list"):
        PPDBDC(1.0, 3).fit(5)


def test_estimator_conventions():
    model = PPDBDC(0.5, 3, noise_kind="centred", random_state=0)
    assert repr(clone(model)) == repr(model)
    assert clone(model).get_params()["random_state"] == 0
