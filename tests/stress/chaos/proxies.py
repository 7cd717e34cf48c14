"""A process between the commands and their supervisor, that does not pass answers on as it should.

It is this one: for as long as it listens it has the user's id, because that is what commands check
(SO_PEERCRED is taken when a socket begins to listen).
"""

import array
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from tests.stress.chaos.container import Container

NAMES = ("slow", "dropped", "stranger")
_STRANGER = 65534
_LARGEST = 1 << 16
_RIGHTS = socket.CMSG_SPACE(16 * array.array("i").itemsize)


@asynccontextmanager
async def between(container: "Container") -> AsyncIterator[None]:
    """Be between the commands of a container and its supervisor."""
    how = container.plan.fault.name.removeprefix("answer-")
    directory = f"{container.testbed.root_of(container.plan)}/{container.id}"
    try:
        real = os.readlink(f"{directory}/supervisor")
    except OSError:
        yield
        return
    name = f"@proxy-{container.id}"
    path = f"{os.path.dirname(directory)}/{name}"
    listener = _listen(path, _STRANGER if how == "stranger" else container.testbed.site.user.uid)
    _replace(f"{directory}/supervisor", f"../{name}")
    container.hit(f"answers are {how}")

    def leave() -> None:
        _replace(f"{directory}/supervisor", real)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    proxy = _Proxy(how, os.path.normpath(f"{directory}/{real}"), leave)
    # who has been taken in is answered to the end
    async with trio.open_nursery() as calls, trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(trio.serve_listeners, proxy.serve, [listener], handler_nursery=calls)
        )
        try:
            yield
        finally:
            leave()
            nursery.cancel_scope.cancel()


def _listen(path: str, uid: int) -> trio.SocketListener:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(path)
    os.chmod(path, 0o666)
    os.seteuid(uid)
    try:
        sock.listen()
    finally:
        os.seteuid(0)
    sock.setblocking(False)
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


def _replace(link: str, target: str) -> None:
    """Let a link name something else, if the record is there still."""
    try:
        os.symlink(target, f"{link}.new")
        os.rename(f"{link}.new", link)
    except FileNotFoundError:
        pass


class _Proxy:
    def __init__(self, how: str, real: str, leave: Callable[[], None]) -> None:
        self._how = how
        self._real = real
        self._leave = leave
        self._calls = 0

    async def serve(self, caller: trio.SocketStream) -> None:
        """Pass one request on, and its answer back."""
        self._calls += 1
        if self._how == "dropped" and self._calls % 2:
            return
        try:
            supervisor = await trio.open_unix_socket(self._real)
        except (
            OSError
        ):  # it has nothing to do any more, and has ended: a dead one listens to nobody
            self._leave()
            return
        try:
            await self._pass_on(caller, supervisor)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # either side is gone

    async def _pass_on(self, caller: trio.SocketStream, supervisor: trio.SocketStream) -> None:
        async with supervisor:
            request, rights, _, _ = await caller.socket.recvmsg(_LARGEST, _RIGHTS)
            try:
                await supervisor.socket.sendmsg([request], rights)
            finally:
                for _, _, fds in rights:
                    for fd in array.array("i", fds):
                        os.close(fd)
            async for part in supervisor:
                for byte in part:
                    await caller.send_all(bytes([byte]))
                    await trio.sleep(0.002)
