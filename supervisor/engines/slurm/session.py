"""Another program in a container that runs as a step: a separate step on the same node.

The OCI runtime there makes it join the container's namespaces. It is the runtime's child and in
the cgroup of its own step: ending the step ends it and all that it started.
"""

import signal

from scrun.model.states import Ending, not_run, taken
from scrun.supervisor.children.node_scripts import exec_script, process_variables
from scrun.supervisor.contracts.engine import Program
from scrun.supervisor.engines.slurm.exits import ending_of_step, step_exit
from scrun.supervisor.engines.slurm.node import NodeCommands
from scrun.supervisor.engines.slurm.step import SrunStep, StepStreams


class SlurmSession:
    """See `supervisor.contracts.engine.Session`."""

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
            step: The step, not yet run.
            commands: The commands of the nodes' runtime.
            job_id: The job.
            where: The container's step id, its node, and its index there.
            program: What to run.

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
        """Run it to its end."""
        program, state = self._program, self._step.state
        streams = StepStreams(program.stdio, program.terminal, listen=not program.program_is_known)
        status = await self._step.run(
            self._options, self._command, streams, program.running, self._variables
        )
        ended = step_exit(state, status)
        if ended.status and state.runtime_status is not None:
            return not_run(state.runtime_status)
        if not ended.launched:
            reason = "; ".join(state.complaints) or f"srun ended with {status}"
            return taken("scrun-failure", f"the program could not be started: {reason}")
        return ending_of_step(state, ended)

    async def handles(self, number: int) -> bool:
        """See `supervisor.contracts.engine.KnowsHandlers`; what does not, the kernel ends."""
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
        """Tell srun that the terminal has a new size."""
        self._step.resized()
