"""What dead supervisors have left is given back by one that lives.

A supervisor that is killed together with its children, as by the end of a session or a restart of
the machine, leaves jobs, staged bundles and records that say less than there is. Whichever
supervisor of the same root directory comes next looks for that when it begins, and when a command
says that it has seen something (the request `tidy`): in the background, one thing after the
other, and nobody waits for it.

* Records that nobody holds the lock of, and that have something to give back or do not say that
  their container has stopped. They stay, as *stopped*, until they are deleted.
* If there was one, or if nobody has looked since this machine was started and the root directory
  made: jobs of dead supervisors that are in no record, because it is gone or was never written
  (`supervisor.core.identity.mark`), and staged bundles in the scratch directory, likewise.
"""

import contextlib
import os
from collections.abc import Callable, Sequence

import trio

from scrun.core.errors import ScrunError
from scrun.core.paths import LOOKED, has_record, looked
from scrun.model.record import read_record
from scrun.oci.ids import is_id
from scrun.settings.file.load import load
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.containers import orphans
from scrun.supervisor.containers.records import remove_of_the_dead
from scrun.supervisor.contracts.engine import Engine, RemembersJobs
from scrun.supervisor.core.identity import boot
from scrun.supervisor.core.ownership import own
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.log.supervisor_log import fault, log
from scrun.supervisor.plugins.choose_engine import Engines
from scrun.supervisor.plugins.choose_stager import Stagers
from scrun.supervisor.staging.leftovers import remove_leftovers

_ON_THEIR_WAY = (0.0, 2.0, 5.0)  # what a tool has asked for that was killed with the supervisor


class Successor:
    """Tidies up after the dead supervisors of a root directory.

    Attributes:
        at_work: Whether it has something to do that this supervisor should stay for.
    """

    def __init__(
        self,
        root: str,
        name: str,
        engines: Engines,
        stagers: Stagers,
        changed: Callable[[], None],
    ) -> None:
        """Prepare; nothing is looked at yet.

        Args:
            root: The directory of the records.
            name: The socket's name of this supervisor.
            engines: To give jobs back with.
            stagers: To clean up what was staged.
            changed: Called when there is nothing to do any more.
        """
        self._root = root
        self._name = name
        self._engines = engines
        self._stagers = stagers
        self._changed = changed
        self._asked = trio.Event()
        self._asked.set()
        self._thorough = False
        self.at_work = False

    def again(self) -> None:
        """Look once more, everywhere: somebody has seen something."""
        self._thorough = self.at_work = True
        self._asked.set()

    async def run(self) -> None:
        """Tidy up, now and whenever it is asked for."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            thorough, self._thorough = self._thorough, False
            try:
                await self._tidy(thorough=thorough)
            except Exception as error:  # the next one tries again
                fault("tidying up after dead supervisors", error)
            if not self._asked.is_set():
                self.at_work = False
                self._changed()

    async def _tidy(self, *, thorough: bool) -> None:
        dead = await in_thread(of_the_dead, self._root)
        self.at_work = self.at_work or bool(dead)
        engines = [engine for directory in dead for engine in await self._engines_of(directory)]
        for directory in dead:
            await self._undo(directory)
        if not (dead or thorough) and await in_thread(looked, self._root):
            return
        environment = dict(os.environ)
        settings = await in_thread(load, environment)
        with contextlib.suppress(ScrunError):  # nobody can ask it: then it holds nothing either
            engines.append(await self._engines.choose(settings, environment))
        for engine in dict.fromkeys(engines):
            # without a sign of anybody's death once more is enough
            pauses = _ON_THEIR_WAY if dead or thorough else _ON_THEIR_WAY[:2]
            await self._give_jobs_back(engine, ChildEnv(environment), pauses)
        if settings.staging.scratch is not None:
            scratch = settings.staging.scratch
            await in_thread(remove_leftovers, scratch, self._root)
        await in_thread(remove_of_the_dead, self._root, self._name)
        await in_thread(_note_that_we_looked, self._root)

    async def _engines_of(self, directory: str) -> list[Engine]:
        """Return the engine of a record, which says where a job of it may be."""
        with contextlib.suppress(ScrunError, OSError):
            environment = dict(os.environ)
            record = read_record(directory)
            settings = await in_thread(orphans.settings_of, record, environment)
            return [await self._engines.choose(settings, environment)]
        return []

    async def _undo(self, directory: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
            lock = await in_thread(own, directory)
            if lock is None:  # somebody else is at it
                return
            try:
                await orphans.tidy(directory, self._engines, self._stagers)
            except (ScrunError, OSError) as error:  # the others' turn
                fault(f"container {os.path.basename(directory)}", error)
            finally:
                os.close(lock)

    async def _give_jobs_back(
        self, engine: Engine, child_env: ChildEnv, pauses: Sequence[float]
    ) -> None:
        if not isinstance(engine, RemembersJobs):
            return
        given: set[str] = set()
        for pause in pauses:
            await trio.sleep(pause)
            for job_id in await engine.jobs_of_the_dead(child_env, self._root):
                if job_id not in given:
                    log.warning("job %s is of a dead supervisor: it is given back", job_id)
                    await engine.release(job_id, child_env, self._root)
                    given.add(job_id)


def of_the_dead(root: str) -> list[str]:
    """Return the records that nobody works on, and that something has to be done about."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(filter(is_id, os.listdir(root))):
            directory = os.path.join(root, name)
            with contextlib.suppress(ScrunError, OSError):
                if has_record(directory) and _is_dead(directory):
                    found.append(directory)
    return found


def _is_dead(directory: str) -> bool:
    if not os.path.islink(os.path.join(directory, "supervisor")):
        return False  # no record of ours: the root directory may be any, and have others in it
    record = read_record(directory)
    if not record.is_unfinished:
        return False
    lock = own(directory)
    if lock is None:
        return False
    os.close(lock)
    return True


def _note_that_we_looked(root: str) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(
            os.path.join(root, LOOKED),
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK,
            0o600,
        )
        with open(fd, "w", encoding="ascii") as file:
            file.write(boot())
