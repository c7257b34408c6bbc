"""Number the pages in the order of the table of contents: chapters 1, 2, 3, their pages 3.1, 3.2.

Sphinx starts again at 1 in every part. Its own numbers would also count the sections of a page
before the pages below it, and have no depth that numbers pages but not sections.
"""

from docutils import nodes
from sphinx import addnodes
from sphinx.environment.collectors.toctree import TocTreeCollector


class ChapterNumbers(TocTreeCollector):
    """Give numbers to the pages below each numbered toctree of the first page."""

    def clear_doc(self, app, env, docname):
        """Leave it to Sphinx's own collector."""

    def merge_other(self, app, env, docnames, other):
        """Leave it to Sphinx's own collector."""

    def process_doc(self, app, doctree):
        """Leave it to Sphinx's own collector."""

    def assign_section_numbers(self, env):
        """Set the numbers of all pages, and return the pages whose number changed."""
        before, env.toc_secnumbers = env.toc_secnumbers, {}
        for title in env.titles.values():
            title.attributes.pop("secnumber", None)
        numbered = [page for toctree in numbered_toctrees(env) for page in pages(env, toctree)]
        number_pages(env, numbered, ())
        return [page for page, number in env.toc_secnumbers.items() if before.get(page) != number]


def numbered_toctrees(env):
    """Yield the numbered toctrees of the first page."""
    doctree = env.get_doctree(env.config.root_doc)
    return (node for node in doctree.findall(addnodes.toctree) if node.get("numbered"))


def pages(env, toctree):
    """Return the pages of a toctree, without addresses of other sites."""
    return [page for _, page in toctree["entries"] if page in env.tocs]


def number_pages(env, below, parent):
    """Assign numbers to pages and, recursively, to the pages below them."""
    for last, page in enumerate(below, start=1):
        number = (*parent, last)
        env.titles[page]["secnumber"] = number
        env.toc_secnumbers[page] = {}
        for reference in env.tocs[page].findall(nodes.reference):
            anchor = reference["anchorname"]  # empty for the page itself
            env.toc_secnumbers[page][anchor] = () if anchor else number
            reference["secnumber"] = None if anchor else number
        toctrees = env.tocs[page].findall(addnodes.toctree)
        number_pages(env, [child for toctree in toctrees for child in pages(env, toctree)], number)


def keep_the_first_page(app, env):
    """Let Sphinx's own collector number one toctree only, as it warns of others in random order."""
    env.numbered_toctrees &= {app.config.root_doc}
    return []


def setup(app):
    """Add the collector, after Sphinx's own."""
    app.add_env_collector(ChapterNumbers)
    app.connect("env-get-updated", keep_the_first_page, priority=400)  # before all collectors
    # It does not say that pages may be read in parallel. The book does not use its numbers.
    app.extensions["sphinx_multitoc_numbering"].parallel_read_safe = True
    return {"parallel_read_safe": True, "parallel_write_safe": True}
