"""Running one notebook: the executed notebook, and the report of a failure."""

import json
import re
from argparse import ArgumentTypeError

import nbformat
import pytest

pytestmark = pytest.mark.book  # each test starts a kernel


def cells(path):
    return nbformat.read(path, as_version=4).cells


def test_parameters_reach_the_notebook(run_notebook):
    done, executed = run_notebook("print(n_rows, name)", parameters='{"n_rows": 7}')
    assert done.returncode == 0, done.stdout
    assert cells(executed)[-1].outputs[0].text == "7 a\n"


def test_a_second_run_gives_the_same_bytes(run_notebook):
    """The second runner and its kernel are forked, as in a build of the book."""
    figure = """
    %config InlineBackend.figure_formats = ["svg", "png"]
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots()
    axes.fill_between([0, 1], [1, 2], hatch="/");
    """
    warning = "import warnings; warnings.warn('names a file')"
    bar = "from tqdm import tqdm\nfor _ in tqdm(range(3)): pass"
    table = "import pandas as pd; pd.DataFrame({'a': [1]}).style.hide(axis='index')"
    runs = [
        run_notebook(figure, warning, bar, table, parameters='{"n_rows": 7}', target=t, forked=f)
        for t, f in (("first.ipynb", False), ("second.ipynb", True))
    ]
    for done, _ in runs:
        assert done.returncode == 0, done.stdout
    first, second = (executed.read_bytes() for _, executed in runs)
    assert first == second
    assert b"image/svg+xml" in first
    assert b"names a file" in first
    assert re.search(rb"T_[0-9a-f]{8}_0", first)


def test_an_executed_notebook_keeps_no_trace_of_the_run(run_notebook, tmp_path):
    _, executed = run_notebook("import warnings; warnings.warn('x')", parameters='{"n_rows": 7}')
    text = executed.read_text(encoding="utf-8")
    assert "papermill" not in text
    assert str(tmp_path) not in text
    assert "ipykernel_" not in text
    assert not any("execution" in cell.metadata for cell in cells(executed))


def test_an_unknown_parameter_is_refused(run_notebook):
    done, executed = run_notebook(parameters='{"rows": 7}')
    assert done.returncode == 1
    assert done.stdout == "small: unknown parameter 'rows'; its parameters cell has n_rows, name\n"
    assert not executed.exists()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("1_000", 1000),
        ("[2, 0.5]", [2, 0.5]),
        ("True", True),
        ("null", None),
        ("3d", "3d"),
    ],
)
def test_a_parameter_of_the_command_line_is_a_literal_or_text(modules, text, value):
    assert modules("study.building.run").setting(f"name={text}") == ("name", value)


@pytest.mark.parametrize("text", ["n_rows", "=3", "n rows=3"])
def test_a_parameter_without_a_name_or_a_value_is_refused(modules, text):
    with pytest.raises(ArgumentTypeError, match="must be name=value, got "):
        modules("study.building.run").setting(text)


def test_a_notebook_that_does_not_exist_is_refused(modules, capsys):
    with pytest.raises(SystemExit):
        modules("study.building.run").main(["notebooks/kmean.ipynb", "out.ipynb"])
    assert "there is no notebook notebooks/kmean.ipynb; there are " in capsys.readouterr().err


def test_a_failing_cell_is_named(run_notebook):
    failing = "x = 1\nraise ValueError(f'rows: {n_rows}')"
    done, executed = run_notebook("x = 0", failing, parameters='{"n_rows": 7, "name": "b"}')
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "small n_rows=7 name=b: cell 4 of 4 failed"
    assert lines[1:3] == ["    x = 1", "    raise ValueError(f'rows: {n_rows}')"]
    assert lines[-1] == "ValueError: rows: 7"
    assert not executed.exists()


def test_a_dead_kernel_is_reported_with_its_cell(run_notebook):
    done, _ = run_notebook("x = 0", "import os; os._exit(1)", "x = 2")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "small: cell 4 of 5 failed"
    assert lines[-1].startswith("The kernel died")


TITLE = """(f-table-1)=
# A notebook

(f-section-1)=
(f-section-1-1)=
(See the text)=1.

$$a$$ (f-equation-1)

```{math}
:label: f-equation-2
b
```
"""
WITHOUT_TARGETS = """# A notebook (other)

(See the text)=1.

$$a$$

```{math}
b
```"""


@pytest.mark.parametrize(
    ("target", "text"),
    [("small.ipynb", TITLE.strip()), ("small-other.ipynb", WITHOUT_TARGETS)],
)
def test_only_the_first_page_of_a_notebook_has_targets(run_notebook, target, text):
    done, executed = run_notebook(target=f"out/{target}", title=TITLE)
    assert done.returncode == 0, done.stdout
    assert cells(executed)[0].source.strip() == text


NAMES = """# A notebook

{numref}`fig-a` and {numref}`a title <tab-a>`, but not {numref}`fig-elsewhere`

```{exercise}
:label: ex-a
```

```{solution} ex-a
```"""
SHOWN = """
from IPython.display import HTML, display
display(HTML('<figure class="fedlib-figure fedlib-in-short" id="fig-a"></figure>'))
display(HTML('<figure class="fedlib-table" id="tab-a"></figure>'))
"""


def test_names_on_a_page_of_another_set_get_a_suffix(run_notebook):
    done, executed = run_notebook(SHOWN, target="out/small-other.ipynb", title=NAMES)
    assert done.returncode == 0, done.stdout
    text, *_, last = cells(executed)
    expected = NAMES.replace("fig-a`", "fig-a-other`").replace("tab-a>", "tab-a-other>")
    expected = expected.replace("ex-a", "ex-a-other")
    assert text.source == expected.replace("# A notebook", "# A notebook (other)")
    shown = [output.data["text/html"] for output in last.outputs]
    assert 'id="fig-a-other"' in shown[0]
    assert 'id="tab-a-other"' in shown[1]


def test_a_page_of_another_set_shows_what_is_shown_once_only_by_a_link(modules):
    shown = '<figure class="fedlib-figure" id="fig-{}"></figure>'
    outputs = [
        nbformat.v4.new_output("display_data", {"text/html": shown.format(name)}) for name in "ab"
    ]
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("{numref}`fig-a` and {numref}`fig-b`"),
            nbformat.v4.new_code_cell("a", metadata={"tags": ["once"]}, outputs=outputs[:1]),
            nbformat.v4.new_code_cell("b", outputs=outputs[1:]),
        ]
    )
    modules("study.building.run").drop_targets(notebook, "-other")
    text, drawn = notebook.cells
    assert text.source == "{numref}`fig-a` and {numref}`fig-b-other`"
    assert 'id="fig-b-other"' in drawn.outputs[0].data["text/html"]


@pytest.mark.parametrize(("written", "status"), [("table.csv", 0), ("other.csv", 1)])
def test_missing_results_are_an_error(run_notebook, tmp_path, written, status):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/table.csv").write_text("from an earlier run")
    code = f"import os; open(os.environ['FEDLIB_RESULTS'] + '/{written}', 'w').write('n')"
    done, _ = run_notebook(code, results=["table.csv"])
    assert done.returncode == status
    assert ("did not write table.csv" in done.stdout) == bool(status)


def test_parameters_keep_their_types(run_notebook):
    values = {"n_rows": [1, 2.5, None, True], "name": "it's “quoted”"}
    done, executed = run_notebook(
        "import json; print(json.dumps([n_rows, name]))", parameters=json.dumps(values)
    )
    assert done.returncode == 0, done.stdout
    assert json.loads(cells(executed)[-1].outputs[0].text) == list(values.values())


def test_only_a_build_has_the_mark_of_one(run_notebook):
    shown = "import os; print(os.environ.get('FEDLIB_BUILD'))"
    for options, expected in (((), "None"), (("--build",), "1")):
        done, executed = run_notebook(shown, options=options)
        assert done.returncode == 0, done.stdout
        assert cells(executed)[-1].outputs[0].text == f"{expected}\n"
