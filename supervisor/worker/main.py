"""A scrun.lua at work: the program of a child process with one Lua runtime on its one thread.

Why a process and not a thread of the supervisor: nothing can stop a script that loops inside of
one of Lua's C functions or waits for a FIFO, but a process can be killed. And what a script
changes (working directory, locale, open files, memory) goes with it.

It talks with the supervisor (`supervisor.scripts.host`) on a socket, in the frames of
`scrun.protocol.wire`. From the supervisor::

    load   VERSION MEMORY OUTPUT_LIMIT SCRIPT CLUSTER TRUSTED
    call   FUNCTION BUNDLE ROOT COUNT ARGUMENT... NAME=VALUE...
           with the original paths; ARGUMENT is n:DIGITS, s:TEXT, or e: for the list of variables
    status EXIT-STATUS    the answer to a command
    refused REASON        likewise

TRUSTED are uids, with commas between them (see `scrun.core.paths.replaceable`).
To it::

    log     LEVEL TEXT
    command TEXT          beside it the descriptor of its output; likewise `output`, without
                          its standard error, and `remote`, on the job's nodes
    stop                  the command's output is too long
    loaded  MISSING-FUNCTION...
    done    BUNDLE ROOT   what the script has set, or empty
    failed  TEXT TRACEBACK

The output of a command comes to us by a pipe, not through the supervisor. Imports little, as it
is started for each container.
"""

from __future__ import annotations

import io
import math
import os
import resource
import select
import socket
import sys
import time
from typing import TYPE_CHECKING

from scrun.core.paths import read_trusted
from scrun.protocol.wire import frame
from scrun.supervisor.worker.constants import ERRORS, OF_JOBS, SUCCESS, USUAL
from scrun.supervisor.worker.modules import advice
from scrun.supervisor.worker.runtime import LuaRuntime, Value
from scrun.supervisor.worker.times import minutes

if TYPE_CHECKING:
    from collections.abc import Callable

_FUNCTIONS = ("slurm_scrun_stage_in", "slurm_scrun_stage_out")
_PRELUDE = os.path.join(os.path.dirname(__file__), "prelude.lua")
_PIECE = 1 << 20
_LONGEST_TEXT = 1 << 17
_LONGEST_COMMAND = _LONGEST_TEXT - 1  # execve(2): MAX_ARG_STRLEN, of which one byte is the NUL
_LONGEST_PATH = 4095
# After a command's end a process that left its group may keep the pipe. It is heard until there
# are so many milliseconds without output, and no longer than so many seconds.
_SILENCE = 100
_STRAGGLERS = 1.0


class Failed(Exception):
    """The script failed; the reason, and Lua's traceback."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.trace = trace


class Supervisor:
    """The other end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)

    def tell(self, *fields: str | bytes, fd: int | None = None) -> None:
        """Send a frame."""
        texts = [field if isinstance(field, bytes) else _encoded(field) for field in fields]
        # NUL parts the fields, and a frame has a limit
        data = frame([_shortened(text).replace(b"\0", b"\\0") for text in texts])
        if fd is not None:
            sent = socket.send_fds(self._sock, [data], [fd])
            data = data[sent:]
        self._sock.sendall(data)

    def hear(self) -> list[bytes]:
        """Wait for a frame. Whose supervisor is gone goes too."""
        length = int.from_bytes(self._exactly(4), "big")
        return self._exactly(length).split(b"\0")

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._file.read(count - len(data))
            if not part:
                os._exit(1)
            data += part
        return data

    def poll(self, fd: int) -> select.poll:
        """Return a poll of a descriptor and of our own socket."""
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.register(self._sock, select.POLLIN)
        return poller

    def is_me(self, fd: int) -> bool:
        """Whether a polled descriptor is our own."""
        return fd == self._sock.fileno()


class Host:
    """What the prelude calls."""

    def __init__(self, supervisor: Supervisor, output_limit: int) -> None:
        self._supervisor = supervisor
        self._limit = output_limit
        self.paths = {b"bundle": b"", b"root": b""}
        self.originals = {b"bundle": b"", b"root": b""}
        self.last_error = ""

    def log(self, level: bytes, text: bytes) -> None:
        """Pass a message on."""
        if level == b"error":
            self.last_error = text.decode(errors="replace")
        self._supervisor.tell("log", level, text)

    def set_path(self, which: bytes, path: bytes) -> tuple[bytes | None, bytes]:
        """Note a new path; return why not, or the original one."""
        if b"\0" in path:
            return b"a path cannot contain a NUL", b""
        if len(path) > _LONGEST_PATH:
            return b"a path cannot have more than %d bytes" % _LONGEST_PATH, b""
        self.paths[which] = path
        return None, self.originals[which]

    def minutes(self, text: bytes) -> int:
        """Read a time span."""
        return minutes(text.decode(errors="replace"))

    def run(self, kind: bytes, script: bytes) -> tuple[bytes | None, int, bytes]:
        """Run a shell script; return why not, or its exit status and its output."""
        if b"\0" in script:
            return b"a command cannot contain a NUL", 0, b""
        if len(script) > _LONGEST_COMMAND:
            words = b"a command cannot have more than %d bytes: write it to a file, and run that"
            return words % _LONGEST_COMMAND, 0, b""
        readable, writable = os.pipe()
        try:
            self._supervisor.tell(kind, script, fd=writable)
        finally:
            os.close(writable)
        try:
            output = self._read(readable)
        finally:
            os.close(readable)
        answer = self._supervisor.hear()
        if answer[0] == b"refused":
            return answer[1], 0, b""
        if output is None:
            size = self._limit >> 20
            words = b"more than %d MiB of output (output_limit in the section [lua] of scrun.toml)"
            return words % size + b": write it to a file", 0, b""
        return None, int(answer[1]), output

    def _read(self, readable: int) -> bytes | None:
        """Read a command's output, to its end or the command's; None when it is too long."""
        output = io.BytesIO()  # its value is not copied, a bytearray's would be
        poller = self._supervisor.poll(readable)
        deadline, patience = math.inf, None
        while time.monotonic() < deadline and (events := poller.poll(patience)):
            if all(self._supervisor.is_me(fd) for fd, _ in events):
                poller = select.poll()  # the command has ended
                poller.register(readable, select.POLLIN)
                deadline, patience = time.monotonic() + _STRAGGLERS, _SILENCE
                continue
            part = os.read(readable, _PIECE)
            if not part:
                break
            output.write(part)
            if output.tell() > self._limit:
                self._supervisor.tell("stop")
                return None
        return output.getvalue()


class WorkerScript:
    """A loaded script.

    Attributes:
        missing: The functions that it does not define.
    """

    def __init__(self, supervisor: Supervisor, orders: list[bytes]) -> None:
        """Load it.

        Raises:
            Failed: It cannot be.
        """
        version, memory, limit, path, cluster, trusted = (os.fsdecode(field) for field in orders)
        self._host = Host(supervisor, int(limit))
        self._runtime = LuaRuntime(version, int(memory))
        load, self._call, is_function, *_ = prelude(self._runtime, self._host, cluster)
        result = checked(self._runtime, load(*read_script(path, trusted)))
        if result is not None and not _is_success(result):
            raise Failed(self._reason(f"the script returned {self._shown(result)}"))
        self.missing = [name for name in _FUNCTIONS if not is_function(name.encode())]

    def call(
        self,
        function: str,
        arguments: list[bytes],
        originals: list[bytes],
        environment: list[bytes],
    ) -> list[bytes]:
        """Call one of its functions; return the bundle's and the root's new path.

        Raises:
            Failed: It raised an error, or did not return slurm.SUCCESS.
        """
        self._host.originals.update(zip((b"bundle", b"root"), originals, strict=True))
        self._host.last_error = ""
        values = [
            # from 1: it begins at 0 in Slurm's scrun, so that ipairs loses the first one
            self._runtime.lua.table_from(environment) if argument == b"e:" else _argument(argument)
            for argument in arguments
        ]
        try:
            result = checked(self._runtime, self._call(function.encode(), *values))
        finally:
            flush()
        if not _is_success(result):
            raise Failed(self._reason(f"{function} returned {self._shown(result)}"))
        return [self._host.paths[b"bundle"], self._host.paths[b"root"]]

    def _reason(self, what: str) -> str:
        said = self._host.last_error
        return f"{what}: {said}" if said else f"{what}, not slurm.SUCCESS"

    def _shown(self, result: Value) -> str:
        if result is None:
            return "nothing"
        if isinstance(result, (bool, int, float)):
            return str(result).lower()
        if isinstance(result, bytes):
            return repr(result.decode(errors="replace"))
        return f"a {self._runtime.type_name(result)}"


def prelude(runtime: LuaRuntime, host: Host, cluster: str) -> tuple[Callable[..., Value], ...]:
    """Run the prelude; return its functions for loading, calling and asking, and its own."""
    from scrun.supervisor.worker.documents import install

    functions: dict[str, object] = {
        "log": host.log,
        "run": host.run,
        "set_path": host.set_path,
        "minutes": host.minutes,
    }
    with open(_PRELUDE, "rb") as file:
        chunk = runtime.lua.compile(file.read(), name=b"=scrun")
    loaded: tuple[Callable[..., Value], ...] = chunk(
        runtime.table(functions),
        runtime.table({**ERRORS, **OF_JOBS, **USUAL, "CLUSTER_NAME": cluster.encode()}),
        runtime.table(install(runtime)._asdict()),
        # not guarded: these are what the guard is made of
        runtime.room,
        runtime.limit,
    )
    return loaded


def read_script(path: str, trusted: str) -> tuple[bytes, bytes]:
    """Return a script's text, and what Lua calls it in messages.

    Args:
        path: Where it is.
        trusted: The uids of those who may have written it, besides root's and ours.

    Raises:
        Failed: It cannot be read, or somebody else could have written it.
    """
    try:
        content = read_trusted(path, [int(uid) for uid in trusted.split(",") if uid])
    except OSError as error:
        raise Failed(error.strerror or str(error)) from error
    content = content.removeprefix(b"\xef\xbb\xbf")
    if content.startswith(b"#"):
        content = b"--" + content  # as lua(1) does
    return content, b"@" + os.fsencode(os.path.basename(path))


def checked(runtime: LuaRuntime, results: tuple[Value, ...]) -> Value:
    """Return what a guarded call has returned in a runtime.

    Raises:
        Failed: It raised an error.
    """
    if not results[0]:
        reason, trace = (bytes(text or b"").decode(errors="replace") for text in results[1:3])
        raise Failed(reason + advice(reason, runtime.version), trace)
    return results[1]


def flush() -> None:
    """Write out what the C library holds back.

    A script may have left files open; soon we are killed.
    """
    import ctypes

    ctypes.CDLL(None).fflush(None)


def _shortened(text: bytes) -> bytes:
    if len(text) <= _LONGEST_TEXT:
        return text
    return text[:_LONGEST_TEXT] + b"... (%d bytes)" % len(text)


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _is_success(result: object) -> bool:
    return result == SUCCESS and not isinstance(result, bool)


def _argument(field: bytes) -> int | bytes:
    kind, _, text = field.partition(b":")
    return int(text) if kind == b"n" else text


def serve(supervisor: Supervisor) -> None:
    """Do what the supervisor asks for; the first request says for which kind of script.

    Raises:
        Failed: The script did.
    """
    request = supervisor.hear()
    if request[0] != b"load":
        from scrun.supervisor.worker.spank import serve_stack

        serve_stack(supervisor, request)
    script = WorkerScript(supervisor, request[1:])
    supervisor.tell("loaded", *script.missing)
    while True:
        function, bundle, root, count, *rest = supervisor.hear()[1:]
        arguments, environment = rest[: int(count)], rest[int(count) :]
        for entry in environment:
            name, _, value = entry.partition(b"=")
            os.environb[name] = value  # for os.getenv
        paths = script.call(os.fsdecode(function), arguments, [bundle, root], environment)
        supervisor.tell("done", *paths)


def main() -> None:
    """Serve the supervisor that has the other end of the socket whose number is given."""
    number, _, processor_time = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = int(processor_time)
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if most < 0 else min(wanted, most), most))
    supervisor = Supervisor(socket.socket(fileno=int(number)))
    try:
        serve(supervisor)
    except Failed as error:
        supervisor.tell("failed", error.reason, error.trace)
    except Exception as error:  # of lupa itself: no memory, for one
        supervisor.tell("failed", f"{type(error).__name__}: {error}", "")
