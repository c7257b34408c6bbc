"""The covariances of a Gaussian mixture, of the four types of scikit-learn's `GaussianMixture`.

In this package the covariances of every type have three axes, so that one formula serves all types.
With k components and d features, their shape is (k, d, d) for ``"full"``, (1, d, d) for ``"tied"``,
(k, 1, d) for ``"diag"`` and (k, 1, 1) for ``"spherical"``.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedlib.core.array_types import Floats
from fedlib.kernels.mixtures import whiten

CovarianceType = Literal["full", "tied", "diag", "spherical"]
MATRICES = ("full", "tied")  # the types whose covariances are matrices; the others are variances


def covariance_shape(
    n_components: int, n_features: int, covariance_type: CovarianceType
) -> tuple[int, ...]:
    """Return the shape of a mixture's covariances.

    Examples
    --------
    >>> covariance_shape(5, 2, "diag")
    (5, 1, 2)
    """
    return {
        "full": (n_components, n_features, n_features),
        "tied": (1, n_features, n_features),
        "diag": (n_components, 1, n_features),
        "spherical": (n_components, 1, 1),
    }[covariance_type]


def expand(
    covariances: Floats, n_components: int, n_features: int, covariance_type: CovarianceType
) -> Floats:
    """Return the covariance matrix (n_components, n_features, n_features) of each component.

    Examples
    --------
    >>> expand(np.array([[[3.0]]]), 1, 2, "spherical")
    array([[[3., 0.],
            [0., 3.]]])
    """
    if covariance_type not in MATRICES:
        covariances = covariances * np.eye(n_features)
    if len(covariances) == n_components:
        return covariances
    return np.broadcast_to(covariances, (n_components, n_features, n_features))


def contract(matrices: Floats, covariance_type: CovarianceType) -> Floats:
    """Reduce each component's sum of outer products to the part that its covariance needs.

    Parameters
    ----------
    matrices : array (n_components, n_features, n_features)
    covariance_type : {"full", "tied", "diag", "spherical"}

    Returns
    -------
    array
        The matrices for ``"full"``, their sum for ``"tied"``, their diagonals for ``"diag"``, and
        the means of their diagonals for ``"spherical"``, in the shape of `covariance_shape`.

    Examples
    --------
    >>> contract(np.array([[[4.0, 1.0], [1.0, 2.0]]]), "spherical")
    array([[[3.]]])
    """
    if covariance_type == "full":
        return matrices
    if covariance_type == "tied":
        return matrices.sum(axis=0, keepdims=True)
    diagonals = np.diagonal(matrices, axis1=1, axis2=2)[:, np.newaxis]
    return diagonals if covariance_type == "diag" else diagonals.mean(axis=2, keepdims=True)


def scatter(vectors: Floats, weights: Floats, covariance_type: CovarianceType) -> Floats:
    """Return the weighted outer product of each component's vector with itself, contracted.

    Parameters
    ----------
    vectors : array (n_components, n_features)
    weights : array (n_components,)
    covariance_type : {"full", "tied", "diag", "spherical"}

    Examples
    --------
    >>> scatter(np.array([[1.0, 2.0]]), np.array([10.0]), "diag")
    array([[[10., 40.]]])
    """
    outer = vectors[:, :, np.newaxis] * vectors[:, np.newaxis, :]
    return contract(outer * weights[:, np.newaxis, np.newaxis], covariance_type)


def positive_definite(covariances: Floats, covariance_type: CovarianceType) -> bool:
    """Return whether covariances are symmetric, up to rounding, and positive definite.

    Server and clients decide it by the factorisation that also computes the densities. Otherwise a
    client could fail on a mixture that the server has accepted.

    Examples
    --------
    >>> positive_definite(np.array([[[1.0, 2.0], [2.0, 1.0]]]), "full")
    False
    """
    if covariance_type not in MATRICES:
        return bool((covariances > 0).all())
    if not whiten(np.array(covariances), np.empty(covariances.shape)):
        return False
    asymmetry = np.abs(covariances - covariances.mT)
    return bool((asymmetry <= 1e-9 * np.abs(covariances).max(initial=0)).all())


def precisions(covariances: Floats, covariance_type: CovarianceType) -> tuple[Floats, Floats]:
    """Return the precisions' Cholesky factors and the precisions, shaped like the covariances.

    A precision is the inverse of a covariance. As in scikit-learn, a factor is upper triangular,
    and the product of a factor and its transpose is the precision.

    Examples
    --------
    >>> precisions(np.array([[[4.0]]]), "full")
    (array([[[0.5]]]), array([[[0.25]]]))
    """
    if covariance_type not in MATRICES:
        return 1 / np.sqrt(covariances), 1 / covariances
    inverse = np.linalg.inv(np.linalg.cholesky(covariances))
    return inverse.mT, inverse.mT @ inverse


def sklearn_shape(array: Floats, covariance_type: CovarianceType) -> Floats:
    """Return a copy of covariances, or of precisions, in the shape that scikit-learn uses.

    Examples
    --------
    >>> sklearn_shape(np.ones((5, 1, 2)), "diag").shape
    (5, 2)
    """
    if covariance_type == "full":
        return array.copy()
    if covariance_type == "tied":
        return array[0].copy()
    return array[:, 0].copy() if covariance_type == "diag" else array[:, 0, 0].copy()
