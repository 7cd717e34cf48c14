"""The supervisor's socket: who calls, and how long somebody is needed."""

import contextlib
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Callable
from typing import NoReturn

import trio

from scrun.core.errors import ScrunError, StateError, UsageError
from scrun.core.paths import outer_id
from scrun.protocol import wire
from scrun.settings.file.load import Settings, load
from scrun.supervisor.children.processes import end_children, keep_descriptors_free
from scrun.supervisor.containers.caller import hang_up, send
from scrun.supervisor.containers.containers import Containers
from scrun.supervisor.core.threads import in_thread, own_threads
from scrun.supervisor.daemon.listening import listen_again, watch_removals
from scrun.supervisor.daemon.requests import DESCRIPTORS, ClientRequest
from scrun.supervisor.log.supervisor_log import fault, log
from scrun.supervisor.plugins.registry import plugins

_REQUEST_DEADLINE = 10.0
# Arguments and variables of a call have 6 MiB at most, and each takes nine bytes of that or more
_FIELDS = 1 << 20
_ACCEPT_PAUSE = 0.1
_NOBODY = 65534
_FIRST_CALL = 10.0
_LAST_ANSWERS = 5.0
_ROOT_INTERVAL = 5.0


class Server:
    """The socket of a group of containers."""

    def __init__(
        self,
        root: str,
        name: str,
        listener: socket.socket,
        idle_timeout: float,
        stop_timeout: float,
    ) -> None:
        """Prepare to serve.

        Args:
            root: The directory of the records.
            name: The socket's name in it.
            listener: The socket, listening.
            idle_timeout: Seconds without a container after which the supervisor goes.
            stop_timeout: Seconds that `stop` may take.
        """
        self._root = root
        self._name = name
        self._path = os.path.join(root, name)
        self._bound = os.lstat(self._path)
        self._listener = trio.socket.from_stdlib_socket(listener)
        self._idle_timeout = idle_timeout
        self._stop_timeout = stop_timeout
        self._busy = 0
        self._called = False
        self._changed = trio.Event()

    async def serve(self, serving: Callable[[], None]) -> None:
        """Serve until there is nothing to do, or `stop` was called.

        Args:
            serving: Called once, as soon as `stop` may be.
        """
        async with plugins() as loaded, trio.open_nursery() as self._nursery:
            self._containers = Containers(
                self._root, self._name, loaded, self._nursery, self._has_changed
            )
            self._nursery.start_soon(self._accept, self._listener)
            self._nursery.start_soon(self._mind_the_root)
            self._nursery.start_soon(self._containers.succeed)
            serving()
            await self._wait_until_idle()
            self._nursery.cancel_scope.cancel()

    async def stop(self) -> None:
        """End all containers, and the serving.

        The name stays until then: who asks for a container is told about it by whoever undoes it.
        What is not undone in time is left to others, because Slurm or a script may take for ever.
        """
        with trio.move_on_after(self._stop_timeout) as patience:
            await self._containers.end_all()
        if patience.cancelled_caught:
            self.leave()
        with trio.move_on_after(_LAST_ANSWERS):  # who waits for a container's end is told of it
            while self._busy:
                await self._changed.wait()
        if not self._leave():
            self._unlink()
        self._nursery.cancel_scope.cancel()

    def leave(self) -> NoReturn:
        """End this process at once, with what is not undone in the records.

        Children end with us: salloc reads end of file and gives its job back, and what a script
        has started must not go on beside whoever does it again.
        """
        self._containers.abandon()
        end_children()
        self._unlink()
        os._exit(0)

    def _has_changed(self) -> None:
        """Wake those who wait for nobody to need us."""
        self._changed.set()
        self._changed = trio.Event()

    async def _mind_the_root(self) -> None:
        """Come back when the root directory is removed beneath us.

        The end of a session removes all that is in /run/user/UID and then that, and its next
        beginning makes another one.
        """
        # What comes after our last look is raised anew when the receiver goes, and by default
        # SIGIO ends a process. To ignore it would be passed on to children.
        signal.signal(signal.SIGIO, lambda *_: None)
        with trio.open_signal_receiver(signal.SIGIO) as removals:
            try:
                watched = watch_removals(self._root)
            except OSError:  # it is gone already, or this kernel cannot tell
                return
            try:
                async for _ in removals:
                    if not await in_thread(self._is_there):
                        break
            finally:
                os.close(watched)
        while self._containers.any:
            # whoever removes it may not be done, and nothing tells when it can be made again
            await trio.sleep(_ROOT_INTERVAL)
            try:
                await self._come_back()
            except (OSError, ScrunError):
                continue
            self._nursery.start_soon(self._mind_the_root)
            return

    async def _come_back(self) -> None:
        """Make the root directory again, and in it a socket and the records.

        Another supervisor may have our name there by now: then we take one that nobody has.

        Raises:
            OSError: They cannot be made.
            SettingsError: Likewise.
        """
        name, listener = await in_thread(listen_again, self._root, self._name)
        self._name, self._path = name, os.path.join(self._root, name)
        self._bound = os.lstat(self._path)
        self._listener = trio.socket.from_stdlib_socket(listener)
        self._nursery.start_soon(self._accept, self._listener)
        log.warning("%s was removed: made again, with the records of containers", self._root)
        self._containers.come_back(name)

    async def _accept(self, listener: trio.socket.SocketType) -> None:
        while True:
            try:
                connection, _ = await listener.accept()
            except OSError:  # no descriptor is left; the caller waits in the queue
                await trio.sleep(_ACCEPT_PAUSE)
                continue
            self._nursery.start_soon(self._converse, connection)

    async def _wait_until_idle(self) -> None:
        """Return when nobody has needed us for the idle time, with the socket's name removed."""
        while True:
            if self._busy or self._containers.alive:
                await self._changed.wait()
                continue
            # whoever has started us is about to call
            patience = self._idle_timeout if self._called else max(self._idle_timeout, _FIRST_CALL)
            with trio.move_on_after(patience):
                await self._changed.wait()
                continue
            if self._leave():
                return

    def _leave(self) -> bool:
        """Remove the socket's name, unless somebody is about to start us or has just called."""
        if not self._is_there():
            return True
        path = self._path + ".lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:  # there is none, and no space to make it: then nobody holds it
            self._tidy()
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            self._tidy()
            with contextlib.suppress(OSError):
                os.unlink(path)
            return True
        finally:
            os.close(lock)

    def _tidy(self) -> None:
        self._containers.tidy()
        self._unlink()

    def _is_there(self) -> bool:
        """Tell whether callers still find us.

        The root directory may have been removed, and made again for another supervisor.
        """
        try:
            return os.path.samestat(os.lstat(self._path), self._bound)
        except OSError:
            return False

    def _unlink(self) -> None:
        if self._is_there():
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    async def _converse(self, connection: trio.socket.SocketType) -> None:
        """Answer one request. Whatever comes, it is this connection's matter alone."""
        own_threads()
        self._busy += 1
        self._called = True
        self._has_changed()
        fds: list[int] = []
        try:
            with contextlib.ExitStack() as stack, connection:
                if not _may_call(connection):
                    return
                try:
                    with trio.fail_after(_REQUEST_DEADLINE):
                        fields, said = await _receive(connection, fds)
                except StateError as error:
                    await send(connection, b"\1" + str(error).encode())
                    await hang_up(connection)
                    return
                keep_descriptors_free(connection.fileno())
                request = ClientRequest(self._containers, connection, fields, fds, said)
                stack.callback(request.answered)
                answer = await request.answer()
                with contextlib.suppress(OSError):  # the caller is gone
                    await send(connection, answer)
                await request.confirmed()
        except (OSError, UsageError, trio.TooSlowError):
            pass  # the caller is gone, or no caller of ours
        except Exception as error:
            fault("a connection", error)
        finally:
            for fd in fds:
                os.close(fd)
            self._busy -= 1
            self._has_changed()


def _may_call(connection: trio.socket.SocketType) -> bool:
    """Tell whether the caller is this user, or root (unix(7), SO_PEERCRED)."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, uid, _ = map(int, struct.unpack("3i", credentials))
    if uid == _NOBODY:  # in a user namespace that is whoever it does not have
        return uid == os.geteuid() == outer_id("uid", uid)
    return uid in (0, os.geteuid())


async def _receive(
    connection: trio.socket.SocketType, fds: list[int]
) -> tuple[list[bytes], bytes]:
    """Read one request, and the descriptors beside it into `fds`.

    Returns:
        Its fields; and what has come after it.

    Raises:
        UsageError: It is none.
        StateError: There is no room for its descriptors.
    """
    space = socket.CMSG_SPACE(DESCRIPTORS * 4)
    data = bytearray()
    length = None
    while length is None or len(data) < length:
        part, ancillary, flags, _ = await connection.recvmsg(65536, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) // 4 * 4
                fds.extend(struct.unpack(f"{whole // 4}i", content[:whole]))
        if flags & socket.MSG_CTRUNC and len(fds) < DESCRIPTORS:
            raise StateError("the supervisor has no descriptor left for it (ulimit -n)")
        if not part or flags & socket.MSG_CTRUNC or len(fds) > DESCRIPTORS:
            raise UsageError("not a request")
        data += part
        if length is None and len(data) >= 4:
            length = 4 + int.from_bytes(data[:4], "big")
            if length > wire.LIMIT:
                raise UsageError("a request that is too long")
    request, said = bytes(data[4:length]), bytes(data[length:])
    if request.count(0) > _FIELDS:
        raise UsageError("a request with too many fields")
    return request.split(b"\0"), said


def own_settings() -> Settings:
    """Return the settings that are the supervisor's own; the defaults when they are wrong.

    (What is wrong with them is told by the `create` that follows.)
    """
    try:
        return load(os.environ)
    except ScrunError:
        return Settings()
