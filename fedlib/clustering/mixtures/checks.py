"""Checks of a client's replies against what it has declared and reported before.

Before the first mixture, each client declares the order of magnitude of its points. Means and
variances beyond it cannot be of its points. A client that declares far larger points than most
others leaves the run: in double precision, no mixture describes both.

A client can still invent points, as long as it invents the same points in all its replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median_low
from typing import Any

import numpy as np
from scipy.special import logsumexp

from fedlib.clustering.mixtures.em import START_REGULARISATION, Start, prepare
from fedlib.clustering.mixtures.messages import (
    MATRICES,
    ImprovedMixture,
    Likelihood,
    Mixture,
    ResponsibilitySums,
    expand,
    scatter,
)
from fedlib.core.aggregation import Disagreement
from fedlib.core.array_types import Floats
from fedlib.core.protocol import Replies

# Up to this ratio, as a power of two, squares of both magnitudes fit a float64.
MAX_RATIO = 26
SMALLEST_FRACTION = 2.0**-120  # of the largest square: a smaller variance is rounding
ROUNDING = 1e-9
EQUAL = 1e-6  # standard deviations: equal components are that near to each other
NO_WEIGHT = 1e-12  # of a component without points: above 0, as in scikit-learn


def agree_on_magnitude(described: Mapping[str, Any]) -> None:
    """Raise Disagreement when some clients' points are far larger than most others'.

    Clients without points do not count.

    Examples
    --------
    >>> from types import SimpleNamespace as Reply
    >>> sizes = {"A": Reply(magnitude=3), "B": Reply(magnitude=2), "C": Reply(magnitude=90)}
    >>> agree_on_magnitude(sizes)
    Traceback (most recent call last):
    ...
    fedlib.core.aggregation.Disagreement: clients disagree on the magnitude of points: 2**90 at \
'C', typically 2**3; the largest may be 2**29
    """
    magnitudes = {
        name: one.magnitude for name, one in described.items() if one.magnitude is not None
    }
    if not magnitudes:
        return
    limit = (typical := median_low(magnitudes.values())) + MAX_RATIO
    far = [name for name, magnitude in magnitudes.items() if magnitude > limit]
    if far:
        shown = ", ".join(f"2**{magnitudes[name]} at {name!r}" for name in far)
        raise Disagreement(
            f"clients disagree on the magnitude of points: {shown}, typically 2**{typical}; the"
            f" largest may be 2**{limit}",
            far if 2 * len(far) < len(magnitudes) else [],
        )


def smallest_variance(mixture: Mixture | None) -> float:
    """Return the smallest variance of a mixture in any direction; infinite without a mixture."""
    if mixture is None or not mixture.covariances.size:
        return float("inf")
    if mixture.covariance_type in MATRICES:
        return float(np.linalg.eigvalsh(mixture.covariances).min())
    return float(mixture.covariances.min())


@dataclass
class PointsHistory:
    """What the clients have declared about their points, and reported in earlier rounds.

    Attributes
    ----------
    limits : dict of str to float
        The largest coordinate of each client, up to a factor of two; None without points.
    reg_covar : float
        Added to every variance at each step of EM.
    n_points : dict of str to float
        The number, or the weight, of the points that each client has reported first.
    sums : dict of str to array (n_features,)
        The sum of each client's points, by its first reply.
    """

    limits: dict[str, float | None]
    reg_covar: float
    n_points: dict[str, float] = field(default_factory=dict)
    sums: dict[str, Floats] = field(default_factory=dict)

    def problems(self, replies: Replies, mixture: Mixture) -> dict[str, str]:
        """Return the clients whose replies to this mixture cannot be right, with the reason."""
        found = {
            name: (
                self.problem_of_sums(name, reply, mixture)
                if isinstance(reply, ResponsibilitySums)
                else self.problem_of_improved(name, reply, mixture)
            )
            for name, reply in replies.items()
        }
        return {name: problem for name, problem in found.items() if problem is not None}

    def problem_of_start(self, name: str, reply: Mixture, given: Start) -> str | None:
        """Return why a fitted mixture cannot be of a client's points; None if it can.

        Parameters of the start that the user gave may remain in it.
        """
        limit = self.limits.get(name)
        if limit is None:
            return "a mixture of no points"
        before = float(np.abs(given.means).max(initial=0)), float(given.covariances.max(initial=0))
        smallest = np.inf
        if len(given.covariances):
            of_given = Mixture(reply.weights, reply.means, given.covariances, reply.covariance_type)
            smallest = smallest_variance(of_given)
        return self._problem_of_parameters(limit, reply, *before, smallest)

    def problem_of_sums(self, name: str, reply: ResponsibilitySums, mixture: Mixture) -> str | None:
        """Return why sums next to this mixture cannot be of a client's points; None if they can."""
        limit = self.limits.get(name)
        if limit is None:
            return None if reply.n_points == 0 else "sums of points that were not declared"
        reach = limit + np.abs(mixture.means)
        counts = reply.counts * (1 + ROUNDING)
        if (np.abs(reply.sums) > counts[:, np.newaxis] * reach * (1 + ROUNDING)).any():
            return "the sums are outside of the range of the client's points"
        largest = scatter(reach, counts, mixture.covariance_type) * (1 + ROUNDING)
        if (np.abs(reply.products) > largest).any():
            return "the products are outside of the range of the client's points"
        total = (reply.sums + reply.counts[:, np.newaxis] * mixture.means).sum(axis=0)
        return self._problem_of_points(name, reply, mixture, total)

    def problem_of_likelihood(self, name: str, reply: Likelihood, mixture: Mixture) -> str | None:
        """Return why a likelihood cannot be of a client's points; None if it can."""
        if self.limits.get(name) is None:
            return None if reply.n_points == 0 else "a likelihood of points that were not declared"
        return self._problem_of_points(name, reply, mixture, None)

    def problem_of_improved(
        self, name: str, reply: ImprovedMixture, mixture: Mixture
    ) -> str | None:
        """Return why a client cannot have improved this mixture to its reply; None if it can."""
        limit = self.limits.get(name)
        if limit is None:
            return None if reply.n_points == 0 else "a mixture of points that were not declared"
        if not reply.improved:
            return self._problem_of_points(name, reply, mixture, None)
        before = np.abs(mixture.means).max(), mixture.covariances.max()
        return self._problem_of_parameters(
            limit, reply, *before, smallest_variance(mixture)
        ) or self._problem_of_points(
            name, reply, mixture, reply.n_points * (reply.weights @ reply.means)
        )

    def _problem_of_parameters(
        self,
        limit: float,
        reply: Mixture,
        largest_mean: float,
        largest_variance: float,
        smallest: float,
    ) -> str | None:
        """Return why means or variances are impossible: a component may also keep those before."""
        if np.abs(reply.means).max() > max(limit, largest_mean) * (1 + ROUNDING):
            return "a mean is outside of the range of the client's points"
        largest_of_points = limit**2 * (1 + START_REGULARISATION) + self.reg_covar
        largest = max(largest_of_points, largest_variance)
        if np.abs(reply.covariances).max() > largest * (1 + ROUNDING):
            return "a variance is larger than that of any points in the client's range"
        square = max(other for other in self.limits.values() if other is not None) ** 2
        floor = min(self.reg_covar or SMALLEST_FRACTION * square, smallest)
        rounding = 1e-6 * floor + 1e-13 * np.abs(reply.covariances).max()
        if smallest_variance(reply) < floor - rounding:
            return f"a variance is below {floor}, the smallest possible"
        return None

    def _problem_of_points(
        self,
        name: str,
        reply: ResponsibilitySums | ImprovedMixture | Likelihood,
        mixture: Mixture,
        total: Floats | None,
    ) -> str | None:
        """Return why the number, sum or likelihood of a client's points is impossible."""
        n = self.n_points.setdefault(name, reply.n_points)
        if reply.n_points != n:
            return f"n_points must be {n}, as before; got {reply.n_points}"
        limit = self.limits[name] or 0.0
        if total is not None:
            margin = ROUNDING * n * (limit + np.abs(mixture.means).max())
            if (np.abs(total - self.sums.setdefault(name, total)) > margin).any():
                return "the mean of the client's points has changed"
        low, high = log_density_range(mixture, limit + np.abs(mixture.means))
        margin = 1e-6 * (abs(low) + abs(high)) + 1e-6
        if not n * (low - margin) <= reply.log_likelihood <= n * (high + margin):
            return f"log_likelihood must be in {n * low}..{n * high}, got {reply.log_likelihood}"
        return None


def log_density_range(mixture: Mixture, reach: Floats) -> tuple[float, float]:
    """Return bounds on the log-density of points, up to ``reach`` (k, d) away from the means."""
    densities = prepare(mixture)
    farthest = (np.abs(densities.whitening) @ reach[:, :, np.newaxis])[:, :, 0]
    nearest = densities.log_factors - 0.5 * np.square(farthest).sum(axis=1)
    return float(nearest.max()), float(logsumexp(densities.log_factors))


def degenerate(mixture: Mixture) -> str:
    """Return what is wrong with a mixture whose components have no points or are equal."""
    advice = "fewer components or another start may help"
    unused = np.flatnonzero(mixture.weights < NO_WEIGHT).tolist()
    if unused:
        return f"the components {unused} have no points: their weights are almost 0; {advice}"
    n_components, n_features = mixture.means.shape
    matrices = expand(mixture.covariances, n_components, n_features, mixture.covariance_type)
    for i, j in combinations(range(n_components), 2):
        distance = float(np.square(mixture.means[i] - mixture.means[j]).sum())
        if distance <= EQUAL**2 * np.trace(matrices[i]) and np.allclose(
            matrices[i], matrices[j], rtol=EQUAL, atol=EQUAL * np.trace(matrices[i])
        ):
            return f"the components {i} and {j} are equal; {advice}"
    return ""


def few_points(n_points: Mapping[str, float], mixture: Mixture) -> str:
    """Return which clients cannot fit this mixture alone, because some have too few points.

    Below these numbers, covariances of single clients are singular or nearly so.
    """
    n_components, n_features = mixture.means.shape
    needed = {
        "full": n_components * (n_features + 1),
        "tied": n_components + n_features,
        "diag": 2 * n_components,
        "spherical": 2 * n_components,
    }[mixture.covariance_type]
    few = [f"{name!r} ({n:g})" for name, n in n_points.items() if 0 < n < needed]
    if not few:
        return ""
    return (
        f"{len(few)} of {len(n_points)} clients have fewer than {needed} points, too few for"
        f" {n_components} components with {mixture.covariance_type!r} covariances of {n_features}"
        f" features: {', '.join(few[:3])}{', …' * (len(few) > 3)}. An average of their mixtures can"
        " be far from the mixture of all points; method='em', fewer components or a simpler"
        " covariance_type may help"
    )
