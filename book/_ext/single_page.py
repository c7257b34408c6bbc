"""Let the builder `singlehtml`, from whose page the PDF is printed, draw what `html` draws.

Sphinx looks up how to draw the nodes of an extension by the name of the builder, and by the format
``html`` only if no extension has registered anything under that name. sphinx-exercise has, so
without this extension cards, grids and output of notebooks would be unknown nodes.
"""


def share_visitors(app):
    """Use the functions registered for `html` where there are none for `singlehtml`."""
    handlers = app.registry.translation_handlers
    handlers["singlehtml"] = {**handlers.get("html", {}), **handlers.get("singlehtml", {})}


def setup(app):
    """Connect the function to Sphinx."""
    app.connect("builder-inited", share_visitors)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
