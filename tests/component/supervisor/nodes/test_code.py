"""How the shim comes to a node: any Python from 3.6 on, and nothing of ours installed there."""

import ast
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.supervisor.nodes import code as module
from scrun.supervisor.nodes.boot import BOOT, boot_command
from scrun.supervisor.nodes.code import code, variables
from tests import CHECKOUT

MAIN = """
import os, sys
from scrun.supervisor.shim import other, __doc__ as words
from .other import value
import scrun.supervisor.shim.other as again

def main():
    assert other is again
    assert not [name for name in os.environ if name.startswith("SCRUN_SHIM_")]
    os.write(1, repr((words, value, os.read(0, 100), sys.path, sys.flags.isolated)).encode())
    os._exit(5)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A shim that says what it has."""
    folder = tmp_path / "scrun" / "supervisor" / "shim"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text('"""Wörds."""\n')
    (folder / "other.py").write_text("value = 7\n")
    (folder / "main.py").write_text(MAIN)
    (folder / "notes.txt").write_text("not a module")
    monkeypatch.setattr(module, "packages", lambda: str(tmp_path))
    code.cache_clear()
    yield folder
    code.cache_clear()


def booted(
    content: bytes, env: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        boot_command(), input=content, capture_output=True, env=env or {}, cwd="/", timeout=30
    )


def of_another_python(content: bytes) -> bytes:
    """The same for an interpreter with other bytecode."""
    line, _, rest = content.partition(b"\n")
    sources, compiled, _ = line.split()
    return b" ".join((sources, compiled, b"deadbeef")) + b"\n" + rest


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.usefixtures("stand_in")
def test_it_starts(*, compiled: bool) -> None:
    content = code() if compiled else of_another_python(code())
    done = booted(content + b"frames follow")
    assert done.stderr == b""
    assert done.returncode == 5
    words, value, frames, path, isolated = ast.literal_eval(done.stdout.decode())
    assert (words, value, frames, isolated) == ("Wörds.", 7, b"frames follow", 1)
    assert not any("site-packages" in entry or str(CHECKOUT) in entry for entry in path)


@pytest.mark.usefixtures("stand_in")
def test_it_starts_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_VARIABLE", 500)
    code = variables()
    assert len(code) > 2
    assert len(code) < 10  # they are put in order by their names
    done = booted(b"frames follow", code)
    assert (done.returncode, done.stderr) == (5, b"")
    _, _, frames, _, _ = ast.literal_eval(done.stdout.decode())
    assert frames == b"frames follow"


def test_variables_are_short() -> None:
    assert all(len(text) < 1 << 17 for text in variables().values())
    assert len(variables()) < 10


@pytest.mark.usefixtures("stand_in")
def test_it_reads_no_more_than_its_code() -> None:
    """However the bytes come."""
    readable, writable = os.pipe()
    process = subprocess.Popen(boot_command(), stdin=readable, stdout=subprocess.PIPE, env={})
    os.close(readable)
    content = code()
    for at in range(0, len(content), 50):
        os.write(writable, content[at : at + 50])
    os.write(writable, b"frames")
    out, _ = process.communicate(timeout=30)
    os.close(writable)
    assert b"'frames'" in out or b"b'frames'" in out


def test_an_end_before_the_code() -> None:
    for content in (b"", b"12 1", code()[:500]):
        done = booted(content)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_no_python(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("not executable")
    done = booted(code(), {"PATH": str(tmp_path)})
    assert done.returncode == 127
    assert done.stderr == b"there is no Python on this node\n"


def test_the_first_python_of_the_path(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    done = booted(b"", {"PATH": str(tmp_path)})
    assert done.stdout.decode().splitlines()[:5] == ["-I", "-S", "-X", "utf8", "-c"]


def test_what_is_sent() -> None:
    line, _, rest = code().partition(b"\n")
    sources, compiled, magic = line.split()
    assert len(rest) == int(sources) + int(compiled)
    assert bytes.fromhex(magic.decode())
    found = json.loads(zlib.decompress(rest[: int(sources)]))
    folder = CHECKOUT / "supervisor" / "shim"
    assert set(found) == {"scrun", "scrun.supervisor", "scrun.supervisor.shim"} | {
        f"scrun.supervisor.shim.{path.stem}" for path in folder.glob("[!_]*.py")
    }
    assert found["scrun.supervisor.shim.frames"] == (folder / "frames.py").read_text()
    assert code() is code()


def test_the_command_is_short() -> None:
    """Other users can read it, and it goes through Slurm's messages."""
    assert sum(map(len, boot_command())) < 4096


def test_old_interpreters_parse_it() -> None:
    ast.parse(BOOT, feature_version=(3, 6))


def test_too_old_interpreters_say_so(tmp_path: Path) -> None:
    text = BOOT.replace("import sys", "import sys; sys.version_info = (3, 5, 2)", 1)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text], capture_output=True, timeout=30
    )
    assert done.returncode == 1
    assert b"needs Python 3.6 or newer on the node, this is 3.5" in done.stderr


def interpreters() -> list[str]:
    """The interpreters of this machine that a shim can be run by, without those that call one."""
    found = []
    for minor in range(6, 16):
        program = shutil.which(f"python3.{minor}") or "false"
        itself = [program, "-c", "import sys; print(sys.executable)"]
        done = subprocess.run(itself, capture_output=True, text=True)
        found += [done.stdout.strip()] if done.returncode == 0 else []
    assert found
    return found


@pytest.mark.usefixtures("stand_in")
def test_other_interpreters() -> None:
    for python in interpreters():
        command = [python, "-I", "-S", "-X", "utf8", "-c", BOOT]
        done = subprocess.run(
            command, input=code() + b"x", capture_output=True, env={}, timeout=30
        )
        assert done.returncode == 5, (python, done.stderr)
