"""What the command line prints after a run: the report of the estimator."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from fedlib import (
    DensitySuggestion,
    FederatedKMeans,
    FederatedPipeline,
    FederatedSummary,
    GaussianMixtureSelection,
    KMeansSelection,
)

PARTS = [np.array([[0.0], [0.1], [0.3]]) + 4 * i for i in range(4)]


def test_an_estimator_without_a_table_has_none():
    assert FederatedKMeans(2, random_state=0).fit(PARTS).report() == ""


def test_the_report_is_the_table():
    summary = FederatedSummary()
    with pytest.raises(NotFittedError):
        summary.report()
    table = summary.fit(PARTS).report().splitlines()
    assert table[0].split() == summary.to_frame().columns.tolist()
    assert table[1].split()[:4] == ["0", "numbers", "12", "0"]


@pytest.mark.parametrize(
    ("selection", "attribute"),
    [
        (KMeansSelection(max_clusters=3, random_state=0), "n_clusters"),
        (GaussianMixtureSelection(max_components=2, random_state=0), "n_components"),
    ],
)
def test_a_selection_begins_with_its_suggestion(selection, attribute):
    model = FederatedPipeline(selection, scale="standard").fit(PARTS)
    suggested = getattr(model.estimator_, f"{attribute}_")
    assert model.report().startswith(f"suggested {attribute}: {suggested}\n\n")


def test_the_suggestions_for_density_methods():
    model = DensitySuggestion(1).fit(PARTS)
    assert model.report().splitlines() == [
        f"eps: {model.eps_:.6g}",
        f"cell_size: {model.cell_size_:.6g}",
        f"largest error: {model.error_:.6g}",
    ]
