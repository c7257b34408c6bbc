"""Choosing parameters without seeing the data.

`DensitySuggestion` suggests a radius or a cell size for the density methods.
"""

from fedlib.selection.density import (
    DensityCurves,
    DensitySuggestion,
    DensitySuggestionClient,
    PointsMagnitude,
    ReportMagnitude,
    suggest_density,
    suggest_parameters,
)
from fedlib.selection.knee import find_knee

__all__ = [
    "DensityCurves",
    "DensitySuggestion",
    "DensitySuggestionClient",
    "PointsMagnitude",
    "ReportMagnitude",
    "find_knee",
    "suggest_density",
    "suggest_parameters",
]
