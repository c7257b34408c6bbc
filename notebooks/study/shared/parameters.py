"""The parameters of a page as a table: their meaning, their defaults and the values of this page.

The cell `parameters` of a notebook assigns the defaults. The comment behind a value states its
meaning. papermill adds a cell with the values of a run. `merge` joins both into one cell that can
run again and whose output is the table; the page shows only the output.
"""

import ast
import html
import io
import tokenize

OPEN_UP_TO = 6  # a longer table is folded


def find(cells, tag):
    """Return the cell with a tag, or None."""
    return next((cell for cell in cells if tag in cell.metadata.get("tags", [])), None)


def defaults(source):
    """Return the source text of each value and its comment, by the parameter's name.

    Examples
    --------
    >>> defaults("eps = 0.5  # the radius")
    {'eps': ('0.5', 'the radius')}
    """
    comments, lines = {}, source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            comments[row] = token.string.lstrip("# ")
            lines[row - 1] = lines[row - 1][:column].rstrip()
    without, found = "\n".join(lines), {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign):
            rows = range(statement.lineno, statement.end_lineno + 1)
            meaning = " ".join(comments[row] for row in rows if row in comments)
            value = ast.get_source_segment(without, statement.value)
            found[statement.targets[0].id] = (value, meaning)
    return found


def merge(notebook):
    """Replace the cells of the defaults and of the run's values by one cell with the table."""
    cell, given = find(notebook.cells, "parameters"), find(notebook.cells, "injected-parameters")
    known = defaults(cell.source)
    values = {}
    if given is not None:
        notebook.cells.remove(given)
        values = {name: value for name, (value, _) in defaults(given.source).items()}
        changed = [f"{name} = {value}" for name, value in values.items()]
        cell.source = "\n".join([cell.source, "", "# The values of this page", *changed])
    cell.metadata["tags"] = [*cell.metadata["tags"], "remove-input"]
    cell.outputs = [show(known, values, type(cell))] if known else []


def show(known, values, node):
    """Return the table as an output of a cell."""
    text = table(known, values)
    output = {"output_type": "display_data", "metadata": {}}
    return node(output | {"data": {"text/html": text, "text/plain": "The parameters"}})


def table(known, values):
    """Return the parameters as an HTML table below a line that sums them up.

    Parameters
    ----------
    known : mapping of str to (str, str)
        From `defaults`.
    values : mapping of str to str
        The values that this page uses in place of the defaults.
    """
    rows, changed = [], []
    for name, (default, meaning) in known.items():
        value = values.get(name, default)
        if not same(value, default):
            changed.append(f"<code>{name} = {html.escape(value, quote=False)}</code>")
        cells = [f"<code>{html.escape(text, quote=False)}</code>" for text in (default, value)]
        strong = f"<strong>{cells[1]}</strong>" if not same(value, default) else cells[1]
        rows.append(
            f'<tr><th scope="row"><code>{name}</code></th><td>{html.escape(meaning)}</td>'
            f"<td>{cells[0]}</td><td>{strong}</td></tr>"
        )
    summary = f"This page uses {', '.join(changed)}." if changed else "This page uses the defaults."
    heads = "".join(
        f'<th scope="col">{head}</th>' for head in ("name", "meaning", "default", "this page")
    )
    return (
        f'<details class="fedlib-parameters"{" open" if len(known) <= OPEN_UP_TO else ""}>'
        f"<summary><strong>Parameters.</strong> {summary}</summary>"
        f'<div class="fedlib-scroll" tabindex="0"><table class="dataframe">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def same(value, default):
    """Return whether two source texts denote the same value."""
    try:
        return ast.literal_eval(value) == ast.literal_eval(default)
    except ValueError:  # an expression, such as 10 * 60
        return value == default
