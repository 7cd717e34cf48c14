"""What is done to a life."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from tests.stress.chaos import disks, limits, points, proxies, rogues
from tests.stress.chaos.victims import killed, signalled

if TYPE_CHECKING:
    from tests.stress.chaos.life import Life

_LOOKING = 4.0

Deed = Callable[["Life"], Awaitable[None]]


async def harm(life: "Life") -> None:
    """Do what the plan says, if there is anybody to do it to."""
    deed = life.plan.fault.deed
    if deed in _DEEDS:
        await _DEEDS[deed](life)
    else:
        await _signal(life)


async def _signal(life: "Life") -> None:
    """Send a signal to the fault's target."""
    if pid := await _victim(life):
        target = life.plan.fault.target
        await signalled(life, pid, life.plan.fault.deed, lambda: life.where.find(target) == pid)


async def _victim(life: "Life") -> int:
    """Wait for the fault's target to appear, or for the life to be past the moment."""
    target = life.plan.fault.target
    pid = await _appears(life, lambda: life.where.find(target))
    # a later call would be another client
    return 0 if target == "client" and life.moment is not life.plan.moment else pid


async def _appears(life: "Life", look: Callable[[], int]) -> int:
    pause = 0.002
    with trio.move_on_after(_LOOKING):
        while not (found := look()):
            if life.moment is not life.plan.moment:
                return 0
            await trio.sleep(pause)
            pause = min(pause * 1.3, 0.02)
        return found
    return 0


async def _together(life: "Life") -> None:
    """Kill several at once: nobody is left who could tidy up after the other."""
    if pid := await _victim(life):
        found = [life.where.find(target) for target in life.plan.fault.beside]
        killed(life, [*(other for other in found if other), pid])


async def _limited(life: "Life") -> None:
    """Let the supervisor have no more processes, or descriptors, for a while."""
    pid = await _victim(life)
    if pid:
        await limits.limited(life, pid, life.plan.fault.name.removeprefix("supervisor-"))


async def _rogue(life: "Life") -> None:
    """Misuse the supervisor's socket."""
    if await _victim(life):
        await rogues.misuse(life)


async def _prepared(life: "Life") -> None:
    """Do nothing more: the call itself was made so that it lacks something."""


async def _job(life: "Life") -> None:
    """Have Slurm do something to the job."""

    def known() -> int:
        return int(life.place.stated(life.plan, life.id).get("job_id") or 0)

    if not (job := await _appears(life, known)):
        return
    words = {
        "cancel": ["scancel", str(job)],
        "requeue": ["scontrol", "requeue", str(job)],
        "limit": ["scontrol", "update", f"JobId={job}", "EndTime=now+1seconds"],
    }[life.plan.fault.deed]
    done = await life.place.children.run(words, life.place.slurm_environment)
    if done.status == 0:
        life.hit(f"{' '.join(words)}")
    else:
        life.note(f"{' '.join(words)}: {done.status} {done.err}")


async def _between(life: "Life") -> None:
    """Be between the commands and the supervisor for a while."""
    async with proxies.between(life):
        life.harmed()  # it goes on with its next call
        await trio.sleep(2 * life.plan.pause)


_DEEDS: dict[str, Deed] = {
    "together": _together,
    "point": points.notice,
    "limited": _limited,
    "rogue": _rogue,
    "prepared": _prepared,
    "full": disks.fill,
    "between": _between,
    "cancel": _job,
    "requeue": _job,
    "limit": _job,
}
