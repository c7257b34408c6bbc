"""The patients of the page on files of hospitals, as each program writes them."""

import numpy as np
import pytest

from fedlib.tables.databases import Database
from fedlib.tables.files import SiteFile
from fedlib.tables.streams import ReadOptions

pytest.importorskip("pyreadstat")
pytest.importorskip("sqlalchemy")


@pytest.fixture
def hospital_files(modules):
    return modules("study.running.hospital_files")


@pytest.mark.parametrize("suffix", [".sav", ".dta", ".xpt", ".parquet", ".db"])
def test_every_file_has_the_patients(suffix, hospital_files, tmp_path):
    rows = hospital_files.cohort(np.random.default_rng(0), 50)
    path = tmp_path / f"a{suffix}"
    hospital_files.write(rows, path)
    query = "SELECT * FROM patients ORDER BY patient"
    source = Database(f"sqlite:///{path}", query) if suffix == ".db" else path
    content = SiteFile.read(source, ReadOptions(), as_written=True).content
    frame = content.frame
    assert [*frame] == [*rows]
    for name in ("patient", "icd", "age", "sex", "outcome", "earlier"):
        assert frame[name].tolist() == rows[name].tolist()
    assert np.array_equal(frame["dose"], rows["dose"].astype(float))
    is_gap = (rows["crp"] == hospital_files.REFUSED).to_numpy()
    assert is_gap.any()
    declared = suffix in (".sav", ".dta")
    assert np.array_equal(frame["crp"].isna(), is_gap & declared)
    assert bool(content.labels) == bool(content.missing) == declared


def test_labels_of_another_hospital_are_in_its_file(hospital_files, tmp_path):
    rows = hospital_files.cohort(np.random.default_rng(0), 50)
    hospital_files.write(rows, tmp_path / "a.sav", sex={1: "female", 2: "male"})
    content = SiteFile.read(tmp_path / "a.sav", ReadOptions(), as_written=True).content
    assert content.labels["sex"] == {"1": "female", "2": "male"}
