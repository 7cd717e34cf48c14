"""A live supervisor releases what dead ones left.

A supervisor that is killed together with its children, for example by the end of a session or a
reboot, leaves jobs, staged bundles and incomplete records. The next supervisor of the same root
directory looks for them when it starts, and when a command requests it (`tidy`): in the
background, one after the other, and nobody waits for it. It looks for

* records whose lock is free and that have something to release or are not *stopped*. They stay, as
  *stopped*, until they are deleted, except those whose `run` Slurm has ended with its step.
* if there was one, or if nobody has looked since the machine booted or the root directory was
  made: jobs of dead supervisors that are in no record (`supervisor.core.identity.mark`), and
  staged bundles in the scratch directory, likewise.
"""

import contextlib
import os
from collections.abc import Callable, Sequence

import trio

from scrun.core.errors import ScrunError
from scrun.core.paths import LOOKED, has_record, looked
from scrun.model.adoption import is_held
from scrun.model.identity import boot
from scrun.model.record import read_record
from scrun.oci.ids import is_id
from scrun.settings.file.load import load
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.containers import orphans
from scrun.supervisor.containers.claims import is_claimed
from scrun.supervisor.containers.records import remove_of_the_dead
from scrun.supervisor.contracts.engine import Engine
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.log.supervisor_log import fault, log
from scrun.supervisor.plugins.choose import Engines, Stagers

_LETS_GO = 0.5
_PAUSES = (0.0, 2.0, 5.0)  # requests of a tool that was killed too may reach Slurm late


class Successor:
    """Cleans up after the dead supervisors of a root directory.

    Attributes:
        at_work: Whether it has work for which this supervisor has to stay.
    """

    def __init__(
        self,
        root: str,
        name: str,
        engines: Engines,
        stagers: Stagers,
        changed: Callable[[], None],
    ) -> None:
        """`changed`: called when all work is done."""
        self._root = root
        self._name = name
        self._engines = engines
        self._stagers = stagers
        self._changed = changed
        self._requested = trio.Event()
        self._requested.set()
        self._thorough = False
        self.at_work = False

    def again(self) -> None:
        """Look once more, everywhere."""
        self._thorough = self.at_work = True
        self._requested.set()

    async def later(self) -> None:
        """Look once more when the keeper of another supervisor has let go."""
        self.at_work = True
        await trio.sleep(_LETS_GO)
        self.again()

    async def run(self) -> None:
        """Clean up, now and whenever it is requested."""
        while True:
            await self._requested.wait()
            self._requested = trio.Event()
            thorough, self._thorough = self._thorough, False
            try:
                await self._tidy(thorough=thorough)
            except Exception as error:  # the next supervisor tries again
                fault("cleaning up after dead supervisors", error)
            if not self._requested.is_set():
                self.at_work = False
                self._changed()

    async def _tidy(self, *, thorough: bool) -> None:
        dead = await in_thread(abandoned_records, self._root)
        self.at_work = self.at_work or bool(dead)
        engines = [engine for directory in dead for engine in await self._engines_of(directory)]
        for directory in dead:
            await self._undo(directory)
        if not (dead or thorough) and await in_thread(looked, self._root):
            await in_thread(remove_of_the_dead, self._root, self._name)
            return
        environment = dict(os.environ)
        settings = await in_thread(load, environment)
        with contextlib.suppress(ScrunError):  # an engine that cannot be used has no jobs
            engines.append(await self._engines.choose(settings, environment))
        for engine in dict.fromkeys(engines):
            # if nothing indicates a dead supervisor, one more look is enough
            pauses = _PAUSES if dead or thorough else _PAUSES[:2]
            await self._release_jobs(engine, ChildEnv(environment), pauses)
        await in_thread(_remove_leftovers, settings.staging.scratch, self._root)
        await in_thread(remove_of_the_dead, self._root, self._name)
        await in_thread(_mark_as_looked, self._root)

    async def _engines_of(self, directory: str) -> list[Engine]:
        """Return a record's engine, where a job of it may be."""
        with contextlib.suppress(ScrunError, OSError):
            environment = dict(os.environ)
            record = read_record(directory)
            settings = await in_thread(orphans.settings_of, record, environment)
            return [await self._engines.choose(settings, environment)]
        return []

    async def _undo(self, directory: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
            lock = await in_thread(orphans.own_orphan, directory)
            if lock is None:  # another supervisor works on it
                return
            try:
                await orphans.release(directory, self._engines, self._stagers, self._name)
            except (ScrunError, OSError) as error:  # go on with the others
                fault(f"container {os.path.basename(directory)}", error)
            finally:
                os.close(lock)

    async def _release_jobs(
        self, engine: Engine, child_env: ChildEnv, pauses: Sequence[float]
    ) -> None:
        released: set[str] = set()
        for pause in pauses:
            await trio.sleep(pause)
            if (jobs := await engine.jobs_of_the_dead(child_env, self._root)) is None:
                return
            for job_id in jobs:
                is_needed = await in_thread(_is_needed, self._root, job_id)
                if job_id not in released and not is_needed:
                    log.warning("job %s belongs to a dead supervisor: releasing it", job_id)
                    await engine.release(job_id, child_env, self._root)
                    released.add(job_id)


def abandoned_records(root: str) -> list[str]:
    """Return the records that nobody works on and that need cleaning up."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(filter(is_id, os.listdir(root))):
            directory = os.path.join(root, name)
            with contextlib.suppress(ScrunError, OSError):
                if has_record(directory) and _is_dead(directory):
                    found.append(directory)
    return found


def _is_needed(root: str, job_id: str) -> bool:
    return orphans.lives(root, job_id, until_given_back=True) or is_claimed(root, job_id)


def _is_dead(directory: str) -> bool:
    if not os.path.islink(os.path.join(directory, "supervisor")):
        return False  # not a record: the root directory may contain other directories, too
    record = read_record(directory)
    return record.is_unfinished and not is_held(directory)


def _remove_leftovers(scratch: str | None, root: str) -> None:
    from scrun.supervisor.staging.stage_out import remove_leftovers

    remove_leftovers(scratch, root)


def _mark_as_looked(root: str) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(
            os.path.join(root, LOOKED),
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK,
            0o600,
        )
        with open(fd, "w", encoding="ascii") as file:
            file.write(boot())
