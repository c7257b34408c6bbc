"""Rows of the complete run, which pages show, and of which every build measures some again."""

import os
import platform
import re
import sys
import time
from collections import Counter
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import Markdown, display

from study.boosting import RULES
from study.shared import results
from study.shared.data import checksum
from study.shared.pages import ROOT, result_badge

ROW_SECONDS = 5.0  # a row that took longer is not measured again in a build
PAGE_SECONDS = 8.0  # nor are more rows of one page than took this long together
FACTS = ["seconds", "sha256", "versions", "machine"]  # of each row, next to what was measured
NOT_HERE = "A sentence of the book that does not hold for these parameters and data"
spent = Counter()  # the seconds of the rows that this page has measured again


def kept(file, keys, measure, data, digits=4):
    """Return the rows of the complete run, after some have been measured again.

    In a complete run (`make book PROFILE=full`), all rows are measured; an interrupted one goes on
    where it ended, unless the code has changed. In any other build of the book, rows are measured
    that took less than 5 s, and together less than 8 s. A digest of fedlib's code chooses them, so
    that other rows have their turn when the code changes. A badge tells how many there were.

    A run of a reader (`make run`, JupyterLab, papermill) is not a build: it measures the rows of
    parameters that were not kept, and all rows of a table of the reader's own.

    Parameters
    ----------
    file : str
        The name of a CSV file in `book/results`; `study.yml` lists it in the page's ``results``.
    keys : list of dict
        The arguments of ``measure`` for each unit of the complete run: numbers, texts and truth
        values.
    measure : function
        Takes the values of a key, by name, and returns a dict of numbers and texts, or a list of
        them: the rows of this unit. They must not depend on anything but the key and the data.
    data : Dataset or list of Dataset
        What ``measure`` reads. Where a build has other files than the complete run, or the page
        imports another release of XGBoost, nothing can be compared, and the badge says so.
    digits : int, default=4
        The decimals in which numbers must agree with those of other versions or of another kind of
        processor. With the same ones, they must be equal.

    Returns
    -------
    DataFrame
        The columns of the keys, those of the measured rows, and ``seconds``, ``sha256``,
        ``versions`` and ``machine``.

    Raises
    ------
    AssertionError
        In a build of the book: when a row differs from the kept one, or a key has no kept row.
    """
    here = {"sha256": digest(data), "versions": results.VERSIONS, "machine": machine()}
    if os.environ.get("FEDLIB_COMPLETE"):
        rows = complete(file, keys, measure, here)
    elif results.is_build():
        rows = verified(file, keys, measure, here, digits)
    else:
        rows = of_reader(file, keys, measure, here)
    results.RESULTS.mkdir(parents=True, exist_ok=True)
    rows.to_csv(results.RESULTS / file, index=False, lineterminator="\n")
    return rows


def complete(file, keys, measure, here):
    """Measure the rows of all keys, and keep each at once, so that the run can be interrupted."""
    part = results.RESULTS / f"{file}.{code_digest()[:12]}.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    done = {}
    if part.exists():
        done = by_key(pd.read_csv(part, dtype=text_of(keys)), keys)
    for key in keys:
        if name_of(key) not in done:
            rows = rows_of(key, measure, here)
            rows.map(written).to_csv(
                part, mode="a", index=False, header=not part.exists(), lineterminator="\n"
            )
            done[name_of(key)] = rows
    display(result_badge(file, f"{len(keys):,} rows"))
    return joined(done, keys)


def verified(file, keys, measure, here, digits):
    """Return the kept rows; measure some again, and compare."""
    frame, rows = read_kept(file, keys)
    missing = [key for key in keys if name_of(key) not in rows]
    assert not missing, f"{file} has no rows of {missing[:3]}; measure them: PROFILE=full"
    cheap = [key for key in keys if rows[name_of(key)]["seconds"].iloc[0] < ROW_SECONDS]
    total = f"{len(keys):,} in all"
    if "" in (here["sha256"], frame["sha256"].iloc[0]) or here["sha256"] != frame["sha256"].iloc[0]:
        text = f"not verified here: the data are not those of the complete run; {total}"
    elif other := other_xgboost():
        text = f"not verified here: the complete run had XGBoost {RULES}, not {other}; {total}"
    elif not cheap:
        text = f"not verified here: no row takes less than {ROW_SECONDS:g} s; {total}"
    else:
        chosen = chosen_of(cheap, rows)
        for key in chosen:
            compare(file, key, rows[name_of(key)], rows_of(key, measure, here), digits)
        text = (
            f"{len(chosen):,} of the {len(cheap):,} rows that are cheap enough measured again in "
            f"this build, all equal; {total}"
        )
    display(result_badge(file, text, frame["versions"].iloc[0]))
    return joined(rows, keys)


def other_xgboost():
    """Return the version of the XGBoost that the page has imported, if not the kept rows' one.

    Then rows that XGBoost itself has learned can differ.
    """
    version = getattr(sys.modules.get("xgboost"), "__version__", RULES)
    return "" if f"{version}.".startswith(f"{RULES}.") else version


def of_reader(file, keys, measure, here):
    """Return the kept rows of these data, and measure the others.

    Without the real data, the kept rows count only if they are all there: in one table, rows of the
    real data and of stand-ins could not be compared.
    """
    frame, rows = read_kept(file, keys)
    stand_in = here["sha256"] == ""
    if not stand_in and not frame["sha256"].eq(here["sha256"]).all():
        rows = {}
    missing = [key for key in keys if name_of(key) not in rows]
    if missing and stand_in:
        missing = keys
    rows |= {name_of(key): rows_of(key, measure, here) for key in missing}
    text = f"{len(keys):,} rows"
    if len(missing) == len(keys):
        display(result_badge(file, text))
    else:
        text += f", of which {len(missing):,} measured by this page" if missing else ""
        text += "; they are of the real data, not of the stand-ins" if stand_in else ""
        display(result_badge(file, text, frame["versions"].iloc[0]))
    return joined(rows, keys)


def read_kept(file, keys):
    """Return the kept file, and its rows by the name of their key; both are empty without one."""
    path = results.KEPT / file
    if not path.exists():
        return pd.DataFrame(columns=[*keys[0], *FACTS]), {}
    frame = pd.read_csv(path, dtype=text_of(keys))
    if not {*keys[0]} <= {*frame}:
        return frame, {}
    return frame, by_key(frame, keys)


def chosen_of(cheap, rows):
    """Return the keys of the rows to measure again, in an order that changes with the code."""
    code = code_digest()
    chosen = []
    for key in sorted(cheap, key=lambda key: sha256((code + str(name_of(key))).encode()).digest()):
        seconds = rows[name_of(key)]["seconds"].iloc[0]
        if chosen and spent["page"] + seconds > PAGE_SECONDS:
            break
        spent["page"] += seconds
        chosen.append(key)
    return chosen


def compare(file, key, before, now, digits):
    """Raise AssertionError for another number or text."""
    is_same = before["machine"].iloc[0] == now["machine"].iloc[0]
    is_same &= before["versions"].iloc[0] == now["versions"].iloc[0]
    measured = [column for column in now if column not in (*key, *FACTS)]
    assert len(before) == len(now), f"{file}, {key}: {len(now)} rows, kept {len(before)}"
    for column in measured:
        for old, new in zip(before[column], now[column], strict=True):
            if isinstance(new, str | bool | np.bool_) or is_same:
                equal = old == new or (pd.isna(old) and pd.isna(new))
            else:
                equal = np.isclose(old, new, rtol=0, atol=0.5 * 10**-digits, equal_nan=True)
            assert equal, f"{file}, {key}: {column} is {new!r}, kept {old!r}"


def rows_of(key, measure, here):
    """Return the rows of one key, as a frame."""
    began = time.perf_counter()
    found = measure(**key)
    seconds = round(time.perf_counter() - began, 2)
    found = [found] if isinstance(found, dict) else found
    return pd.DataFrame([{**key, **row, "seconds": seconds, **here} for row in found])


def by_key(frame, keys):
    """Return the rows of a file by the name of their key, with the values of the key."""
    known = {name_of(key): key for key in keys}
    columns = list(keys[0])
    return {
        name: rows.assign(**known[name])
        for name, rows in frame.groupby(columns, sort=False)
        if name in known
    }


def joined(rows, keys):
    """Return the rows of all keys, in the order of the keys."""
    return pd.concat([rows[name_of(key)] for key in keys], ignore_index=True)


def text_of(keys):
    """Return the columns that are read as texts."""
    return dict.fromkeys([*keys[0], "sha256", "versions", "machine"], str)


def written(value):
    """Return a value as a file has it: the key's must be the same texts when they are read."""
    return str(value) if isinstance(value, bool | float | np.floating | np.bool_) else value


def name_of(key):
    """Return the texts of a key's values.

    Examples
    --------
    >>> name_of({"epsilon": 0.5, "secure": True, "seed": 3})
    ('0.5', 'True', '3')
    """
    return tuple(map(str, key.values()))


def digest(data):
    """Return a checksum of the data; "" if one of the sets is a stand-in."""
    sums = [checksum(one) for one in (data if isinstance(data, list) else [data])]
    if len(sums) == 1 or "" in sums:
        return min(sums)
    return sha256("".join(sums).encode()).hexdigest()


@cache
def code_digest():
    """Return a checksum of fedlib's code."""
    found = sha256()
    for path in sorted((ROOT / "fedlib").rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


@cache
def machine():
    """Return the kind of processor and a checksum of the lock: with both, numbers are equal."""
    lock = sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()[:8]
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, lock {lock}"


def say(text, holds, **numbers):
    """Return a sentence with measured numbers, which must hold in a build of the book.

    With a reader's own parameters or table, a sentence that does not hold says so.

    Parameters
    ----------
    text : str
        Markdown, with a field for each number, such as ``{median:.2f}``.
    holds : bool
        Whether the numbers are as the sentence says.
    **numbers
        The values of the fields.

    Raises
    ------
    AssertionError
        When the sentence does not hold in a build.

    Examples
    --------
    >>> say("The median is {median:.1f}, above 9.", 12.14 > 9, median=12.14).data
    'The median is 12.1, above 9.'
    """
    sentence = text.format(**numbers)
    if not holds:
        assert not results.is_build(), f"does not hold: {sentence}"
        item = re.match(r"(?:[-*] |\d+\. )?", sentence)[0]  # the sentence may be one of a list
        sentence = f"{item}**{NOT_HERE}:** {sentence.removeprefix(item)}"
    return Markdown(sentence)


def check(holds, text):
    """Raise AssertionError in a build if a statement of the page does not hold; tell a reader.

    Use it for what the page states for its own parameters. What must hold for all parameters is an
    assertion.

    Parameters
    ----------
    holds : bool
    text : str
        The statement, a sentence in Markdown.
    """
    said = say(text, holds)
    if not holds:
        display(said)


def say_all(sentences):
    r"""Return sentences of `say` as one text, a line for each.

    Examples
    --------
    >>> say_all([say("* {n} holds.", True, n=1), say("* {n} holds.", True, n=2)]).data
    '* 1 holds.\n* 2 holds.'
    """
    return Markdown("\n".join(sentence.data for sentence in sentences))
