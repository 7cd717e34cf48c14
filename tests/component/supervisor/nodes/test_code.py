"""How the shim comes to a node: any Python from 3.6 on, and nothing of ours installed there."""

import ast
import base64
import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.supervisor.nodes import code as module
from scrun.supervisor.nodes.boot import BOOT, NEEDS_SOURCES, boot_command
from scrun.supervisor.nodes.code import Sources, variables
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
    module._variables.clear()
    module._compiled.cache_clear()
    yield folder
    module._variables.clear()
    module._compiled.cache_clear()


def booted(env: dict[str, str], content: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        boot_command(), input=content, capture_output=True, env=env, cwd="/", timeout=30
    )


def taken_apart(env: dict[str, str]) -> tuple[list[bytes], bytes]:
    """The words of the first line, and what follows."""
    line, _, rest = base64.b64decode("".join(env.values())).partition(b"\n")
    return line.split(), rest


def of_another_python(env: dict[str, str]) -> dict[str, str]:
    """The same for an interpreter with other bytecode."""
    words, rest = taken_apart(env)
    content = words[0] + b" deadbeef 0\n" + rest
    return {"SCRUN_SHIM_0": base64.b64encode(content).decode()}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.usefixtures("stand_in")
def test_it_starts(*, compiled: bool) -> None:
    code = variables(sources=True)
    done = booted(code if compiled else of_another_python(code), b"frames follow")
    assert done.stderr == b""
    assert done.returncode == 5
    words, value, frames, path, isolated = ast.literal_eval(done.stdout.decode())
    assert (words, value, frames, isolated) == ("Wörds.", 7, b"frames follow", 1)
    assert not any("site-packages" in entry or str(CHECKOUT) in entry for entry in path)


@pytest.mark.usefixtures("stand_in")
def test_several_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_VARIABLE", 500)
    assert 2 < len(variables(sources=True)) < 10  # they are put in order by their names
    done = booted(variables(sources=True))
    assert (done.returncode, done.stderr) == (5, b"")


@pytest.mark.usefixtures("stand_in")
def test_without_the_sources() -> None:
    code = variables(sources=False)
    assert (booted(code).returncode, booted(code).stderr) == (5, b"")
    done = booted(of_another_python(code))
    assert done.returncode == 1
    assert f"Python 3.{sys.version_info.minor} {NEEDS_SOURCES}" in done.stderr.decode()


def test_they_go_along_until_one_did_not_need_them() -> None:
    ours = "{}.{}.0".format(*sys.version_info)
    for versions, needed in (
        ((), True), (("3.6.8",), True), ((ours,), False), ((ours, "missed"), True),
        (("missed", ours), True), (("3.6.8", ours), False), (("nonsense", ""), True),
    ):  # fmt: skip
        sources = Sources()
        for version in versions:
            if version == "missed":
                sources.missed()
            else:
                sources.not_needed_by(version)
        assert sources.needed is needed, versions


def test_variables_are_short() -> None:
    assert all(len(text) < 1 << 17 for text in variables(sources=True).values())
    assert len(variables(sources=True)) < 10


def test_no_variables() -> None:
    done = booted({})
    assert done.returncode == 1
    assert b"SCRUN_SHIM_0 did not come to the node" in done.stderr


def test_no_python(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("not executable")
    done = booted({"PATH": str(tmp_path)})
    assert done.returncode == 127
    assert done.stderr == b"there is no Python on this node\n"


def test_the_first_python_of_the_path(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    done = booted({"PATH": str(tmp_path)})
    assert done.stdout.decode().splitlines()[:5] == ["-I", "-S", "-X", "utf8", "-c"]


def test_what_is_sent() -> None:
    (length, magic, *_), rest = taken_apart(variables(sources=True))
    assert bytes.fromhex(magic.decode())
    found = json.loads(zlib.decompress(rest[: int(length)]))
    folder = CHECKOUT / "supervisor" / "shim"
    assert set(found) == {"scrun", "scrun.supervisor", "scrun.supervisor.shim"} | {
        f"scrun.supervisor.shim.{path.stem}" for path in folder.glob("[!_]*.py")
    }
    assert found["scrun.supervisor.shim.frames"] == (folder / "frames.py").read_text()
    assert variables(sources=True) is variables(sources=True)


def test_what_is_sent_first_is_what_is_needed_first() -> None:
    """To decompress the others would make hello later, or a container."""
    for_each = "from scrun.supervisor.shim import containers, dial, libc, looks, streams"
    text = BOOT.replace(
        "main()",
        f"print(*sys.modules)\n{for_each}\nprint(*sys.modules)\n"
        "from scrun.supervisor.shim import cache; print(cache.__name__)",
    )
    command = [sys.executable, "-I", "-S", "-c", text]
    env = variables(sources=False)
    done = subprocess.run(command, capture_output=True, env=env, timeout=30, check=True)
    at_hello, created, also = done.stdout.decode().splitlines()
    for last, there in enumerate((at_hello, created)):
        ours = {name for name in there.split() if name.startswith("scrun.supervisor.shim")}
        assert ours == {name for name in module._files() if module.part_of(name) <= last}
    assert also == "scrun.supervisor.shim.cache"


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
            command, input=b"x", capture_output=True, env=variables(sources=True), timeout=30
        )
        assert done.returncode == 5, (python, done.stderr)
