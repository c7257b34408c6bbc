"""Federated principal components: the mean and the scatter of all rows, and their eigenvectors.

Without protection there are two sums, so that no digits cancel out: the first finds the mean, and
the second adds up the products of the features about it. Rows of masked and noisy sums are clipped
to bounds and scaled, so that a single sum has both; the one before a masked sum finds its digits.
`fedlib.tables.pipeline` asks the same requests when the components are one of its steps.

Source: K. Pearson, On lines and planes of closest fit to systems of points in space, 1901.
"""

from fedlib.tables.components.flow import (
    PCAClient,
    PCAModel,
    Scatter,
    SumClippedScatter,
    SumScatter,
    find_scatter,
    pca,
    principal_components,
)

__all__ = [
    "PCAClient",
    "PCAModel",
    "Scatter",
    "SumClippedScatter",
    "SumScatter",
    "find_scatter",
    "pca",
    "principal_components",
]
