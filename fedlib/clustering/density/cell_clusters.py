"""What the estimators share that cluster the cells of a grid."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from fedlib.core.array_types import Ints
from fedlib.core.estimator import Clusterer
from fedlib.protection.estimator import ProtectedFederated


class CellClusters(Clusterer, ProtectedFederated):
    """Base class of the estimators whose model has ``cells``, ``counts``, ``labels``, ``place``."""

    def _set_model(self, model: Any) -> None:
        super()._set_model(model)
        self.cells_ = model.cells
        self.cell_counts_ = model.counts
        self.cell_labels_ = model.labels
        self.n_features_in_ = model.cells.shape[1]

    def predict(self, X: ArrayLike) -> Ints:
        """Return the cluster of new points by the rule that labelled the clients' points.

        Parameters
        ----------
        X : array-like (n_points, n_features)
            Finite numbers; at least one row.

        Returns
        -------
        array (n_points,) of int64
            The cluster of each point; -1 for a point that belongs to none.

        Raises
        ------
        ValueError
            When the points are not finite, do not have the number of features of `fit`, or lie too
            far out for the grid.
        """
        points = self._new_points(X)
        labels: Ints = self.model_.place(points)
        return labels
