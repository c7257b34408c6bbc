"""Every protocol with parameters for the moons, and its clients."""

from fedlib.core.registry import protocols
from fedlib.datasets.partition import split_columns, split_rows

DENSITY = {"eps": 0.3, "min_samples": 5}


def parameters(random_state):
    """Return the parameters of each protocol by its name."""
    seed = {"random_state": random_state}
    return {
        "horizontal-dbscan": {"cell_size": 0.25, "min_samples": 5},
        "vertical-dbscan": DENSITY,
        "dbdc": DENSITY,
        "sdbdc": DENSITY,
        "ppdbdc": DENSITY,
        "kmeans": {"n_clusters": 2, "method": "one_shot", **seed},
        "gaussian-mixture": {"n_components": 2, "method": "average", **seed},
        "gaussian-mixture-dbscan": DENSITY | {"n_components": 5, **seed},
        "xgboost": {"n_trees": 1, "max_depth": 3, "method": "top_splits"},
    }


def deal(name, data, n_clients, random_state):
    """Return the parts of a protocol's clients: columns, rows, or rows with their classes."""
    if name == "vertical-dbscan":
        return [data.X[:, chosen] for chosen in split_columns(data.X, n_clients)]
    rows = split_rows(data.X, n_clients, data.y, random_state=random_state)
    supervised = name == "xgboost"
    return [(data.X[chosen], data.y[chosen]) if supervised else data.X[chosen] for chosen in rows]


def options(name, i):
    """Return the further arguments of client number i."""
    return {"random_state": i} if name == "ppdbdc" else {}


def client(name, parts, i):
    """Return client number i of those with these parts."""
    return protocols()[name].client_class(parts[i], **options(name, i))
