"""Links between a page and the pages that repeat it with another set of parameters.

The page ``kmeans-3d`` repeats ``kmeans``. It stands in an appendix, so the two link to each other
below the box "In short".
"""

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform


def twins(page, pages):
    """Return the pages that repeat a page, or the page that it repeats.

    Parameters
    ----------
    page : str
    pages : collection of str
        All pages of the book.

    Returns
    -------
    repeated : str or None
        The page that this page repeats.
    others : list of str
        The pages that repeat this page, in alphabetical order.

    Examples
    --------
    >>> pages = {"kmeans", "kmeans-3d", "kmeans_choices"}
    >>> twins("kmeans", pages), twins("kmeans-3d", pages)
    ((None, ['kmeans-3d']), ('kmeans', []))
    """
    first, hyphen, _ = page.partition("-")
    repeated = first if hyphen and first in pages else None
    return repeated, sorted(one for one in pages if one.startswith(f"{page}-"))


class Twins(SphinxTransform):
    """Add a paragraph with links below the box "In short"."""

    default_priority = 405  # after the boxes, before references are resolved

    def apply(self, **_):
        """Add the paragraph to a page that has twins."""
        repeated, others = twins(self.env.docname, self.env.found_docs)
        if repeated is None and not others:
            return
        words = "This page repeats " if repeated else "The same page with different parameters: "
        paragraph = nodes.paragraph("", words, classes=["fedlib-twins"])
        for i, page in enumerate([repeated] if repeated else others):
            paragraph += [nodes.Text(", ")] if i else []
            paragraph += reference(page, "" if repeated else page.partition("-")[2])
        paragraph += nodes.Text(" with different parameters." if repeated else ".")
        section = self.document.next_node(nodes.section)
        boxes = [
            child
            for child in section.children
            if isinstance(child, nodes.admonition) and "fedlib-in-short" in child["classes"]
        ]
        section.insert(section.index(boxes[0]) + 1 if boxes else 1, paragraph)


def reference(page, words):
    """Return a link to a page; without words, it has the page's title."""
    return addnodes.pending_xref(
        "",
        nodes.inline("", words),
        refdomain="std",
        reftype="doc",
        reftarget=f"/{page}",
        refexplicit=bool(words),
        refwarn=True,
    )


def setup(app):
    """Add the transform."""
    app.add_transform(Twins)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
