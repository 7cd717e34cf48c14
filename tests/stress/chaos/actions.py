"""What is done to a container."""

import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from tests.stress.chaos import bad_clients, connections, disks, images, limits, points, proxies
from tests.stress.chaos.faults import CREATING, STARTING
from tests.stress.chaos.jobs import PLACES
from tests.stress.chaos.victims import killed, signalled

if TYPE_CHECKING:
    from tests.stress.chaos.container import Container

_LOOKING = 4.0

Action = Callable[["Container"], Awaitable[None]]


async def harm(container: "Container") -> None:
    """Do what the plan says, if there is anybody to do it to."""
    action = container.plan.fault.action
    if action in _ACTIONS:
        await _ACTIONS[action](container)
    else:
        await _signal(container)


async def _signal(container: "Container") -> None:
    """Send a signal to the fault's target."""
    if pid := await _victim(container):
        target = container.plan.fault.target
        await signalled(
            container,
            pid,
            container.plan.fault.action,
            lambda: container.where.find(target) == pid,
        )


async def _victim(container: "Container") -> int:
    """Wait for the fault's target to appear, or for the container to be past the moment."""
    target = container.plan.fault.target
    pid = await _appears(container, lambda: container.where.find(target))
    # a later call would be another client
    return 0 if target == "client" and container.moment is not container.plan.moment else pid


async def _appears(container: "Container", look: Callable[[], int]) -> int:
    pause = 0.002
    with trio.move_on_after(_LOOKING):
        while not (found := look()):
            if container.moment is not container.plan.moment:
                return 0
            await trio.sleep(pause)
            pause = min(pause * 1.3, 0.02)
        return found
    return 0


async def _together(container: "Container") -> None:
    """Kill several at once: nobody is left who could tidy up after the other."""
    if pid := await _victim(container):
        found = [container.where.find(target) for target in container.plan.fault.beside]
        killed(container, [*(other for other in found if other), pid])


async def _limited(container: "Container") -> None:
    """Let the supervisor have no more processes, or descriptors, for a while."""
    pid = await _victim(container)
    if pid:
        await limits.limited(container, pid, container.plan.fault.name.removeprefix("supervisor-"))


async def _bad_client(container: "Container") -> None:
    if await _victim(container):
        await bad_clients.misuse(container)


async def _prepared(container: "Container") -> None:
    """Do nothing more: the call itself was made so that it lacks something."""


async def _job(container: "Container") -> None:
    """Have Slurm do something to the job."""

    def known() -> int:
        return int(container.testbed.stated(container.plan, container.id).get("job_id") or 0)

    if not (job := await _appears(container, known)):
        return
    words = {
        "cancel": ["scancel", str(job)],
        "requeue": ["scontrol", "requeue", str(job)],
        "limit": ["scontrol", "update", f"JobId={job}", "EndTime=now+1seconds"],
    }[container.plan.fault.action]
    await _told(container, words)


async def _place(container: "Container") -> None:
    """Have something happen to the job in which its commands are called."""
    place = container.place
    assert place is not None
    action = container.plan.fault.action.removeprefix("place-")
    if action in ("end", "kill"):
        container.hit(f"the agent {place.agent} ends")
        if action == "end":
            place.leave()
        else:
            place.kill()
        return
    words = {
        "cancel": ["scancel", place.job],
        "requeue": ["scontrol", "requeue", place.job],
        "limit": ["scontrol", "update", f"JobId={place.job}", "EndTime=now+1seconds"],
        "suspend": ["scontrol", "suspend", place.job],
    }[action]
    with trio.CancelScope(shield=True):  # nobody knows whether a command that is left was heard
        done = await _told(container, words)
    if not done:
        return
    if action == "suspend":
        try:
            await trio.sleep(container.plan.pause)
        finally:
            with trio.CancelScope(shield=True):
                await _told(container, ["scontrol", "resume", place.job])
    else:
        await place.lost.wait()


async def _told(container: "Container", words: list[str]) -> bool:
    done = await container.testbed.children.run(words, container.testbed.slurm_environment)
    if done.status == 0:
        container.hit(" ".join(words))
        return True
    container.note(f"{' '.join(words)}: {done.status} {done.err}")
    return False


async def _between(container: "Container") -> None:
    """Be between the commands and the supervisor for a while."""
    async with proxies.between(container):
        container.harmed()  # it goes on with its next call
        await trio.sleep(2 * container.plan.pause)


async def _connection(container: "Container") -> None:
    """Have something happen to the shim's direct connection."""

    def connected() -> int:
        shim = container.where.find("shim")
        return connections.has_connection(shim) if shim else 0

    if shim := await _appears(container, connected):
        happens = getattr(connections, container.plan.fault.action)
        await happens(container, shim)


async def _hang(container: "Container") -> None:
    """Stop the runtime for good; after a while nobody waits any more for what it does."""
    if not (pid := await _victim(container)):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        container.hit(f"the runtime {pid} hangs")
    await trio.sleep(container.plan.pause)
    client = container.where.client
    if client and container.moment in (CREATING, STARTING):  # a create may have ended before
        await signalled(container, client, "TERM", lambda: container.where.client == client)


_ACTIONS: dict[str, Action] = {
    "together": _together,
    "point": points.notice,
    "limited": _limited,
    "bad-client": _bad_client,
    "prepared": _prepared,
    "full": disks.fill,
    "freeze": disks.freeze,
    "gone": images.gone,
    "between": _between,
    "reset": _connection,
    "blackhole": _connection,
    "hang": _hang,
    "cancel": _job,
    "requeue": _job,
    "limit": _job,
    **dict.fromkeys((fault.action for fault in PLACES), _place),
}
