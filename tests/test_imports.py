"""The layers of the package, read from its folders: a module imports only what lies below it.

From the bottom up, with the allowed arrows:

- ``kernels``: numpy, numba and its llvmlite only.
- the core, in the order of `CORE`: each module imports only the ones before it.
- everything else that derives from the core is an algorithm: it imports the core, the kernels and
  other algorithms, but no transport.
- ``transports`` import the core and each other.
- `AROUND` are the programs and tools around the algorithms. Nothing below imports them.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "fedlib").rglob("*.py"))
}
KERNELS = "fedlib.kernels"
TRANSPORTS = "fedlib.transports"
CORE = [
    f"fedlib.{name}"
    for name in (
        "texts",
        "array_fields",
        "messages",
        "replies",
        "loss",
        "ledger",
        "threads",
        "records",
        "journal",
        "client",
        "protocol",
        "agreement",
        "transports.in_process",
        "validation",
        "federated",
    )
]
AROUND = {
    f"fedlib.{name}"
    for name in (
        "cli",
        "datasets",
        "files",
        "flower_app",
        "metrics",
        "model_values",
        "models",
        "partition",
        "plots",
        "policy",
        "score_plots",
        "site",
        "testing",
    )
}
# Imported inside a function, when it is needed and not before.
LATE = {
    "fedlib.ledger": {"fedlib.plots"},
    "fedlib.scores.clustering": {"fedlib.score_plots"},
    "fedlib.scores.evaluation": {"fedlib.score_plots"},
    "fedlib.summary.federated": {"fedlib.plots"},
}
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
    "cryptography": "fedlib.secure",
    "Crypto": "fedlib.secure",
    "opendp": "fedlib.privacy",
}

each_module = pytest.mark.parametrize("module", MODULES)


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
            # `from fedlib import messages` names the module fedlib.messages
            names |= {
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base
                for alias in node.names
                if (base, alias.name) != ("fedlib", "__version__")  # any module may use it
            }
    return names


def inside(name, package):
    return name == package or name.startswith(f"{package}.")


def outside(names, packages):
    """Return the names that lie in none of the packages."""
    return {name for name in names if not any(inside(name, package) for package in packages)}


def allowed(module):
    """Return the packages of ours that a module may import; None for all of them."""
    if module == "fedlib":
        return set()
    if inside(module, KERNELS):
        return {KERNELS}
    for place, package in enumerate(CORE):
        if module == package:
            return {*CORE[: place + 1], *LATE.get(module, set())}
    if inside(module, TRANSPORTS):
        return {*CORE, TRANSPORTS}
    if not outside({module}, AROUND):
        return None
    return {KERNELS, *CORE, *algorithms(), *LATE.get(module, set())}


def algorithms():
    """Return the modules that are neither core, kernel, transport nor around them."""
    return outside(set(MODULES) - {"fedlib"}, {KERNELS, TRANSPORTS, *CORE, *AROUND})


@each_module
def test_a_module_imports_only_what_lies_below_it(module):
    if (packages := allowed(module)) is not None:
        ours = {name for name in imported(module) if inside(name, "fedlib")}
        assert outside(ours, packages) == set()


@each_module
def test_kernels_import_numpy_and_the_compiler_only(module):
    if inside(module, KERNELS):
        allowed = {"numpy", "numba", "llvmlite", "math", "typing", KERNELS}
        assert outside(imported(module), allowed) == set()


@each_module
def test_each_framework_belongs_to_one_place(module):
    for name in imported(module):
        framework = FRAMEWORKS.get(name.split(".")[0])
        assert framework is None or inside(module, framework)


@each_module
def test_private_names_of_scikit_learn_are_imported_in_one_place(module):
    if module != "fedlib.validation":
        tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
        private = {
            f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sklearn")
            for alias in node.names
            if "._" in f".{node.module}.{alias.name}"
        }
        assert private == set()


@each_module
def test_a_module_has_one_subject(module):
    """No module is longer than about 500 lines."""
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= 520


def test_every_listed_place_exists():
    for place in {*CORE, *AROUND, *FRAMEWORKS.values()}:
        assert place in MODULES, place


def test_relative_and_absolute_imports_are_seen(monkeypatch, tmp_path):
    path = tmp_path / "probe.py"
    lines = ("from .. import messages", "from ..kernels.grid import x", "from fedlib import ledger")
    path.write_text("\n".join([*lines, "import flwr.app"]))
    monkeypatch.setitem(MODULES, "fedlib.transports.probe", path)
    for name in ("fedlib.messages", "fedlib.ledger"):
        monkeypatch.setitem(MODULES, name, path)
    assert imported("fedlib.transports.probe") == {
        "fedlib.messages",
        "fedlib.kernels.grid",
        "flwr.app",
        "fedlib.ledger",
    }
