"""Tables, figures and the answer of the page on federated learning."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

import study
from fedlib.figures import plots
from study.measuring.accuracy_loss import AS_SOURCE, REGIONS, SIGNS, SILHOUETTE, SSE


def of_all(summary):
    """Return the rows of the means over the data sets, in the order of the scores."""
    rows = summary[summary["dataset"] == "all"]
    order = rows["score"].map(list(SIGNS).index)
    return rows.iloc[np.argsort(order, kind="stable")]


def interval(rows, name):
    """Return a mean with the 95 % interval of the mean as text; without it for a single run."""
    return [
        _number(mean)
        if np.isnan(low) or high - low < 1e-9
        else f"{_number(mean)} ({_number(low)} to {_number(high)})"
        for mean, low, high in rows[[name, f"{name} low", f"{name} high"]].to_numpy()
    ]


def loss_table(summary):
    """Return the loss and delta of every method, for both partitions."""
    rows = of_all(summary)
    table = rows[["method", "score", "partition"]].assign(
        loss=interval(rows, "loss"), δ=[f"{delta:.3f}" for delta in rows["delta"]]
    )
    table["of one site"] = [_number(loss) for loss in rows["single_loss"]]
    wide = table.pivot(index=["score", "method"], columns="partition")
    wide = wide.reorder_levels([1, 0], axis=1)
    columns = [(AS_SOURCE, name) for name in ("of one site", "loss", "δ")]
    columns += [(REGIONS, name) for name in ("loss", "δ")]
    keys = table[["score", "method"]].drop_duplicates()
    return _styled(wide, keys, columns)


def _styled(wide, keys, columns):
    """Return the rows ``keys`` of a table with two lines of column names, for the book."""
    columns = [column for column in columns if column in wide]
    table = wide.loc[list(keys.itertuples(index=False, name=None)), columns]
    table = table.rename_axis(columns=[None, None])
    return table.style.format(na_rep="").set_table_attributes('class="dataframe"')


def set_table(summary):
    """Return all means of every method on every data set; those of the sites in one column."""
    rows = summary[summary["dataset"] != "all"]
    sites = rows[["local", "worst site", "best site"]].to_numpy()
    table = rows[["method", "dataset", "partition", "score"]].assign(
        local=[f"{mean:.3f} ({worst:.3f} to {best:.3f})" for mean, worst, best in sites]
    )
    return table.join(rows[["one site", "federated", "pooled", "loss", "delta"]])


def own_table(summary):
    """Return how much a site gains on its own rows, for both partitions."""
    rows = of_all(summary)
    rows = rows[rows["score"] != SILHOUETTE]  # of too few rows to mean much
    table = rows[["method", "score", "partition"]].assign(
        gain=interval(rows, "own gain"),
        sites=[f"{share:.0%}" for share in rows["sites that gain"]],
    )
    table = table.rename(columns={"sites": "sites that gain"})
    wide = table.pivot(index=["score", "method"], columns="partition")
    wide = wide.reorder_levels([1, 0], axis=1)
    names = ("gain", "sites that gain")
    columns = [(how, name) for how in (AS_SOURCE, REGIONS) for name in names]
    keys = table[["score", "method"]].drop_duplicates()
    return _styled(wide, keys, columns)


def answer(summary, small=0.005):
    """Return the answer in sentences, as Markdown; a mean loss up to ``small`` is small."""
    rows = of_all(summary)
    rows = rows[rows["score"] != SILHOUETTE]
    loss = rows.pivot(index="method", columns="partition", values="loss")
    loss = loss.loc[rows["method"].drop_duplicates()]
    unit = rows.drop_duplicates("method").set_index("method")["score"]
    percent = 100 * loss.div(rows.drop_duplicates("method").set_index("method")["pooled"], axis=0)
    for method in unit.index[unit == SSE]:
        share = " / ".join(f"{value:.0f} %" for value in percent.loc[method])
        unit[method] += f": {share} of the pooled SSE"
    at_source, by_region = loss[AS_SOURCE] <= small, loss[REGIONS].fillna(0) <= small
    groups = {
        "**Small for both partitions**": at_source & by_region,
        "**Small as in the source, but not for regions**": at_source & ~by_region,
        "**Small for regions, but not as in the source**": ~at_source & by_region,
        "**Not small for either**": ~at_source & ~by_region,
    }
    lines = [f"- A mean loss of at most {small} of the score is called small here."]
    for title, members in groups.items():
        named = [
            f"{method} ({' / '.join(map(_number, loss.loc[method].dropna()))}, {unit[method]})"
            for method in loss.index[members]
        ]
        lines.append(f"- {title}: {_listed(named)}.")
    same = (rows["federated"] - rows["one site"]).abs() < 5e-4
    same = same.groupby(rows["method"], sort=False).all()
    lines.append(
        "- **The division of the data costs nothing**, to three digits and in both partitions, for "
        f"{_listed(same.index[same])}: one site that has all data reaches the same."
    )
    for name, what in (("gain", "on all rows"), ("own gain", "on its own rows")):
        lines.append(f"- **Against a site alone, {what}**, {_compared(rows, name)}")
    return "\n".join(lines)


def _compared(rows, name):
    """Return in how many cases a gain is above 0 by the interval of its mean, and the others."""
    low, high = (rows[f"{name} {side}"].fillna(rows[name]) for side in ("low", "high"))
    cases = rows["method"] + " (" + rows["partition"] + ")"
    sentences = [
        f"the federation is ahead in {(low > 0).sum()} of {len(rows)} cases (a method and a "
        "partition), by the interval of the mean."
    ]
    others = {"It is behind": high < 0, "There is no clear difference": (low <= 0) & (high >= 0)}
    for sentence, members in others.items():
        if members.any():
            sentences.append(f"{sentence} in {members.sum()}: {_listed(cases[members])}.")
    return " ".join(sentences)


def _number(value):
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "−")


def _listed(names):
    return "; ".join(names) if len(names) else "none"


# Figures

SITES = ("#3f90da", "#ffa90e")
GREY = "#717581"


def settings_plot(owned, people, features):
    """Draw which cells of a table each of two sites owns, one panel per setting."""
    _, axes = study.panels(len(owned), width=3.1, height=3.2, sharey=True)
    for ax, (setting, sites) in zip(axes, owned.items(), strict=True):
        for i, (samples, columns) in enumerate(sites):
            rows, places = np.searchsorted(people, samples), [features.index(c) for c in columns]
            low, left = rows.min() + 0.04 + 0.06 * i, min(places) + 0.04 + 0.06 * i
            ax.add_patch(
                plt.Rectangle(
                    (left, low),
                    len(places) - 0.14,
                    len(rows) - 0.14,
                    facecolor=SITES[i],
                    edgecolor=SITES[i],
                    alpha=0.45,
                    linewidth=2,
                )
            )
            middle = left + len(places) / 2, low + len(rows) / 2
            ax.text(*middle, f"site {i + 1}", ha="center", va="center", weight="bold")
        ax.set(xlim=(0, len(features)), ylim=(len(people), 0), title=setting)
        ax.set_xticks(np.arange(len(features)) + 0.5, features, rotation=45, ha="right")
        ax.set_yticks(np.arange(len(people)) + 0.5, people)
        ax.tick_params(length=0)
        for x in range(len(features) + 1):
            ax.axvline(x, color="0.8", lw=0.6, zorder=0)
        for y in range(len(people) + 1):
            ax.axhline(y, color="0.8", lw=0.6, zorder=0)
    axes[0].set_ylabel("person (sample)")


def flower_round():
    """Draw one round of Flower: Vasilopoulou's Figure 1.1."""
    _, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
    plots.calls(
        ax,
        ["strategy", "Flower's server", "each chosen client"],
        [
            (0, 1, "configure_fit: whom to ask, what"),
            (1, 2, "fit instructions: parameters"),
            (2, 1, "fit response: updated parameters"),
            (1, 0, "aggregate_fit: the new model"),
            (0, 1, "configure_evaluate"),
            (1, 2, "evaluate instructions: new model"),
            (2, 1, "evaluate response: its score"),
            (1, 0, "aggregate_evaluate: the score"),
        ],
        "one round of Flower; the number of rounds is fixed",
    )
    for text in ax.texts:
        text.set_fontsize(9)


def rounds_plot(curves, sums):
    """Draw the distance to the pooled solution after each round, one curve per rule."""
    _, ax = plt.subplots(figsize=(8, 3.8), layout="constrained")
    colours = ("#717581", "#bd1f01", "#b35900", "#832db6")
    n_rounds = max(map(len, curves.values()))
    floor = 10 ** np.floor(np.log10(min(map(min, curves.values()))))
    ends = np.array([np.log10(distance[-1]) for distance in curves.values()])
    places, place = np.empty(len(ends)), -np.inf
    for i in np.argsort(ends):  # labels at least a little apart
        places[i] = place = max(ends[i], place + 0.35)
    for (name, distance), colour, place in zip(curves.items(), colours, places, strict=True):
        ax.semilogy(np.arange(1, len(distance) + 1), distance, color=colour, lw=1.8)
        ax.text(1.02 * n_rounds, 10**place, name, color=colour, va="center")
    ax.plot(1, 1.3 * floor, "v", color=SITES[0], ms=8)
    ax.text(
        0.03 * n_rounds,
        1.3 * floor,
        f"sums: {sums:.0e} after 1 round",
        color="#1f5c99",
        va="center",
    )
    ax.set(xlabel="round", ylabel="distance to the pooled solution", ylim=(floor, None))
    ax.set_xlim(0, 1.4 * n_rounds)
    ax.set_xticks(range(0, n_rounds + 1, n_rounds // 5))
    ax.spines["bottom"].set_bounds(0, n_rounds)
    ax.xaxis.set_label_coords(0.36, -0.12)


def comparison_plot(summary):
    """Draw local, federated and pooled learning: one row per method, one column per partition."""
    rows = of_all(summary)
    groups = list(rows.groupby("score", sort=False))
    heights = [group["method"].nunique() + 0.6 for _, group in groups]
    figure, axes = plt.subplots(
        len(groups),
        2,
        figsize=(9.5, 0.42 * sum(heights) + 0.45 * len(groups)),
        layout="constrained",
        height_ratios=heights,
        sharey="row",
    )
    for line, (score, group) in zip(axes, groups, strict=True):
        methods = list(group["method"].unique())
        for ax, how in zip(line, (AS_SOURCE, REGIONS), strict=True):
            shown = group[group["partition"] == how].set_index("method").reindex(methods)
            _compare(ax, shown, SIGNS[score])
            ax.set_title(score + (" (less is better)" if SIGNS[score] < 0 else ""))
        line[0].set_yticks(range(len(methods)), methods)
        line[0].set_ylim(len(methods) - 0.45, -0.55)
    for ax, how in zip(axes[0], (AS_SOURCE, REGIONS), strict=True):
        ax.set_title(f"partition: {how}\n\n{ax.get_title()}")
    figure.get_layout_engine().set(wspace=0.06)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4)


def _compare(ax, rows, sign):
    """Draw the rows of one panel; a local result that is far off is written at the edge."""
    y = np.arange(len(rows))
    near = rows[["federated", "pooled", "one site"]].to_numpy()
    ends = rows[["worst site", "best site"]].to_numpy()
    near_low, near_high = np.nanmin(near), np.nanmax(near)
    width = max(near_high - near_low, 1e-3)
    everything = np.r_[near.ravel(), ends.ravel()]
    low, high = np.nanmin(everything), np.nanmax(everything)
    clipped = sign > 0 and near_low - low > 6 * width and width > 1
    if clipped:
        low = near_low - 1.2 * width
    ax.hlines(y, *ends.T, color=GREY, lw=5, alpha=0.3, label="sites alone: worst to best")
    ax.plot(rows["local"], y, "o", mfc="white", mec=GREY, mew=1.6, ms=8, label="sites alone: mean")
    ax.plot(rows["pooled"], y, "|", color="black", ms=17, mew=2.2, label="pooled")
    ax.plot(rows["federated"], y, "o", color=SITES[0], ms=7.5, label="federated", zorder=4)
    margin = 0.04 * (high - low)
    ax.set_xlim((low - margin, high + margin)[::sign])
    for place, (_, row) in zip(y, rows.iterrows(), strict=True):
        if np.isnan(row["pooled"]):
            ax.text(
                0.5,
                place,
                "sites hold columns: no regions",
                va="center",
                ha="center",
                transform=ax.get_yaxis_transform(),
                color=GREY,
                fontsize=9,
            )
        elif clipped and row["local"] < low:
            text = f"← mean {row['local']:.0f}".replace("-", "−")
            style = {"transform": ax.get_yaxis_transform(), "color": "0.35", "va": "center"}
            ax.text(0.02, place, text, fontsize=9, **style)
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", lw=0.3)
