"""Tables in the layout of the sources."""

import importlib
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = ["metric", "group", "run", "published", "measured", "status"]


@pytest.fixture(scope="module")
def layouts():
    """Return the module, imported as the notebooks import it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "notebooks")
        yield importlib.import_module("study.shared.layouts")


def row_of(published, measured, status):
    """Return a row with the three values that make a cell."""
    return {"published": published, "measured": measured, "status": status}


@pytest.mark.parametrize(
    ("published", "measured", "status", "decimals", "text"),
    [
        ("0.911", 0.9114, "exact", None, "0.911 | 0.911"),
        ("0.911", 41 / 45, "exact", None, "0.911 | 0.911"),
        ("0.956", 0.9569, "exact", None, "0.956 | 0.956"),  # the source truncates
        ("0.95", 0.9496, "differs", 4, "0.95 | 0.9496 ≠"),
        ("1", 1.0, "exact", 4, "1 | 1.0000"),
        ("4811", 4811.0, "exact", None, "4811 | 4811"),
        ("0.911", 0.85, "within", None, "0.911 | 0.850 ≈"),
        ("0.911", 0.85, "misprint", None, "0.911 | 0.850 †"),
        ("0.911", np.nan, "differs", None, "0.911 | –"),
    ],
)
def test_a_cell_contains_both_values_and_a_sign(
    layouts, published, measured, status, decimals, text
):
    assert layouts.cell(row_of(published, measured, status), decimals) == text


@pytest.mark.parametrize("measured", [0.9125, 0.9099])
def test_a_cell_is_not_exact_if_its_digits_differ(layouts, measured):
    with pytest.raises(ValueError, match="is exact, but the measured"):
        layouts.cell(row_of("0.911", measured, "exact"))


def test_an_unknown_status_is_refused(layouts):
    with pytest.raises(ValueError, match="status must be one of exact, within"):
        layouts.cell(row_of("0.911", 0.9, "nearly"))


@pytest.fixture
def rows():
    """Return two runs of two scores in two groups; one number is wrong, one was not measured."""
    return pd.DataFrame(
        [
            ("ARI", "overall", "II", "0.1", 0.1, "exact"),
            ("ARI", "overall", "I", "0.2", 0.2, "exact"),
            ("ARI", "active", "I", "0.3", 0.4, "differs"),
            ("ARI", "active", "II", "0.4", np.nan, "differs"),
            ("AMI", "overall", "I", "0.5", 0.5, "exact"),
            ("AMI", "active", "I", "0.6", 0.6, "exact"),
        ],
        columns=COLUMNS,
    )


def test_rows_and_columns_have_the_printed_order_and_names(layouts, rows):
    titles = {"run": {"I": "first", "II": "second"}, "group": {"active": "Active"}}
    shown = layouts.as_printed(rows, ["metric", "group"], ["run"], titles).data
    assert shown.columns.tolist() == ["first", "second"]
    assert shown.index.tolist() == [
        ("ARI", "Active"),
        ("ARI", "overall"),
        ("AMI", "Active"),
        ("AMI", "overall"),
    ]
    assert shown.to_numpy().tolist() == [
        ["0.3 | 0.4 ≠", "0.4 | –"],
        ["0.2 | 0.2", "0.1 | 0.1"],
        ["0.6 | 0.6", ""],
        ["0.5 | 0.5", ""],
    ]


def test_columns_are_grouped_by_the_outer_key(layouts):
    """The rows come data set by data set; the printed table goes method by method."""
    numbers = [
        (metric, dataset, method, "1", 1.0, "exact")
        for dataset in ("small", "large")
        for method in ("federated", "central")
        for metric in ("ARI", "AMI")
    ]
    columns = ["metric", "dataset", "method", "published", "measured", "status"]
    numbers = pd.DataFrame(numbers, columns=columns)
    titles = {"dataset": {"large": "Large"}}
    shown = layouts.as_printed(numbers, ["metric"], ["method", "dataset"], titles).data
    assert shown.index.tolist() == ["ARI", "AMI"]
    assert shown.columns.tolist() == [
        ("federated", "Large"),
        ("federated", "small"),
        ("central", "Large"),
        ("central", "small"),
    ]


def test_only_cells_that_differ_are_marked_and_explained(layouts, rows):
    measured = rows.dropna()
    html = layouts.as_printed(measured, ["metric"], ["group", "run"], caption="Toy.").to_html()
    assert len(re.findall(r"box-shadow: inset", html)) == 1
    assert len(re.findall("≠", html)) == 2  # in the cell and in the caption
    [caption] = re.findall("<caption>(.*)</caption>", html)
    assert caption == "Toy. Each cell: printed | measured. ≠: the values differ."


def test_a_cell_that_occurs_twice_is_refused(layouts, rows):
    with pytest.raises(ValueError, match="duplicate"):
        layouts.as_printed(rows, ["metric"], ["group"])


def test_a_printed_number_is_a_link_to_its_claim_and_its_place(layouts):
    keys = ["source", "table", "dataset", "method", "condition", "run"]
    row = dict(zip(keys, ("K", "sse", "dim_reduced_2d", "kmeans", "", ""), strict=True))
    row |= {"metric": "SSE"} | row_of("1362.1960103577223", 1362.19, "differs")
    shown = layouts.as_printed(pd.DataFrame([row]), ["method"], ["metric"])
    assert shown.data.loc["kmeans", "SSE"].startswith("1362.1960103577223 | 1362.19")
    [link] = re.findall(r"<td[^>]*>(.*)</td>", shown.to_html())
    assert link.startswith('<a class="claim" id="K-sse-kmeans-SSE" href="../book/claims.html#K-sse')
    assert ">1362.1960103577223</a> | 1362.19" in link


def test_a_table_without_numbers_is_empty(layouts, rows):
    assert layouts.as_printed(rows[:0], ["metric"], ["run"]).data.empty
