"""The containers of a supervisor: found, made, and forgotten when they are gone."""

import os
from collections.abc import Callable
from functools import partial

import trio

from scrun.core.errors import StateError, SupervisorLost, UnknownContainer
from scrun.core.paths import has_record
from scrun.model.record import Record, read_record
from scrun.model.states import taken
from scrun.oci.ids import check_id
from scrun.supervisor.containers import orphans
from scrun.supervisor.containers.anchors import Anchor
from scrun.supervisor.containers.caller import Caller
from scrun.supervisor.containers.container import Container
from scrun.supervisor.containers.ledger import Ledger, first_record
from scrun.supervisor.containers.pods import Pods
from scrun.supervisor.containers.records import (
    make_record,
    remove_half_made,
    remove_of_the_dead,
    remove_record,
)
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.containers.successor import Successor
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.core.nurseries import bulkhead
from scrun.supervisor.log.files import open_file
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.plugins.choose_engine import Engines
from scrun.supervisor.plugins.choose_stager import Stagers
from scrun.supervisor.plugins.registry import Plugins


class Containers:
    """Those of one supervisor, by their ids."""

    def __init__(
        self,
        root: str,
        name: str,
        plugins: Plugins,
        nursery: trio.Nursery,
        changed: Callable[[], None],
    ) -> None:
        """Begin without any.

        Args:
            root: The directory of the records.
            name: The supervisor's socket in it.
            plugins: Engines and stagers.
            nursery: Where containers, and the jobs of pods, live.
            changed: Called when one is gone.
        """
        self._root = root
        self._name = name
        self._nursery = nursery
        self._changed = changed
        self._engines = Engines(root, plugins)
        self._stagers = Stagers(plugins)
        self._pods = Pods(nursery)
        self._known: dict[str, Container] = {}
        self._stopping = False
        self._successor = Successor(root, name, self._engines, self._stagers, changed)

    @property
    def alive(self) -> bool:
        """Whether anything of any of them, or of a dead supervisor's, is left to undo."""
        return self._successor.at_work or any(
            container.alive for container in self._known.values()
        )

    def tidy(self) -> None:
        """Remove what is only of use while there are containers; the supervisor goes."""
        self._engines.tidy()
        remove_half_made(self._root, self._name)
        remove_of_the_dead(self._root, self._name)

    @property
    def any(self) -> bool:
        """Whether there is any container, be it one that has ended."""
        return bool(self._known)

    def come_back(self, name: str) -> None:
        """Make the records again, whose root directory was removed.

        Who has an id by now keeps it: the container that has lost it is ended.

        Args:
            name: The socket's name, perhaps another one than before.
        """
        self._name = name
        for container in list(self._known.values()):
            if not container.come_back(name):
                del self._known[container.id]

    async def succeed(self) -> None:
        """Give back what dead supervisors have left, now and whenever that is asked for."""
        await self._successor.run()

    def look_for_the_dead(self) -> None:
        """Have given back, in the background, what dead supervisors have left."""
        self._successor.again()

    async def end_all(self) -> None:
        """End all of them, and take no new one; returns when all of them are undone."""
        self._stopping = True
        for container in self._known.values():
            container.end(taken("scrun-failure", "the supervisor was told to stop"))
        for container in list(self._known.values()):
            await container.gone.wait()

    def abandon(self) -> None:
        """Leave what is not undone to others: it is in the records, whose locks end with us."""
        for container in self._known.values():
            if container.alive:
                container.abandon()

    def find(self, container: str) -> Container | Record:
        """Find a container; only its record, when the supervisor died that served it.

        Raises:
            UsageError: The id cannot be one.
            UnknownContainer: There is none.
        """
        name = check_id(container)
        if (found := self._known.get(name)) is not None:
            return found
        directory = os.path.join(self._root, name)
        if not has_record(directory):
            raise UnknownContainer.named(name, self._root)
        return read_record(directory)

    def live(self, container: str, purpose: str) -> Container:
        """Find a container of ours, for something that a record alone cannot do.

        Raises:
            UsageError: The id cannot be one.
            UnknownContainer: There is none.
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
        """Make a container, and let it live.

        Args:
            create_request: What is asked for.
            caller: Who waits for that.
            fds: Standard input, output and error, and the anchor's socket; taken over, so that
                the list is empty afterwards.

        Raises:
            SupervisorLost: The supervisor stops.
            EngineUnavailable: The engine that is asked for cannot be used.
            PluginUnavailable: There is no such engine.
            ContainerExists: The id is taken.
            SettingsError: The log cannot be written.
        """
        engine = await self._engines.choose(
            create_request.settings, create_request.child_env.environment
        )
        file = await open_file(create_request.settings.log)
        try:
            if self._stopping:
                raise SupervisorLost(
                    f"supervisor {os.getpid()} has been told to stop, and undoes its containers; "
                    "try again when it is gone"
                )
            directory = os.path.join(self._root, check_id(create_request.id))
            record = first_record(create_request, engine.name)
            lock = make_record(directory, self._name, record)
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
        *stdio, anchor = fds
        container = Container(
            create_request,
            engine,
            self._stagers,
            Ledger(directory, record, journal, lock),
            Anchor(anchor),
            Stdio(stdio, terminal=create_request.console is not None),
            self._pods,
            caller,
        )
        fds.clear()  # they are the container's now
        self._known[create_request.id] = container
        self._nursery.start_soon(self._run, container)
        return container

    async def _run(self, container: Container) -> None:
        what = f"container {container.id}"
        await bulkhead(what, container.run)
        self._changed()
        if container.delete_requested:  # perhaps nobody waits for that any more
            # where it fails the record stays, for another `delete` to try
            await bulkhead(what, partial(self.forget, container))

    async def delete(self, container: str, *, force: bool) -> None:
        """End a container, and remove all that is left of it.

        Raises:
            UnknownContainer: There is none, and `force` is not set.
            ScrunError: It is not gone yet.
        """
        name = check_id(container)
        known = self._known.get(name)
        if known is not None:
            await known.delete()
            await self.forget(known)
            return
        directory = os.path.join(self._root, name)
        found = await orphans.delete(directory, self._engines, self._stagers, self._name)
        if found:
            self.look_for_the_dead()  # it may have had a job that it did not know yet
        elif not force:
            raise UnknownContainer.named(name, self._root)

    async def forget(self, container: Container) -> None:
        """Remove the record of a container that is gone; by then the id may have another one.

        Raises:
            ScrunError: Something of it is left outside of the record, which stays.
        """
        undo = partial(orphans.undo, container.directory, self._engines, self._stagers)
        await container.remove(self._name, partial(undo, deleting=True))
        if self._known.get(container.id) is container:
            del self._known[container.id]
