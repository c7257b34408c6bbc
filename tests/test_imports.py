"""Imports go one way: an entry of the package imports only the entries before it in `ENTRIES`.

This holds for imports inside functions and under ``TYPE_CHECKING`` too, and no modules import each
other in a circle.
"""

import ast
import io
import tokenize
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "fedlib").rglob("*.py"))
}
# From the bottom up.
ENTRIES = [
    "kernels",
    "figures",
    "datasets",
    "core",
    "protection",
    "tables",
    "clustering",
    "boosting",
    "evaluation",
    "sites",
    "transports",
    "cli",
    "testing",
]
# These are used alone, in other projects and in processes that start quickly.
ALONE = {"kernels", "figures", "datasets"}
# Each framework belongs to one place.
FRAMEWORKS = {
    "flwr": "fedlib.transports.flower",
    "ray": "fedlib.transports.flower",
    "starlette": "fedlib.transports.http",
    "uvicorn": "fedlib.transports.http",
    "httptools": "fedlib.transports.http",
    "httpx": "fedlib.transports.http",
    "click": "fedlib.cli",
    "dask": "fedlib.transports.dask",
    "distributed": "fedlib.transports.dask",
    "cryptography": "fedlib.protection.secure",
    "Crypto": "fedlib.protection.secure",
    "opendp": "fedlib.protection.privacy",
    "sqlalchemy": "fedlib.tables.databases",
    "psycopg": "fedlib.tables.databases",
}


@cache
def imported(module):
    """Return the names of all modules that a module imports, anywhere in its text."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) + 1 - node.level]
                base = ".".join([*parents, base]).rstrip(".")
            # `from fedlib.core import messages` names the module fedlib.core.messages
            names |= {
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base
                for alias in node.names
                if (base, alias.name) != ("fedlib", "__version__")  # any module may use it
            }
    return names


def inside(name, package):
    return name == package or name.startswith(f"{package}.")


def entry(module):
    """Return the entry of the package to which one of our modules belongs."""
    return module.split(".")[1]


def ours(names):
    return {name for name in names if inside(name, "fedlib")}


def test_the_order_lists_all_entries():
    folder = {path.stem for path in (ROOT / "fedlib").iterdir() if path.suffix in ("", ".py")}
    assert folder - {"__pycache__", "__init__"} == set(ENTRIES)


def between_entries():
    """Yield each module below the top and a module that it imports."""
    for module in MODULES:
        for name in sorted(ours(imported(module))):
            assert module != "fedlib", f"fedlib imports {name}"
            yield module, name


def test_a_module_imports_only_entries_before_its_own():
    above = [
        (module, name)
        for module, name in between_entries()
        if ENTRIES.index(entry(name)) > ENTRIES.index(entry(module))
    ]
    assert above == []


def test_the_lowest_entries_import_nothing_of_ours_but_themselves():
    others = [
        (module, name)
        for module, name in between_entries()
        if entry(module) in ALONE and entry(name) != entry(module)
    ]
    assert others == []


def test_few_entries_import_each_other():
    pairs = {
        (entry(module), entry(name))
        for module, name in between_entries()
        if entry(name) != entry(module)
    }
    assert len(pairs) <= 35, sorted(pairs)


def test_no_modules_import_each_other_in_a_circle():
    graph = {
        module: {name for name in ours(imported(module)) if not inside(module, name)}
        for module in MODULES
    }
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_kernels_import_numpy_and_the_compiler_only():
    allowed = {"fedlib", "numpy", "numba", "llvmlite", "math", "typing"}
    others = {
        module: others
        for module in MODULES
        if inside(module, "fedlib.kernels")
        and (others := {name.split(".")[0] for name in imported(module)} - allowed)
    }
    assert others == {}


def test_each_framework_belongs_to_one_place():
    elsewhere = [
        (module, name)
        for module in MODULES
        for name in imported(module)
        if not inside(module, FRAMEWORKS.get(name.split(".")[0], module))
    ]
    assert elsewhere == []


def test_private_names_of_scikit_learn_are_imported_in_one_place():
    private = {
        module
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sklearn")
        if any("._" in f".{node.module}.{alias.name}" for alias in node.names)
    }
    assert private == {"fedlib.core.parameters"}


def test_only_packages_list_their_names():
    """And three modules from which others take names that are defined elsewhere."""
    listing = {
        module
        for module, path in MODULES.items()
        if path.name != "__init__.py" and "\n__all__ = " in path.read_text(encoding="utf-8")
    }
    assert listing == {f"fedlib.core.{name}" for name in ("messages", "parameters", "protocol")}


# Tokens that are no code.
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines_of_code(text):
    """Return the lines of a module without comments, docstrings and texts of parameters."""
    documents = set()
    for node in ast.walk(ast.parse(text)):
        texts = []
        if isinstance(node, ast.Expr):
            texts = [node.value]
        elif isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Annotated":
            texts = node.slice.elts
        for one in texts:
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                documents.update(range(one.lineno, one.end_lineno + 1))
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documents)


def test_a_module_has_one_subject():
    """No module has more than 400 lines of code."""
    sizes = {
        module: lines_of_code(path.read_text(encoding="utf-8")) for module, path in MODULES.items()
    }
    assert {module: size for module, size in sizes.items() if size > 400} == {}


def test_lines_of_code_are_those_without_documents():
    text = '''"""Doc."""
# comment
class A:
    """Doc
    of two lines."""

    x: Annotated[
        int,
        """Text
        of a parameter.""",
    ] = 1
    y = (
        "text",
    )
'''
    assert lines_of_code(text) == 7


def test_relative_and_absolute_imports_are_seen(monkeypatch, tmp_path):
    path = tmp_path / "probe.py"
    lines = (
        "from ..core import messages",
        "from ..kernels.grid import x",
        "if TYPE_CHECKING:\n    from fedlib.core import ledger",
        "def later():\n    import flwr.app",
    )
    path.write_text("\n".join(lines))
    monkeypatch.setitem(MODULES, "fedlib.transports.probe", path)
    assert imported("fedlib.transports.probe") == {
        "fedlib.core.messages",
        "fedlib.kernels.grid",
        "fedlib.core.ledger",
        "flwr.app",
    }
