"""Faults of containers that a shim makes: of it, its step, its connection, its runtime. Pure."""

from typing import Any

from tests.stress.chaos.faults import (
    CREATED,
    CREATING,
    DELETING,
    ENDING,
    OF_IMAGES,
    RUNNING,
    STARTING,
    TRAPPED,
    Fault,
)
from tests.stress.chaos.processes import LATER, signals

_FAILURE = 125
_KILLED = 137
_INT, _TERM = 130, 143
_THERE = (CREATING, CREATED, STARTING, RUNNING, ENDING, DELETING)
"""When there is a shim: not while its job is waited for."""

_SHIM: dict[str, Any] = {"engines": ("slurm",), "launches": ("shim",)}

SHIMS: tuple[Fault, ...] = (
    *signals(
        "shim",
        _THERE,
        {
            "KILL": "status 125, `the step of the container's shim ended`; `create` is refused. "
            "The user's next shim on that node removes what is left",
            "TERM": "passed on to the container, as are other signals of Slurm's for a step",
            "INT": "as TERM",
            "STOP": LATER,
        },
        {"KILL": {_FAILURE}, "TERM": {TRAPPED, _TERM}, "INT": {TRAPPED, _INT}},
        weight=2,
        **_SHIM,
    ),
    *signals(
        "srun",
        _THERE,
        {
            "KILL": "as shim-kill; the shim removes all that is its own",
            "TERM": "as KILL",
            "INT": "nothing: srun waits for a second one. Before the shim runs, as KILL",
            "STOP": LATER,
        },
        {"KILL": {_FAILURE}, "TERM": {_FAILURE}, "INT": {_FAILURE}},
        prefix="step",
        weight=2,
        **_SHIM,
    ),
    *signals(
        "runtime",
        (CREATING, STARTING, DELETING),
        {
            "KILL": "`create` or `start` is refused, and the container ends with 125",
            "TERM": "as KILL",
            "STOP": LATER,
        },
        {"KILL": {_FAILURE, _KILLED}, "TERM": {_FAILURE, _KILLED}},
        prefix="node-runtime",
        weight=2,
        **_SHIM,
    ),
    *signals(
        "runtime",
        (RUNNING,),
        {"KILL": "`exec` fails; its container goes on", "STOP": LATER},
        {},
        prefix="exec-runtime",
        kinds=("exec",),
        weight=1,
        **_SHIM,
    ),
    Fault(
        "runtime-hang",
        "runtime",
        "hang",
        (CREATING, STARTING, DELETING),
        "the call waits for it; once that is killed, nothing is left. `delete` goes on without it",
        ends=frozenset({_FAILURE, _KILLED}),
        engines=("slurm",),
        launches=("shim",),
        slow=True,
    ),
    Fault(
        "stream-reset",
        "stream",
        "reset",
        _THERE,
        "as shim-kill, with `its direct connection`; the shim removes all that is its own. Before "
        "its first call: nothing, streams go over srun",
        ends=frozenset({_FAILURE}),
        engines=("slurm",),
        launches=("shim",),
    ),
    Fault(
        "stream-blackhole",
        "stream",
        "blackhole",
        _THERE,
        "nothing, but for the time in which nothing arrived",
        refuses=False,
        engines=("slurm",),
        launches=("shim",),
    ),
    Fault(
        "fuse-kill",
        "image",
        "KILL",
        (CREATING, CREATED, STARTING, RUNNING, ENDING, DELETING),
        "status 125, `its root file system went away`; `create` or `start` is refused. While it "
        "is being mounted nothing: the node gets directories",
        ends=frozenset({_FAILURE, _KILLED}),
        surely=False,
        engines=("slurm",),
        launches=("shim",),
        kinds=OF_IMAGES,
        own=True,
        weight=2,
        disk="store",
    ),
    Fault(
        "wrong-secret",
        "point",
        "point",
        (CREATING,),
        "nothing: who does not know the secret is sent away. Of more than 16 at once: "
        "streams go over srun",
        refuses=False,
        engines=("slurm",),
        launches=("shim",),
        own=True,
        point="listening",
    ),
    Fault(
        "ports-used-up",
        "ports",
        "prepared",
        (CREATING,),
        "no port for srun: status 125, or `create` is refused, in its words. None for scrun "
        "alone: streams go over srun",
        ends=frozenset({_FAILURE}),
        surely=False,
        engines=("slurm",),
        launches=("shim",),
        own=True,
        few_ports=True,
    ),
)
