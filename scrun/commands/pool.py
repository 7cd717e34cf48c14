"""scrun pool: jobs that the supervisor holds, in which containers run without asking Slurm.

Wire: `pool` with the command line, to the common supervisor of the caller's namespaces to start
one, to each supervisor for the rest; `pools`, answered with the nodes of a supervisor's pools.

Errors: UsageError; StateError, if there is no such pool, or already is one; or Slurm's reason.
"""

import json
import os
import re

from scrun.cli.columns import listed
from scrun.cli.parse import Parsed, record_root
from scrun.cli.pools import nodes_of
from scrun.client.anchored import build_call
from scrun.client.launch import launch
from scrun.client.reach import tell
from scrun.client.supervisor_name import place, supervisor_name
from scrun.client.supervisors import ANSWERS, ask_all
from scrun.core.errors import StateError, UsageError
from scrun.core.output import say
from scrun.protocol import wire

HEAD = ("POOL", "JOB", "NODE", "CONTAINERS", "CPUS", "MEMORY", "GPUS", "WAITING", "STATE")
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_VARIABLES = {
    "account": "SCRUN_ACCOUNT", "constraint": "SCRUN_CONSTRAINT",
    "cpus-per-task": "SCRUN_CPUS_PER_TASK", "exclusive": "SCRUN_EXCLUSIVE",
    "gres": "SCRUN_GRES", "mem": "SCRUN_MEM_PER_NODE", "partition": "SCRUN_PARTITION",
    "qos": "SCRUN_QOS", "reservation": "SCRUN_RESERVATION", "time": "SCRUN_TIMELIMIT",
}  # fmt: skip
_OPTIONS = {
    "start": (*_VARIABLES, "nodes"), "list": ("format",), "stop": (), "resize": ("nodes",),
}  # fmt: skip

_Row = dict[str, object]


def run(parsed: Parsed) -> int:
    action, *names = parsed.operands
    if action not in _OPTIONS:
        known = ", ".join(_OPTIONS)
        raise UsageError(f"unknown action {action!r}: use {known}: see 'scrun pool --help'")
    for option in (*_VARIABLES, "nodes", "format"):
        if option not in _OPTIONS[action] and parsed.options.get(option):
            raise UsageError(f"pool {action}: --{option} has no meaning there")
    if action == "list":
        return _list(parsed, names)
    if not names or not _NAME.fullmatch(names[0]):
        raise UsageError(
            f"pool {action} needs a name: letters, digits, '_', '.' and '-', at most 64"
        )
    nodes_of(parsed)
    if action == "resize" and not parsed.options.get("nodes"):
        raise UsageError("pool resize needs --nodes: how many the pool is to have")
    return _start(parsed, names[0]) if action == "start" else _change(parsed, names[0])


def _start(parsed: Parsed, name: str) -> int:
    root = record_root(parsed)
    if place().name:
        raise StateError(
            "pool start: this is a step of a job, in which containers run anyway: call it outside"
        )
    if any(row["pool"] == name for row in nodes_of_pools(root)):
        raise StateError(f"pool {name} exists already: stop it first, or resize it")
    for option, variable in _VARIABLES.items():
        value = parsed.options.get(option)
        if value is not None:
            os.environ[variable] = value if isinstance(value, str) else "yes"
    file = parsed.text("config-file")
    sock = launch(root, supervisor_name("user", parsed), settings_file=file)
    try:
        wire.send(sock, build_call("pool", os.getpid(), parsed.argv))
        status, answer = wire.receive(sock)
    finally:
        sock.close()
    return tell(parsed, status, answer)


def _change(parsed: Parsed, name: str) -> int:
    """Have the supervisor stop or resize it whose pool it is."""
    for status, answer in ask_all(
        record_root(parsed), build_call("pool", os.getpid(), parsed.argv)
    ):
        if status or answer:
            return tell(parsed, status, answer)
    raise StateError(f"there is no pool {name}: see 'scrun pool list'")


def _list(parsed: Parsed, names: list[str]) -> int:
    found = [
        row for row in nodes_of_pools(record_root(parsed)) if not names or row["pool"] in names
    ]
    if names and not found:
        raise StateError(f"there is no pool {names[0]}: see 'scrun pool list'")
    text = listed(
        parsed, found, name=lambda row: str(row["job_id"]), row=lambda row: row, head=HEAD,
        cells=cells_of,
    )  # fmt: skip
    say(text.encode("utf-8", "replace"))
    return 0


def nodes_of_pools(root: str) -> list[_Row]:
    """Return the nodes of all pools; OSError if those of a supervisor are not known.

    An older one does not know the request.
    """
    found: list[_Row] = []
    for status, answer in ask_all(root, [b"pools"], ANSWERS):
        found += [] if status else json.loads(answer)
    return found


def cells_of(row: _Row) -> tuple[str, ...]:
    """Return what a table says of a node; its names are those of `HEAD`."""
    return (
        *(str(row[key]) for key in ("pool", "job_id", "node", "containers")),
        _free(row, "processors", ""),
        _free(row, "memory", "M"),
        _free(row, "gpus", ""),
        str(row["waiting"]),
        str(row["state"]),
    )


def _free(row: _Row, what: str, unit: str) -> str:
    """Return what is free of something, and how much there is; "" if nobody counts it."""
    free, room = row["free"], row["room"]
    if not isinstance(free, dict) or not isinstance(room, dict) or room.get(what) is None:
        return ""  # or an older supervisor knows nothing of it
    return f"{free[what]:.0f}/{room[what]:.0f}{unit}"
