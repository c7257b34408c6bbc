"""Files of SAS, SPSS and Stata: values, gaps, labels, dates, and what is refused.

Where haven and PSPP are installed, they write the files, because a reader that is tested with the
writer of its own library agrees with the errors of that library.
"""

import shutil
import subprocess
import sys
from datetime import date, datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedlib.tables import statistical_files
from fedlib.tables.statistical_files import SUFFIXES, read_statistical

pyreadstat = pytest.importorskip("pyreadstat")
pa = pytest.importorskip("pyarrow")

WRITERS = {
    ".sav": pyreadstat.write_sav,
    ".zsav": lambda frame, path, **more: pyreadstat.write_sav(frame, path, compress=True, **more),
    ".por": pyreadstat.write_por,
    ".xpt": pyreadstat.write_xport,
    ".dta": pyreadstat.write_dta,
}
HAVEN = """
library(haven)
rows <- function(first, second) {
  d <- data.frame(count = c(1L, NA, 2L, NA, 7L, 0L))
  d$code <- labelled(c(1, tagged_na(first), 2, NA, tagged_na(second), 3),
                     c(male = 1, female = 2, male = 3, refused = tagged_na(first)))
  d$day <- as.Date(c("2020-02-29", "1959-12-31", NA, "1900-01-01", "9999-12-31", "1582-10-15"))
  d$time <- as.POSIXct(c("2020-02-29 12:00:01.5", "1959-12-31 23:59:59", NA, "1900-01-01 00:00:00",
                         "2000-01-01 00:00:00", "1582-10-15 06:00:00"), tz = "UTC")
  d$wait <- hms::hms(seconds = c(1, 3 * 86400 + 5, NA, 4, -5, 6.25))
  d$word <- c("a", "", "b  ", "  c", "\\u00e9", NA)
  d
}
"""
DAYS = ["2020-02-29", "1959-12-31", None, "1900-01-01", "9999-12-31", "1582-10-15"]
TIMES = [
    datetime(2020, 2, 29, 12, 0, 1, 500_000),
    datetime(1959, 12, 31, 23, 59, 59),
    None,
    datetime(1900, 1, 1),
    datetime(2000, 1, 1),
    datetime(1582, 10, 15, 6),
]
WAITS = [1, 3 * 86_400 + 5, None, 4, -5, 6.25]


@cache
def has_haven():
    """Return whether R has the package haven."""
    program = shutil.which("Rscript")
    if program is None:
        return False
    command = [program, "-e", "quit(status = !requireNamespace('haven', quietly = TRUE))"]
    return subprocess.run(command, capture_output=True).returncode == 0


def by_haven(folder, script):
    """Run a script of R with the table ``rows`` in a folder."""
    if not has_haven():
        pytest.skip("R with the package haven is not installed")
    Path(folder, "write.R").write_text(HAVEN + script, encoding="utf-8")
    subprocess.run(["Rscript", "write.R"], cwd=folder, check=True, capture_output=True)


def by_pspp(folder, script):
    """Run commands of SPSS in a folder."""
    if shutil.which("pspp") is None:
        pytest.skip("PSPP is not installed")
    Path(folder, "write.sps").write_text(script, encoding="utf-8")
    subprocess.run(["pspp", "-O", "format=txt", "write.sps"], cwd=folder, check=True)


def write(path, columns, **more):
    """Write columns by pyreadstat, and return the path."""
    WRITERS[path.suffix](pd.DataFrame(columns), path, **more)
    return path


def values(table, name):
    """Return the values of a column as Python's objects."""
    return table.columns[name].to_pylist()


def seconds(table, name):
    """Return the durations of a column in seconds."""
    assert table.columns[name].type == pa.duration("us")
    return [one and one.total_seconds() for one in values(table, name)]


def days(*texts):
    """Return days from their texts."""
    return [text and date.fromisoformat(text) for text in texts]


# Files that other programs have written.


@pytest.mark.parametrize("version", [8, 10, 12, 13, 14, 15])
def test_versions_of_stata_have_the_same_values(version, tmp_path):
    by_haven(tmp_path, f"write_dta(rows('a', 'z'), 'site.dta', version = {version})")
    table = read_statistical(tmp_path / "site.dta")
    assert table.columns["count"].type == pa.int64()
    assert values(table, "count") == [1, None, 2, None, 7, 0]
    assert values(table, "code") == [1.0, None, 2.0, None, None, 3.0]
    assert table.labels == {"code": {"1": "male", "2": "female", "3": "male"}}
    assert table.missing == {"code": {".a": "refused", ".z": ""}}
    assert values(table, "day") == days(*DAYS)
    assert values(table, "time") == TIMES
    assert values(table, "wait") == WAITS  # haven gives them no format in Stata
    words = values(table, "word")
    assert [*words[:4], words[5]] == ["a", None, "b", "  c", None]
    if version >= 14:  # before, Stata had no Unicode, and haven writes the bytes of UTF-8
        assert words[4] == "é"
    assert table.unreadable == {}


@pytest.mark.parametrize(
    "command", ["write_sas(d, 'site.sas7bdat')", "write_xpt(d, 'site.xpt', version = 5)"]
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_files_of_sas_have_special_missing_values_dates_and_durations(command, tmp_path):
    by_haven(tmp_path, f"d <- rows('A', '_'); {command}")
    name = "site.xpt" if "xpt" in command else "site.sas7bdat"
    table = read_statistical(tmp_path / name)
    assert values(table, "count") == [1.0, None, 2.0, None, 7.0, 0.0]
    assert values(table, "code") == [1.0, None, 2.0, None, None, 3.0]
    assert table.labels == {}
    # pyreadstat does not tell the letters of transport files.
    assert table.missing == ({} if "xpt" in name else {"code": {".A": "", "._": ""}})
    assert values(table, "day") == days(*DAYS)
    assert values(table, "time") == TIMES
    assert seconds(table, "wait") == WAITS
    assert values(table, "word") == ["a", None, "b", "  c", "é", None]


def test_version_8_of_transport_files_has_long_names(tmp_path):
    script = "d <- rows('A', 'B'); d$a_name_of_more_than_8_letters <- 1:6"
    by_haven(tmp_path, f"{script}; write_xpt(d, 'site.xpt', version = 8)")
    table = read_statistical(tmp_path / "site.xpt")
    assert values(table, "a_name_of_more_than_8_letters") == [1, 2, 3, 4, 5, 6]
    assert seconds(table, "wait") == WAITS


@pytest.mark.parametrize("suffix", [".sav", ".zsav"])
def test_declared_missing_values_of_spss_are_gaps(suffix, tmp_path):
    by_haven(
        tmp_path,
        "d <- rows('A', 'B'); d$code <- labelled_spss(c(1, 9, 2, NA, 99, 3),"
        " c(male = 1, female = 2, half = 2.5, refused = 9, lost = 99),"
        " na_values = 9, na_range = c(90, Inf))\n"
        "d$word <- labelled_spss(c('m', 'zz', 'f', NA, '', 'm'),"
        " c(Male = 'm', Unknown = 'zz'), na_values = 'zz')\n"
        f"write_sav(d, 'site{suffix}', compress = '{'zsav' if 'z' in suffix else 'byte'}')",
    )
    table = read_statistical(tmp_path / f"site{suffix}")
    assert values(table, "code") == [1.0, None, 2.0, None, None, 3.0]
    assert values(table, "word") == ["m", None, "f", None, None, "m"]
    assert table.labels == {
        "code": {"1": "male", "2": "female", "2.5": "half"},
        "word": {"m": "Male"},
    }
    assert table.missing == {
        "code": {"90 THRU HIGHEST": "", "9": "refused", "99": "lost"},
        "word": {"zz": "Unknown"},
    }
    assert values(table, "day") == days(*DAYS)
    assert values(table, "time") == TIMES
    assert seconds(table, "wait") == WAITS


PSPP = """
DATA LIST LIST NOTABLE /id (F4.0) moyr (MOYR8) qyr (QYR8) wkyr (WKYR10) wkday (WKDAY9)
  month (MONTH9) time (TIME11.2) dtime (DTIME20.2) day (DATE11) moment (DATETIME23.2)
  price (DOLLAR10.2) share (PCT8.1) amount (COMMA10.2) word (A20).
BEGIN DATA
1 "OCT 1990" "3 Q 1990" "43 WK 1990" "Monday" "March" "30:15:10.5" "3 04:05:06" "29-FEB-2020" \
"29-FEB-2020 12:30:15.1" 12.5 50 1000.25 "ab"
2 "JAN 2000" "1 Q 2000" "1 WK 2000" "Sunday" "JAN" "0:00:01" "-1 00:00:01" "15-OCT-1582" \
"01-JAN-1900 00:00:00" . 0 9 "refused"
3 . . . . . . . . . . . 4 ""
END DATA.
COMPUTE minutes=90.5.
COMPUTE noon=moment.
FORMATS minutes (MTIME9) id (N4) noon (DATE11).
MISSING VALUES id (3) amount (LO THRU 5, 9) word ("refused").
VALUE LABELS amount 9 "nine" 1000.25 "thousand" /word "refused" "R" "ab" "AB".
SAVE OUTFILE='site.sav'.
SAVE OUTFILE='site.zsav' /ZCOMPRESSED.
EXPORT OUTFILE='site.por'.
"""


@pytest.mark.parametrize("suffix", [".sav", ".zsav", ".por"])
def test_formats_of_spss_say_what_numbers_are(suffix, tmp_path):
    by_pspp(tmp_path, PSPP)
    table = read_statistical(tmp_path / f"site{suffix}")
    case = str.upper if suffix == ".por" else str
    assert values(table, case("moyr")) == days("1990-10-01", "2000-01-01", None)
    assert values(table, case("qyr")) == days("1990-07-01", "2000-01-01", None)
    assert values(table, case("wkyr")) == days("1990-10-22", "2000-01-01", None)
    assert values(table, case("day")) == days("2020-02-29", "1582-10-15", None)
    moments = [datetime(2020, 2, 29, 12, 30, 15, 100_000), datetime(1900, 1, 1), None]
    assert values(table, case("moment")) == moments
    assert seconds(table, case("time")) == [30 * 3600 + 15 * 60 + 10.5, 1, None]
    three = 3 * 86_400 + 4 * 3600 + 5 * 60 + 6
    assert seconds(table, case("dtime")) == [three, -86_401, None]
    assert seconds(table, case("minutes")) == [90.5] * 3
    assert values(table, case("wkday")) == [2, 1, None]
    assert values(table, case("month")) == [3, 1, None]
    assert values(table, case("price")) == [12.5, None, None]
    assert values(table, case("share")) == [50, 0, None]
    assert values(table, case("id")) == [1, 2, None]
    assert values(table, case("amount")) == [1000.25, None, None]
    assert values(table, case("word")) == ["ab", None, None]
    # A day with a time of day is no date.
    assert list(table.unreadable) == [case("noon")]
    assert "DATE11" in table.unreadable[case("noon")]
    assert "in row 1 has a fraction; remove" in table.unreadable[case("noon")]
    assert values(table, case("noon")) == [None] * 3
    if suffix != ".por":  # of which pyreadstat does not tell them
        assert table.labels == {"amount": {"1000.25": "thousand"}, "word": {"ab": "AB"}}
        assert table.missing == {
            "id": {"3": ""},
            "amount": {"LOWEST THRU 5": "", "9": "nine"},
            "word": {"refused": "R"},
        }


# Gaps and labels.


def test_an_integer_column_keeps_gaps_after_user_defined_missing_values(tmp_path):
    """In a data frame of pyreadstat 1.3.7, such gaps are numbers from elsewhere in the memory."""
    cells = pd.Series([1, "a", 3, None, 5] * 400, dtype=object)
    path = write(tmp_path / "a.dta", {"n": cells}, missing_user_values={"n": ["a"]})
    table = read_statistical(path)
    assert table.columns["n"].type == pa.int64()
    assert values(table, "n") == [1, None, 3, None, 5] * 400
    assert table.missing == {"n": {".a": ""}}


def test_labels_of_missing_codes_alone_do_not_change_numbers(tmp_path):
    cells = pd.Series([70, "a", 81], dtype=object)
    more = {"variable_value_labels": {"n": {"a": "refused"}}, "missing_user_values": {"n": ["a"]}}
    table = read_statistical(write(tmp_path / "a.dta", {"n": cells}, **more))
    assert values(table, "n") == [70, None, 81]
    assert (table.labels, table.missing) == ({}, {"n": {".a": "refused"}})


def test_labels_have_the_order_of_their_codes(tmp_path):
    labels = {"n": {10: "many", 2: "few", -1: "debt"}}
    for suffix in (".sav", ".dta"):
        path = write(tmp_path / f"a{suffix}", {"n": [2, 10, 5]}, variable_value_labels=labels)
        found = read_statistical(path).labels["n"]
        assert list(found.items()) == [("-1", "debt"), ("2", "few"), ("10", "many")]


def test_the_label_of_an_empty_text_is_that_of_a_gap(tmp_path):
    labels = {"word": {"": "no answer", "y": "yes"}}
    path = write(tmp_path / "a.sav", {"word": ["y", ""]}, variable_value_labels=labels)
    table = read_statistical(path)
    assert values(table, "word") == ["y", None]
    assert (table.labels, table.missing) == ({"word": {"y": "yes"}}, {"word": {"": "no answer"}})


def test_a_range_of_missing_values_includes_its_ends(tmp_path):
    ranges = {"n": [{"lo": 7, "hi": 9}, -1]}
    path = write(tmp_path / "a.sav", {"n": [6.0, 7, 8.5, 9, 9.5, -1]}, missing_ranges=ranges)
    table = read_statistical(path)
    assert values(table, "n") == [6, None, None, None, 9.5, None]
    assert table.missing == {"n": {"7 THRU 9": "", "-1": ""}}


# Numbers and texts.


@pytest.mark.parametrize("version", [5, 8])
def test_zeros_in_transport_files_are_zero(version, tmp_path):
    numbers = [0.0, 1.0, -0.5, np.nan, 1e-70]
    path = write(tmp_path / "a.xpt", {"n": numbers}, file_format_version=version)
    found = values(read_statistical(path), "n")
    assert found == [0.0, 1.0, -0.5, None, pytest.approx(1e-70)]
    assert found[0] == 0.0


@pytest.mark.parametrize("version", [5, 8])
def test_transport_files_keep_last_rows_without_text(version, tmp_path):
    """Rows of at most 80 bytes look like the blanks that fill the last record."""
    columns = {"word": ["a", "", "b", "", ""], "n": [1.0, 2, 3, 4, 5]}
    table = read_statistical(write(tmp_path / "a.xpt", columns, file_format_version=version))
    assert values(table, "word") == ["a", None, "b", None, None]
    assert values(table, "n") == [1, 2, 3, 4, 5]


def test_integers_beyond_the_exact_floats_stay_as_the_file_has_them(tmp_path):
    """SPSS, SAS and Stata store them as 64-bit floats, which are exact for these."""
    numbers = [2.0**53 + 2, 2.0**60, -(2.0**53) - 4]
    for suffix in (".sav", ".por", ".dta"):
        name = "N" if suffix == ".por" else "n"
        table = read_statistical(write(tmp_path / f"a{suffix}", {name: numbers}))
        assert table.columns[name].type == pa.float64()
        assert [int(one) for one in values(table, name)] == [2**53 + 2, 2**60, -(2**53) - 4]


def test_types_of_stata_decide_and_not_the_values(tmp_path):
    columns = {
        "as_byte": np.array([1, 2], np.int8),
        "as_long": np.array([2**31 - 101, -5], np.int32),
        "as_float": np.array([0.1, 2], np.float32),
        "as_double": np.array([1, 2], np.float64),
    }
    # pandas writes 4-byte numbers as such, and pyreadstat as 8-byte ones.
    pd.DataFrame(columns).to_stata(tmp_path / "a.dta", write_index=False)
    table = read_statistical(tmp_path / "a.dta")
    types = {name: column.type for name, column in table.columns.items()}
    assert types == {
        "as_byte": pa.int64(),
        "as_long": pa.int64(),
        "as_float": pa.float32(),
        "as_double": pa.float64(),
    }
    assert values(table, "as_long") == [2**31 - 101, -5]
    assert values(table, "as_float") == [float(np.float32(0.1)), 2]


def test_long_texts_are_complete(tmp_path):
    texts = ["é" * 3000, "", " x "]  # strL in Stata, several segments in SPSS
    for suffix in (".dta", ".sav"):
        table = read_statistical(write(tmp_path / f"a{suffix}", {"word": texts}))
        assert values(table, "word") == ["é" * 3000, None, " x"]


def test_numbers_with_other_formats_are_numbers(tmp_path):
    formats = {"a": "DOLLAR10.2", "b": "PCT8.1", "c": "COMMA9", "d": "E12.3", "e": "N5"}
    columns = {name: [1.0, 2.5] for name in formats}
    table = read_statistical(write(tmp_path / "a.sav", columns, variable_format=formats))
    assert all(values(table, name) == [1, 2.5] for name in formats)
    assert table.unreadable == {}


# Dates.

DAY = 21_974  # 29 February 2020 in SAS and Stata


@pytest.mark.parametrize(
    "form",
    [
        "DATE9",
        "YEAR4",
        "MMYY7",
        "MONYY7",
        "DDMMYYN8",
        "YYMMDDN8",
        "YYMMDD10",
        "WEEKDATE29",
        "WORDDATX18",
        "E8601DA10",
        "B8601DA8",
        "JULIAN7",
        "QTR1",
        "YYQ6",
        "NLDATE20",
    ],
)
def test_formats_of_sas_that_show_days_in_part_are_days(form, tmp_path):
    path = write(tmp_path / "a.xpt", {"d": [float(DAY), np.nan]}, variable_format={"d": form})
    table = read_statistical(path)
    assert table.columns["d"].type == pa.date32()
    assert values(table, "d") == days("2020-02-29", None)


@pytest.mark.parametrize(
    "form",
    [
        "DATETIME20",
        "E8601DT19",
        "B8601DT15",
        "DATEAMPM22",
        "MDYAMPM25",
        "DTDATE9",
        "DTMONYY7",
        "E8601DN10",
    ],
)
def test_formats_of_sas_with_seconds_are_times(form, tmp_path):
    numbers = [DAY * 86_400 + 1.25, -1.0]
    path = write(tmp_path / "a.xpt", {"d": numbers}, variable_format={"d": form})
    times = [datetime(2020, 2, 29, 0, 0, 1, 250_000), datetime(1959, 12, 31, 23, 59, 59)]
    assert values(read_statistical(path), "d") == times


@pytest.mark.parametrize("form", ["TIME8", "HHMM5", "E8601TM8", "TOD8", "MMSS5"])
def test_formats_of_sas_for_times_of_day_are_durations(form, tmp_path):
    path = write(tmp_path / "a.xpt", {"d": [100_000.5]}, variable_format={"d": form})
    assert seconds(read_statistical(path), "d") == [100_000.5]


@pytest.mark.parametrize("form", ["BEST12", "F8.2", "DOLLAR9.2", "SEXF", "HEX8", "DATES", "$CHAR8"])
def test_other_formats_of_sas_are_numbers(form, tmp_path):
    path = write(tmp_path / "a.xpt", {"d": [1.5]}, variable_format={"d": form})
    assert values(read_statistical(path), "d") == [1.5]


@pytest.mark.parametrize(
    ("form", "number", "expected"),
    [
        ("%td", DAY, date(2020, 2, 29)),
        ("%-td", DAY, date(2020, 2, 29)),
        ("%dD_m_Y", DAY, date(2020, 2, 29)),
        ("%tdCCYY-NN-DD", -1, date(1959, 12, 31)),
        ("%tw", 0, date(1960, 1, 1)),
        ("%tw", 52 * 60 + 51, date(2020, 12, 23)),  # the last week has 8 or 9 days
        ("%tw", -1, date(1959, 12, 24)),
        ("%tm", 721, date(2020, 2, 1)),
        ("%tm", -1, date(1959, 12, 1)),
        ("%tq", 243, date(2020, 10, 1)),
        ("%th", 121, date(2020, 7, 1)),
        ("%th", -1, date(1959, 7, 1)),
        ("%ty", 2020, 2020),
        ("%tg", 5, 5),
        ("%8.0g", 5, 5),
    ],
)
def test_dates_of_stata_are_those_of_their_units(form, number, expected, tmp_path):
    columns = {"d": np.array([number], np.int32)}
    table = read_statistical(write(tmp_path / "a.dta", columns, variable_format={"d": form}))
    assert values(table, "d") == [expected]


@pytest.mark.parametrize("form", ["%tc", "%tcHH:MM", "%-tcNN/DD/CCYY"])
def test_milliseconds_of_stata_are_times(form, tmp_path):
    columns = {"d": [DAY * 86_400_000 + 1250.5, -1.0]}
    table = read_statistical(write(tmp_path / "a.dta", columns, variable_format={"d": form}))
    assert values(table, "d") == [
        datetime(2020, 2, 29, 0, 0, 1, 250_500),
        datetime(1959, 12, 31, 23, 59, 59, 999_000),
    ]


@pytest.mark.parametrize(
    ("form", "number", "reason"),
    [
        ("%tC", 1e12, "leap seconds; convert its times by cofC() to %tc"),
        ("%tbnyse", 5.0, "business calendar; convert them by dofb() to %td"),
        ("%td", 3.5, "3.5 in row 2 has a fraction; remove the fraction, or give"),
        ("%tm", 3.5, "3.5 in row 2 has a fraction"),
        ("%td", 1e7, "10000000.0 in row 2 is out of the years 1 to 9999; correct it"),
        ("%td", -1e6, "is out of the years 1 to 9999"),
        ("%tm", 1e6, "is out of the years 1 to 9999"),
        ("%tw", -2e5, "is out of the years 1 to 9999"),
        ("%tc", 1e300, "is out of the years 1 to 9999"),
        ("%tc", -1e14, "is out of the years 1 to 9999"),
    ],
)
def test_dates_without_an_exact_meaning_make_the_column_unreadable(form, number, reason, tmp_path):
    columns = {"d": [0.0, number], "n": [1.0, 2.0]}
    table = read_statistical(write(tmp_path / "a.dta", columns, variable_format={"d": form}))
    assert list(table.unreadable) == ["d"]
    assert form in table.unreadable["d"]
    assert reason in table.unreadable["d"]
    assert table.unreadable["d"].endswith("or leave the column out")
    assert values(table, "d") == [None, None]
    assert values(table, "n") == [1, 2]


def test_a_gap_is_no_date_whatever_its_number(tmp_path):
    columns = {"d": [86_400.0, 0.5]}
    more = {"variable_format": {"d": "DATE11"}, "missing_ranges": {"d": [0.5]}}
    table = read_statistical(write(tmp_path / "a.sav", columns, **more))
    assert values(table, "d") == days("1582-10-15", None)
    assert table.missing == {"d": {"0.5": ""}}


# Files.


def test_blocks_of_rows_make_the_same_table(tmp_path, monkeypatch):
    cells = pd.Series([1, "b", None, 4] * 5, dtype=object)
    columns = {"n": cells, "d": [float(i) for i in range(20)], "word": ["x", "", "é", "y"] * 5}
    more = {"missing_user_values": {"n": ["b"]}, "variable_format": {"d": "%td"}}
    path = write(tmp_path / "a.dta", columns, **more)
    others = {name: columns[name] for name in ("d", "word")}
    paths = [
        path,
        *(write(tmp_path / f"a{suffix}", others) for suffix in (".sav", ".zsav", ".xpt")),
    ]
    whole = [read_statistical(one) for one in paths]
    for n_values in (1, 9, 15, 30, 60):
        monkeypatch.setattr(statistical_files, "N_VALUES", n_values)
        for one, table in zip(paths, whole, strict=True):
            parts = read_statistical(one)
            assert parts.missing == table.missing
            for name in table.columns:
                assert values(parts, name) == values(table, name)


def test_a_wrong_date_in_a_later_block_has_the_row_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(statistical_files, "N_VALUES", 2)
    columns = {"d": [1.0, 2, 3, 4, 5.5, 6]}
    table = read_statistical(write(tmp_path / "a.dta", columns, variable_format={"d": "%td"}))
    assert "5.5 in row 5 has a fraction" in table.unreadable["d"]
    assert values(table, "d") == [None] * 6


@pytest.mark.parametrize("suffix", [".sav", ".xpt", ".dta"])
def test_a_table_without_rows_has_its_columns(suffix, tmp_path):
    columns = {"n": np.array([], np.float64)}
    table = read_statistical(write(tmp_path / f"a{suffix}", columns))
    assert table.columns["n"].type == pa.float64()
    assert len(table.columns["n"]) == 0


@pytest.mark.parametrize(("version", "word"), [(5, b"MEMBER  "), (8, b"MEMBV8  ")])
def test_a_transport_file_with_two_members_is_refused(version, word, tmp_path):
    path = write(tmp_path / "a.xpt", {"n": [1.0, 2.0]}, file_format_version=version)
    content = path.read_bytes()
    start = content.index(b"HEADER RECORD*******" + word)
    path.write_bytes(content + content[start:])
    with pytest.raises(ValueError, match=r"must have one member \(data set\), got 2; write each"):
        read_statistical(path)


def test_a_transport_file_without_its_end_is_refused(tmp_path):
    path = write(tmp_path / "a.xpt", {"n": [float(i) for i in range(100)]})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="its end is missing; copy it again"):
        read_statistical(path)


@pytest.mark.parametrize("suffix", [".xpt", ".sav", ".dta"])
def test_text_in_another_encoding_is_refused_or_read_by_its_name(suffix, tmp_path):
    path = write(tmp_path / f"a{suffix}", {"word": ["naïve", "b"]})
    path.write_bytes(path.read_bytes().replace("ï".encode(), b"\xef "))
    with pytest.raises(ValueError, match="name its encoding, such as cp1252") as caught:
        read_statistical(path)
    assert type(caught.value) is ValueError
    for encoding in ("latin-1", "cp1252"):
        assert values(read_statistical(path, encoding), "word") == ["naï ve", "b"]


@pytest.mark.parametrize("suffix", [".sav", ".zsav"])
def test_a_file_that_ends_the_process_of_its_reader_is_refused(suffix, tmp_path, monkeypatch):
    path = write(tmp_path / f"a{suffix}", {"word": ["a", "b"]})
    assert values(read_statistical(path), "word") == ["a", "b"]
    monkeypatch.setattr(statistical_files, "PROBE", "import os; os.abort()")
    with pytest.raises(ValueError, match=r"cannot be read \(status .*; name its encoding, such as"):
        read_statistical(path)


def test_a_portable_file_has_no_encoding(tmp_path):
    path = write(tmp_path / "a.por", {"N": [1.0]})
    with pytest.raises(ValueError, match="a .por file has no encoding; leave it out"):
        read_statistical(path, "cp1252")


def test_a_table_too_large_for_its_file_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "a.sav", {"n": np.zeros(100)})
    monkeypatch.setattr("fedlib.tables.streams.ALWAYS_UNPACKED", 0)
    monkeypatch.setattr("fedlib.tables.streams.MAX_RATIO", 1)
    monkeypatch.setattr("fedlib.tables.streams.BYTES_PER_VALUE", 10**6)
    with pytest.raises(ValueError, match="100 rows and 1 columns"):
        read_statistical(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_another_file_with_this_suffix_is_refused(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"age,sex\n41,1\n" * 100)
    with pytest.raises(Exception, match="Invalid file|not supported|read from file|end is missing"):
        read_statistical(path)


def test_a_file_that_does_not_exist_has_its_own_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_statistical(tmp_path / "a.sav")


@pytest.mark.parametrize("package", ["pyreadstat", "pyarrow"])
def test_a_missing_package_is_named_with_the_remedy(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ValueError, match=rf'{package} is missing: pip install "fedlib-study\[stat\]"'
    ):
        read_statistical(tmp_path / "a.sav")


def test_a_duration_of_days_is_no_time_of_day(tmp_path):
    formats = {"a": "TIME11.2", "b": "DTIME20.2", "c": "MTIME9"}
    columns = {name: [100 * 3600.0, np.nan] for name in formats}
    table = read_statistical(write(tmp_path / "a.sav", columns, variable_format=formats))
    for name in formats:
        assert values(table, name) == [timedelta(days=4, hours=4), None]
