"""The engine that runs containers on this machine.

A job here has a keepalive, which removes its container when we let go, or die. It is a shell that
reads removal commands from a socket of ours: the last one counts. So it has the job as long as
somebody has the other end: we, or what we have left for a successor.
"""

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec
import trio

from scrun.core.errors import EngineError
from scrun.core.job_numbers import next_job
from scrun.core.place import here
from scrun.core.typed import convert
from scrun.model.states import taken
from scrun.oci.signals import its_end
from scrun.settings.file.load import Local, RuntimeSettings
from scrun.settings.oci_conf.commands import node_runtime
from scrun.settings.oci_conf.parse import parse_oci_conf
from scrun.settings.slurm_conf import read_trusted_conf
from scrun.supervisor.children.persistent import foreign_process
from scrun.supervisor.children.processes import Child, ChildEnv, child
from scrun.supervisor.children.pumps import messages, received
from scrun.supervisor.contracts.deleter import Deleter
from scrun.supervisor.contracts.engine import Engine, Job, JobRequest
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.core.deposits import JOB, Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.names import user_name
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.local.commands import (
    RUNTIME,
    Commands,
    RuntimeCommands,
    RuntimeContainer,
    made_by,
)
from scrun.supervisor.engines.local.runtime_job import RuntimeJob
from scrun.supervisor.engines.local.runtimes import find_runtime
from scrun.supervisor.engines.local.site_commands import OciConfCommands
from scrun.supervisor.engines.local.site_job import LINE, CreatingSiteJob, SiteJob
from scrun.supervisor.engines.local.target import local_target
from scrun.supervisor.engines.watched import is_deferred

_SCRIPT = """\
text=$1
while IFS= read -r line; do text=$line; done
exec /bin/sh -c "$text" >/dev/null 2>&1 </dev/null
"""
_GRACE = 5.0
_RELEASE = 20.0


class Keepalive:
    """The keepalive of one job."""

    def __init__(self, process: Child, line: trio.socket.SocketType, deposit: Deposit) -> None:
        self.process = process
        self._line = line
        self._deposit = deposit

    async def tell(self, command: str) -> None:
        """Give it another removal command, which is one line."""
        if "\n" not in command:
            # if it was killed, the engine removes the container
            with contextlib.suppress(OSError):
                await self._line.send(f"{command}\n".encode(errors="surrogateescape"))

    async def end(self) -> None:
        """Let it remove the container, and wait for that."""
        self._deposit.drop(JOB)  # else it sees no end of file
        self._line.close()
        with trio.move_on_after(_RELEASE, shield=True):
            await self.process.wait()


@asynccontextmanager
async def kept_alive(
    command: str, child_env: ChildEnv, request: JobRequest
) -> AsyncIterator[Keepalive]:
    """Begin a keepalive, and keep it for a successor; it has ended when the block is left."""
    deposit = request.deposit
    ours, theirs = socket.socketpair()
    with theirs, trio.socket.from_stdlib_socket(ours) as line:
        async with (
            messages(
                lambda text: request.journal.write("info", text),
                lambda said: deposit.hold({f"{JOB}keepalive_said": said}),
            ) as stderr,
            child(
                ["/bin/sh", "-c", _SCRIPT, "sh", command],
                child_env,
                stdin=theirs.fileno(),
                stderr=stderr,
                grace=_GRACE,
                dies_with_us=False,
            ) as process,
        ):
            theirs.close()
            kept = {f"{JOB}line": ours.fileno(), f"{JOB}keepalive": process.pidfd}
            deposit.hold(kept, keepalive=process.pid)
            yield Keepalive(process, line, deposit)


@asynccontextmanager
async def taken_over(found: Inheritance, request: JobRequest) -> AsyncIterator[Keepalive]:
    """Take over the keepalive of a supervisor that has died."""
    ours = socket.socket(fileno=found.take(f"{JOB}line"))
    pid, pidfd = found.facts["keepalive"], found.take(f"{JOB}keepalive")
    with trio.socket.from_stdlib_socket(ours) as line:
        async with (
            received(
                found.take(f"{JOB}keepalive_said"),
                lambda text: request.journal.write("info", text),
            ),
            foreign_process(pid, pidfd, "keepalive", grace=_GRACE) as process,
        ):
            yield Keepalive(process, line, request.deposit)


_PATHS = 64


class LocalEngine(Engine):
    """This machine."""

    name = "local"
    adopts = True

    def __init__(self, root: str, settings: Local, runtime: RuntimeSettings) -> None:
        self._root = root
        self._settings = settings
        self._runtime = runtime
        self._commands: dict[str, Commands] = {}
        self._looking = trio.Lock()

    async def commands(self, child_env: ChildEnv) -> Commands:
        """Return the runtime's commands; each PATH of callers is searched once."""
        async with self._looking:
            path = child_env.environment.get("PATH", "")
            if path not in self._commands:
                if len(self._commands) >= _PATHS:
                    self._commands.clear()
                self._commands[path] = await in_thread(self._find, child_env.environment)
            return self._commands[path]

    def _find(self, environment: Mapping[str, str]) -> Commands:
        if (path := self._settings.oci_conf) is not None:
            conf = parse_oci_conf(read_trusted_conf(path, ()), path)
            uid = os.geteuid()
            user = user_name(uid)
            patterns = node_runtime(conf, self._runtime)
            return OciConfCommands(conf, os.uname().nodename, user, uid, patterns)
        # in a step they stay in its control group, with its limits
        in_step = bool(here().step)
        setting = self._settings.runtime
        return RuntimeCommands(find_runtime(setting, env=environment, may_limit=not in_step))

    def tidy(self) -> None:
        """Remove the counter of jobs, unless a container is left; numbers may be used again."""
        with contextlib.suppress(FileNotFoundError):
            records = (os.path.join(self._root, name) for name in os.listdir(self._root))
            if not any(os.path.lexists(os.path.join(path, RUNTIME)) for path in records):
                os.unlink(os.path.join(self._root, "@jobs"))

    async def target(self, child_env: ChildEnv) -> Target:
        commands = await self.commands(child_env)
        target = local_target(uid=os.geteuid(), gid=os.getegid(), maps_root=commands.maps_root)
        return msgspec.structs.replace(
            target,
            cgroups=commands.cgroups and target.cgroups,
            link_rootfs=commands.link_rootfs,
        )

    @asynccontextmanager
    async def allocate(self, request: JobRequest) -> AsyncIterator[Job]:
        """Hold a job: a keepalive process that removes the container when the block is left.

        It also removes it when the supervisor dies and nobody adopts the container.
        """
        commands = await self.commands(request.child_env)
        job_id = next_job(self._root)
        request.on_job_id(job_id, False)  # until the keepalive runs there is nothing to release
        container = RuntimeContainer(request.record, job_id, request.directory)
        child_env = commands.child_env(request.child_env)
        begun = kept_alive(commands.delete(container)[-1], child_env, request)
        async with self._held(begun, commands, container, request) as job:
            yield job

    @asynccontextmanager
    async def adopted(self, request: JobRequest, found: Inheritance) -> AsyncIterator[Job]:
        container = RuntimeContainer(request.record, found.facts["job"], request.directory)
        commands: RuntimeCommands | OciConfCommands | None
        if is_deferred(found):
            commands = convert(found.facts["commands"], OciConfCommands)
        else:
            commands = made_by(request.record)  # in the root directory, which does not hang
        if commands is None:
            raise EngineError(f"{request.record}: it does not name its OCI runtime")

        begun = taken_over(found, request)
        async with self._held(begun, commands, container, request, found) as job:
            yield job

    @asynccontextmanager
    async def _held(
        self,
        begun: AbstractAsyncContextManager[Keepalive],
        commands: Commands,
        container: RuntimeContainer,
        request: JobRequest,
        found: Inheritance | None = None,
    ) -> AsyncIterator[RuntimeJob | SiteJob]:
        """Hold a job by its keepalive; if that is killed, do its work."""
        job_id, lost = container.job_id, trio.Event()
        job: RuntimeJob | SiteJob | None = None
        try:
            async with begun as keepalive, unwrapped() as watching:

                @watching.start_soon
                async def watch() -> None:
                    await keepalive.process.wait()
                    lost.set()
                    text = f"job {job_id} was cancelled: its keepalive process was killed"
                    request.on_lost(taken("cancelled", text))

                if found is None:
                    request.on_job_id(job_id, True)

                async def tell(container: RuntimeContainer | None) -> None:
                    text = ":" if container is None else commands.delete(container)[-1]
                    await keepalive.tell(text)

                if isinstance(commands, RuntimeCommands):
                    job = RuntimeJob(commands, container, request, tell, found)
                else:
                    assert isinstance(commands, OciConfCommands)
                    creates = LINE in found.fds if found else commands.creates_first
                    of_site = CreatingSiteJob if creates else SiteJob
                    job = of_site(commands, container, request, tell, found)
                try:
                    yield job
                finally:
                    watching.cancel_scope.cancel()
                    await keepalive.end()
        finally:  # `on_lost` cancels the block
            if lost.is_set() and (job is None or not job.stays):
                with trio.CancelScope(shield=True):
                    await self.release(job_id, request.child_env, request.record)

    async def release(self, job_id: str, child_env: ChildEnv, record: str) -> None:
        """Remove the container of a job whose keepalive is gone."""
        # the runtime that made the container knows it; another one need not
        commands = await in_thread(made_by, record) or await self.commands(child_env)
        await _remove(commands, RuntimeContainer(record, job_id), child_env)

    async def release_for(
        self, job_id: str, child_env: ChildEnv, record: str, deleter: Deleter
    ) -> None:
        commands, container = await in_thread(made_by, record), RuntimeContainer(record, job_id)
        if commands is None:
            await self.release(job_id, child_env, record)
            return
        try:
            await _remove(commands, container, deleter.child_env, deleter.directory)
        except OSError:  # its directory is gone
            await _remove(commands, container, deleter.child_env)


async def _remove(
    commands: Commands, container: RuntimeContainer, child_env: ChildEnv, directory: str = "/"
) -> None:
    errors: list[str] = []
    command, env = commands.delete(container), commands.child_env(child_env)
    async with messages(errors.append) as stderr:
        async with child(command, env, stderr=stderr, directory=directory) as delete:
            with trio.move_on_after(_RELEASE):
                await delete.wait()
        status = await delete.wait()
    gone = ("does not exist", "No such process")
    if status and not any(word in line for line in errors for word in gone):
        reason = errors[-1] if errors else f"the runtime {its_end(status)}"
        raise EngineError(f"the runtime cannot remove the container: {reason}")
