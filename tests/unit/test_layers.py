"""Who may import whom: the halves are apart, and the fast path stays with what is built in."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import FrozenImporter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
FORBIDDEN = {"supervisor", "trio", "lupa", "daemon"}
FAST = (
    "scrun._fast",
    "scrun.protocol.wire",
    "scrun.anchor.shell",
    "scrun.anchor.pid_file",
    "scrun.commands.create",
    "scrun.cli.parse",
    "scrun.oci.ids",
    "scrun.settings.file.quick",
    "scrun.core.version",
)
SCRUN = sorted((REPOSITORY / "scrun").rglob("*.py"))


def imports(source: str, package: str) -> Iterator[str]:
    """Every module that the source names in an import, wherever in it, in full."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.endswith(("__import__", "import_module")):
                yield ast.unparse(node.args[0]).strip("'\"")


@pytest.mark.parametrize("path", SCRUN, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_scrun_imports_nothing_of_the_supervisor(path: Path) -> None:
    package = ".".join(path.relative_to(REPOSITORY).parent.parts)
    found = {name.partition(".")[0] for name in imports(path.read_text(), package)}
    assert not found & FORBIDDEN


def test_the_walk_sees_imports_everywhere() -> None:
    source = """
import a.b as c
from d import e
def f():
    if c:
        from ..g import h
    __import__("i")
    importlib.import_module("j.k")
"""
    found = set(imports(source, "top.middle"))
    assert {"a.b", "d", "d.e", "top.g", "top.g.h", "i", "j.k"} <= found


@pytest.mark.parametrize("package", ["", "cli", "commands", "oci", "settings"])
def test_packages_on_the_fast_path_are_empty(package: str) -> None:
    assert (REPOSITORY / "scrun" / package / "__init__.py").read_text() == ""


def imported(*modules: str) -> set[str]:
    """What a bare interpreter imports for these modules."""
    program = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})"
    program += "".join(f"; import {module}" for module in modules)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines} - {"imported package"}


def heavy(modules: set[str]) -> set[str]:
    """Those that are neither built in, nor frozen, nor ours, nor the interpreter's own need."""
    return {
        name
        for name in modules - imported()
        if name not in sys.builtin_module_names
        and FrozenImporter.find_spec(name) is None
        and name.partition(".")[0] != "scrun"
    }


@pytest.mark.parametrize("module", FAST)
def test_fast_path(module: str) -> None:
    modules = imported(module)
    assert module in modules
    assert not heavy(modules)


def test_fast_path_as_a_whole() -> None:
    modules = imported(*FAST)
    assert not heavy(modules)
    ours = {name for name in modules if name.startswith("scrun")}
    # errors, ids and the table of options come along; whatever else does should be meant
    packages = {"scrun", "scrun.cli", "scrun.commands", "scrun.oci", "scrun.settings"}
    assert ours == {*FAST, *packages, "scrun.cli.grammar", "scrun.core.errors"}


def test_what_heavy_finds() -> None:
    assert {"json", "re"} <= heavy(imported("json"))
