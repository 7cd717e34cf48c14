"""The supervisor's side of a scrun.lua: starts its worker, and does what the script asks for.

The commands of a script are children of ours, in the container's nursery tree: whoever cancels
that ends them, with all of their process group, before the script ends.
"""

import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from signal import SIGKILL, SIGXCPU, Signals
from typing import get_args

import trio

from scrun.errors import EngineError, StagingError
from scrun.settings.load import Level, Lua
from supervisor.journal import Journal
from supervisor.lua.channel import Channel, Hangup
from supervisor.processes import SYSTEM_PATH, Child, Setting, child, run_shell
from supervisor.pumps import messages

Remote = Callable[[str, int], Awaitable[int]]
"""Runs a shell script on all nodes of the job, with its output to a descriptor; returns the
highest exit status."""

_LOADING = 30.0
_GRACE = 0.5
_DYING = 1.0
_LEVELS: tuple[Level, ...] = get_args(Level)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PROGRAM = """import sys
sys.path[:0] = [sys.argv[2]]
from supervisor.lua.worker import main
main()"""


class Script:
    """A loaded script, in its worker.

    Attributes:
        path: Where it is.
        missing: The functions that it does not define.
    """

    def __init__(
        self,
        path: str,
        channel: Channel,
        worker: Child,
        setting: Setting,
        directory: str,
        printed: int,
        journal: Journal,
    ) -> None:
        """Describe one that is not loaded yet.

        Args:
            path: The script.
            channel: Our end of the socket to its worker.
            worker: The worker.
            setting: Environment and umask for its commands.
            directory: Where they work.
            printed: The descriptor of the worker's standard output and error.
            journal: Where messages go.
        """
        self.path = path
        self.missing: tuple[str, ...] = ()
        self._channel = channel
        self._worker = worker
        self._setting = setting
        self._directory = directory
        self._printed = printed
        self._journal = journal

    async def load(self, settings: Lua, cluster: str) -> None:
        """Load it, and find out what it lacks.

        Raises:
            StagingError: It cannot be, or did not return slurm.SUCCESS.
        """
        with trio.move_on_after(_LOADING):
            numbers = str(settings.memory << 20), str(settings.output_limit << 20)
            try:
                await self._channel.send("load", settings.version, *numbers, self.path, cluster)
            except Hangup:
                pass  # `_serve` says why
            missing = await self._serve(b"loaded", None)
            self.missing = tuple(os.fsdecode(name) for name in missing)
            return
        raise self._failure(f"was not loaded within {_LOADING:g} s")

    def check_complete(self) -> None:
        """Refuse a script that lacks a function.

        Raises:
            StagingError: It does.
        """
        if len(self.missing) == 1:
            raise self._failure(f"function {self.missing[0]} is missing")
        if self.missing:
            raise self._failure(f"functions {' and '.join(self.missing)} are missing")

    async def call(
        self,
        function: str,
        arguments: Sequence[str | int | None],
        originals: tuple[str, str],
        environment: Mapping[str, str],
        remote: Remote,
    ) -> tuple[str, str]:
        """Call one of its functions.

        Args:
            function: Its name.
            arguments: Texts and numbers; None is the list of the variables.
            originals: The bundle and its root file system, for what set_*_path return.
            environment: The job's variables, for its commands too.
            remote: Runs remote_command.

        Returns:
            What it gave to set_bundle_path and set_root_path, or empty.

        Raises:
            StagingError: It failed; with its reason.
        """
        entries = [f"{name}={value}" for name, value in environment.items()]
        # a name may come from config.json, where it can be anything
        entries = [entry for entry in entries if entry[0] != "=" and "\0" not in entry]
        words = [_field(argument) for argument in arguments]
        variables = dict(entry.split("=", 1) for entry in entries)
        merged = {**self._setting.environment, **variables}
        self._setting = Setting(merged, self._setting.umask)
        try:
            await self._channel.send(
                "call", function, *originals, str(len(words)), *words, *entries
            )
        except Hangup:
            pass
        bundle, root = await self._serve(b"done", remote)
        return os.fsdecode(bundle), os.fsdecode(root)

    async def _serve(self, until: bytes, remote: Remote | None) -> list[bytes]:
        """Do what the script asks for until it says a word; return what comes with that."""
        try:
            while True:
                kind, fields = understood(await self._channel.receive())
                if kind == until:
                    return fields
                if kind == b"log":
                    self._log(*fields)
                elif kind == b"failed":
                    reason, trace = (field.decode(errors="replace") for field in fields)
                    if trace.strip():
                        self._journal.write("debug", trace)
                    raise self._failure(reason)
                elif kind in (b"command", b"output", b"remote"):
                    await self._answer(kind, os.fsdecode(fields[0]), remote)
        except Hangup:
            with trio.move_on_after(_DYING):
                await self._worker.wait()
            # what still runs says what is no frame
            raise self._failure(_death(await self._worker.end(grace=0, by=SIGKILL))) from None

    def _log(self, level: bytes, text: bytes) -> None:
        known = [name for name in _LEVELS if name.encode() == level]
        for line in text.decode(errors="replace").splitlines() or [""]:
            self._journal.write(known[0] if known else "info", f"scrun.lua: {line}")

    async def _answer(self, kind: bytes, script: str, remote: Remote | None) -> None:
        """Run a command for the script; a script that goes away, or has enough, ends it."""
        output = self._channel.take_descriptor()
        answer = ["status", "0"]

        async def run() -> None:
            if kind != b"remote":
                status = await run_shell(
                    script,
                    self._setting,
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
            async with trio.open_nursery() as nursery:
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
            pass  # the next frame will not come either, and that is seen then
        scope.cancel()

    def _failure(self, reason: str) -> StagingError:
        return StagingError(f"{self.path}: {reason}")


_FIELDS = {b"command": 1, b"output": 1, b"remote": 1, b"log": 2, b"failed": 2, b"done": 2}


def understood(frame: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """Take a worker's frame apart. `stop` means nothing when its command has just ended.

    Raises:
        Hangup: It is none of a worker's; a broken one may say anything.
    """
    kind, *fields = frame
    if kind not in (b"loaded", b"stop") and len(fields) != _FIELDS.get(kind):
        raise Hangup
    return kind, fields


@asynccontextmanager
async def loaded(
    path: str,
    settings: Lua,
    setting: Setting,
    directory: str,
    journal: Journal,
    cluster: str = "",
    *,
    complete: bool = True,
) -> AsyncIterator[Script]:
    """Load a script, for as long as the block lasts.

    Args:
        path: The script.
        settings: The section [lua] of the settings.
        setting: The environment and umask of `create`, for the script and its commands.
        directory: `create`'s working directory, likewise.
        journal: Where messages go, and what the script prints.
        cluster: For slurm.CLUSTER_NAME.
        complete: Whether it must have both functions.

    Raises:
        StagingError: It cannot be loaded, or lacks a function.
    """
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    environment = {"PATH": SYSTEM_PATH, **setting.environment}
    surroundings = Setting(environment, setting.umask)
    site = ["-S"] if sys.flags.no_site else []
    number = str(theirs.fileno())
    argv = [sys.executable, "-I", *site, "-c", _PROGRAM, number, _PACKAGE, str(settings.cpu_limit)]

    def printed(line: str) -> None:
        journal.write("info", f"scrun.lua: {line}")

    try:
        async with messages(printed) as output, AsyncExitStack() as stack:
            with theirs:
                try:
                    worker = await stack.enter_async_context(
                        child(
                            argv,
                            surroundings,
                            stdout=output,
                            stderr=output,
                            pass_fds=(theirs.fileno(),),
                            grace=_GRACE,
                            directory=directory,
                        )
                    )
                except OSError as error:
                    raise StagingError(f"{path}: cannot be run: {_why(error)}") from error
            script = Script(path, channel, worker, surroundings, directory, output, journal)
            await script.load(settings, cluster)
            if complete:
                script.check_complete()
            yield script
    finally:
        channel.close()


def _why(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def _field(argument: str | int | None) -> str:
    if argument is None:
        return "e:"
    return f"n:{argument}" if isinstance(argument, int) else f"s:{argument}"


def _death(status: int) -> str:
    """Say why a worker that ended without a word did."""
    if status == -SIGXCPU:
        return (
            "took too much processor time: is there a loop without an end? "
            "(cpu_limit in the section [lua] of scrun.toml)"
        )
    if status < 0:
        return f"its process was killed by {Signals(-status).name}"
    return f"its process ended with {status}"
