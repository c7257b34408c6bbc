"""Radii and cell sizes for the density methods, from the k-distances of all clients' points.

Every client counts its points in the cells of a grid, which becomes finer from request to request.
From the sums the server estimates the sorted k-distances, and it stops when the knee of this curve
is known well enough. The knee separates the points in clusters from those in sparse places.

Sources: M. Ester, H.-P. Kriegel, J. Sander, X. Xu, A density-based algorithm for discovering
clusters in large spatial databases with noise, KDD 1996, for the curve;
`fedlib.evaluation.selection.grid_search`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from fedlib.clustering.density.cells import add_counts, count_cells, groups_of_cells
from fedlib.clustering.density.horizontal import CellCounts, CountCells, sum_cells
from fedlib.clustering.mixtures.checks import agree_on_magnitude
from fedlib.core.aggregation import agree_on_features, exclude, settle
from fedlib.core.array_fields import MAX_COUNT, Array, Checked, Index
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import handles, partitions
from fedlib.core.estimator import Example, Federated
from fedlib.core.messages import FeatureNames, Message
from fedlib.core.parameters import KW_ONLY, Interval, OptionalPositiveFloat
from fedlib.core.points import PointsClient
from fedlib.core.protocol import Flow, Replies, Transport
from fedlib.evaluation.selection.grid_search import (
    curve_ranks,
    find_knee,
    k_distances,
    sparse_fractions,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MIN_MAGNITUDE = -900
MAX_HALVINGS = 52  # a coordinate has no more binary digits

# Messages


class PointsMagnitude(Message):
    """The smallest power of two above all of a client's coordinates; None without points.

    It is at least 2**-900, so that the cells can become much smaller.
    """

    discloses = "the number and names of the features, the magnitude of the largest coordinate"
    extremes = True
    n_features: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    magnitude: Annotated[int, msgspec.Meta(ge=MIN_MAGNITUDE, le=333)] | None
    features: FeatureNames = ()


class ReportMagnitude(Message):
    """Report your features and the smallest power of two above all of your coordinates."""

    discloses = "nothing"
    reply = PointsMagnitude


# The server


@dataclass(frozen=True)
class DensityCurves(Checked):
    """The k-distances of all points, their fractions in sparse cells, and the knees of both curves.

    Attributes
    ----------
    min_samples : int
        The k of the k-distance.
    cell_size : float
        The edge of the finest cells that were counted.
    n_features : int
    distances : array (n_distances,)
        The distinct k-distances, ascending.
    counts : array (n_distances,) of int64
        The count of points with each.
    sizes : array (n_sizes,)
        Sizes of cells, ascending.
    shares : array (n_sizes,)
        The fraction of points that are in sparse cells of this size.
    distance_knee, size_knee : int
        The indices of the knees.
    """

    min_samples: int
    cell_size: float
    n_features: int
    distances: Floats
    counts: Annotated[Ints, Array("int64", ("distances",), 0, MAX_COUNT)]
    sizes: Floats
    shares: Floats
    distance_knee: Annotated[int, Index("distances")]
    size_knee: Annotated[int, Index("sizes")]

    @property
    def ranks(self) -> Floats:
        """The fraction of points up to and with each distance (n_distances,)."""
        return curve_ranks(self.counts)

    @property
    def error(self) -> float:
        """The largest possible error of a distance: the diagonal of the finest cells."""
        return self.cell_size * math.sqrt(self.n_features)


def suggest_density(
    min_samples: int, tolerance: float, min_cell_size: float | None
) -> Flow[DensityCurves]:
    """Return the server flow; for the parameters see `DensitySuggestion`.

    The sizes of the cells are powers of two, so each cell consists of whole cells of the next
    request, and the server compares the counts. A client with too many points missing
    in the finer cells no longer counts, and if these are half of the clients, the result is that of
    the coarser cells.
    """
    described = yield ReportMagnitude()
    described = yield from settle(described, agree_on_features)
    described = yield from settle(described, agree_on_magnitude)
    magnitudes = [one.magnitude for one in described.values() if one.magnitude is not None]
    if not magnitudes:
        raise ValueError("the clients have no points")
    size = coarsest = 2.0 ** max(magnitudes)
    curves: DensityCurves | None = None
    first: dict[str, int] = {}  # the count of points that each client has counted at first
    coarser: dict[str, CellCounts] = {}
    while True:
        replies = yield CountCells(size)
        replies = yield from exclude(replies, _contradictions(described, coarser, replies))
        n_points = {name: int(reply.counts.sum()) for name, reply in replies.items()}
        first = n_points | first
        complete = {
            name: reply
            for name, reply in replies.items()
            if n_points[name] >= (1 - tolerance) * first[name]
        }
        if curves and 2 * len(complete) <= len(replies):
            return curves
        cells, counts = sum_cells(complete)
        if counts.sum() <= min_samples:
            raise ValueError(
                f"min_samples must be less than the number of points, {counts.sum()};"
                f" got {min_samples}"
            )
        curves = _measure(cells, counts, size, min_samples)
        resolved = curves.error <= tolerance * curves.distances[curves.distance_knee]
        if resolved or size / 2 < max(min_cell_size or 0.0, coarsest / 2.0**MAX_HALVINGS):
            return curves
        size, coarser = size / 2, dict(replies)


def _measure(cells: Ints, counts: Ints, cell_size: float, min_samples: int) -> DensityCurves:
    """Return both curves of the counts of cells, with their knees."""
    distances, points = k_distances(cells, counts, cell_size, min_samples)
    sizes, fractions = sparse_fractions(cells, counts, cell_size, min_samples)
    return DensityCurves(
        min_samples,
        cell_size,
        cells.shape[1],
        distances,
        points,
        sizes,
        fractions,
        find_knee(curve_ranks(points), distances),
        find_knee(sizes, fractions),
    )


def _contradictions(
    described: Replies, coarser: Mapping[str, CellCounts], replies: Replies
) -> dict[str, str]:
    """Return the reason to exclude each client whose counts contradict what it has sent before."""
    reasons = {}
    for name, reply in replies.items():
        first = described.get(name)
        if first is None:
            reasons[name] = "CellCounts from a client that declined to describe its points"
        elif (reply.n_features, reply.features) != (first.n_features, first.features):
            reasons[name] = "CellCounts must have the features of PointsMagnitude"
        elif first.magnitude is None:
            if len(reply.cells):
                reasons[name] = "CellCounts of points that were not declared"
        elif name not in coarser:
            if not len(reply.cells) or reply.cells.min() < -1 or reply.cells.max() > 0:
                reasons[name] = "CellCounts.cells must be next to the origin, by its magnitude"
        elif not _fits_into(reply, coarser[name]):
            reasons[name] = "CellCounts.counts must sum to at most those of the coarser cells"
    return reasons


def _fits_into(fine: CellCounts, coarse: CellCounts) -> bool:
    """Return whether no cell has fewer points than the cells of half its size in it.

    It may have more: a site may withhold small counts.
    """
    cells, counts = add_counts(fine.cells // 2, fine.counts)
    both, sums = add_counts(
        np.concatenate([coarse.cells, cells]), np.concatenate([coarse.counts, -counts])
    )
    return len(both) == len(coarse.cells) and bool((sums >= 0).all())


# The client


class DensitySuggestionClient(PointsClient):
    """A client that holds points; for the parameter see `fedlib.core.points.PointsClient`.

    Raises
    ------
    ValueError
        When the points are not a table of finite numbers within ±1e100.
    """

    limited = True

    @handles(ReportMagnitude)
    def report_magnitude(self, request: ReportMagnitude) -> PointsMagnitude:
        magnitude = None
        if len(self.X):
            magnitude = max(MIN_MAGNITUDE, int(np.frexp(np.abs(self.X).max())[1]))
        return PointsMagnitude(self.n_features, magnitude, self.features)

    @partitions(ReportMagnitude, singly=True, terms=())
    def all_rows(self, request: ReportMagnitude) -> Iterable[Ints]:
        yield np.zeros(len(self.X), np.int64)

    @handles(CountCells)
    def count_cells(self, request: CountCells) -> CellCounts:
        return CellCounts(*count_cells(self.X, request.cell_size), self.features)

    @partitions(CountCells, counts=True, terms=())
    def cells(self, request: CountCells) -> Iterable[Ints]:
        yield groups_of_cells(self.X, request.cell_size)


# The estimator


class DensitySuggestion(Federated):
    """Suggested radii and cell sizes for the density methods, from the federated k-distance curve.

    Attributes
    ----------
    eps_ : float
        The k-distance at the knee of the curve, for the methods with a radius.
    cell_size_ : float
        The size at the knee of the curve of the points in sparse cells, for `HorizontalDBSCAN`.
    error_ : float
        The largest possible error of a distance of the curve: the diagonal of the finest cells.
    model_ : DensityCurves
        Both curves, with their knees.
    n_features_in_ : int
        The count of features.
    feature_names_in_ : array (n_features,) of str
        The names of the columns; only if the clients' columns have names.
    ledger_ : Ledger
        The messages of the run and their sizes.

    Raises
    ------
    ValueError
        When a parameter is out of range, or the clients have at most ``min_samples`` points.

    Warns
    -----
    UserWarning
        When `min_cell_size`, equal points, or sites that withhold small counts end the refinement
        before `tolerance` is reached.

    See Also
    --------
    KMeansSelection, GaussianMixtureSelection : the count of clusters.

    Notes
    -----
    *Method.* The k-distance of a point is its distance to its k-th nearest other point. Sorted, the
    k-distances rise slowly for the points in clusters, and steeply for the others. The knee is the
    point of the curve that is farthest from the chord between its ends (kneedle). The server
    estimates the k-distances from the counts of cells, with an error of at most `error_`. For a
    grid, the fraction of points that are not in dense cells takes the place of the ranks, and the
    size of the cells that of the distances. No client needs neighbours of its points at another
    client, so the result does not depend on how the rows are distributed over the clients.

    A knee is a suggestion. Look at the curve (`plot`): it may have no knee, or several.

    *Disclosure.* The counts in the finest cells, whose size is about ``eps_ * tolerance /
    sqrt(n_features)`` or up to half of it. That is more than `HorizontalDBSCAN` discloses in a run
    with ``cell_size_``. Limit it with `min_cell_size`.

    *Cost.* One request per halving of the cells: about ``log2(largest coordinate / eps_)`` plus
    five. The last reply has at most one cell per point. The server searches for `min_samples`
    neighbours of each cell.

    *Lost and false clients.* The curves are those of the clients that answered the last request. A
    client that reports more points in a cell than before leaves the run. A site that withholds
    small counts reports fewer. If it has less than ``1 - tolerance`` of its points left, the curves
    are those of the other sites. If this happens to half of the sites, the refinement ends with the
    cells before. Invented points cannot be detected.

    Examples
    --------
    >>> import numpy as np
    >>> from fedlib import DensitySuggestion
    >>> rng = np.random.default_rng(0)
    >>> near, far = rng.normal(size=(200, 2)), rng.uniform(-20, 20, (20, 2))
    >>> model = DensitySuggestion(min_samples=4).fit([near[:150], near[150:], far])
    >>> bool(0.3 < model.eps_ < 2)
    True
    >>> model.error_ <= 0.25 * model.eps_
    True
    """

    name = "suggest"
    example = Example("rows", {"min_samples": 4})
    client_class = DensitySuggestionClient
    has_labels = False
    min_samples: Annotated[
        int,
        Interval(Integral, 1, 2**40, closed="both"),
        """
        The count of other points near a point, at least 1: the k of the k-distance. Use the
        ``min_samples`` of the method for which the suggestion is.
        """,
    ]
    _: KW_ONLY
    tolerance: Annotated[
        float,
        Interval(Real, 0, 1, closed="neither"),
        """
        The largest error of a distance of the curve, as a fraction of the suggested ``eps``, in
        (0, 1). The smaller it is, the finer are the last cells, and the more they disclose.
        """,
    ] = 0.25
    min_cell_size: Annotated[
        OptionalPositiveFloat,
        """
        The clients never count smaller cells than this, in the units of the features; above 0. By
        default only `tolerance` ends the refinement.
        """,
    ] = None

    def _flow(self) -> Flow[DensityCurves]:
        return suggest_density(self.min_samples, self.tolerance, self.min_cell_size)

    def _fit(self, *arguments: Any, **options: Any) -> DensitySuggestion:
        super()._fit(*arguments, **options)
        if self.error_ > self.tolerance * self.eps_:  # not in `_set_model`: loading calls it too
            warnings.warn(
                f"the distances have an error of up to {self.error_:g}, more than"
                f" tolerance={self.tolerance:g} of eps_={self.eps_:g}: min_cell_size is too large,"
                " too many points are equal, or sites withhold small counts",
                stacklevel=3,
            )
        return self

    def _set_model(self, model: DensityCurves) -> None:
        super()._set_model(model)
        self.eps_ = float(model.distances[model.distance_knee])
        self.cell_size_ = float(model.sizes[model.size_knee])
        self.error_ = model.error
        self.n_features_in_ = model.n_features

    def to_frame(self) -> pd.DataFrame:
        """Return the k-distance curve: one row per distance, with its rank and count of points.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        model = self.model_
        return pd.DataFrame({"rank": model.ranks, "distance": model.distances, "n": model.counts})

    def report(self) -> str:
        """Return the suggestions as text."""
        check_is_fitted(self, "model_")
        names = {"eps": self.eps_, "cell_size": self.cell_size_, "largest error": self.error_}
        return "\n".join(f"{name}: {value:.6g}" for name, value in names.items())

    def plot(self) -> Figure:
        """Draw the k-distance curve and the curve of the sparse cells, with the knees marked.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        from fedlib.figures.scores import density_curves

        model = self.model_
        return density_curves(
            pd.Series(model.distances, model.ranks),
            model.error,
            pd.Series(model.shares, model.sizes),
            distance_knee=model.distance_knee,
            size_knee=model.size_knee,
            min_samples=model.min_samples,
        )


def suggest_parameters(
    parts: Sequence[Any] | Transport,
    *,
    min_samples: int,
    min_clients: int | None = None,
    **options: Any,
) -> dict[str, float]:
    """Return the suggested ``eps`` and ``cell_size`` for a ``min_samples``.

    Parameters
    ----------
    parts, min_clients
        As in `DensitySuggestion.fit`.
    min_samples, **options
        The parameters of `DensitySuggestion`.

    Examples
    --------
    >>> from fedlib import HorizontalDBSCAN, suggest_parameters
    >>> parts = [[[0.0], [0.1], [0.2]], [[0.3], [0.4], [5.0]]]
    >>> suggested = suggest_parameters(parts, min_samples=2)
    >>> HorizontalDBSCAN(suggested["cell_size"], 2).fit(parts).labels_
    [array([0, 0, 0]), array([ 0,  0, -1])]
    """
    model = DensitySuggestion(min_samples, **options).fit(parts, min_clients=min_clients)
    return {"eps": model.eps_, "cell_size": model.cell_size_}
