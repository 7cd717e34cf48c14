"""The processes of a running container and their resource usage: `ps` and `events`.

The scripts of `supervisor.children.node_scripts` report from the nodes. The container has no
cgroups of its own there, so we add up the figures of its processes (proc(5)).
"""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from scrun.core.errors import EngineError
from scrun.model.identity import boot
from scrun.model.usage import given
from scrun.supervisor.children.node_scripts import list_script, stats_script
from scrun.supervisor.contracts.engine import Job, NodeAnswer

_OWN, _WAITED_CHILDREN = (11, 12), (13, 14)  # processor times; counted from field 3 of `stat`
_THREADS, _RSS = 17, 21
_UNITS = (
    r"units ([1-9][0-9]{0,9}) ([0-9]{1,10})"
    r"(?: ([0-9]{1,12}\.[0-9]{1,9}))?(?: ([0-9]{1,19}))?\n"
)


class ProcessUsage(msgspec.Struct, frozen=True):
    """The resource usage of processes.

    Attributes:
        user: Nanoseconds of processor time in user mode, including waited-for children.
        kernel: Nanoseconds in the kernel, likewise.
        memory: Bytes of resident memory; shared pages count for each process.
        uptime: When that was so, in seconds since the boot of the first node; 0: not known.
        limit: Bytes of memory that control groups, or else the machines, leave it; 0: not known.
    """

    user: int = 0
    kernel: int = 0
    memory: int = 0
    threads: int = 0
    uptime: float = 0
    limit: int = 0


async def processes(job: Job, anchor: int, form: str, words: Sequence[str]) -> bytes:
    """List the processes of a container.

    Args:
        form: "json" for a list of pids on this host: only the anchor's if the container runs
            elsewhere. Otherwise the output of ps(1) on the nodes.
        words: Options of ps; `-ef` without any, as in runc.

    Raises:
        EngineError: The nodes cannot be asked.
    """
    table = form != "json"
    command = shlex.join(["ps", *(words or ["-ef"])]) if table else ""
    answers = await job.inspect(lambda state: list_script(state, command))
    found = [read_list(answer) for answer in answers]
    if not table:
        here = f"{boot()} {os.readlink('/proc/self/ns/pid')}"  # as `list_script` has it
        pids = sorted({pid for seen in found for pid in seen.pids if seen.host == here})
        return json.dumps(pids or [anchor]).encode() + b"\n"
    several = len({answer.node for answer in answers}) > 1
    lines: list[str] = []
    for answer, seen in zip(answers, found, strict=True):
        if answer.status:
            reason = seen.text.strip().splitlines()
            raise EngineError(f"ps on {answer.node}: {reason[-1] if reason else answer.status}")
        rows = rows_of(seen.text, seen.pids)
        if several:
            width = max(len("NODE"), *(len(other.node) for other in answers))
            names = ["NODE", *[answer.node] * len(rows)]
            rows = [f"{name:{width}} {row}" for name, row in zip(names, rows, strict=False)]
        lines += rows[1:] if lines else rows
    return "".join(f"{line}\n" for line in lines).encode()


class ProcessList(msgspec.Struct, frozen=True):
    """The output of `list_script`: the host, the pids there, and ps' table."""

    host: str
    pids: frozenset[int]
    text: str


def read_list(answer: NodeAnswer) -> ProcessList:
    """Read the output of `list_script`; EngineError if the node does not know the container."""
    found = re.match(r"host (.*)\npids\n((?:[0-9]{1,10}\n)*)table\n", answer.text)
    if not found:
        raise _no_answer(answer, "listed")
    pids = frozenset(int(pid) for pid in found[2].split())
    return ProcessList(found[1], pids, answer.text[found.end() :])


def rows_of(table: str, pids: frozenset[int]) -> list[str]:
    """Return the heading, and the rows of some processes, of a table of ps with a column PID."""
    lines = table.removesuffix("\n").split("\n")  # splitlines would split names with a form feed
    heading = lines[0].split()
    if "PID" not in heading:
        raise EngineError(f"ps printed no column PID: {lines[0].strip()[:80]!r}")
    column = heading.index("PID")
    rows = [lines[0]]
    wanted = frozenset(map(str, pids))  # as text: the column may hold anything
    for line in lines[1:]:
        fields = line.split(None, column + 1)
        if len(fields) > column and fields[column] in wanted:
            rows.append(line)
    return rows


async def statistics(job: Job, container: str, resources: Mapping[str, Any]) -> bytes:
    """Return a container's resource usage in the format of `runc events --stats`."""
    usage = total(await job.inspect(stats_script))
    _, limit = given(job.environment, resources)
    memory: dict[str, int] = {"usage": usage.memory}
    if limit := limit or usage.limit:
        memory["limit"] = limit
    data = {
        "cpu": {
            "usage": {
                "total": usage.user + usage.kernel,
                "kernel": usage.kernel,
                "user": usage.user,
            }
        },
        "memory": {"usage": memory},
        "pids": {"current": usage.threads},
    }
    event = {"type": "stats", "id": container, "data": data, "uptime": usage.uptime}
    return json.dumps(event).encode() + b"\n"


def total(answers: Sequence[NodeAnswer]) -> ProcessUsage:
    """Add up the output of `stats_script`; EngineError if a node does not know the container."""
    user = kernel = memory = threads = 0
    uptimes, limits = [], {}
    for answer in answers:
        found = re.match(_UNITS, answer.text)
        if not found:
            raise _no_answer(answer, "inspected")
        tick, page = 1_000_000_000 // int(found[1]), int(found[2])
        uptimes.append(float(found[3] or 0))  # a script from before an upgrade does not say these
        limits[answer.node] = int(found[4] or 0)  # of all tasks there
        for line in answer.text[found.end() :].split("\n"):
            fields = line.rpartition(")")[2].split()  # a name may contain anything
            if len(fields) <= _RSS:
                continue
            numbers = [_number(fields[index]) for index in (*_OWN, *_WAITED_CHILDREN)]
            user += (numbers[0] + numbers[2]) * tick
            kernel += (numbers[1] + numbers[3]) * tick
            memory += _number(fields[_RSS]) * page
            threads += _number(fields[_THREADS])
    uptime, limit = uptimes[0] if uptimes else 0, sum(limits.values())
    return ProcessUsage(user, kernel, memory, threads, uptime, limit)


def _number(field: str) -> int:
    return int(field) if field.isascii() and field.isdigit() and len(field) <= 20 else 0


def _no_answer(answer: NodeAnswer, purpose: str) -> EngineError:
    lines = answer.text.strip().splitlines()
    reason = lines[-1] if lines else "its runtime does not know the container"
    return EngineError(f"the processes on {answer.node} cannot be {purpose}: {reason}")
