"""Pictures of ideas that are hard in words. The glossary lists all ten, of which six are here."""

import numpy as np

from fedlib.figures.plots import BLUE, RED, colours
from study.shared.pages import panels

GREY = "#8c8c8c"


def masks(values, pairwise_masks, modulus):
    """Draw what sites have and what they send: the sums are equal, the parts are not.

    Parameters
    ----------
    values : dict of str to int
        The number of each site.
    pairwise_masks : dict of (str, str) to int
        The mask of each pair; the first site adds it, and the second one subtracts it.
    modulus : int

    Returns
    -------
    Figure

    Examples
    --------
    >>> figure = masks({"A": 3, "B": 5}, {("A", "B"): 9}, 16)
    >>> [ax.get_title() for ax in figure.axes]
    ['the sites have', 'the sites send']
    """
    sent = dict(values)
    for (first, second), mask in pairwise_masks.items():
        sent[first] = (sent[first] + mask) % modulus
        sent[second] = (sent[second] - mask) % modulus
    figure, axes = panels(2, height=2.6, sharey=True)
    for ax, of, title in zip(axes, (values, sent), ("have", "send"), strict=True):
        heights = [*of.values(), sum(of.values()) % modulus]
        bars = ax.bar([*of, "sum"], heights, color=[BLUE] * len(of) + [RED])
        ax.bar_label(bars)
        ax.set(title=f"the sites {title}", ylim=(0, modulus), yticks=[0, modulus])
    return figure


def shares(secret, slope, n_shares):
    """Draw a secret as the height of a line at 0: two shares determine it, one does not.

    Parameters
    ----------
    secret, slope : float
    n_shares : int

    Returns
    -------
    Figure
    """
    x = np.arange(1, n_shares + 1)
    figure, axes = panels(2, height=2.6, sharey=True)
    reach = np.array([0, n_shares + 0.5])
    for other in np.linspace(-2, 2, 9):
        start = secret + slope - other  # of a line through the first share
        axes[0].plot(reach, start + other * reach, color=GREY, lw=0.8)
        axes[0].plot(0, start, "o", color=RED, ms=4)
    axes[0].plot(x[0], secret + slope, "o", color=BLUE, ms=8)
    axes[1].plot(reach, secret + slope * reach, color=GREY)
    axes[1].plot(x, secret + slope * x, "o", color=BLUE, ms=8)
    axes[1].plot(0, secret, "o", color=RED, ms=8)
    for ax, title in zip(axes, ("one share: any secret", "two shares: one secret"), strict=True):
        ax.set(title=title, xlabel="site", xticks=[0, *x], yticks=[])
        ax.set_xticklabels(["secret", *x])
    return figure


def noise(count, epsilon):
    """Draw the probabilities of a noisy count with and without one row.

    The noise has the Laplace distribution with the scale 1 / epsilon, so the two curves never
    differ by more than the factor e to the epsilon.

    Parameters
    ----------
    count : int
        With the row.
    epsilon : float

    Returns
    -------
    Figure
    """
    x = np.linspace(count - 6, count + 5, 551)
    figure, [ax] = panels(1, width=6.0, height=2.8)
    for centre, colour, label in ((count, BLUE, "with the row"), (count - 1, RED, "without it")):
        density = epsilon / 2 * np.exp(-epsilon * np.abs(x - centre))
        ax.plot(x, density, color=colour, label=label)
        ax.fill_between(x, density, color=colour, alpha=0.15, lw=0)
    ax.set(xlabel="noisy count", ylabel="probability density", ylim=(0, None))
    ax.set_title(f"ε = {epsilon:g}: a factor of {np.exp(epsilon):.2f} at most")
    ax.legend()
    return figure


def difference(points, moving):
    """Draw two groups of points that differ by one point, their sums, and the difference.

    Parameters
    ----------
    points : array (n, 2)
    moving : int
        The row that leaves the group between two rounds.

    Returns
    -------
    Figure

    Examples
    --------
    >>> figure = difference(np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0]]), 2)
    >>> figure.axes[1].get_title()
    'round 2: 2 points'
    """
    points = np.asarray(points, float)
    left = np.delete(points, moving, axis=0)
    found = points.sum(axis=0) - left.sum(axis=0)
    figure, axes = panels(3, width=2.6, height=2.6, sharex=True, sharey=True)
    for ax, group, title in zip(axes, (points, left), ("round 1", "round 2"), strict=False):
        ax.scatter(*group.T, color=GREY)
        ax.plot(*group.mean(axis=0), "+", color=BLUE, ms=14, mew=3)
        ax.set_title(f"{title}: {len(group)} points")
    axes[2].plot(*found, "*", color=RED, ms=16)
    axes[2].set_title("the difference of the sums")
    for ax in axes:
        ax.set(xticks=[], yticks=[])
    return figure


def histograms(counts, cut):
    """Draw the bins of several clients, stacked: the totals are those of the pooled rows.

    Parameters
    ----------
    counts : array (n_clients, n_bins)
    cut : float
        Where the split is, between bins.

    Returns
    -------
    Figure
    """
    counts = np.asarray(counts)
    figure, axes = panels(len(counts) + 1, width=1.9, height=2.4, sharey=True)
    bottom = np.zeros(counts.shape[1])
    for i, (row, colour) in enumerate(zip(counts, colours(range(len(counts))), strict=True)):
        axes[i].bar(range(len(row)), row, color=colour)
        axes[i].set_title(f"client {i + 1}")
        axes[-1].bar(range(len(row)), row, bottom=bottom, color=colour)
        bottom += row
    axes[-1].axvline(cut, color=RED, linestyle="--")
    axes[-1].set_title("sum, and a split")
    for ax in axes:
        ax.set(xticks=[], xlabel="bins")
    axes[0].set_ylabel("sum in the bin")
    return figure


def weights(sizes, means):
    """Draw the centres of clients, with discs as large as they have rows, and their two means.

    Parameters
    ----------
    sizes, means : array (n_clients,)

    Returns
    -------
    Figure
    """
    figure, [ax] = panels(1, width=6.0, height=1.9)
    ax.scatter(means, np.zeros(len(means)), s=8 * np.asarray(sizes), color=GREY, alpha=0.6)
    for size, mean in zip(sizes, means, strict=True):
        ax.annotate(f"{size} rows", (mean, 0), (0, 20), textcoords="offset points", ha="center")
    for place, name, colour, height in (
        (np.mean(means), "without weights", RED, -44),
        (np.average(means, weights=sizes), "with weights", BLUE, -30),
    ):
        ax.plot(place, 0, "|", color=colour, ms=26, mew=3)
        ax.annotate(
            f"{name}: {place:g}",
            (place, 0),
            (0, height),
            textcoords="offset points",
            ha="center",
            color=colour,
        )
    ax.set(yticks=[], ylim=(-1, 1), xlabel="feature")
    ax.margins(x=0.15)
    return figure
