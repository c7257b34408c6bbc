"""Make the pages independent of other hosts, and readable with assistive technology.

- MathJax is a part of the book: the single file from sphinx-mathjax-offline that draws TeX as SVG.
- Bibliography: docutils gives its entries the role `doc-biblioentry`, which is deprecated and not
  allowed for a child of a list. Each entry becomes a `listitem`.
- Navigation: the theme's switches that fold a part of the contents have no name. Each gets the name
  of the page whose contents it folds.
"""

import re
import shutil
from importlib.metadata import files
from pathlib import Path

MATHJAX = "mathjax/tex-svg.js"
FIXES = [
    (re.compile('role="doc-biblioentry"'), 'role="listitem"'),
    (
        re.compile(">([^<>]+)(</a><details[^>]*>)<summary>"),
        r'>\1\2<summary aria-label="Contents of \1">',
    ),
]


def use_local_mathjax(app, config):
    """Point the pages at the copy under _static."""
    config.mathjax_path = MATHJAX


def copy_mathjax(app, error):
    """Copy MathJax to the pages' static files."""
    if error is None and app.builder.format == "html":
        source = next(file for file in files("sphinx-mathjax-offline") if file.match(MATHJAX))
        target = Path(app.outdir, "_static", MATHJAX)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source.locate(), target)


def fix_pages(app, error):
    """Apply the fixes to all finished pages, including their navigation."""
    if error is None and app.builder.format == "html":
        for page in Path(app.outdir).rglob("*.html"):
            text = page.read_text(encoding="utf-8")
            for pattern, replacement in FIXES:
                text = pattern.sub(replacement, text)
            page.write_text(text, encoding="utf-8")


def setup(app):
    """Connect the functions to Sphinx."""
    app.connect("config-inited", use_local_mathjax)
    app.connect("build-finished", copy_mathjax)
    app.connect("build-finished", fix_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
