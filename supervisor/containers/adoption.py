"""Decides what becomes of a container whose supervisor has died, from what that has left."""

import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import msgspec

from scrun.core.errors import ScrunError
from scrun.core.paths import has_record
from scrun.core.typed import convert
from scrun.model.record import Record, read_record, write_record
from scrun.model.states import Ending, Phase, exited, killed
from scrun.supervisor.children.processes import exit_code
from scrun.supervisor.containers.anchors import Anchor
from scrun.supervisor.containers.caller import Caller
from scrun.supervisor.containers.container import Container
from scrun.supervisor.containers.keeping import (
    REQUEST,
    STREAMS,
    forget_making,
    recalled,
    remembered,
)
from scrun.supervisor.containers.ledger import Ledger
from scrun.supervisor.containers.live_session import tell
from scrun.supervisor.containers.pods import Pods
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.containers.takeover import Takeover
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.core.deposits import OWN, Deposit, Deposits
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.mounts import MountNamespace
from scrun.supervisor.log.files import open_file
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.log.supervisor_log import fault, log
from scrun.supervisor.nodes.restartable_streams import READ
from scrun.supervisor.plugins.choose import EngineChoices, Stagers

_LOST = "its supervisor died while it was being ended"
_HAS_READ = "its supervisor died while it was being made, and had read of its input"
_NO_JOB = "its supervisor died while it was being made, and its job could not be kept"


def by_jobs(found: Sequence[Inheritance]) -> list[list[Inheritance]]:
    """Put those containers together that are in one job; let jobs go that have none."""
    groups: dict[str, list[Inheritance]] = {}
    for left in found:
        if not left.is_of_job:
            groups.setdefault((left.job or left).container, []).append(left)
    for left in found:
        if left.is_of_job and not left.is_of_pool and left.container not in groups:
            left.close()
    return [*groups.values()]


def in_turn(together: Sequence[Inheritance]) -> list[Inheritance]:
    """Return the containers of a job as they join that.

    First those that were made: their shim makes the others. Then the one that has asked for the
    job: it knows what for.
    """
    return sorted(together, key=lambda found: (not found.is_made, not found.is_first))


class Adoption:
    """Adopts what dead supervisors have left."""

    def __init__(
        self, root: str, engines: EngineChoices, stagers: Stagers, pods: Pods, deposits: Deposits
    ) -> None:
        self._root = root
        self._engines = engines
        self._stagers = stagers
        self._pods = pods
        self._deposits = deposits

    async def adopt(self, together: Sequence[Inheritance], name: str) -> list[Container]:
        """Adopt the containers of a job: a successor of ours finds all of them, or none.

        Args:
            together: What their supervisor has left; owned from now on.

        Returns:
            Those that live. The others have to be cleaned up, like everything of dead supervisors.
        """
        left = together[0].job
        job = None if left is None else self._pods.pools.deposit_of(left.container)
        if left is not None and job is None:
            job = self._deposits.again(left)
        adopted: list[Container] = []
        for found in in_turn(together):
            try:
                container = await self._adopt(found, job)
            except Exception as error:  # it ends, and is cleaned up like others
                fault(f"container {found.container} is not adopted", error)
                container = None
            if container is not None:
                adopted.append(container)
        deposits = [deposit for container in adopted for deposit in container.deposits]
        if left is not None and not adopted:
            if not left.is_of_pool:
                left.close()
        elif job is not None:
            deposits.insert(0, job)
        await self._deposits.room()
        self._deposits.begin(deposits)
        for container in adopted:
            container.is_taken_over(name)
            log.info("container %s: adopted", container.id)
        return adopted

    async def _adopt(self, found: Inheritance, job: Deposit | None) -> Container | None:
        """Take over a container that lives; tell how one ended that was about to be cleaned up.

        Raises:
            ScrunError: It cannot be adopted; it is not.
            OSError: Likewise.
        """
        with ExitStack() as stack:
            stack.callback(found.close)
            directory = os.path.join(self._root, found.container)
            if not _is_same(directory, found.fds[f"{OWN}lock"]):
                return None  # it was removed, and perhaps made again for another one
            record = read_record(directory)
            if record.status == "stopped":
                return None
            if (ending := _known_ending(found)) is not None:
                await _finish(directory, record, found, ending)
                return None
            create_request, bundle = recalled(found.fds[REQUEST])
            create_request = _with_engine(create_request, record.engine)
            engine = await self._engines.choose(
                create_request.settings, create_request.child_env.environment
            )
            if not engine.adopts:
                raise ScrunError(f"engine {engine.name} does not adopt containers")
            file = await open_file(create_request.settings.log)
            log = os.path.join(directory, "log")
            journal = Journal(
                log, create_request.settings.log, found.container, create_request.shown, file
            )
            if not found.is_made:
                forget_making(found)
            os.close(found.take(REQUEST))
            deposit = self._deposits.again(found)
            deposit.make(REQUEST, partial(remembered, create_request, bundle))
            if job is not None:
                deposit.needs(job)
            await _tell_ended(found)
            ledger = Ledger(directory, record, journal, found.take(f"{OWN}lock"), deposit)
            stack.pop_all()
        programs = [(program, self._deposits.again(program)) for program in found.programs]
        found.programs.clear()
        fds = [found.fds.pop(name, -1) for name in STREAMS]
        anchor = found.fds.pop(f"{OWN}anchor", -1)
        mounts = MountNamespace(found.fds.pop(f"{OWN}mounts", -1))
        return Container(
            create_request,
            engine,
            self._stagers,
            ledger,
            Anchor(anchor),
            Stdio(fds, terminal=found.facts["terminal"]),
            self._pods,
            Caller.that_has_ended(record.pid, found.fds.pop(f"{OWN}pid_file", None), mounts),
            Takeover(found, bundle, programs, has_anchor=anchor >= 0),
        )


def _is_same(directory: str, lock: int) -> bool:
    try:
        there = os.stat(os.path.join(directory, "lock"))
    except OSError:
        return False
    return has_record(directory) and os.path.samestat(there, os.fstat(lock))


def _with_engine(create_request: CreateRequest, name: str) -> CreateRequest:
    """Return a request that names its engine, which may have been chosen for it."""
    settings = msgspec.structs.replace(create_request.settings, engine=name)
    return msgspec.structs.replace(create_request, settings=settings)


def _known_ending(found: Inheritance) -> Ending | None:
    """Return how a container has ended, or has to end; None if it lives."""
    facts = found.facts
    if "ending" in facts:
        return convert(facts["ending"], Ending)
    if "status" in facts:
        return exited(exit_code(facts["status"]))
    if facts["phase"] in (Phase.STOPPING.name, Phase.STOPPED.name):
        return Ending(125, "scrun-failure", _LOST)
    if not found.is_made and (found.job is None or READ in found.fds):
        return Ending(125, "scrun-failure", _HAS_READ if found.job else _NO_JOB)
    return None


async def _tell_ended(found: Inheritance, otherwise: Ending | None = None) -> None:
    """Tell the anchors of programs of `exec` how those have ended, and let these go.

    Args:
        otherwise: How the others end; None if they live.
    """
    for program in [*found.programs]:
        ending = otherwise
        if "ending" in program.facts:
            ending = convert(program.facts["ending"], Ending)
        if ending is not None:
            found.programs.remove(program)
            await tell(program, ending)


async def _finish(directory: str, record: Record, found: Inheritance, ending: Ending) -> None:
    """Tell the engine how it has ended, and note that."""
    told = {"org.scrun.reason": ending.reason}
    has_anchor = f"{OWN}anchor" in found.fds
    if has_anchor:
        anchor = Anchor(found.take(f"{OWN}anchor"))
        anchor.end(ending.status)
        await anchor.close()
    await _tell_ended(found, killed(signal.SIGKILL))
    if has_anchor or (ending.reason == "exited" and ending.status >= 0):
        told["org.scrun.exit_status"] = str(ending.status)
    if ending.text:
        told["org.scrun.message"] = ending.text
    annotations = {**record.annotations, **told}
    write_record(directory, msgspec.structs.replace(record, annotations=annotations))
