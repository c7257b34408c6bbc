"""Files: tables of every kind, what is wrong with them, and labels."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedlib.core.columns import read_columns
from fedlib.tables import text_files
from fedlib.tables.files import Table, read_array, read_table, write_file, write_labels

ARFF = "@relation r\n@attribute a"


@pytest.fixture
def rows():
    """Return rows with features, classes, weights and identifiers."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(6, 2)), columns=["x", "y"])
    return frame.assign(kind=["a", "b", "c"] * 2, weight=np.arange(6) / 2, id=range(6))


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        (["0", "1", "?"], [0.0, 1.0, np.nan]),
        (["1995", "1996", "1995"], [1995, 1996, 1995]),
        (["-1", "0.5", "1e3"], [-1.0, 0.5, 1000.0]),
        (["01", "02", "1"], None),
        (["1", "2", "3+"], None),
        (["5 mg", "10 mg", "20 mg"], None),
    ],
)
def test_an_arff_file_says_which_columns_are_categories(values, numbers, tmp_path):
    """Numbers among them are read as in other files, and the other texts are no mistakes."""
    path, declared = tmp_path / "a.arff", dict.fromkeys(f'"{v}"' for v in values if v != "?")
    cells = [value if value == "?" else f'"{value}"' for value in values] * 4
    header = f"{ARFF} {{{','.join(declared)}}}\n@attribute x numeric\n@data\n"
    path.write_text(header + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells)))
    column = read_table(path, raw=True).X["a"]
    if numbers is None:
        assert (column.dtype, column[:3].tolist()) == ("category", values)
        assert read_columns(column.to_frame()).kinds.tolist() == [1]
        assert read_table(path, target="a").y[:3].tolist() == values
    else:
        np.testing.assert_array_equal(column[:3], numbers)
    text = read_table(path, raw=True, text="a").X["a"]
    assert [None if one is np.nan else one for one in text[:3]] == [
        None if value == "?" else value for value in values
    ]


def test_categories_of_parquet_are_declared(tmp_path):
    pytest.importorskip("pyarrow")
    for values in (["1", "2", "3+"], ["01", "02", "03"], ["1,5", "2,5", "3,5"]):
        pd.DataFrame({"a": pd.Categorical(values * 4)}).to_parquet(tmp_path / "a.parquet")
        column = read_table(tmp_path / "a.parquet", raw=True).X["a"]
        assert (column.dtype, column[:3].tolist()) == ("category", values)


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
        table = read_table(
            Path(name), columns="y,x", target="kind", sample_weight="weight", ids="id"
        )
        pd.testing.assert_frame_equal(table.X, rows[["y", "x"]])
        assert table.y.tolist() == rows["kind"].tolist()
        assert table.sample_weight.tolist() == rows["weight"].tolist()
        assert [str(int(i)) for i in table.ids] == [str(i) for i in rows["id"]]


def test_files_without_names(rows, tmp_path):
    rows.to_csv(tmp_path / "bare.csv", index=False, header=False)
    bare = read_table(tmp_path / "bare.csv", columns="0,1", header=False)
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
        (
            "a.csv",
            "a,b\n1 y,2\n2 y,3\n3 y,4\n",
            {},
            "'a' must contain numbers without units .* '1 y'",
        ),
        ("a.csv", "a,b\n1kg,2\n2,3\n3kg,4\n", {"raw": True}, "got '1kg' in row 1; remove them, or"),
        (
            "a.csv",
            "a,b\n2 years,2\n3 years,3\n6 months,4\n7 months,1\n",
            {"raw": True},
            "column 'a' must contain numbers without units and signs, got '2 years' in row 1",
        ),
        ("a.csv", "a,b\n<5,2\n<2,3\n9,4\n", {"raw": True}, "without units and signs, got '<5'"),
        ("a.csv", "a,k\n1,2 d\n1,3 d\n1,4 d\n", {"target": "k"}, "without units .* got '2 d'"),
        ("a.csv", "'a',b\n1,2\n", {}, "the name 'a' in line 1 has quotation marks of another kind"),
        (
            "a.csv",
            "a,b\n'm',2\n'f',3\n",
            {"raw": True},
            "'a' contains \"'m'\", in quotation marks of another kind .* replace them, or keep",
        ),
        ("a.csv", "a,b\n\u201cm\u201d,2\n", {"raw": True}, "quotation marks of another kind"),
        (
            "a.csv",
            "a;b\n1,234;2\n",
            {},
            "'1,234', which is either 1.234 or 1234; name .* --decimal",
        ),
        ("a.csv", "Unnamed: 0,b\n0,2\n", {}, "column 1 has no name in line 1; .* index=False"),
        ("a.csv", "\n <html><p>a, b</p>", {}, "no text, but HTML or XML, .* download the table"),
        ("a.csv", '[{"a": 1, "b": 2}]', {}, "the file is no text, but JSON; write the table"),
        ("a.csv", "%PDF-1.4\n1,2\n", {}, "no text, but a document or a picture; export the table"),
        ("a.csv", "BZh91,2\n1,2\n", {}, "no text, but compressed; unpack it"),
        ("a.csv", "a\nTrue\n", {}, "'a' must contain finite numbers, got 'True' in row 1"),
        ("a.csv", "a,k\n1,\n", {"target": "k"}, "column 'k' has no class in row 1; leave such"),
        ("a.csv", "a,b\n1,\u22122\n3,4\n", {"raw": True}, "'b' must contain numbers in one form"),
        ("a.csv", "a,k\n1,\n", {"ids": "k"}, "column 'k' has no identifier in row 1"),
        ("a.csv", "1,2\n3,4\n", {}, "the first row contains numbers instead of names"),
        ("a.csv", 'a,b\n1,2\n3,"4\n', {}, "cannot be read"),
        ("a.csv", "", {}, "cannot be read"),
        ("a.csv", "a,b\n1,2\n3\n", {}, "line 3 has 1 field, but the table has 2 columns"),
        ("a.csv", "a,b\n1,2\n3,4,5\n", {}, "line 3 has 3 fields, but the table has 2 columns"),
        ("a.csv", "a,b\n1,2,3\n4,5,6\n", {}, "2 fields, but line 2 has 3; .* row.names=FALSE"),
        ("a.csv", "a;b\n1,5;x\n", {}, "'b' must contain finite numbers, got 'x' in row 1"),
        (
            "a.csv",
            'a,b\n"1,5",2\n',
            {},
            "'a' must contain numbers in one form, got '1,5' in row 1; name the decimal mark",
        ),
        ("a.csv", "a,b\n1.000,5;2\n", {}, "'b' must contain finite numbers, got '5;2' in row 1"),
        ("a.csv", "a,b,a\n1,2,3\n", {}, "columns with the same name: a"),
        ("a.csv", "a,,b\n1,2,3\n", {}, "column 2 has no name"),
        (
            "a.csv",
            "a\n123456789012345678901\n",
            {},
            "within .*, got 123456789012345678901 in row 1",
        ),
        ("a.csv", "a\n1\n-9007199254740994\n", {}, "got -9007199254740994 in row 2"),
        ("a.csv", "a,b\n1,2020-01-31\n", {}, "'b' must contain finite numbers, got '2020-01-31'"),
        ("a.csv.gz", "a\n1\n", {}, "cannot be read: the file is not compressed; remove .gz"),
        ("a.xls", "a", {}, "cannot be read: the format .xls is unknown; known are .csv"),
        ("a", "a", {}, "the format without a suffix is unknown"),
        ("a.parquet", "a", {}, "cannot be read"),
        ("a.npy", "a", {}, "cannot be read"),
        ("a.arff", "a", {}, "cannot be read"),
        (
            "a.arff",
            f'{ARFF} {{\'A b\', "c"}}\n@data\n"c"\n',
            {},
            "quotation marks .* save .* as .csv",
        ),
        ("a.arff", f"{ARFF} {{é, c}}\n@data\né\n", {}, "in ASCII .* save the rows as .csv"),
        ("a.arff", f"{ARFF} string\n@data\nc\n", {}, "save the rows as .csv"),
        ("a.arff", f"{ARFF} {{a, c}}\n@data\n{{0 c}}\n", {}, "dense rows .* save the rows as .csv"),
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


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", b"\xef\xbb\xbfage,bmi\n41,1.5\n57,-20.25\n"),
        ("a.csv", b'"age", "bmi"\r\n41, 1.5\r\n\r\n57, "-20.25"\r\n'),
        ("a.csv", b"age;bmi\n41;1,5\n57;-20,25\n"),
        ("a.csv", b"age;bmi\n41;1.5\n57;-20.25\n"),
        ("a.txt", b"sep=;\nage;bmi\n41;1,5\n57;-20,25\n"),
        ("a.csv", b"age\tbmi\n41\t1.5\n57\t-20.25\n"),
        ("a.csv.gz", b"age,bmi\n41,1.5\n57,-20.25\n"),
        ("a.TSV.gz", b"age\tbmi\n41\t1,5\n57\t-20,25\n"),
    ],
)
def test_text_as_programs_write_it(name, data, tmp_path):
    """Byte order marks, Excel's semicolons and decimal commas, Windows' line ends, compression."""
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    table = read_table(tmp_path / name)
    assert table.X.to_dict("list") == {"age": [41, 57], "bmi": [1.5, -20.25]}


def test_identifiers_remain_text(tmp_path):
    """Long numbers and leading zeros are kept, and a decimal comma in them is no decimal comma."""
    (tmp_path / "a.csv").write_text("id;x\n007;1,5\n123456789012345678901;2\n1,5;3\n")
    table = read_table(tmp_path / "a.csv", ids="id")
    assert table.ids.tolist() == ["007", "123456789012345678901", "1,5"]
    assert table.X["x"].tolist() == [1.5, 2, 3]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_other_encodings_are_named(encoding, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("a,größe\n1,2\n".encode(encoding))
    with pytest.raises(
        ValueError, match=r"not UTF-8 \(byte 0xf6 in line 1\); .* --encoding cp1252"
    ):
        read_table(path)
    assert read_table(path, encoding=encoding).X.columns.tolist() == ["a", "größe"]


def test_a_truncated_archive(tmp_path):
    data = gzip.compress(b"a,b\n" + b"1,2\n" * 10_000)
    (tmp_path / "a.csv.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="cannot be read: the compressed file is damaged"):
        read_table(tmp_path / "a.csv.gz")


@pytest.mark.parametrize("n", [3_000, pytest.param(100_000, marks=pytest.mark.load)])
def test_many_columns(n, tmp_path):
    names = ",".join(f"c{i}" for i in range(n))
    (tmp_path / "a.csv").write_text(f"{names}\n{','.join(['1'] * n)}\n")
    assert read_table(tmp_path / "a.csv").X.shape == (1, n)


def test_an_array_of_one_axis_is_not_a_table(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(ValueError, match="the array must have 2 axes, rows and columns, got 1"):
        read_table(tmp_path / "a.npy")


def test_a_missing_package_for_parquet_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r'pyarrow is missing: pip install "fedlib-study\[http\]"'):
        read_table(tmp_path / "a.parquet")


def test_files_with_pickles_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[object()]]), allow_pickle=True)
    with pytest.raises(ValueError, match="no array of numbers that numpy.save has written"):
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


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from fedlib.tables.files import write_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_file(Path(sys.argv[1]), bytes(5000))
except OSError as error:
    print(type(error).__name__)
"""


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """A limit on the size of files stands for the full disk."""
    path = tmp_path / "labels.csv"
    write_file(path, b"old")
    command = [sys.executable, "-c", FULL_DISK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "OSError\n"
    assert path.read_bytes() == b"old"
    write_file(path, b"new")  # what is left of the first attempt is no obstacle
    assert [p.name for p in tmp_path.iterdir()] == ["labels.csv"]


def test_raw_rows_have_text_and_gaps(tmp_path):
    path = tmp_path / "site.csv"
    path.write_text("age;sex;id;kind\n41,5;m;007;a\n;;008;b\n")
    table = read_table(path, target="kind", ids="id", raw=True)
    assert table.X.columns.tolist() == ["age", "sex"]
    assert table.X["age"].tolist()[0] == 41.5
    assert table.X.isna().to_numpy().tolist() == [[False, False], [True, True]]
    assert table.ids.tolist() == ["007", "008"]
    with pytest.raises(
        ValueError, match="'age' has no value in row 2; text and gaps need a run that"
    ):
        read_table(path, target="kind", ids="id")
    path.write_text("sex,x\nm,1\n")
    with pytest.raises(ValueError, match="got 'm' in row 1; text and gaps need a run that"):
        read_table(path)
    path.write_text("day,x\n2020-01-31,1\n")
    with pytest.raises(
        ValueError, match="column 'day' must contain numbers or text, got '2020-01-31'"
    ):
        read_table(path, raw=True)


def test_raw_rows_without_names(tmp_path):
    (tmp_path / "a.csv").write_text("1,m\n,f\n")
    X = read_table(tmp_path / "a.csv", header=False, raw=True).X
    assert X.shape == (2, 2)
    assert X[:, 1].tolist() == ["m", "f"]


def test_codes_ranges_and_small_numbers_of_categories_have_no_units(tmp_path):
    (tmp_path / "a.csv").write_text(
        "stage,age,class,dose,crp\n1A,18-30,1st,1 dose,<5\n2A,30-50,2nd,2 doses,<5\n"
        "1B,50+,3rd,1 dose,7.5\n"
    )
    table = read_table(tmp_path / "a.csv", raw=True)
    assert table.X.iloc[0].tolist() == ["1A", "18-30", "1st", "1 dose", "<5"]


def test_decimal_commas_are_read_if_one_is_clear(tmp_path):
    (tmp_path / "a.csv").write_text("a;b\n1,234;0,5\n")
    assert read_table(tmp_path / "a.csv").X.to_numpy().tolist() == [[1.234, 0.5]]
    (tmp_path / "a.csv").write_text("a;b\n1,234;5\n")
    assert read_table(tmp_path / "a.csv", decimal=",").X.to_numpy().tolist() == [[1.234, 5.0]]


def test_a_second_byte_order_mark_is_no_part_of_a_name(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf\xef\xbb\xbfa,b\n1,2\n")
    assert read_table(tmp_path / "a.csv").X.columns.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    "cells",
    [
        ["1", "2", "3", "4", "5"],
        ["1", "2", "", "4.5", "5"],
        ["1", "2", "a", "4", "5"],
        ["01", "2", "3", "4", "a"],
        ["", "", "", "a", ""],
        ["", "", "1", "2", "3"],
        ["TRUE", "FALSE", "", "TRUE", "False"],
        ["TRUE", "FALSE", "true", "maybe", "False"],
        ["TRUE", "", "1", "2", "0"],
        ["1", "2", str(2**63 + 1), "4", "5"],
        ["1", "2", str(2**70), "", "5"],
        ["9007199254740993", "2", "", "4", "5"],
        ["-1", "2", "NA", "1e3", "5"],
        ["a", "b", "", "c", "d"],
    ],
)
def test_the_rows_that_are_parsed_at_a_time_do_not_matter(cells, monkeypatch, tmp_path):
    lines = [f"{cell},{i},{cell}" for i, cell in enumerate(cells)]
    (tmp_path / "a.csv").write_text("\n".join(["c,x,t", *lines]))

    def read():
        try:
            table = read_table(tmp_path / "a.csv", raw=True, text="t")
        except ValueError as error:
            return str(error)
        return [repr(column.tolist()) for column in read_columns(table.X).columns]

    expected = read()
    for n_rows in (1, 2, 3):
        monkeypatch.setattr(text_files, "N_ROWS", n_rows)
        assert read() == expected


def test_dates_and_durations_are_no_numbers(tmp_path):
    pytest.importorskip("pyarrow")
    days = pd.to_datetime(["2020-01-01", "2021-01-01"])
    for column in (days, days - days[0]):
        pd.DataFrame({"x": [1, 2], "d": column}).to_parquet(tmp_path / "a.parquet")
        with pytest.raises(
            ValueError, match="column 'd' must contain finite numbers, got '.*' in row"
        ):
            read_table(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "message"),
    [("a.npy", "it is no array of numbers that numpy.save"), ("a.arff", "it is no .arff file")],
)
def test_files_of_another_kind_than_their_names(name, message, tmp_path):
    (tmp_path / name).write_text("garbage")
    with pytest.raises(ValueError, match=f"cannot be read: {message}"):
        read_table(tmp_path / name)


def test_one_value_for_many_rows_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("fedlib.tables.streams.ALWAYS_UNPACKED", 2**20)
    few, many = (
        pd.DataFrame({"a": np.zeros(n_rows), "b": np.ones(n_rows)}) for n_rows in (2**14, 2**18)
    )
    few.to_parquet(tmp_path / "b.parquet")
    many.to_parquet(tmp_path / "a.parquet")
    assert len(read_table(tmp_path / "b.parquet").X) == len(few)
    np.save(tmp_path / "a.npy", np.empty((0, 2**28)))
    for name in ("a.parquet", "a.npy"):
        with pytest.raises(
            ValueError, match=f"{name}: cannot be read: the table has .* rows and .* save the"
        ):
            read_table(tmp_path / name)


def test_texts_without_a_letter_are_refused_because_any_count_of_them_fits_a_file(tmp_path):
    header = {"descr": "|S0", "fortran_order": False, "shape": (9, 1)}
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(ValueError, match="a.npy: cannot be read: its values must not be empty"):
        read_table(tmp_path / "a.npy")
