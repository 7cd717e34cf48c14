"""Whether a bundle can run at all, when `create` is answered, and who has to start it then."""

import math
import os
import signal
from functools import partial
from typing import NamedTuple

import trio

from scrun.core.errors import BundleError
from scrun.images.lookup import find_program
from scrun.model.states import Phase, killed
from scrun.oci.config import Bundle, Process, load_bundle
from scrun.oci.lookup import Found, NotFound, Unknown
from scrun.settings.file.load import Settings
from scrun.supervisor.containers import conmon
from scrun.supervisor.containers.names import find_names
from scrun.supervisor.containers.notices import Notices
from scrun.supervisor.containers.phases import Phases
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.core.threads import look
from scrun.supervisor.plugins.choose import script_for
from scrun.supervisor.scripts.spank.around import Plugstack
from scrun.supervisor.scripts.spank.around import find as find_stack

_READING = 30.0


class ProgramNotFound(BundleError):
    """The program is not in the bundle or not executable; has the exit status of a shell."""

    def __init__(self, message: str, status: int = 127) -> None:
        super().__init__(message)
        self.status = status


class SiteScripts(NamedTuple):
    """Those for a container: a scrun.lua, and what `plugin_stack` needs of a plugstack.conf."""

    lua: str | None
    plugstack: Plugstack


def _find_scripts(settings: Settings, engine: str) -> SiteScripts:
    return SiteScripts(script_for(settings, engine), find_stack(settings))


class Admitted(NamedTuple):
    """What can run; `names` are the annotations that say how the container is called."""

    bundle: Bundle
    program: Found | Unknown
    names: dict[str, str]
    scripts: SiteScripts


async def admit(
    create_request: CreateRequest, caller: int, engine: str, *, at_terminal: bool
) -> Admitted:
    """Read and check a bundle, and find its scripts, in a thread: file systems may hang.

    Args:
        caller: The pid of its `create`; 0 if that is not known.
        engine: The name of its engine.
        at_terminal: Whether the caller's standard input and output are a terminal.

    Raises:
        BundleError: The bundle cannot run.
        SettingsError: A script is missing or not trusted.
    """
    bundle, program, names, scripts = await look(
        create_request.bundle, _look, create_request, caller, engine,
        failure=BundleError, patience=_READING,
    )  # fmt: skip
    if isinstance(program, NotFound):
        raise ProgramNotFound(program.message, program.exit_status)
    _check_terminal(bundle, create_request, at_terminal=at_terminal)
    return Admitted(bundle, program, names, scripts)


def _look(
    create_request: CreateRequest, caller: int, engine: str
) -> tuple[Bundle, Found | NotFound | Unknown, dict[str, str], SiteScripts]:
    bundle = load_bundle(create_request.bundle, create_request.config_file)
    program, names = find_program(bundle), find_names(create_request, bundle, caller)
    return bundle, program, names, _find_scripts(create_request.settings, engine)


def _check_terminal(bundle: Bundle, create_request: CreateRequest, *, at_terminal: bool) -> None:
    """Require a console socket for a terminal (runc's terminals.md), except for `run`."""
    terminal, where = bundle.config.process.terminal, f"{bundle.config_file}: process.terminal"
    if create_request.console is not None and not terminal:
        raise BundleError(f"{where} is false: set it to true, or omit --console-socket")
    if not terminal or create_request.console is not None or create_request.keeps_output:
        return
    if not create_request.in_foreground:
        raise BundleError(f"{where} is true: give --console-socket, or set it to false")
    if not at_terminal:
        raise BundleError(
            f"{where} is true, but standard input and output are not a terminal: use --detach, "
            "or set it to false"
        )


def called_as(program: Found | Unknown, process: Process, name: str) -> str:
    """Return the absolute path of a program in the container; "" if unknown."""
    if "/" in name:
        return os.path.join(process.cwd, name)
    if isinstance(program, Found) and name == process.args[0]:
        return program.called
    return ""  # not seen, or replaced by a script


_UNANSWERED = 30.0  # less than any engine's timeout: podman's is 240 s, a kubelet's 120
_UNSTARTED = 20.0  # podman calls `start` as soon as `create` has ended


class Creation:
    """The `create` of one container, and the `start` that has to follow.

    `create` is answered when the bundle is staged, or when its caller has waited long enough. From
    then on the container is *created*: it may be started, and waits for the rest.

    Attributes:
        making: Its first process is being created: `create` is answered when it exists.
        start_requested: Set by `start`.
    """

    def __init__(
        self, container: Phases, create_request: CreateRequest, stdio: Stdio, notices: Notices
    ) -> None:
        self.making = False
        self.start_requested = trio.Event()
        self._container = container
        self._create_request = create_request
        self._stdio = stdio
        self._notices = notices

    async def scripts(self, engine: str) -> SiteScripts:
        """Find them for a container that is admitted already; SettingsError as of `admit`."""
        settings = self._create_request.settings
        return await look("scrun.lua and plugstack.conf", _find_scripts, settings, engine)

    async def answer_in_time(self) -> None:
        """Answer `create` before its caller times out, even if the job is still pending.

        Slurm refuses a job at once, so a refusal is an error of `create`. A `run` in the
        foreground has no time limit, and shows what it waits for.
        """
        container = self._container
        if self._create_request.in_foreground:
            if self._create_request.shown.live and not await self._stdio.error_is_terminal():
                self._notices.begin()
            return
        with trio.move_on_after(_UNANSWERED) as unanswered:
            await container.queued.wait()
        pending = self._notices.pending  # the pod's job may be pending for another member
        if not (pending or unanswered.cancelled_caught):
            with trio.move_on_after(self._create_request.settings.create_timeout):
                await container.settled.wait()
        if container.phase is Phase.CREATING and not (container.ending or self.making):
            await container.anchor_known.wait()
            await self.wait_for_start()

    async def wait_for_start(self) -> None:
        """Answer `create` if that waits; end the container if its podman does not start it."""
        podman = conmon.calls(self._create_request.child_env.environment)
        await self.be_created(_UNSTARTED if podman else math.inf)

    async def be_created(self, patience: float = math.inf) -> None:
        """Answer `create`, and wait up to `patience` seconds for `start`.

        A podman that is interrupted while its conmon waits for `create` leaves a created container
        behind. If nothing ended that, its job would start one day and never end. `podman start`
        creates a stopped container anew.
        """
        container = self._container
        died = partial(self._lost, "'s conmon died before its start")
        async with conmon.watch_conmon(
            self._create_request.child_env.environment, container.pid, died
        ):
            if container.phase is Phase.CREATING:
                await container.keep_unmade()
            if container.become(Phase.CREATED):
                container.settled.set()
            with trio.move_on_after(patience):
                await self.start_requested.wait()
        if not self.start_requested.is_set():
            self._lost(f" did not start it within {patience:g} s")

    def _lost(self, why: str) -> None:
        """End the container: nobody is left to start it."""
        text = f"container {self._container.id} was ended: podman{why}"
        self._container.end(killed(signal.SIGKILL, text))
