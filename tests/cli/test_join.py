"""``fedlib join`` finds what is wrong with a site's data before it calls the server."""

from dataclasses import fields
from pathlib import Path

import pytest
from cli_helpers import fitted, invoke, refuse, rows, serving

from fedlib.cli.common import call_with
from fedlib.cli.inspect import inspect_command
from fedlib.cli.join import join
from fedlib.cli.predict import predict
from fedlib.sites import models
from fedlib.tables.streams import ReadOptions

FILES = {
    "good.csv": "id,a,b\n1,0.5,1\n2,1.5,2\n",
    "text.csv": "a,b\n1,2\n3,four\n",
    "bare.csv": "1,2\n3,4\n",
    "empty.csv": "",
    "title.csv": "Export\na,b\n1,2\n",
    "codes.csv": 'code,"age, years"\n250.01,1\nV45.81,2\n250.010,3\n',
    "colons.csv": "a:b\n1:2\n3:NA\n",
}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "text.csv",
            "text.csv: column 'b' must contain finite numbers, got 'four' in row 2",
        ),
        ("bare.csv", "the first row contains numbers instead of names; use --no-header"),
        ("empty.csv", "cannot be read"),
        ("good.csv --columns a,c", "there is no column c; the columns are id, a, b"),
        ("good.csv --separator ab", "the separator must be one character"),
        ("good.csv --decimal ;", "the decimal mark must be '.' or ','"),
        ("good.csv --encoding no", "the encoding must be one that Python has"),
        ("good.csv --sheet one", "sheet applies to files with sheets only"),
        ("title.csv", "leave it out with --skip-lines 1"),
        ("codes.csv --protocol pipeline/kmeans", "as text with --text code"),
        ("codes.csv --text code", "column 'code' is kept as text; text and gaps need a run that"),
        ("colons.csv", "one column, 'a:b', which contains text ('1:2')"),
        ("colons.csv --separator :", "column 'b' has no value in row 2"),
        ("good.csv --target kind", "there is no column kind"),
        ("good.csv --protocol xgboost", "xgboost needs a class or label per row: name the column"),
        ("good.csv --protocol vertical-dbscan --ids id", "key must be 16 to 64 secret bytes"),
        (
            "good.csv --protocol horizontal-dbscan --n-jobs 2",
            "a client of horizontal-dbscan has no option n_jobs",
        ),
    ],
)
def test_wrong_data_are_reported_before_any_call(options, message, site, monkeypatch):
    pytest.importorskip("httpx")
    for name, text in FILES.items():
        Path(name).write_text(text)
    monkeypatch.setenv("FEDLIB_TOKEN", "secret")
    monkeypatch.setattr("httpx.Client.request", None)
    code = 2 if "must be one" in message or "must be '" in message else 1
    assert message in refuse("join", "http://127.0.0.1:9", "--data", *options.split(), code=code)


def test_each_option_of_reading_is_one_of_the_commands():
    pytest.importorskip("httpx")
    from fedlib.cli.doctor import doctor

    names = {field.name for field in fields(ReadOptions)}
    for command in (join, doctor, inspect_command, predict):
        options = {option.name: option for option in command.params}
        assert names < options.keys()
        assert all(options[name].help for name in names)
    assert {option.name for option in join.params} - {option.name for option in doctor.params} == {
        "patience"
    }


def test_options_become_those_of_reading():
    given = dict.fromkeys((field.name for field in fields(ReadOptions)), None)
    given |= {"skip_lines": 1, "text": ("a", "b,c"), "na_values": ("x, y", "-9"), "other": 1}
    options = call_with(ReadOptions, given)
    assert given == {"other": 1}
    assert (options.skip_lines, options.text) == (1, ("a", "b,c"))
    assert options.na_values == ("x", "y", "-9")


def test_predict_reads_with_the_same_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models.save(fitted("kmeans"), "model.npz")
    rows()[0].to_csv("comma.csv", index=False)
    text = "title\n" + rows()[0].to_csv(index=False, sep=":", decimal=",")
    Path("colon.csv").write_text(text, encoding="utf-16")
    arguments = ["predict", "model.npz", "--labels-out", "labels.csv", "--data"]
    invoke(*arguments, "comma.csv")
    expected = Path("labels.csv").read_bytes()
    options = ["--skip-lines", "1", "--separator", ":", "--decimal", ",", "--na-values", "-999"]
    invoke(*arguments, "colon.csv", *options)
    assert Path("labels.csv").read_bytes() == expected


@pytest.mark.parametrize("protocol", ["summary", "pipeline/evaluation"])
def test_labels_of_a_protocol_that_has_none_are_refused_before_any_call(protocol, site):
    arguments = ["join", "http://127.0.0.1:1", "--data", "0.csv", "--token-file", "tokens/0.token"]
    text = f"{protocol} gives the rows no labels: join without --labels-out"
    assert text in refuse(*arguments, "--protocol", protocol, "--labels-out", "labels.csv")


def test_labels_are_refused_when_the_server_tells_its_protocol(command, site):
    _, url = serving(command, protocol=["serve", "summary"])
    arguments = [url, "--data", "0.csv", "--token-file", "tokens/0.token"]
    text = "summary gives the rows no labels: join without --labels-out"
    assert text in refuse("join", *arguments, "--labels-out", "labels.csv")
