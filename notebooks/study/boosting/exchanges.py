"""What passes between server and clients while trees grow, and what it discloses."""

import numpy as np
import pandas as pd
from scipy.special import expit

from fedlib.testing import Recorder


def record(model, parts):
    """Fit a model and return its exchanges: the request and the replies of the clients."""
    recorder = Recorder({str(i): model.client_class(part) for i, part in enumerate(parts)})
    model.fit(recorder)
    return [(exchange.requests["0"], exchange.replies) for exchange in recorder.exchanges]


def find(exchanges, name):
    """Return the requests and client 0's replies of all exchanges with this message."""
    pairs = [(request, replies["0"]) for request, replies in exchanges]
    return [pair for pair in pairs if name in (type(message).__name__ for message in pair)]


def proposals(request, replies, names):
    """Return the proposals for one level: one row per node, client and split.

    Parameters
    ----------
    request : Message
    replies : mapping of str to Message
    names : sequence of str
        Of the features.
    """
    rows = []
    for client, reply in replies.items():
        nodes = np.repeat(np.arange(len(reply.count)), reply.count)
        splits = zip(nodes, reply.feature, reply.threshold, reply.gain, strict=True)
        for node, feature, threshold, gain in splits:
            rows.append(
                {
                    "node": request.first + node,
                    "client": client,
                    "rows there": int(reply.weight[node]),
                    "split": f"{names[feature]} below {threshold:g}",
                    "gain": gain,
                }
            )
    return pd.DataFrame(rows)


def votes(level):
    """Return for each node and split the sum (3.3), and the clients that proposed it.

    Examples
    --------
    >>> level = pd.DataFrame(
    ...     [(0, "0", 10, "a", 4.0), (0, "1", 20, "b", 3.0), (0, "1", 20, "a", 1.0)],
    ...     columns=["node", "client", "rows there", "split", "gain"],
    ... )
    >>> votes(level).values.tolist()
    [[0, 'a', 30.0, '0 1'], [0, 'b', 30.0, '1']]
    """
    weighted = level.assign(vote=level["rows there"] * level["gain"] / 2)
    groups = weighted.groupby(["node", "split"])
    sums = groups.agg(vote=("vote", "sum"), clients=("client", " ".join)).reset_index()
    return sums.sort_values(["node", "vote"], ascending=[True, False], ignore_index=True)


def decode(sums, begin):
    """Return the rows, and the positive ones, behind sums (n, 2) of the first tree."""
    p = expit(begin.base_margin)
    G, H = sums.T * 2.0**-begin.bits  # sums are sent as integers
    n = H / (p * (1 - p))
    return np.rint(n).astype(int), np.rint(n * p - G).astype(int)


def depths(tree):
    """Return the depth of each node."""
    depth = np.zeros(len(tree.feature), int)
    for node in np.flatnonzero(tree.feature >= 0):  # a node comes before its children
        depth[tree.left[node] + np.array([0, 1])] = depth[node] + 1
    return depth


def leaf_of(tree, row):
    """Return the leaf of the tree that a row falls into."""
    node = 0
    while tree.feature[node] >= 0:
        node = tree.left[node] + int(row[tree.feature[node]] >= tree.threshold[node])
    return node
