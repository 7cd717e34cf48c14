"""The config.json that crun or runc gets, changed to refer to the caller's container.

Hooks and the listener for seccomp notifications get the container's state, which should name the
caller's id and bundle. The staged config.json is not in that bundle. crun accepts both paths; runc
takes the directory of config.json for the bundle, so a program corrects the state that its hooks
get.
docs/decisions/hooks-on-this-machine.md explains why.
"""

import os
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from scrun.settings.oci_conf.parse import OciConf
from scrun.supervisor.core.threads import in_thread

# Python itself may change the environment (PEP 538), so this reads it from proc(5).
_HOOK = """\
import json, os, sys
made, bundle, path, *arguments = sys.argv[1:]
state = json.load(sys.stdin)
if state.get("bundle") == made:
    state["bundle"] = bundle
try:
    if os.getcwd() == made:
        os.chdir(bundle)
except OSError:
    pass
file = os.memfd_create("state")
os.write(file, json.dumps(state, separators=(",", ":")).encode())
os.lseek(file, 0, os.SEEK_SET)
os.dup2(file, 0)
with open("/proc/self/environ", "rb") as variables:
    pairs = (entry.partition(b"=") for entry in variables.read().split(b"\\0"))
    environment = {name: value for name, _, value in pairs if name}
try:
    os.execve(path, arguments or [path], environment)
except OSError as error:  # without a newline: runc puts it into a line of its own
    sys.stderr.write(f"{path}: {error.strerror.lower()}")
    sys.exit(1)
"""

_OUTSIDE = ("prestart", "createRuntime", "createContainer", "poststart", "poststop")
"""The hooks that run outside the container; `startContainer` runs in it."""


def with_absolute_paths(config: Mapping[str, Any], bundle: str) -> dict[str, Any]:
    """Return a config.json whose relative paths, which begin in `bundle`, are absolute. Pure."""
    mounts = [
        {**entry, "source": os.path.join(bundle, entry["source"])}
        if entry.get("source") and "bind" in (entry.get("type"), *(entry.get("options") or ()))
        else entry
        for entry in config.get("mounts") or []
    ]
    root = {**config["root"], "path": os.path.join(bundle, config["root"]["path"])}
    return {**config, "root": root, "mounts": mounts}


def in_cgroup(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a config.json with a cgroup path, unless it has one. Pure.

    Otherwise the runtime names the cgroup after the container, whose id may exist in another root
    directory too.
    """
    linux = config.get("linux") or {}
    return {**config, "linux": {**linux, "cgroupsPath": linux.get("cgroupsPath") or name}}


def by_systemd(config: Mapping[str, Any]) -> bool:
    """Tell whether an engine has systemd make the container's cgroup. Pure.

    With `--systemd-cgroup` crun and runc want `SLICE:PREFIX:NAME`; without it they would take that
    for a directory at the top of the tree, where only root may make one.
    """
    path = str((config.get("linux") or {}).get("cgroupsPath"))
    return path.count(":") == 2 and "/" not in path


def with_told_hooks(config: Mapping[str, Any], made: str, bundle: str) -> dict[str, Any]:
    """Return a config.json whose hooks get `bundle`, not the one `made` for the runtime. Pure."""
    before = [sys.executable, "-I", "-S", "-c", _HOOK, made, bundle]
    before[0] = program = os.path.realpath(before[0])  # mapped users may not reach a venv
    hooks = {
        moment: [
            {
                **hook,
                "path": program,
                "args": [*before, hook["path"], *(hook.get("args") or ())],
            }
            for hook in entries or ()
        ]
        if moment in _OUTSIDE
        else entries
        for moment, entries in (config.get("hooks") or {}).items()
    }
    return {**config, "hooks": hooks} if hooks else dict(config)


def changed_config(
    config: Mapping[str, Any],
    conf: OciConf,
    *,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    bundle: str,
    mount: tuple[str, str] | None,
) -> dict[str, Any]:
    """Return what slurmstepd makes of a config.json. Pure.

    Args:
        bundle: The directory of config.json, where its relative paths start.
        mount: A directory, and its mount point in the container.
    """
    process = {
        **config["process"],
        "args": list(arguments),
        "env": [f"{name}={value}" for name, value in environment.items()],
    }
    if conf.mode == "create":
        # RunTimeCreate has no console socket, so the runtime cannot make a terminal; the
        # container's standard streams are one already
        process["terminal"] = False
    changed = {**with_absolute_paths(config, bundle), "process": process}
    if mount is not None:
        source, destination = mount
        options = ["bind"]
        changed["mounts"].append(
            {"destination": destination, "type": "none", "source": source, "options": options}
        )
    if hooks := config.get("hooks"):
        changed["hooks"] = {k: v for k, v in hooks.items() if k not in conf.disable_hooks}
    return changed


@asynccontextmanager
async def changed_environment(
    bundle: str, variables: Mapping[str, str | None]
) -> AsyncIterator[None]:
    """Change `process.env` in a bundle's config.json for as long as the block lasts.

    The bundle may be the work of a site's script, or even the submitted one. A value None removes
    a variable; without any variables nothing is touched.
    """
    if not variables:
        yield
        return
    name = os.path.join(bundle, "config.json")
    before = await in_thread(_change, name, variables)
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await in_thread(_restore, name, before)


def with_variables(own: Iterable[str], variables: Mapping[str, str | None]) -> list[str]:
    """Return config.json's `process.env` with other values; None removes a variable. Pure."""
    kept = [entry for entry in own if entry.partition("=")[0] not in variables]
    added = [f"{key}={value}" for key, value in variables.items() if value is not None]
    return [*kept, *added]


def _change(name: str, variables: Mapping[str, str | None]) -> bytes:
    """Change a config.json; return the old content."""
    with open(name, "rb") as file:
        before = file.read()
    config = msgspec.json.decode(before)
    config["process"]["env"] = with_variables(config["process"].get("env") or (), variables)
    _write(name, msgspec.json.encode(config))
    return before


def _restore(name: str, before: bytes) -> None:
    if os.path.exists(name):
        _write(name, before)


def _write(name: str, content: bytes) -> None:
    with open(name, "rb+") as file:
        file.write(content)
        file.truncate()
