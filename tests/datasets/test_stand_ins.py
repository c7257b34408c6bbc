"""Stand-ins: the shape and the peculiarities of the files that they replace."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from fedlib.datasets import StandInWarning, load
from fedlib.datasets.stand_ins import FILES


@pytest.mark.parametrize("name", FILES)
def test_stand_in_has_the_shape_of_the_file(requested, check_shape, name):
    with pytest.warns(StandInWarning, match=f"{name}: .* not comparable") as caught:
        dataset = load(name)
    assert [Path(warning.filename).name for warning in caught] == ["test_stand_ins.py"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load(name)
    check_shape(dataset, name)
    assert dataset.source == "stand-in"
    assert dataset.sha256 is None
    assert dataset.description.startswith("Random stand-in for: ")
    assert np.array_equal(dataset.X, again.X)
    assert np.array_equal(dataset.y, again.y)


def test_stand_ins_keep_the_files_peculiarities(load_stand_in):
    banana = load_stand_in("banana")
    assert banana.X.min() > 0
    assert banana.X.max() < 1
    assert 20 < len(banana.X) - len(np.unique(banana.X, axis=0)) < 500  # repeated rows
    assert 1e5 < np.ptp(load_stand_in("s-set1").X, axis=0).min() < 1e6
    heart = load_stand_in("heart")
    assert (np.diff(heart.y) <= 0).all()  # sorted by target
    assert np.count_nonzero(heart.X[:, heart.feature_names.index("ca")] == 4) == 5
    assert np.count_nonzero(heart.X[:, heart.feature_names.index("thal")] == 0) == 2
    diabetes = load_stand_in("diabetes")
    zeros = dict(zip(diabetes.feature_names, (diabetes.X == 0).sum(axis=0).tolist(), strict=True))
    del zeros["Pregnancies"]
    assert zeros == {
        "Glucose": 5, "BloodPressure": 35, "SkinThickness": 227, "Insulin": 374, "BMI": 11,
        "DiabetesPedigreeFunction": 0, "Age": 0,
    }  # fmt: skip
    smoking = load_stand_in("smoking")
    assert (smoking.X[:, smoking.feature_names.index("oral")] == 1).all()
    assert 11_000 < len(smoking.X) - len(np.unique(smoking.X, axis=0)) < 11_300


def test_stand_in_of_two_components_is_that_of_three_without_the_last(load_stand_in):
    two, three = load_stand_in("dim_reduced_2d"), load_stand_in("dim_reduced_3d")
    assert np.array_equal(two.X, three.X[:, :2])
    assert np.array_equal(two.y, three.y)


@pytest.mark.parametrize("name", FILES)
def test_stand_in_matches_the_real_file(real, request, name):
    dataset = real(name)
    other = request.getfixturevalue("load_stand_in")(name)
    assert other.feature_names == dataset.feature_names
    assert other.target_names == dataset.target_names
    # The same scale in every column, up to a factor.
    ratio = (1 + np.abs(other.X).mean(axis=0)) / (1 + np.abs(dataset.X).mean(axis=0))
    assert ratio.min() > 0.7
    assert ratio.max() < 1.5
