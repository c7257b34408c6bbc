"""Each sentence that promises protection names the test that proves it.

The pages are the threat model, those that it links, and the others of its chapter. A sentence names
a test itself, by a footnote, or by a link to the threat model if it only repeats what that says. A
row of a table counts as one sentence.
"""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THREAT_MODEL = ROOT / "notebooks" / "privacy_threat_model.ipynb"
LINK = re.compile(r"\]\(([\w./]+\.(?:md|ipynb))")
PLACE = re.compile(r"`(tests/[\w/]+\.py)`|`(test_\w+)`")
NOTE = re.compile(r"^\[\^([\w-]+)\]:(.*)", re.M)
PROMISE = re.compile(
    # A site or a server refuses something,
    r"\b(refus(es?|ed)|declin(es?|ed)|exclude[sd]?|never|withholds?|before any call"
    # somebody does not learn something,
    r"|(?<!not )hid(es?|den)|(not|and no) (learn|leave|depend|contain)|only its|is charged"
    r"|(disclose|learn|reveal|see|send|show)s? (only|nothing|no\b)|contains? no\b"
    r"|nothing (of|else|but)"
    r"|cannot (be (computed|noticed|read)|compute|know|learn|make|read|remove|see|tell|verify)"
    r"|no (row|failure|difference|site|identifier|token)\b|stays? (at|in|secret)"
    r"|leaves? (a site|the site|them|it\b(?! out))"
    # something has a limit,
    r"|clip(s|ped)|(?<!not )limits? (the|how|what)|bounds? (the|what)"
    # or is remembered.
    r"|outlives?|(?<!not )protects? (the|against|every)|belongs? to the (key|table))",
    re.I,
)


def text_of(page):
    """Return the text of a page without its code."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(one["source"]) for one in cells if one["cell_type"] != "code")
    return text


def sentences_of(text):
    """Return the sentences of a page, without headings, code and the list of all messages.

    ``tests/cli/test_protocols.py`` compares that list with the code.
    """
    text = re.sub(r"^::::.*?^::::$", "", NOTE.sub("", text), flags=re.M | re.S)
    text = re.sub(r"^```(?!\{(exercise|solution)).*?^```$", "", text, flags=re.M | re.S)
    for block in re.split(r"\n\s*\n|\n(?=(?:[-|]|\d+\.) )", text):
        if block.startswith("#"):
            continue
        end = r"(?<=[.!?])(?:\*\*)?((?:\[\^[\w-]+\])*)(?:\s+|$)"
        parts = [block] if block.startswith("|") else re.split(end, block)
        for i in range(0, len(parts), 2):
            yield " ".join("".join(parts[i : i + 2]).split())


def linked(page):
    """Return the pages that a page links."""
    return {(page.parent / target).resolve() for target in LINK.findall(text_of(page))}


PAGES = sorted(
    {*linked(THREAT_MODEL), *ROOT.glob("notebooks/privacy_*.ipynb"), ROOT / "book" / "protect.md"}
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_promise_names_a_test(page):
    text = text_of(page)
    defined = dict(NOTE.findall(text))
    assert set(re.findall(r"\[\^([\w-]+)\]", NOTE.sub("", text))) == set(defined)
    proven, unproven = {name for name, note in defined.items() if "`test_" in note}, []
    for sentence in sentences_of(text):
        words = re.sub(r"`[^`]*`|\]\([^)]*\)", "", sentence)
        named = "`test_" in sentence or "privacy_threat_model" in sentence
        notes = set(re.findall(r"\[\^([\w-]+)\]", sentence))
        if PROMISE.search(words) and not words.endswith("?") and not named and not notes & proven:
            unproven.append(sentence)
    assert not unproven, f"{len(unproven)} sentences name no test:\n" + "\n".join(unproven)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_named_tests_exist(page):
    """A name belongs to the file that the page has named last."""
    file, defined = "", set()
    for path, name in PLACE.findall(text_of(page)):
        if path:
            file = path
            code = (ROOT / path).read_text(encoding="utf-8")
            defined = set(re.findall(r"^ *def (test_\w+)", code, re.M))
        else:
            assert name in defined, f"{file} has no {name}"
