"""``fedlib join`` finds what is wrong with a site's data before it calls the server."""

from pathlib import Path

import pytest
from cli_helpers import refuse

FILES = {
    "good.csv": "id,a,b\n1,0.5,1\n2,1.5,2\n",
    "text.csv": "a,b\n1,2\n3,four\n",
    "bare.csv": "1,2\n3,4\n",
    "empty.csv": "",
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
    assert message in refuse("join", "http://127.0.0.1:9", "--data", *options.split())
