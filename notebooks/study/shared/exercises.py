"""Exercises whose answer is a number, which the page checks."""

import html
import math

from IPython.display import HTML

STYLE = (
    "display: flex; flex-wrap: wrap; gap: 0.4rem 0.8rem; align-items: center; margin: 0.5rem 0 1rem"
)
# The form needs no further script, so it works in the book and in JupyterLab.
CHECK = """const text = this.elements.answer.value.trim().replace(',', '.').replace(/\\s*%$/, '')
const miss = Math.abs(Number(text) - this.dataset.answer)
this.elements.verdict.value = text === '' || Number.isNaN(miss) ? 'Enter a number, such as 0.5.'
  : miss <= this.dataset.tolerance ? 'Right.' : this.dataset.hint
return false"""


def ask(question, answer, hint, tolerance=0.0):
    """Return a field for the answer to an exercise, with a button that checks it.

    It is the last expression of its cell, behind the exercise and before the solution.

    Parameters
    ----------
    question : str
        What to enter, with its unit, such as ``"Seconds"``.
    answer : float
        The cell computes it, so that it follows the parameters of the page.
    hint : str
        Shown for other numbers.
    tolerance : float, default=0.0
        How far a right number may be from the answer.

    Raises
    ------
    ValueError
        When the answer or the tolerance is not finite, or the tolerance is negative.

    Examples
    --------
    >>> 'data-answer="10.0"' in ask("Seconds", 10, "One round trip takes 50 ms.").data
    True
    """
    if not (math.isfinite(answer) and math.isfinite(tolerance) and tolerance >= 0):
        raise ValueError(
            "answer must be finite and tolerance finite and at least 0,"
            f" got answer={answer!r} and tolerance={tolerance!r}"
        )
    data = {"answer": float(answer), "tolerance": tolerance + 1e-9, "hint": hint}
    attributes = " ".join(f'data-{name}="{html.escape(str(of))}"' for name, of in data.items())
    return HTML(
        f'<form class="fedlib-ask" style="{STYLE}" {attributes} onsubmit="{html.escape(CHECK)}">'
        f"<label>{html.escape(question)}: "
        '<input name="answer" inputmode="decimal" autocomplete="off" size="8"></label>'
        '<button>Check</button><output name="verdict"></output></form>'
    )
