"""What depends on the public addresses in `_config.yml`: of the repository and of the book.

Without the repository's address, pages have no buttons that lead to it or start its notebooks.
Without the book's address, the page for wrong addresses refers to the root of its host, and
previews have no address of the page and no image, which must not be relative. A page's description
in previews and in results of search engines is its question.
"""

import html
import re
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes

LAUNCH = {"binderhub_url": "https://mybinder.org", "notebook_interface": "jupyterlab"}
COLAB = "https://colab.research.google.com/github"
COLAB_BUTTON = {
    "type": "link",
    "text": "Colab",
    "tooltip": "Launch on Colab",
    "icon": "_static/images/logo_colab.png",
}
REPEATED = re.compile(r"(/notebooks/\w+)-[^/]*\.ipynb")
NOT_FOUND = "404"
QUESTION = "Question."
DESCRIBED = 200  # characters of a description
WITH_ADDRESS = re.compile(r'<meta property="og:(?:url|image(?::\w+)?)"[^>]*>\s*')
RELATIVE = re.compile(r'((?:href|src|action|data-content_root)=")(?!#|/|[a-z]+:)(?:\./)?([^"]*)')


def use_addresses(app, config):
    """Add the buttons and the address in previews."""
    options = config.html_theme_options
    if options.get("repository_url"):
        options["launch_buttons"] = LAUNCH
        options["use_repository_button"] = options["use_issues_button"] = True
    config.ogp_site_url = config.html_baseurl
    config.html_additional_pages[NOT_FOUND] = "404.html"


def adapt_buttons(app, pagename, templatename, context, doctree):
    """Let the launch buttons open files that exist in the repository, and add one for Colab.

    A page that repeats a notebook with other parameters has no file. Colab opens one notebook
    without the files that it needs, so its button opens `binder/colab.ipynb`, which fetches them.
    """
    address = urlsplit(app.config.html_theme_options.get("repository_url", ""))
    for group in context.get("header_buttons", []):
        if group.get("label") == "launch-buttons":
            for button in group["buttons"]:
                button["url"] = REPEATED.sub(r"\1.ipynb", button["url"])
            if address.netloc == "github.com":
                url = f"{COLAB}{address.path}/blob/HEAD/binder/colab.ipynb"
                group["buttons"].append(COLAB_BUTTON | {"url": url})


def describe(app, pagename, templatename, context, doctree):
    """Let the question of a page be its description, without the word "Question"."""
    for paragraph in doctree.findall(nodes.paragraph) if doctree else ():
        text = " ".join(paragraph.astext().split())
        if text.startswith(QUESTION):
            text = text.removeprefix(QUESTION).strip()
            if len(text) > DESCRIBED:
                text = text[:DESCRIBED].rpartition(" ")[0] + " …"
            content = html.escape(text)
            context["metatags"] += f'<meta name="description" content="{content}">\n'
            context["meta"] = {**(context["meta"] or {}), "og:description": content}
            return


def drop_relative(app, pagename, templatename, context, doctree):
    """Remove the addresses in previews if nobody knows where the book is."""
    if not app.config.html_baseurl:
        context["metatags"] = WITH_ADDRESS.sub("", context.get("metatags", ""))


def make_absolute(app, error):
    """Let the page for wrong addresses refer to other files by absolute paths.

    A host sends this page for any path, so relative references would lead nowhere.
    """
    page = Path(app.outdir, f"{NOT_FOUND}.html")
    if error is None and page.exists():
        root = urlsplit(app.config.html_baseurl).path.rstrip("/") + "/"
        text = page.read_text(encoding="utf-8")
        page.write_text(RELATIVE.sub(rf"\g<1>{root}\g<2>", text), encoding="utf-8")


def setup(app):
    """Connect the functions to Sphinx."""
    app.connect("config-inited", use_addresses)
    app.connect("html-page-context", adapt_buttons, priority=900)  # after the theme's own buttons
    app.connect("html-page-context", describe, priority=400)  # before sphinxext.opengraph
    app.connect("html-page-context", drop_relative, priority=900)  # after it
    app.connect("build-finished", make_absolute, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
