"""One table of patients as hospitals have it: files of five programs, and a database."""

import sqlite3
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyreadstat
from pyarrow import parquet

PLACE = "Europe/Berlin"
SEX = {1: "male", 2: "female"}
OUTCOME = {1: "home", 2: "home", 3: "ward"}  # 2 is: home, with a nurse
REFUSED = 999.0  # the code of a missing value
SECONDS = {".sav": "DTIME12", ".xpt": "TIME12"}  # the formats of durations


def cohort(rng, n_patients):
    """Return the patients of a hospital as a data frame.

    Parameters
    ----------
    rng : numpy.random.Generator
    n_patients : int

    Returns
    -------
    DataFrame
        One row per patient. The time of admission has the zone `PLACE`, the stay is a duration, the
        dose a decimal number, and the CRP is `REFUSED` for patients without one.
    """
    n = n_patients
    old = rng.random(n) < 0.5  # two kinds of patients
    age = np.where(old, rng.normal(74, 6, n), rng.normal(42, 8, n)).clip(18, 105)
    crp = np.where(old, rng.normal(60, 12, n), rng.normal(6, 2, n)).clip(0.2)
    soon = rng.random(n) < 0.2  # some patients come soon after midnight
    minutes = np.where(soon, 20, rng.integers(0, 24 * 60, n))
    minutes += rng.integers(0, 180, n) * 24 * 60
    admitted = pd.Timestamp("2026-04-01") + pd.to_timedelta(minutes, "min")
    return pd.DataFrame(
        {
            "patient": [f"{i:03d}" for i in range(1, n + 1)],
            "icd": rng.choice(["1E50", "1E51"], n),  # acute and chronic viral hepatitis
            "age": age.astype(int),
            "sex": rng.choice([*SEX], n),
            "outcome": rng.choice([*OUTCOME], n),
            "earlier": rng.poisson(0.7, n),  # stays
            "crp": np.where(rng.random(n) < 0.1, REFUSED, crp.round(1)),
            "admitted": admitted.tz_localize(PLACE).as_unit("us"),
            "stay": pd.to_timedelta(rng.integers(2, 20 * 24, n), "h").as_unit("us"),
            "dose": [Decimal(int(one)) / 10 for one in rng.integers(1, 40, n)],
        }
    )


def write(frame, path, sex=None):
    """Write the patients as the program of a file has them, by its suffix.

    Parameters
    ----------
    frame : DataFrame
        What `cohort` returns.
    path : Path
        A .sav, .dta, .xpt, .parquet, .csv or .db file; the last one is a database of SQLite.
    sex : mapping of int to str, optional
        The labels of the sexes in a file of SPSS or Stata, if they are not `SEX`.
    """
    suffix, labels = path.suffix, {"sex": sex or SEX, "outcome": OUTCOME}
    seconds = frame["stay"].dt.total_seconds()
    rows = frame.assign(
        admitted=frame["admitted"].dt.tz_localize(None),  # these files know no zones
        stay=seconds if suffix in SECONDS else seconds / 3600,
        dose=frame["dose"].astype(float),
    )
    formats = {"variable_format": {"stay": SECONDS[suffix]}} if suffix in SECONDS else {}
    if suffix == ".sav":
        labels["crp"] = {REFUSED: "refused"}
        declared = {"crp": [REFUSED]}
        pyreadstat.write_sav(
            rows, path, variable_value_labels=labels, missing_ranges=declared, **formats
        )
    elif suffix == ".dta":
        labels["crp"] = {"a": "refused"}
        rows["crp"] = rows["crp"].astype(object).where(rows["crp"] != REFUSED, "a")
        declared = {"crp": ["a"]}
        pyreadstat.write_dta(rows, path, variable_value_labels=labels, missing_user_values=declared)
    elif suffix == ".xpt":
        pyreadstat.write_xport(rows, path, file_format_version=5, **formats)
    elif suffix == ".parquet":
        utc = frame.assign(admitted=frame["admitted"].dt.tz_convert("UTC"))
        table = pa.Table.from_pandas(utc, preserve_index=False)
        parquet.write_table(table.replace_schema_metadata(None), path)  # nothing of pandas
    else:
        rows["admitted"] = rows["admitted"].dt.strftime("%Y-%m-%d")
        if suffix == ".csv":
            rows.to_csv(path, index=False)
            return
        with sqlite3.connect(path) as link:
            rows.to_sql("patients", link, index=False)
        link.close()
