"""The config.json that crun or runc gets on this machine."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.engines.local.commands import RuntimeCommands, RuntimeContainer
from scrun.supervisor.engines.local.runtime_config import (
    by_systemd,
    in_cgroup,
    with_absolute_paths,
    with_told_hooks,
)
from scrun.supervisor.engines.local.runtimes import InstalledRuntime
from tests.harness.program import run_program

CRUN = InstalledRuntime("crun", "/usr/bin/crun")
CONFIG: dict[str, Any] = {
    "root": {"path": "rootfs", "readonly": True},
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/x", "type": "bind", "source": "files/0"},
        {"destination": "/y", "options": ["ro", "rbind"], "source": "/abs"},
        {"destination": "/z", "options": ["ro", "bind"], "source": "there"},
    ],
}


def test_paths() -> None:
    config = with_absolute_paths(CONFIG, "/b")
    assert config["root"] == {"path": "/b/rootfs", "readonly": True}
    sources = [mount["source"] for mount in config["mounts"]]
    assert sources == ["proc", "/b/files/0", "/abs", "/b/there"]
    assert CONFIG["mounts"][1]["source"] == "files/0"


@pytest.mark.parametrize("linux", [None, {}, {"cgroupsPath": ""}])
def test_a_cgroup_of_its_own(linux: dict[str, Any] | None) -> None:
    assert in_cgroup({"linux": linux}, "x-c")["linux"] == {"cgroupsPath": "x-c"}


def test_a_cgroup_that_was_asked_for() -> None:
    config = {"linux": {"cgroupsPath": "/mine", "seccomp": {}}}
    assert in_cgroup(config, "x-c") == config


@pytest.mark.parametrize(
    ("path", "systemd"),
    [
        ("user.slice:libpod:c1", True),  # podman of a user, where systemd is (seen: 5.4)
        (":docker:c1", True),
        ("/libpod_parent/libpod-c1", False),
        ("/a:b:c", False),
        ("a:b", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("cgroups", [True, False])
def test_a_cgroup_that_systemd_makes(
    tmp_path: Path, path: str, systemd: bool, cgroups: bool
) -> None:
    """Without the option crun would make a directory of that name, and a user's may not."""
    bundle, record = tmp_path / "bundle", tmp_path / "record"
    (bundle / "rootfs").mkdir(parents=True)
    record.mkdir()
    config = {"root": {"path": "rootfs"}, "linux": {"cgroupsPath": path}}
    (bundle / "config.json").write_text(json.dumps(config))
    assert by_systemd(config) == systemd
    step = Step(str(bundle), ("true",), (0, 1, 2), False, "", True, lambda: None)
    commands = RuntimeCommands(msgspec.structs.replace(CRUN, cgroups=cgroups))
    container = commands.prepare(RuntimeContainer(str(record), "1"), step, {})
    words = commands.create(container, "/log", "/pid", None)
    before = words[: words.index("create")]
    assert ("--systemd-cgroup" in before) == ("--systemd-cgroup" in words) == (systemd and cgroups)


def test_without_hooks() -> None:
    assert with_told_hooks({"root": {}}, "/made", "/b") == {"root": {}}
    assert with_told_hooks({"hooks": None}, "/made", "/b") == {"hooks": None}


def test_hooks_in_the_container_stay() -> None:
    hooks = {"startContainer": [{"path": "/in/it"}], "poststop": None}
    assert with_told_hooks({"hooks": hooks}, "/made", "/b")["hooks"] == {
        "startContainer": [{"path": "/in/it"}], "poststop": [],
    }  # fmt: skip


@pytest.mark.parametrize("arguments", [None, ["hook", "it's", ""]])
def test_a_told_hook(tmp_path: Path, arguments: list[str] | None) -> None:
    """It is called as it is written down, with the other bundle and directory."""
    made, bundle = tmp_path / "made", tmp_path / "bundle"
    for folder in (made, bundle):
        folder.mkdir()
    program = bundle / "hook"
    program.write_text(
        '#!/bin/sh\npwd; printf "%s\\n" "$0" "$#" "$@"; tr "\\0" "\\n" </proc/$$/environ; cat\n'
    )
    program.chmod(0o755)
    hook: dict[str, Any] = {"path": str(program), "env": ["A=1"], "timeout": 5}
    if arguments is not None:
        hook["args"] = arguments
    [told] = with_told_hooks({"hooks": {"prestart": [hook]}}, str(made), str(bundle))["hooks"][
        "prestart"
    ]
    assert (told["env"], told["timeout"]) == (hook["env"], 5)
    state = {"id": "c1", "bundle": str(made), "annotations": {"ä": "x\ny"}}
    done = run_program(
        told["args"],
        executable=told["path"],
        env={"A": "1"},
        cwd=made,
        input=json.dumps(state),
        check=True,
    )
    *lines, last = done.stdout.split("\n")
    rest = [] if arguments is None else arguments[1:]
    expected = [str(bundle), str(program), str(len(rest)), *rest, "A=1"]
    assert [line for line in lines if not line.startswith(("PWD=", "OLDPWD="))] == expected
    assert json.loads(last) == {**state, "bundle": str(bundle)}


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("true", "no such file or directory"),
        ("/nowhere/x", "no such file or directory"),
        ("/etc/passwd", "permission denied"),
    ],
)
def test_a_hook_that_cannot_be_run(tmp_path: Path, path: str, reason: str) -> None:
    """The reason, as runc says it without us; no traceback, and no line break in runc's line."""
    hooks = {"hooks": {"poststop": [{"path": path}]}}
    [told] = with_told_hooks(hooks, str(tmp_path), "/b")["hooks"]["poststop"]
    state = json.dumps({"id": "c1", "bundle": "/b"})
    done = run_program(told["args"], env={}, cwd=tmp_path, input=state)
    assert (done.returncode, done.stderr) == (1, f"{path}: {reason}")


@pytest.mark.parametrize(
    ("id_", "name"), [("c1", "c1"), ("...", "_..."), (".x", "_.x"), ("_", "_"), ("-", "-")]
)
def test_the_name_that_a_runtime_gets(id_: str, name: str) -> None:
    """crun makes a keyring of that name, and the kernel keeps those with a dot for itself."""
    container = RuntimeContainer(f"/root/{id_}", "7")
    assert (container.id, container.name) == (id_, name)
    commands = RuntimeCommands(CRUN)
    for command in (commands.start(container), commands.kill(container, 9)):
        assert name in command
