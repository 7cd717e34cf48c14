"""One more program in a running container, for `exec`: from the request to its end."""

import os
import signal
from collections.abc import Mapping
from typing import Any

import msgspec
import trio

from scrun.cli.parse import Parsed
from scrun.core.errors import BundleError, ScrunError, UsageError, described
from scrun.model.states import FATAL, Ending, killed, taken
from scrun.oci.config import Bundle, Process, read_config
from scrun.oci.document import read_file
from scrun.oci.lookup import Found, NotFound, find_program
from scrun.oci.process import (
    ExecOptions,
    checked,
    fitting_user,
    process_from_file,
    process_from_options,
)
from scrun.supervisor.containers.anchors import Anchor
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.create_request import CommandLine
from scrun.supervisor.contracts.engine import Job, Program, Session
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.log.journal import Journal

_GRACE = 5.0
_SHELLS = ("bash", "zsh", "fish", "ash", "dash", "sh")


class NotRunnableError(BundleError):
    """The program is not in the container or not executable; has a shell's exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_code = status


class Prepared(msgspec.Struct, frozen=True):
    """A program that can be run.

    Attributes:
        process: The program, as `process` of config.json.
        is_known: Whether its file was found.
    """

    process: Mapping[str, Any]
    is_known: bool


def prepare(call: CommandLine, bundle: Bundle, staged: Staged, terminal: int | None) -> Prepared:
    """Read and check the request. Reads the user's files, which may hang.

    Args:
        call: The `exec` or `shell`.
        bundle: The container's bundle, as it was submitted.
        staged: The staged bundle.
        terminal: A descriptor of the program's terminal, if it gets one.

    Raises:
        UsageError: The command is missing or malformed.
        BundleError: The file of `--process` is wrong, or the program does not exist.
        StateError: The container has no such user.
    """
    parsed = call.parsed
    running = _as_it_runs(bundle, staged)
    if path := parsed.text("process"):
        name = os.path.join(call.directory, path)
        process, typed = process_from_file(read_file(name), name)
        process["terminal"] = terminal is not None
    else:
        options = _exec_options(parsed, bundle, staged, terminal=terminal is not None)
        process = process_from_options(options, running.get("process") or {})
        typed = checked(process, f"{parsed.command} {parsed.id}")
    for unwanted in ("rlimits", "apparmorProfile", "selinuxLabel", "oomScoreAdj"):
        if unwanted not in (running.get("process") or {}):
            process.pop(unwanted, None)  # staging removed it: the node does not support it
    fitting_user(process, running)
    if terminal is not None:
        columns, rows = os.get_terminal_size(terminal)
        process["consoleSize"] = {"height": rows, "width": columns}
    program = find_program(_looking_at(bundle, staged, typed))
    if staged.overlaid:  # it may have been made or removed since
        return Prepared(process, False)
    if isinstance(program, NotFound):
        raise NotRunnableError(program.message, program.exit_status)
    return Prepared(process, isinstance(program, Found))


def _as_it_runs(bundle: Bundle, staged: Staged) -> Mapping[str, Any]:
    """Return the config.json that the container runs with.

    If a script staged the bundle where only the nodes see it, returns the submitted one.
    """
    name = os.path.join(staged.bundle, "config.json")
    if not os.path.exists(name):
        return bundle.raw
    return read_config(name)[0]


def _looking_at(bundle: Bundle, staged: Staged, process: Process) -> Bundle:
    config = msgspec.structs.replace(bundle.config, process=process)
    rootfs = staged.rootfs if os.path.isdir(staged.rootfs) else bundle.rootfs
    return msgspec.structs.replace(bundle, config=config, rootfs=rootfs)


def _exec_options(
    parsed: Parsed, bundle: Bundle, staged: Staged, *, terminal: bool
) -> ExecOptions:
    words = parsed.operands
    if parsed.command == "shell" and (not words or words[0].startswith("-")):
        words = [_best_shell(bundle, staged), *words]
    if not words:
        raise UsageError("exec needs a command, or --process FILE: see 'scrun exec --help'")
    return ExecOptions(
        args=words,
        env=parsed.texts("env"),
        cwd=parsed.text("cwd"),
        user=parsed.text("user"),
        groups=parsed.texts("additional-gids"),
        capabilities=parsed.texts("cap"),
        no_new_privileges=bool(parsed.count("no-new-privs")),
        terminal=terminal,
    )


def _best_shell(bundle: Bundle, staged: Staged) -> str:
    """Return the name of the most comfortable shell in a container.

    Raises:
        BundleError: It has no shell.
    """
    for name in _SHELLS:
        process = msgspec.structs.replace(bundle.config.process, args=[name])
        if isinstance(find_program(_looking_at(bundle, staged, process)), Found):
            return name
    raise NotRunnableError(
        f"no shell found in the container ({', '.join(_SHELLS)}): name a program, or use exec", 127
    )


class LiveSession:
    """A program with its anchor and its descriptors.

    Attributes:
        settled: Set when it runs, or never will.
        ending: How it ended, or None.
    """

    def __init__(self, name: str, journal: Journal, anchor: Anchor, stdio: Stdio) -> None:
        """Prepare; nothing runs yet.

        Args:
            name: Its name in the log.
            journal: The container's.
            anchor: Owned from now on.
            stdio: Owned from now on.
        """
        self.settled = trio.Event()
        self.ending: Ending | None = None
        self._runs = False
        self._name = name
        self._journal = journal
        self._anchor = anchor
        self._stdio = stdio
        self._scope = trio.CancelScope()

    @property
    def failure(self) -> ScrunError | None:
        """Why it did not run."""
        if self._runs or self.ending is None:
            return None
        if self.ending.reason in ("not-found", "not-executable"):
            text = self.ending.text or "the runtime cannot run the program"
            return NotRunnableError(text, self.ending.status)
        return ScrunError(self.ending.text or f"it ended with {self.ending.status}")

    async def run(self, job: Job, prepared: Prepared) -> None:
        """Run it to its end. An error becomes its ending; only a cancellation is raised."""
        try:
            async with unwrapped() as nursery:
                program = Program(
                    process=prepared.process,
                    stdio=self._stdio.fds,
                    terminal=bool(prepared.process.get("terminal")),
                    program_is_known=prepared.is_known,
                    running=self._runs_now,
                )
                session = await job.session(program)
                nursery.start_soon(self._forward_signals, session, nursery)
                with self._scope:
                    self.ending = await session.run()
                nursery.cancel_scope.cancel()
        except Exception as error:
            text = described(error)
            self._journal.write("error", f"{self._name}: {text}")
            self.ending = self.ending or taken("scrun-failure", text)
        finally:
            # cancelled with its container, whose processes were killed
            self.ending = self.ending or killed(signal.SIGKILL)
            self._journal.write("verbose", f"{self._name} ended with {self.ending.status}")
            self._stdio.close()
            self._anchor.end(self.ending.status)
            with trio.CancelScope(shield=True):
                await self._anchor.close()
            self.settled.set()

    def _runs_now(self) -> None:
        self._runs = True
        self._stdio.close()  # the engine has its own by now
        self._journal.write("verbose", f"{self._name} runs")
        self.settled.set()

    async def _forward_signals(self, session: Session, nursery: trio.Nursery) -> None:
        """Forward signals; a second fatal one, or the anchor's death, ends the program."""
        end_requested = False
        async for number in self._anchor.signals():
            if number == signal.SIGWINCH:
                session.resized()
            elif number in FATAL and (end_requested or not self._runs):
                self._end(killed(number))
            else:
                nursery.start_soon(self._pass_on, session, number)
            end_requested = end_requested or number in FATAL
        self._end(killed(signal.SIGKILL))

    async def _pass_on(self, session: Session, number: signal.Signals) -> None:
        try:
            await session.signal(number)
        except (ScrunError, OSError) as error:
            self._journal.write("error", f"{self._name}: {described(error)}")
        if number in FATAL:
            await trio.sleep(_GRACE)
            self._end(killed(number))

    def _end(self, ending: Ending) -> None:
        self.ending = self.ending or ending
        self._scope.cancel()
