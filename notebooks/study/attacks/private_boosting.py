"""The AUC of boosted trees with differential privacy against epsilon."""

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from fedlib import FederatedXGBClassifier
from fedlib.testing import seeded_noise


def auc_by_epsilon(parts, test, epsilons, *, bounds, delta, n_seeds=3, **trees):
    """Return the AUC of test rows for each epsilon, with and without secure sums.

    Parameters
    ----------
    parts : list of (X, y)
        The rows of each client, of the classes 0 and 1.
    test : (X, y)
    epsilons : list of float
    bounds : array-like (2, n_features)
    delta : float
    n_seeds : int
        The number of runs per epsilon, each with other noise.
    **trees
        Parameters of the estimator, such as ``n_trees``, ``max_depth`` and ``max_bin``.

    Returns
    -------
    DataFrame
        Columns ``epsilon`` (infinite without noise), ``secure``, ``seed`` and ``AUC``.
    """
    common = {"method": "histogram", "bounds": bounds, "tol": None, **trees}
    rows = []

    def measure(shown, seed, private):
        model = FederatedXGBClassifier(**common, **private).fit(parts)
        auc = roc_auc_score(test[1], model.predict_proba(test[0])[:, 1])
        rows.append([shown, private.get("secure", False), seed, auc])

    measure(np.inf, 0, {"base_score": 0.5})
    for epsilon in epsilons:
        for secure in (False, True):
            private = {"epsilon": epsilon, "delta": delta, "classes": [0, 1], "secure": secure}
            for seed in range(n_seeds):
                with seeded_noise(seed):
                    measure(epsilon, seed, private)
    return pd.DataFrame(rows, columns=["epsilon", "secure", "seed", "AUC"])
