"""A scrun.lua at work: the program of a child process with one Lua runtime on its one thread.

Why a process and not a thread of the supervisor: nothing can stop a script that loops inside of
one of Lua's C functions or waits for a FIFO, but a process can be killed. And what a script
changes (working directory, locale, open files, memory) goes with it.

It talks with the supervisor (`supervisor.lua.host`) on a socket, in the frames of `scrun.wire`.
From the supervisor::

    load   VERSION MEMORY OUTPUT_LIMIT SCRIPT CLUSTER
    call   FUNCTION BUNDLE ROOT COUNT ARGUMENT... NAME=VALUE...
           with the original paths; ARGUMENT is n:DIGITS, s:TEXT, or e: for the list of variables
    status EXIT-STATUS    the answer to a command
    refused REASON        likewise

To it::

    log     LEVEL TEXT
    command TEXT          beside it the descriptor of its output; likewise `output`, without
                          its standard error, and `remote`, on the job's nodes
    stop                  the command's output is too long
    loaded
    done    BUNDLE ROOT   what the script has set, or empty
    failed  TEXT TRACEBACK

The output of a command comes to us by a pipe, not through the supervisor. Imports little, as it
is started for each container.
"""

from __future__ import annotations

import importlib
import os
import resource
import select
import socket
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from scrun.wire import frame
from supervisor.lua.times import minutes

if TYPE_CHECKING:
    from collections.abc import Callable

# lupa has no types
Runtime = Any
Value = Any

SUCCESS = 0
CONSTANTS: dict[str, int | float] = {
    "SUCCESS": SUCCESS,
    "success": SUCCESS,
    "ERROR": -1,
    "FAILURE": -1,
    "NO_VAL": 0xFFFFFFFE,
    "NO_VAL8": 0xFE,
    "NO_VAL16": 0xFFFE,
    "NO_VAL64": float(0xFFFFFFFFFFFFFFFE),  # as Slurm has it: a number of Lua 5.1
    "INFINITE": 0xFFFFFFFF,
    "INFINITE8": 0xFF,
    "INFINITE16": 0xFFFF,
    "INFINITE64": float(0xFFFFFFFFFFFFFFFF),
}
_FUNCTIONS = ("slurm_scrun_stage_in", "slurm_scrun_stage_out")
_PRELUDE = os.path.join(os.path.dirname(__file__), "prelude.lua")
_PIECE = 1 << 20
_STRAGGLERS = 100  # ms without output after a command's end: whoever still holds the pipe keeps it


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
        data = frame([text.replace(b"\0", b"\\0") for text in texts])  # NUL parts the fields
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
    """What the prelude calls. Nothing here raises: Lua would see a Python object."""

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

    def set_path(self, which: bytes, path: bytes) -> bytes:
        """Note a new path; return the original one."""
        self.paths[which] = path
        return self.originals[which]

    def minutes(self, text: bytes) -> int:
        """Read a time span."""
        return minutes(text.decode(errors="replace"))

    def run(self, kind: bytes, script: bytes) -> tuple[bytes | None, int, bytes]:
        """Run a shell script; return why not, or its exit status and its output."""
        if b"\0" in script:
            return b"a command cannot contain a NUL", 0, b""
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
            return b"more than %d bytes of output: write it to a file" % self._limit, 0, b""
        return None, int(answer[1]), bytes(output)

    def _read(self, readable: int) -> bytearray | None:
        """Read a command's output, to its end or the command's; None when it is too long."""
        output = bytearray()
        poller = self._supervisor.poll(readable)
        patience: int | None = None
        while events := poller.poll(patience):
            if all(self._supervisor.is_me(fd) for fd, _ in events):
                poller = select.poll()  # the command has ended: what is there now is all
                poller.register(readable, select.POLLIN)
                patience = _STRAGGLERS
                continue
            part = os.read(readable, _PIECE)
            if not part:
                break
            output += part
            if len(output) > self._limit:
                self._supervisor.tell("stop")
                return None
        return output


class Script:
    """A loaded script."""

    def __init__(self, supervisor: Supervisor, orders: list[bytes]) -> None:
        """Load it.

        Raises:
            Failed: It cannot be.
        """
        version, memory, limit, path, cluster = (os.fsdecode(field) for field in orders)
        self._host = Host(supervisor, int(limit))
        self._runtime = new_runtime(version, int(memory))
        load, self._call, is_function = _prelude(self._runtime, self._host, cluster)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise Failed(f"{path}: {error.strerror}") from error
        if content.startswith(b"#"):
            content = b"--" + content  # as lua(1) does
        name = "@" + os.path.basename(path)
        result = _checked(load(content, name.encode()))
        if result is not None and not _is_success(result):
            raise Failed(self._reason(f"the script returned {_shown(result)}"))
        for function in _FUNCTIONS:
            if not is_function(function.encode()):
                raise Failed(f"function {function} is missing")

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
            self._runtime.table_from(environment) if argument == b"e:" else _argument(argument)
            for argument in arguments
        ]
        result = _checked(self._call(function.encode(), *values))
        if not _is_success(result):
            raise Failed(self._reason(f"{function} returned {_shown(result)}"))
        return [self._host.paths[b"bundle"], self._host.paths[b"root"]]

    def _reason(self, what: str) -> str:
        said = self._host.last_error
        return f"{what}: {said}" if said else f"{what}, not slurm.SUCCESS"


def new_runtime(version: str, memory: int) -> Runtime:
    """Make a Lua runtime without a way into Python.

    Args:
        version: "5.1" to "5.5".
        memory: How much it may take, in bytes.
    """
    lupa = importlib.import_module("lupa.lua" + version.replace(".", ""))

    def nothing(owner: object, name: object, setting: bool) -> NoReturn:
        raise AttributeError("no way to Python")

    return lupa.LuaRuntime(
        encoding=None,
        source_encoding="utf-8",
        register_eval=False,
        register_builtins=False,
        unpack_returned_tuples=True,
        attribute_filter=nothing,
        max_memory=memory,
    )


def _prelude(runtime: Runtime, host: Host, cluster: str) -> tuple[Callable[..., Any], ...]:
    """Run the prelude; return its functions for loading, calling and asking."""
    from supervisor.lua.documents import install

    functions = {"log": host.log, "run": host.run, "set_path": host.set_path}
    tables: list[dict[str, Any]] = [
        {**functions, "minutes": host.minutes},
        {**CONSTANTS, "CLUSTER_NAME": cluster.encode()},
        install(runtime)._asdict(),
    ]
    with open(_PRELUDE, "rb") as file:
        prelude = runtime.compile(file.read(), name=b"=scrun")
    loaded: tuple[Callable[..., Any], ...] = prelude(
        *(
            runtime.table_from({name.encode(): value for name, value in table.items()})
            for table in tables
        )
    )
    return loaded


def _checked(results: tuple[Value, ...]) -> Value:
    """Return what a guarded call returned.

    Raises:
        Failed: It raised an error.
    """
    if not results[0]:
        reason, trace = (bytes(text or b"").decode(errors="replace") for text in results[1:3])
        raise Failed(reason, trace)
    return results[1]


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _is_success(result: object) -> bool:
    return result == SUCCESS and not isinstance(result, bool)


def _shown(result: object) -> str:
    if result is None:
        return "nothing"
    if isinstance(result, (bool, int, float)):
        return str(result).lower()
    return repr(bytes(result).decode(errors="replace")) if isinstance(result, bytes) else "a table"


def _argument(field: bytes) -> int | bytes:
    kind, _, text = field.partition(b":")
    return int(text) if kind == b"n" else text


def serve(supervisor: Supervisor) -> None:
    """Load the script, then call its functions as they are asked for.

    Raises:
        Failed: The script did.
    """
    script = Script(supervisor, supervisor.hear()[1:])
    supervisor.tell("loaded")
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
