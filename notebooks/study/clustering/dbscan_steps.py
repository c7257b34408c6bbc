"""DBSCAN in the numbered steps of P's §2.2, one line of code per step, with a record of the run."""

UNASSIGNED, NOISE = -2, -1


def run_steps(neighbours, min_samples, order, assign_first=True):
    """Run the seven steps for all points and return the labels and a record.

    Parameters
    ----------
    neighbours : list of list of int
        The neighbourhood of each point, including itself.
    min_samples : int
    order : sequence of int
        The order in which points are taken from the database.
    assign_first : bool, default=True
        Whether the neighbours of a cluster's first point join it, which no step states.

    Returns
    -------
    labels : list of int
        The cluster of each point, -1 for noise.
    record : list of dict
        One entry per point that is taken, and one per point that is taken from the seeds.
    """
    labels = [UNASSIGNED] * len(neighbours)
    record, n_clusters = [], 0
    for p in order:  # steps 1 and 7
        if labels[p] != UNASSIGNED:  # step 2
            record.append({"taken": p, "step": "2", "cluster": labels[p]})
            continue
        near = neighbours[p]  # step 3
        if len(near) < min_samples:  # step 4
            labels[p] = NOISE
            record.append({"taken": p, "step": "4", "near": near, "cluster": NOISE})
            continue
        cluster, n_clusters = n_clusters, n_clusters + 1  # step 5
        first = {"taken": p, "step": "5, 6", "near": near, "cluster": cluster}
        expansion = _expand(p, neighbours, min_samples, labels, cluster, assign_first)
        record += [first | next(expansion), *expansion]  # step 6
    return labels, record


def _expand(p, neighbours, min_samples, labels, cluster, assign_first):
    """Run the eight steps that assign what is reachable from ``p``; yield a record of each seed."""

    def assign(points):
        """Assign points without a cluster; return those that had none, and those from noise."""
        joined = [r for r in points if labels[r] == UNASSIGNED]
        from_noise = [r for r in points if labels[r] == NOISE]
        for r in joined + from_noise:
            labels[r] = cluster
        return {"joined": joined, "from noise": from_noise}

    labels[p] = cluster  # step 1
    seeds = [r for r in neighbours[p] if r != p]  # step 2
    yield {"seeds": list(seeds)} | assign(seeds if assign_first else [])
    while seeds:  # step 3
        q = seeds.pop(0)
        if len(neighbours[q]) < min_samples:  # step 4
            yield {"seed": q, "step": "4", "near": neighbours[q], "cluster": cluster}
            continue
        near = neighbours[q]  # step 5
        new = [r for r in near if labels[r] == UNASSIGNED and r not in seeds]
        seeds += new  # step 6
        entry = {"seed": q, "step": "5, 6, 7", "near": near, "cluster": cluster, "seeds": new}
        yield entry | assign(near)  # steps 7 and 8


def labels_after(record, n_points):
    """Return the labels of all points after a part of a record."""
    labels = [UNASSIGNED] * n_points
    for entry in record:
        if "taken" in entry and entry["step"] != "2":
            labels[entry["taken"]] = entry["cluster"]
        for point in entry.get("joined", []) + entry.get("from noise", []):
            labels[point] = entry["cluster"]
    return labels


def points_taken(record, names):
    """Return one row per point that is taken and not skipped: its neighbourhood and who joins.

    Parameters
    ----------
    record : list of dict
        From `run_steps`.
    names : sequence of str
        The name of each point.

    Returns
    -------
    list of dict of str to str
    """
    rows = []
    for entry in record:
        if "taken" in entry and entry["step"] != "2":
            row = {"taken": [entry["taken"]], "neighbourhood": entry["near"]}
            row["assigned to"] = "noise" if entry["cluster"] < 0 else f"cluster {entry['cluster']}"
            rows.append(row | {"joined": [], "joined from the noise": []})
        for column, key in {"joined": "joined", "joined from the noise": "from noise"}.items():
            rows[-1][column] += entry.get(key, [])
    return [
        {
            column: points if isinstance(points, str) else " ".join(names[p] for p in points)
            for column, points in row.items()
        }
        for row in rows
    ]
