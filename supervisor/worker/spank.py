"""Runs the scripts of a plugstack.conf, in the process of `supervisor.worker.main`.

Each context has a Lua runtime, as it has a process in Slurm: globals of one context do not exist
in another. Several contexts of a container share this process.

From the supervisor, besides the list in `supervisor.worker.main`::

    open  CONTEXT VERSION MEMORY OUTPUT-LIMIT SLURM-VERSION TRUSTED PATH...
    call  CONTEXT INDEX FUNCTION STATE
    back  CONTEXT INDEX FUNCTION VAL KIND ARGUMENT REMOTE STATE
    close CONTEXT

INDEX counts a context's scripts from 1, STATE is JSON (`items.state`). KIND is "" for an option
without argument. To the supervisor::

    opened SCRIPT...      each JSON: `error` and `trace`, or `functions`, `unknown` and `options`
    called FAILED ERROR TRACEBACK CHANGE...
           FAILED is the number that it has returned, or empty; CHANGE is `job+NAME=VALUE`,
           `job-NAME`, the same with `control`, or `option` and JSON
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

from scrun.settings.spank.callbacks import CALLBACKS
from scrun.supervisor.worker.main import Failed, Host, checked, flush, prelude, read_script
from scrun.supervisor.worker.runtime import LuaRuntime, Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrun.supervisor.worker.main import SupervisorEnd

_HERE = os.path.dirname(__file__)


class ScriptChanges:
    """Collects the changes that a script makes during a call, by functions for Lua."""

    def __init__(
        self, host: Host, table: Callable[[object], Value], *, own_environment: bool
    ) -> None:
        self._table = table
        self._host = host
        self._own = own_environment
        self.made: list[bytes] = []
        self.options: list[dict[str, object]] = []

    def functions(self) -> dict[str, object]:
        """Return the functions that spank.lua and posix.lua call."""
        return {
            "log": self._host.log,
            "set": self.set,
            "unset": self.unset,
            "register": self.register,
            "getenv": lambda name: os.environb.get(name),
            "id": lambda kind: getattr(os, "get" + kind.decode())(),
            "uname": _uname,
            "file": self._of_a_file,
            "syslog": _syslog,
        }

    def _of_a_file(self, name: bytes, *arguments: bytes) -> tuple[object, ...]:
        """Call a function of `posix.lua` about a file."""
        try:
            result = _OF_FILES[name.decode()](*arguments)
        except OSError as error:
            where = os.fsencode(error.filename) + b": " if error.filename else b""
            return None, where + (error.strerror or "").encode(), error.errno
        if isinstance(result, list):
            return (self._table(result),)
        return (0 if result is None else result,)

    def set(self, kind: bytes, name: bytes, value: bytes) -> None:
        if kind == b"job" and self._own:
            os.environb[name] = value
        self.made.append(kind + b"+" + name + b"=" + value)

    def unset(self, kind: bytes, name: bytes) -> None:
        if kind == b"job" and self._own:
            os.environb.pop(name, None)
        self.made.append(kind + b"-" + name)

    def register(
        self, name: bytes, usage: bytes, takes: int, argument: bytes, function: bytes, val: int
    ) -> None:
        fields = (name, usage, argument, function)
        texts = [text.decode(errors="replace") for text in fields]
        names = ("name", "usage", "argument", "function")
        option = {**dict(zip(names, texts, strict=True)), "takes": int(takes), "val": int(val)}
        self.options.append(option)

    def take(self) -> list[bytes]:
        """Return the changes since the last call."""
        taken = self.made + [b"option" + json.dumps(option).encode() for option in self.options]
        self.made, self.options = [], []
        return taken


class LuaContext:
    """The scripts in one context."""

    def __init__(self, supervisor: SupervisorEnd, orders: list[bytes]) -> None:
        context, version, memory, limit, slurm, trusted = orders
        self._count = 0
        self._trusted = trusted.decode()
        self._is_job_script = context == b"job_script"
        self._runtime = LuaRuntime(version.decode(), int(memory))
        host = Host(supervisor, int(limit))
        own = context in (b"allocator", b"local")
        self._changes = ScriptChanges(host, self._table, own_environment=own)
        *_, guarded, message, shown = prelude(self._runtime, host, "")
        functions = self._runtime.table(self._changes.functions())
        compiled = [self._compile(name) for name in ("spank.lua", "posix.lua")]
        (
            self._load, self._options_of, self._callbacks, self._begin, self._call,
            self._call_back, self._failed,
        ) = compiled[0](functions, guarded, message, shown, context, slurm)  # fmt: skip
        compiled[1](functions, shown)

    def _compile(self, name: str) -> Callable[..., Any]:
        with open(os.path.join(_HERE, name), "rb") as file:
            compiled: Callable[..., Any] = self._runtime.lua.compile(file.read(), name=b"=scrun")
            return compiled

    def load(self, path: bytes) -> bytes:
        self._begin(self._runtime.lua.table_from({}))
        self._count += 1
        index = self._count
        try:
            try:
                content, name = read_script(os.fsdecode(path), self._trusted)
            except Failed:
                self._load(b"", b"=nothing")  # to keep the numbers of the others
                raise
            checked(self._runtime, self._load(content, name))
            checked(self._runtime, self._options_of(index))
        except Failed as error:
            self._changes.take()
            return json.dumps({"error": error.reason, "trace": error.trace}).encode()
        found = {name.decode(errors="replace") for name in self._callbacks(index).values()}
        answer = {
            "functions": [name for name in CALLBACKS if name in found],
            "unknown": sorted(found.difference(CALLBACKS)),
            "options": self._changes.options,
        }
        self._changes.take()
        return json.dumps(answer).encode()

    def call(self, index: int, function: bytes, state: bytes) -> list[bytes]:
        arguments = self._tell(state)
        return self._result(lambda: self._call(index, function, arguments), of_option=False)

    def call_back(self, fields: list[bytes]) -> list[bytes]:
        index, function, val, kind, argument, remote, state = fields
        self._tell(state)
        given = argument if kind else None
        return self._result(
            lambda: self._call_back(int(index), function, int(val), given, remote == b"1"),
            of_option=True,
        )

    def _tell(self, state: bytes) -> Value:
        """Pass the state of a call to Lua; return the script's arguments."""
        values = json.loads(state)
        if self._is_job_script:
            os.environ.update(values["job"])  # as in a prolog
        arguments = values.pop("arguments")
        self._begin(self._table(values))
        return self._table(arguments)

    def _result(self, call: Callable[[], tuple[Value, ...]], *, of_option: bool) -> list[bytes]:
        failed, reason, trace = b"", "", ""
        try:
            failed = self._failed(checked(self._runtime, call()), of_option) or b""
        except Failed as error:
            reason, trace = error.reason, error.trace
        finally:
            flush()
        texts = [text.encode(errors="surrogateescape") for text in (reason, trace)]
        return [failed, *texts, *self._changes.take()]

    def _table(self, value: object) -> Value:
        if isinstance(value, str):
            return value.encode(errors="surrogateescape")
        if isinstance(value, list):
            return self._runtime.lua.table_from([self._table(entry) for entry in value])
        if isinstance(value, dict):
            members = {_key(name): self._table(member) for name, member in value.items()}
            return self._runtime.lua.table_from(members)
        return value


def _key(name: str) -> int | bytes:
    """Return the key of a table: JSON has only strings, and `=` marks a number."""
    if name.startswith("="):
        return int(name[1:])
    return name.encode(errors="surrogateescape")


def _uname(form: bytes) -> bytes:
    for letter, text in zip("snrvm", os.uname(), strict=True):
        form = form.replace(b"%" + letter.encode(), text.encode())
    return form


def _syslog(ident: bytes, level: float, text: bytes) -> None:
    import syslog

    syslog.openlog(ident.decode(errors="replace"), syslog.LOG_PID, syslog.LOG_USER)
    syslog.syslog(int(level) & 7, text.replace(b"\0", b"").decode(errors="replace"))


def _access(path: bytes, mode: bytes) -> None:
    wanted = {"f": os.F_OK, "r": os.R_OK, "w": os.W_OK, "x": os.X_OK}
    asked = sum(wanted.get(letter, 0) for letter in set(mode.decode(errors="replace")))
    if not os.access(path, asked):
        os.stat(path)
        raise OSError(13, os.strerror(13), path)


def _stat(path: bytes) -> list[object]:
    found = os.lstat(path)
    names = ("dev", "ino", "nlink", "uid", "gid", "size", "atime", "mtime", "ctime")
    numbers: list[object] = [int(getattr(found, f"st_{name}")) for name in names]
    letters = stat.filemode(found.st_mode)
    return [*numbers, _KINDS.get(letters[0], "?"), letters[1:]]


_KINDS = {
    "-": "regular", "d": "directory", "l": "link", "b": "block device", "c": "character device",
    "p": "fifo", "s": "socket",
}  # fmt: skip
_OF_FILES: dict[str, Callable[..., object]] = {
    "mkdir": os.mkdir,
    "rmdir": os.rmdir,
    "unlink": os.unlink,
    "chmod": lambda path, mode: os.chmod(path, int(mode)),
    "access": _access,
    "stat": _stat,
    "getcwd": os.getcwdb,
}


def serve_stack(supervisor: SupervisorEnd, request: list[bytes]) -> None:
    """Serve requests for contexts and their functions. Does not return."""
    contexts: dict[bytes, LuaContext] = {}
    while True:
        kind, name, *fields = request
        if kind == b"open":
            context = contexts[name] = LuaContext(supervisor, [name, *fields[:5]])
            supervisor.tell("opened", *[context.load(path) for path in fields[5:]])
        elif kind == b"call":
            index, function, state = fields
            supervisor.tell("called", *contexts[name].call(int(index), function, state))
        elif kind == b"back":
            supervisor.tell("called", *contexts[name].call_back(fields))
        else:
            contexts.pop(name, None)
        request = supervisor.hear()
