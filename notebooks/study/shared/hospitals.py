"""The patients of three hospitals, with the usual flaws of such files."""

import numpy as np
import pandas as pd

KINDS = pd.DataFrame(
    {
        "age": [44, 63, 74],  # years
        "bmi": [24, 33, 25],  # kg/m²
        "crp": [3, 9, 45],  # mg/l
        "creatinine": [75, 95, 170],  # µmol/l
    }
)
SPREADS = [7, 2, 2, 12]


def patients(rng, name, n, shares):
    """Return a hospital's patients as a data frame, and their kinds: the rows of `KINDS`.

    Parameters
    ----------
    rng : numpy.random.Generator
    name : str
        The hospital, with which the identifiers of its patients begin.
    n : int
        How many patients it has.
    shares : sequence of float
        The fraction of each kind.
    """
    kind = rng.choice(3, n, p=shares)
    frame = KINDS.loc[kind].reset_index(drop=True) + rng.normal(size=(n, 4)) * SPREADS
    frame = frame.clip(lower=0).round(1)
    frame.insert(0, "patient", [f"{name}-{i:03d}" for i in range(n)])
    frame["ldl"] = rng.normal(3.2, 0.8, n).round(2)
    frame["sex"] = rng.integers(1, 3, n)  # 1 and 2 are codes
    frame["ward"] = np.where(rng.random(n) < 0.8, np.array(["A", "B", "C"])[kind], "A")
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D")
    frame["visit"] = days.strftime("%Y-%m-%d")
    ill = rng.random(n) < 1 / (1 + np.exp(-(frame["crp"] - 25) / 8))
    frame["readmitted"] = np.where(ill, "yes", "no")
    for column in ("bmi", "crp"):
        frame.loc[rng.random(n) < 0.08, column] = np.nan
    return frame, kind
