"""Choosing parameters without seeing the data.

`DensitySuggestion` suggests a radius or a cell size for the density methods, `KMeansSelection` and
`GaussianMixtureSelection` the number of clusters.
"""

from fedlib.evaluation.selection.choices import (
    KMeansChoice,
    MixtureChoice,
    select_kmeans,
    select_mixture,
)
from fedlib.evaluation.selection.clusters import (
    GaussianMixtureSelection,
    GaussianMixtureSelectionClient,
    KMeansSelection,
)
from fedlib.evaluation.selection.density import (
    DensityCurves,
    DensitySuggestion,
    DensitySuggestionClient,
    PointsMagnitude,
    ReportMagnitude,
    suggest_density,
    suggest_parameters,
)
from fedlib.evaluation.selection.knee import find_knee

__all__ = [
    "DensityCurves",
    "DensitySuggestion",
    "DensitySuggestionClient",
    "GaussianMixtureSelection",
    "GaussianMixtureSelectionClient",
    "KMeansChoice",
    "KMeansSelection",
    "MixtureChoice",
    "PointsMagnitude",
    "ReportMagnitude",
    "find_knee",
    "select_kmeans",
    "select_mixture",
    "suggest_density",
    "suggest_parameters",
]
