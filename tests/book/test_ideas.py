"""Tests of the pictures of ideas: what they show is computed, and right."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def ideas(modules):
    return modules("study.shared.ideas")


def heights(ax):
    return [bar.get_height() for bar in ax.patches]


def test_masks_change_each_part_and_not_the_sum(ideas):
    pairs = {("A", "B"): 9, ("A", "C"): 14, ("B", "C"): 6}
    have, send = map(heights, ideas.masks({"A": 3, "B": 5, "C": 1}, pairs, 16).axes)
    assert have == [3, 5, 1, 9]
    # A adds 9 and 14, B subtracts 9 and adds 6, C subtracts 14 and 6.
    assert send == [10, 2, 13, 9]


def test_lines_through_one_share_have_all_secrets_and_the_line_through_two_has_one(ideas):
    one, two = ideas.shares(secret=3.0, slope=0.5, n_shares=4).axes
    lines = [line.get_xydata() for line in one.lines if len(line.get_xydata()) == 2]
    assert len({line[0, 1] for line in lines}) == len(lines) == 9
    for (x0, y0), (x1, y1) in lines:
        assert np.interp(1, [x0, x1], [y0, y1]) == pytest.approx(3.5)
    assert [0.0, 3.0] in [line.get_xydata()[0].tolist() for line in two.lines]


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_noisy_counts_differ_by_the_stated_factor_at_most(ideas, epsilon):
    [ax] = ideas.noise(8, epsilon).axes
    with_row, without = (line.get_ydata() for line in ax.lines)
    ratio = with_row / without
    assert np.allclose([ratio.max(), ratio.min()], [np.exp(epsilon), np.exp(-epsilon)])


def test_the_difference_of_two_sums_is_the_point(ideas):
    points = np.array([[0.0, 0.0], [2.0, 0.5], [1.0, 3.0]])
    *_, last = ideas.difference(points, 1).axes
    assert np.allclose(last.lines[0].get_xydata(), [[2.0, 0.5]])


def test_histograms_add_up(ideas):
    *_, last = ideas.histograms([[4, 2], [1, 3], [0, 1]], cut=0.5).axes
    tops = [bar.get_y() + bar.get_height() for bar in last.patches]
    assert tops[-2:] == [5, 6]


def test_weights_move_the_common_centre(ideas):
    [ax] = ideas.weights([90, 10], [0.0, 10.0]).axes
    assert [line.get_xdata()[0] for line in ax.lines] == [5.0, 1.0]
