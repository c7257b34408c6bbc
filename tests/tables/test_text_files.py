"""Text files: what is read, what is refused and with which remedy, and the way there and back."""

import codecs
import csv
import gzip

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib.tables.columns import without_formula_guard
from fedlib.tables.files import read_table
from fedlib.tables.streams import ReadOptions, named_columns

CLEAN = {"a": [1, 3], "b": [2, 4]}
CODES = "age,code\n1,250.010\n2,250.01\n3,V45.81\n"
MANY = "a,n\n" + "".join(f"{i},x{i}\n" for i in range(60))
ZIPS = "age,zip\n1,01234\n2,99999\n"


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        # separators
        (
            "age;bilirubin, mg/dl\n50;1,5\n60;2,5\n",
            {},
            {"age": [50, 60], "bilirubin, mg/dl": [1.5, 2.5]},
        ),
        ("a|b|c\n1|x|flu\n2|y|cold\n", {}, {"a": [1, 2], "b": ["x", "y"], "c": ["flu", "cold"]}),
        ("a b\n1 2\n3 4\n", {}, CLEAN),
        ("  a   b\n 1   2\n 3   4\n", {}, CLEAN),
        ('a,"b\nx"\n1,2\n3,4\n', {}, {"a": [1, 3], "b x": [2, 4]}),
        ("a,b\n1,x;y\n2,y;z\n", {}, {"a": [1, 2], "b": ["x;y", "y;z"]}),
        ("a;b\n1;x, y\n2;z\n", {}, {"a": [1, 2], "b": ["x, y", "z"]}),
        ('a,b\n1,"x;y\n;z"\n2,u\n', {}, {"a": [1, 2], "b": ["x;y\n;z", "u"]}),
        ("a:b\n1:2\n3:4\n", {"separator": ":"}, CLEAN),
        ("a\tb\n1\t2\n3\t4\n", {"separator": "tab"}, CLEAN),
        ("a b\n1 2\n3 4\n", {"separator": "space"}, CLEAN),
        ("kind\nx\ny\n", {"text": "kind"}, {"kind": ["x", "y"]}),
        ("kind\nx\ny\n", {"separator": ","}, {"kind": ["x", "y"]}),
        # lines
        ("\n \na,b\n1,2\n\n3,4\n\n", {}, CLEAN),
        ("a,b\r1,2\r3,4\r", {}, CLEAN),
        ("a,b,\n1,2,\n3,4,\n", {}, CLEAN),
        ("a,b\n1,2,\n3,4,\n", {}, CLEAN),
        ("a;b;;\n1;2;;\n3;4;;\n", {}, CLEAN),
        ("Export of ward A\na,b\n1,2\n3,4\n", {"skip_lines": 1}, CLEAN),
        ("Export, ward A\n\na;b\n1;2\n3;4\n", {"skip_lines": 2}, CLEAN),
        ("a,b\n", {}, {"a": [], "b": []}),
        ("1,2\n3,4\n", {"header": True}, {"1": [3], "2": [4]}),
        ("id,2019\n1,2\n3,4\n", {}, {"id": [1, 3], "2019": [2, 4]}),
        # numbers and gaps
        ("a;b\n1,5E+2;.5\n-,5;1.\n", {"decimal": ","}, None),
        ("a;b\n1,5E+2;2\n-,5;4\n", {}, {"a": [150, -0.5], "b": [2, 4]}),
        ('a,b\n"1,5",2\n"3",4\n', {"decimal": ","}, {"a": [1.5, 3], "b": [2, 4]}),
        (
            "a,b\n1,NA\n2,n/a\n3,1.5\n4,.\n5,NULL\n",
            {},
            {"a": [1, 2, 3, 4, 5], "b": [None, None, 1.5, None, None]},
        ),
        ("a,b\n1,NA\n2,DE\n3,\n", {}, {"a": [1, 2, 3], "b": ["NA", "DE", None]}),
        ("a,b\n1,?\n2,-\n", {}, {"a": [1, 2], "b": [None, None]}),
        (
            "a,b\n1,x\n-999,?\n3, -999\n",
            {"na_values": "-999, ?"},
            {"a": [1, None, 3], "b": ["x", None, None]},
        ),
        (
            "a,b\n1, x \n2,x\n3,TRUE\n4,true \n",
            {},
            {"a": [1, 2, 3, 4], "b": ["x", "x", "True", "True"]},
        ),
        # text
        (CODES, {"text": ["code"]}, {"age": [1, 2, 3], "code": ["250.010", "250.01", "V45.81"]}),
        (ZIPS, {"text": "zip"}, {"age": [1, 2], "zip": ["01234", "99999"]}),
        ("a,b\n1,true\n2,NA\n", {"text": "b"}, {"a": [1, 2], "b": ["true", "NA"]}),
        ("a,d\n1,2020-01-31\n", {"text": "d"}, {"a": [1], "d": ["2020-01-31"]}),
    ],
)
def test_what_is_read(text, options, expected, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    if expected is None:
        with pytest.raises(ValueError, match="column 'b'"):
            read_table(path, raw=True, **options)
        return
    X = read_table(path, raw=True, **options).X
    found = {name: [None if pd.isna(v) else v for v in X[name]] for name in X}
    assert found == expected


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        # separators
        ("a:b\n1:x\n2:y\n", {}, "one column, 'a:b', which contains text .* --separator"),
        ("notes here\nfoo bar\n", {}, "one column, .* --separator; .* --text"),
        ("a;b, c\n", {}, "the separator can be the comma or the semicolon; .* --separator"),
        ("a\n1,5\n2,5\n", {}, r"line 1 \('a'\) has 1 field, but line 2 has 2; .* --separator"),
        ("a,b\n1,2\n3,4,5\n", {}, "line 3 has 3 fields, but the table has 2 columns"),
        ("a b\n1 2\n3\n", {}, "line 3 has 1 field, but the table has 2 columns"),
        ("a,b\n" + "1,2\n" * 5 + "3\n", {}, "line 7 has 1 field, but the table has 2 columns"),
        ('a,b\n"x",2\n' + "1,2\n" * 5 + "3\n", {}, "line 8 has 1 field, but the table has 2"),
        # lines
        ("Export of ward A\na,b\n1,2\n3,4\n", {}, "'Export of ward A'.* --skip-lines 1;"),
        (
            "Export, ward A\n\na;b\n1;2\n3;4\n",
            {},
            "'Export, ward A'.* line 3 has 2; .* --skip-lines 2",
        ),
        ("Export,,\na,b,c\n1,2,3\n", {}, "column 2 has no name in line 1; .* --skip-lines"),
        ("a,b\nr1,1,2\nr2,3,4\n", {}, "2 fields, but line 2 has 3; .* row.names=FALSE"),
        (",a,b\n0,1,2\n1,3,4\n", {}, "column 1 has no name in line 1; .* index=False"),
        ("41,m\n57,f\n", {}, "line 1 looks like values .* --no-header, or --header"),
        ("a,b\n1,2,\n3,4,5\n1,2,\n1,2,\n", {}, "2 fields, but line 2 has 3"),
        ("a\n1\n\n3\n", {}, "line 3 is empty; in a file of one column it may be a gap"),
        ('a,b\n1,u\n2,"v\n3,w\n4,x"\n5,y\n', {}, "'b' contains a whole line in row 2"),
        ('a,b\n1,u\n2,"v\n3,w\n', {}, "line 3: a quotation mark is opened and not closed"),
        ("\n \n", {}, "the file is empty"),
        ("a,b\n", {"skip_lines": 3}, "nothing follows the first 3 lines"),
        # numbers
        ("a;b\n1.5;1,5\n2.5;2,5\n", {}, "'b' has decimal commas and column 'a' has decimal points"),
        ("a;b\n1.000,5;x\n2.000,5;y\n", {}, "'a' must contain numbers in one form, got '1.000,5'"),
        ('a,b\n"1,5",2\n', {}, "got '1,5' in row 1; name the decimal mark .* --decimal"),
        ("a,b\n9007199254740993,1\n,2\n", {}, "within .*, got 9007199254740993 in row 1"),
        ("a,b\n1,9007199254740993\n2,NA\n", {}, "within .*, got 9007199254740993 in row 1"),
        # codes and identifiers
        (
            CODES,
            {},
            r"'V45.81' in row 3; .* --text code .in Python text=\['code'\].*--na-values V45",
        ),
        (
            "a,b\n1,2\n3,4\n5,unknown\n",
            {},
            "got numbers and 'unknown' in row 3; .* --na-values unknown",
        ),
        (ZIPS, {}, "'zip' contains '01234', .* --text zip"),
        (ZIPS, {"target": "zip"}, "'zip' contains '01234', .* --text zip"),
        (CODES, {"target": "code"}, "'V45.81' in row 3; .* --text code"),
        (CODES, {"text": "cod"}, "no column cod; the columns are age, code"),
        (MANY, {}, "'n' looks like identifiers: 60 different texts in 60 rows; .* --text n"),
        (
            "a,n\n1,x\n2,y\n3,x\n4,x\n5,y\n",
            {"ids": "n"},
            "2 identifiers occur more than once, in 5",
        ),
        # options
        ("a,b\n1,2\n", {"separator": "ab"}, "the separator must be one character .* got 'ab'"),
        ("a,b\n1,2\n", {"decimal": ";"}, "the decimal mark must be '.' or ',', got ';'"),
        ("a,b\n1,2\n", {"encoding": "latin"}, None),
        ("a,b\n1,2\n", {"encoding": "no such"}, "the encoding must be one .* got 'no such'"),
        ("a,b\n1,2\n", {"encoding": "hex"}, "the encoding must be one .* got 'hex'"),
        ("a,b\n1,2\n", {"skip_lines": -1}, "skip_lines must be 0 or more, got -1"),
        ("a,b\n1,2\n", {"sheet": "x"}, "sheet applies to files with sheets only"),
    ],
)
def test_what_is_refused(text, options, message, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    if message is None:
        read_table(tmp_path / "a.csv", raw=True, **options)
        return
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / "a.csv", raw=True, **options)


def test_text_needs_a_run_that_preprocesses(tmp_path):
    (tmp_path / "a.csv").write_text(ZIPS)
    with pytest.raises(ValueError, match="'zip' is kept as text; text and gaps need a run that"):
        read_table(tmp_path / "a.csv", text="zip")


def test_identifiers_that_are_declared_to_be_text_are_a_feature(tmp_path):
    (tmp_path / "a.csv").write_text(MANY)
    assert read_table(tmp_path / "a.csv", raw=True, text="n").X["n"].nunique() == 60
    assert read_table(tmp_path / "a.csv", raw=True, ids="n").X.columns.tolist() == ["a"]


def test_codes_pass_through_every_reader(tmp_path):
    """A column that a site declares as text is text for every protocol, even if it has numbers."""
    from fedlib import FederatedSummary

    (tmp_path / "a.csv").write_text(CODES)
    X = read_table(tmp_path / "a.csv", raw=True, text="code").X
    summary = FederatedSummary(min_category_count=1).fit([X]).to_frame()
    assert summary.loc["code", ["content", "categories"]].tolist() == ["text", 3]


@pytest.mark.parametrize(
    ("start", "encoding"),
    [
        (b"", "utf-8"),
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
    ],
)
def test_byte_order_marks(start, encoding, tmp_path):
    (tmp_path / "a.csv").write_bytes(start + "größe;b\n1,5;ü\n2;v\n".encode(encoding))
    X = read_table(tmp_path / "a.csv", raw=True).X
    assert X.to_dict("list") == {"größe": [1.5, 2], "b": ["ü", "v"]}
    if start:
        with pytest.raises(ValueError, match="byte order mark of .*; leave --encoding out"):
            read_table(tmp_path / "a.csv", raw=True, encoding="latin-1")


def test_encodings_without_a_mark(tmp_path):
    (tmp_path / "a.csv").write_bytes("a,b\n1,2\n".encode("utf-16-le"))
    with pytest.raises(ValueError, match="bytes of zero, .* --encoding utf-16-le"):
        read_table(tmp_path / "a.csv")
    assert read_table(tmp_path / "a.csv", encoding="utf-16-le").X.to_dict("list") == {
        "a": [1],
        "b": [2],
    }
    (tmp_path / "a.csv").write_bytes(b"a,b\n" + b"1,x\n" * 100_000 + b"1,\xe9\n")
    with pytest.raises(ValueError, match=r"not UTF-8 \(byte 0xe9 in line 100002\)"):
        read_table(tmp_path / "a.csv", raw=True)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"PK\x03\x04", "a ZIP archive or a sheet"),
        (b"\x1f\x8b", "compressed; add .gz to its name"),
        (b"PAR1", "a Parquet file; name it .parquet"),
    ],
)
def test_files_with_a_wrong_name(start, message, tmp_path):
    (tmp_path / "a.csv").write_bytes(start + b"a,b\n1,2\n")
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / "a.csv")


def test_archives_that_unpack_to_far_more(tmp_path, monkeypatch):
    monkeypatch.setattr("fedlib.tables.streams.ALWAYS_UNPACKED", 2**20)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 2**19))
    with pytest.raises(ValueError, match=r"unpacks to more than 1,048,576 bytes, .*gunzip"):
        read_table(tmp_path / "a.csv.gz")


def test_lines_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("fedlib.tables.layouts.MAX_LINE", 1000)
    (tmp_path / "a.csv").write_text("a,b\n" + "1" * 1001)
    with pytest.raises(ValueError, match="line 2 has more than 1,000 characters"):
        read_table(tmp_path / "a.csv")


def test_what_is_no_file(tmp_path, monkeypatch):
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(ValueError, match="it is a folder; name a file"):
        read_table(tmp_path / "a.csv")
    with pytest.raises(ValueError, match="there is no such file"):
        read_table(tmp_path / "b.csv")

    def fail(*_, **__):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "c.csv").write_text("a\n1\n")
    monkeypatch.setattr("pathlib.Path.open", fail)
    with pytest.raises(ValueError, match="cannot be read: this user has no permission to read it"):
        read_table(tmp_path / "c.csv")


NAMES = ["age", "bilirubin, mg/dl", "kind", "a", "b", "a,b"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, []),
        ("age, kind", ["age", "kind"]),
        ('age,"bilirubin, mg/dl"', ["age", "bilirubin, mg/dl"]),
        ("age,bilirubin, mg/dl,kind", ["age", "bilirubin, mg/dl", "kind"]),
        (["age", "bilirubin, mg/dl"], ["age", "bilirubin, mg/dl"]),
        (("age,kind", "a"), ["age", "kind", "a"]),
        (["a,b"], ["a,b"]),
        ("x,bilirubin, mg/dl", ["x", "bilirubin, mg/dl"]),
    ],
)
def test_lists_of_columns(given, expected):
    assert named_columns(given, NAMES) == expected


def test_a_list_that_can_be_read_in_two_ways_is_refused():
    with pytest.raises(ValueError, match="can be read in 2 ways; put a name that contains a comma"):
        named_columns("age,a,b", NAMES)
    assert named_columns('age,"a,b"', NAMES) == ["age", "a,b"]


def test_options_as_one_object(tmp_path):
    (tmp_path / "a.csv").write_text("a;b;c\n1;x;5\n2;y;6\n")
    options = ReadOptions(columns="a", target="b", separator=";")
    table = read_table(tmp_path / "a.csv", options)
    assert (table.X["a"].tolist(), table.y.tolist()) == ([1, 2], ["x", "y"])
    changed = read_table(tmp_path / "a.csv", options, columns="a,c", target=None)
    assert changed.X.to_dict("list") == {"a": [1, 2], "c": [5, 6]}
    with pytest.raises(TypeError, match="separators"):
        read_table(tmp_path / "a.csv", separators=";")


TEXTS = st.text("ab,;|\t\"' .ü-5", min_size=1, max_size=6).map(str.strip).filter(bool)
# An apostrophe before a formula is no part of the text.
TEXTS = TEXTS.filter(lambda text: without_formula_guard(text) == text)
FLOATS = st.floats(-1e15, 1e15, allow_nan=False) | st.none()
INTEGERS = st.integers(-(2**53), 2**53)


@st.composite
def tables(draw):
    """Return a table of numbers with gaps, integers and texts, whose names may contain marks."""
    n = draw(st.integers(1, 8))
    names = draw(
        st.lists(TEXTS.filter(lambda t: not t[0].isdigit()), min_size=2, max_size=4, unique=True)
    )
    columns = {}
    for name in names:
        kind = draw(st.sampled_from([FLOATS, INTEGERS, TEXTS]))
        columns[name] = draw(st.lists(kind, min_size=n, max_size=n))
    return pd.DataFrame(columns)


@pytest.mark.parametrize("separator", [None, "tab"])
def test_a_first_row_of_gaps_is_kept(tmp_path, separator):
    (tmp_path / "a.tsv").write_text("\n\t\na\tb\n\t\n1\t2\n\t\n3\t4\n")
    X = read_table(tmp_path / "a.tsv", raw=True, separator=separator).X
    assert X["b"].isna().tolist() == [True, False, True, False]


@pytest.mark.parametrize("text", [";\t5,;\n,5\t5\n", ";,;\t5\n,5\t5\n"])
def test_a_separator_is_not_chosen_if_another_one_fits_all_lines(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match="the separator can be the tab or the comma; name it"):
        read_table(tmp_path / "a.csv", header=True)
    (tmp_path / "a.csv").write_text("a\tb\n1,5\t2,5\n")
    assert read_table(tmp_path / "a.csv", decimal=",").X["b"].tolist() == [2.5]


@given(
    tables(),
    st.sampled_from(",;\t|"),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.booleans(),
    st.sampled_from(["\n", "\r\n"]),
)
def test_there_and_back(tmp_path_factory, frame, separator, quoting, comma, end):
    """A table is the same after it was written and read, or the reader asks for its separator."""
    path = tmp_path_factory.mktemp("back") / "a.csv"
    decimal = "," if comma else "."
    frame.to_csv(
        path, index=False, sep=separator, quoting=quoting, decimal=decimal, lineterminator=end
    )
    texts = [name for name in frame if pd.api.types.is_string_dtype(frame[name])]
    texts = [name for name in texts if frame[name].notna().any()]
    options = ReadOptions(text=texts, header=True, decimal=decimal)
    try:
        X = read_table(path, options, raw=True).X
    except ValueError as error:
        assert "--separator" in str(error)  # noqa: PT017
        X = read_table(path, options, raw=True, separator=separator).X
    assert X.columns.tolist() == frame.columns.tolist()
    for name in frame:
        if name in texts:
            assert X[name].tolist() == frame[name].tolist()
        else:
            np.testing.assert_array_equal(
                X[name].to_numpy(np.float64), frame[name].to_numpy(np.float64, na_value=np.nan)
            )


@pytest.mark.parametrize("word", ["-999", "-999.0", "-9.99e2"])
def test_a_number_among_the_words_for_gaps_is_one_however_it_is_written(word, tmp_path):
    """Also in a file with decimal commas, and in a column that pandas reads as text."""
    path = tmp_path / "site.csv"
    for text in ("x,w\n1.5,a\n-999.0,b\n-999,a\n", "x;w\n1,5;a\n-999,0;b\n-999;a\n"):
        path.write_text(text)
        values = read_table(path, raw=True, na_values=word).X["x"]
        np.testing.assert_array_equal(values, [1.5, np.nan, np.nan])
    path.write_text("x;w\n1,5;a\n-999;b\n NA;a\n")
    values = read_table(path, raw=True, na_values=["-999,0"]).X["x"]
    np.testing.assert_array_equal(values, [1.5, np.nan, np.nan])
