"""The warning of a grid in which many columns leave nearly all rows as noise."""

import warnings

import numpy as np
import pytest

from fedlib import ApproximateDBSCAN, FederatedPipeline, HorizontalDBSCAN
from fedlib.clustering.density.cells import warn_of_noise
from fedlib.testing import seeded_noise

RNG = np.random.default_rng(0)
# Two clusters in two of many directions, and noise of the same scale in the others.
PLANE = np.concatenate([RNG.normal(centre, 0.3, (150, 2)) for centre in (-2, 2)])
TURNED = PLANE @ np.linalg.qr(RNG.normal(size=(12, 12)))[0][:2] + RNG.normal(size=(300, 12)) * 0.3
REMEDY = "% of the rows lie in cells without a cluster, though each of the .* pca=2"


def parts(X, n=3):
    return [X[i::n] for i in range(n)]


def test_many_columns_leave_noise_and_the_warning_names_the_remedy():
    with pytest.warns(UserWarning, match=REMEDY):
        model = HorizontalDBSCAN(0.5, 5).fit(parts(TURNED))
    assert np.mean(np.concatenate(model.labels_) < 0) > 0.9
    with warnings.catch_warnings(action="error"):
        better = FederatedPipeline(HorizontalDBSCAN(0.5, 5), pca=2).fit(parts(TURNED))
    assert np.mean(np.concatenate(better.labels_) < 0) < 0.2


CUBE = np.indices((8, 8, 8)).reshape(3, -1).T + 0.5  # each of 512 cells has one row
BOUNDS = [[0.0] * 3, [8.0] * 3]


@pytest.mark.parametrize("sums", [{}, {"secure": True, "bounds": BOUNDS}])
def test_the_approximation_warns_too(sums):
    """An interval of a feature is as long as eps, not as a cell."""
    with pytest.warns(UserWarning, match="100 % of the rows lie in cells"):
        ApproximateDBSCAN(0.6, 5, rho=0.5, **sums).fit(parts(CUBE))


@pytest.mark.parametrize("sums", [{"secure": True}, {"epsilon": 500.0}])
def test_masked_and_noisy_counts_warn_too(sums):
    with seeded_noise(0), pytest.warns(UserWarning, match="100 % of the rows lie in cells"):
        HorizontalDBSCAN(1.0, 5, bounds=BOUNDS, **sums).fit(parts(CUBE))


def caught(cells, counts, labels, min_samples=100):
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        warn_of_noise(np.array(cells), np.array(counts), np.array(labels), min_samples)
    return len(messages)


CORNERS = np.indices((2, 2, 2)).reshape(3, -1).T.tolist()
ALL = [25] * 8


def test_the_rule_by_hand():
    """Eight cells at the corners of a cube: each feature has two intervals with 100 rows."""
    assert caught(CORNERS, ALL, [-1] * 8) == 1
    assert caught(CORNERS, ALL, [-1] * 8, min_samples=101) == 0  # each feature alone is sparse
    assert caught(CORNERS, [12] * 8, [-1] * 8, min_samples=48) == 0  # 96 rows are few
    two = [[*corner[:2]] for corner in CORNERS]
    assert caught(two, ALL, [-1] * 8) == 0  # two columns are not many
    assert caught(CORNERS, ALL, [0] + [-1] * 7) == 0  # one of eight rows has a cluster
    assert caught(CORNERS, [20, *ALL[1:]], [0] + [-1] * 7, 90) == 0  # 20 of 195
    assert caught(CORNERS, [19, *ALL[1:]], [0] + [-1] * 7, 90) == 1  # 19 of 194
    assert caught(np.empty((0, 3), int), [], []) == 0


def test_a_cell_size_that_is_too_small_for_every_feature_is_another_cause():
    with warnings.catch_warnings(action="error"):
        HorizontalDBSCAN(1e-4, 5).fit(parts(TURNED))
