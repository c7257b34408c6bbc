r"""Formulas as MathML, which browsers draw without a script and screen readers read aloud.

`latex2mathml` converts a formula when the book is built. A formula with ``\tag{…}`` shows this text
as its number.
"""

import html
import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util.math import get_node_equation_number

TAG = re.compile(r"\\tag\{([^}]*)\}")
# What latex2mathml shows wrongly, and what it shows well: lines, the name of an operator, and a
# character that few fonts have.
BETTER = {
    "{aligned}": "{split}",
    "{gathered}": "{matrix}",
    r"\operatorname*": r"\mathrm",
    r"\setminus": r"\smallsetminus",
}
# It writes what it does not know as a name that begins with a backslash, and puts the lines of an
# unknown environment one after another.
UNKNOWN = re.compile(r">\\(\w*)<")
NOT_ALIGNED = re.compile(r'>&<|linebreak="newline"')


def to_mathml(text, display="inline"):
    r"""Return a formula as MathML.

    Parameters
    ----------
    text : str
        TeX.
    display : {"inline", "block"}, default="inline"

    Raises
    ------
    ValueError
        When the formula has a command that would be shown as its name, or lines that would be
        shown as one.

    Examples
    --------
    >>> to_mathml("x^2")[-53:]
    '<mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>'
    """
    written = text.strip()
    for one, another in BETTER.items():
        written = written.replace(one, another)
    shown = convert(written, display=display)
    plain = html.unescape(shown)
    if unknown := UNKNOWN.search(plain):
        raise ValueError(f"latex2mathml does not know \\{unknown[1]} in the formula {text!r}")
    if NOT_ALIGNED.search(plain):
        raise ValueError(f"latex2mathml does not align the lines of the formula {text!r}")
    return shown


def visit_math(translator, node):
    """Write a formula in a line of text."""
    translator.body.append(to_mathml(node.astext()))
    raise nodes.SkipNode


def visit_displaymath(translator, node):
    """Write a formula of its own line, with its number and its place."""
    text = node.astext()
    tag = TAG.search(text)
    number = get_node_equation_number(translator, node) if node["number"] else None
    # On a phone, a long formula scrolls, which the keyboard must be able to do.
    translator.body.append(translator.starttag(node, "div", CLASS="math", tabindex="0"))
    if number or tag:
        translator.body.append(f'<span class="eqno">({tag[1] if tag else number})')
        if number:
            translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append(f"{to_mathml(TAG.sub('', text), 'block')}</div>\n")
    raise nodes.SkipNode


def setup(app):
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
