"""Files: tables of every kind, what is wrong with them, and labels."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedlib.files import Table, read_array, read_table, write_file, write_labels


@pytest.fixture
def rows():
    """Return rows with features, classes, weights and identifiers."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(6, 2)), columns=["x", "y"])
    return frame.assign(kind=["a", "b", "c"] * 2, weight=np.arange(6) / 2, id=range(6))


def test_files_of_every_format_have_the_same_content(rows, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    rows.to_csv("data.csv", index=False)
    rows.to_csv("data.tsv", index=False, sep="\t")
    rows.to_parquet("data.parquet")
    head = "@relation r\n@attribute x numeric\n@attribute y numeric\n@attribute kind {a,b,c}\n"
    head += "@attribute weight numeric\n@attribute id numeric\n@data\n"
    Path("data.arff").write_text(head + rows.to_csv(index=False, header=False))
    for name in ("data.csv", "data.tsv", "data.parquet", "data.arff"):
        table = read_table(Path(name), "y,x", "kind", "weight", "id")
        pd.testing.assert_frame_equal(table.X, rows[["y", "x"]])
        assert table.y.tolist() == rows["kind"].tolist()
        assert table.sample_weight.tolist() == rows["weight"].tolist()
        assert [str(int(i)) for i in table.ids] == [str(i) for i in rows["id"]]


def test_files_without_names(rows, tmp_path):
    rows.to_csv(tmp_path / "bare.csv", index=False, header=False)
    bare = read_table(tmp_path / "bare.csv", "0,1", header=False)
    assert bare.X.tobytes() == rows[["x", "y"]].to_numpy().tobytes()
    np.save(tmp_path / "data.npy", rows[["x", "y"]].to_numpy())
    table = read_table(tmp_path / "data.npy", target="1")
    assert table.X.tobytes() == rows[["x"]].to_numpy().tobytes()
    assert table.y.tobytes() == rows["y"].to_numpy().tobytes()


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("a.csv", "a,b\n1,2\n3,four\n", {}, "'b' must contain finite numbers, got 'four' in row 2"),
        ("a.csv", "a,b\n1,2\n,3\n", {}, "column 'a' has no value in row 2"),
        ("a.csv", "a,b\n1,inf\n", {}, "'b' must contain finite numbers, got 'inf' in row 1"),
        ("a.csv", "a\nTrue\n", {}, "'a' must contain finite numbers, got 'True' in row 1"),
        ("a.csv", "a,k\n1,\n", {"target": "k"}, "column 'k' has no class in row 1"),
        ("a.csv", "a,k\n1,\n", {"ids": "k"}, "column 'k' has no identifier in row 1"),
        ("a.csv", "1,2\n3,4\n", {}, "the first row contains numbers instead of names"),
        ("a.csv", 'a,b\n1,2\n3,"4\n', {}, "cannot be read"),
        ("a.csv", "", {}, "cannot be read"),
        ("a.xls", "a", {}, "cannot be read: the format .xls is unknown; known are .csv"),
        ("a", "a", {}, "the format without a suffix is unknown"),
        ("a.parquet", "a", {}, "cannot be read"),
        ("a.npy", "a", {}, "cannot be read"),
        ("a.arff", "a", {}, "cannot be read"),
        ("a.csv", "a,b\n1,2\n", {"columns": "a,c"}, "no column c; the columns are a, b"),
        ("a.csv", "a,b\n1,2\n", {"columns": "a,a"}, "columns used more than once: a"),
        ("a.csv", "a,b\n1,2\n", {"columns": "a", "ids": "a"}, "columns used more than once: a"),
        ("a.csv", "a\n1\n", {"target": "a"}, "no column is left for the features"),
    ],
)
def test_invalid_tables_are_reported(name, text, options, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / name, **options)


def test_an_array_of_one_axis_is_not_a_table(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(ValueError, match="the array must have 2 axes, rows and columns, got 1"):
        read_table(tmp_path / "a.npy")


def test_a_missing_package_for_parquet_is_named(tmp_path, monkeypatch):
    def fail(path):
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd, "read_parquet", fail)
    with pytest.raises(ValueError, match=r'pyarrow is missing: pip install "fedlib-study\[http\]"'):
        read_table(tmp_path / "a.parquet")


def test_files_with_pickles_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[object()]]), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        read_array(tmp_path / "a.npy")
    with pytest.raises(ValueError, match="allow_pickle"):
        write_labels(tmp_path / "b.npy", np.array([object()]), Table(np.zeros((1, 1))))


def test_labels_and_further_columns(tmp_path):
    table = Table(np.zeros((2, 1)), ids=pd.Series(["a", "b"], name="label"))
    write_labels(tmp_path / "l.csv", np.array(["x", "y"]), table, {"p": np.array([0.1, 1.0])})
    assert (tmp_path / "l.csv").read_text() == "label,label,p\na,x,0.1\nb,y,1.0\n"
    assert (tmp_path / "l.csv").stat().st_mode & 0o077 == 0
    with pytest.raises(ValueError, match="there are 1 labels for 2 rows"):
        write_labels(tmp_path / "l.csv", np.zeros(1), table)


def test_a_file_is_replaced_completely_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_file(path, b"old")

    def fail(number):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    monkeypatch.undo()
    write_file(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"new"
