"""Rows of the complete run: which a page measures again, and what it does when one differs."""

import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

KEYS = [
    {"method": method, "secure": secure, "epsilon": epsilon}
    for method in ("cells", "k-means")
    for secure in (False, True)
    for epsilon in (0.1, 3.0, np.inf)
]
DATA = SimpleNamespace(source="real", sha256="1" * 64, X=np.zeros((1, 1)))


@pytest.fixture
def kept(modules, monkeypatch, tmp_path):
    """Return the module, with folders of its own, in a build of the book."""
    module = modules("study.shared.kept")
    for name in ("RESULTS", "KEPT"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setattr(module.results, name, folder)
    monkeypatch.setattr(module, "spent", Counter())
    monkeypatch.delitem(sys.modules, "xgboost", raising=False)  # another test may have imported it
    monkeypatch.setenv("FEDLIB_BUILD", "1")
    monkeypatch.delenv("FEDLIB_COMPLETE", raising=False)
    return module


@pytest.fixture
def measure():
    """Return a function that measures and records its keys."""

    def measure(method, secure, epsilon):
        measure.keys.append((method, secure, epsilon))
        return {"score": len(method) / 3 + secure + measure.error, "note": f"at {epsilon}"}

    measure.keys, measure.error = [], 0.0
    return measure


@pytest.fixture
def complete(kept, measure, monkeypatch):
    """Return the frame of a complete run, which is kept."""
    with monkeypatch.context() as patch:
        patch.setenv("FEDLIB_COMPLETE", "1")
        frame = kept.kept("a.csv", KEYS, measure, DATA)
    change(kept, lambda frame: frame)
    measure.keys.clear()
    return frame


def change(kept, edit):
    """Keep the rows of the last run, edited."""
    frame = pd.read_csv(kept.results.RESULTS / "a.csv")
    edit(frame).to_csv(kept.results.KEPT / "a.csv", index=False)


def test_a_build_shows_the_kept_rows_and_measures_some_again(kept, complete, measure, capsys):
    shown = kept.kept("a.csv", KEYS, measure, DATA)
    pd.testing.assert_frame_equal(shown, complete)
    assert shown["epsilon"].tolist() == [key["epsilon"] for key in KEYS]
    assert shown["secure"].dtype == bool
    assert len(measure.keys) == len(set(measure.keys)) == len(KEYS)  # all are cheap here
    assert "12 of the 12 rows" in capsys.readouterr().out
    assert (kept.results.RESULTS / "a.csv").exists()


def test_rows_that_take_long_are_not_measured_and_the_others_take_turns(
    kept, complete, measure, monkeypatch
):
    change(kept, lambda frame: frame.assign(seconds=[6.0, *[3.0] * 11]))
    chosen = []
    for code in ("one", "two", "three"):
        monkeypatch.setattr(kept, "code_digest", lambda code=code: code)
        measure.keys.clear()
        kept.spent.clear()
        kept.kept("a.csv", KEYS, measure, DATA)
        assert len(measure.keys) == 2  # together at most 8 s
        assert tuple(KEYS[0].values()) not in measure.keys
        chosen.append(tuple(measure.keys))
    assert len(set(chosen)) == 3
    measure.keys.clear()
    kept.kept("a.csv", KEYS, measure, DATA)  # of the same page
    assert len(measure.keys) == 1


def test_another_number_or_text_fails(kept, complete, measure):
    measure.error = 1e-15
    with pytest.raises(AssertionError, match=r"a\.csv, .*: score is .*, kept "):
        kept.kept("a.csv", KEYS, measure, DATA)
    measure.error = 0.0
    change(kept, lambda frame: frame.assign(note="at 4"))
    with pytest.raises(AssertionError, match="note is 'at .*', kept 'at 4'"):
        kept.kept("a.csv", KEYS, measure, DATA)


def test_another_processor_must_agree_in_the_printed_digits(kept, complete, measure):
    change(kept, lambda frame: frame.assign(machine="another one"))
    measure.error = 4e-5
    kept.kept("a.csv", KEYS, measure, DATA)
    measure.error = 6e-5
    with pytest.raises(AssertionError, match="score is"):
        kept.kept("a.csv", KEYS, measure, DATA)
    kept.kept("a.csv", KEYS, measure, DATA, digits=3)


@pytest.mark.parametrize(
    "other",
    [SimpleNamespace(source="stand-in"), SimpleNamespace(source="real", sha256="2" * 64)],
)
def test_other_data_are_not_compared(kept, complete, measure, capsys, other):
    measure.error = 1.0
    pd.testing.assert_frame_equal(kept.kept("a.csv", KEYS, measure, other), complete)
    assert measure.keys == []
    assert "not verified here: the data" in capsys.readouterr().out


def test_rows_are_compared_with_their_release_of_xgboost(
    kept, complete, measure, monkeypatch, capsys
):
    for version, compared in (
        ("3.2.0", True),
        ("3.2.1", True),
        ("3.20.0", False),
        ("3.4.1", False),
    ):
        monkeypatch.setitem(sys.modules, "xgboost", SimpleNamespace(__version__=version))
        measure.keys.clear()
        kept.kept("a.csv", KEYS, measure, DATA)
        assert bool(measure.keys) == compared
        text = f"not verified here: the complete run had XGBoost 3.2, not {version}"
        assert (text in capsys.readouterr().out) != compared


def test_rows_that_are_all_long_are_not_measured(kept, complete, measure, capsys):
    change(kept, lambda frame: frame.assign(seconds=5.0))
    kept.kept("a.csv", KEYS, measure, DATA)
    assert measure.keys == []
    assert "not verified here: no row takes less than 5 s" in capsys.readouterr().out


def test_a_key_without_a_row_fails_in_a_build_and_is_measured_for_a_reader(
    kept, complete, measure, monkeypatch, capsys
):
    keys = [*KEYS, {"method": "mixture", "secure": False, "epsilon": 0.1}]
    with pytest.raises(AssertionError, match="has no rows of .*mixture"):
        kept.kept("a.csv", keys, measure, DATA)
    monkeypatch.delenv("FEDLIB_BUILD")
    assert len(kept.kept("a.csv", keys, measure, DATA)) == 13
    assert measure.keys == [("mixture", False, 0.1)]
    assert "13 rows, of which 1 measured by this page" in capsys.readouterr().out


def test_a_reader_gets_kept_rows_without_a_comparison(kept, complete, measure, monkeypatch):
    """Another version of a package may give other digits."""
    monkeypatch.delenv("FEDLIB_BUILD")
    measure.error = 1.0
    pd.testing.assert_frame_equal(kept.kept("a.csv", KEYS, measure, DATA), complete)
    assert measure.keys == []


@pytest.mark.parametrize("file", ["a.csv", "of-no-build.csv"])
def test_a_table_of_the_reader_is_measured(kept, complete, measure, monkeypatch, capsys, file):
    """Also if its file has the name of a set whose rows were kept."""
    monkeypatch.delenv("FEDLIB_BUILD")
    own = SimpleNamespace(source="real", sha256="2" * 64)
    measure.error = 1.0
    shown = kept.kept(file, KEYS, measure, own)
    assert shown["score"].tolist() == [score + 1 for score in complete["score"]]
    assert len(measure.keys) == len(KEYS)
    assert "12 rows · measured by this page" in capsys.readouterr().out


def test_rows_of_stand_ins_do_not_join_rows_of_the_real_data(
    kept, complete, measure, monkeypatch, capsys
):
    monkeypatch.delenv("FEDLIB_BUILD")
    stand_in = SimpleNamespace(source="stand-in")
    pd.testing.assert_frame_equal(kept.kept("a.csv", KEYS, measure, stand_in), complete)
    assert "they are of the real data, not of the stand-ins" in capsys.readouterr().out
    keys = [*KEYS, {"method": "mixture", "secure": False, "epsilon": 0.1}]
    kept.kept("a.csv", keys, measure, stand_in)
    assert len(measure.keys) == len(keys)


def test_other_keys_than_the_kept_ones_are_measured(kept, complete, monkeypatch):
    monkeypatch.delenv("FEDLIB_BUILD")
    keys = [{"n_clients": n} for n in (2, 3)]
    shown = kept.kept("a.csv", keys, lambda n_clients: {"score": n_clients}, DATA)
    assert shown["score"].tolist() == [2, 3]


def test_an_interrupted_complete_run_goes_on(kept, measure, monkeypatch):
    monkeypatch.setenv("FEDLIB_COMPLETE", "1")
    monkeypatch.setattr(kept, "code_digest", lambda: "one")

    def stops(**key):
        if len(measure.keys) == 5:
            raise KeyboardInterrupt
        return measure(**key)

    with pytest.raises(KeyboardInterrupt):
        kept.kept("a.csv", KEYS, stops, DATA)
    assert len(kept.kept("a.csv", KEYS, measure, DATA)) == 12
    assert len(measure.keys) == 12
    monkeypatch.setattr(kept, "code_digest", lambda: "two")
    kept.kept("a.csv", KEYS, measure, DATA)
    assert len(measure.keys) == 24  # other code: from the start


def test_a_unit_can_have_several_rows(kept, monkeypatch):
    def measure(n):
        return [{"score": i / 7} for i in range(n)]

    keys = [{"n": 2}, {"n": 3}]
    with monkeypatch.context() as patch:
        patch.setenv("FEDLIB_COMPLETE", "1")
        kept.kept("a.csv", keys, measure, DATA)
    change(kept, lambda frame: frame)
    assert kept.kept("a.csv", keys, measure, DATA)["n"].tolist() == [2, 2, 3, 3, 3]
    change(kept, lambda frame: frame[:-1])
    with pytest.raises(AssertionError, match="3 rows, kept 2"):
        kept.kept("a.csv", keys, measure, DATA)


def test_a_sentence_must_hold(kept):
    with pytest.raises(AssertionError, match="does not hold: It falls from 1 to 2"):
        kept.say("It falls from {a} to {b}", 1 > 2, a=1, b=2)


@pytest.mark.parametrize("item", ["", "- ", "* ", "2. "])
def test_a_sentence_that_does_not_hold_says_so_to_a_reader(kept, monkeypatch, item):
    monkeypatch.delenv("FEDLIB_BUILD")
    said = kept.say(item + "It falls from {a} to {b}.", 1 > 2, a=1, b=2).data
    assert said == f"{item}**{kept.NOT_HERE}:** It falls from 1 to 2."
    assert kept.say("It is {a}.", True, a=1).data == "It is 1."


def test_a_statement_of_a_page_is_strict_in_a_build_only(kept, monkeypatch, capsys):
    kept.check(True, "The gap is small.")
    with pytest.raises(AssertionError, match="does not hold: The gap is small"):
        kept.check(False, "The gap is small.")
    assert capsys.readouterr().out == ""
    monkeypatch.delenv("FEDLIB_BUILD")
    kept.check(False, "The gap is small.")
    assert "Markdown" in capsys.readouterr().out  # how a terminal shows it


def test_a_reader_sees_what_was_measured_and_a_build_the_larger_result(kept, monkeypatch):
    results = kept.results
    large = pd.DataFrame({"rows": [10, 1000], "versions": "then"})
    large.to_csv(results.KEPT / "speed.csv", index=False)
    small = pd.DataFrame({"rows": [10], "versions": "now"})
    assert results.save_and_choose(small, "speed.csv", of="rows")["rows"].max() == 1000
    monkeypatch.delenv("FEDLIB_BUILD")
    assert results.save_and_choose(small, "speed.csv", of="rows")["rows"].max() == 10
    chosen = results.save_and_choose(small, "speed.csv", of="rows", for_readers=True)
    assert chosen["rows"].max() == 1000
