"""A file system of a running container's files, for engines that enter its anchor's namespaces.

It is the kernel's, by FUSE. We negotiate the version, and pass all other requests on to a program
of the shim's, which is in the container and answers (`shim.live_files`). That begins with the
first request, and ends when nobody has asked for a while: so an idle container has a mount, a
descriptor and a task more, and no process. What `df` and the like ask of every mount on the host
begins none.

An engine that waits holds locks. So if nothing is answered for some seconds, and the shim does
not answer either, all requests fail with EIO until an answer arrives. What was passed on may still
be carried out then, as with a soft mount of NFS.

The node is not trusted: an answer counts only for a request that waits, the kernel checks what it
says, and we what the kernel would not answer for. The mount has no devices, and nothing there can
be executed or loaded. `proc`, where the anchor's own is mounted, is ours: the kernel would undo
that mount if the node said that it is another file.
"""

import errno
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from struct import Struct
from typing import NamedTuple, Self

import trio

from scrun.core.errors import ScrunError, described
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.contracts.program import SERVED, Files, Program
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.ends import Gone, Unbuffered
from scrun.supervisor.shim.asked_files import attributes
from scrun.supervisor.staging.live_mounts import KIND, SOURCE
from scrun.supervisor.wire.fuse import (
    ATTR,
    ATTR_OUT,
    CLOSING,
    CREATE,
    DIRENT,
    ENTRY,
    ENTRY_CODES,
    FALLOCATE,
    FLUSH,
    FSYNC,
    GETATTR,
    IN,
    INIT,
    KEEP_SIZE,
    LARGEST,
    LONGEST,
    LOOKUP,
    OPEN_OUT,
    OPENING,
    OUT,
    PROC,
    RANGE,
    READDIRPLUS,
    ROOM,
    ROOT,
    STATFS,
    STATFS_OUT,
    UNANSWERED,
    WRITE,
)

DEVICE = "/dev/fuse"

_INIT_IN, _INIT_OUT = Struct("=IIII"), Struct("=IIIIHHIIHHI28x")
_MAJOR, _MINOR = 7, 31
_ASYNC_READ, _BIG_WRITES, _AUTO_INVAL_DATA = 1 << 0, 1 << 5, 1 << 12
_READDIRPLUS, _READDIRPLUS_AUTO = 1 << 13, 1 << 14  # if names are looked up, too
_PARALLEL_DIROPS, _MAX_PAGES = 1 << 18, 1 << 22
_WANTED = _ASYNC_READ | _BIG_WRITES | _AUTO_INVAL_DATA | _READDIRPLUS | _READDIRPLUS_AUTO
_WANTED |= _PARALLEL_DIROPS | _MAX_PAGES
_BACKGROUND, _CONGESTED = 16, 12
_PAGE = 4096
_FOLDER = 0o40755
_KEPT = 4 * LONGEST  # bytes of requests that were read and not passed on
_QUIET, _ANSWER, _LONGEST = 2.0, 2.5, 60.0
_IDLE = 30.0
_AT_ONCE, _AHEAD = 1 << 20, 1 << 24
_FILE, _SIZE = Struct("=Q"), Struct("=II")
_WORDS = 1 << 10
_ERRORS = 512  # the kernel takes no answer with a greater one
_ENTRY = ENTRY.size + ATTR.size
_LISTED = _ENTRY + DIRENT.size
_LONGEST_NAME = 1 << 10
_LEAST = dict.fromkeys(ENTRY_CODES, _ENTRY) | dict.fromkeys(OPENING, OPEN_OUT.size)
_LEAST |= {CREATE: _ENTRY + OPEN_OUT.size, WRITE: _SIZE.size}


class _Written:
    """An open file that is written to.

    Its first MiB is written piece by piece. Then the node reserves room on its disk ahead, and who
    writes there need not wait: no other error is to be expected than a broken disk, and that is
    told with the next piece, or at the end. `podman cp` writes 32 KiB at a time.
    """

    def __init__(self) -> None:
        self.first = self.until = 0  # the room
        self.asked = 0  # for room until there
        self.has_room = True  # or may get some
        self.error = 0
        self.left = 0  # pieces that nobody waits for, and that are not written yet
        self.flushes: list[int] = []


class _Waiting(NamedTuple):
    """A request that is to be answered.

    Attributes:
        since: When it came.
        written: What it belongs to, of those that write.
        length: How many bytes it writes if nobody waits for it; or until where it asks for room.
    """

    code: int
    since: float
    written: _Written | None = None
    length: int = 0


_NOTHING_WRITTEN = _Written()
_OF_EACH_MOUNT = (GETATTR, STATFS)  # without blocks `df` takes it for one like /proc


class LiveFiles(Unbuffered):
    """The file system of one container. It is also what its program reads and writes.

    Attributes:
        tree: The mount, as long as it is attached nowhere.
    """

    def __init__(self, job: Job, journal: Journal, files: Files = SERVED) -> None:
        """Open the device, and make a file system of it that is mounted nowhere.

        Args:
            files: `SERVED`, for an anchor; or of `rootfs`, which has no `proc` of ours.

        Raises:
            OSError: There is none here, or it is not permitted.
        """
        self._job = job
        self._journal = journal
        self._files = files
        self._proc = PROC if files == SERVED else 0
        from scrun.core import namespaces as ns  # few supervisors need it

        self.fd = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self.tree = ns.new_mount(
                KIND, ns.NO_SUID | ns.NO_DEVICES | ns.NO_PROGRAMS, source=SOURCE,
                fd=f"{self.fd}", rootmode="40000", user_id=f"{os.getuid()}",
                group_id=f"{os.getgid()}", allow_other=None, default_permissions=None,
            )  # fmt: skip
        except OSError:
            os.close(self.fd)
            raise
        self._is_attached = False
        self._root = b""
        self._requests: deque[memoryview] = deque()
        self._kept = 0  # bytes of them
        self._waiting: dict[int, _Waiting] = {}
        self._open: set[int] = set()
        self._written: dict[int, _Written] = {}
        self._last_own = 1  # the kernel's numbers are even
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

    def is_attached(self, over: os.stat_result | None = None) -> None:
        """From now on the program answers, and no request is for the mount itself.

        Args:
            over: The directory that it covers. We answer with it while no program runs.
        """
        if over is not None:
            self._root = ATTR_OUT.pack(0, 0, 0) + attributes(over)
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
        elif not self._is_attached or (self._proc and _is_proc(code, number, request)):
            self._answer_mount(code, unique, number, request[IN.size :])
        elif self._root and number == ROOT and code in _OF_EACH_MOUNT and not self._is_asked:
            self._reply(unique, self._root if code == GETATTR else bytes(STATFS_OUT.size))
        elif code == FLUSH:
            self._flush(unique, _number(request))
        elif self._is_stalled and code not in CLOSING:
            self._fail(unique, code)
        else:
            waiting = _Waiting(code, trio.current_time())
            if code in CLOSING:
                self._open.discard(_number(request))
                self._written.pop(_number(request), None)
            elif code == WRITE:
                waiting = self._write_ahead(unique, request, waiting)
            elif code == FSYNC:
                written = self._written.get(_number(request))
                waiting = waiting._replace(written=written)
            if code not in UNANSWERED:
                self._waiting[unique] = waiting
            elif not self._is_running:
                return
            self._pass_on(request)

    def _pass_on(self, request: bytes) -> None:
        self._requests.append(memoryview(request))
        self._kept += len(request)
        self._tell()

    def _write_ahead(self, unique: int, request: bytes, waiting: _Waiting) -> _Waiting:
        """Let who writes go on, if there is room for it."""
        number, offset, size, *_ = RANGE.unpack_from(request, IN.size)
        written = self._written.setdefault(number, _Written())
        end = offset + size
        if written.has_room and end > _AT_ONCE and end + _AHEAD // 2 > written.asked:
            self._ask_for_room(number, written, offset, waiting.since)
        if written.first <= offset and end <= written.until and not written.error:
            self._reply(unique, _SIZE.pack(size, 0))
            written.left += 1
            return waiting._replace(written=written, length=size)
        return waiting._replace(written=written)

    def _ask_for_room(self, number: int, written: _Written, offset: int, now: float) -> None:
        begin = written.asked or offset
        if not written.first <= offset <= begin:  # it is not written from its beginning to its end
            written.has_room, written.until = False, 0
            return
        written.first = written.first or offset
        written.asked = begin + _AHEAD
        self._last_own += 2
        body = ROOM.pack(number, begin, _AHEAD, KEEP_SIZE, 0)
        length = IN.size + len(body)
        request = IN.pack(length, FALLOCATE, self._last_own, ROOT, 0, 0, 0, 0) + body
        self._waiting[self._last_own] = _Waiting(FALLOCATE, now, written, written.asked)
        self._pass_on(request)

    def _flush(self, unique: int, number: int) -> None:
        """Answer when a file is written, as it is closed."""
        written = self._written.get(number, _NOTHING_WRITTEN)
        if written.left:
            written.flushes.append(unique)
        else:
            self._write(OUT.pack(OUT.size, -written.error, unique))

    def _take_answer(self, request: _Waiting, error: int, answer: memoryview, unique: int) -> None:
        written, length = request.written, request.length
        if not _is_fit(request.code, error, answer, self._proc):
            error, answer = -errno.EIO, memoryview(OUT.pack(OUT.size, -errno.EIO, unique))
        if request.code in OPENING and not error:
            at = OUT.size + _LEAST[request.code] - OPEN_OUT.size
            self._open.add(OPEN_OUT.unpack_from(answer, at)[0])
        if request.code == FALLOCATE and written is not None:
            written.has_room = not error and written.has_room
            if written.has_room:
                written.until = length
            return
        if written is not None and length:
            if not error and _SIZE.unpack_from(answer, OUT.size)[0] < length:
                error = -errno.EIO
            written.error = written.error or -error
            self._piece_is_written(written)
            return
        if written is not None and written.error and not error:
            self._write(OUT.pack(OUT.size, -written.error, unique))
        else:
            self._write(answer)

    def _piece_is_written(self, written: _Written) -> None:
        written.left -= 1
        if not written.left:
            flushes, written.flushes = written.flushes, []
            for unique in flushes:
                self._write(OUT.pack(OUT.size, -written.error, unique))

    def _negotiate(self, unique: int, request: bytes) -> None:
        _, _, ahead, flags = _INIT_IN.unpack_from(request, IN.size)
        pages = LARGEST // _PAGE
        body = _INIT_OUT.pack(
            _MAJOR, _MINOR, ahead, flags & _WANTED, _BACKGROUND, _CONGESTED, LARGEST, 1, pages,
            0, 0,
        )  # fmt: skip
        self._reply(unique, body)

    def _answer_mount(self, code: int, unique: int, number: int, body: bytes) -> None:
        """Answer for `proc`; while it is being mounted, for the root too."""
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
        with suppress(OSError):  # who asked has been killed
            os.write(self.fd, answer)

    def _fail_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for unique, request in waiting.items():
            written = request.written
            if request.code == FALLOCATE and written is not None:
                written.has_room = False
            elif written is not None and request.length:
                written.error = errno.EIO
                self._piece_is_written(written)
            else:
                self._fail(unique, request.code)

    # the program's side

    _is_running = _is_over = False

    @property
    def _is_asked(self) -> bool:
        return self._is_running or bool(self._waiting)

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
            self._open.clear()
            self._written.clear()
            if why:
                text = f"its files cannot be reached for `podman cp` and the like: {why}"
                self._journal.write("info", text)
                self._requests.clear()
                self._kept = 0
                self._tell()  # who reads more of them
                self._answer.clear()
                self._fail_all()

    async def _run(self) -> str:
        """Run one to its end; return why it failed, or ""."""
        self._words.clear()
        self._heard = trio.current_time()
        program = Program(
            process={}, stdio=(self.fd,) * 3, terminal=False, program_is_known=True,
            running=_nothing, files=self._files, ends=self,
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
            # whoever waits cannot be killed; so what is said meanwhile does not count for ever
            until = min(max(since, self._heard) + _QUIET, since + _LONGEST)
            if now < until:
                await trio.sleep(until - now)
            elif now - since < _LONGEST and await self._shim_answers():
                self._heard = trio.current_time()  # so the program is just slow
            elif self._waiting and (self._heard <= now or now - since >= _LONGEST):
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
            Gone: Something else arrived.
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
                    with view[at : at + length] as answer:
                        self._take_answer(request, error, answer, unique)
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


def _number(request: bytes) -> int:
    """Return the number of the open file that a request begins with."""
    number: int = _FILE.unpack_from(request, IN.size)[0]
    return number


def _is_proc(code: int, number: int, request: bytes) -> bool:
    """Tell whether a request is for the directory that the anchor's /proc is mounted on."""
    return number == PROC or ((code, number) == (LOOKUP, ROOT) and request[IN.size :] == b"proc\0")


def _is_fit(code: int, error: int, answer: memoryview, proc: int) -> bool:
    """Tell whether the kernel will take an answer, and it changes nothing about `proc`."""
    if error:
        return -_ERRORS < error < 0 and len(answer) == OUT.size
    if len(answer) < OUT.size + _LEAST.get(code, 0):
        return False
    if code == READDIRPLUS and proc:
        _leave_out_proc(answer)
    return not proc or code not in ENTRY_CODES or _FILE.unpack_from(answer, OUT.size)[0] != proc


def _leave_out_proc(answer: memoryview) -> None:
    """Have the kernel ask about `proc`: in a list, its name stays and its number becomes 0."""
    at = OUT.size
    while at + _LISTED <= len(answer):
        _, _, length, _ = DIRENT.unpack_from(answer, at + _ENTRY)
        end = at + _LISTED + length
        if not 0 < length <= _LONGEST_NAME:  # the kernel reads no further, too
            return
        (number,) = _FILE.unpack_from(answer, at)
        if number == PROC or bytes(answer[at + _LISTED : end]) == b"proc":
            _FILE.pack_into(answer, at, 0)
        at = end + -length % 8


def _folder(number: int) -> bytes:
    return ATTR.pack(number, *(0,) * 8, _FOLDER, 2, 0, 0, 0, _PAGE, 0)


def _nothing() -> None:
    """Nothing waits for it."""
