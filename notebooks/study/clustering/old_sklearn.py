# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "msgspec>=0.20", "numba>=0.65", "numpy==1.26.4", "pandas==2.1.4", "pooch>=1.8",
#   "scikit-learn==1.2.2", "scipy==1.11.4", "threadpoolctl>=3",
# ]
# ///
"""Run fedlib's one-shot k-means with scikit-learn 1.2.2, which gives Reidy's random numbers.

``uv run --script notebooks/study/clustering/old_sklearn.py`` prints a table with one row per seed:
the sums of squared errors on K's data, federated and centralised. Its recorded output is
`notebooks/old_sklearn.csv`.
"""

import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "2"  # with 2 threads, the sums have the last digits that K prints
os.environ["OMP_WAIT_POLICY"] = "passive"  # otherwise waiting threads keep the processors busy
os.environ["NUMBA_DISABLE_JIT"] = "1"  # no cached code compiled for another NumPy
sys.path.insert(0, str(Path(__file__).parents[3]))

import numpy as np
import pandas as pd
import pooch
import scipy
import sklearn
from sklearn.cluster import KMeans

from fedlib import datasets
from fedlib.clustering.kmeans import FederatedKMeans

N_SEEDS = 100


def error(X, centres):
    """Return the sum of squared errors, added row by row as in K, so that all digits agree."""
    return sum(((X[:, np.newaxis] - centres) ** 2).sum(axis=2).min(axis=1).tolist())


data = datasets.load("dim_reduced_2d")
if data.source != "real":
    sys.exit("the data set dim_reduced_2d is not available")
folders = [os.environ.get("FEDLIB_DATA", ""), pooch.os_cache("fedlib")]
path = next(path for path in (Path(f) / "dim_reduced_2d.tsv" for f in folders) if path.is_file())
# Parsed as in K: some numbers differ from the text in their last bit.
frame = pd.read_csv(path, sep="\t")
X = frame[["component_1", "component_2"]].to_numpy()
parts = [X[frame["study"] == study] for study in frame["study"].unique()]

one_shot = FederatedKMeans(3, method="one_shot")
rows = [
    {
        "seed": seed,
        "federated": error(X, one_shot.set_params(random_state=seed).fit(parts).cluster_centers_),
        "centralised": error(X, KMeans(3, n_init=10, random_state=seed).fit(X).cluster_centers_),
    }
    for seed in range(N_SEEDS)
]
modules = {"scikit-learn": sklearn, "numpy": np, "scipy": scipy, "pandas": pd}
versions = ", ".join(f"{name} {module.__version__}" for name, module in modules.items())
table = pd.DataFrame(rows).assign(sha256=data.sha256, versions=versions)
table.to_csv(sys.stdout, index=False, lineterminator="\n")
