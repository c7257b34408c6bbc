"""PPDBDC: every client sends means of its points, with noise if a mean would disclose a point.

As in SDBDC, a client chooses representatives until they cover its points, and the server runs
DBSCAN on them with the counts of covered points as weights. Three things differ. The choice is
random. The radius is so small that neighbourhoods need not be enlarged. A client sends the mean of
the points that a representative covers, not the representative itself, and adds noise to means of
few points.

Source: P, §3.3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from fedlib.clustering.density.engine.dbscan import nearest_within
from fedlib.clustering.density.representatives import (
    Count,
    Coverage,
    Points,
    Positive,
    RelabelPoints,
    RepresentativeClient,
    RepresentativeClustering,
    RepresentativeModel,
    Weights,
    check_count,
    cluster_representatives,
    gather,
    lexicographic_order,
    relabel_requests,
)
from fedlib.core.aggregation import agree_on_features, settle
from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.client import handles, partitions
from fedlib.core.estimator import Example
from fedlib.core.messages import Done, FeatureNames, Labels, Message, encode
from fedlib.core.parameters import (
    KW_ONLY,
    Interval,
    OptionalPositiveFloat,
    PositiveFloat,
    PositiveInt,
    RandomSource,
    StrOptions,
)
from fedlib.core.protocol import Flow
from fedlib.kernels.representatives import cover_in_order

COINCIDENCE = 1e-6  # of the noise's amplitude: at most this far apart, two points count as equal
MAX_DRAWS = 100
DIGEST = 32  # bytes

NoiseKind = Literal["one_sided", "centred"]
Seed = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]+\Z")]


class BlurredRepresentatives(Message):
    """Means of a client's points, some of them with noise, and the count of points of each."""

    discloses = (
        "roughly where the client's points lie and how dense they are, but none of its points"
    )
    representatives: Points
    weights: Weights
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The count of columns of ``representatives``."""
        return int(self.representatives.shape[1])


class DrawRepresentatives(Message):
    """Draw representatives at random until they cover your points; blur those of few points."""

    discloses = "the parameters"
    effortless = ("min_weight",)
    reply = BlurredRepresentatives
    eps_rep: Positive
    n_representatives: Count | None
    noise: Positive
    noise_kind: NoiseKind
    min_weight: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]

    def accept(self, reply: Message) -> BlurredRepresentatives:
        """Return the reply if it has at most ``n_representatives``."""
        assert isinstance(reply, BlurredRepresentatives)
        check_count(reply.representatives, self.n_representatives)
        return reply


class AnotherDraw(ValueError):
    """The server requests representatives with other parameters or of other rows than before.

    The noise of two replies with one seed differs by a known factor, so that together they disclose
    single points exactly.
    """


class SeededCoverage(Coverage):
    """The state of a client that has sent representatives.

    Attributes
    ----------
    seed : str
        The client's seed in hexadecimal.
    drawn : bytes
        The request that it has answered, encoded, and the digest of the points; empty if none, as
        at a passive client.
    """

    seed: Seed
    drawn: bytes


class SeededLabels(Labels):
    """The state of a client that knows its clusters; see `SeededCoverage`."""

    seed: Seed
    drawn: bytes


def ppdbdc(
    eps: float,
    min_samples: int,
    eps_rep: float | None,
    n_representatives: int | None,
    noise: float,
    noise_kind: NoiseKind,
    min_weight: int,
) -> Flow[RepresentativeModel]:
    """Return the server flow. For the parameters see `PPDBDC`.

    Examples
    --------
    >>> from fedlib import PPDBDC
    >>> from fedlib.core.protocol import Replies
    >>> flow = PPDBDC(eps=1.0, min_samples=5).protocol()
    >>> next(flow).eps_rep
    0.45
    >>> reply = BlurredRepresentatives(np.array([[0.0], [0.9], [5.0]]), np.array([4, 3, 2]))
    >>> flow.send(Replies({"A": reply}))["A"].own
    array([ 0,  0, -1])
    """
    eps_rep = 0.45 * eps if eps_rep is None else eps_rep
    replies = yield DrawRepresentatives(
        float(eps_rep), n_representatives, float(noise), noise_kind, int(min_weight)
    )
    replies = yield from settle(replies, agree_on_features)
    representatives, weights = gather(replies, "representatives", "weights")
    model = cluster_representatives(representatives, weights, None, eps, min_samples)
    yield relabel_requests(replies, model, complete=n_representatives is None)
    return model


class PPDBDCClient(RepresentativeClient):
    """A client of PPDBDC that holds points. It answers one `DrawRepresentatives` only.

    Parameters
    ----------
    X : array-like (n_points, n_features)
        The points, as in `PointsClient`.
    random_state : int, optional
        Seed of the client's choice of representatives and of its noise, at least 0; by default from
        the operating system. Anyone who knows it can remove the noise, so it never leaves the
        client.

    Raises
    ------
    ValueError
        When the points are not a table of finite numbers, or the seed is negative.

    Notes
    -----
    Equal requests get equal replies, so that repeating a request does not average out the noise. A
    request with other parameters raises `AnotherDraw`: two replies with different noise would
    disclose points. Therefore the seed and the request are a part of the state, and a client that
    is started again with its state behaves in the same way.

    The program of a site (``fedlib join``, the app on Flower) remembers the seed and the request
    for each table, over all runs. Another client has no such memory: give every run over a
    transport its own seed, as by default.
    """

    def __init__(self, X: ArrayLike, random_state: int | None = None):
        super().__init__(X)
        self._seed = f"{np.random.SeedSequence(random_state).entropy:x}"

    @handles(DrawRepresentatives)
    def draw_representatives(self, request: DrawRepresentatives) -> BlurredRepresentatives:
        seed, before = self._memory()
        drawn = encode(request) + hashlib.sha256(self.X.tobytes()).digest()
        if self.memory is not None:
            seed, kept = self.memory.first("noise", "ppdbdc", [seed, drawn.hex()])
            before = bytes.fromhex(kept)
        if before not in (b"", drawn):
            if before[:-DIGEST] == drawn[:-DIGEST]:
                raise AnotherDraw(
                    "the rows or the features have changed since this site has answered"
                    " DrawRepresentatives. Its noise is drawn once, and two replies with different"
                    " noise, or with one noise about changed rows, would disclose points: use the"
                    " same rows and features, or, if other people are in the rows, declare it with"
                    " fedlib memory DATA --other-people"
                )
            raise AnotherDraw(
                "this site has answered DrawRepresentatives with other parameters or features, and"
                " two replies with different noise would disclose points: use the same parameters"
            )
        rng = np.random.default_rng(int(seed, 16))
        order = lexicographic_order(self.X)
        X = self.X[order]
        max_representatives = request.n_representatives or len(X)
        candidates = rng.permutation(len(X))
        cover = cover_in_order(X, candidates, request.eps_rep, max_representatives)
        means, weights, n_distinct = _summarise(X, cover.owner, len(cover.chosen))
        amplitude = request.noise * request.eps_rep
        few = n_distinct < request.min_weight
        representatives = blur(means, few, X, amplitude, request.noise_kind, rng)
        self.keep_coverage(order, cover.owner)
        self.state = SeededCoverage(self.recall(Coverage).owner, seed, drawn)
        return BlurredRepresentatives(representatives, weights, self.features)

    @partitions(DrawRepresentatives)
    def groups(self, request: DrawRepresentatives) -> Iterable[Ints]:
        yield self.recall(SeededCoverage).owner

    @handles(RelabelPoints)
    def relabel_points(self, request: RelabelPoints) -> Done:
        memory = self._memory()
        done = super().relabel_points(request)
        self.state = SeededLabels(self.recall(Labels).labels, *memory)
        return done

    def renew(self, state: Message | None) -> None:
        """Keep the noise that was drawn: another one would average it out."""
        self.state = state
        seed, drawn = self._memory()
        self.state = SeededLabels(np.empty(0, np.int64), seed, drawn)

    def _memory(self) -> tuple[str, bytes]:
        """Return the seed and the answered request: those in the state, or else of a new client."""
        if isinstance(self.state, SeededCoverage | SeededLabels):
            return self.state.seed, self.state.drawn
        return self._seed, b""


class PPDBDC(RepresentativeClustering):
    """Privacy-preserving density-based distributed clustering: DBSCAN on means with noise.

    Attributes
    ----------
    representatives_ : array (n_representatives, n_features) of float64
        The representatives of all clients, one client after the other, in the order in which they
        were drawn.
    weights_ : array (n_representatives,) of int64
        The count of points that each covers.
    representative_labels_ : array (n_representatives,) of int64
        The cluster of each, -1 for noise, numbered by the lexicographically first core
        representative.
    labels_ : list of array of int64
        The cluster of each client's points: that of the representative that covers the point, -1
        for noise. A point that is not covered after an early stop, and each point of a passive
        client, belongs to the cluster of the nearest clustered representative within eps. Only if
        `fit` received the parts.
    model_ : RepresentativeModel
        Everything that `predict` needs.
    ledger_ : Ledger
        The messages of the run.
    n_features_in_ : int

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Notes
    -----
    A client visits its points in random order. Each that is not covered yet covers all points
    within eps_rep that are not covered yet, including itself. Their mean becomes a representative,
    and their number its weight, so each point counts once. A mean coincides with a point when it is
    nearer than a millionth of the largest noise. Noise is drawn again until the blurred mean
    coincides with no point of the client.

    For a given seed the representatives do not depend on the order of the client's rows. P does not
    state how clients label their points: here by the representative that covers them.

    Noise hides single points and pairs of points. It does not hide how dense the points are, it is
    not differential privacy, and it does not help a client that is alone in its region. It hides
    points only if the clients agree to the amount: a server that requests almost no noise learns
    where these points are. The rules of a site can require a least ``noise`` and ``eps_rep``
    (`fedlib.protection.policy`). A client answers a second request only if it equals the first one,
    because two amounts of the same noise would disclose points exactly.

    False representatives cannot be detected: a chain of them joins the clusters of other clients.

    The cost is one search per representative at each client, and DBSCAN on all representatives; see
    `fedlib.clustering.density.engine.dbscan.cluster`. Memory is linear in the count of points.

    Source: P, §3.3.

    Examples
    --------
    Three points near each other become their mean, 0.2. The two points at 9.0 are equal, so they
    get noise.

    >>> from fedlib import PPDBDC
    >>> first, second = [[0.0], [0.1], [0.5]], [[0.7], [0.8], [0.9], [9.0], [9.0]]
    >>> model = PPDBDC(eps=1.0, min_samples=4, eps_rep=0.5, random_state=0).fit([first, second])
    >>> model.labels_
    [array([0, 0, 0]), array([ 0,  0,  0, -1, -1])]
    >>> bool(model.predict([[1.2]])[0] == 0), 9.0 in model.representatives_
    (True, False)
    """

    name = "ppdbdc"
    example = Example("rows", {"eps": 0.5, "min_samples": 4, "random_state": 0})
    client_class = PPDBDCClient
    eps: Annotated[
        PositiveFloat,
        "Radius of a neighbourhood, in the units of the features, above 0.",
    ]
    min_samples: Annotated[
        PositiveInt,
        """
        Minimum count of points covered by the representatives in the neighbourhood of a core
        representative, including itself; at least 1.
        """,
    ]
    _: KW_ONLY
    eps_rep: Annotated[
        OptionalPositiveFloat,
        """
        A representative covers points of its client within eps_rep of a point drawn at random, in
        the units of the features, above 0; by default 0.45 eps. A larger value gives fewer
        representatives: less accurate, faster and more private. Up to eps / 2, all points of a
        representative are in each other's neighbourhoods.
        """,
    ] = None
    n_representatives: Annotated[
        int | None,
        None,
        Interval(Integral, 1, 2**40, closed="both"),
        """
        Maximum count of representatives of a client, at least 1; by default no limit.
        """,
    ] = None
    noise: Annotated[
        PositiveFloat,
        "The largest noise in each coordinate, in units of eps_rep, above 0.",
    ] = 0.5
    noise_kind: Annotated[
        str,
        StrOptions({"one_sided", "centred"}),
        """
        ``"one_sided"``: noise is uniform in (0, noise * eps_rep), as in P. It shifts the blurred
        means to larger coordinates, by noise * eps_rep / 2 on average. ``"centred"``: noise of the
        same size, with a random sign.
        """,
    ] = "one_sided"
    min_weight: Annotated[
        PositiveInt,
        """
        A mean of fewer distinct points than this gets noise, at least 1. A mean that coincides with
        a point of its client always does.
        """,
    ] = 3
    random_state: Annotated[
        RandomSource,
        """
        Determines the seeds of the clients when `fit` receives the parts. It has no effect over a
        transport: each client has its own seed, which the server must not know.
        """,
    ] = None

    def _flow(self) -> Flow[RepresentativeModel]:
        parameters = self.get_params()
        del parameters["random_state"]  # the server must not know the clients' seeds
        return ppdbdc(**parameters)

    def _client_options(self, n_parts: int) -> Sequence[dict[str, Any]]:
        """Return a different seed for the client of each part."""
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=n_parts)
        return [{"random_state": int(seed)} for seed in seeds]


def blur(
    means: Floats,
    few: Bools,
    X: Floats,
    amplitude: float,
    noise_kind: NoiseKind,
    rng: np.random.Generator,
) -> Floats:
    """Add noise to the means of few points and to those that coincide with a point.

    Parameters
    ----------
    means : array (n_means, n_features) of float64
    few : array (n_means,) of bool
        Which means are of few points.
    X : array (n_points, n_features) of float64
        The points that must not be disclosed.
    amplitude : float
        The largest noise in a coordinate, in the units of the features.
    noise_kind : {"one_sided", "centred"}
        See `PPDBDC`.
    rng : Generator

    Returns
    -------
    array (n_means, n_features) of float64
        The means with noise. None of them coincides with a point.

    Raises
    ------
    ValueError
        When the noise is so small that it is lost in the rounding of the coordinates.

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
        redraw = redraw | (nearest_within(blurred, X, COINCIDENCE * amplitude) >= 0)
        if not redraw.any():
            return blurred
        noise = rng.uniform(0.0, amplitude, (int(redraw.sum()), means.shape[1]))
        if noise_kind == "centred":
            noise *= rng.choice([-1.0, 1.0], noise.shape)
        blurred[redraw] = means[redraw] + noise
        redraw = np.zeros(len(means), bool)
    raise ValueError(
        f"noise of at most {amplitude} is lost in the rounding of coordinates up to"
        f" {np.abs(X).max()}"
    )


def _summarise(X: Floats, owner: Ints, n_representatives: int) -> tuple[Floats, Ints, Ints]:
    """Return the mean of each representative's points, their number and that of distinct ones.

    Rows are sorted, and equal rows have the same owner.
    """
    is_first = np.ones(len(X), bool)
    is_first[1:] = (X[1:] != X[:-1]).any(axis=1)
    covered = owner >= 0
    weights = np.bincount(owner[covered], minlength=n_representatives)
    n_distinct = np.bincount(owner[covered & is_first], minlength=n_representatives)
    sums = [np.bincount(owner[covered], column[covered], n_representatives) for column in X.T]
    return np.column_stack(sums) / weights[:, None], weights, n_distinct
