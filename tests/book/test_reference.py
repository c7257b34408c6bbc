"""The extension that completes the reference, and the list of documented objects."""

import importlib
import json
import re
import sys
import zlib
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import msgspec
import nbformat
import numpy as np
import pytest
import yaml
from nbformat import v4

import fedlib
from fedlib.clustering.density.horizontal import CellCounts, CountCells, HorizontalDBSCAN
from fedlib.core.messages import Array, registry
from fedlib.datasets.partition import split_rows

ROOT = Path(__file__).parents[2]
LISTED = re.findall(
    r"^   ([\w.]+)$", (ROOT / "book/reference.md").read_text(encoding="utf-8"), re.MULTILINE
)
BUILT = ROOT / "_build" / ("quick" if (ROOT / "_build/quick/html").exists() else "full") / "html"


@pytest.fixture(scope="module")
def extension():
    """Return the module, imported as Sphinx imports it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "book/_ext")
        yield importlib.import_module("reference")


def test_all_estimators_and_messages_are_listed():
    assert set(fedlib.__all__) - {"__version__"} <= set(LISTED)
    modules = {f"fedlib.{name}" for name in LISTED}
    ours = {
        kind
        for kind in registry.values()
        if kind.__module__.startswith("fedlib.")
        and hasattr(sys.modules[kind.__module__], kind.__name__)  # not of an example
    }
    missing = [
        kind.__name__
        for kind in ours
        if kind.__module__ not in modules and f"{kind.__module__}.{kind.__name__}" not in modules
    ]
    assert missing == []


def test_each_object_is_listed_once_and_has_a_docstring():
    assert len(LISTED) == len(set(LISTED))
    for name in LISTED:
        module, _, attribute = f"fedlib.{name}".rpartition(".")
        try:
            value = importlib.import_module(f"fedlib.{name}")
        except ModuleNotFoundError:
            value = getattr(importlib.import_module(module), attribute)
        assert value.__doc__, name


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "int"),
        (Annotated[float, msgspec.Meta(gt=0, lt=1)], "float, more than 0, less than 1"),
        (Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)], "int, from -2**62 to 2**62"),
        (Annotated[int, msgspec.Meta(ge=1)] | None, "int, at least 1 or None"),
        (Annotated[str, msgspec.Meta(pattern="^a$")], "str, matching ``^a$``"),
        (Annotated[np.ndarray, Array("int64", ("n",), ge=-1)], "array (n,) of int64, at least -1"),
        (Annotated[np.ndarray, Array("bool", ("n", "d"))], "array (n, d) of bool"),
        (Literal["faces", "full"], "'faces' or 'full'"),
        (Annotated[tuple[str, ...], msgspec.Meta(max_length=9)], "tuple of str, at most 9 items"),
    ],
)  # fmt: skip
def test_the_type_of_a_field_in_words(extension, hint, words):
    assert extension.describe_type(hint) == words


def test_a_message_states_its_reply_its_disclosure_and_its_fields(extension):
    lines = ["Count your points."]
    extension.describe_message(None, "class", "CountCells", CountCells, None, lines)
    assert lines[2:] == [
        "**Discloses:** the cell size. **Reply:** `CellCounts`.",
        "",
        "Parameters",
        "----------",
        "cell_size : float, more than 0",
    ]
    untouched = ["An estimator."]
    extension.describe_message(None, "class", "HorizontalDBSCAN", HorizontalDBSCAN, None, untouched)
    assert untouched == ["An estimator."]


def test_fields_of_all_messages_can_be_described(extension):
    for kind in registry.values():
        if kind.__module__.startswith("fedlib."):
            hints = get_type_hints(kind, include_extras=True)
            texts = [extension.describe_type(hints[field]) for field in kind.__struct_fields__]
            assert all(texts), kind
            assert not any("typing" in text or "<" in text for text in texts), kind


def test_a_chapter_uses_what_it_or_its_modules_import_or_what_it_names(extension, tmp_path):
    objects = {"a": HorizontalDBSCAN, "b": split_rows, "c": CellCounts, "d": CountCells}
    imports = "import study\nfrom study.shared import data\nfrom study.topic import helper\n"
    imports += "from fedlib.datasets import partition as p"
    code = f"%matplotlib inline\n{imports}\np.split_rows"
    cells = [v4.new_code_cell(code), v4.new_markdown_cell("A reply is `CellCounts`, see `run`.")]
    nbformat.write(v4.new_notebook(cells=cells), tmp_path / "page.ipynb")
    for folder in ("topic", "shared"):
        (tmp_path / "study" / folder).mkdir(parents=True)
    (tmp_path / "study/topic/helper.py").write_text("from fedlib import HorizontalDBSCAN\n")
    (tmp_path / "study/shared/data.py").write_text(
        "from fedlib.clustering.density.horizontal import CountCells\n"
    )
    used = extension.used_in(tmp_path / "page.ipynb", objects)
    assert [value for value in objects.values() if value in used] == [
        HorizontalDBSCAN,
        split_rows,
        CellCounts,
    ]


def test_an_inventory_has_the_rows_of_the_table(extension):
    content = extension.inventory(
        [{"object": "numpy.ndarray", "role": "py:class", "address": "a.html#b"}]
    )
    assert content.startswith(b"# Sphinx inventory version 2\n")
    assert zlib.decompress(content.split(b"zlib.\n")[1]) == b"numpy.ndarray py:class 1 a.html#b -\n"


def test_the_starter_for_colab_has_the_address_of_the_repository():
    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    address = settings["sphinx"]["config"]["html_theme_options"]["repository_url"]
    starter = json.loads((ROOT / "binder/colab.ipynb").read_text(encoding="utf-8"))
    assert starter["cells"][1]["source"][0].startswith(f'REPOSITORY = "{address}"')


@pytest.mark.book
@pytest.mark.skipif(not BUILT.exists(), reason="no book is built: make book")
@pytest.mark.parametrize("name", LISTED)
def test_built_page_of_an_object_links_to_its_source_and_back(name):
    page = (BUILT / f"book/reference/fedlib.{name}.html").read_text("utf-8")
    assert "_modules/fedlib/" in page
    assert f'id="fedlib.{name}"' in page or f'id="module-fedlib.{name}"' in page
