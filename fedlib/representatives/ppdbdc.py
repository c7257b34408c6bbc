"""PPDBDC: every client sends means of its points, blurred where few points make one.

As in SDBDC a client chooses representatives until they cover all its points, and the server runs
DBSCAN on them with the numbers of points they cover as weights. But the choice is random, the
radius is so small that neighbourhoods need not be widened, and what is sent is not a point of the
client: it is the mean of the points covered, with noise where it would give one away.

Source: P, §3.3.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from fedlib.dbscan import nearest_within
from fedlib.kernels.representatives import cover_in_order
from fedlib.messages import FeatureNames, Message
from fedlib.protocol import Flow, Transport, handles
from fedlib.representatives.dbdc import (
    Coverage,
    Points,
    Positive,
    RepresentativeClient,
    RepresentativeClustering,
    RepresentativeModel,
    gather,
    lexicographic_order,
)
from fedlib.representatives.sdbdc import (
    Number,
    Weights,
    cluster_representatives,
    not_too_many,
    relabel_requests,
)
from fedlib.validation import Interval, StrOptions

__all__ = [
    "PPDBDC",
    "BlurredRepresentatives",
    "DrawRepresentatives",
    "PPDBDCClient",
    "blur",
    "ppdbdc",
]

COINCIDES = 1e-6  # nearer than this share of the noise is the same place
MAX_DRAWS = 100

NoiseKind = Literal["one_sided", "centred"]


class BlurredRepresentatives(Message):
    """Means of a client's points, some of them with noise, and how many points each stands for."""

    discloses = "how densely a client's points lie where, and no point of its own"
    representatives: Points
    weights: Weights
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The number of columns of ``representatives``."""
        return int(self.representatives.shape[1])


class DrawRepresentatives(Message):
    """Draw representatives at random until they cover your points; blur those of few points."""

    discloses = "the parameters"
    reply = BlurredRepresentatives
    eps_rep: Positive
    n_representatives: Number | None
    noise: Positive
    noise_kind: NoiseKind
    min_weight: Annotated[int, msgspec.Meta(ge=1)]

    def accept(self, reply: Message) -> BlurredRepresentatives:
        """Raise MessageError where there are more representatives than were asked for."""
        assert isinstance(reply, BlurredRepresentatives)
        not_too_many(reply.representatives, self.n_representatives)
        return reply


def ppdbdc(
    eps: float,
    min_samples: int,
    eps_rep: float | None = None,
    n_representatives: int | None = None,
    noise: float = 0.5,
    noise_kind: NoiseKind = "one_sided",
    min_weight: int = 3,
) -> Flow[RepresentativeModel]:
    """Return the server flow; for the parameters see `PPDBDC`.

    Examples
    --------
    >>> from fedlib.protocol import Replies
    >>> flow = ppdbdc(eps=1.0, min_samples=5)
    >>> next(flow).eps_rep
    0.45
    >>> said = BlurredRepresentatives(np.array([[0.0], [0.9], [5.0]]), np.array([4, 3, 2]))
    >>> flow.send(Replies({"A": said}))["A"].own
    array([ 0,  0, -1])
    """
    eps_rep = 0.45 * eps if eps_rep is None else eps_rep
    replies = yield DrawRepresentatives(
        float(eps_rep), n_representatives, float(noise), noise_kind, int(min_weight)
    )
    representatives, weights = gather(replies, "representatives", "weights")
    model = cluster_representatives(representatives, weights, None, eps, min_samples)
    yield relabel_requests(replies, model, complete=n_representatives is None)
    return model


class PPDBDCClient(RepresentativeClient):
    """A client and its points.

    Parameters
    ----------
    X : array-like (n_points, n_features)
        Finite numbers. Where the columns of a DataFrame have names, all clients' must be the same
        in the same order.
    random_state : int, optional
        Seed, at least 0, of the client's choice of representatives and of its noise; by default one
        from the operating system. Whoever knows it can undo the noise: it never leaves the client.
        The same request always gets the same answer, so asking again does not average noise out.
        Whoever may ask with other parameters does find out points; see `PPDBDC`.

    Raises
    ------
    ValueError
        When the points are not a table of finite numbers, or the seed is not valid. A client may
        have no points at all, but its table must have columns.
    """

    def __init__(self, X: ArrayLike, random_state: int | None = None):
        super().__init__(X)
        self._seed = np.random.SeedSequence(random_state)

    @handles(DrawRepresentatives)
    def draw_representatives(self, request: DrawRepresentatives) -> BlurredRepresentatives:
        rng = np.random.default_rng(self._seed)
        order = lexicographic_order(self.X)
        X = self.X[order]
        most = len(X) if request.n_representatives is None else request.n_representatives
        chosen, sorted_owner, _ = cover_in_order(X, rng.permutation(len(X)), request.eps_rep, most)
        means, weights, n_distinct = _summarise(X, sorted_owner, len(chosen))
        amplitude = request.noise * request.eps_rep
        few = n_distinct < request.min_weight
        representatives = blur(means, few, X, amplitude, request.noise_kind, rng)
        owner = np.empty(len(X), np.int64)
        owner[order] = sorted_owner
        self.state = Coverage(owner)
        return BlurredRepresentatives(representatives, weights, self.features)


class PPDBDC(RepresentativeClustering):
    """Privacy-preserving density-based distributed clustering: DBSCAN on blurred means.

    Parameters
    ----------
    eps : float
        Radius of a neighbourhood, in the units of the features, above 0.
    min_samples : int
        How many points of all clients the representatives in a neighbourhood must stand for, itself
        included, to make a core representative, at least 1.
    eps_rep : float, optional
        A representative stands for the points of its client within eps_rep of a point drawn at
        random, above 0; by default 0.45 eps. The larger, the fewer representatives: less accurate,
        faster, more private. Up to eps / 2 all points of a representative are neighbours.
    n_representatives : int, optional
        How many representatives a client draws at most, at least 1; by default as many as it takes
        to cover all its points.
    noise : float, default=0.5
        How far noise moves each coordinate at most, in units of eps_rep, above 0.
    noise_kind : {"one_sided", "centred"}, default="one_sided"
        ``"one_sided"``: noise is uniform in (0, noise * eps_rep), as in P, and so shifts what it
        blurs to larger coordinates, by noise * eps_rep / 2 on average. ``"centred"``: just as
        large, to either side.
    min_weight : int, default=3
        Representatives of fewer distinct points than this get noise, at least 1. One whose mean
        coincides with any point of its client gets noise in any case.
    random_state : int, RandomState or None, default=None
        Gives a seed to the client of each part. Over a transport it does nothing: each client has a
        seed of its own, which the server must not know.

    Attributes
    ----------
    representatives_ : array (n_representatives, n_features) of float64
        Those of all clients, one client after the other, in the order in which they were drawn.
    weights_ : array (n_representatives,) of int64
        The number of points each stands for.
    representative_labels_ : array (n_representatives,) of int64
        The cluster of each, -1 for noise, numbered by the lexicographically first core
        representative.
    labels_ : list of array of int64
        The cluster of each client's points, that of the representative that stands for it; -1 for
        noise. A point that none stands for, after an early stop, and the points of a passive client
        belong to the cluster of the nearest representative of a cluster within eps. Only if the
        parts were given to `fit`.
    ledger_ : Ledger
    n_features_in_ : int

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Notes
    -----
    A client draws its points in random order; each that none before it covers is a candidate and
    covers all points within eps_rep that are not covered yet, itself among them. Its weight is
    their number and its place their mean, so each point counts once. A mean within a millionth of
    the noise of any point of the client coincides with it, and noise is drawn until neither does.

    For a given seed the representatives do not depend on the order of the client's rows. What P
    leaves open is how clients label their points: here by the representative that covers them.

    Noise hides single points and pairs, not how dense the points are; it is no differential
    privacy, and nothing keeps a client from being alone in its region. It hides them from a server
    that asks once, with parameters that the clients have agreed to: one that asks for next to no
    noise, or a second time for another amount, learns from the answers where these points are.

    Source: P, §3.3.

    Examples
    --------
    Three points near each other become their mean, 0.2. The two at 9.0 are one place, which noise
    moves.

    >>> from fedlib import PPDBDC
    >>> first, second = [[0.0], [0.1], [0.5]], [[0.7], [0.8], [0.9], [9.0], [9.0]]
    >>> model = PPDBDC(eps=1.0, min_samples=4, eps_rep=0.5, random_state=0).fit([first, second])
    >>> model.labels_
    [array([0, 0, 0]), array([ 0,  0,  0, -1, -1])]
    >>> bool(model.predict([[1.2]])[0] == 0), 9.0 in model.representatives_
    (True, False)
    """

    name = "ppdbdc"
    client_class = PPDBDCClient
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "eps": [Interval(Real, 0, np.inf, closed="neither")],
        "min_samples": [Interval(Integral, 1, None, closed="left")],
        "eps_rep": [None, Interval(Real, 0, np.inf, closed="neither")],
        "n_representatives": [None, Interval(Integral, 1, 2**40, closed="both")],
        "noise": [Interval(Real, 0, np.inf, closed="neither")],
        "noise_kind": [StrOptions({"one_sided", "centred"})],
        "min_weight": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        eps: float,
        min_samples: int,
        *,
        eps_rep: float | None = None,
        n_representatives: int | None = None,
        noise: float = 0.5,
        noise_kind: str = "one_sided",
        min_weight: int = 3,
        random_state: Any = None,
    ):
        self.eps = eps
        self.min_samples = min_samples
        self.eps_rep = eps_rep
        self.n_representatives = n_representatives
        self.noise = noise
        self.noise_kind = noise_kind
        self.min_weight = min_weight
        self.random_state = random_state

    def _flow(self) -> Flow[RepresentativeModel]:
        said = self.get_params()
        del said["random_state"]  # not a matter of the server's
        return ppdbdc(**said)

    def _fit(
        self,
        parts: Sequence[Any] | Transport,
        passive: Collection[int] = (),
        min_clients: int | None = None,
        options: Sequence[dict[str, Any]] | None = None,
    ) -> Self:
        self._validate_params()
        if isinstance(parts, Sequence | np.ndarray) and options is None:
            seeds = check_random_state(self.random_state).randint(2**31 - 1, size=len(parts))
            options = [{"random_state": int(seed)} for seed in seeds]
        return super()._fit(parts, passive, min_clients, options)


def blur(
    means: NDArray[np.float64],
    few: NDArray[np.bool_],
    X: NDArray[np.float64],
    amplitude: float,
    noise_kind: NoiseKind,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Add noise to the means of few points and to those that coincide with a point.

    Parameters
    ----------
    means : array (n_means, n_features) of float64
    few : array (n_means,) of bool
    X : array (n_points, n_features) of float64
        The points that must not be given away.
    amplitude : float
        The most that noise moves a coordinate.
    noise_kind : {"one_sided", "centred"}
    rng : Generator

    Returns
    -------
    array (n_means, n_features) of float64
        None of them in the place of a point.

    Raises
    ------
    ValueError
        When noise so small is lost in the rounding of coordinates so large.

    Examples
    --------
    >>> X = np.array([[0.0], [2.0], [4.0], [5.0]])
    >>> means, few = np.array([[2.0], [11 / 3], [1.0]]), np.array([False, False, True])
    >>> blurred = blur(means, few, X, 0.5, "one_sided", np.random.default_rng(0))
    >>> (blurred - means).ravel().round(2)
    array([0.32, 0.  , 0.13])
    """
    blurred = means.copy()
    redraw = few
    for _ in range(MAX_DRAWS):
        redraw = redraw | (nearest_within(blurred, X, COINCIDES * amplitude) >= 0)
        if not redraw.any():
            return blurred
        noise = rng.uniform(0.0, amplitude, (int(redraw.sum()), means.shape[1]))
        if noise_kind == "centred":
            noise *= rng.choice([-1.0, 1.0], noise.shape)
        blurred[redraw] = means[redraw] + noise
        redraw = np.zeros(len(means), bool)
    raise ValueError(f"noise up to {amplitude} is lost in coordinates up to {np.abs(X).max()}")


def _summarise(
    X: NDArray[np.float64], owner: NDArray[np.int64], n_representatives: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return each representative's mean, number of points and number of distinct points.

    Rows are sorted, and equal rows have the same owner.
    """
    first = np.ones(len(X), bool)
    first[1:] = (X[1:] != X[:-1]).any(axis=1)
    covered = owner >= 0
    weights = np.bincount(owner[covered], minlength=n_representatives)
    n_distinct = np.bincount(owner[covered & first], minlength=n_representatives)
    sums = [np.bincount(owner[covered], x[covered], n_representatives) for x in X.T]
    return np.column_stack(sums) / weights[:, None], weights, n_distinct
