"""Number the chapters in the order of the table of contents, in every build.

sphinx-multitoc-numbering numbers the tables of contents in the order in which Sphinx has read their
pages. That order depends on the number of processes and on what was built before, so the first
chapter could get the number 7.
"""


def root_first(app, env):
    """Let the table of contents of the whole book come first, then those of pages by name."""
    root = env.config.root_doc
    env.tocs = {name: env.tocs[name] for name in sorted(env.tocs, key=lambda n: (n != root, n))}
    return []


def setup(app):
    """Connect the function to Sphinx, before the numbers are given."""
    app.connect("env-get-updated", root_first, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
