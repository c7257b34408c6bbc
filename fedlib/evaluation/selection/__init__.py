"""Choosing parameters without seeing the data.

`DensitySuggestion` suggests a radius or a cell size for the density methods, `KMeansSelection` and
`GaussianMixtureSelection` the count of clusters. `cross_validate_sites` scores an estimator on
sites that had no part in its fit.
"""

from fedlib.evaluation.selection.clusters import GaussianMixtureSelectionClient
from fedlib.evaluation.selection.density import (
    DensityCurves,
    DensitySuggestionClient,
    suggest_density,
)
from fedlib.evaluation.selection.grid_search import (
    KMeansChoice,
    MixtureChoice,
    find_knee,
    select_kmeans,
    select_mixture,
)
from fedlib.evaluation.selection.sites import cross_validate_sites

__all__ = [
    "DensityCurves",
    "DensitySuggestionClient",
    "GaussianMixtureSelectionClient",
    "KMeansChoice",
    "MixtureChoice",
    "cross_validate_sites",
    "find_knee",
    "select_kmeans",
    "select_mixture",
    "suggest_density",
]
