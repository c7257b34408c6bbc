"""Shared by the tests of k-means: points, and a client that misbehaves."""

import numpy as np
import pytest

from fedlib.clustering.kmeans import FederatedKMeansClient

METHODS = ["one_shot", "lloyd"]
each_method = pytest.mark.parametrize("method", METHODS)


def blobs(n=90, seed=0):
    """Return points around (0, 0), (9, 0) and (0, 9), and the number of each point's blob."""
    blob = np.arange(n) % 3
    centres = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    return centres[blob] + np.random.default_rng(seed).normal(size=(n, 2)), blob


def sorted_rows(points):
    return sorted(points.tolist())


class FaultyClient(FederatedKMeansClient):
    """A client that, at the nth request of a class, fails or sends a given reply."""

    def __init__(self, X, request_class, nth=1, reply=None):
        super().__init__(X)
        self.request_class, self.remaining, self.reply = request_class, nth, reply

    def answer(self, request):
        self.remaining -= isinstance(request, self.request_class)
        if not isinstance(request, self.request_class) or self.remaining:
            return super().answer(request)
        if self.reply is None:
            raise OSError("disc full of patients")
        return self.reply
