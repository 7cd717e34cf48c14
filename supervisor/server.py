"""The supervisor's socket: who calls, which container, which request."""

import fcntl
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from scrun import wire
from scrun.errors import ScrunError, StateError, SupervisorLost, UnknownContainer, UsageError
from scrun.oci.ids import check_id
from scrun.oci.resources import changes
from scrun.oci.signals import parse_signal
from scrun.record import Record, read_record, stopped_state
from scrun.settings.load import load
from scrun.states import killed, taken
from supervisor import orphans
from supervisor.anchors import Anchor
from supervisor.caller import told
from supervisor.container import Container
from supervisor.engines.choose import Engines
from supervisor.inspection import processes, statistics
from supervisor.journal import Journal
from supervisor.operations import execute, hold
from supervisor.orders import read_call, read_order
from supervisor.pods import Pods
from supervisor.records import make_record, remove_record
from supervisor.stdio import Stdio
from supervisor.viewers import attach, follow, kept_output

_REQUEST_DEADLINE = 10.0
_STOP_DEADLINE = 60.0
_ACCEPT_PAUSE = 0.1
_DESCRIPTORS = 4


class Server:
    """The containers of a group, and the requests about them."""

    def __init__(self, root: str, name: str, listener: socket.socket, idle_timeout: float) -> None:
        """Prepare to serve.

        Args:
            root: The directory of the records.
            name: The socket's name in it.
            listener: The socket, listening.
            idle_timeout: Seconds without a container after which the supervisor goes.
        """
        self._root = root
        self._name = name
        self._listener = trio.socket.from_stdlib_socket(listener)
        self._idle_timeout = idle_timeout
        self._engines = Engines(root)
        self._containers: dict[str, Container] = {}
        self._busy = 0
        self._stopping = False
        self._changed = trio.Event()

    async def serve(self) -> None:
        """Serve until there is nothing to do, or `stop` was called."""
        async with trio.open_nursery() as self._nursery:
            self._pods = Pods(self._nursery)
            self._nursery.start_soon(self._accept)
            await self._wait_until_idle()
            self._nursery.cancel_scope.cancel()

    async def stop(self) -> None:
        """End all containers, and the serving."""
        self._stopping = True
        for container in self._containers.values():
            container.end(taken("scrun-failure", "the supervisor was told to stop"))
        with trio.move_on_after(_STOP_DEADLINE):
            for container in list(self._containers.values()):
                await container.gone.wait()
        self._unlink()
        self._nursery.cancel_scope.cancel()

    async def _accept(self) -> None:
        while True:
            try:
                connection, _ = await self._listener.accept()
            except OSError:  # no descriptor is left; the caller waits in the queue
                await trio.sleep(_ACCEPT_PAUSE)
                continue
            self._nursery.start_soon(self._converse, connection)

    async def _wait_until_idle(self) -> None:
        """Return when nobody has needed us for the idle time, with the socket's name removed."""
        while True:
            if self._busy or any(container.alive for container in self._containers.values()):
                self._changed = trio.Event()
                await self._changed.wait()
                continue
            self._changed = trio.Event()
            with trio.move_on_after(self._idle_timeout):
                await self._changed.wait()
                continue
            if self._leave():
                return

    def _leave(self) -> bool:
        """Remove the socket's name, unless somebody is about to start us or has just called."""
        path = os.path.join(self._root, self._name + ".lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            self._engines.tidy()
            self._unlink()
            os.unlink(path)
            return True
        finally:
            os.close(lock)

    def _unlink(self) -> None:
        try:
            os.unlink(os.path.join(self._root, self._name))
        except FileNotFoundError:
            pass

    async def _converse(self, connection: trio.socket.SocketType) -> None:
        """Answer one request. Whatever comes, it is this connection's matter alone."""
        self._busy += 1
        self._changed.set()
        fds: list[int] = []
        try:
            with connection:
                if not _may_call(connection):
                    return
                with trio.fail_after(_REQUEST_DEADLINE):
                    fields = await _receive(connection, fds)
                answer = await self._answer(fields, fds, connection)
                await _send(connection, answer)
        except (OSError, UsageError, trio.TooSlowError):
            pass  # the caller is gone, or no caller of ours
        finally:
            for fd in fds:
                os.close(fd)
            self._busy -= 1
            self._changed.set()

    async def _answer(
        self, fields: list[bytes], fds: list[int], connection: trio.socket.SocketType
    ) -> bytes:
        """Carry a request out; the reply's first byte is the exit status."""
        handlers: dict[bytes, Callable[[list[bytes]], Awaitable[bytes]]] = {
            b"state": self._state,
            b"start": self._start,
            b"kill": self._kill,
            b"delete": self._delete,
            b"pause": partial(self._hold, resume=False),
            b"resume": partial(self._hold, resume=True),
            b"ps": self._ps,
            b"events": self._events,
            b"update": self._update,
        }
        operation, *arguments = fields
        try:
            if operation == b"create":
                return await self._create(arguments, fds, connection)
            if operation == b"exec":
                return await self._exec(arguments, fds)
            if operation == b"follow":
                return await self._follow(arguments, connection)
            if operation == b"attach":
                container = self._live(arguments, "attach")
                await attach(container, trio.SocketStream(connection))
                return b""
            if operation not in handlers:
                raise UsageError(f"unknown request {operation!r}; is another scrun installed?")
            return b"\0" + await handlers[operation](arguments)
        except ScrunError as error:
            return bytes([error.exit_code]) + str(error).encode(errors="replace")
        except IndexError:
            return b"\1a request with too few fields; is another scrun installed?"
        except OSError as error:
            return b"\1" + f"{error.filename}: {error.strerror}".encode(errors="replace")
        except Exception as error:  # a fault of ours, and this request's matter alone
            name = type(error).__name__
            return b"\1" + f"internal error: {name}: {error}".encode(errors="replace")

    def _container(self, arguments: list[bytes]) -> Container | Record:
        """Find a container; only its record, when the supervisor died that served it."""
        name = check_id(os.fsdecode(arguments[0]))
        if (container := self._containers.get(name)) is not None:
            return container
        directory = os.path.join(self._root, name)
        if not os.path.isdir(directory):
            raise UnknownContainer.named(name, self._root)
        return read_record(directory)

    async def _state(self, arguments: list[bytes]) -> bytes:
        found = self._container(arguments)
        return stopped_state(found) if isinstance(found, Record) else found.state

    async def _start(self, arguments: list[bytes]) -> bytes:
        await self._live(arguments, "start").start()
        return b""

    async def _kill(self, arguments: list[bytes]) -> bytes:
        number = parse_signal(os.fsdecode(arguments[1]))
        found = self._container(arguments)
        if isinstance(found, Container):
            await found.kill(number)
        return b""

    def _live(self, arguments: list[bytes], purpose: str) -> Container:
        """Find a container of ours.

        Raises:
            UnknownContainer: There is none.
            StateError: Its supervisor is gone.
        """
        found = self._container(arguments)
        if isinstance(found, Record):
            raise StateError(
                f"container {found.id}: {purpose} is not possible: it is stopped, its supervisor "
                "is gone; delete it"
            )
        return found

    async def _hold(self, arguments: list[bytes], *, resume: bool) -> bytes:
        await hold(self._live(arguments, "resume" if resume else "pause"), resume=resume)
        return b""

    async def _ps(self, arguments: list[bytes]) -> bytes:
        container = self._live(arguments, "ps")
        form, *words = map(os.fsdecode, arguments[1:])
        return await processes(container.inside("ps").job, container.anchor_pid, form, words)

    async def _events(self, arguments: list[bytes]) -> bytes:
        container = self._live(arguments, "events")
        inside = container.inside("events")
        resources = inside.bundle.config.linux.resources
        return await statistics(inside.job, container.id, resources)

    async def _update(self, arguments: list[bytes]) -> bytes:
        container = self._live(arguments, "update")
        job, bundle, *_ = container.inside("update")
        limit, text = os.fsdecode(arguments[1]), arguments[2]
        if wanted := changes(json.loads(text), bundle.config.linux.resources):
            await job.update(text.decode(), wanted)
        if limit:
            await job.limit_time(limit)
        return b""

    async def _follow(self, arguments: list[bytes], connection: trio.socket.SocketType) -> bytes:
        """Send what a container has written, or what was said about it, as it comes."""
        container = self._live(arguments, "logs --follow")
        output = arguments[1] == b"output"
        followed = kept_output(container).output if output else container.log
        await follow(followed, partial(_send, connection))
        return b""

    async def _exec(self, arguments: list[bytes], fds: list[int]) -> bytes:
        """Run one more program; the caller's end of the connection is of no importance."""
        call = read_call(arguments)
        if len(fds) != _DESCRIPTORS:
            raise UsageError("exec: standard input, output, error and the anchor are missing")
        container = self._live([os.fsencode(call.parsed.id or "")], "exec")
        *stdio, anchor = fds
        has_terminal = bool(call.parsed.count("tty")) or call.parsed.command == "shell"
        fds.clear()  # they are the session's now
        await execute(
            container, call, Anchor(call.anchor, anchor), Stdio(stdio, terminal=has_terminal)
        )
        return b"\0"

    async def _delete(self, arguments: list[bytes]) -> bytes:
        name = check_id(os.fsdecode(arguments[0]))
        container = self._containers.get(name)
        if container is not None:
            await container.delete()
            await self._forget(container)
        else:
            found = await orphans.delete(os.path.join(self._root, name), self._engines)
            if not found and not arguments[1]:
                raise UnknownContainer.named(name, self._root)
        return b""

    async def _create(
        self, arguments: list[bytes], fds: list[int], connection: trio.socket.SocketType
    ) -> bytes:
        if self._stopping:
            raise SupervisorLost("the supervisor has been told to stop; try again")
        order = await trio.to_thread.run_sync(read_order, arguments)
        if len(fds) != _DESCRIPTORS:
            raise UsageError("create: standard input, output, error and the anchor are missing")
        engine = self._engines.choose(order.settings, order.setting.environment)
        directory = os.path.join(self._root, check_id(order.id))
        make_record(directory, self._name)
        try:
            log = os.path.join(directory, "log")
            journal = Journal(log, order.settings.log, order.id, order.shown)
        except BaseException:
            remove_record(directory)
            raise
        *stdio, anchor = fds
        container = Container(
            order,
            engine,
            directory,
            journal,
            Anchor(order.pid, anchor),
            Stdio(stdio, terminal=order.has_console),
            self._pods,
        )
        fds.clear()  # they are the container's now
        self._containers[order.id] = container
        self._nursery.start_soon(self._run, container)
        async with told(journal, partial(_send, connection)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_end_with_caller, connection, container)
                await container.settled.wait()
                nursery.cancel_scope.cancel()
            if container.failure is not None:
                await container.gone.wait()
        if container.failure is None:
            return b"\0"
        await self._forget(container)
        raise container.failure

    async def _run(self, container: Container) -> None:
        await container.run()
        self._changed.set()
        if container.doomed:  # perhaps nobody waits for that any more
            try:
                await self._forget(container)
            except OSError:
                pass  # it stays, for another `delete` to try

    async def _forget(self, container: Container) -> None:
        """Remove the record of a container that is gone; by then the id may have another one."""
        await container.remove()
        if self._containers.get(container.id) is container:
            del self._containers[container.id]


async def _end_with_caller(connection: trio.socket.SocketType, container: Container) -> None:
    """End a container whose `create`, which sends nothing after its request, is killed."""
    try:
        await connection.recv(1)
    except OSError:
        pass
    container.end(killed(15, f"container {container.id}: its create was ended"))


def _may_call(connection: trio.socket.SocketType) -> bool:
    """Tell whether the caller is this user, or root (unix(7), SO_PEERCRED)."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    uid = struct.unpack("3i", credentials)[1]
    return uid in (0, os.geteuid())


async def _receive(connection: trio.socket.SocketType, fds: list[int]) -> list[bytes]:
    """Read one request, and the descriptors beside it into `fds`.

    Raises:
        UsageError: It is none.
    """
    space = socket.CMSG_SPACE(_DESCRIPTORS * 4)
    data = bytearray()
    length = None
    while length is None or len(data) < length:
        part, ancillary, flags, _ = await connection.recvmsg(65536, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) // 4 * 4
                fds.extend(struct.unpack(f"{whole // 4}i", content[:whole]))
        if not part or flags & socket.MSG_CTRUNC or len(fds) > _DESCRIPTORS:
            raise UsageError("not a request")
        data += part
        if length is None and len(data) >= 4:
            length = 4 + int.from_bytes(data[:4], "big")
            if length > wire.LIMIT:
                raise UsageError("a request that is too long")
    return bytes(data[4:]).split(b"\0")


async def _send(connection: trio.socket.SocketType, answer: bytes) -> None:
    with memoryview(answer) as rest:
        sent = 0
        while sent < len(rest):
            sent += await connection.send(rest[sent:])


def idle_timeout() -> float:
    """Return the setting of that name; the default when the settings are wrong.

    (What is wrong with them is told by the `create` that follows.)
    """
    try:
        return load(os.environ).idle_timeout
    except ScrunError:
        return 60.0
