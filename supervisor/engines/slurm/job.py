"""A Slurm job, and one whose container Slurm itself launches, by `srun --container`."""

import contextlib
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec
import trio

from scrun.core.errors import EngineError, StateError
from scrun.model.states import Ending, not_run, taken
from scrun.oci.signals import its_end
from scrun.settings.slurm.outputs import container_variables
from scrun.settings.slurm.versions import Features
from scrun.supervisor.children.node_scripts import (
    NodeCommands,
    exec_script,
    process_variables,
    status_script,
)
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.children.pumps import heard
from scrun.supervisor.children.terminal import give_a_size, write_size
from scrun.supervisor.contracts.engine import Job, JobRequest, NodeAnswer, Program, Session, Step
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.slurm.allocation import Allocation
from scrun.supervisor.engines.slurm.job_ending import ended_meanwhile, is_ending
from scrun.supervisor.engines.slurm.job_state import ending_of_step, step_exit
from scrun.supervisor.engines.slurm.layout import StepLayout
from scrun.supervisor.engines.slurm.remote import (
    in_directory,
    inspect,
    labelled,
    read_answers,
    run_on_nodes,
)
from scrun.supervisor.engines.slurm.signals import signal_container
from scrun.supervisor.engines.slurm.step import SrunStep, StepStreams
from scrun.supervisor.engines.slurm.tools import Tools, of_the_job
from scrun.supervisor.engines.watched import DeferredContainer, WatchedProcess, hold_step
from scrun.supervisor.shim.processes import goes_on

_ANSWER = 1 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

_HALF_A_TERMINAL = (
    "this version of Slurm does not give the container a controlling terminal: ^C reaches the "
    "first process only, and there is no job control; use `exec` with a terminal for both"
)
_SPOOL = "/var/spool/slurmd"  # slurm.conf(5), SlurmdSpoolDir


class JobParts(msgspec.Struct, frozen=True):
    """What every kind of job is made of.

    Attributes:
        features: What this version of Slurm can do.
        layout: How many nodes and tasks the container has.
        options: Options of the step's srun that the caller asked for.
    """

    tools: Tools
    features: Features
    commands: NodeCommands
    request: JobRequest
    held: Allocation
    layout: StepLayout
    options: list[str]


class SlurmJob(Job):
    """A job of Slurm, whatever launches its container."""

    lets_end = True

    def __init__(self, parts: JobParts, step: SrunStep | None = None) -> None:
        """`step`: the one that it runs in; None: one of its own."""
        self._tools = parts.tools
        self._request = parts.request
        self._held = parts.held
        self._layout = parts.layout
        self._options = parts.options
        self._child_env = self._tools.child_env(self._request.child_env)
        self._step = step or self._new_step(self._layout.tasks)

    @property
    def id(self) -> str:
        return self._held.job_id

    @property
    def environment(self) -> Mapping[str, str]:
        return self._held.environment

    @property
    def sound(self) -> bool:
        """Whether its steps have ended as they should, so that others may use the job."""
        return not (self._step.state.aborted or self._step.state.launch_failed)

    def _new_step(self, tasks: int = 1) -> SrunStep:
        journal, slowed = self._request.journal, self._held.slowed
        return SrunStep(self._tools, self._child_env, journal, tasks, slowed)

    def named(self, step: Step) -> dict[str, str]:
        """Return the variables that name the container; srun of 22.05 has but one of them."""
        return container_variables(self._request.container, step.bundle)

    async def update(self, resources: str, wanted: Sequence[str], limit: str) -> None:
        """Change the job's time limit; Slurm can change nothing else of a running job."""
        del resources
        if wanted:
            raise EngineError(
                f"container {self._request.container}: {', '.join(wanted)} cannot be changed: "
                f"Slurm can only lower the time limit of the running job {self.id} (scrun update "
                "--time-limit); run a new container to change anything else"
            )
        if limit:
            await set_time_limit(self._tools, self._child_env, self.id, limit)

    async def command(
        self, script: str, output: int, variables: Mapping[str, str] | None = None
    ) -> int:
        journal = self._request.journal
        # other SLURM_* would act as options of srun
        own = ("SCRUN_", "SLURM_CONTAINER")
        more = {key: text for key, text in (variables or {}).items() if key.startswith(own)}
        return await run_on_nodes(
            self._tools, self._child_env.with_more(more), self.id, self.environment,
            in_directory(self._request.directory, script), output,
            lambda line: journal.write("verbose", line),
        )  # fmt: skip


class SrunJob(SlurmJob):
    """A job whose container Slurm launches."""

    launch = "container"
    spool_mount = ""

    def __init__(self, parts: JobParts, found: Inheritance | None = None) -> None:
        """`found`: what another supervisor has left, which has held the job."""
        super().__init__(parts)
        self._found = found
        self._features = parts.features
        self._commands = parts.commands
        self._sessions: list[SrunStep] = []

    @property
    def sound(self) -> bool:
        return super().sound and all(session.ended for session in self._sessions)

    async def run(self, step: Step) -> Ending:
        streams, deposit = self._streams_of(step), self._request.deposit
        options = self._container_options(step)
        if streams.far_terminal:
            await in_thread(self._write_size, step)
        elif step.terminal:
            self._request.journal.write("info", _HALF_A_TERMINAL)
        variables = {
            **of_the_job(self.environment),
            **self.named(step),
            **_handed_over(step),
        }
        status = await self._step.run(
            options, self._command(step), streams, step.running, variables,
            deposit if deposit.is_kept else None, leashed=self._held.state is None,
        )  # fmt: skip
        return await self._how_step_ended(status)

    def resumed(self) -> AbstractAsyncContextManager[WatchedProcess]:
        found = self._found
        assert found is not None
        if found.job is not None:
            found.job.together.without(found.container)  # a shim of the job need not wait for it
        go_on = self._go_on if "srun" in found.facts else None
        return DeferredContainer(found, self._request.deposit, self.run, go_on).resumed()

    async def resumed_session(
        self, found: Inheritance, deposit: Deposit, running: Callable[[], None]
    ) -> Session:
        """Its srun has ended with the other; raises EngineError always."""
        raise EngineError("a program of exec that srun launches ends with the supervisor")

    async def _go_on(self, step: Step, *, task_status: trio.TaskStatus[bool]) -> Ending:
        assert self._found is not None
        streams = self._streams_of(step)
        status = await self._step.run_on(self._found, step.running, streams, task_status)
        return await self._how_step_ended(status)

    def _streams_of(self, step: Step) -> StepStreams:
        far_terminal = step.terminal and self._features.real_terminal
        return StepStreams(step.stdio, step.terminal, not step.program_is_known, far_terminal)

    async def _how_step_ended(self, status: int) -> Ending:
        """Say how the container ended, from the exit status of srun and what it has said."""
        state = self._step.state
        ended = step_exit(state, status)
        lost = state.aborted and not self._step.asked_to_kill
        if lost and (ending := await ended_meanwhile(self._tools, self._child_env, self.id)):
            return ending  # salloc may not learn of it
        if ended.status == 1 and state.runtime_status is not None:
            # the runtime's message is on the container's own standard error
            return not_run(state.runtime_status)
        if not ended.launched:
            reason = state.reason(status)
            return taken("scrun-failure", f"the container could not be started: {reason}")
        return ending_of_step(state, ended, self._held.state)

    def _write_size(self, step: Step) -> None:
        """Write the terminal's size into the bundle, unless only the nodes see that."""
        give_a_size(step.stdio[0])
        with contextlib.suppress(FileNotFoundError):
            write_size(step.bundle, step.stdio[0])

    def _command(self, step: Step) -> list[str]:
        """Return the step's command, with which Slurm replaces process.args."""
        name, *rest = step.arguments
        if self._features.node_finds_program and step.program:
            name = step.program
        return [name, *rest]

    def _container_options(self, step: Step) -> list[str]:
        words = step_of(self._held)
        # with names, srun exports those and nothing else
        words += [*self._layout.arguments, "--overlap", f"--export={_names(step)}"]
        if self._layout.nodes != 1:
            words.append("--no-kill")
        if self._features.container_id:
            words += ["--container-id", self._request.container]
        return [*words, *self._options, "--container", step.bundle]

    async def signal(self, number: int) -> None:
        if not await self._step.runs():
            return
        if number == signal.SIGKILL:
            await self._step.kill()
            return
        if number == signal.SIGTERM and await is_ending(self._tools, self._child_env, self.id):
            return  # a script that is told that its job ends has told us, and Slurm the step
        state = self._step.state
        await signal_container(
            self._tools, self._child_env, self._commands, state.step_id, state.running, number
        )

    async def handles(self, number: int) -> bool:
        """True if Slurm will end it anyway."""
        if await is_ending(self._tools, self._child_env, self.id):
            return True
        return any(
            not answer.status and goes_on(answer.text.encode(), number)
            for answer in await self.inspect(status_script)
        )

    async def let_end(self) -> None:
        """Soon after KillWait srun gives up."""
        if self._step.runs_now:
            await trio.sleep_forever()

    async def session(self, program: Program) -> Session:
        step_id, running = await self._running()
        node, tasks = next(iter(running.items()))
        step = self._new_step()
        self._sessions = [known for known in self._sessions if not known.ended] + [step]
        where = (step_id, node, tasks[0])
        return SlurmSession(step, self._commands, self.id, where, program)

    async def _running(self) -> tuple[str, dict[str, list[int]]]:
        """Return the container's step and where its tasks are."""
        state = self._step.state
        if not await self._step.runs() or not state.running:
            raise StateError(f"container {self._request.container} is not running")
        return state.step_id, state.running

    async def pause(self, *, resume: bool) -> None:
        """Pause or resume all processes of the container and of its sessions.

        Users cannot use the freezer, so this sends signals. With proctrack/cgroup slurmstepd
        freezes the step on SIGSTOP (measured with 22.05). Raises EngineError if they could not be
        signalled.
        """
        step_id, running = await self._running()
        commands = [
            self._commands.pause(resume=resume, step_id=step_id, node=node, task=task)
            for node, tasks in running.items()
            for task in tasks
        ]
        if all(commands):
            for answer in await self.inspect(lambda _: commands.pop(0)):
                if answer.status:
                    raise EngineError(f"on {answer.node}: {answer.text.strip()}")
            return
        number = signal.SIGCONT if resume else signal.SIGSTOP
        await self._step.signal_all(number)
        for session in self._sessions:
            if session.runs_now:
                await session.signal_all(number)

    async def inspect(self, script: Callable[[str], str]) -> list[NodeAnswer]:
        step_id, running = await self._running()
        scripts = {
            node: [script(self._commands.state(step_id, node, task)) for task in tasks]
            for node, tasks in running.items()
        }
        return await inspect(self._tools, self._child_env, self.id, scripts)

    def keep(self, step: Step) -> bool:
        """Keep what the step needs: before the start its streams, and srun's after that."""
        deposit, request = self._request.deposit, self._request
        if self._streams_of(step).listen and not step.terminal:
            deposit.give_up("its standard error is searched for the runtime's message")
        deposit.needs(request.job_deposit)
        hold_step(deposit, step)
        layout = msgspec.to_builtins(self._layout)
        deposit.note(target=request.container, options=self._options, layout=layout)
        return True

    @property
    def separate_tasks(self) -> int:
        """All tasks have the same mounts, which slurmstepd makes."""
        return int(self._layout.tasks == 1 and self._nodes == "1")

    @property
    def _nodes(self) -> str:
        variables = self.environment
        return variables.get("SLURM_JOB_NUM_NODES") or variables.get("SLURM_NNODES") or "1"

    @property
    def mount_points(self) -> Sequence[str]:
        return [self.spool_mount] if self.spool_mount else []

    async def ask(self, script: Callable[[int], str]) -> list[str]:
        readable, writable = os.pipe()
        async with trio.lowlevel.FdStream(readable) as stream, unwrapped() as nursery:
            answer = bytearray()

            async def read() -> None:
                async for part in stream:
                    answer.extend(part[: _ANSWER - len(answer)])

            nursery.start_soon(read)
            try:
                await self.command(labelled(script(0)), writable)
            finally:
                os.close(writable)
        text = answer.decode(errors="replace")
        found = [one.text for one in read_answers(text.splitlines())]
        if str(len(found)) != self._nodes:
            said = next(filter(None, text.splitlines()), "nothing")
            raise EngineError(f"job {self.id}: only some of its nodes answered; one said: {said}")
        return found

    def resized(self) -> None:
        self._step.resized()


def step_of(held: Allocation) -> list[str]:
    """Return the options of srun for a container's step: the job, and a name.

    srun gives its program the name of the step as that of the job.
    """
    return ["--jobid", held.job_id, "--job-name", held.environment.get("SLURM_JOB_NAME", "scrun")]


def _handed_over(step: Step) -> dict[str, str]:
    """Return the variables that srun sets; it cannot remove those of config.json."""
    return {name: text for name, text in step.variables.items() if text is not None}


def _names(step: Step) -> str:
    """Return the value of `--export`: their names, separated by commas."""
    return ",".join(name for name in _handed_over(step) if _NAME.fullmatch(name)) or "NONE"


async def set_time_limit(tools: Tools, child_env: ChildEnv, job_id: str, limit: str) -> None:
    """Set TimeLimit of scontrol(1); only an administrator can raise it. Raises EngineError."""
    if tools.scontrol is None:
        raise EngineError("scontrol is not installed here: the time limit cannot be changed")
    errors: list[str] = []
    command = [tools.scontrol, "update", f"JobId={job_id}", f"TimeLimit={limit}"]
    if status := await heard(command, child_env, errors.append):
        reason = errors[-1] if errors else f"scontrol {its_end(status)}"
        raise EngineError(f"job {job_id}: the time limit was not changed: {reason}")


class SlurmSession(Session):
    """A program of `exec`: a step of its own, on the container's node.

    The OCI runtime there makes it join the container's namespaces. It is the runtime's child and
    in the cgroup of its own step: ending the step ends it and all that it started.
    """

    def __init__(
        self,
        step: SrunStep,
        commands: NodeCommands,
        job_id: str,
        where: tuple[str, str, int],
        program: Program,
    ) -> None:
        """Create it; nothing runs yet.

        Args:
            where: The container's step id, its node, and its index there.

        Raises:
            EngineError: The site has no command for it.
            BundleError: The program's description is too long.
        """
        step_id, node, task = where
        command = commands.exec(step_id, node, task)
        self._step = step
        self._program = program
        self._variables = process_variables(program.process)
        script = exec_script(command, commands.state(step_id, node, task), self._variables)
        self._command = ["/bin/sh", "-c", script]
        self._options = ["--jobid", job_id, "--job-name", "scrun-exec", "--overlap"]
        self._options += ["--nodes=1", "--ntasks=1", "--nodelist", node, "--mem=0", "--chdir=/"]
        self._options += [f"--export={','.join(self._variables)}"]

    async def run(self) -> Ending:
        program, state = self._program, self._step.state
        streams = StepStreams(program.stdio, program.terminal, listen=not program.program_is_known)
        status = await self._step.run(
            self._options, self._command, streams, program.running, self._variables
        )
        ended = step_exit(state, status)
        if ended.status and state.runtime_status is not None:
            return not_run(state.runtime_status)
        if not ended.launched:
            reason = state.reason(status)
            return taken("scrun-failure", f"the program could not be started: {reason}")
        return ending_of_step(state, ended)

    async def handles(self, number: int) -> bool:
        """The kernel ends a program that does not."""
        del number
        return self._step.runs_now

    async def signal(self, number: int) -> None:
        """Send a signal to its processes: the runtime's command and the program."""
        if not await self._step.runs():
            return
        if number == signal.SIGKILL:
            await self._step.kill()
        else:
            await self._step.signal_all(number)

    def resized(self) -> None:
        self._step.resized()


def spool_mount(
    features: Features, pattern: str | None, conf: Mapping[str, str], nodes: str
) -> str:
    """Return where it does so, or the directory above that all steps have in common; "": nowhere.

    A directory that would hide a top-level directory of the container counts as nowhere. `conf`
    has the settings of slurm.conf, by name in lower case.
    """
    if not features.mounts_spool:
        return ""
    where = pattern or features.spool_mount or conf.get("slurmdspooldir") or _SPOOL
    if not set(nodes) & set(",["):
        where = where.replace("%n", nodes)
    known = where.partition("%")[0]
    if known != where:
        known = known.rpartition("/")[0]
    return known if known.count("/") > 1 else ""
