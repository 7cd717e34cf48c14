"""A container that the commands of a site's oci.conf run, in the foreground."""

import os
import signal
from collections.abc import Awaitable, Callable

import msgspec
import trio

from scrun.model.states import Ending, exited, killed, taken
from scrun.supervisor.children.processes import child, shell_status
from scrun.supervisor.children.terminal import write_size
from scrun.supervisor.contracts.engine import JobRequest, Step
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.failures import not_started
from scrun.supervisor.engines.local.commands import RuntimeContainer
from scrun.supervisor.engines.local.environment import changed_environment
from scrun.supervisor.engines.local.job import LocalJob, read_tail
from scrun.supervisor.engines.local.session import kill_started
from scrun.supervisor.engines.local.site_commands import OciConfCommands

_PATIENCE = 5.0
_FAILED = 1  # the exit status of crun and runc when they fail themselves


class SiteJob(LocalJob):
    """A job whose container runs in the foreground of a command."""

    def __init__(
        self,
        commands: OciConfCommands,
        container: RuntimeContainer,
        request: JobRequest,
        tell: Callable[[RuntimeContainer | None], Awaitable[None]],
    ) -> None:
        """See `LocalJob`."""
        super().__init__(commands, container, request, tell)
        self._site_commands = commands

    async def run(self, step: Step) -> Ending:
        """Run the container in the foreground of the site's command, to its end."""
        log = os.path.join(self._request.record, "runtime.log")
        if step.terminal:
            await in_thread(write_size, step.bundle, step.stdio[0])
        async with changed_environment(step.bundle, step.variables):
            status = await self._run(step, log)
        reason, _ = await read_tail(log)
        if reason:
            self._request.journal.write("error", reason)
        if status == _FAILED and reason:
            # a signal during the container's start makes the runtime fail
            return killed(self._fatal) if self._fatal else not_started(reason)
        if self._site_commands.is_container and status < 0:
            text = f"the container was ended: its OCI runtime ended before it, with {status}"
            return taken("scrun-failure", text)
        return exited(shell_status(status))

    async def _run(self, step: Step, log: str) -> int:
        """Run the command; return its exit status.

        Args:
            step: The container.
            log: The runtime's error log.
        """
        stdin, stdout, stderr = step.stdio
        commands = self._site_commands
        self._container = await in_thread(
            commands.prepare, self._container, step, dict(self.environment)
        )
        async with child(
            commands.run(self._container, log),
            self._child_env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            grace=1.0,
            whole_group=not commands.is_container,
            directory=commands.working_directory(self._container),
        ) as runtime:
            self._runtime = runtime
            await self._is_process(runtime.pid)
            step.running()
            try:
                return await runtime.wait()
            except trio.Cancelled:
                # The runtime passes SIGTERM on, which an init may ignore.
                with trio.move_on_after(_PATIENCE, shield=True):
                    if await self._kill(
                        signal.SIGKILL
                    ):  # it has no state command, or no container yet
                        kill_started(runtime)
                    await runtime.wait()
                raise
            finally:
                await self._is_process(0)

    async def _is_process(self, pid: int) -> None:
        """Store the container's pid, if the container is a mere process."""
        if not self._site_commands.is_container:
            self._container = msgspec.structs.replace(self._container, pid=pid)
            with trio.CancelScope(shield=True):
                await self._tell(self._container)
