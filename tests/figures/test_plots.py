"""Figures: the arrows of a sequence diagram, and panels that fit a page."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.text import Annotation

from fedlib import FederatedKMeans
from fedlib.figures import plots


def test_arrowheads_are_only_where_a_message_ends():
    """A request passes two clients and ends at the third; their replies end at the server."""
    points = np.random.default_rng(0).normal(size=(30, 2))
    ledger = FederatedKMeans(2, method="one_shot").fit(np.array_split(points, 3)).ledger_
    ax = ledger.plot()
    arrows = [text for text in ax.texts if isinstance(text, Annotation)]
    assert [(arrow.xyann[0], arrow.xy[0]) for arrow in arrows] == [(0, 3), (3, 0)] * 3
    dots = [line.get_xdata() for line in ax.lines if line.get_marker() == "o"]
    assert [list(columns) for columns in dots] == [[1, 2], [1, 2, 3]] * 3


@pytest.mark.parametrize("n_clients", [2, 30])
def test_a_sequence_diagram_fits_a_page(n_clients):
    points = np.random.default_rng(0).normal(size=(90, 2))
    ledger = FederatedKMeans(2).fit(np.array_split(points, n_clients)).ledger_
    assert ledger.plot().figure.get_figwidth() <= plots.WIDEST


def test_titles_of_many_panels_wrap():
    with mpl.rc_context({"xtick.labelsize": 9}):
        labellings = {key: [0, -1] for key in ["classes", "DBSCAN", "a federated method"]}
        figure = plots.compare([[0, 0], [1, 1]], labellings)
    assert figure.get_figwidth() <= plots.WIDEST
    titles = [ax.get_title() for ax in figure.axes]
    assert titles[2] == "a federated method: 1 cluster, 1\nnoise point"
    assert {ax.title.get_fontsize() for ax in figure.axes} == {9.0}


def colours_of(ax, points):
    """Return the colour of each point, as text; black for the crosses of noise."""
    found = {}
    for drawn in ax.collections:
        places, shades = drawn.get_offsets().tolist(), drawn.get_facecolors()
        shades = shades if len(shades) else drawn.get_edgecolors()
        for i, place in enumerate(places):
            found[tuple(place)] = mpl.colors.to_hex(shades[i % len(shades)])
    return [found[tuple(point)] for point in points]


def test_a_cluster_has_the_colour_of_its_partner_in_the_first_labelling():
    """Clusters 0 and 1 are exchanged, one point of the second is noise, cluster 2 is new."""
    points = [[float(i), 0.0] for i in range(7)]
    first, second = [0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, -1, 2]
    left, right = plots.compare(points, {"first": first, "second": second}).axes
    a, b, c = map(mpl.colors.to_hex, plots.colours([0, 1, 2]))
    assert colours_of(left, points) == [a, a, a, b, b, b, b]
    assert colours_of(right, points) == [a, a, a, b, b, "#000000", c]
