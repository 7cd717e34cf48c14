"""The OCI runtimes of this machine: found by trying, as every kind of user."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from scrun.core.errors import RuntimeMissing
from scrun.supervisor.engines.local.commands import RuntimeCommands, RuntimeContainer
from scrun.supervisor.engines.local.runtimes import InstalledRuntime, find_runtime, try_runtime
from tests import CHECKOUT
from tests.harness import users
from tests.harness.program import run_program
from tests.harness.users import PATH, User
from tests.harness.wait import wait_while

ENV = {"PATH": PATH}
PURE_V2 = [
    *("unshare", "--mount", "--propagation", "slave", "sh", "-c"),
    *('mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"', "sh"),
]
FIND = """
import json, os, msgspec
from scrun.supervisor.engines.local.runtimes import find_runtime
print(json.dumps(msgspec.to_builtins(find_runtime(None, env=os.environ))))
"""


def find_as(user: User, before: list[str], inside: list[str]) -> dict[str, Any]:
    done = run_program(
        [*before, *user.prefix, *inside, sys.executable, "-c", FIND],
        env={**user.environment, "PYTHONPATH": str(CHECKOUT)},
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def leftovers() -> set[str]:
    hybrid = Path("/sys/fs/cgroup/unified")
    places = [Path("/tmp"), hybrid if hybrid.is_dir() else Path("/sys/fs/cgroup")]
    return {str(path) for place in places for path in place.glob("scrun-try-*")}


@pytest.mark.parametrize("before", [[], PURE_V2], ids=["this-host", "pure-cgroup2"])
@pytest.mark.parametrize("who", ["root", "user", "user-namespace"])
def test_one_works_for_everyone(who: str, before: list[str]) -> None:
    user = users.root() if who == "root" else users.ordinary()
    inside = ["unshare", "-r"] if who == "user-namespace" else []
    was = leftovers()
    found = find_as(user, before, inside)
    assert found["name"] in ("crun", "runc")
    assert os.access(found["path"], os.X_OK)
    wait_while("what it left", lambda: leftovers() - was)  # others try runtimes as well


def fake(directory: Path, name: str, script: str) -> Path:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_why_others_were_passed_over_is_told(tmp_path: Path) -> None:
    broken = fake(tmp_path, "crun", 'echo first >&2; echo "cgroups in some mode" >&2; exit 1')
    working = fake(tmp_path, "runc", "exit 0")
    found = find_runtime(None, env={"PATH": str(tmp_path)})
    assert found == InstalledRuntime(
        "runc", str(working), passed_over=(f"{broken}: cgroups in some mode",)
    )


def test_a_tmpdir_that_cannot_be_used(tmp_path: Path) -> None:
    """Such as that of another node."""
    runc = fake(tmp_path, "runc", "exit 0")
    env = {"PATH": str(tmp_path), "TMPDIR": str(tmp_path / "nowhere")}
    assert find_runtime(None, env=env).path == str(runc)


def test_one_without_cgroups_is_better_than_none(tmp_path: Path) -> None:
    fake(tmp_path, "crun", "exit 1")
    runc = fake(tmp_path, "runc", '[ "$1" = --rootless=true ]')
    found = find_runtime(None, env={"PATH": str(tmp_path)})
    assert (found.path, found.arguments, found.cgroups) == (str(runc), ("--rootless=true",), False)
    assert len(found.passed_over) == 3


def test_in_a_step_none_makes_control_groups(tmp_path: Path) -> None:
    """It would take the container out of the limits of its task."""
    calls = tmp_path / "calls"
    fake(tmp_path, "crun", f"echo $1 >>{calls}")
    found = find_runtime(None, env={"PATH": str(tmp_path)}, may_limit=False)
    assert (found.arguments, found.cgroups) == (("--cgroup-manager=disabled",), False)
    assert set(calls.read_text().split()) == {"--cgroup-manager=disabled"}


def test_the_reason_comes_from_the_log(tmp_path: Path) -> None:
    line = '{"msg":"no such luck","level":"error"}'
    path = fake(tmp_path, "crun", f"[ $4 = --force ] || echo '{line}' >>\"$4\"; exit 1")
    assert try_runtime(InstalledRuntime("crun", str(path)), env=ENV) == "no such luck"


def test_it_is_tried_where_a_file_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service's /tmp, and all of a node that starts from the network, may be read-only."""
    path = fake(tmp_path, "crun", 'echo "$@" >&2; exit 1')
    monkeypatch.setattr(
        os, "access", lambda path, mode: path == str(tmp_path) or not mode & os.W_OK
    )
    env = {**ENV, "TMPDIR": "/nowhere", "XDG_RUNTIME_DIR": str(tmp_path)}
    reason = try_runtime(InstalledRuntime("crun", str(path)), env=env)
    assert reason is not None
    assert f"run --bundle {tmp_path}/scrun-try-" in reason


def test_one_that_hangs_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrun.supervisor.engines.local.runtimes._PATIENCE", 0.2)
    path = fake(tmp_path, "crun", "exec sleep 60")
    assert try_runtime(InstalledRuntime("crun", str(path)), env=ENV) == "no answer within 0 s"


def test_a_failed_trial_is_cleaned_up(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    path = fake(tmp_path, "crun", f'echo "$@" >>{calls}; exit 1')
    was = leftovers()
    assert try_runtime(InstalledRuntime("crun", str(path)), env=ENV) == "the runtime ended with 1"
    assert [" delete --force " in line for line in calls.read_text().splitlines()] == [False, True]
    wait_while("what it left", lambda: leftovers() - was)  # others try runtimes as well


def test_what_cannot_be_executed_is_passed_over(tmp_path: Path) -> None:
    path = fake(tmp_path, "crun", "")
    path.write_text("#!/gone\n")
    reason = try_runtime(InstalledRuntime("crun", str(path)), env=ENV)
    assert reason == "No such file or directory"


def test_none_that_works_is_an_error_with_all_reasons(tmp_path: Path) -> None:
    fake(tmp_path, "crun", "echo one >&2; exit 1")
    fake(tmp_path, "runc", "echo two >&2; exit 1")
    with pytest.raises(RuntimeMissing, match=r"crun: one; .*runc: two; .*disabled: one; .*two$"):
        find_runtime(None, env={"PATH": str(tmp_path)})


def test_none_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrun.supervisor.engines.local.runtimes._ALSO", ())
    with pytest.raises(RuntimeMissing, match="apt install crun"):
        find_runtime(None, env={"PATH": "/nonexistent"})


def test_only_the_named_one_is_considered(tmp_path: Path) -> None:
    named = fake(tmp_path, "my-runc", "exit 0")
    found = find_runtime(str(named), env=ENV)
    assert (found.name, found.path) == ("my-runc", str(named))
    with pytest.raises(RuntimeMissing, match="OCI runtime gone is not installed"):
        find_runtime("gone", env=ENV)


def test_commands() -> None:
    crun = InstalledRuntime("crun", "/usr/bin/crun", ("--cgroup-manager=disabled",))
    start = ["/usr/bin/crun", "--cgroup-manager=disabled", "--root", "/r/c/runtime"]
    log = ["--log", "/l", "--log-format", "json"]
    commands, container = RuntimeCommands(crun), RuntimeContainer("/r/c", "1", bundle="/b")
    assert commands.create(container, "/l", "/p", "/s", 2) == [
        *(*start, *log, "create", "--bundle", "/b", "--config", "/r/c/config.json"),
        *("--pid-file", "/p", "--console-socket", "/s", "--preserve-fds=2", "--", "c"),
    ]
    assert commands.kill(container, 15) == [*start, "kill", "--", "c", "TERM"]
    delete = " ".join([*start, "delete", "--force", "--", "c"])
    assert commands.delete(container) == ["/bin/sh", "-c", delete]
    assert commands.state(container) == " ".join([*start, "state", "--", "c"])
