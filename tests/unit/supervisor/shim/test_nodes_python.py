"""A node has its own Python, and nothing of ours: what the shim may be written in."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT

FOLDERS = [CHECKOUT / "supervisor" / name for name in ("shim", "wire")]
WIRE = "scrun.supervisor.wire."
MODULES = sorted(path for folder in FOLDERS for path in folder.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_imports(path: Path) -> None:
    """The standard library, and these folders."""
    named = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            named |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1
            assert (path.parent / f"{node.module}.py").exists()
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith(WIRE):
            assert (FOLDERS[1] / f"{str(node.module).removeprefix(WIRE)}.py").exists()
        elif isinstance(node, ast.ImportFrom):
            named.add(str(node.module).partition(".")[0])
    assert named <= sys.stdlib_module_names
    # in 3.6 with these names or not at all
    assert not named & {"dataclasses", "contextvars", "graphlib", "tomllib", "zoneinfo"}


def test_syntax() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("vermin"), "-v", "--no-tips", "--target=3.6-", *FOLDERS],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", ["main", "containers", "dial", "libc", "images"])
def test_what_every_container_waits_for(module: str) -> None:
    """It imports next to nothing."""
    program = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r})"
    program += f"; import scrun.supervisor.shim.{module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    slow = {"json", "re", "enum", "collections", "ctypes", "hashlib", "hmac", "socket", "typing"}
    slow |= {"signal", "array", "termios"}
    assert not slow & set(done.stdout.split())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_nodes_clock_does_not_matter(path: Path) -> None:
    """It may be wrong, and may be set meanwhile: time is measured, and not asked for."""
    used = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("time", "datetime")
    }
    assert used <= {"monotonic"}
