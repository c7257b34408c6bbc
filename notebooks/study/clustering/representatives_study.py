"""Figures of the pages on representatives, and of the page that compares all methods."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import EllipseCollection, LineCollection
from matplotlib.ticker import LogLocator

import study
from fedlib.figures import plots
from study.shared.pictures import PAGE_WIDTH

BLUE, RED = "#3f90da", "#bd1f01"
SPLITS = {"regular": BLUE, "arbitrary": "#e76300"}
STYLES = {
    "DBDC, core": (RED, "o-"),
    "DBDC, kmeans": ("#e76300", "s-"),
    "SDBDC": ("#832db6", "^-"),
    "PPDBDC 0.25": (BLUE, "D-"),
    "PPDBDC 0.45": ("#1f5c99", "v-"),
    "PPDBDC 0.5": ("#94a4a2", "P-"),
    "PPDBDC 0.9": ("#a96b59", "X-"),
}


# Pictures of representatives on the map


def circles(ax, centres, radii, **style):
    """Draw circles in the units of the axes."""
    size = 2 * np.broadcast_to(radii, len(centres))
    style = {"facecolors": "none", "edgecolors": BLUE, "linewidths": 0.8} | style
    ring = EllipseCollection(
        size, size, np.zeros(len(size)), units="xy", offsets=centres, offset_transform=ax.transData
    )
    ring.set(**style)
    ax.add_collection(ring)


def discs(ax, model, scale=4):
    """Draw the representatives of a model, as large as their weights, in the server's colours."""
    size = getattr(model, "weights_", np.full(len(model.representatives_), 4))
    shades = plots.colours(model.representative_labels_)
    ax.scatter(*model.representatives_.T, s=scale * size, c=shades, alpha=0.7, linewidths=0)
    ax.set_aspect("equal")


def local_models(X, labels, replies):
    """Draw a party's clusters and the representatives of each local model, with their radii."""
    _, axes = study.panels(len(replies), width=4.6, height=4.6, sharex=True, sharey=True)
    for ax, (name, reply) in zip(axes, replies.items(), strict=True):
        plots.scatter(X, labels, ax=ax)
        circles(ax, reply.representatives, reply.radii)
        ax.plot(*reply.representatives.T, "k+", ms=8)
        ax.set_title(f"party 0, {name}: {len(reply.representatives)} representatives")


def coverage(X, owner, reply):
    """Draw the first five representatives of SDBDC and all, with the points that they cover."""
    _, (left, right) = study.panels(2, width=4.6, height=4.6, sharex=True, sharey=True)
    for ax, n in ((left, 5), (right, len(reply.weights))):
        ax.plot(*X[owner >= n].T, ".", color="0.75", ms=3)
        plots.scatter(X[owner < n], owner[owner < n], ax=ax)
        circles(ax, reply.representatives[:n], reply.radii[:n], edgecolors="#555")
        ax.plot(*reply.representatives[:n].T, "k+", ms=6)
    for i in range(5):
        place = {"textcoords": "offset points", "weight": "bold", "fontsize": 9}
        text = f"{i + 1}: {reply.weights[i]} points"
        left.annotate(text, reply.representatives[i], (17, 9), **place)
    left.set_title("party 0: the first five")
    right.set_title(f"all {len(reply.weights)}, one colour each; circle: CovRad")


def wider_query(points, model, centre, radii, reached):
    """Draw the neighbourhood eps and the wider query of SDBDC around one representative."""
    _, ax = plt.subplots(figsize=(5, 4.4), layout="constrained")
    ax.plot(*points.T, ".", color="0.7", ms=3)
    circles(ax, [centre, centre], radii, edgecolors=[BLUE, RED], linewidths=1.5)
    for shown, colour in ((reached, RED), (~reached, "0.4")):
        size = 6 * model.weights_[shown]
        ax.scatter(*model.representatives_[shown].T, s=size, c=colour, alpha=0.5, linewidths=0)
    ax.set_xlim(centre[0] - 16, centre[0] + 16)
    ax.set_ylim(centre[1] - 14, centre[1] + 14)
    ax.set_aspect("equal")


def blurred_means(X, owner, reply, moved):
    """Draw a party's points, each joined to its representative; those with noise in red."""
    figure, ax = plt.subplots(figsize=(7, 6.4), layout="constrained")
    lines = np.stack([X, reply.representatives[owner]], axis=1)
    ax.add_collection(LineCollection(lines, colors="0.7", linewidths=0.6))
    ax.plot(*X.T, ".", color="0.4", ms=3, label="points, which stay at the party")
    for chosen, colour, what in ((~moved, BLUE, "means"), (moved, RED, "with noise")):
        style = {"c": colour, "alpha": 0.5, "linewidths": 0, "label": f"{chosen.sum()} {what}"}
        ax.scatter(*reply.representatives[chosen].T, s=14 * reply.weights[chosen], **style)
    ax.set_aspect("equal")
    ax.set_title(f"party 0 sends {len(reply.weights)} places and weights for {len(X)} points")
    figure.legend(loc="outside lower center", ncols=3, markerscale=0.7)


def noise_plot(shifts):
    """Draw how far noise moves representatives, one panel per kind of noise."""
    _, axes = study.panels(2, width=3.6, height=3.6, sharex=True, sharey=True)
    for ax, (kind, shift) in zip(axes, shifts.items(), strict=True):
        x, y = shift.mean(axis=0)
        ax.plot(*shift[:2000].T, ".", color=BLUE, ms=2)
        ax.plot(x, y, "X", color=RED, ms=9)
        ax.set_title(f"{kind}: mean ({x:+.2f}, {y:+.2f})")
        ax.set_aspect("equal")
        ax.set_xlabel("shift along the first axis / eps_rep")
    axes[0].set_ylabel("shift along the second axis / eps_rep")


# Accuracy


def agreement_bars(agreement, names, methods):
    """Draw the agreement with DBSCAN: bars per method and split, one panel per data set.

    Parameters
    ----------
    agreement : DataFrame
        Indexed by set, dealing and method, with columns mean, min, max and tuned.
    names, methods : list of str
    """
    n_rows = 1 if len(names) < 4 else 2
    figure, axes = plt.subplots(
        n_rows,
        -(-len(names) // n_rows),
        figsize=(9, 1 + 2.7 * n_rows),
        layout="constrained",
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for ax in axes.flat[len(names) :]:
        ax.axis("off")
    ways = zip((-0.18, 0.18), ("at random", "by region"), plots.colours([0, 1]), strict=True)
    for shift, how, colour in ways:
        for ax, name in zip(axes.flat, names, strict=False):
            rows = agreement.loc[name, how].reindex(methods)
            x = np.arange(len(methods)) + shift
            ax.bar(x, rows["mean"], 0.32, color=colour, label=how)
            ax.vlines(x, rows["min"], rows["max"], color="black", lw=1)
            ax.plot(x, rows["tuned"], "D", ms=4, mfc="white", mec="black", label="tuned")
            ax.set_xticks(range(len(methods)), methods, rotation=45, ha="right")
            ax.set(title=name, ylim=(0, 1.05))
    for ax in axes[:, 0]:
        ax.set_ylabel("ARI with DBSCAN")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    legend = dict(zip(labels, handles, strict=True))  # "tuned" once
    figure.legend(legend.values(), legend, ncols=3, loc="outside upper center")


def parties_plot(runs, settings, title):
    """Draw accuracy against the number of parties, one row of panels per setting."""
    figure, axes = plt.subplots(
        len(settings),
        2,
        figsize=(PAGE_WIDTH, 2.5 * len(settings) + 0.7),
        layout="constrained",
        sharex=True,
        sharey="row",
        squeeze=False,
    )
    for row, setting in zip(axes, settings, strict=True):
        for ax, how in zip(row, SPLITS, strict=True):
            of_panel = runs[(runs["setting"] == setting) & (runs["split"] == how)]
            for method, (colour, style) in STYLES.items():
                over = of_panel[of_panel["method"] == method].groupby("n_clients")["accuracy"]
                ax.plot(over.mean(), style, color=colour, ms=4, lw=1.3, label=method)
                ax.fill_between(over.min().index, over.min(), over.max(), color=colour, alpha=0.12)
            ax.set(title=f"{setting}, {how}", xticks=sorted(runs["n_clients"].unique()))
            ax.grid(axis="y", lw=0.3)
        row[0].set_ylabel("accuracy")
    for ax in axes[-1]:
        ax.set_xlabel("parties")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4, title=title)


def min_samples_plot(runs, settings):
    """Draw accuracy against MinPts, one panel per setting; DBDC's for the most parties."""
    n_parties = runs["n_clients"].max()
    axes = setting_panels(len(settings), sharey=True)
    for ax, setting in zip(axes, settings, strict=True):
        of_set = runs[runs["setting"] == setting]
        dbdc = of_set[(of_set["method"] == "DBDC, core") & (of_set["n_clients"] == n_parties)]
        curves = {
            "SDBDC": (of_set[of_set["method"] == "SDBDC"], "^-"),
            "PPDBDC 0.45": (of_set[of_set["method"] == "PPDBDC 0.45"], "v-"),
            f"DBDC, core, {n_parties} parties": (dbdc[dbdc["split"] == "regular"], "o-"),
            f"DBDC, core, arbitrary, {n_parties} parties": (
                dbdc[dbdc["split"] == "arbitrary"],
                "o--",
            ),
        }
        for name, (rows, style) in curves.items():
            colour = STYLES["DBDC, core" if name.startswith("DBDC") else name][0]
            mean = rows.groupby("factor")["accuracy"].mean()
            ax.plot(mean, style, color=colour, ms=4, label=name)
        ax.axvline(1, color="0.6", lw=1)
        log_ticks(ax, [0.05, 0.2, 1, 5])
        ax.set(xlabel="MinPts / DBSCAN's", title=setting)
    legend_below(axes, 2, "accuracy")


def thin_cluster_plot(thinned):
    """Draw how much of a thinly spread shape is found, against the number of its parties."""
    _, axes = study.panels(2, width=4.3, height=3.3, sharex=True)
    titles = {"found": "share of the disc in one cluster", "accuracy": "accuracy, all points"}
    for (method, rows), style in zip(
        thinned.groupby("method", sort=False), ("o-", "o--", "^-", "v-"), strict=True
    ):
        colour = STYLES.get(method, STYLES["DBDC, core"])[0]
        for ax, (quantity, title) in zip(axes, titles.items(), strict=True):
            ax.plot(rows["parties"], rows[quantity], style, color=colour, ms=4, label=method)
            ax.set(title=title, xlabel="parties that share the disc", xticks=[1, 5, 10, 15, 20])
    legend_below(axes, 4)


def choice_plot(choices, settings):
    """Draw accuracy and coverage of greedy and random choices, one column per setting."""
    figure, axes = plt.subplots(
        2,
        len(settings),
        figsize=(min(3.1 * len(settings), PAGE_WIDTH), 5),
        layout="constrained",
        sharex=True,
        squeeze=False,
    )
    groups = choices.set_index(["setting", "choice", "split"]).sort_index()
    for column, setting in zip(axes.T, settings, strict=True):
        for choice, line in (("greedy", "-"), ("random", "--")):
            for how, colour in SPLITS.items():
                means = groups.loc[(setting, choice, how)].groupby("share")
                for ax, quantity in zip(column, ("accuracy", "covered"), strict=True):
                    style = {"color": colour, "ms": 4, "label": f"{choice}, {how}"}
                    ax.plot(means[quantity].mean(), f"o{line}", **style)
        column[0].set_title(setting)
        column[1].set_xlabel("representatives / greedy's")
    axes[0, 0].set_ylabel("accuracy")
    axes[1, 0].set_ylabel("share of points covered")
    legend = axes[0, 0].get_legend_handles_labels()
    figure.legend(*legend, loc="outside lower center", ncols=min(4, 2 * len(settings)))


def anonymity_plot(anonymity, others, sizes):
    """Draw accuracy against the mean number of points per representative, one panel per setting.

    ``others`` has the results of SDBDC and DBDC, ``sizes`` the number of points of each setting.
    """
    axes = setting_panels(len(sizes), sharey=True)
    for ax, (setting, n_points) in zip(axes, sizes.items(), strict=True):
        for how, colour in SPLITS.items():
            rows = anonymity[(anonymity["setting"] == setting) & (anonymity["split"] == how)]
            ax.plot(rows["points each"], rows["accuracy"], "o-", color=colour, ms=4, label=how)
            name_ends(ax, rows, colour, how == "arbitrary")
            for method, marker in (("SDBDC", "^"), ("DBDC, core", "s")):
                rows = others[(others["setting"] == setting) & (others["split"] == how)]
                rows = rows[rows["method"] == method]
                style = {"mfc": "none", "color": colour, "label": f"{method}, {how}"}
                ax.plot(n_points / rows["representatives"], rows["accuracy"], marker, **style)
        log_ticks(ax, [1, 2, 5, 10, 20, 50, 100])
        ax.set(xlabel="points per representative", title=setting)
        low, high = ax.get_xlim()
        ax.set_xlim(max(low, 0.8) / 1.3, high)  # with room for the name of the first point
    legend_below(axes, 3, "accuracy")


def name_ends(ax, rows, colour, above):
    """Write ``eps_rep / eps`` at both ends of a curve, above and to the right, or below."""
    rows = rows.sort_values("points each")
    places = ((0, 6), (16, 0)) if above else ((0, -14), (-14, -24))
    for row, place in zip((rows.iloc[0], rows.iloc[-1]), places, strict=True):
        at = row["points each"], row["accuracy"]
        style = {"textcoords": "offset points", "ha": "center", "fontsize": 9, "color": colour}
        if place == places[1]:
            style |= {"va": "center", "arrowprops": {"arrowstyle": "-", "color": colour, "lw": 0.6}}
        ax.annotate(f"{row['eps_rep / eps']:g}", at, place, **style)


def held_back_plot(held_back, settings):
    """Draw accuracy against the smallest group that is sent, one panel per setting."""
    axes = setting_panels(len(settings), sharey=True)
    keys = ["setting", "split", "eps_rep / eps"]
    groups = dict(list(held_back.groupby(keys)))
    for ax, setting in zip(axes, settings, strict=True):
        for how, colour in SPLITS.items():
            for share, style in ((0.25, "o-"), (0.45, "v--")):
                rows = groups[setting, how, share]
                label = f"{how}, eps_rep = {share:g} eps"
                ax.plot(rows["k"], rows["accuracy"], style, color=colour, ms=4, label=label)
        log_ticks(ax, [1, 2, 3, 5, 10, 20])
        ax.set(xlabel="k", title=setting)
    legend_below(axes, 2, "accuracy")


def setting_panels(n, **options):
    """Return ``n`` axes, at most two in a row, of a figure as wide as the page."""
    n_rows, n_columns = -(-n // 2), min(n, 2)
    size = (PAGE_WIDTH if n > 1 else 4.6, 2.6 * n_rows + 0.9)
    _, axes = plt.subplots(
        n_rows, n_columns, figsize=size, layout="constrained", squeeze=False, **options
    )
    for ax in axes.flat[n:]:
        ax.axis("off")
    return axes.flat[:n]


def log_ticks(ax, ticks):
    """Give the x axis a logarithmic scale with these ticks only."""
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)


def legend_below(axes, ncols, ylabel=None):
    """Put the legend of the first panel below the figure."""
    if ylabel is not None:
        for ax in axes[::2]:  # the first panel of each row
            ax.set_ylabel(ylabel)
    handles = axes[0].get_legend_handles_labels()
    ncols = min(ncols, 2 * len(axes))  # as wide as the panels
    axes[0].figure.legend(*handles, loc="outside lower center", ncols=ncols)


# Time


def index_plot(indexed):
    """Draw the time of DBSCAN with and without an index, one panel per setting."""
    groups = indexed.groupby("setting", sort=False)
    axes = setting_panels(len(groups), sharey=True)
    for ax, (setting, rows) in zip(axes, groups, strict=True):
        for index, style in (("grid", "o-"), ("tree", "s-"), ("no index", "^--")):
            ax.plot(rows["points"], rows[index], style, ms=4, label=index)
        ax.set_yscale("log")
        log_ticks(ax, [2_000, 10_000, 40_000])
        ax.set_xticks([2_000, 10_000, 40_000], ["2k", "10k", "40k"])
        ax.set(title=setting, xlabel="points")
    legend_below(axes, 3, "seconds")


def time_curves(ax, runs, x):
    """Draw milliseconds against ``x``, one curve per method."""
    for method, rows in runs.groupby("method", sort=False):
        colour, style = STYLES[method]
        ax.semilogy(rows[x], rows["time"] * 1000, style, color=colour, ms=4, lw=1.3, label=method)
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter("")
    ax.grid(axis="y", lw=0.3)


def time_by_parties(runs, settings):
    """Draw time against the number of parties, one column of panels per setting."""
    size = (min(3.1 * len(settings), PAGE_WIDTH), 5.6)
    figure, axes = plt.subplots(
        2, len(settings), figsize=size, layout="constrained", sharey="col", squeeze=False
    )
    for column, setting in zip(axes.T, settings, strict=True):
        for ax, how in zip(column, SPLITS, strict=True):
            time_curves(
                ax, runs[(runs["setting"] == setting) & (runs["split"] == how)], "n_clients"
            )
            ax.set(title=f"{setting}, {how}", xticks=sorted(runs["n_clients"].unique()))
        ax.set_xlabel("parties")
    for ax in axes[:, 0]:
        ax.set_ylabel("milliseconds")
    legend = axes[0, 0].get_legend_handles_labels()
    figure.legend(*legend, loc="outside upper center", ncols=min(4, 2 * len(settings)))


def time_by_size(runs, settings):
    """Draw time against the number of points, one panel per setting."""
    axes = setting_panels(len(settings))
    for ax, setting in zip(axes, settings, strict=True):
        time_curves(ax, runs[runs["setting"] == setting], "points")
        ax.set(title=setting, xlabel="points")
        ax.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k")
    legend_below(axes, 4, "milliseconds")
