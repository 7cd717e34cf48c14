"""Brings containers and execs into being (see the package's docstring)."""

import _signal as signal  # without enum, which takes longer than hello
import os

from .children import exit_status
from .console import ProgramStdio
from .files import plain, remove_file, remove_tree, write_private
from .json_text import dumps
from .processes import bind, bind_exec, fit_limits
from .runtime import (
    CallRefused,
    has_raced,
    is_isolated,
    is_plain,
    merged,
    needs,
    pid_file_of,
    process_of,
    read_log,
    with_missing,
)
from .site import Site
from .site_containers import SiteContainers
from .targets import NodeProcess
from .usage import own_cgroups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .children import Children
    from .containers import NodeContainers, Reply
    from .loop import Loop
    from .mpi import Mpi
    from .runtime import Runtime
    from .streams import ShimStreams
    from .user_network import UserNetwork

_TRY, _TRIES = 0.01, 300
_RACES = 5


class Making:
    """What makes them, and hands them to `NodeContainers`."""

    def __init__(
        self,
        loop: "Loop",
        children: "Children",
        streams: "ShimStreams",
        runtime: "Runtime",
        directory: str,
        containers: "NodeContainers",
        sites: SiteContainers,
        mpi: "Mpi",
    ) -> None:
        self._loop, self._children, self._streams = loop, children, streams
        self._runtime, self._directory = runtime, directory
        self._containers, self._sites, self._mpi = containers, sites, mpi
        self._made = 0
        self._delayed: dict[str, tuple[object, Reply]] = {}
        self._networks: dict[str, UserNetwork] = {}

    def mount(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Mount a root file system, or images, also for one that enters another's namespaces."""
        beside = call.get("beside")
        joins = {"user": self._process_of(beside)} if beside else {}
        if not self._delay(call, reply, joins, self.mount):
            self._containers.images.mount(call, reply, joins.get("user", 0))

    def create(self, call: "dict[str, Any]", reply: "Reply") -> None:
        config = call["config"]
        process = config.get("process")
        variables = call.get("variables", {})
        if process is not None:
            self._adapt(process, call["streams"], variables)
        joins = {kind: self._process_of(other) for kind, other in call.get("joins", {}).items()}
        if self._delay(call, reply, joins, self.create) or self._connects(call, reply):
            return
        target = self._make(call, call["name"], None)
        target.variables = variables
        self._choose_processors(target, call.get("processors"))
        target.network = self._networks.pop(target.id, None)
        target.why = call.get("why")
        if call.get("images"):
            target.images = self._containers.images.use(call["images"], target)
        target.is_isolated = is_isolated(config)
        if target.space is not None:
            target.space.fit(config)
            if not target.space.is_around:
                joins.pop("user", None)  # all is done there
            elif "network" in joins:
                target.space.share_network(joins.pop("network"))
                _without_network(config)
        if target.network is not None and target.is_isolated:
            if os.geteuid():
                _without_network(config)  # the runtime is in the one that it is to have
            else:
                _name_network(config, target.network.space.hand_over_network())
        try:
            if target.network is not None or target.why is not None:
                from .user_network import fit_files

                reached = self._servers(target, call.get("networks", ()))
                fit_files(config, target.place, call.get("files", {}), *reached)
            if call.get("sockets"):
                from .engine_sockets import EngineSockets

                target.sockets = EngineSockets(self._loop, target.place, config, call["sockets"])
            if target.site is not None:
                self._create_by_site(target, target.site, config, reply)
                return
            before = self._runtime.join(config, joins, is_root=target.space is not None)
            self._runtime.separate(config, f"{os.path.basename(self._directory)}-{self._made}")
            passed = self._mpi.give(config)
            if call.get("filter"):
                self._runtime.give_filter(config, call["filter"])
            target.is_plain = is_plain(config)
            target.tells_filter = call.get("filter") == ""
            if target.images is None:  # else it may be in their mount namespace only
                target.needs = needs(config, target.place)
            write_private(os.path.join(target.place, "config.json"), dumps(config))
            command = self._runtime.create(
                target.place, target.name, target.stdio.terminal, len(passed)
            )
            self._begin(target, before + command, reply, passed)
            self._mpi.given()
        except BaseException:
            self._unmake(target)
            raise

    def _choose_processors(self, target: NodeProcess, asked: "dict[str, Any] | None") -> None:
        """Choose those that no other container has, if Slurm has bound us to those of the job."""
        ours = os.sched_getaffinity(0)
        if asked is None or asked["of"] != len(ours):
            return
        targets = self._containers.targets.values()
        others = [one for one in targets if one.processors and not one.ended]
        target.shares = asked["as"]
        same = [one.processors for one in others if one.shares == target.shares]
        free = sorted(ours.difference(*(one.processors for one in others)))
        if same or len(free) >= asked["number"]:
            target.processors = same[0] if same else frozenset(free[: asked["number"]])

    def connect_network(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Connect a container's own network, or to others of the engine's than before."""
        target = self._containers.get(call["id"])
        network = target.network

        def write() -> None:
            if call.get("files"):
                from .user_network import write_files

                reached = self._servers(target, call["networks"])
                write_files(target.place, call["files"], *reached)

        if network is None:
            write()
            reply({"why": target.why or "its users cannot have one"})
            return

        def done(why: str) -> None:
            if why:
                reply({"error": why})
                return
            try:
                write()
                reply({"network": network.name, "why": network.lacks})
            except OSError as error:
                reply({"error": plain(error)})

        network.connect(call["networks"], done)

    def _servers(
        self, target: NodeProcess, networks: "Sequence[str]"
    ) -> "tuple[Sequence[str], str]":
        """Return where a container reaches no name servers, and what it has instead."""
        from .user_network import PASTA_RESOLVER, RESOLVER

        server = RESOLVER if target.network is not None else ""
        gone = [f"{name}/32" for name in (PASTA_RESOLVER, RESOLVER) if name != server]
        if target.network is None or target.network.outbound is None:
            gone += networks
        return gone, server

    def _connects(self, call: "dict[str, Any]", reply: "Reply") -> bool:
        """Connect a container's own network first, if it is to have one; tell whether it does."""
        wanted = call.pop("network", "")
        if wanted:
            call["why"] = ""
        if wanted not in ("own", "late") or call.get("joins"):
            return False
        from .user_network import UserNetwork, maps_of, way

        program, call["why"] = way(call)
        if not program:
            return False
        space: Any = maps_of(call["config"])
        if call.get("images"):
            space = self._containers.images.of(call["images"]).space
            if not space.has_network:
                call["why"] = "its root file system was mounted in another one"
                return False
        name = call["id"]

        def done(why: str) -> None:
            if why:
                del self._networks[name]
                reply({"error": f"its network: {why}"})
                return
            try:
                self.create(call, reply)
            except (OSError, ValueError) as error:
                reply({"error": plain(error)})

        self._networks[name] = UserNetwork(
            *(self._loop, self._children, program, self._directory, space),
            *(call.get("networks", ()), done, wanted == "late"),
        )
        return True

    def _create_by_site(
        self, target: NodeProcess, site: Site, config: "dict[str, Any]", reply: "Reply"
    ) -> None:
        if site.is_container:
            self._mpi.show(config)
        site.prepare(config, target.place)
        if site.runs:
            target.made = True
            reply({"pid": 0})
        else:
            self._begin(target, site.command("create"), reply)
        self._mpi.given()

    def exec(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Let the runtime run one more program in a container."""
        container = self._container_of(call)
        if self._delay(call, reply, _namespaces_of(container), self.exec):
            return
        target = self._make(call, container.name, container)
        try:
            if container.site is not None:
                command = container.site.filled(call["command"])
                pid = self._sites.run(target, container.site, command, call["variables"])
                reply({"pid": pid})
                self._containers.runs(target)
                return
            process = call["process"]
            self._adapt(process, call["streams"], container.variables)
            bind_exec(process, container.processors or os.sched_getaffinity(0))
            write_private(process_of(target.place), dumps(process))
            command = self._runtime.exec(target.place, target.name, target.stdio.terminal)
            self._begin(target, command, reply)
        except BaseException:
            self._unmake(target)
            raise

    def copy(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Pack or unpack files of a container."""

        def work(first: int, _: int) -> int:
            from .copying import copy

            direction, path = call["files"]
            return copy(first, direction, path)

        self._enter(call, reply, work, self.copy)

    def files(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Answer a file system of a container's files; with `over` without what it mounts."""

        def work(first: int, users: int) -> int:
            from .live_files import serve

            return serve(first, call.get("over"), users)

        self._enter(call, reply, work, self.files)

    rootfs = files

    def _enter(
        self,
        call: "dict[str, Any]",
        reply: "Reply",
        work: "Callable[[int, int], int]",
        again: "Callable[[dict[str, Any], Reply], None]",
    ) -> None:
        """Do something in a process of our own that enters a container.

        Args:
            work: Gets the container's first process, and a descriptor of the user namespace around
                the container's, or -1.
        """
        container = self._container_of(call)
        if not container.pid:
            raise CallRefused(f"{container.id} has ended")
        if self._delay(call, reply, _namespaces_of(container), again):
            return
        first, space, users = container.pid, container.space, -1
        target = self._make(call, container.name, container)
        try:
            if space is not None and space.is_around:
                users = space.users()
            stdio = {number: fd for number, fd in enumerate(target.stdio.child) if fd is not None}

            def begin() -> int:
                for number, fd in stdio.items():
                    os.dup2(fd, number)
                return work(first, users)

            ended = lambda status: self._containers.ended(target, status)  # noqa: E731
            kept = [fd for fd in (*stdio.values(), users) if fd >= 0]
            pid = self._children.fork(begin, ended, kept)
        except BaseException:
            self._unmake(target)
            raise
        finally:
            if users >= 0:
                os.close(users)
        target.stdio.close_child()
        target.begin(pid)
        reply({"pid": pid})
        target.stdio.begin()
        self._containers.runs(target)

    def _container_of(self, call: "dict[str, Any]") -> NodeProcess:
        container = self._containers.get(call["container"])
        if container.container is not None:
            raise CallRefused(f"{container.id} is not a container")
        return container

    def _adapt(
        self,
        process: "dict[str, Any]",
        streams: "dict[str, int]",
        variables: "Mapping[str, str]",
    ) -> None:
        process["env"] = merged(process.get("env") or [], {**os.environ, **variables})
        self._runtime.fit(process)
        fit_limits(process)
        if "terminal" in streams and streams.get("rows") and streams.get("columns"):
            size = {"height": streams["rows"], "width": streams["columns"]}
            process["consoleSize"] = size

    def _delay(
        self,
        call: "dict[str, Any]",
        reply: "Reply",
        joins: "Mapping[str, int]",
        do: "Callable[[dict[str, Any], Reply], None]",
    ) -> bool:
        """Do something later if namespaces cannot be entered yet.

        An ordinary user cannot enter those of a process that is still crun, and nothing tells when
        the container's program has taken its place.
        """
        tries = call.setdefault("tries", _TRIES)
        if not tries or all(os.access(f"/proc/{pid}/ns/user", os.R_OK) for pid in joins.values()):
            return False

        def again() -> None:
            del self._delayed[call["id"]]
            try:
                do(call, reply)
            except (OSError, ValueError) as error:
                reply({"error": plain(error)})

        call["tries"] = tries - 1
        self._delayed[call["id"]] = self._loop.after(_TRY, again), reply
        return True

    def cancel(self, target: str) -> None:
        """Create a container, or mount something, no more that is to be done later."""
        if target in self._delayed:
            key, reply = self._delayed.pop(target)
            self._loop.cancel(key)
            reply({"error": "it has been deleted"})
        if target in self._networks:
            self._networks.pop(target).cancel("it has been deleted")

    def _process_of(self, container: str) -> int:
        pid = self._containers.get(container).pid
        if not pid:
            raise CallRefused(f"{container}, whose namespaces it is to enter, has ended")
        return pid

    def _make(
        self, call: "dict[str, Any]", name: str, container: "NodeProcess | None"
    ) -> NodeProcess:
        target_id = call["id"]
        site = Site(call["site"], os.environ) if "site" in call else None
        by_site = site is not None or (container is not None and container.site is not None)
        if not (by_site or self._runtime.path):
            raise CallRefused("no OCI runtime is installed on this node, neither crun nor runc")
        if target_id in self._containers.targets:
            raise CallRefused(f"{target_id} exists already")
        if container is not None and container.doomed:
            raise CallRefused(f"{container.id} is being deleted")
        self._made += 1
        place = os.path.join(self._directory, str(self._made))
        os.mkdir(place, 0o700)
        try:
            stdio = ProgramStdio(self._streams, call["streams"], place, makes_terminal=by_site)
        except BaseException:
            remove_tree(place)
            raise
        targets = self._containers.targets
        targets[target_id] = target = NodeProcess(
            target_id, place, name, container, stdio, targets
        )
        target.site = site
        self._containers.made += container is None
        self._containers.signals.made(target)
        return target

    def _unmake(self, target: NodeProcess) -> None:
        target.let_go()
        if target.images is not None and target.container is None:
            target.images.user = None
        target.stdio.abandon()
        remove_tree(target.place)
        del self._containers.targets[target.id]

    def _begin(
        self,
        target: NodeProcess,
        command: "list[str]",
        reply: "Reply",
        passed: "Sequence[int]" = (),
        races: int = _RACES,
    ) -> None:
        self._children.expect()
        kept = [os.dup(fd) for fd in passed]

        def begun(status: int) -> None:
            try:
                again = races and not target.doomed and target.site is None
                if status and again and has_raced(target.place):
                    target.stdio.words()  # else they are the program's
                    self._begin(target, command, reply, kept, races - 1)
                    self._children.expect_no_longer()
                    return
            except OSError:  # no process is left, or no descriptor
                pass
            finally:
                for fd in kept:
                    os.close(fd)
            target.stdio.close_child()
            self._begun(target, status, reply)

        try:
            self._containers.run(target, command, begun, target.stdio.child, passed)
        except BaseException:
            self._children.expect_no_longer()
            for fd in kept:
                os.close(fd)
            raise

    def _begun(self, target: NodeProcess, status: int, reply: "Reply") -> None:
        """Go on after `create` or `exec`."""
        if target.site is not None and not status:
            self._sites.find(target, target.site, lambda pid: self._found(target, pid, reply))
            return
        try:
            pid = self._pid_of(target, status)
        except (OSError, ValueError) as error:
            text, log = read_log(target.place, target.stdio.words())
            self._is_not_there(
                target, with_missing(text or plain(error), target.needs), log, reply
            )
        else:
            self._is_there(target, pid, reply)

    def _found(self, target: NodeProcess, pid: int, reply: "Reply") -> None:
        """Go on after RunTimeQuery."""
        if pid:
            self._is_there(target, pid, reply)
        else:
            text = "RunTimeQuery does not know the new container"
            self._is_not_there(target, text, "", reply)

    def _is_there(self, target: NodeProcess, pid: int, reply: "Reply") -> None:
        target.begin(pid)
        if target.container is None:
            bind(pid, target.processors or os.sched_getaffinity(0))
            target.cgroups = own_cgroups(pid)
        more = {"filter": self._runtime.filter_of(target.name)} if target.tells_filter else {}
        if target.network is not None:
            more.update(network=target.network.name, why=target.network.lacks)
        elif target.why is not None:
            from .network import host

            more["why"] = target.why
            more["host"] = "" if target.is_isolated else host()
        reply({"pid": pid, **more})
        target.stdio.begin()
        if target.doomed:
            target.signal_all(signal.SIGKILL)
        if target.site is not None:
            self._sites.await_end(target, target.site, pid)
        else:
            self._children.claim(pid, lambda status: self._containers.ended(target, status))
        if target.container is not None:
            self._containers.runs(target)
        self._is_known(target)

    def _is_not_there(self, target: NodeProcess, text: str, log: str, reply: "Reply") -> None:
        reply({"error": "it has been deleted" if target.doomed else text, "log": log})
        target.stdio.fail()
        if not target.doomed:
            self._containers.delete({"id": target.id}, ignore)
        self._is_known(target)

    def _is_known(self, target: NodeProcess) -> None:
        self._children.expect_no_longer()
        if target.container is not None:
            remove_file(process_of(target.place))

    def _pid_of(self, target: NodeProcess, status: int) -> int:
        """Return the first process of what a runtime has begun."""
        if status:
            what = "the OCI runtime" if target.site is None else "RunTimeCreate"
            raise CallRefused(f"{what} ended with status {exit_status(status)}")
        with open(pid_file_of(target.place)) as file:
            pid = int(file.read(32))
        target.stdio.receive()
        return pid


def _namespaces_of(container: NodeProcess) -> "dict[str, int]":
    """Return the namespaces of a container that only its user enters, as `joins` of `_delay`."""
    by_runtime = container.site is None and container.pid
    return {"user": container.pid} if by_runtime else {}


def _without_network(config: "dict[str, Any]") -> None:
    linux = config["linux"]
    linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] != "network"]
    sysctls = linux.get("sysctl") or {}  # which a runtime sets only in a network that it makes
    linux["sysctl"] = {name: sysctls[name] for name in sysctls if not name.startswith("net.")}


def _name_network(config: "dict[str, Any]", path: str) -> None:
    for namespace in config["linux"]["namespaces"]:
        if namespace["type"] == "network":
            namespace["path"] = path


def ignore(_: object) -> None:
    """Answer nobody."""
