"""The supervisor's side of a Lua worker: starts it, serves its requests, and ends it.

The supervisor runs the script's commands as its own children, in the container's nurseries:
cancelling those ends the commands, with their process groups, before the script ends.
"""

import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from signal import SIGKILL, SIGXCPU
from typing import get_args

import msgspec
import trio

from scrun.core.errors import EngineError, ScrunError
from scrun.core.paths import python_code
from scrun.core.rights import fds_in
from scrun.oci.signals import its_end
from scrun.protocol.wire import LIMIT, frame
from scrun.settings.file.load import Level, Lua
from scrun.supervisor.children.processes import SYSTEM_PATH, Child, ChildEnv, child, run_shell
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.log.journal import Journal

Remote = Callable[[str, int], Awaitable[int]]
"""Runs a shell script on all nodes of the job, with its output to a descriptor, and returns the
highest exit status."""

_GRACE = 0.5
_DYING = 1.0
_LEVELS: tuple[Level, ...] = get_args(Level)
_PROGRAM = "from scrun.supervisor.worker.main import main; main()"
# the number of fields of a frame after its kind; None: any number
_FIELDS: Mapping[bytes, int | None] = {
    b"command": 1,
    b"output": 1,
    b"remote": 1,
    b"log": 2,
    b"failed": 2,
    b"done": 2,
    b"loaded": None,
    b"stop": None,  # ignored when its command has just ended
    b"opened": None,
    b"called": None,
}

_MOST = 16  # descriptors not taken yet; a worker sends one and waits
_ROOM = socket.CMSG_SPACE(_MOST * 4)


class Hangup(Exception):
    """The worker is gone."""


class Channel:
    """Sends and receives frames of `protocol.wire`; owns the socket and received descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = trio.socket.from_stdlib_socket(sock)
        self._data = bytearray()
        self._fds: deque[int] = deque()

    async def send(self, *fields: str | bytes) -> None:
        rest = memoryview(frame([os.fsencode(field) for field in fields]))
        try:
            while rest:
                rest = rest[await self._sock.send(rest) :]
        except OSError as error:
            raise Hangup from error

    async def receive(self) -> list[bytes]:
        while True:
            length = 4 + int.from_bytes(self._data[:4], "big")
            if 4 <= len(self._data) >= length:
                body = bytes(self._data[4:length])
                del self._data[:length]
                return body.split(b"\0")
            if len(self._data) >= 4 and length > LIMIT:
                raise Hangup
            await self._receive_more()

    async def _receive_more(self) -> None:
        try:
            part, ancillary, _, _ = await self._sock.recvmsg(65536, _ROOM, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise Hangup from error
        self._fds.extend(fds_in(ancillary))
        if not part or len(self._fds) > _MOST:
            raise Hangup
        self._data += part

    def take_descriptor(self) -> int:
        """Return the descriptor that came with the last frame; the caller closes it."""
        if not self._fds:
            raise Hangup
        return self._fds.popleft()

    def close(self) -> None:
        """Close the socket and the descriptors that nobody took."""
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())


class Worker:
    """A running worker.

    `label` is the prefix of messages of the script that runs; an error is about `subject`, and
    `last_error` is the last one that a script logged.
    """

    def __init__(
        self,
        subject: str,
        failure: type[ScrunError],
        channel: Channel,
        process: Child,
        child_env: ChildEnv,
        directory: str,
        printed: int,
        journal: Journal,
    ) -> None:
        """Take over a started process, whose standard output and error are `printed`.

        A script's failure is a `failure`. `child_env` is for the commands of its scripts.
        """
        self.label = os.path.basename(subject)
        self.subject = subject
        self.last_error = ""
        self._failure = failure
        self._channel = channel
        self._process = process
        self._child_env = child_env
        self._directory = directory
        self._printed = printed
        self._journal = journal

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(
        self, *fields: str | bytes, until: bytes, remote: Remote | None = None
    ) -> list[bytes]:
        """Send a request; serve the script's requests until an answer of this kind comes.

        `remote` runs remote_command; None while there is no job. ScrunError also if the process
        died.
        """
        await self.tell(*fields)
        return await self._serve(until, remote)

    async def tell(self, *fields: str | bytes) -> None:
        try:
            await self._channel.send(*fields)
        except Hangup:
            pass  # `_serve` notices it

    def add_variables(self, variables: Mapping[str, str]) -> None:
        self._child_env = self._child_env.with_more(variables)

    def failure(self, reason: str) -> ScrunError:
        return self._failure(f"{self.subject}: {reason}")

    async def _serve(self, until: bytes, remote: Remote | None) -> list[bytes]:
        try:
            while True:
                kind, fields = parse_frame(await self._channel.receive())
                if kind == until:
                    return fields
                if kind == b"log":
                    self._log(*fields)
                elif kind == b"failed":
                    reason, trace = (field.decode(errors="replace") for field in fields)
                    self.trace(trace)
                    raise self.failure(reason)
                elif kind in (b"command", b"output", b"remote"):
                    await self._answer(kind, os.fsdecode(fields[0]), remote)
        except Hangup:
            with trio.move_on_after(_DYING):
                await self._process.wait()
            # a worker that still runs has sent something that is not a frame
            raise self.failure(_death(await self._process.end(grace=0, by=SIGKILL))) from None

    def trace(self, text: str) -> None:
        if text.strip():
            self._journal.write("debug", text)

    def _log(self, level: bytes, text: bytes) -> None:
        known = [name for name in _LEVELS if name.encode() == level]
        message = text.decode(errors="replace")
        if level == b"error":
            self.last_error = message.strip()
        for line in message.splitlines() or [""]:
            self._journal.write(known[0] if known else "info", f"{self.label}: {line}")

    async def _answer(self, kind: bytes, script: str, remote: Remote | None) -> None:
        """Run a command for the script, until the script stops it or goes away."""
        output = self._channel.take_descriptor()
        answer = ["status", "0"]

        async def run() -> None:
            if kind != b"remote":
                status = await run_shell(
                    script,
                    self._child_env,
                    stdout=output,
                    stderr=self._printed if kind == b"output" else output,
                    directory=self._directory,
                )
                answer[1] = str(status)
            elif remote is None:
                answer[:] = ["refused", "there is no job yet"]
            else:
                answer[1] = str(await remote(script, output))

        try:
            async with unwrapped() as nursery:
                nursery.start_soon(self._wait_for_stop, nursery.cancel_scope)
                try:
                    await run()
                except EngineError as error:
                    answer[:] = ["refused", str(error)]
                except OSError as error:
                    answer[:] = ["refused", _why(error)]
                nursery.cancel_scope.cancel()
        finally:
            os.close(output)
        await self._channel.send(*answer)

    async def _wait_for_stop(self, scope: trio.CancelScope) -> None:
        try:
            await self._channel.receive()
        except Hangup:
            pass  # `_serve` notices it
        scope.cancel()


def parse_frame(frame: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """Parse a worker's frame, or raise Hangup: a broken worker may send anything."""
    kind, *fields = frame
    count = _FIELDS.get(kind, -1)
    if count is not None and len(fields) != count:
        raise Hangup
    return kind, fields


@asynccontextmanager
async def working(
    subject: str,
    failure: type[ScrunError],
    settings: Lua,
    child_env: ChildEnv,
    directory: str,
    journal: Journal,
) -> AsyncIterator[Worker]:
    """Run a worker for as long as the block lasts.

    Errors are about `subject`, the script, or the file that names the scripts. `child_env` is that
    of `create`, for the scripts and their commands.
    """
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    environment = {"PATH": SYSTEM_PATH, **child_env.environment}
    worker_env = msgspec.structs.replace(child_env, environment=environment)
    argv = python_code(_PROGRAM, str(theirs.fileno()), str(settings.cpu_limit))
    worker: list[Worker] = []

    def printed(line: str) -> None:
        label = worker[0].label if worker else os.path.basename(subject)
        journal.write("info", f"{label}: {line}")

    try:
        async with messages(printed) as output, AsyncExitStack() as stack:
            with theirs:
                try:
                    process = await stack.enter_async_context(
                        child(
                            argv,
                            worker_env,
                            stdout=output,
                            stderr=output,
                            pass_fds=(theirs.fileno(),),
                            grace=_GRACE,
                            directory=directory,
                        )
                    )
                except OSError as error:
                    raise failure(f"{subject}: cannot be run: {_why(error)}") from error
            worker.append(
                Worker(subject, failure, channel, process, worker_env, directory, output, journal)
            )
            yield worker[0]
    finally:
        channel.close()


def _why(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def _death(status: int) -> str:
    """Describe how a worker ended that sent no reason."""
    if status == -SIGXCPU:
        return (
            "took too much processor time: is there an endless loop? "
            "(cpu_limit in the section [lua] of scrun.toml)"
        )
    return f"its process {its_end(status)}"
