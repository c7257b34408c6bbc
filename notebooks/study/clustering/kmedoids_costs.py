# /// script
# requires-python = ">=3.11"
# dependencies = ["kmedoids==0.5.5", "numpy==2.4.6", "scipy>=1.13"]
# ///
"""Run FasterPAM of the package `kmedoids` on the sets that CLARANS gets.

``uv run --script notebooks/study/clustering/kmedoids_costs.py`` prints a table with one row per
set: the smallest cost over all random starts, and how many starts reach it. Its recorded output is
`notebooks/kmedoids_costs.csv`. The package is under the GPL, so it is no dependency here.
"""

import csv
import sys
from hashlib import sha256
from importlib.metadata import version

import clarans
import kmedoids
from scipy.spatial.distance import cdist

N_STARTS = 200

sets = {name: (X, 4) for name, (X, _) in clarans.sample_sets().items()}
sets |= {f"{m * m} equal balls": (clarans.equal_balls(m)[0], m * m) for m in (2, 3, 4, 5)}
columns = ["set", "n_clusters", "cost", "starts", "starts that reach it", "sha256", "versions"]
table = csv.writer(sys.stdout, lineterminator="\n")
table.writerow(columns)
for name, (X, n_clusters) in sets.items():
    distances = cdist(X, X)
    starts = [
        kmedoids.fasterpam(distances, n_clusters, random_state=seed).loss
        for seed in range(N_STARTS)
    ]
    cost = min(starts)
    n_reached = sum(start <= cost * (1 + 1e-12) for start in starts)
    digest = sha256(X.tobytes()).hexdigest()
    versions = f"kmedoids {version('kmedoids')}, numpy {version('numpy')}"
    table.writerow([name, n_clusters, repr(float(cost)), N_STARTS, n_reached, digest, versions])
