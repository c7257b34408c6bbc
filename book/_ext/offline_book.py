"""Make the book whole without the network, and readable by assistive technology.

- MathJax comes with the book: the one file that draws TeX as SVG, from sphinx-mathjax-offline.
- Bibliography: docutils marks its entries with `doc-biblioentry`, which is deprecated and not
  allowed as a child of the list it stands in; each entry becomes a `listitem`.
- Navigation: the theme's switches that fold a part of the contents have no name; each is named
  after the page whose contents it folds.
"""

import re
import shutil
from importlib.metadata import files
from pathlib import Path

MATHJAX = "mathjax/tex-svg.js"
MENDED = [
    (re.compile('role="doc-biblioentry"'), 'role="listitem"'),
    (
        re.compile(">([^<>]+)(</a><details[^>]*>)<summary>"),
        r'>\1\2<summary aria-label="Contents of \1">',
    ),
]


def use_own_mathjax(app, config):
    """Point the pages at the copy under _static."""
    config.mathjax_path = MATHJAX


def copy_mathjax(app, error):
    """Put MathJax beside the pages."""
    if error is None and app.builder.format == "html":
        source = next(file for file in files("sphinx-mathjax-offline") if file.match(MATHJAX))
        target = Path(app.outdir, "_static", MATHJAX)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source.locate(), target)


def mend_pages(app, error):
    """Mend the finished pages, navigation included."""
    if error is None and app.builder.format == "html":
        for page in Path(app.outdir).rglob("*.html"):
            text = page.read_text(encoding="utf-8")
            for pattern, replacement in MENDED:
                text = pattern.sub(replacement, text)
            page.write_text(text, encoding="utf-8")


def setup(app):
    """Register with Sphinx."""
    app.connect("config-inited", use_own_mathjax)
    app.connect("build-finished", copy_mathjax)
    app.connect("build-finished", mend_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
