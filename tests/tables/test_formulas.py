"""Tests of CSV files without formulas."""

import csv
import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

import fedlib
from fedlib import FederatedXGBClassifier, HorizontalDBSCAN, Schema
from fedlib.cli.main import cli
from fedlib.sites.models import save
from fedlib.tables.columns import csv_bytes, guarded, without_formula_guard
from fedlib.tables.files import Table, read_table, write_labels

FORMULAS = [
    "=1+1",
    "+1",
    "@SUM(A1)",
    "-A1",
    "-1+A1",
    "-e5",
    ' "=A1"',
    "'=A1",
    "\t=A1",
    "＝A1",
    "\rx",
]
HARMLESS = ["well", "-", "-1", "-1.5e-3", "a=b", "'tis", "", "1+1", "a@b"]


def opens(cell):
    """Return whether a spreadsheet could read a cell as a formula."""
    return cell[:1] in ("\t", "\r") or (
        cell.lstrip(' "\t\r\n')[:1] in ("=", "+", "@", "＝", "＋", "＠")
        or bool(re.match(r"-.*[^-+\d.eE]", cell.lstrip(' "')))
    )


def cells(data):
    return [cell for row in csv.reader(io.StringIO(data.decode(), newline="")) for cell in row]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_written_as_a_text_and_read_back(text):
    assert guarded(text) == f"'{text}"
    assert without_formula_guard(guarded(text)) == text


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_are_written_as_they_are(text):
    assert guarded(text) == without_formula_guard(text) == text


@given(st.lists(st.text(st.sampled_from("=+-@'\"\t\r\n 1a.e,"), max_size=6), min_size=1))
@example(["'\r"])
@example(["- "])
def test_no_cell_begins_like_a_formula(texts):
    data = csv_bytes(pd.DataFrame({texts[0]: texts}))
    assert not [cell for cell in cells(data) if opens(cell)]
    assert [without_formula_guard(cell) for cell in cells(data)] == [texts[0], *texts]


def test_numbers_and_gaps_are_written_as_they_are():
    frame = pd.DataFrame({"a": [-1.5, -np.inf], "b": [None, -2], "c": pd.Categorical(["=x", "y"])})
    assert csv_bytes(frame) == b"a,b,c\n-1.5,,'=x\n-inf,-2.0,y\n"


def test_labels_identifiers_and_names_are_read_back(tmp_path):
    ids = pd.Series(["@a", "-b", "c"], name="=patient")
    labels = np.array(["=x", "+y", "z"], dtype=object)
    path = tmp_path / "labels.csv"
    write_labels(path, labels, Table(np.zeros((3, 1)), ids=ids), {"+p": np.array([-0.5, 0, 1])})
    assert not [c for c in cells(path.read_bytes()) if opens(c)]
    table = read_table(path, target="label", ids="=patient")
    assert table.y.tolist() == labels.tolist()
    assert table.ids.tolist() == ids.tolist()
    assert table.X.columns.tolist() == ["+p"]


@pytest.mark.parametrize("comment", [{}, {"commentChar": "#"}])
def test_a_schema_reads_the_same_values(comment, tmp_path):
    """With a comment character, another reader is used."""
    frame = pd.DataFrame({"=kind": ["=x", "y", "=x"]})
    (tmp_path / "rows.csv").write_bytes(csv_bytes(frame))
    schema = Schema(
        {
            "name": "rows",
            "path": "rows.csv",
            "dialect": comment,
            "schema": {
                "fields": [
                    {"name": "=kind", "type": "string", "constraints": {"enum": ["=x", "y"]}}
                ]
            },
        }
    )
    table = schema.apply(tmp_path / "rows.csv")[0]
    assert table.X["=kind"].tolist() == ["=x", "y", "=x"]


def test_predicted_classes_of_others_are_no_formulas(tmp_path):
    rng = np.random.default_rng(0)
    names = np.array(["well", '=HYPERLINK("http://127.0.0.1/?"&A1)'])
    X = rng.random((60, 2))
    model = FederatedXGBClassifier(2, max_depth=2).fit([(X, names[(X.sum(1) > 1) * 1])])
    save(model, tmp_path / "model.npz")
    pd.DataFrame(X, columns=["x0", "x1"]).to_csv(tmp_path / "rows.csv", index=False)
    command = ["predict", str(tmp_path / "model.npz"), "--data", str(tmp_path / "rows.csv")]
    for option in ([], ["--probabilities"]):
        out = tmp_path / "out.csv"
        result = CliRunner().invoke(cli, [*command, "--labels-out", str(out), *option])
        assert result.exit_code == 0, result.output
        written = cells(out.read_bytes())
        assert not [cell for cell in written if opens(cell)]
        assert names[1] in [without_formula_guard(cell) for cell in written]


def test_the_ledger_of_a_client_named_like_a_formula(tmp_path):
    parts = {"=A1": [[0.1], [0.2]], "south": [[5.0]]}
    journal, out = tmp_path / "run.journal", tmp_path / "ledger.csv"
    HorizontalDBSCAN(1.0, 2).fit(parts, journal=journal)
    result = CliRunner().invoke(cli, ["ledger", str(journal), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "'=A1" in cells(out.read_bytes())
    assert not [cell for cell in cells(out.read_bytes()) if opens(cell)]


def test_all_files_are_written_by_one_function():
    folder = Path(fedlib.__file__).parent
    writers = [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(r"\.to_csv\(|csv\.writer|DictWriter", path.read_text(encoding="utf-8"))
    ]
    assert writers == ["tables/columns.py"]
