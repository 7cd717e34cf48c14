"""The program of the Lua worker: one Lua runtime on its only thread.

This is a process and not a thread of the supervisor, because nothing can stop a script that loops
in one of Lua's C functions or waits for a FIFO, but a process can be killed. What a script changes
(working directory, locale, open files, memory) ends with the process.

It talks to the supervisor (`supervisor.scripts.host`) on a socket, in frames of
`scrun.protocol.wire`. From the supervisor::

    load   VERSION MEMORY OUTPUT_LIMIT SCRIPT CLUSTER TRUSTED
    call   FUNCTION BUNDLE ROOT COUNT ARGUMENT... NAME=VALUE...
           with the original paths; ARGUMENT is n:DIGITS, s:TEXT, or e: for the list of variables
    status EXIT-STATUS    the answer to a command
    refused REASON        the answer to a command that was not run

TRUSTED are uids, separated by commas (see `scrun.core.paths.replaceable`).
To it::

    log     LEVEL TEXT
    command TEXT          with the descriptor for its output; also `output`, without its
                                                standard error, and `remote`, on the job's nodes
    stop                  the command's output is too long
    loaded  MISSING-FUNCTION...
    done    BUNDLE ROOT   the paths that the script set, or empty
    failed  TEXT TRACEBACK

A command's output comes through a pipe, not through the supervisor. The program imports little, as
each container starts it.
"""

from __future__ import annotations

import io
import math
import os
import re
import resource
import select
import socket
import sys
import time
from typing import TYPE_CHECKING

from scrun.core.paths import read_trusted
from scrun.core.rights import send_fds
from scrun.protocol.wire import frame
from scrun.supervisor.worker.constants import OF_JOBS, SUCCESS, USUAL, errors
from scrun.supervisor.worker.modules import advice
from scrun.supervisor.worker.runtime import LuaRuntime, Value

if TYPE_CHECKING:
    from collections.abc import Callable

_FUNCTIONS = ("slurm_scrun_stage_in", "slurm_scrun_stage_out")
_PRELUDE = os.path.join(os.path.dirname(__file__), "prelude.lua")
_PIECE = 1 << 20
_LONGEST_TEXT = 1 << 17
_LONGEST_COMMAND = _LONGEST_TEXT - 1  # execve(2): MAX_ARG_STRLEN, which includes the NUL
_LONGEST_PATH = 4095
# After a command's end, a process that left its group may keep the pipe open. Its output is read
# until a pause of so many milliseconds, and for at most so many seconds.
_SILENCE = 100
_STRAGGLERS = 1.0


UNLIMITED = -1
NOT_A_TIME = -2
_DAYS = re.compile(r"(\d+)-(?:(\d+)(?::(\d+)(?::(\d+))?)?)?", re.ASCII)
_CLOCK = re.compile(r"(\d+)(?::(\d+)(?::(\d+))?)?", re.ASCII)
_DIGITS = 9  # in a number: more would not fit into Slurm's 32 bits


class Failed(Exception):
    """A script failed; has the reason, and Lua's traceback."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.trace = trace


class SupervisorEnd:
    """The other end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)

    def tell(self, *fields: str | bytes, fd: int | None = None) -> None:
        texts = [field if isinstance(field, bytes) else _encoded(field) for field in fields]
        # NUL separates the fields, and a frame has a limit
        data = frame([_shortened(text).replace(b"\0", b"\\0") for text in texts])
        if fd is not None:
            data = data[send_fds(self._sock, data, [fd]) :]
        self._sock.sendall(data)

    def hear(self) -> list[bytes]:
        """Wait for a frame. Without a supervisor the process ends."""
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
        """Return a poll object for a descriptor and the socket."""
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.register(self._sock, select.POLLIN)
        return poller

    def is_me(self, fd: int) -> bool:
        """Return whether a polled descriptor is the socket."""
        return fd == self._sock.fileno()


class Host:
    """The functions that the prelude calls."""

    def __init__(self, supervisor: SupervisorEnd, output_limit: int) -> None:
        self._supervisor = supervisor
        self._limit = output_limit
        self.paths = {b"bundle": b"", b"root": b""}
        self.originals = {b"bundle": b"", b"root": b""}
        self.last_error = ""

    def log(self, level: bytes, text: bytes) -> None:
        if level == b"error":
            self.last_error = text.decode(errors="replace")
        self._supervisor.tell("log", level, text)

    def set_path(self, which: bytes, path: bytes) -> tuple[bytes | None, bytes]:
        if b"\0" in path:
            return b"a path cannot contain a NUL", b""
        if len(path) > _LONGEST_PATH:
            return b"a path cannot have more than %d bytes" % _LONGEST_PATH, b""
        self.paths[which] = path
        return None, self.originals[which]

    def minutes(self, text: bytes) -> int:
        return minutes(text.decode(errors="replace"))

    def run(self, kind: bytes, script: bytes) -> tuple[bytes | None, int, bytes]:
        """Run a shell script; return an error or None, its exit status, and its output."""
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
        """Read a command's output until it or the command ends; return None if it is too long."""
        output = io.BytesIO()  # unlike a bytearray's, its value is not copied
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
    """A loaded script, and the functions that are missing."""

    def __init__(self, supervisor: SupervisorEnd, orders: list[bytes]) -> None:
        """Load it; raise Failed if that fails."""
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
        """Call one of its functions; return the new paths of the bundle and the root.

        Failed if it raised an error, or did not return slurm.SUCCESS.
        """
        self._host.originals.update(zip((b"bundle", b"root"), originals, strict=True))
        self._host.last_error = ""
        values = [
            # from 1; Slurm's scrun begins at 0, so that ipairs loses the first entry
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
        error = self._host.last_error
        return f"{what}: {error}" if error else f"{what}, not slurm.SUCCESS"

    def _shown(self, result: Value) -> str:
        if result is None:
            return "nothing"
        if isinstance(result, (bool, int, float)):
            return str(result).lower()
        if isinstance(result, bytes):
            return repr(result.decode(errors="replace"))
        return f"a {self._runtime.type_name(result)}"


def prelude(runtime: LuaRuntime, host: Host, cluster: str) -> tuple[Callable[..., Value], ...]:
    """Run the prelude; return its functions (see the end of prelude.lua)."""
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
        runtime.table({**errors(), **OF_JOBS, **USUAL, "CLUSTER_NAME": cluster.encode()}),
        runtime.table(install(runtime)._asdict()),
        # not guarded: the guard itself uses these
        runtime.room,
        runtime.limit,
    )
    return loaded


def read_script(path: str, trusted: str) -> tuple[bytes, bytes]:
    """Return a script's text, and its name for Lua's messages.

    The `trusted` may own it, besides root and the user of this process.
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
    """Return the result of a guarded call; Failed if that raised an error."""
    if not results[0]:
        reason, trace = (bytes(text or b"").decode(errors="replace") for text in results[1:3])
        raise Failed(reason + advice(reason, runtime.version), trace)
    return results[1]


def flush() -> None:
    """Flush the C library's buffers: a script may have left files open, and we will be killed."""
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


def serve(supervisor: SupervisorEnd) -> None:
    """Serve the supervisor's requests; the first one determines the kind of script."""
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
    """Serve the supervisor through the inherited socket."""
    number, processor_time = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = int(processor_time)
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if most < 0 else min(wanted, most), most))
    supervisor = SupervisorEnd(socket.socket(fileno=int(number)))
    try:
        serve(supervisor)
    except Failed as error:
        supervisor.tell("failed", error.reason, error.trace)
    except Exception as error:  # of lupa itself, for example out of memory
        supervisor.tell("failed", f"{type(error).__name__}: {error}", "")


def minutes(text: str) -> int:
    """Parse a time span as described for `slurm.time_str2mins` in scrun(1), to minutes.

    The formats are `days-[hours[:minutes[:seconds]]]`, `hours:minutes:seconds`,
    `minutes[:seconds]`, `-1`, `INFINITE` and `UNLIMITED`; words in any case. Seconds round up.
    Returns `NOT_A_TIME` for anything else.
    """
    if text.upper() in ("-1", "INFINITE", "UNLIMITED"):
        return UNLIMITED
    if max(map(len, re.findall(r"\d+", text)), default=0) > _DIGITS:
        return NOT_A_TIME
    if found := _DAYS.fullmatch(text):
        days, hours, mins, seconds = (int(part or 0) for part in found.groups())
    elif found := _CLOCK.fullmatch(text):
        first, second, third = found.groups()
        days = 0
        hours, mins, seconds = (
            (int(first), int(second), int(third)) if third else (0, int(first), int(second or 0))
        )
    else:
        return NOT_A_TIME
    return (days * 24 + hours) * 60 + mins + -(-seconds // 60)
