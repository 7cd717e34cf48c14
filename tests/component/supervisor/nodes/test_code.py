"""How the shim comes to a node: any Python from 3.6 on, and nothing of ours installed there."""

import ast
import base64
import json
import shutil
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from scrun.supervisor.nodes import code as module
from scrun.supervisor.nodes.code import BOOT, OURS, PACKAGE, boot_command, code, variables
from tests import CHECKOUT

ARRIVAL = """
import os

def arrive(add, python, told):
    if os.environ.get("SIGNALLED"):
        for number in (10, 2, 12, 1, 3):
            os.kill(os.getpid(), number)
        os.write(1, repr(told).encode() + b"\\n")
    length = int(os.read(0, 10))
    add(os.read(0, length))
    from .main import main
    main(python)
"""

MAIN = """
import os, sys
from .other import value
import scrun.supervisor.shim.other as again

def main(python):
    from . import other
    assert other is again
    assert not [name for name in os.environ if name.startswith("SCRUN_SHIM")]
    os.write(1, repr((python, value, os.read(0, 100), sys.path, sys.flags.isolated)).encode())
    os._exit(5)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A shim that says what it has."""
    folder = tmp_path / "scrun" / "supervisor" / "shim"
    folder.mkdir(parents=True)
    (folder.parent / "wire").mkdir()
    (folder / "__init__.py").write_text('raise Exception("what is read there by people")')
    (folder / "other.py").write_text("value = '\u00f6'\n")
    (folder / "arrival.py").write_text(ARRIVAL)
    (folder / "main.py").write_text(MAIN)
    (folder / "notes.txt").write_text("not a module")
    monkeypatch.setattr(module, "packages", lambda: str(tmp_path))
    forget()
    yield folder
    forget()


def forget() -> None:
    module.variables.cache_clear()
    module.sums.cache_clear()
    module._codes.clear()


def booted(
    env: dict[str, str], content: bytes = b"", command: Sequence[str] = ()
) -> "subprocess.CompletedProcess[bytes]":
    """Run it; its code and more come over its standard input."""
    return subprocess.run(
        command or boot_command(), input=content, capture_output=True, env=env, cwd="/", timeout=30
    )


def taken_apart() -> tuple[str, bytes, bytes]:
    """The version of our bytecode, and the first modules: compiled, as sources."""
    [text] = variables().values()
    line, _, rest = base64.b64decode(text).partition(b"\n")
    magic, length = line.decode().split()
    return magic, rest[: int(length)], rest[int(length) :]


def of_another_python() -> dict[str, str]:
    """The variable for an interpreter with other bytecode."""
    _, _, sources = taken_apart()
    return {"SCRUN_SHIM": base64.b64encode(b"deadbeef 0\n" + sources).decode()}


def test_what_is_kept_is_compressed() -> None:
    """A supervisor has it for ever."""
    forget()
    tracemalloc.start()
    try:
        variables()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < sum(map(len, module._compiled()))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("first_compiled", [True, False])
@pytest.mark.usefixtures("stand_in")
def test_it_starts(*, compiled: bool, first_compiled: bool) -> None:
    rest = code(OURS if compiled else "deadbeef")
    env = variables() if first_compiled else of_another_python()
    done = booted(env, b"%10d" % len(rest) + rest + b"frames follow")
    assert done.stderr == b""
    assert done.returncode == 5
    magic, value, frames, path, isolated = ast.literal_eval(done.stdout.decode())
    assert (magic, value, frames, isolated) == (OURS, "\u00f6", b"frames follow", 1)
    assert not any("site-packages" in entry or str(CHECKOUT) in entry for entry in path)


@pytest.mark.usefixtures("stand_in")
def test_what_slurm_signals_before_it_is_there() -> None:
    rest = code(OURS)
    done = booted({**variables(), "SIGNALLED": "1"}, b"%10d" % len(rest) + rest)
    assert done.returncode == 5
    assert done.stdout.startswith(b"[10, 2, 12, 1, 3]\n")


def test_what_is_in_memory_four_times_is_short() -> None:
    """srun keeps its environment, and a user's has other things, too (100 KiB in all)."""
    assert len(variables()["SCRUN_SHIM"]) < 28 << 10
    assert len(code(OURS)) > 50_000


def test_no_variables() -> None:
    done = booted({})
    assert done.returncode == 1
    assert b"SCRUN_SHIM did not reach the node" in done.stderr


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
    magic, _, first = taken_apart()
    assert magic == OURS
    packed = (first, code("deadbeef"))
    assert [content[:1] for content in packed] == [b"\n", b"\n"]
    first_ones, others = (json.loads(zlib.decompress(content[1:])) for content in packed)
    paths = {
        f"scrun.supervisor.{path.parent.name}.{path.stem}": path
        for folder in ("shim", "wire")
        for path in (CHECKOUT / "supervisor" / folder).glob("[!_]*.py")
    }
    assert set(first_ones) == {*module._PACKAGES, *(paths.keys() - set(others))}
    assert set(others) < paths.keys()
    frames = "scrun.supervisor.wire.frames"
    assert {**first_ones, **others}[frames] == paths[frames].read_text()
    assert variables() is variables()
    assert code("deadbeef") is code("another")


def test_what_is_sent_first_is_what_is_needed_first() -> None:
    """To decompress the others would make hello later, or a container."""
    for_each = f"from {PACKAGE} import containers, libc, streams"
    text = BOOT.replace(
        "arrive(modules.add, magic, told)",
        f"print(*sys.modules)\nmodules.add({code(OURS)!r})\n"
        f"import {PACKAGE}.main\nprint(*sys.modules)\n{for_each}\nprint(*sys.modules)\n"
        f"from {PACKAGE} import cache; print(cache.__name__)",
    )
    file = "import sys; exec(sys.stdin.read())"
    done = booted(variables(), text.encode(), [sys.executable, "-I", "-S", "-c", file])
    assert done.stderr == b""
    *stages, also = done.stdout.decode().splitlines()
    for last, there in enumerate(stages):
        ours = {name for name in there.split() if name.startswith("scrun.")} - {*module._PACKAGES}
        assert ours == {name for name in module._files() if module.part_of(name) <= last}
    assert also == f"{PACKAGE}.cache"


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
        program = "from importlib.util import MAGIC_NUMBER as m; print(m.hex())"
        magic = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
        rest = code(magic.stdout.strip())
        command = [python, "-I", "-S", "-X", "utf8", "-c", BOOT]
        done = booted(variables(), b"%10d" % len(rest) + rest, command)
        assert done.returncode == 5, (python, done.stderr)
