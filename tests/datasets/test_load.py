"""The names of the data sets, what importing them costs, and the real files."""

import subprocess
import sys

import numpy as np
import pytest

from fedlib.datasets import NAMES, load, sources, stand_ins, tables
from fedlib.datasets.stand_ins import FILES


def test_names():
    toys = ("circles", "moons", "blobs", "varied", "aniso", "no_structure")
    shapes = ("shapes_13147", "shapes_38754", "places_56417")
    assert (*FILES, "breast_cancer", *toys, *shapes) == NAMES
    assert set(FILES) == set(sources.sources()) == set(tables.LAYOUTS) == set(stand_ins._STAND_INS)


def test_importing_the_package_is_cheap():
    """The import and a generated set do not load the packages that files and figures need."""
    code = """
import sys
from fedlib.datasets import load
load("moons")
print([name for name in ("matplotlib", "pooch", "fedlib.datasets.tables") if name in sys.modules])
"""
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[]\n"


def test_unknown_name():
    with pytest.raises(ValueError, match=r"name must be one of banana, .*places_56417; got 'iris'"):
        load("iris")


@pytest.mark.parametrize("name", FILES)
def test_real_file(real, check_shape, name):
    dataset = real(name)
    check_shape(dataset, name)
    assert dataset.source == "real"
    assert dataset.sha256 == sources.sources()[name].sha256


def repeated_rows(X):
    return len(X) - len(np.unique(X, axis=0))


def test_facts_about_banana(real):
    assert repeated_rows(real("banana").X) == 85


def test_facts_about_heart(real):
    heart = real("heart")
    assert (np.diff(heart.y) <= 0).all()
    assert repeated_rows(np.column_stack([heart.X, heart.y])) == 1
    assert np.count_nonzero(heart.X[:, heart.feature_names.index("ca")] == 4) == 5
    assert np.count_nonzero(heart.X[:, heart.feature_names.index("thal")] == 0) == 2


def test_facts_about_diabetes(real):
    diabetes = real("diabetes")
    zeros = (diabetes.X == 0).sum(axis=0).tolist()
    assert zeros[1:6] == [5, 35, 227, 374, 11]
    assert diabetes.feature_names[1:6] == (
        "Glucose", "BloodPressure", "SkinThickness", "Insulin", "BMI"
    )  # fmt: skip


def test_facts_about_smoking(real):
    smoking = real("smoking")
    assert "ID" not in smoking.feature_names
    assert (smoking.X[:, smoking.feature_names.index("oral")] == 1).all()
    assert repeated_rows(smoking.X) == 11_140
