"""The reference: what autodoc and numpydoc do not know about `fedlib` and about the chapters.

- The page of an object names the chapters that use it.
- The description of a message lists its fields with their ranges, its reply, and what it discloses.
- The name of an object in the text of a chapter links to the object's page.
- Objects of other projects are linked by the addresses in `inventories.csv`, without a network.

`book/reference.md` lists the documented objects.
"""

import ast
import csv
import math
import re
import zlib
from inspect import isclass
from pathlib import Path
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import nbformat
import numpy as np
from docutils import nodes
from sphinx.ext.autosummary import ImportExceptionGroup, import_by_name
from sphinx.ext.autosummary.generate import find_autosummary_in_files
from sphinx.transforms.post_transforms import SphinxPostTransform

from fedlib.core.messages import Array, Message

INDEX = "book/reference"
SHARED = "study.shared"  # what all notebooks use
PROJECTS = {
    "matplotlib": "https://matplotlib.org/stable/",
    "numpy": "https://numpy.org/doc/stable/",
    "pandas": "https://pandas.pydata.org/docs/",
    "python": "https://docs.python.org/3/",
    "sklearn": "https://scikit-learn.org/stable/",
    "xgboost": "https://xgboost.readthedocs.io/en/stable/",
}
# Words for types in docstrings, besides those that numpydoc knows.
TYPES = {
    "Axes": "matplotlib.axes.Axes",
    "DataFrame": "pandas.DataFrame",
    "Path": "pathlib.Path",
    "bytes": ":class:`python:bytes`",
    "mapping": ":term:`python:mapping`",
    "set": ":class:`python:set`",
}
MESSAGES = "autosummary/messages.rst"  # the template for the messages of a module
# Members of these classes of other projects are documented there.
FOREIGN = (
    "BaseEstimator, ClassifierMixin, ClusterMixin, RegressorMixin, Exception, Generic, Mapping,"
    " Struct, tuple"
)
ROUTING = re.compile(r"set_\w+_request|get_metadata_routing")  # methods that scikit-learn adds
BOUNDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


def use_inventories(app, config):
    """Write the inventories from the table, and let intersphinx read them."""
    with Path(app.srcdir, "book/inventories.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    folder = Path(app.outdir).parent / "inventories"
    folder.mkdir(parents=True, exist_ok=True)
    for project, address in PROJECTS.items():
        path = folder / f"{project}.inv"
        path.write_bytes(inventory(row for row in rows if row["project"] == project))
        config.intersphinx_mapping[project] = (address, str(path))


def inventory(rows):
    """Return the content of an `objects.inv` for rows with ``object``, ``role`` and ``address``."""
    header = "# Sphinx inventory version 2\n# Project: -\n# Version: -\n"
    header += "# The remainder of this file is compressed using zlib.\n"
    lines = (f"{row['object']} {row['role']} 1 {row['address']} -\n" for row in rows)
    return header.encode() + zlib.compress("".join(lines).encode())


def listed_objects(app):
    """Return all documented objects by name, and the names of the modules with messages."""
    entries = find_autosummary_in_files([str(Path(app.srcdir, f"{INDEX}.md"))])
    objects = {entry.name: import_by_name(entry.name)[1] for entry in entries}
    return objects, [entry.name for entry in entries if entry.template == MESSAGES]


def link_types(app, config):
    """Let numpydoc link the names of types that have a page, here or in another project."""
    objects, _ = listed_objects(app)
    classes = {value.__name__: name for name, value in objects.items() if isclass(value)}
    config.numpydoc_xref_aliases = TYPES | classes
    config.numpydoc_xref_ignore = "all"  # other words; Sphinx refuses this value in _config.yml


def describe_objects(app, config):
    """Set what the templates of the pages need: the messages of modules, and the chapters."""
    objects, modules = listed_objects(app)
    messages = {name: messages_of(objects[name]) for name in modules}
    used = {}
    for page in config.external_site_map:
        if page.startswith("notebooks/") and "-" not in page:  # with a hyphen: a repetition
            for value in used_in(Path(app.srcdir, f"{page}.ipynb"), objects):
                used.setdefault(id(value), []).append(page)
    pages = {name: used.get(id(value), []) for name, value in objects.items()}
    for module, names in messages.items():
        found = {
            page for name in names for page in used.get(id(getattr(objects[module], name)), [])
        }
        pages[module] = [page for page in config.external_site_map if page in found]
    config.autosummary_context = {"foreign": FOREIGN, "messages": messages, "used_in": pages}


def messages_of(module):
    """Return the names of the messages that a module defines, in their order there."""
    return [
        name
        for name, value in vars(module).items()
        if isclass(value) and issubclass(value, Message) and value.__module__ == module.__name__
    ]


def used_in(path, objects):
    """Return the objects that a notebook or one of its modules uses, or that its text names.

    The modules that all notebooks share do not count. In the text only names of classes count, as
    `` `Name` ``: many functions are called like parameters or like words of the text.
    """
    cells = nbformat.read(path, as_version=4).cells
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    classes = {value.__name__: value for value in classes_of(objects)}
    found = [classes[name] for name in re.findall(r"`([A-Z]\w+)`", text) if name in classes]
    trees = [ast.parse(re.sub(r"^\s*[%!].*", "", "\n".join(sources), flags=re.MULTILINE))]
    modules = set()
    for tree in trees:  # grows by the modules that a tree imports
        found += imported_in(tree)
        for name in module_names(tree) - modules:
            module = path.parent / f"{name.replace('.', '/')}.py"
            if module.exists() and not name.startswith(SHARED):
                modules.add(name)
                trees.append(ast.parse(module.read_text(encoding="utf-8")))
    return list({id(value): value for value in found}.values())


def module_names(tree):
    """Return the names of the modules that a program imports, and of what could be one."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def imported_in(tree):
    """Return the objects that a program imports from `fedlib`, directly or as ``module.name``."""
    bound = {
        alias.asname or alias.name: import_by_name(f"{node.module}.{alias.name}")[1]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedlib")
        for alias in node.names
    }
    members = [
        getattr(bound[node.value.id], node.attr, None)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in bound
    ]
    return [*bound.values(), *members]


def classes_of(objects):
    """Return the documented classes, and the messages that the documented modules define."""
    for value in objects.values():
        if isclass(value):
            yield value
        elif hasattr(value, "__path__") or not hasattr(value, "__module__"):
            yield from (getattr(value, name) for name in messages_of(value))


def describe_message(app, what, name, value, options, lines):
    """Add the fields, the reply and the disclosure to the docstring of a message."""
    if what != "class" or not issubclass(value, Message) or value is Message:
        return
    hints = get_type_hints(value, include_extras=True)
    facts = [f"**Discloses:** {value.discloses}."]
    if "reply" in vars(value):
        facts.append(f"**Reply:** `{value.reply.__name__}`.")
    lines += ["", " ".join(facts)]
    if fields := value.__struct_fields__:
        lines += ["", "Parameters", "----------"]
        lines += [f"{field} : {describe_type(hints[field])}" for field in fields]


def describe_type(hint):
    """Return the type, shape and range of a message's field in words."""
    marks = getattr(hint, "__metadata__", ())
    for mark in marks:
        if isinstance(mark, Array):
            shape = f"array ({', '.join(mark.axes)}{',' * (len(mark.axes) == 1)}) of {mark.dtype}"
            return ", ".join([shape, *describe_bounds({"ge": mark.ge, "le": mark.le})])
    bounds = [text for mark in marks if isinstance(mark, msgspec.Meta) for text in limits(mark)]
    inner = get_args(hint)[0] if marks else hint
    return ", ".join([name_type(inner), *bounds])


def limits(mark):
    """Return the limits of a number, a length or a text in words."""
    yield from describe_bounds({key: getattr(mark, key) for key in BOUNDS})
    if mark.max_length is not None:
        yield f"at most {mark.max_length} items"
    if mark.pattern is not None:
        yield f"matching ``{mark.pattern}``"


def describe_bounds(bounds):
    """Return the bounds of a number in words."""
    present = {key: write_number(bound) for key, bound in bounds.items() if bound is not None}
    if {"ge", "le"} <= set(present):
        return [f"from {present['ge']} to {present['le']}"]
    return [f"{BOUNDS[key]} {bound}" for key, bound in present.items()]


def write_number(number):
    """Return a number as text; a large power of two as such."""
    if abs(number) >= 2**16 and math.log2(abs(number)).is_integer():
        return f"{'-' * (number < 0)}2**{int(math.log2(abs(number)))}"
    return f"{number:g}" if isinstance(number, float) else str(number)


def name_type(hint):
    """Return the name of a type, without its module, or the values of a `Literal`."""
    if (origin := get_origin(hint)) is None:
        return "array" if hint is np.ndarray else getattr(hint, "__name__", str(hint))
    parts = [part for part in get_args(hint) if part is not ...]
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin in (Union, UnionType):
        return " or ".join(map(describe_type, parts)).replace("NoneType", "None")
    return f"{origin.__name__} of {' and '.join(map(describe_type, parts))}"


def skip_routing(app, what, name, value, skip, options):
    """Leave out the methods that scikit-learn adds to every estimator for metadata."""
    return True if ROUTING.fullmatch(name) else None


def keep_helpers(app, env, node, content):
    """Accept a docstring's reference to an object of `fedlib` that has no page, as code.

    Sphinx reports every other name that has no target, and so also one that does not exist.
    """
    target = node.get("reftarget", "")
    module = node.get("py:module") or "fedlib"
    parent = ".".join(filter(None, [module, node.get("py:class")]))
    if node.get("refdomain") == "py" and any(
        map(exists, (target, f"{module}.{target}", f"{parent}.{target}"))
    ):
        return content
    return None


def exists(name):
    """Return whether a name is that of an object of `fedlib`."""
    try:
        return name.startswith("fedlib.") and import_by_name(name) is not None
    except (ImportError, ImportExceptionGroup):
        return False


def classes_with_pages(env):
    """Return the place ``(page, anchor)`` of each class of `fedlib`, by its name."""
    return {
        name.rpartition(".")[2]: (entry.docname, entry.node_id)
        for name, entry in env.get_domain("py").objects.items()
        if entry.objtype in ("class", "exception") and not entry.aliased
    }


def _is_within(node, kinds):
    """Return whether a node has an ancestor of one of the kinds."""
    while node := node.parent:
        if isinstance(node, kinds):
            return True
    return False


class LinkNames(SphinxPostTransform):
    """Link the first mention of each class to its page in the reference.

    That is the first one in a chapter's text, and the first one in each box and in each table.
    """

    default_priority = 400

    def run(self):
        """Replace the literal text by a link that contains it."""
        if self.env.docname.startswith(INDEX):
            return
        names = classes_with_pages(self.env)
        done = set()
        for literal in list(self.document.findall(nodes.literal)):
            name, place = literal.astext(), literal.parent
            while place is not None and not isinstance(place, nodes.admonition | nodes.table):
                place = place.parent
            linked = _is_within(literal, nodes.reference | nodes.title)
            if name in names and not linked and (name, id(place)) not in done:
                done.add((name, id(place)))
                page, anchor = names[name]
                address = self.app.builder.get_relative_uri(self.env.docname, page)
                file = address.partition("#")[0]  # if the book is one page, its own addresses
                link = nodes.reference("", "", refuri=f"{file}#{anchor}", internal=True)
                literal.replace_self(link)
                link += literal


def mend_links_back(app, error):
    """Correct the links from source code to the reference.

    If a module's first documented object has a shorter public name, such as
    ``fedlib.HorizontalDBSCAN``, viewcode takes the public module for all objects of the module.
    They can be documented under the name of their module, of its package, or of another module
    that offers them; an object that is documented twice is linked on the page that the link names.
    """
    if error is not None or app.builder.name != "html":
        return
    objects = app.env.get_domain("py").objects
    folder = Path(app.outdir, "_modules")
    for page in folder.glob("fedlib/**/*.html"):
        module = ".".join(page.relative_to(folder).with_suffix("").parts)

        def place(link, module=module):
            described, name = link.groups()
            parts = name.split(".")
            prefixes = module, module.rpartition(".")[0], described.rpartition(".")[0]
            names = [
                ".".join([prefix, *parts[first:]])
                for prefix in prefixes
                for first in range(1, len(parts))
            ]
            known = [objects[name] for name in names if name in objects]
            here = [entry for entry in known if entry.docname.rpartition("/")[2] == described]
            return f'{described}.html#{(here or known)[0].node_id if known else name}"'

        text = page.read_text(encoding="utf-8")
        pattern = r'(fedlib[\w.]*)\.html#(fedlib\.[\w.]+)"'
        page.write_text(re.sub(pattern, place, text), encoding="utf-8")


def setup(app):
    """Connect the functions to Sphinx."""
    app.connect("config-inited", use_inventories)
    app.connect("config-inited", link_types, priority=400)  # before numpydoc
    app.connect("config-inited", describe_objects, priority=950)  # after the table of contents
    app.connect("autodoc-process-docstring", describe_message, priority=400)  # before numpydoc
    app.connect("autodoc-skip-member", skip_routing)
    app.connect("missing-reference", keep_helpers, priority=900)  # after intersphinx
    app.connect("build-finished", mend_links_back)
    app.add_post_transform(LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
