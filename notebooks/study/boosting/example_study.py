"""F's worked example (§3.3): the rule (3.3) for many classings at once, and drawings of the trees.

A *classing* assigns a class to every row. F prints the rows of the example, but no classes.
"""

from itertools import groupby, pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

PROBE = 1e-6  # a split needs a larger gain, in XGBoost's count, which is twice (3.1)


def votes(classes, parts, share, first, last, reg_lambda, n_candidates, min_child_weight=0.0):
    """Return the sum (3.3) of every midpoint in a node, for many classings at once.

    Parameters
    ----------
    classes : sequence of array (n_classings, n_rows) of 0 and 1
        One array per client.
    parts : sequence of array (n_rows,) of int
        The values of each client, in ascending order.
    share : array (n_classings,)
        The initial probability.
    first, last : int
        The smallest and the largest value of the node.
    reg_lambda, min_child_weight : float
    n_candidates : int
        F's S.

    Returns
    -------
    array (n_classings, 2 * largest value)
        The sum for the midpoint t is in column 2t. A midpoint that nobody proposes has 0.
    """
    total = np.zeros((len(share), 2 * max(part.max() for part in parts)))
    h = (share * (1 - share))[:, None]
    for of_client, values in zip(classes, parts, strict=True):
        here = (values >= first) & (values <= last)
        n = here.sum()
        if n < 2:
            continue
        g = share[:, None] - of_client[:, here]
        left, right = np.cumsum(g, axis=1)[:, :-1], np.cumsum(g[:, ::-1], axis=1)[:, -2::-1]
        n_left = np.arange(1, n)
        score = left**2 / (n_left * h + reg_lambda) + right**2 / ((n - n_left) * h + reg_lambda)
        gain = (score - g.sum(axis=1, keepdims=True) ** 2 / (n * h + reg_lambda)) / 2
        smaller = np.minimum(n_left, n - n_left) * h
        gain = np.where((2 * gain > PROBE) & (smaller >= min_child_weight), gain, 0)
        if n_candidates < n - 1:
            worse = np.argsort(-gain.round(12), axis=1, kind="stable")[:, n_candidates:]
            np.put_along_axis(gain, worse, 0, axis=1)
        for column, (below, above) in enumerate(pairwise(values[here])):
            total[:, below + above] += n * gain[:, column]
    return total


def follow(classes, parts, reg_lambda, n_candidates, min_child_weight=0.0):
    """Return which classings lead to which part of Vasilopoulou's example.

    Parameters
    ----------
    classes, parts, reg_lambda, n_candidates, min_child_weight
        As in `votes`.

    Returns
    -------
    dict of str to array of int
        The numbers of the classings that give Figure 3.1, Figures 3.1 and 3.2, and the paths of
        Table 3.2.
    """
    n_rows = sum(map(len, parts))
    share = sum(of_client.sum(axis=1) for of_client in classes) / n_rows
    remaining = np.flatnonzero((share > 0) & (share < 1))

    def keep(remaining, first, last, allowed):
        some = [of_client[remaining] for of_client in classes]
        sums = votes(
            some, parts, share[remaining], first, last, reg_lambda, n_candidates, min_child_weight
        ).round(9)
        chosen = np.where(sums.max(axis=1) > 0, sums.argmax(axis=1) / 2, -1)
        return remaining[np.isin(chosen, allowed)]

    root = keep(remaining, 1, 16, [8.5])
    both = keep(root, 1, 8, [4.5])
    lower = keep(both, 1, 4, [1.5, 2.5, 3.5])
    lower = keep(lower, 5, 8, [5.5, 6.5, 7.5])
    every = []
    for middle in (13, 14, 15):  # client 2 has a node RL, but none at RR
        upper = keep(lower, 9, 16, [middle - 0.5])
        upper = keep(upper, 9, middle - 1, [9.5, 10.5, 11.5])  # client 2 has RLL and RLR
        every.append(keep(upper, middle, 16, np.arange(middle, 16) + 0.5))
    return {"Figure 3.1": root, "Figure 3.2": both, "Table 3.2": np.concatenate(every)}


def ranges(values):
    """Return whole numbers as text, with a range for adjacent ones.

    Examples
    --------
    >>> ranges([1, 2, 3, 9])
    '1–3, 9'
    """
    texts = []
    for _, group in groupby(enumerate(values), key=lambda pair: pair[1] - pair[0]):
        run = [value for _, value in group]
        texts.append(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}")
    return ", ".join(texts)


def draw_trees(rows, splits):
    """Draw the clients' trees side by side.

    Parameters
    ----------
    rows : mapping of str to mapping of str to array
        For each client, the values in the node of each path; the root's path is empty.
    splits : mapping of str to float
        The threshold of each path that is split.
    """
    depth = 1 + max(map(len, splits))
    figure, axes = plt.subplots(
        1, len(rows), figsize=(7.5, 0.6 + 0.85 * depth), layout="constrained"
    )
    figure.get_layout_engine().set(w_pad=0.02)
    for ax, (client, nodes) in zip(axes, rows.items(), strict=True):
        ax.set(xlim=(-1, 1), ylim=(-depth - 0.35, 0.35))
        ax.set_title(f"client {client}", fontsize=10, weight="bold")
        ax.axis("off")
        _draw_node(ax, nodes, splits, "", 0.0, 0.5)


def _draw_node(ax, nodes, splits, path, x, step):
    """Draw the node of a path and all nodes below it."""
    present = path in nodes
    y = -len(path)
    if path in splits and present:
        for side, where in (("L", x - step), ("R", x + step)):
            known = path + side in nodes
            ax.plot([x, where], [y, y - 1], color="0.6", ls="-" if known else ":", zorder=1)
            middle = x + 0.45 * (where - x), y - 0.45
            white = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
            ax.text(*middle, side, ha="center", va="center", fontsize=9, bbox=white)
            _draw_node(ax, nodes, splits, path + side, where, step / 2)
    text = ranges(nodes[path]) if present else "no rows"
    if present and path in splits:
        text += f"\nTarget < {splits[path]:g}"
    face = ("#d7e9fa" if path in splits else "#ffe2b8") if present else "white"
    box = {"boxstyle": "round", "facecolor": face, "edgecolor": "none" if present else "0.6"}
    colour = "black" if present else "0.35"
    ax.text(x, y, text, ha="center", va="center", fontsize=9, color=colour, bbox=box, zorder=2)


def lead(number, classes, parts, reg_lambda, n_candidates):
    """Return the smallest lead, as a share, of the best split of the root, L and R.

    Parameters
    ----------
    number : int
        Of the classing.
    classes, parts, reg_lambda, n_candidates
        As in `votes`.
    """
    of_clients = [of_client[[number]] for of_client in classes]
    share = np.array([np.concatenate(of_clients, axis=1).mean()])
    rule = reg_lambda, n_candidates
    nodes = [(1, 16), (1, 8), (9, 16)]
    sums = [np.sort(votes(of_clients, parts, share, *node, *rule)[0]) for node in nodes]
    return min((best - second) / best for *_, second, best in sums)


def proposals(exchange, paths):
    """Return the proposals about a level's nodes: path, client, rows, midpoint, gain (3.1)."""
    return pd.DataFrame(
        (paths[node], client, int(reply.weight[node]), float(reply.threshold[i]), reply.gain[i] / 2)
        for client, reply in exchange.replies.items()
        for i, node in enumerate(np.repeat(np.arange(len(paths)), reply.count))
    ).set_axis(["path", "client", "rows", "midpoint", "gain"], axis=1)


def tree_of(splits, parts):
    """Return the values in each node of each client's tree, without empty nodes.

    Parameters
    ----------
    splits : mapping of str to float
        The threshold of each path; the root's path is empty.
    parts : mapping of str to array
        The values of each client.

    Examples
    --------
    >>> tree_of({"": 2.5}, {"1": np.array([1, 2])})
    {'1': {'': array([1, 2]), 'L': array([1, 2])}}
    """
    present = {client: {"": values} for client, values in parts.items()}
    for tree in present.values():
        for path, threshold in sorted(splits.items()):
            values = tree.get(path, np.empty(0))
            for side, rows in (("L", values < threshold), ("R", values >= threshold)):
                if rows.any():
                    tree[path + side] = values[rows]
    return present


def replay(splits, parts):
    """Yield the paths that the clients report, and the one that the server takes.

    Parameters
    ----------
    splits, parts
        As in `tree_of`.
    """
    waiting = {client: {"": values} for client, values in parts.items()}
    while any(waiting.values()):
        reported = {client: min(paths) for client, paths in waiting.items() if paths}
        path = min(reported.values())
        yield reported, path
        for paths in waiting.values():
            values = paths.pop(path, np.empty(0))
            is_left = values < splits.get(path, np.nan)
            for side, rows in (("L", values[is_left]), ("R", values[~is_left])):
                if path in splits and len(rows):
                    paths[path + side] = rows
