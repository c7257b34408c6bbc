"""Figures and verdicts of the pages on Gaussian mixtures."""

import hashlib
import warnings
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Ellipse
from sklearn.datasets import make_blobs, make_circles
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_score
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

import study
from fedlib.clustering.mixtures.dbscan import ClusterMixtures, draw_points
from fedlib.figures import plots
from fedlib.figures.scores import match_clusters

BLUE, RED, GREY = "#3f90da", "#bd1f01", "#717581"
MARKERS = "osD^vP"  # one marker per data set
F_SPREAD = 0.7  # of the blobs in F's Table 5.1: chosen by the search on the page about F's settings


def gallery(columns, row_titles):
    """Draw clusterings of several data sets, one column per set.

    Parameters
    ----------
    columns : mapping of str to list of (points, labels)
        For each set, one pair per row of the figure. The clusters of the first row determine the
        colours of the others.
    row_titles : sequence of str
    """
    _, axes = plt.subplots(
        len(row_titles),
        len(columns),
        figsize=(study.PAGE_WIDTH, 4.2),
        layout="constrained",
        sharex="col",
        sharey="col",
    )
    for column, (name, panels) in zip(axes.T, columns.items(), strict=True):
        for ax, (points, labels) in zip(column, panels, strict=True):
            plots.scatter(points, renumbered(points, labels, *panels[0]), ax=ax, size=2)
            ax.set(xticks=[], yticks=[])
        column[0].set_title(name)
    for ax, title in zip(axes[:, 0], row_titles, strict=True):
        ax.set_ylabel(title)


def renumbered(points, labels, reference_points, reference_labels):
    """Return labels in which each cluster has the number of a cluster of the reference.

    Each point is compared with the nearest point of the reference, see `match_clusters`.
    """
    nearest = NearestNeighbors(n_neighbors=1).fit(reference_points).kneighbors(points)[1].ravel()
    return match_clusters(labels, np.asarray(reference_labels)[nearest])


def convergence_plot(differences):
    """Draw the largest difference from scikit-learn per round, one curve per covariance type."""
    _, ax = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    for (kind, points), marker in zip(differences.items(), MARKERS, strict=False):
        rounds, largest = np.transpose(points)
        ax.loglog(rounds, np.maximum(largest, 1e-17), marker=marker, ms=4, label=kind)
    ax.axhline(1e-8, color="#888", lw=1, ls="--")
    ax.set(xlabel="round", ylabel="largest difference", ylim=(1e-17, 1e-7))
    ax.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, 0.9))


def judge_silhouettes(runs, sets, components, n_clients):
    """Return Vasilopoulou's Table 5.1 next to the measured silhouettes.

    Parameters
    ----------
    runs : DataFrame
        One row per data set, seed and share of the rows, with one column per method.
    sets : mapping of str to Dataset
    components : mapping of str to int
    n_clients : int

    Returns
    -------
    DataFrame
        Rows as of `study.fidelity`.
    """
    printed = study.published(source="F", table="5.1")
    how = (
        "{k} components, {n_clients} clients, each normalised by itself;"
        " {n_seeds} splits and starts, with all rows and with four fifths"
    )
    rows = []
    for (name, method), number in printed.groupby(["dataset", "method"], sort=False):
        column = {"federated_gmm": "average"}.get(method, method)
        of_set = runs[runs["dataset"] == name]
        all_rows = of_set.loc[of_set["share"] == 1, column]
        gap = (of_set[column] - float(number["published"].iloc[0])).abs().min()
        note = how.format(k=components[name], n_clients=n_clients, n_seeds=len(all_rows))
        if name == "blobs":
            note += f"; the gallery's blobs with a spread of {F_SPREAD}, which a search has chosen"
        missed = f"{note}; the nearest run is {gap:.3f} off"
        row = study.fidelity(
            number,
            sets[name],
            {"silhouette": all_rows.median()},
            {"silhouette": (of_set[column].min(), of_set[column].max())},
            {"exact": note, "within": note, "differs": missed},
            truncated=True,  # F cuts digits off
        )
        # Generated points have no file. Their own checksum identifies them.
        rows.append(row.assign(sha256=hashlib.sha256(sets[name].X.tobytes()).hexdigest()))
    return pd.concat(rows, ignore_index=True)


def silhouette_plot(runs, fidelity, names):
    """Draw the silhouette of every run, and the printed ones as red lines."""
    _, ax = plt.subplots(figsize=(study.PAGE_WIDTH, 3.4), layout="constrained")
    places = {"gmm": -0.2, "average": 0, "em": 0.2}
    for (method, shift), colour in zip(places.items(), (GREY, BLUE, "#ffa90e"), strict=True):
        x = runs["dataset"].map(names.index) + shift
        label = {"gmm": "scikit-learn"}.get(method, method)
        ax.scatter(x, runs[method], s=14, color=colour, alpha=0.7, linewidths=0, label=label)
    for method, shift in (("gmm", -0.2), ("federated_gmm", 0)):
        printed = fidelity[fidelity["method"] == method].set_index("dataset")["published"]
        left = np.arange(len(names)) + shift - 0.09
        label = "printed" if shift else None
        ax.hlines(printed[names].astype(float), left, left + 0.18, color=RED, lw=2, label=label)
    ax.set_xticks(range(len(names)), names)
    ax.set_ylabel("silhouette")
    ax.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.17))


def loss_plot(runs, client_numbers):
    """Draw the lost log-likelihood against the number of clients, one panel per split."""
    mean = runs.groupby(["split", "method", "dataset", "clients"])["loss"].mean()
    names = list(runs["dataset"].unique())
    figure, axes = study.panels(2, width=4.6, height=3.4, sharey=True)
    for ax, how in zip(axes, ("uniform", "spatial"), strict=True):
        for name, marker, colour in zip(names, "osD^", plots.colours(range(4)), strict=True):
            for method, line in (("average", "-"), ("em", ":")):
                curve = mean[how, method, name]
                ax.plot(curve.index, curve, line, marker=marker, ms=4, color=colour)
        ax.set(title=how, xlabel="clients", xticks=client_numbers)
        ax.set_yscale("symlog", linthresh=0.01)
    axes[0].set_ylabel("log-likelihood lost")
    figure.legend(axes[0].get_lines()[::2], names, ncols=4, loc="outside upper left")
    line_legend(figure, {"average": "-", "em": ":"}, loc="outside upper right")


def line_legend(figure, styles, loc):
    """Add a legend that explains line styles: a mapping of labels to styles."""
    lines = [plt.Line2D([], [], color="#444", ls=style) for style in styles.values()]
    figure.legend(lines, list(styles), ncols=len(styles), loc=loc)


def outline(ax, mixture):
    """Draw each Gaussian of a mixture as an ellipse at two standard deviations."""
    for mean, covariance in zip(mixture.means, mixture.covariances, strict=True):
        variances, directions = np.linalg.eigh(covariance)
        angle = np.degrees(np.arctan2(directions[1, 1], directions[0, 1]))
        width, height = 4 * np.sqrt(variances[::-1])
        ax.add_patch(Ellipse(mean, width, height, angle=angle, fill=False, ec=RED, lw=1))


def disclosure_plot(curve, bound):
    """Draw how close drawn points come to real ones, against the number of components."""
    figure, (left, right) = study.panels(2, width=4.4, height=3.7)
    panels = {
        left: ("to a real point", "fresh", "median distance / median gap"),
        right: ("very close", "fresh, very close", "share of very close points"),
    }
    for ax, (column, fresh, label) in panels.items():
        ax.semilogx(curve.index, curve[column], marker="o", ms=4, color=BLUE, label="drawn")
        ax.axhline(curve[fresh].mean(), color=RED, lw=1.2, ls="--", label="a fresh ring")
        ax.axvline(bound, color=GREY, lw=1, ls=":", label="the estimator's bound")
        ax.set(xlabel="components", ylabel=label)
    left.set_yscale("log")
    figure.legend(*left.get_legend_handles_labels(), ncols=3, loc="outside upper center")


def set_curves(ax, runs, x, y, **style):
    """Draw the mean of ``y`` against ``x``, one curve per data set."""
    names = list(runs["dataset"].unique())
    colours = plots.colours(range(len(names)))
    for name, marker, colour in zip(names, MARKERS[: len(names)], colours, strict=True):
        mean = runs[runs["dataset"] == name].groupby(x)[y].mean()
        ax.plot(mean.index, mean, marker=marker, ms=4, color=colour, label=name, **style)
    ax.set(xlabel=x, ylabel=y, xticks=sorted(runs[x].unique()))


def components_plot(runs):
    """Draw agreement and noise against the number of Gaussians."""
    figure, axes = study.panels(2, width=4.6, height=3.5)
    for ax, y in zip(axes, ("ARI with DBSCAN", "noise"), strict=True):
        set_curves(ax, runs, "components", y)
    figure.legend(*axes[0].get_legend_handles_labels(), ncols=6, loc="outside upper center")


def clients_plot(runs):
    """Draw agreement, noise and drawn points against the number of clients, for two settings."""
    figure, axes = study.panels(3, width=3.6, height=4.6)
    styles = dict(zip(runs["setting"].unique(), ("-", ":"), strict=True))
    for setting, line in styles.items():
        for ax, y in zip(axes, ("ARI with DBSCAN", "noise", "drawn"), strict=True):
            set_curves(ax, runs[runs["setting"] == setting], "clients", y, ls=line)
    axes[2].set_ylabel("drawn points (share)")
    handles, names = axes[0].get_legend_handles_labels()
    n_sets = runs["dataset"].nunique()
    figure.legend(handles[:n_sets], names[:n_sets], ncols=6, loc="outside upper center")
    line_legend(figure, styles, loc="outside lower center")


def ring(seed, n):
    """Return the outer ring of scikit-learn's noisy circles, scaled to a variance near 1."""
    X, y = make_circles(2 * n, factor=0.5, noise=0.05, random_state=seed)
    return X[y == 0] * 1.8


def steps_of_sklearn(X, kind, start, n_steps):
    """Yield scikit-learn's mixture after each step of EM."""
    model = GaussianMixture(3, covariance_type=kind, tol=0, max_iter=1, warm_start=True, **start)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for _ in range(n_steps):
            yield model.fit(X)


def largest_difference(one, other):
    """Return the largest difference between any two parameters of two mixtures."""
    names = ("weights_", "means_", "covariances_")
    return max(np.abs(getattr(one, name) - getattr(other, name)).max() for name in names)


def spread_of_f(data):
    """Return the gallery's blobs with the spread that F's silhouette needs, standardised."""
    X, y = make_blobs(1000, cluster_std=F_SPREAD, random_state=8)
    return replace(data, X=StandardScaler().fit_transform(X), y=y)


def silhouette_of_blobs(seed, centers=3, spread=1.0, n=1000):
    """Return the silhouette of a mixture with as many components as the blobs have centres."""
    X = make_blobs(n, centers=centers, cluster_std=spread, random_state=seed)[0]
    X = StandardScaler().fit_transform(X)
    return silhouette_score(X, GaussianMixture(centers, random_state=0).fit_predict(X))


def draw(mixture, n, seed):
    """Return n points drawn from one mixture, as the server of the protocol does."""
    k = len(mixture.weights)
    parameters = mixture.weights, mixture.means, mixture.covariances
    return draw_points(ClusterMixtures(np.array([n]), np.array([k]), *parameters), seed)


def to_nearest(points, others, k=1):
    """Return the distance of each point to its k-th nearest of the others."""
    return NearestNeighbors(n_neighbors=k).fit(others).kneighbors(points)[0][:, -1]
