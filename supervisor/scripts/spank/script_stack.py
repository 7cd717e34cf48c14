"""The plugin stack of a container: when each function of a site's scripts is called.

::

    create  ── allocator: init, options, init_post_opt
               the job is asked for
               slurmd: slurmd_init;  job_script: job_prolog         this machine only
               allocator: local_user_init
    start   ── remote: init, options, init_post_opt, user_init,     this machine only
               task_init_privileged, task_init, task_post_fork
               the container runs
               remote: task_exit, exit                              this machine only
    the end ── allocator: exit
               job_script: job_epilog;  slurmd: slurmd_exit         this machine only

On Slurm, Slurm's own lua.so serves the contexts on the nodes, as with Slurm's own scrun. The
prolog comes before local_user_init, as in Slurm with PrologFlags=Contain.
"""

import os
import re
from collections.abc import Mapping, Sequence

import msgspec
import trio

from scrun.core.errors import SpankError
from scrun.core.text import is_unicode
from scrun.model.states import Ending
from scrun.oci.config import Bundle, read_config
from scrun.settings.spank.plugstack import read_given
from scrun.supervisor.contracts.engine import Job, JobRequest, Step
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.scripts.spank.items import JobFacts
from scrun.supervisor.scripts.spank.scripts import (
    Context,
    LoadedScript,
    Native,
    Scripts,
    Variables,
)
from scrun.supervisor.scripts.spank.stack import Stack

_LAST = 30.0
_CONTROL = "SLURM_SPANK_"
_OPTION = f"{_CONTROL}_SLURM_SPANK_OPTION_lua_"
_KILLED = 9
_BEFORE_THE_TASK = (
    "slurm_spank_init_post_opt",
    "slurm_spank_user_init",
    "slurm_spank_task_init_privileged",
    "slurm_spank_task_init",
    "slurm_spank_task_post_fork",
)


class ScriptStack(Stack):
    """The plugin stack of a site with scripts."""

    has_scripts = True

    def __init__(
        self,
        request: JobRequest,
        scripts: Scripts,
        bundle: Bundle,
        native: Native,
        *,
        is_node: bool,
    ) -> None:
        """`native` are the lines that Slurm's own tools load."""
        super().__init__(request)
        self._scripts = scripts
        self._bundle = bundle
        self._native = native
        self._is_node = is_node
        self._defined: frozenset[str] = frozenset()
        self._local: Context | None = None
        self._slurmd: Context | None = None
        self._has_job = False
        self._values: dict[str, str | None] = {}
        self._variables = Variables(request.child_env.environment)

    # create

    async def begin(self) -> None:
        scripts, local = self._scripts, await self._scripts.open("allocator", self._variables)
        self._local = local
        self._defined = frozenset(name for member in local.members for name in member.functions)
        await scripts.call(local, "slurm_spank_init")
        config, environment = self._bundle.config, self.request.child_env.environment
        registered = [option for _, option in local.options.values()]
        given = read_given(registered, environment, config.annotations)
        for note in given.notes:
            self.request.journal.write("info", note)
        self._values = given.values
        scripts.given = {
            name: True if text is None else text for name, text in given.values.items()
        }
        owners = local.options
        for name, value in given.values.items():
            if self._is_ours(owners[name][0]):
                await scripts.call_back(local, name, value)
        await scripts.call(local, "slurm_spank_init_post_opt", self._is_ours)
        scripts.end_if_idle("slurm_spank_local_user_init")
        of_slurm = [name for name in self._values if not self._is_ours(owners[name][0])]
        self.request = self._with_options(of_slurm)

    def _is_ours(self, member: LoadedScript) -> bool:
        return member.script.line.where not in self._native

    def _with_options(self, of_slurm: Sequence[str]) -> JobRequest:
        """Pass to salloc the options of scripts that it runs itself, and all to the steps."""
        if self._is_node:
            return self.request
        words = [
            f"--{name}" if (value := self._values[name]) is None else f"--{name}={value}"
            for name in of_slurm
        ]
        return msgspec.structs.replace(
            self.request, plugin_options=tuple(words), plugin_variables=self._for_steps()
        )

    def _for_steps(self) -> dict[str, str]:
        """Return what srun, and the lua.so on the nodes, read from the environment."""
        control = {_CONTROL + name: text for name, text in self._variables.control.items()}
        if not self._is_node:
            control |= {_option_variable(name): text or "" for name, text in self._values.items()}
        return control

    async def allocated(self, job: Job) -> None:
        scripts = self._scripts
        self._has_job = True
        scripts.facts = facts_of_job(
            scripts.facts, job.id, job.environment, self._bundle.config.process.args
        )
        if self._is_node:
            if self._defined & {"slurm_spank_slurmd_init", "slurm_spank_slurmd_exit"}:
                self._slurmd = await scripts.open("slurmd", Variables({}))
                await scripts.call(self._slurmd, "slurm_spank_slurmd_init")
            await self._job_script("slurm_spank_job_prolog")
        if self._local is not None:
            await scripts.call(self._local, "slurm_spank_local_user_init", self._is_ours)
        if self._variables.control and not self._is_node:
            names = ", ".join(f"SPANK_{name}" for name in self._variables.control)
            self.request.journal.write(
                "info",
                f"{names}: set for the container as {_CONTROL}*; only Slurm's own lua.so can set "
                "it for Slurm's prolog and epilog",
            )
        scripts.end_if_idle()

    async def _job_script(self, callback: str) -> None:
        if callback in self._defined:
            control = {f"SPANK_{name}": text for name, text in self._variables.control.items()}
            context = await self._scripts.open("job_script", Variables(control))
            await self._scripts.call(context, callback)
            await self._scripts.close(context)

    # start

    async def run(self, job: Job, step: Step) -> Ending:
        # what was unset was in the environment of `create`, not in the container's
        added = {name: text for name, text in self._variables.changed.items() if text is not None}
        step = msgspec.structs.replace(
            step, variables={**added, **self._for_steps(), **step.variables}
        )
        if not self._is_node:
            return await job.run(self._readable(step))
        context = await self._begin_task(step)
        changed = {**step.variables, **context.variables.changed}
        status = _KILLED
        try:
            changed_step = msgspec.structs.replace(step, variables=changed)
            ending = await job.run(self._readable(changed_step))
            status = wait_status(ending)
        finally:
            with trio.CancelScope(shield=True):
                self._scripts.facts = msgspec.structs.replace(self._scripts.facts, status=status)
                await self._at_the_end(context, "slurm_spank_task_exit")
                await self._at_the_end(context, "slurm_spank_exit")
                await self._scripts.close(context)
                self._scripts.end_if_idle()
        return ending

    def _readable(self, step: Step) -> Step:
        """Leave out variables that config.json cannot hold."""
        kept = {
            name: text for name, text in step.variables.items() if is_unicode(f"{name}={text}")
        }
        for name in step.variables.keys() - kept.keys():
            self.request.journal.write(
                "error", f"variable {ascii(name)[1:-1]}: left out, not UTF-8"
            )
        return msgspec.structs.replace(step, variables=kept)

    async def _begin_task(self, step: Step) -> Context:
        scripts = self._scripts
        environment = await in_thread(environment_of, step.bundle, step.variables)
        scripts.facts = msgspec.structs.replace(scripts.facts, argv=step.arguments)
        context = await scripts.open("remote", Variables(environment))
        await scripts.call(context, "slurm_spank_init")
        for name, value in self._values.items():
            if name in context.options:
                await scripts.call_back(context, name, value)
        for callback in _BEFORE_THE_TASK:
            await scripts.call(context, callback)
        scripts.end_if_idle()
        return context

    # the end

    async def end(self) -> None:
        if self._local is not None:
            await self._at_the_end(self._local, "slurm_spank_exit")
        if self._is_node and self._has_job:
            with trio.move_on_after(_LAST):
                try:
                    await self._job_script("slurm_spank_job_epilog")
                except SpankError as error:
                    self.request.journal.write("error", str(error))
            if self._slurmd is not None:
                await self._at_the_end(self._slurmd, "slurm_spank_slurmd_exit")
        self._scripts.end()

    async def _at_the_end(self, context: Context, callback: str) -> None:
        with trio.move_on_after(_LAST) as patience:
            try:
                await self._scripts.call(context, callback, self._is_ours)
            except SpankError as error:
                self.request.journal.write("error", str(error))
        if patience.cancelled_caught:
            self.request.journal.write("error", f"{callback}: took longer than {_LAST:g} s")


def _option_variable(name: str) -> str:
    """Return the name of the variable in which salloc leaves an option for srun."""
    return _OPTION + "".join(letter if letter.isalnum() else "_" for letter in name)


def facts_of_job(
    before: JobFacts, job_id: str, environment: Mapping[str, str], arguments: Sequence[str]
) -> JobFacts:
    """Add what is known once there is a job, with its variables."""
    return msgspec.structs.replace(
        before,
        job=int(job_id) if job_id.isdecimal() else 0,
        nodes=_number(environment.get("SLURM_NNODES")) or 1,
        tasks=_number(environment.get("SLURM_NTASKS")) or 1,
        cpus=_number(environment.get("SLURM_JOB_CPUS_PER_NODE")),
        argv=tuple(arguments),
    )


def environment_of(bundle: str, more: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment of a staged bundle's task, and `more`; None removes a variable."""
    _, config = read_config(os.path.join(bundle, "config.json"))
    pairs = (entry.partition("=") for entry in config.process.env)
    environment: dict[str, str | None] = {name: value for name, _, value in pairs if name}
    environment.update(more)
    return {name: value for name, value in environment.items() if value is not None}


def wait_status(ending: Ending) -> int:
    """Return the wait status of a task (wait(2)).

    Shells, and so runtimes, return 128+n for a signal; a program that exits with such a status
    itself looks the same.
    """
    signal = ending.status - 128
    return signal if 0 < signal < 65 else ending.status << 8


def _number(text: str | None) -> int:
    """Return the number at the start of a text: 64 for `64(x2)`."""
    found = re.match(r"[0-9]{1,9}", text or "")
    return int(found[0]) if found else 0
