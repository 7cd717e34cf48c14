"""Allocate jobs and run containers in them with the tools of Slurm."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from scrun.errors import EngineUnavailable
from scrun.settings.requests import from_environment, salloc_arguments, srun_arguments
from scrun.settings.versions import SlurmVersion, features, parse_version
from supervisor.engines.base import Job, Request
from supervisor.engines.slurm.allocation import Held, hold
from supervisor.engines.slurm.cancel import cancel_job
from supervisor.engines.slurm.job import SlurmJob
from supervisor.engines.slurm.signals import read_kill_command
from supervisor.engines.slurm.tools import Tools, outer_id
from supervisor.processes import Setting, output_of
from supervisor.staging.plan import Target

_ANSWER = 10.0


class SlurmEngine:
    """One cluster (see `supervisor.engines.base.Engine`)."""

    name = "slurm"

    def __init__(
        self,
        tools: Tools,
        *,
        release_timeout: float,
        host_only: tuple[str, ...],
        defaults: Mapping[str, str],
    ) -> None:
        """Describe a cluster; nothing is asked yet but the oci.conf read.

        Args:
            tools: Its command-line tools.
            release_timeout: Seconds that giving a job back may take.
            host_only: Prefixes of mount sources that its nodes do not have.
            defaults: Requests for every job, by SCRUN_* variable.
        """
        self._tools = tools
        self._release_timeout = release_timeout
        self._host_only = host_only
        self._defaults = defaults
        self._kill = read_kill_command(tools.conf)
        self._version: SlurmVersion | None = None
        self._asking = trio.Lock()

    def tidy(self) -> None:
        """Nothing of Slurm's is here."""

    async def version(self, setting: Setting) -> SlurmVersion:
        """Return Slurm's version; it is asked for once.

        Raises:
            EngineUnavailable: salloc does not say.
        """
        async with self._asking:
            if self._version is None:
                command = [self._tools.salloc, "--version"]
                with trio.move_on_after(_ANSWER):
                    text = await output_of(command, self._tools.setting(setting))
                    self._version = parse_version(text)
            if self._version is None:
                raise EngineUnavailable(f"{self._tools.salloc} --version does not answer")
        return self._version

    async def target(self, setting: Setting) -> Target:
        """Describe the nodes: the user's own rights there are those of its real uid."""
        uid, gid = outer_id("uid"), outer_id("gid")
        return Target(
            engine="slurm",
            uid=uid,
            gid=gid,
            rootless=uid != 0,
            link_rootfs=features(await self.version(setting)).forces_rootfs,
            host_only=self._host_only,
        )

    @asynccontextmanager
    async def allocate(self, request: Request) -> AsyncIterator[Job]:
        """Hold a job for as long as the block lasts.

        Raises:
            AllocationRefused: Slurm gives none.
            SettingsError: This version of Slurm does not know a request.
        """
        version = await self.version(request.setting)
        wanted = {**self._defaults, **from_environment(request.setting.environment)}
        options = [
            f"--job-name={wanted.pop('SCRUN_JOB_NAME', 'scrun')}",
            *([] if "SCRUN_JOB_NUM_NODES" in wanted else ["--nodes=1"]),
            f"--chdir={wanted.pop('SCRUN_WORKING_DIR', request.directory)}",
            *salloc_arguments(wanted, version.release),
        ]
        step_options = srun_arguments(wanted, version.release)
        environment = request.setting.environment
        if job_id := environment.get("SLURM_JOB_ID"):  # we are called within a job: use that one
            request.known(job_id, False)
            theirs = {key: text for key, text in environment.items() if key.startswith("SLURM_")}
            yield SlurmJob(
                self._tools,
                features(version),
                self._kill,
                request,
                Held(job_id, theirs),
                step_options,
            )
            return
        async with hold(self._tools, request, options, self._release_timeout) as held:
            yield SlurmJob(self._tools, features(version), self._kill, request, held, step_options)

    async def release(self, job_id: str, setting: Setting, record: str) -> None:
        """Cancel a job by its id.

        Raises:
            EngineError: Slurm does not answer.
        """
        await cancel_job(self._tools, self._tools.setting(setting), job_id)
