"""A Slurm job in which one container runs as a step of srun."""

import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from scrun.errors import EngineError
from scrun.settings.load import Level
from scrun.settings.versions import Features
from scrun.states import Ending, exited, taken
from supervisor.engines.base import Request, Step
from supervisor.engines.slurm.allocation import Held
from supervisor.engines.slurm.cancel import signal_step
from supervisor.engines.slurm.layout import Layout
from supervisor.engines.slurm.messages import SrunHeard, step_exit
from supervisor.engines.slurm.remote import run_on_nodes
from supervisor.engines.slurm.signals import KillCommand, signal_container
from supervisor.engines.slurm.tools import Tools
from supervisor.processes import Child, child
from supervisor.pumps import can_be_opened_again, carried, messages, overheard

_NEWS_OF_THE_JOB = 2.0
_STEP_ENDS = 5.0
_STEP_STARTS = 10.0
_KILL_BY_CONTROLLER = 3.0


class SlurmJob:
    """A held job (see `supervisor.engines.base.Job`)."""

    def __init__(
        self,
        tools: Tools,
        features: Features,
        kill: KillCommand | None,
        request: Request,
        held: Held,
        layout: Layout,
        options: list[str],
    ) -> None:
        """Take a job over.

        Args:
            tools: Slurm's tools.
            features: What this version of Slurm can do.
            kill: How the runtime on the nodes signals a container.
            request: What the job was asked for with.
            held: The job.
            layout: How many nodes and tasks the container has.
            options: Options of srun that the caller asked for.
        """
        self._tools = tools
        self._features = features
        self._kill = kill
        self._request = request
        self._held = held
        self._layout = layout
        self._options = options
        self._setting = tools.setting(request.setting)
        self._heard = SrunHeard(layout.tasks)
        self._started = trio.Event()
        self._srun: Child | None = None
        self._asked_to_kill = False

    @property
    def id(self) -> str:
        """The job's number."""
        return self._held.job_id

    @property
    def environment(self) -> Mapping[str, str]:
        """The job's SLURM_* variables."""
        return self._held.environment

    async def run(self, step: Step) -> Ending:
        """Run the container as a step, to its end."""
        heard = self._heard

        def hear(line: str) -> None:
            complaints = len(heard.complaints)
            heard.hear(line)
            level: Level = "error" if len(heard.complaints) > complaints else "debug"
            self._request.journal.write(level, line)
            if heard.started and not self._started.is_set():
                self._started.set()
                step.running()

        async with messages(hear) as own, self._standard_error(step) as error:
            stdin, stdout, _ = step.stdio
            argv = self._command(step, error)
            pass_fds = () if error is None else (error,)
            async with child(
                argv,
                self._setting,
                stdin=stdin,
                stdout=stdout,
                stderr=own,
                pass_fds=pass_fds,
                grace=_STEP_ENDS,
            ) as srun:
                self._srun = srun
                status = await srun.wait()
        self._started.set()  # nobody has to wait for it any more
        ended = step_exit(heard, status)
        if heard.aborted and not self._asked_to_kill:
            # Whether the job went with the step is salloc's to say: it cancels us then.
            await trio.sleep(_NEWS_OF_THE_JOB)
        if ended.status == 1 and heard.runtime_status is not None:
            # the runtime has said it where the container's own words go
            missing = heard.runtime_status == 127
            return Ending(heard.runtime_status, "not-found" if missing else "not-executable")
        if not ended.launched:
            reason = "; ".join(heard.complaints) or f"srun ended with {status}"
            return taken("scrun-failure", f"the container could not be started: {reason}")
        return exited(ended.status)

    def _command(self, step: Step, error: int | None) -> list[str]:
        words = [self._tools.srun, "-v", "--jobid", self.id, "--job-name", "scrun"]
        words += [*self._layout.arguments, "--overlap", "--export=NONE"]
        if self._features.container_id:
            words += ["--container-id", self._request.container]
        if step.terminal:
            words.append("--pty")
        if error is not None:
            words.append(f"--error=/proc/self/fd/{error}")
        return [*words, *self._options, "--container", step.bundle, "--", *step.arguments]

    @asynccontextmanager
    async def _standard_error(self, step: Step) -> AsyncIterator[int | None]:
        """Give the descriptor that srun opens as the container's standard error.

        srun's own messages go to its descriptor 2, always; so the container's has to be another
        one, which srun opens by its path under /proc.
        """
        error = step.stdio[2]
        if step.terminal:
            yield None
        elif not step.program_is_known:
            async with overheard(error, self._setting, self._heard.hear_runtime) as pipe:
                yield pipe
        elif can_be_opened_again(error):
            yield error
        else:
            async with carried(error, self._setting) as pipe:
                yield pipe

    async def signal(self, number: int) -> None:
        """Send a signal to the container's first process; SIGKILL ends all of them.

        Raises:
            EngineError: It was not delivered.
        """
        if self._srun is None:
            raise EngineError("the container does not run")
        # Before its tasks run srun has no step that could be signalled, and loses signals itself.
        with trio.move_on_after(_STEP_STARTS):
            await self._started.wait()
        if self._srun.ended:
            return
        if number != signal.SIGKILL:
            heard = self._heard
            await signal_container(
                self._tools, self._setting, self._kill, heard.step_id, heard.running, number
            )
            return
        self._asked_to_kill = True
        with trio.move_on_after(_KILL_BY_CONTROLLER):
            try:
                await signal_step(self._tools, self._setting, self._heard.step_id, number)
                return
            except EngineError as error:
                self._request.journal.write("verbose", str(error))
        # slurmctld does not answer; but srun can tell slurmstepd, in its own way
        self._srun.signal(signal.SIGTERM)

    async def command(self, script: str, output: int) -> int:
        """Run a shell script on all nodes of the job (see `supervisor.engines.base.Job`)."""
        journal = self._request.journal
        return await run_on_nodes(
            self._tools, self._setting, self.id, self.environment, script, output,
            lambda line: journal.write("verbose", line),
        )  # fmt: skip

    def resized(self) -> None:
        """Pass a new size of the terminal on: srun looks at it when it is told."""
        if self._srun is not None:
            self._srun.signal(signal.SIGWINCH)
