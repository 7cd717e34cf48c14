"""The containers of a supervisor: created, found and deleted by id."""

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Container as In
from functools import partial
from typing import TYPE_CHECKING

import trio

from scrun.core.errors import ScrunError, StateError, SupervisorLost, UnknownContainer
from scrun.core.paths import BUILDS, COMMON, has_record
from scrun.core.pods import named_pod
from scrun.model.adoption import is_on_its_way
from scrun.model.record import Record, read_record
from scrun.model.states import taken
from scrun.oci.config import Config
from scrun.oci.ids import check_id, is_id
from scrun.supervisor.containers import orphans
from scrun.supervisor.containers.anchors import Anchor
from scrun.supervisor.containers.caller import Caller
from scrun.supervisor.containers.container import Container
from scrun.supervisor.containers.ledger import Ledger, first_record
from scrun.supervisor.containers.pods import Pods, named_anchors
from scrun.supervisor.containers.pools import Pools, call_of
from scrun.supervisor.containers.records import (
    link,
    make_again,
    remove_half_made,
    remove_record,
)
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.containers.successor import Successor
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.deleter import deleter_of
from scrun.supervisor.contracts.pool_call import PoolCall
from scrun.supervisor.core.deposits import Deposits
from scrun.supervisor.core.inheritance import POOL, Inheritance, KeeperLine, find
from scrun.supervisor.core.names import learn
from scrun.supervisor.core.nurseries import bulkhead, unwrapped
from scrun.supervisor.core.threads import in_thread, own_threads
from scrun.supervisor.log.files import open_file
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.log.supervisor_log import fault, log
from scrun.supervisor.plugins.choose import EngineChoices, Engines, Stagers
from scrun.supervisor.plugins.registry import Plugins

if TYPE_CHECKING:
    from scrun.supervisor.containers.adoption import Adoption

_NAMES, _SETTLING = 10.0, 10.0
_ARRIVING = 60.0
_PAUSE = 0.05
TOLD_TO_STOP = taken("scrun-failure", "the supervisor was told to stop")


class Leaving:
    """Which containers a successor can take over, while we still serve them."""

    def __init__(self, known: Mapping[str, Container], pools: Pools) -> None:
        self._known = known
        self._pools = pools

    def staying(self, *, with_programs: bool = True) -> dict[str, str]:
        """Return those that a successor cannot take over now, and why.

        Args:
            with_programs: Whether those count whose programs of `exec` would end.
        """
        found = {f"pool {name}": why for name, why in self._pools.unadoptable.items()}
        for name, container in self._known.items():
            if why := container.why_it_stays:
                found[name] = why
            elif with_programs and container.programs.would_end:
                found[name] = "a program of `exec` is running that would end"
        return found

    @property
    def is_kept(self) -> bool:
        """Whether a successor finds any that lives, or a pool."""
        lives = any(one.alive and not one.why_it_stays for one in self._known.values())
        return lives or self._pools.is_kept

    async def end_the_others(self) -> None:
        """End those that no successor finds; returns when they, and what ends, are cleaned up."""
        others = [one for one in self._known.values() if one.why_it_stays or one.ending]
        for container in others:
            if not container.ending:
                container.end(TOLD_TO_STOP)
        for container in others:
            await container.gone.wait()

    def end_unadoptable(self) -> None:
        """End those that no successor could ever take over, and such pools."""
        self._pools.end_unadoptable()
        for container in self._known.values():
            if container.is_ours_alone:
                container.end(taken("scrun-failure", "the supervisor was told to restart"))


class Arrivals:
    """The containers that are about to be adopted: who needs one waits for it."""

    def __init__(self, root: str, known: Mapping[str, Container]) -> None:
        self._root = root
        self._known = known

    async def of(self, container: str, patience: float = math.inf) -> None:
        """Wait for a container that is about to be adopted; return at once for any other.

        Args:
            patience: Seconds to wait until it can be worked with, once it is ours.
        """
        if (known := self._known.get(container)) is not None and known.there.is_set():
            return
        directory = os.path.join(self._root, container)
        with trio.move_on_after(_ARRIVING), contextlib.suppress(ScrunError, OSError):
            while is_id(container) and container not in self._known:
                if not await in_thread(is_on_its_way, directory):
                    break  # or it has arrived meanwhile
                await trio.sleep(_PAUSE)
        if (known := self._known.get(container)) is not None:
            with trio.move_on_after(patience):
                await known.there.wait()

    async def of_pod(self, config: Config) -> None:
        """Wait for the containers of a config.json's pod that are about to be adopted."""
        if named_pod(config.annotations) or [*named_anchors(config)]:
            arriving = {
                name
                for name, one in self._known.items()
                if one.takeover is not None and not one.takeover.joined.is_set()
            }
            here = self._known.keys() - arriving  # only the others' records have to be read
            for container in await in_thread(on_their_way, self._root, config, here, arriving):
                await self.of(container)
                known = self._known.get(container)
                if known is not None and known.takeover is not None:
                    await known.takeover.joined.wait()


def on_their_way(root: str, config: Config, here: In[str], arriving: In[str]) -> list[str]:
    """Return the containers of a config.json's pod whose supervisor has died and that live."""
    pod = named_pod(config.annotations)
    anchors = {anchor for _, anchor in named_anchors(config)}
    found = []
    for name in filter(is_id, os.listdir(root)):
        if name in here:
            continue
        directory = os.path.join(root, name)
        with contextlib.suppress(ScrunError, OSError):
            if name in arriving or is_on_its_way(directory):
                record = read_record(directory)
                its = (name, named_pod(record.annotations))
                if record.pid in anchors or (pod is not None and pod in its):
                    found.append(name)
    return found


class Containers:
    """The containers of one supervisor, by id.

    Attributes:
        deposits: What they need to outlive it.
        leaving: What a successor can take over.
        arrivals: Those that are about to be adopted.
        pods: The jobs in which they are.
        pools: The pools, in which containers may run.
        successor: Cleans up after dead supervisors.
    """

    def __init__(
        self,
        root: str,
        name: str,
        plugins: Plugins,
        nursery: trio.Nursery,
        changed: Callable[[], None],
    ) -> None:
        """`changed`: called when a container is cleaned up."""
        self._root, self._name = root, name
        self._nursery = nursery
        self._changed = changed
        self._engines = Engines(root, plugins)
        self._stagers = Stagers(plugins)
        self._borrowers = 0
        self.deposits = Deposits()
        self._adopting = trio.Lock()
        self._known: dict[str, Container] = {}
        self.arrivals = Arrivals(root, self._known)
        self.pools = Pools(root, nursery, self.deposits, changed)
        self.pods = Pods(
            nursery, self.deposits, self.arrivals.of_pod, partial(_borrow, root, name), changed,
            self.pools,
            # others serve one pod: no later container could use its job
            lingers=name.startswith((COMMON, BUILDS)),
        )  # fmt: skip
        self.leaving = Leaving(self._known, self.pools)
        self._accepts = True
        self._stopping = False
        self.successor = Successor(root, name, self._engines, self._stagers, changed)

    @property
    def lends(self) -> bool:
        """Whether other supervisors have jobs of ours, or have asked for one."""
        return self._borrowers > 0

    @property
    def alive(self) -> bool:
        """Whether anything of them, or of a dead supervisor's, is left to clean up."""
        return (
            self.pods.any
            or self.successor.at_work
            or any(container.alive for container in self._known.values())
        )

    def tidy(self) -> None:
        """Remove files that are useful only while the supervisor runs: it is about to end."""
        self._engines.tidy()
        remove_half_made(self._root, self._name)

    @property
    def any(self) -> bool:
        """Whether there is any container, even a stopped one."""
        return bool(self._known)

    def be_called(self, name: str) -> None:
        """Let the records lead to another name of our socket.

        Raises:
            OSError: They cannot.
        """
        for container in self._known.values():
            if has_record(container.directory):
                link(container.directory, name)
        self._name = name

    def restore_records(self, name: str) -> None:
        """Make the records again after their root directory was removed.

        A container whose id was taken meanwhile is ended.

        Args:
            name: The socket's name, perhaps a new one.
        """
        self._name = name
        for container in list(self._known.values()):
            if not container.restore_record(name):
                del self._known[container.id]

    async def end_all(self) -> None:
        """End all of them, and accept no new ones; returns when all are cleaned up."""
        self._accepts = False
        self._stopping = True
        for container in self._known.values():
            container.end(TOLD_TO_STOP)
        for container in list(self._known.values()):
            await container.gone.wait()
        await self.keep_no_jobs()
        await self.pools.stop_all()

    async def leave(self) -> None:
        """Accept no new ones, and end those that no successor finds; returns when that is done."""
        self._accepts = False
        await self.leaving.end_the_others()
        await self.keep_no_jobs()

    async def keep_no_jobs(self) -> None:
        """Release the jobs that wait, and let no further ones wait."""
        self.pods.lingers = False
        await bulkhead("the jobs that wait", self.pods.release_waiting)

    async def lend(self, needs: bytes, connection: trio.SocketStream) -> None:
        """Lend a job that waits to another supervisor, if one suits it."""
        self._borrowers += 1
        try:
            from scrun.supervisor.containers.lending import lend

            await lend(self.pods.lend, needs, connection)
        finally:
            self._borrowers -= 1

    def _check_accepts(self) -> None:
        if not self._accepts:
            raise SupervisorLost(
                f"supervisor {os.getpid()} is stopping, and still cleans up its containers; "
                "try again when it has ended"
            )

    async def start_pool(self, call: PoolCall, count: int) -> list[str]:
        """Start a pool; return the ids of its jobs.

        Raises:
            ScrunError: It cannot be started.
        """
        engine = await self._engines.choose(call.settings, call.child_env.environment)
        self._check_accepts()
        nodes = await self.pools.start(call, engine, count)
        return [node.held.job_id for node in nodes]

    def abandon(self, *, kept: bool) -> None:
        """Leave the rest of the work to others: the records describe it, and we drop the locks.

        Args:
            kept: Whether that goes for containers, too, that a successor could find.
        """
        for container in self._known.values():
            if container.alive and (kept or container.why_it_stays):
                container.abandon()

    def find(self, container: str) -> Container | Record:
        """Find a container; if its supervisor died, only its record.

        Raises:
            UsageError: The id is not valid.
            UnknownContainer: No container has this id.
        """
        name = check_id(container)
        if (found := self._known.get(name)) is not None:
            return found
        directory = os.path.join(self._root, name)
        if not has_record(directory):
            raise UnknownContainer.named(name, self._root)
        return read_record(directory)

    def live(self, container: str, purpose: str) -> Container:
        """Find a container of ours, for an operation that needs more than a record.

        Raises:
            UsageError: The id is not valid.
            UnknownContainer: No container has this id.
            StateError: Its supervisor is gone.
        """
        found = self.find(container)
        if isinstance(found, Record):
            raise StateError(
                f"container {found.id}: {purpose} is not possible: it is stopped, its supervisor "
                "is gone; delete it"
            )
        return found

    async def create(
        self, create_request: CreateRequest, fds: list[int], caller: Caller
    ) -> Container:
        """Create a container, and start its task.

        Args:
            fds: Standard input, output and error, and the anchor's socket; the list gets empty.

        Raises:
            SupervisorLost: The supervisor is stopping.
            EngineUnavailable: The requested engine cannot be used.
            PluginUnavailable: No such engine is installed.
            ContainerExists: The id is taken.
            SettingsError: The log cannot be written.
        """
        environment = create_request.child_env.environment
        engine = await self._engines.choose(create_request.settings, environment)
        file = await open_file(create_request.settings.log)
        try:
            self._check_accepts()
            directory = os.path.join(self._root, check_id(create_request.id))
            record = first_record(create_request, engine.name)
            delete = partial(self.delete, record.id, force=True)
            lock = await make_again(directory, self._name, record, environment, delete)
            try:
                log = os.path.join(directory, "log")
                journal = Journal(
                    log, create_request.settings.log, create_request.id, create_request.shown, file
                )
            except BaseException:
                remove_record(directory, self._name)
                os.close(lock)
                raise
        except BaseException:
            if file is not None:
                file.close()
            raise
        stdio, anchor, preserved = fds[:3], fds[3], fds[4:]
        container = Container(
            create_request,
            engine,
            self._stagers,
            Ledger(directory, record, journal, lock, self.deposits.new(record.id)),
            Anchor(anchor),
            Stdio(stdio, terminal=create_request.console is not None, preserved=preserved),
            self.pods,
            caller,
        )
        fds.clear()  # they are the container's now
        container.programs.when_ended = self._changed
        self._known[create_request.id] = container
        self._nursery.start_soon(self._run, container)
        return container

    async def adopt(self, line: KeeperLine) -> None:
        """Adopt what a dead supervisor has left.

        Raises:
            StateError: It was a newer scrun's.
            OSError: We are out of descriptors, or the keeper is gone.
        """
        from scrun.supervisor.containers.adoption import Adoption, by_jobs
        from scrun.supervisor.core.garbage import collect_again, pause_collections

        try:
            left = await in_thread(find, line)
        except StateError as error:
            log.warning("%s", error)
            raise
        with trio.move_on_after(_NAMES):  # else numbers have to do
            await in_thread(learn, abandon=True)
        pause_collections()
        try:
            # a second request for the same, whose first caller has gone, finds them adopted
            async with self._adopting, unwrapped() as nursery:
                engines = EngineChoices(self._engines)
                adoption = Adoption(self._root, engines, self._stagers, self.pods, self.deposits)
                nodes = [one for one in left if one.is_of_pool]
                for one in nodes:
                    await self._adopt_node(one, engines)
                for together in by_jobs(left):
                    nursery.start_soon(self._adopt, together, adoption)
            for one in nodes:
                one.together.is_whole()
            await self.deposits.be_safe()
        finally:
            self._nursery.start_soon(collect_again, _SETTLING)

    async def _adopt_node(self, left: Inheritance, engines: EngineChoices) -> None:
        """Adopt a node of a pool, unless it is ours already."""
        try:
            call = call_of(left)
            engine = await engines.choose(call.settings, call.child_env.environment)
            if not (self._stopping or self.pools.deposit_of(left.container)):
                self.pools.adopt(left, engine, call)
                return
        except Exception as error:
            fault(f"pool {left.facts[POOL]} is not adopted", error)
        left.close()

    async def _adopt(self, together: Sequence[Inheritance], adoption: "Adoption") -> None:
        """Adopt the containers of one job, unless they are ours already."""
        own_threads()
        known = (self._known.get(found.container) for found in together)
        if not self._stopping and not any(one is not None and one.alive for one in known):
            adopted = await adoption.adopt(together, self._name)
            for container in adopted:
                self._known[container.id] = container
                container.programs.when_ended = self._changed
                self._nursery.start_soon(self._run, container)
            if len(adopted) < len(together):
                self._nursery.start_soon(self.successor.later)
            return
        for found in (*together, together[0].job):
            if found is not None:
                found.close()

    async def _run(self, container: Container) -> None:
        what = f"container {container.id}"
        await bulkhead(what, container.run)
        self._changed()
        if container.delete_requested:  # the caller may be gone
            # if it fails, the record stays for the next `delete`
            await bulkhead(what, partial(self.forget, container))

    async def delete(
        self, container: str, *, force: bool, caller: int = 0, own: bool = False
    ) -> None:
        """End a container, and remove all that is left of it.

        Args:
            force: Whether there need not be one.
            caller: The pid of whoever deletes it, 0: we do.
            own: Whether that is the container's own `run`.

        Raises:
            UnknownContainer: No container has this id, and `force` is not set.
            ScrunError: It could not be removed yet.
        """
        name = check_id(container)
        known = self._known.get(name)
        deleter = None
        if caller and (known is None or known.asks_who_deletes):
            deleter = await in_thread(deleter_of, caller, abandon=True)
            known = self._known.get(name)
        if known is not None:
            await known.delete(deleter, own=own)
            await self.forget(known)
            return
        directory = os.path.join(self._root, name)
        found = await orphans.delete(directory, self._engines, self._stagers, self._name, deleter)
        if found:
            self.successor.again()  # it may have had a job that is not in its record
        elif not force:
            raise UnknownContainer.named(name, self._root)

    async def forget(self, container: Container) -> None:
        """Remove the record of a cleaned-up container; its id may be in use again by now.

        Raises:
            ScrunError: Something of it is left outside of the record, which stays.
        """
        undo = partial(orphans.undo, container.directory, self._engines, self._stagers)
        deleter = container.deleter
        await container.remove(self._name, partial(undo, deleting=True, deleter=deleter))
        if self._known.get(container.id) is container:
            del self._known[container.id]


async def _borrow(root: str, name: str, needs: bytes) -> Inheritance | None:
    from scrun.supervisor.containers.lending import borrow

    return await borrow(root, name, needs)
