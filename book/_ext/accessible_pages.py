"""Make the pages readable with assistive technology.

- Bibliography: docutils gives its entries the role `doc-biblioentry`, which is deprecated and not
  allowed for a child of a list. Each entry becomes a `listitem`.
- Navigation: the theme's switches that fold a part of the contents have no name. Each gets the name
  of the page whose contents it folds.
"""

import re
from pathlib import Path

FIXES = [
    (re.compile('role="doc-biblioentry"'), 'role="listitem"'),
    (
        re.compile(">([^<>]+)(</a><details[^>]*>)<summary>"),
        r'>\1\2<summary aria-label="Contents of \1">',
    ),
]


def fix_pages(app, error):
    """Apply the fixes to all finished pages, including their navigation."""
    if error is None and app.builder.format == "html":
        for page in Path(app.outdir).rglob("*.html"):
            text = page.read_text(encoding="utf-8")
            for pattern, replacement in FIXES:
                text = pattern.sub(replacement, text)
            page.write_text(text, encoding="utf-8")


def setup(app):
    """Connect the function to Sphinx."""
    app.connect("build-finished", fix_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
