"""Who may import whom: the direction that keeps algorithms apart from transports."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "fedlib").rglob("*.py"))
}
KERNELS = "fedlib.kernels"
# In this order: each imports only what stands before it.
CORE = [
    "fedlib.messages",
    "fedlib.ledger",
    "fedlib.protocol",
    "fedlib.transports",
    "fedlib.federated",
]
ALGORITHMS = {
    f"fedlib.{name}"
    for name in (
        "boosting",
        "cuts",
        "dbdc",
        "dbscan",
        "gmm",
        "gmm_dbscan",
        "growth",
        "horizontal_dbscan",
        "kmeans",
        "ppdbdc",
        "sdbdc",
        "trees",
        "vertical_dbscan",
    )
}
# Data, figures, commands: no protocol needs them; the ledger asks `plots` for its picture.
AROUND = {
    f"fedlib.{name}"
    for name in (
        "cli",
        "datasets",
        "flower_app",
        "metrics",
        "partition",
        "plots",
        "shapes",
        "stand_ins",
        "tables",
    )
}
# Each framework has one module that knows it.
FRAMEWORKS = {
    "flwr": "fedlib.transports.flower",
    "ray": "fedlib.transports.flower",
    "flask": "fedlib.transports.http",
    "cheroot": "fedlib.transports.http",
    "werkzeug": "fedlib.transports.http",
    "httpx": "fedlib.transports.http_client",
    "click": "fedlib.cli",
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
                base = ".".join(
                    [*package.split(".")[: len(package.split(".")) + 1 - node.level], base]
                )
                base = base.rstrip(".")
            # `from fedlib import messages` names the module fedlib.messages
            names |= {
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base
                for alias in node.names
            }
    return names


def inside(name, package):
    return name == package or name.startswith(f"{package}.")


def outside(names, packages):
    """Return the names that lie in none of the packages."""
    return {name for name in names if not any(inside(name, package) for package in packages)}


@each_module
def test_every_module_has_a_place(module):
    places = [KERNELS, *CORE, *ALGORITHMS, *AROUND]
    assert module == "fedlib" or not outside({module}, places)


@each_module
def test_kernels_import_numpy_and_numba_only(module):
    if inside(module, KERNELS):
        assert outside(imported(module), {"numpy", "numba", "math", KERNELS}) == set()


@each_module
def test_the_core_looks_in_one_direction(module):
    for place, package in enumerate(CORE):
        if inside(module, package):
            own = {name for name in imported(module) if inside(name, "fedlib")}
            drawing = {"fedlib.plots"} if module == "fedlib.ledger" else set()
            assert outside(own, {*CORE[: place + 1], *drawing}) == set()


@each_module
def test_an_algorithm_knows_no_transport(module):
    if module in ALGORITHMS:
        own = {name for name in imported(module) if inside(name, "fedlib")}
        below = {KERNELS, "fedlib.messages", "fedlib.protocol", "fedlib.federated", *ALGORITHMS}
        assert outside(own, below) == set()


@each_module
def test_one_module_knows_each_framework(module):
    for name in imported(module):
        assert FRAMEWORKS.get(name.split(".")[0], module) == module


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
