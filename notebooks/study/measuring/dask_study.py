"""What the page on a billion points shares with its large runs: data, measurements, estimates.

As a program it measures the large sizes, which take minutes on an idle machine, and writes the
results that the page shows: ``python -m study.measuring.dask_study ../book/results``.
"""

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from dask import delayed
from distributed import Client, LocalCluster
from sklearn.cluster import MiniBatchKMeans

from fedlib import (
    ApproximateDBSCAN,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedXGBClassifier,
    HorizontalDBSCAN,
)
from fedlib.transports.dask import Dask
from study.boosting import RULES
from study.measuring.performance_study import COLUMNS, VERSIONS, seconds

N_CLOUDS = 50
CELL_SIZE = 0.004
ROWS = 2_000_000  # per partition
RASTER = 500e6 / 50  # points per second on one core, as published
COMPARED = {"from Parquet": 100_000_000, "generated": 1_000_000_000}  # points, next to RASTER


@dataclass(frozen=True)
class Clouds:
    """A partition: a function that returns points of fifty round clouds on a thin background."""

    number: int
    n_rows: int

    def __call__(self):
        shape = np.random.default_rng(0)
        centres = shape.random((N_CLOUDS, 2))
        widths = shape.uniform(0.002, 0.02, N_CLOUDS)
        rng = np.random.Generator(np.random.SFC64([1, self.number]))
        X = rng.standard_normal((self.n_rows, 2))
        for cloud, rows in enumerate(np.array_split(X, N_CLOUDS)):
            rows *= widths[cloud]
            rows += centres[cloud]
        X[::20] = rng.random((len(X[::20]), 2))
        return X


@dataclass(frozen=True)
class LabelledClouds:
    """The same points, with the class of each."""

    points: Clouds

    def __call__(self):
        X = self.points()
        return X, (np.sin(9 * X[:, 0]) + X[:, 1] > 0.5).astype(np.int64)


def generated(n_points, n_rows=ROWS):
    """Return partitions that generate their points."""
    return [Clouds(i, min(n_rows, n_points)) for i in range(max(1, n_points // n_rows))]


def write_files(folder, partitions):
    """Write each partition as a Parquet file and return the paths."""
    paths = [Path(folder, f"part-{i:04}.parquet") for i in range(len(partitions))]
    for path, partition in zip(paths, partitions, strict=True):
        X = partition()
        table = pa.table({"x": X[:, 0], "y": X[:, 1]})
        pq.write_table(table, path, use_dictionary=False, compression="none")
    return paths


def grid(n_points):
    """Return the estimator: a cell is dense with eight times the points of the background."""
    background = n_points / 20 * CELL_SIZE**2
    return HorizontalDBSCAN(CELL_SIZE, max(10, round(8 * background)), adjacency="full")


def connect(n_workers=2):
    """Return a connection to new worker processes with one thread each."""
    cluster = LocalCluster(
        n_workers=n_workers, threads_per_worker=1, memory_limit=0, dashboard_address="127.0.0.1:0"
    )
    return Client(cluster)


def peak_memory():
    """Return the largest memory that this process has had, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def warm_up(client):
    """Import the package on the workers and load the compiled kernels."""
    few = generated(200_000, 50_000)
    grid(200_000).fit(Dask(few, client, keep="reload"))


def measure(work, partitions, n_points, fit, n_workers=2):
    """Return one row of results: the time and the memory of a run on new workers.

    Parameters
    ----------
    work : str
    partitions : list
    n_points : int
    fit : callable
        Takes a transport.
    n_workers : int
    """
    with connect(n_workers) as client:
        warm_up(client)
        transport = Dask(partitions, client, keep="reload")
        taken = seconds(lambda: fit(transport))
        memory = max(client.run(peak_memory).values())
        client.cluster.close()
    row = {"work": work, "points": n_points, "partitions": len(partitions), "workers": n_workers}
    row |= {"seconds": taken, "worker_mib": memory, "server_mib": peak_memory()}
    print(row, flush=True)
    return row


def scaling(sizes, n_workers=2):
    """Return one row per number of points; the partitions generate them."""
    rows = []
    for n in sizes:
        partitions = generated(n, min(ROWS, n // (2 * n_workers)))
        rows.append(measure("generated", partitions, n, grid(n).fit, n_workers))
    return rows


def from_files(n_points, folder=None):
    """Return a row for points in Parquet files, which are written first."""
    with TemporaryDirectory(dir=folder) as place:
        paths = write_files(place, generated(n_points))
        return measure("from Parquet", paths, n_points, grid(n_points).fit)


def overhead(n_partitions):
    """Return a row for many partitions of a hundred points: the time per partition and request."""
    n_points = 100 * n_partitions
    return measure("overhead", generated(n_points, 100), n_points, grid(n_points).fit)


def other_protocols(n_points):
    """Return a row for ρ-approximate DBSCAN, and for each protocol with many rounds (five)."""
    partitions = generated(n_points)
    start = Clouds(0, 1000)()[-20:]
    lloyd = FederatedKMeans(20, method="lloyd", init=start, max_iter=5, tol=0)
    mixture = FederatedGaussianMixture(8, method="em", max_rounds=5, tol=0, random_state=0)
    trees = FederatedXGBClassifier(n_trees=5, max_depth=4, histograms="dense", xgboost_rules=RULES)
    eps = 0.01
    # Core points have three times the neighbours of points that fill the unit square.
    density = ApproximateDBSCAN(eps, int(3 * n_points * math.pi * eps**2), rho=0.5)
    return [
        measure("ρ-approximate DBSCAN, ρ = 0.5", partitions, n_points, density.fit),
        measure("Lloyd, k = 20, 5 rounds", partitions, n_points, lloyd.fit),
        measure("EM, 8 components, 5 rounds", partitions, n_points, mixture.fit),
        measure(
            "boosting, histograms, 5 trees",
            [LabelledClouds(one) for one in partitions],
            n_points,
            trees.fit,
        ),
    ]


def kmeans_peers(n_points, n_workers=2):
    """Return one row per program for five iterations of k-means from one start, data in memory.

    The mini-batches are the partitions, in one pass on one core. Inertia is that of all points.
    """
    partitions = generated(n_points)
    start = Clouds(0, 1000)()[-20:]
    rows = []
    with connect(n_workers) as client:
        warm_up(client)
        blocks = [da.from_delayed(delayed(one)(), (one.n_rows, 2), float) for one in partitions]
        X = da.concatenate(blocks).persist()
        lloyd = FederatedKMeans(20, method="lloyd", init=start, max_iter=5, tol=0)
        fits = {"fedlib": lambda: lloyd.fit(Dask(X, client))}
        found = {"fedlib": lambda: lloyd.cluster_centers_}
        try:
            from dask_ml.cluster import KMeans
        except ImportError:
            print("without dask-ml")
        else:
            peer = KMeans(20, init=start, max_iter=5, tol=0)
            fits["dask-ml"] = lambda: peer.fit(X)
            found["dask-ml"] = lambda: peer.cluster_centers_
        batches = MiniBatchKMeans(20, init=start, n_init=1, batch_size=ROWS, random_state=0)

        def in_batches():
            for block in X.to_delayed().ravel():
                batches.partial_fit(block.compute())

        fits["MiniBatchKMeans"] = in_batches
        found["MiniBatchKMeans"] = lambda: batches.cluster_centers_
        for name, fit in fits.items():
            taken = seconds(fit)
            rows.append({"program": name, "points": n_points, "seconds": taken})
            rows[-1]["inertia"] = float(_inertia(X, found[name]()))
            print(rows[-1], flush=True)
        client.cluster.close()
    return rows


def _inertia(X, centres):
    parts = X.map_blocks(lambda block: _nearest(block, centres), drop_axis=1, dtype=float)
    return parts.sum().compute()


def _nearest(X, centres):
    """Return the squared distance of each point to its nearest centre."""
    best = np.full(len(X), np.inf)
    for centre in centres:
        np.minimum(best, ((X - centre) ** 2).sum(axis=1), out=best)
    return best


def estimate(runs, n_points, n_workers, n_rows=ROWS):
    """Return the seconds that a run would take on more workers, from measured costs.

    The points are divided between the workers. The scheduler does its work per partition one after
    the other, whatever the number of workers.
    """
    line = runs[runs["work"] == "generated"].sort_values("points").iloc[-1]
    per_point = line["seconds"] * line["workers"] / line["points"]
    many = runs[runs["work"] == "overhead"].iloc[-1]
    per_partition = many["seconds"] / many["partitions"]
    return per_point * n_points / n_workers + per_partition * n_points / n_rows


def compared(runs):
    """Return the rows of the table of all results: the time next to the published rate."""
    rows = []
    for work, n_points in COMPARED.items():
        for line in runs[(runs["work"] == work) & (runs["points"] == n_points)].itertuples():
            what = (
                f"cells and labels on Dask, {n_points:,} points {work}, 2 workers,"
                f" {line.worker_mib:.0f} MiB per worker"
            )
            raster = n_points / line.workers / RASTER
            times = (line.seconds, raster, line.seconds / raster)
            rows.append([13, what, "RASTER, as published, per core", *times])
    frame = pd.DataFrame(rows, columns=COLUMNS[:-2])
    return frame.assign(cores=2, versions=VERSIONS)


def measure_all(largest, n_files, n_rounds, folder=None):
    """Return the table of all runs, and that of k-means next to other programs.

    Parameters
    ----------
    largest : int
        The points of the largest run that generates them, a power of ten from a million on.
    n_files : int
        The points that are read from files.
    n_rounds : int
        The points of the protocols with many rounds.
    folder : path, optional
        Where the files are written, 16 bytes per point.
    """
    sizes = [10**k for k in range(6, 12) if 10**k <= largest]
    rows = [overhead(1000), *scaling(sizes)]
    rows += scaling([min(10**8, largest)], n_workers=1)
    rows.append(from_files(n_files, folder))
    rows += other_protocols(n_rounds)
    peers = pd.DataFrame(kmeans_peers(n_rounds))
    return pd.DataFrame(rows).assign(versions=VERSIONS), peers.assign(versions=VERSIONS)


def main():
    parser = argparse.ArgumentParser(description="Measure the large runs.")
    parser.add_argument("results", type=Path, help="the folder for the results")
    parser.add_argument("--files", type=int, default=100_000_000, help="points in files")
    parser.add_argument("--largest", type=int, default=1_000_000_000, help="points at most")
    parser.add_argument("--rounds", type=int, default=20_000_000, help="points of other protocols")
    parser.add_argument("--folder", help="where the files are written (16 bytes per point)")
    chosen = parser.parse_args()
    start = time.perf_counter()
    runs, peers = measure_all(chosen.largest, chosen.files, chosen.rounds, chosen.folder)
    _write(runs, chosen.results / "dask_runs.csv")
    _write(peers, chosen.results / "dask_kmeans.csv")
    kept = chosen.results / "performance.csv"
    if kept.exists() and len(rows := compared(runs)):
        before = pd.read_csv(kept, keep_default_na=False)
        _write(pd.concat([before[before["row"] != 13], rows]), kept)
    print(f"{time.perf_counter() - start:.0f} s in all")


def _write(frame, path):
    frame.to_csv(path, index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
