"""The first mixture of a fit, as far as the user gave it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedlib.clustering.mixtures.messages import MATRICES, CovarianceType, positive_definite
from fedlib.core.array_types import Floats
from fedlib.core.names import as_table


class Start(NamedTuple):
    """The given parameters of the first mixture. A parameter that is not given is empty.

    Attributes
    ----------
    weights : array (n_components,)
    means : array (n_components, n_features)
    covariances : array
        In the shape of `fedlib.clustering.mixtures.messages.covariance_shape`.
    """

    weights: Floats
    means: Floats
    covariances: Floats

    @property
    def complete(self) -> bool:
        """Whether all three parameters are given."""
        return all(map(len, self))


NOTHING_GIVEN = Start(np.empty(0), np.empty((0, 1)), np.empty((0, 1, 1)))


def given_start(
    n_components: int,
    covariance_type: CovarianceType,
    weights: ArrayLike | None,
    means: ArrayLike | None,
    precisions: ArrayLike | None,
) -> Start:
    """Check the parameters of the first mixture that the user gave, and return them.

    Parameters
    ----------
    n_components : int
    covariance_type : {"full", "tied", "diag", "spherical"}
    weights : array-like (n_components,) or None
        At least 0; their sum is 1.
    means : array-like (n_components, n_features) or None
    precisions : array-like or None
        The inverses of the covariances, symmetric and positive definite, in scikit-learn's shape.

    Raises
    ------
    ValueError
        When they are not parameters of a mixture of ``n_components`` components.

    Examples
    --------
    >>> start = given_start(2, "spherical", None, None, precisions=[4.0, 0.5])
    >>> start.covariances.ravel(), start.complete
    (array([0.25, 2.  ]), False)
    """
    start = NOTHING_GIVEN
    if weights is not None:
        start = start._replace(weights=_check_weights(weights, n_components))
    if means is not None:
        start = start._replace(means=_check_array("means_init", means, (n_components, None)))
    if precisions is not None:
        n_features = None if means is None else start.means.shape[1]
        covariances = _invert(precisions, n_components, n_features, covariance_type)
        start = start._replace(covariances=covariances)
    return start


def _check_weights(weights: ArrayLike, n_components: int) -> Floats:
    checked = _check_array("weights_init", weights, (n_components,))
    if (checked < 0).any() or abs(checked.sum() - 1) > 1e-6:
        raise ValueError(f"weights_init must be at least 0 and sum to 1, got {checked}")
    return checked


def _invert(
    precisions: ArrayLike,
    n_components: int,
    n_features: int | None,
    covariance_type: CovarianceType,
) -> Floats:
    """Return the covariances of precisions in scikit-learn's shape."""
    name, k, d = "precisions_init", n_components, n_features
    shape = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}[covariance_type]
    checked = _check_array(name, precisions, shape)
    if covariance_type in MATRICES:
        checked = checked.reshape(-1, *checked.shape[-2:])
        square = checked.shape[1] == checked.shape[2]
    else:
        checked = checked.reshape(k, 1, -1)
        square = True
    if not square or not positive_definite(checked, covariance_type):
        raise ValueError(f"{name} must be symmetric and positive definite, got\n{checked}")
    inverse = np.linalg.inv(checked) if covariance_type in MATRICES else 1 / checked
    return np.asarray(inverse, float)


def _check_array(name: str, array: ArrayLike, shape: tuple[int | None, ...]) -> Floats:
    """Return an array of finite numbers of a shape, in which None allows any length."""
    values = np.asarray(as_table(array), float)
    fits = values.ndim == len(shape) and all(
        wanted in (None, length) for wanted, length in zip(shape, values.shape, strict=True)
    )
    lengths = ", ".join("n_features" if length is None else str(length) for length in shape)
    if not fits or not values.size:
        raise ValueError(f"{name} must have the shape ({lengths}), got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} must be finite numbers")
    return values
