"""A file system of a running container's files, for engines that enter its anchor's namespaces.

It is the kernel's, by FUSE. We negotiate the version, and pass all other requests on to a program
of the shim's, which is in the container and answers (`shim.live_files`). That begins with the
first request, and ends when nobody has asked for a while: so an idle container has a mount, a
descriptor and a task more, and no process.

An engine that waits holds locks. So if nothing is answered for some seconds, and the shim does
not answer either, what waits gets EIO, and so does every new request, until there is an answer
again. What was passed on may still be carried out then, as with a soft mount of NFS.

The node is not trusted: an answer counts only for a request that waits, and the kernel checks what
it says. The mount has no devices, and no program there gets its owner's rights.
"""

import errno
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from struct import Struct
from typing import NamedTuple, Self

import trio

from scrun.core.errors import ScrunError, described
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.contracts.program import SERVED, Program
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_last_thread
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.ends import Gone, Unbuffered
from scrun.supervisor.wire.fuse import (
    ATTR,
    ATTR_OUT,
    CLOSING,
    ENTRY,
    GETATTR,
    IN,
    INIT,
    LARGEST,
    LONGEST,
    LOOKUP,
    OPENING,
    OUT,
    PROC,
    ROOT,
    UNANSWERED,
)

DEVICE = "/dev/fuse"

_INIT_IN, _INIT_OUT = Struct("=IIII"), Struct("=IIIIHHIIHHI28x")
_MAJOR, _MINOR = 7, 31
_ASYNC_READ, _BIG_WRITES, _AUTO_INVAL_DATA, _READDIRPLUS, _READDIRPLUS_AUTO = (
    *(1 << 0, 1 << 5, 1 << 12, 1 << 13, 1 << 14),
)
_PARALLEL_DIROPS, _MAX_PAGES = 1 << 18, 1 << 22
_WANTED = _ASYNC_READ | _BIG_WRITES | _AUTO_INVAL_DATA | _READDIRPLUS | _READDIRPLUS_AUTO
_WANTED |= _PARALLEL_DIROPS | _MAX_PAGES
_BACKGROUND, _CONGESTED = 16, 12
_PAGE = 4096
_FOLDER = 0o40755
_KEPT = 4 * LONGEST  # bytes of requests that were read and not passed on
_QUIET, _ANSWER, _LONGEST = 2.0, 2.5, 60.0
_IDLE = 30.0
_WORDS = 1 << 10


class _Waiting(NamedTuple):
    """A request that waits for its answer."""

    code: int
    since: float


def attach(tree: int, anchor: int, alive: Callable[[], bool]) -> None:
    """Mount the file system over an anchor's root; blocks until its first requests are answered.

    One that a dead supervisor has left there is detached.

    Args:
        tree: `LiveFiles.tree`.

    Raises:
        OSError: It is not permitted, or the root is not that of an anchor.
    """
    in_last_thread(lambda: _attach(tree, anchor, alive))


def _attach(tree: int, anchor: int, alive: Callable[[], bool]) -> None:
    from scrun.core import namespaces as ns

    with ExitStack() as stack:
        namespace = os.open(f"/proc/{anchor}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, namespace)
        if not alive():  # then the pid may be another process'
            return
        ns.unshare(ns.NEW_ROOT)
        ns.enter(namespace, ns.NEW_MOUNT)
        while not _is_there():
            ns.detach("/")  # a path with a component would be an error, too
            ns.enter(namespace, ns.NEW_MOUNT)
        if os.listdir("/") != ["proc"]:
            raise OSError(0, "the namespace is not that of an anchor")
        ns.attach_tree(tree, "/")
        os.fchdir(tree)
        ns.mount("/proc", "proc", None, ns.BIND)


def _is_there() -> bool:
    """Tell whether the root directory is not one of a supervisor that has died."""
    try:
        os.listdir("/")
    except OSError as error:
        if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED):
            raise
        return False
    return True


class LiveFiles(Unbuffered):
    """The file system of one container. It is also what its program reads and writes.

    Attributes:
        tree: The mount, as long as it is attached nowhere.
    """

    def __init__(self, job: Job, journal: Journal) -> None:
        """Open the device, and make a file system of it that is mounted nowhere.

        Raises:
            OSError: There is none here, or it is not permitted.
        """
        self._job = job
        self._journal = journal
        from scrun.core import namespaces as ns  # few supervisors need it

        self.fd = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self.tree = ns.new_mount(
                "fuse", ns.NO_SUID | ns.NO_DEVICES, source="scrun", fd=f"{self.fd}",
                rootmode="40000", user_id=f"{os.getuid()}", group_id=f"{os.getgid()}",
                allow_other=None, default_permissions=None,
            )  # fmt: skip
        except OSError:
            os.close(self.fd)
            raise
        self._is_attached = False
        self._requests: deque[memoryview] = deque()
        self._kept = 0  # bytes of them
        self._waiting: dict[int, _Waiting] = {}
        self._open = 0
        self._answer = bytearray()
        self._words = bytearray()
        self._heard = 0.0
        self._is_stalled = False
        self._changed = trio.Event()

    def close(self) -> None:
        """Let it go: who still uses it gets an error."""
        self._close_tree()
        os.close(self.fd)

    def _close_tree(self) -> None:
        tree, self.tree = self.tree, -1
        if tree >= 0:
            os.close(tree)

    def is_attached(self) -> None:
        """From now on the program answers, and no request is for the mount itself."""
        self._is_attached = True
        self._close_tree()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # the kernel's side

    async def serve(self) -> None:
        """Answer until this is cancelled, or nothing is mounted any more."""
        async with unwrapped() as nursery:
            nursery.start_soon(self._run_programs)
            await self._read_all()
            nursery.cancel_scope.cancel()

    async def _read_all(self) -> None:
        while True:
            while self._kept > _KEPT and not self._is_stalled:
                await self._changed.wait()
            await trio.lowlevel.wait_readable(self.fd)
            try:
                request = os.read(self.fd, LONGEST)
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno == errno.ENOENT:  # who asked has been killed
                    continue
                return
            self._take(request)

    def _take(self, request: bytes) -> None:
        _, code, unique, number, *_ = IN.unpack_from(request)
        if code == INIT:
            self._negotiate(unique, request)
        elif not self._is_attached:
            self._answer_mount(code, unique, number, request[IN.size :])
        elif self._is_stalled:
            self._fail(unique, code)
        else:
            if code in CLOSING:
                self._open -= 1
            if code not in UNANSWERED:
                self._waiting[unique] = _Waiting(code, trio.current_time())
            elif not self._is_running:
                return
            self._requests.append(memoryview(request))
            self._kept += len(request)
            self._tell()

    def _negotiate(self, unique: int, request: bytes) -> None:
        _, _, ahead, flags = _INIT_IN.unpack_from(request, IN.size)
        pages = LARGEST // _PAGE
        body = _INIT_OUT.pack(
            _MAJOR, _MINOR, ahead, flags & _WANTED, _BACKGROUND, _CONGESTED, LARGEST, 1, pages,
            0, 0,
        )  # fmt: skip
        self._reply(unique, body)

    def _answer_mount(self, code: int, unique: int, number: int, body: bytes) -> None:
        """Answer while it is being mounted: there are two directories, and no container yet."""
        if code == GETATTR and number in (ROOT, PROC):
            self._reply(unique, ATTR_OUT.pack(0, 0, 0) + _folder(number))
        elif code == LOOKUP and (number, body) == (ROOT, b"proc\0"):
            self._reply(unique, ENTRY.pack(PROC, 0, 0, 0, 0, 0) + _folder(PROC))
        else:
            self._fail(unique, code)

    def _reply(self, unique: int, body: bytes) -> None:
        self._write(OUT.pack(OUT.size + len(body), 0, unique) + body)

    def _fail(self, unique: int, code: int) -> None:
        if code not in UNANSWERED:
            self._write(OUT.pack(OUT.size, -errno.EIO, unique))

    def _write(self, answer: bytes | bytearray | memoryview) -> None:
        with suppress(OSError):  # who asked has been killed, or it is malformed
            os.write(self.fd, answer)

    def _fail_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for unique, request in waiting.items():
            self._fail(unique, request.code)

    # the program's side

    _is_running = _is_over = False

    async def _run_programs(self) -> None:
        """Run a program whenever there are requests and none runs."""
        while True:
            while not self._waiting:
                await self._changed.wait()
            self._is_running = True
            try:
                async with unwrapped() as nursery:
                    nursery.start_soon(self._watch)
                    why = await self._run()
                    nursery.cancel_scope.cancel()
            except ScrunError as error:
                why = described(error)
            self._is_running = self._is_stalled = False
            self._open = 0
            if why:
                text = f"its files cannot be reached for `podman cp` and the like: {why}"
                self._journal.write("info", text)
                self._requests.clear()
                self._kept = 0
                self._answer.clear()
                self._fail_all()

    async def _run(self) -> str:
        """Run one to its end; return why it failed, or ""."""
        self._words.clear()
        self._heard = trio.current_time()
        program = Program(
            process={}, stdio=(self.fd,) * 3, terminal=False, program_is_known=True,
            running=_nothing, files=SERVED, ends=self,
        )  # fmt: skip
        self._is_over = False
        ending = await (await self._job.session(program)).run()
        if self._is_over:
            return ""
        words = self._words.decode(errors="replace").strip()
        return words or ending.text or f"their program ended with {ending.status}"

    async def _watch(self) -> None:
        """Have what waits fail if neither the program nor the shim answers."""
        while True:
            while not self._waiting:
                await self._changed.wait()
            since = next(iter(self._waiting.values())).since
            now = trio.current_time()
            until = max(since, self._heard) + _QUIET
            if now < until:
                await trio.sleep(until - now)
            elif now - since <= _LONGEST and await self._shim_answers():
                self._heard = trio.current_time()  # so the program is just slow
            elif self._waiting and self._heard <= now:
                self._is_stalled = True
                self._fail_all()
                self._tell()

    async def _shim_answers(self) -> bool:
        with trio.move_on_after(_ANSWER), suppress(ScrunError):
            await self._job.inspect(lambda _: ":")
            return True
        return False

    @asynccontextmanager
    async def source(self) -> AsyncIterator[Self]:
        yield self

    @asynccontextmanager
    async def sink(self, name: str) -> AsyncIterator["Self | _Words"]:
        yield self if name == "stdout" else _Words(self._words)

    async def read_into(self, room: memoryview) -> int:
        """Read what is to be passed on; return the number of bytes, 0 if nobody asks any more."""
        await trio.lowlevel.checkpoint()
        while not self._requests:
            idle = not (self._waiting or self._open)
            with trio.move_on_after(_IDLE if idle else float("inf")) as patience:
                await self._changed.wait()
            if patience.cancelled_caught and not self._requests:
                self._is_over = True
                return 0
        found = 0
        while self._requests and found < len(room):
            first = self._requests[0]
            part = first[: len(room) - found]
            room[found : found + len(part)] = part
            found += len(part)
            if len(part) < len(first):
                self._requests[0] = first[len(part) :]
            else:
                self._requests.popleft()
        full, self._kept = self._kept > _KEPT, self._kept - found
        if full:
            self._tell()
        return found

    async def write(self, data: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        return self.try_write(data)

    def try_write(self, data: memoryview) -> int:
        """Take answers, or parts of them.

        Raises:
            Gone: That is not an answer.
        """
        self._heard = trio.current_time()
        self._is_stalled = False
        self._answer += data
        at = 0
        with memoryview(self._answer) as view:
            while len(view) - at >= OUT.size:
                length, error, unique = OUT.unpack_from(view, at)
                if not OUT.size <= length <= LONGEST:
                    raise Gone("the shim has sent no answer")
                if len(view) - at < length:
                    break
                if (request := self._waiting.pop(unique, None)) is not None:
                    if request.code in OPENING and not error:
                        self._open += 1
                    with view[at : at + length] as answer:
                        self._write(answer)
                at += length
        del self._answer[:at]
        if not self._waiting:
            self._tell()
        return len(data)


class _Words(Unbuffered):
    """What a program says; its beginning is kept."""

    def __init__(self, kept: bytearray) -> None:
        self._kept = kept

    def try_write(self, data: memoryview) -> int:
        self._kept += data[: max(0, _WORDS - len(self._kept))]
        return len(data)

    async def write(self, data: memoryview) -> int:
        return self.try_write(data)


def _folder(number: int) -> bytes:
    return ATTR.pack(number, *(0,) * 8, _FOLDER, 2, 0, 0, 0, _PAGE, 0)


def _nothing() -> None:
    """Nothing waits for it."""
