"""The config.json that crun or runc gets, so that it speaks of the caller's container.

Its hooks, and who listens for its seccomp notifications, get the container's state: the id and the
bundle in it are to be the caller's. The staged config.json is in another directory than that
bundle. crun can be told both; runc takes the directory of config.json for the bundle, so its hooks
get their state by a program that puts the right one in.
docs/decisions/hooks-on-this-machine.md has why it is done that way.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

# Of the environment Python itself may change something (PEP 538), so it is the one of proc(5).
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
os.execve(path, arguments or [path], environment)
"""

_OUTSIDE = ("prestart", "createRuntime", "createContainer", "poststart", "poststop")
"""Those that see this machine's files; the program of `startContainer` is in the container."""


def with_absolute_paths(config: Mapping[str, Any], bundle: str) -> dict[str, Any]:
    """Return a config.json that means the same wherever it is read from. Pure.

    Args:
        config: It; not changed.
        bundle: Where its relative paths begin.
    """
    mounts = [
        {**entry, "source": os.path.join(bundle, entry["source"])}
        if entry.get("source") and "bind" in (entry.get("type"), *(entry.get("options") or ()))
        else entry
        for entry in config.get("mounts") or []
    ]
    root = {**config["root"], "path": os.path.join(bundle, config["root"]["path"])}
    return {**config, "root": root, "mounts": mounts}


def in_cgroup(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a config.json with a cgroup of its own, unless it has one. Pure.

    Else the runtime calls it as the container, and another root directory may have one of that id.
    """
    linux = config.get("linux") or {}
    return {**config, "linux": {**linux, "cgroupsPath": linux.get("cgroupsPath") or name}}


def with_told_hooks(config: Mapping[str, Any], made: str, bundle: str) -> dict[str, Any]:
    """Return a config.json whose hooks are told another bundle than the runtime knows. Pure.

    Args:
        config: It; not changed.
        made: What the runtime takes for the bundle.
        bundle: What they are told.
    """
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
