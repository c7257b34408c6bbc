"""The covariance of the rows of all sites: a protocol on sums of rows, whole.

The request declares what one row adds. Sums in the clear, with masks and with noise, the checks of
replies, the digits of masked sums and the scale of the noise follow from this declaration.
"""

from math import sqrt

import numpy as np

from fedlib.core.client import handles
from fedlib.protection.estimator import ProtectedFederated
from fedlib.protection.privacy import BoundsArray, Sensitivity, to_unit
from fedlib.protection.secure.points import DescribedPoints, agree_on_bounded_features
from fedlib.protection.sums import FIRST_ROWS, SumRows


class SumProducts(SumRows):
    """Sum your rows, scaled to [-1, 1] by bounds, and the products of their features."""

    discloses = "the bounds of the rows"
    bounds: BoundsArray

    @property
    def n_values(self):
        d = self.bounds.shape[1]
        return 1 + d + d * (d + 1) // 2

    def sensitivity(self):
        return Sensitivity(float(self.n_values), sqrt(self.n_values), self.n_values)

    def terms(self, X):
        rows = to_unit(X, self.bounds)
        first, second = np.triu_indices(rows.shape[1])
        return np.hstack([np.ones((len(rows), 1)), rows, rows[:, first] * rows[:, second]])


class CovarianceClient(DescribedPoints):
    """A client that holds points."""

    @handles(SumProducts)
    def sum_products(self, request):
        return request.total(self.X, self)


def covariance(bounds, aggregation, n_rows):
    """Return the flow, whose model is the covariance of all points within the bounds."""
    d = bounds.shape[1]
    yield from agree_on_bounded_features(aggregation, d)
    request = SumProducts(bounds, privacy=aggregation.privacy, n_rows=n_rows)
    total, _ = yield from aggregation.sum(request)
    n, mean = total.values[0], total.values[1 : 1 + d] / total.values[0]
    products = np.zeros((d, d))
    products[np.triu_indices(d)] = total.values[1 + d :] / n
    half = np.diff(bounds, axis=0)[0] / 2
    return (np.maximum(products, products.T) - np.outer(mean, mean)) * np.outer(half, half)


class FederatedCovariance(ProtectedFederated):
    """The covariance of all clients' points."""

    client_class = CovarianceClient

    def __init__(self, bounds, secure=False, epsilon=None, delta=0.0, n_rows=FIRST_ROWS):
        self.bounds, self.secure, self.epsilon, self.delta = bounds, secure, epsilon, delta
        self.n_rows = n_rows

    def _flow(self):
        sums = self._sums() if self.epsilon is None else self._noisy_sums(1)
        return covariance(np.array(self.bounds, float), sums, self.n_rows)
