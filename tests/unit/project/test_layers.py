"""Who may import whom: folders, each in one process, with arrows that go downwards only."""

import ast
import sys
from collections.abc import Iterator
from importlib.machinery import FrozenImporter
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.harness.program import run_program

pytestmark = pytest.mark.covers("promise the client never imports the supervisor")

FAST = (
    "scrun.main",
    "scrun.anchor.pid_file",
    "scrun.anchor.shell",
    "scrun.cli.parse",
    "scrun.client.anchored",
    "scrun.client.ask",
    "scrun.commands.create",
    "scrun.core.version",
    "scrun.oci.ids",
    "scrun.protocol.wire",
    "scrun.settings.file.sources",
)

# A folder may import those of its own line and of the lines above it, and nothing else.
COMMAND = """
core
protocol oci
model
settings.slurm
settings.file
settings
settings.oci_conf settings.spank
images
pull
cli anchor install
cli.completion native
client
commands
"""
SHARED = "core protocol oci model settings settings.file settings.slurm settings.oci_conf " \
    "settings.spank images cli"  # fmt: skip
SUPERVISOR = """
wire
log worker shim keeper
reapers
core
children
contracts
nodes
scripts engines.local engines.slurm engines
scripts.spank
staging
plugins
containers
sessions
daemon
programs programs.doctor
"""
APART = ("worker", "reapers", "shim", "keeper")
"""Folders of processes that have nothing of the supervisor's."""


def modules(folder: str) -> dict[str, Path]:
    """The modules below a folder of the checkout, by the names by which they are imported."""
    found = {}
    for path in sorted((CHECKOUT / folder).rglob("*.py")):
        parts = path.relative_to(CHECKOUT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[f"scrun.{name}" if folder == "supervisor" else name] = path
    return found


MODULES = modules("scrun") | modules("supervisor")


def imports(source: str, package: str) -> Iterator[str]:
    """Every module that the source names in an import, wherever in it, in full."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                full = f"{module}.{alias.name}"
                yield full if full in MODULES or not node.module else module
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.endswith(("__import__", "import_module")):
                yield ast.unparse(node.args[0]).strip("'\"")


def folder_of(module: str) -> str:
    is_folder = MODULES[module].name == "__init__.py"
    return module if is_folder else module.rpartition(".")[0]


def graph() -> dict[str, set[str]]:
    """Which folder imports which others."""
    found: dict[str, set[str]] = {folder_of(module): set() for module in MODULES}
    for module, path in MODULES.items():
        here = folder_of(module)
        for name in imports(path.read_text(), here):
            if name in MODULES and folder_of(name) != here:
                found[here].add(folder_of(name))
    return found


GRAPH = graph()


def in_order(text: str, prefix: str) -> list[set[str]]:
    """The lines of a drawing of folders."""
    return [{f"{prefix}.{name}" for name in line.split()} for line in text.strip().splitlines()]


def allowed() -> dict[str, set[str]]:
    """What each folder may import."""
    may: dict[str, set[str]] = {"scrun": set(GRAPH)}
    below: set[str] = set()
    for line in in_order(COMMAND, "scrun"):
        below = below | line
        may |= dict.fromkeys(line, below)
    command = below
    shared = {f"scrun.{name}" for name in SHARED.split()}
    below = set()
    for line in in_order(SUPERVISOR, "scrun.supervisor"):
        below |= line
        has = command if "scrun.supervisor.programs" in line else shared
        may |= dict.fromkeys(line, below | has)
    may["scrun.supervisor"] = below | shared
    may |= {f"scrun.supervisor.{name}": shared | {"scrun.anchor"} for name in APART}
    may["scrun.supervisor.reapers"] |= {"scrun.supervisor.shim"}
    may["scrun.supervisor.shim"] = {"scrun.supervisor.wire"}  # on a node is nothing else of ours
    may["scrun.supervisor.wire"] = set()
    return may


def test_folders_import_downwards_only(capsys: pytest.CaptureFixture[str]) -> None:
    may = allowed()
    for folder in may:
        needs = ", ".join(sorted(GRAPH.get(folder, ())))
        print(f"{folder} <- {needs}")
    assert GRAPH.keys() <= may.keys(), "a new folder: which process does it run in?"
    assert {folder: needs - may[folder] for folder, needs in GRAPH.items()} == {
        folder: set() for folder in GRAPH
    }
    print(capsys.readouterr().out)  # pytest -rP shows it


def test_there_are_no_circles() -> None:
    left = {folder: set(needs) for folder, needs in GRAPH.items()}
    while free := [folder for folder, needs in left.items() if not needs]:
        for folder in free:
            del left[folder]
        left = {folder: needs.difference(free) for folder, needs in left.items()}
    assert not left


@pytest.mark.parametrize("module", sorted(modules("scrun")))
def test_commands_import_nothing_that_only_the_supervisor_may(module: str) -> None:
    forbidden = {"supervisor", "trio", "lupa", "daemon"}
    named = set(imports(MODULES[module].read_text(), folder_of(module)))
    assert not {name for name in named if name.startswith("scrun.supervisor")}
    assert not {name.partition(".")[0] for name in named} & forbidden


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
    assert set(imports(source, "top.middle")) == {"a.b", "d", "top.g", "i", "j.k"}


@pytest.mark.parametrize("folder", ["scrun", "supervisor"])
def test_the_top_is_nearly_empty(folder: str) -> None:
    assert len(list((CHECKOUT / folder).glob("*.py"))) <= 3


def test_modules_are_small() -> None:
    lines = {
        str(path): path.read_text().count("\n")
        for path in MODULES.values()
        if path.name != "__init__.py"
    }
    assert not {path: count for path, count in lines.items() if count > 600}


@pytest.mark.parametrize(
    "package", sorted(folder for folder in GRAPH if not folder.startswith("scrun.supervisor"))
)
def test_packages_of_the_commands_are_empty(package: str) -> None:
    assert MODULES[package].read_text() == ""


def imported(*modules: str) -> set[str]:
    """What a bare interpreter imports for these modules."""
    program = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r})"
    program += "".join(f"; import {module}" for module in modules)
    done = run_program([sys.executable, "-I", "-S", "-X", "importtime", "-c", program])
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
    # what else comes along should be meant
    along = {
        "scrun.anchor.foreground", "scrun.cli.failure", "scrun.cli.grammar", "scrun.client.reach",
        "scrun.client.submit", "scrun.client.supervisor_name", "scrun.core.errors",
        "scrun.core.output", "scrun.core.paths", "scrun.core.place", "scrun.core.ready",
        "scrun.core.rights", "scrun.core.text", "scrun.protocol.anchor",
    }  # fmt: skip
    assert {name for name in ours if name not in GRAPH} == {*FAST, *along}


def test_completion_is_light() -> None:
    """It answers a key that somebody has pressed."""
    assert not heavy(imported("scrun.commands.completion", "scrun.settings.file.sources"))


@pytest.mark.parametrize(
    ("module", "along"),
    [
        ("scrun.client.ask", set()),
        ("scrun.settings.file.sources", set()),
        ("scrun.core.output", set()),
        ("scrun.cli.failure", {"scrun.core.text"}),
        ("scrun.client.reach", {"scrun.core.paths"}),
        ("scrun.commands.create", {"scrun.client.submit"}),
        ("scrun.anchor.shell", set()),
        ("scrun.anchor.pid_file", set()),
        ("scrun.client.anchored", {"scrun.protocol.wire"}),
        ("scrun.commands.exec", {"scrun.anchor.foreground"}),
        ("scrun.core.namespaces", {"_ctypes"}),
    ],
)
def test_frequent_commands_need_no_more_than_posix(module: str, along: set[str]) -> None:
    """`os` alone is a sixth of a `state`; of an unknown id, too."""
    modules = imported("scrun.main", module)
    assert along <= modules
    assert not modules & {"os", "msgspec", "scrun.client.launch"}
    assert not heavy(modules) - {"_ctypes"}


def test_what_heavy_finds() -> None:
    assert {"json", "re"} <= heavy(imported("json"))
