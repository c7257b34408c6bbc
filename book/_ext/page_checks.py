"""Warn of faults that a reader would see, so that the book is not built with them.

The kinds: formulas that are not drawn, an empty box, an empty table, a cell without a value,
messages that a notebook prints for its author, a control without a name, and a zero with a sign.
"""

import re

from docutils import nodes
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
FORMULA = re.compile(r"(?<![\w\\])\$[^\s$](?:[^$\n]{0,80}[^\s$])?\$")
SIGNED_ZERO = re.compile(r"(?<![\w.,-])[-−]0(?:\.0+)?(?![\w.,]|-\d)")
CONTROL = re.compile(r"<(?:input|select)\b[^>]*>")
TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)
NO_VALUE = re.compile(r"<t[dh]\b[^>]*>\s*(nan|NaN|NaT|None)\s*</t[dh]>")
HIDDEN = re.compile(r"<(script|style)\b.*?</\1>|<!--.*?-->", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
LABELLED = re.compile(r"<label\b[^>]*>(?:(?!</label>).)*$", re.DOTALL)


def faults(doctree):
    """Yield the faults of a page, each with its node."""
    for node in doctree.findall(nodes.Text):
        inside = node.parent
        if not isinstance(inside, nodes.literal | nodes.literal_block | nodes.math | nodes.raw):
            yield from ((inside, text) for text in faults_of_text(node.astext()))
    for node in doctree.findall(nodes.raw):
        if node.get("format") == "html":
            yield from ((node, text) for text in faults_of_html(node.astext()))
    for node in doctree.findall(is_box):
        if not any(child.astext().strip() for child in node[1:]):
            yield node, "the box is empty"
    for node in doctree.findall(nodes.Element):
        if "stderr" in node.get("classes", ()):
            yield node, f"a cell prints to stderr: {node.astext()[:200]!r}"
        elif "content" in node.attributes:  # a figure or a table of page_pattern
            yield from ((node, text) for text in faults_of_html(node["content"]))


def is_box(node):
    """Return whether a node is a box of the page's pattern."""
    return isinstance(node, nodes.admonition) and "fedlib-box" in node["classes"]


def faults_of_text(text):
    """Yield the faults of a text that readers see.

    Examples
    --------
    >>> list(faults_of_text("about -0.0 % of $k$"))
    ["a formula is not drawn: '$k$'", "a zero has a sign: '-0.0'"]
    """
    yield from (f"a formula is not drawn: {found[0]!r}" for found in FORMULA.finditer(text))
    yield from (f"a zero has a sign: {found[0]!r}" for found in SIGNED_ZERO.finditer(text))


def faults_of_html(content):
    """Yield the faults of HTML: of its text and its tables, and controls without a name.

    Examples
    --------
    >>> list(faults_of_html("<table><th>a</th></table><td>nan</td>"))
    ['a table has no rows: <table><th>a</th></table>', "a cell has no value: 'nan'"]
    >>> list(faults_of_html('<input type="range"><label>eps <input type="range"></label>'))
    ['a control has no name: <input type="range">']
    """
    content = HIDDEN.sub("", content)
    for part in TAG.split(content):
        yield from faults_of_text(part)
    for table in TABLE.finditer(content):
        if "<td" not in table[0]:
            yield f"a table has no rows: {table[0][:200]}"
    yield from (f"a cell has no value: {cell[1]!r}" for cell in NO_VALUE.finditer(content))
    for control in CONTROL.finditer(content):
        named = re.search(r'\baria-label(?:ledby)?="[^"]|\bid="', control[0])
        hidden = 'type="hidden"' in control[0]
        if not (named or hidden or LABELLED.search(content[: control.start()])):
            yield f"a control has no name: {control[0]}"


def check(app, doctree, docname):
    """Warn of the faults of a page."""
    for node, text in faults(doctree):
        LOGGER.warning("%s", text, location=node if node.source else docname)


def setup(app):
    """Connect the function to Sphinx."""
    app.connect("doctree-resolved", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
