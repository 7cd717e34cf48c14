"""A supervisor that may have no more processes, or no more descriptors, for a while."""

import os
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from tests.stress.chaos.container import Container


async def limited(container: "Container", pid: int, name: str) -> None:
    """Lower a soft limit of a process, and raise it again.

    By prlimit(1) as its user: root may lack CAP_SYS_RESOURCE.
    """
    try:
        before = _soft(pid, "Max processes" if name == "nproc" else "Max open files")
        few = 1  # the user has more processes
        if name == "nofile":
            few = max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1 + container.plan.number % 8
    except (FileNotFoundError, ValueError):  # it has ended: it is gone, or has none any more
        return
    if await _set(container, pid, f"--{name}={few}:"):
        container.hit(f"{name} of {pid} is {few}")
        try:
            await trio.sleep(container.plan.pause)
        finally:
            with trio.CancelScope(shield=True):
                await _set(container, pid, f"--{name}={before}:")
            container.note(f"{name} of {pid} is {before} again")


def _soft(pid: int, kind: str) -> str:
    with open(f"/proc/{pid}/limits") as file:
        return next(line for line in file if line.startswith(kind)).split()[3]


async def _set(container: "Container", pid: int, option: str) -> bool:
    testbed = container.testbed
    command = [*testbed.site.user.prefix, "prlimit", f"--pid={pid}", option]
    done = await testbed.children.run(command, testbed.site.user.environment)
    return done.status == 0
