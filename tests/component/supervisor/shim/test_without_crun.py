"""What a shim does without crun: it starts containers, and forgets them."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.component.supervisor.shim.conftest import MakeShim
from tests.harness import users
from tests.harness.bundle import make_config, map_user
from tests.harness.processes import descendants
from tests.harness.shim import PURE_V2, Shim
from tests.harness.users import User
from tests.harness.wait import wait_until, wait_while

CRUN = shutil.which("crun") or ""


@pytest.fixture(params=["root", "user"])
def user(request: pytest.FixtureRequest) -> User:
    return users.root() if request.param == "root" else users.ordinary()


def make_crun(rootfs: Path, content: bytes) -> Path:
    """Install another crun, and return its path."""
    program = rootfs.parent / "own" / "crun"
    program.parent.mkdir(exist_ok=True)
    program.unlink(missing_ok=True)
    program.write_bytes(content)
    program.chmod(0o755)
    return program


def with_crun(make_shim: MakeShim, user: User, program: Path) -> Shim:
    """Make a shim that finds that one."""
    shim = make_shim({"PATH": f"{program.parent}:{os.environ['PATH']}"}, user)
    assert shim.hello["runtime"] == str(program)
    return shim


def known_to(shim: Shim) -> list[str]:
    """Return the containers that the runtime knows."""
    known = Path(shim.hello["directory"]) / "crun"
    return [name for name in os.listdir(known) if not name.startswith(".")]


def test_it_starts_without(make_shim: MakeShim, rootfs: Path, user: User) -> None:
    """crun would write a byte to its fifo, and a command takes 5 ms."""
    program = make_crun(rootfs, Path(CRUN).read_bytes())
    shim = with_crun(make_shim, user, program)
    streams = shim.streams("stdout")
    assert "pid" in shim.create("a", "sh", "-c", "echo up; exec sleep 1000", streams=streams)
    program.unlink()
    assert shim.call("start", id="a") == {}
    shim.until("its word", lambda: shim.output[streams["stdout"]] == b"up\n")
    assert status_of(shim, "a") == "running"


def status_of(shim: Shim, container: str) -> str:
    """Return what crun says of a container."""
    known = os.path.join(shim.hello["directory"], "crun")
    command = [CRUN, "--root", known, "state", f"name-{container}"]
    said = subprocess.run([*PURE_V2, *command], capture_output=True, check=True)
    return str(json.loads(said.stdout)["status"])


def test_hooks_are_run_at_its_start(make_shim: MakeShim, folder: Path, user: User) -> None:
    """The specification has `start` run them (runtime.md, Lifecycle, 9)."""
    told = folder / "told"
    hook = {"path": "/bin/sh", "args": ["sh", "-c", f"cat >/dev/null; echo told >{told}"]}
    shim = make_shim(user=user)
    assert "pid" in shim.create("a", "sleep", "1000", hooks={"poststart": [hook]})
    assert not told.exists()
    assert shim.call("start", id="a") == {}
    assert told.read_text() == "told\n"
    told.unlink()


def test_it_ends_before_its_start(make_shim: MakeShim, user: User) -> None:
    """The error is crun's."""
    shim = make_shim(user=user)
    os.kill(shim.create("a", "true")["pid"], signal.SIGKILL)
    assert shim.ended("a") == -signal.SIGKILL
    assert "is not running" in shim.call("start", id="a")["error"]


def test_it_forgets_without(make_shim: MakeShim, rootfs: Path, user: User) -> None:
    """It could only remove its directory of the container, and a command takes 5 ms."""
    program = make_crun(rootfs, Path(CRUN).read_bytes())
    shim = with_crun(make_shim, user, program)
    shim.run("a", "true")
    assert shim.ended("a") == 0
    assert known_to(shim) == ["name-a"]
    program.unlink()
    assert shim.call("delete", id="a") == {}
    assert known_to(shim) == []


def test_a_name_is_free_again(make_shim: MakeShim, user: User) -> None:
    shim = make_shim(user=user)
    for status in range(3):
        shim.run(f"a{status}", "sh", "-c", f"exit {status}", name="again")
        assert shim.ended(f"a{status}") == status
        assert shim.call("delete", id=f"a{status}") == {}


def test_hooks_are_run(make_shim: MakeShim, folder: Path, user: User) -> None:
    """The specification has `delete` run them (runtime.md, Lifecycle, 12)."""
    told = folder / "told"
    hook = {"path": "/bin/sh", "args": ["sh", "-c", f"cat >/dev/null; echo told >{told}"]}
    shim = make_shim(user=user)
    shim.run("a", "true", hooks={"poststop": [hook]})
    assert shim.ended("a") == 0
    assert not told.exists()
    assert shim.call("delete", id="a") == {}
    assert told.read_text() == "told\n"
    assert known_to(shim) == []
    told.unlink()


def test_a_script_is_run(make_shim: MakeShim, rootfs: Path, folder: Path, user: User) -> None:
    """A site's own may do more."""
    words = folder / "words"
    script = f'#!/bin/sh\necho " $* " >>{words}\nexec {CRUN} "$@"\n'
    shim = with_crun(make_shim, user, make_crun(rootfs, script.encode()))
    assert "pid" in shim.create("a", "true")
    assert " start " not in words.read_text()
    assert shim.call("start", id="a") == {}
    assert " start " in words.read_text()
    assert shim.ended("a") == 0
    assert " delete " not in words.read_text()
    assert shim.call("delete", id="a") == {}
    assert " delete " in words.read_text()
    words.unlink()


def test_while_it_is_created(make_shim: MakeShim, rootfs: Path, folder: Path, user: User) -> None:
    """The container's first process may be there, and no longer crun's, before crun knows it."""
    made = folder / "made"
    forgets = f'{CRUN} "$@"; rm "$3"/*/status; echo >{made}; exec sleep 1000'
    script = f'#!/bin/sh\ncase " $* " in *" create "*) {forgets};; esac\nexec {CRUN} "$@"\n'
    shim = with_crun(make_shim, user, make_crun(rootfs, script.encode()))
    config = make_config(["true"], str(shim.rootfs))
    if user.uid:
        map_user(config, user)
    created = shim.ask("create", id="a", name="a", config=config, streams={}, joins={})
    wait_until("it is made", made.exists)
    assert shim.call("delete", id="a") == {}
    assert "deleted" in shim.answer(created)["error"]
    wait_while("what was made", lambda: descendants(shim.process.pid), 5)
    made.unlink()


def test_while_it_waits_for_another(make_shim: MakeShim) -> None:
    """An ordinary user's enters namespaces of another one only when that is started."""
    shim = make_shim(user=users.ordinary())
    assert "pid" in shim.create("a", "sleep", "1000")
    config = make_config(["true"], str(shim.rootfs))
    map_user(config, shim.user)
    words = {"config": config, "streams": {}, "joins": {"user": "a", "ipc": "a"}}
    created = shim.ask("create", id="b", name="b", **words)
    root = ["/no/such/place", "/", "lowerdir=/"]
    mounted = shim.ask("mount", id="m", files=[], root=root, beside="a")
    shim.pump(0.1)
    assert shim.call("delete", id="b") == {}
    assert shim.call("unmount", id="m") == {}
    for call in (created, mounted):
        assert "deleted" in shim.answer(call, 2)["error"]
    assert shim.call("start", id="a") == {}
    assert descendants(shim.process.pid)
