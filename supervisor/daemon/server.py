"""The supervisor's server: accepts requests, and ends when it is no longer needed."""

import contextlib
import fcntl
import os
import signal
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import NoReturn

import trio

from scrun.core.errors import ScrunError, SettingsError, StateError, UsageError
from scrun.core.own_directory import own_directory
from scrun.core.paths import BUILDAH
from scrun.core.place import contents
from scrun.core.supervisors import parts
from scrun.protocol import wire
from scrun.settings.file.load import Settings, load
from scrun.supervisor.children.processes import end_children, keep_descriptors_free
from scrun.supervisor.containers.caller import hang_up, send, send_last
from scrun.supervisor.containers.containers import Containers
from scrun.supervisor.containers.records import remove_half_made, remove_of_the_dead
from scrun.supervisor.core.limits import raise_limits
from scrun.supervisor.core.own_key import keep_key_in
from scrun.supervisor.core.threads import in_thread, own_threads
from scrun.supervisor.daemon.daemonize import Starter
from scrun.supervisor.daemon.keeper import Keeper
from scrun.supervisor.daemon.requests import ClientRequest, may_call, receive
from scrun.supervisor.daemon.succession import Retirement, Succession
from scrun.supervisor.daemon.watchdog import watchdogs
from scrun.supervisor.log.files import finish
from scrun.supervisor.log.supervisor_log import fault, log
from scrun.supervisor.plugins.registry import plugins

_REQUEST_DEADLINE = 10.0
_ACCEPT_PAUSE = 0.1
_FIRST_CALL = 10.0
_LAST_ANSWERS = 5.0
_LAST_WORDS = 2.0
_BUILDAH_ENDS = 0.2
_UNTIL_DELETE = 5.0
_STOPS = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
_ROOT_INTERVALS = 0.1, 1.0  # the first, which doubles, and the longest


def listen(root: str, name: str) -> socket.socket:
    """Bind the socket. Our starter holds the lock of the name, so an old socket is dead."""
    path = os.path.join(root, name)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        # sun_path holds 108 bytes, and a root directory may be longer
        listener.bind(f"/proc/self/fd/{directory}/{name}")
    finally:
        os.close(directory)
    listener.listen(1024)
    return listener


def listen_again(root: str, name: str) -> tuple[str, socket.socket]:
    """Make a removed root directory again, and bind a socket in it.

    Returns its name, a new one if another supervisor has ours; and the socket. Raises OSError or
    SettingsError if they cannot be made.
    """
    own_directory(root)
    lock = os.open(
        os.path.join(root, f"{name}.lock"),
        os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
        0o600,
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _somebody_listens(root, name):
            raise BlockingIOError
        return name, listen(root, name)
    except BlockingIOError:
        own = f"{name}-{os.getpid()}"
        return own, listen(root, own)
    finally:
        os.close(lock)


def _somebody_listens(root: str, name: str) -> bool:
    try:
        wire.connect(root, name, 1).close()
    except wire.NOBODY:
        return False
    except OSError:  # unknown: assume so
        pass
    return True


def watch_removals(root: str) -> int:
    """Request SIGIO for each removal in the root directory, until what is returned is closed.

    This uses dnotify: the standard library supports it, but not inotify. Raises OSError if the
    directory cannot be watched.
    """
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.fcntl(directory, fcntl.F_NOTIFY, fcntl.DN_DELETE | fcntl.DN_MULTISHOT)
    except BaseException:
        os.close(directory)
        raise
    return directory


class Server:
    """The socket of a group of containers.

    Attributes:
        has_been_idle: Whether it has ended because nobody needed it.
    """

    def __init__(
        self,
        root: str,
        name: str,
        listener: socket.socket,
        idle_timeout: float,
        stop_timeout: float,
        restore_timeout: float = 600,
        *,
        lingers: bool = True,
    ) -> None:
        """Prepare to serve.

        All times are in seconds: without a container, then the supervisor ends; that `stop` may
        take; that our containers wait for a successor if we are killed. `lingers`: whether a
        successor may stay without a container for a while.
        """
        self._root = root
        self._name = name
        self._path = os.path.join(root, name)
        self._bound = os.lstat(self._path)
        self._listener = trio.socket.from_stdlib_socket(listener)
        self._idle_timeout = idle_timeout
        self._stop_timeout = stop_timeout
        self._restore_timeout = restore_timeout
        self._lingers = lingers
        self._busy = 0
        self._called = False
        self._below_buildah = False
        self._changed = trio.Event()
        self.has_been_idle = False

    async def serve(self, serving: Callable[[], None]) -> None:
        """Serve until there is nothing to do, or `stop`, which may be called from `serving` on."""
        async with plugins() as loaded, trio.open_nursery() as self._nursery:
            self._containers = Containers(
                self._root, self._name, loaded, self._nursery, self._has_changed
            )
            self._nursery.start_soon(self._accept, self._listener)
            self._nursery.start_soon(self._watch_root)
            self._nursery.start_soon(self._containers.successor.run)
            keeper = Keeper(
                self._root,
                self._name,
                self._containers.deposits,
                self._restore_timeout,
                self._has_changed,
                lingers=self._lingers,
            )
            self._nursery.start_soon(keeper.run)
            self._retirement = Retirement(self._containers, self)
            self._succession = Succession(
                self._root, self._name, self._containers.adopt, self._nursery
            )
            self._succession.begin()
            if (buildah := _parent_if_buildah()) is not None:
                self._below_buildah = True
                self._nursery.start_soon(self._go_if_waited_for, buildah)
            serving()
            await self._wait_until_idle()
            self.has_been_idle = True
            self._nursery.cancel_scope.cancel()

    async def stop(self, *, leave: bool) -> None:
        """Stop serving once the containers that end with us have ended.

        With `leave` those are the ones that no successor finds; the keeper calls one. The socket
        stays until then, so that callers reach the supervisor that ends their containers. What
        takes longer than the timeout is left to others: Slurm or a script may hang.
        """
        with trio.move_on_after(self._stop_timeout) as patience:
            await (self._containers.leave() if leave else self._containers.end_all())
        if patience.cancelled_caught:
            self.exit_now(leave=leave)
        with trio.move_on_after(_LAST_ANSWERS):  # callers that wait for an end get their answer
            while self._busy > self._retirement.lasting:
                await self._changed.wait()
        # a job that is lent goes on, too: its borrower holds it then
        if self._containers.leaving.is_kept or (leave and self._containers.lends):
            self.exit_now(leave=True)
        if not self._withdraw():
            self._unlink()
        self._nursery.cancel_scope.cancel()

    def exit_now(self, *, leave: bool) -> NoReturn:
        """Exit at once; the records describe what is left to clean up.

        Children end with us: salloc reads end of file and releases its job, and a script's
        commands must not go on beside the supervisor that repeats them. With `leave` a successor
        gets what it finds, as if we had been killed.
        """
        leave = leave and self._containers.leaving.is_kept
        self._containers.abandon(kept=not leave)
        end_children()
        if not leave:
            self._containers.deposits.dismiss(_LAST_WORDS)
            self._unlink()
        finish(_LAST_WORDS)
        os._exit(0)

    @property
    def requests(self) -> int:
        return self._busy

    async def changed(self) -> None:
        await self._changed.wait()

    def step_aside(self) -> None:
        """See `Retires`.

        The old name goes last, so callers reach us by one or the other at any moment.
        """
        own = f"{self._name}-{os.getpid()}"
        if parts(self._name)[2]:  # it has happened before
            return
        before, path = self._path, os.path.join(self._root, own)
        with contextlib.suppress(FileExistsError):
            os.link(before, path)
        self._containers.be_called(own)
        self._name, self._path = own, path
        os.unlink(before)

    def leave(self) -> NoReturn:
        end_children()
        finish(_LAST_WORDS)
        self._unlink()
        os._exit(0)

    def _has_changed(self) -> None:
        """Wake those who wait for us to become idle."""
        self._changed.set()
        self._changed = trio.Event()

    async def _watch_root(self) -> None:
        """Restore the root directory when it is removed.

        The end of a session removes /run/user/UID with all its content; the next session makes a
        new one.
        """
        # A signal that the receiver did not handle is raised again when it is closed, and by
        # default SIGIO ends the process. Children would inherit SIG_IGN.
        signal.signal(signal.SIGIO, lambda *_: None)
        with trio.open_signal_receiver(signal.SIGIO) as removals:
            try:
                watched = watch_removals(self._root)
            except FileNotFoundError:  # it is gone already
                pass
            except OSError:  # this kernel has no dnotify
                return
            else:
                try:
                    while self._is_there():  # a record removed in it tells as well
                        await anext(removals)
                finally:
                    os.close(watched)
        pause, longest = _ROOT_INTERVALS
        while self._containers.any:
            # its removal may not be complete, and no event tells when it can be made again
            await trio.sleep(pause)
            pause = min(2 * pause, longest)
            try:
                await self._restore_root()
            except (OSError, ScrunError):
                continue
            self._nursery.start_soon(self._watch_root)
            return

    async def _restore_root(self) -> None:
        """Make the root directory again, with a socket and the records.

        If another supervisor has our name there by now, we use a new one. Raises as
        `listen_again`.
        """
        name, listener = await in_thread(listen_again, self._root, self._name)
        self._name, self._path = name, os.path.join(self._root, name)
        self._bound = os.lstat(self._path)
        self._listener = trio.socket.from_stdlib_socket(listener)
        self._nursery.start_soon(self._accept, self._listener)
        log.warning("%s was removed: restored it, with the records of containers", self._root)
        self._containers.restore_records(name)

    async def _accept(self, listener: trio.socket.SocketType) -> None:
        while True:
            try:
                connection, _ = await listener.accept()
            except OSError:  # out of descriptors; the caller waits in the queue
                await trio.sleep(_ACCEPT_PAUSE)
                continue
            self._nursery.start_soon(self._handle, connection)

    async def _go_if_waited_for(self, buildah: int) -> None:
        """Let no job wait if the process in which buildah calls the runtime waits for us.

        That of buildah 1.42 ends when no child of it is left; that of others ends after `delete`.
        The descriptor is that process's, and ours.
        """
        try:
            while True:
                while self._busy or self._containers.any or not self._called:
                    await self._changed.wait()
                with trio.move_on_after(_BUILDAH_ENDS):
                    await trio.lowlevel.wait_readable(buildah)
                    return
                if not (self._busy or self._containers.any):
                    self._idle_timeout = 0
                    await self._containers.keep_no_jobs()
                    self._has_changed()
                    return
        finally:
            os.close(buildah)

    async def _wait_until_idle(self) -> None:
        """Wait until we have been idle for the idle time, and remove the socket."""
        while True:
            if self._busy or self._containers.alive:
                await self._changed.wait()
                continue
            # our starter is about to call
            patience = self._idle_timeout if self._called else max(self._idle_timeout, _FIRST_CALL)
            if self._containers.any and self._below_buildah:
                # else another one has to be started for that, and looks for what we have left
                patience = max(patience, _UNTIL_DELETE)
            with trio.move_on_after(patience):
                await self._changed.wait()
                continue
            if self._withdraw():
                return

    def _withdraw(self) -> bool:
        """Remove the socket, unless somebody holds its lock to start us; return whether we did."""
        if not self._is_there():
            return True
        path = self._path + ".lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:  # it does not exist and cannot be made: then nobody holds it
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
        """Return whether callers still reach us.

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

    async def _handle(self, connection: trio.socket.SocketType) -> None:
        """Answer one request. An error in it ends this connection only."""
        own_threads()
        self._busy += 1
        self._called = True
        self._has_changed()
        fds: list[int] = []
        try:
            with contextlib.ExitStack() as stack, connection:
                if not may_call(connection):
                    return
                try:
                    with trio.fail_after(_REQUEST_DEADLINE):
                        fields, unread = await receive(connection, fds)
                except StateError as error:
                    await send(connection, b"\1" + str(error).encode())
                    await hang_up(connection)
                    return
                keep_descriptors_free(connection.fileno())
                await self._retirement.going_on.wait()
                request = ClientRequest(
                    self._containers,
                    self._retirement,
                    self._succession,
                    connection,
                    fields,
                    fds,
                    unread,
                    lambda other: self._nursery.start_soon(self._handle, other),
                )
                stack.callback(request.answered)
                answer = await request.answer()
                with contextlib.suppress(OSError):  # the caller is gone
                    await send_last(connection, answer)
                await request.confirmed()
        except (OSError, UsageError, trio.TooSlowError):
            pass  # the caller is gone, or not one of ours
        except Exception as error:
            fault("a connection", error)
        finally:
            for fd in fds:
                os.close(fd)
            self._busy -= 1
            self._has_changed()


def _parent_if_buildah() -> int | None:
    """Return a descriptor of the process that our starter has left us to, if that is buildah's."""
    parent = os.getppid()
    if contents(f"/proc/{parent}/cmdline").startswith(BUILDAH):
        with contextlib.suppress(OSError):
            return os.pidfd_open(parent)
    return None


def own_settings() -> Settings:
    """Return the supervisor's own settings; the defaults if they are wrong.

    The `create` that follows reports what is wrong with them.
    """
    try:
        return load(os.environ)
    except ScrunError:
        return Settings()


def serve(root: str, name: str, starter: Starter, idle: float | None = None) -> None:
    """Serve the socket ROOT/NAME until it is no longer needed.

    The starter is told `ready` once callers can connect. `idle`: seconds to stay without a
    container; None: the settings decide. Raises SettingsError if the socket cannot be made there.
    """
    os.umask(0o077)
    raise_limits()
    # one that arrives before `_serve` handles it would leave the socket behind
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        listener = listen(root, name)
    except OSError as error:
        raise SettingsError.of_root(root, error, name) from error
    remove_half_made(root, name)
    keep_key_in(root)
    settings = own_settings()
    lingers = idle is None
    idle = settings.idle_timeout if idle is None else idle
    server = Server(
        root,
        name,
        listener,
        idle,
        settings.stop_timeout,
        settings.restore_timeout,
        lingers=lingers,
    )
    trio.run(_serve, server, starter, mask, instruments=watchdogs())
    if server.has_been_idle:  # who is told to go is waited for
        remove_of_the_dead(root, name)
    finish(_LAST_WORDS)


async def _serve(server: Server, starter: Starter, mask: Iterable[int]) -> None:
    """Serve; `mask` has the signals that were blocked before the socket was there."""
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(*_STOPS) as signals:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

            async def handle_signals() -> None:
                """SIGTERM leaves the containers to a successor, SIGINT ends them."""
                number = await anext(signals)
                # at the end of a session systemd sends SIGHUP as well, and means one signal
                twice = number != signal.SIGHUP
                while True:
                    leave = number != signal.SIGINT
                    async with trio.open_nursery() as stopping:
                        stopping.start_soon(partial(server.stop, leave=leave))
                        while (number := await anext(signals)) == signal.SIGHUP:
                            pass
                        if twice and not (leave and number == signal.SIGINT):
                            server.exit_now(leave=leave)
                        twice = True
                        stopping.cancel_scope.cancel()

            def serving() -> None:
                nursery.start_soon(handle_signals)
                starter.tell("ready")

            await server.serve(serving)
            nursery.cancel_scope.cancel()
