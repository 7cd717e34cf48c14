"""Which oci.conf(5) counts for the containers of a shim, and what its commands are for each."""

import os
import shlex
import signal
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import trio

from scrun.core.errors import EngineError, SettingsError
from scrun.core.paths import real_id
from scrun.core.typed import convert
from scrun.model.states import Ending, not_run
from scrun.settings.file.load import RuntimeSettings
from scrun.settings.oci_conf.commands import NodeRuntime, Task, TaskCommands, node_runtime
from scrun.settings.oci_conf.parse import OciConf, parse_oci_conf
from scrun.settings.oci_conf.patterns import extended
from scrun.supervisor.children.node_scripts import PROCESS_FILE, exec_script, process_variables
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.core.names import user_name
from scrun.supervisor.engines.failures import program_failure
from scrun.supervisor.engines.local.runtime_config import changed_config
from scrun.supervisor.nodes.connection import Hello, Shim, ShimError
from scrun.supervisor.nodes.streams import ContainerStreams

HAS_OCI_CONF = """\
conf=${SLURM_CONF:-/etc/slurm/slurm.conf}
[ -e "${conf%/*}/oci.conf" ] || echo none
echo .
"""
"""Says `none` on a node without an oci.conf: slurmd tells its steps where slurm.conf is."""

_MAKES = """\
place=%s
while [ ! -e "${place:=/}" ]; do place=${place%%/*}; done
[ -d "$place" ] && [ -w "$place" ] && [ -x "$place" ] || echo "$place"
"""
"""Says which directory keeps the user from making another one."""

_KNOWN = 5.0
_MOST_KNOWN = 1000
_RETRY = 0.05


class SiteConfs:
    """The oci.conf of this machine, `here` or None, and those of nodes that have another one."""

    def __init__(self, here: bytes | None, conf: OciConf | None, runtime: RuntimeSettings) -> None:
        """`here`: the content of the oci.conf beside slurm.conf, or None."""
        self._runtime = runtime
        self.here = conf
        self._sum = None if here is None else zlib.crc32(here)
        self._known: OrderedDict[str, tuple[int, OciConf]] = OrderedDict()

    async def of_node(self, hello: Hello, shim: Shim) -> "NodeSite | None":
        """Return what counts on a shim's node: its own oci.conf, else that of this machine.

        What a node says that it has is used there only: a sum is easily that of another one.
        Raises SettingsError if the node's is wrong, and ShimLost if the shim has gone.
        """
        conf = self.here
        if hello.oci_conf and hello.oci_conf_sum != self._sum:
            known, conf = self._known.get(shim.place, (0, None))
            if conf is None or known != hello.oci_conf_sum:
                conf = await self._read(hello, shim)
        if conf is None:
            return None
        return NodeSite(conf, node_runtime(conf, self._runtime), hello)

    async def is_unseen(self, shim: Shim) -> bool:
        """Tell whether a node has one after all, which it shows to slurmstepd only."""
        reply = await shim.call("script", script=HAS_OCI_CONF)
        return "none" not in reply["text"]

    def again(self, facts: Mapping[str, Any], hello: Hello) -> "NodeSite":
        """Return what counted on a node when a dead supervisor began to use it."""
        conf = convert(facts, OciConf)
        return NodeSite(conf, node_runtime(conf, self._runtime), hello)

    async def _read(self, hello: Hello, shim: Shim) -> OciConf:
        where = f"{hello.node}: {hello.oci_conf}"
        reply = await shim.call("script", script=f"exec cat -- {shlex.quote(hello.oci_conf)}")
        if reply["status"]:
            raise SettingsError(f"{where}: {reply['text'].strip()}")
        conf = parse_oci_conf(reply["text"], where)
        if shim.place:
            self._known[shim.place] = hello.oci_conf_sum, conf
            self._known.move_to_end(shim.place)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return conf


class NodeSite:
    """An oci.conf that counts on a node, for the containers of one shim."""

    def __init__(self, conf: OciConf, patterns: NodeRuntime, hello: Hello) -> None:
        self._conf, self._patterns, self._hello = conf, patterns, hello
        self._next = 0

    def facts(self) -> dict[str, object]:
        """Return what another supervisor has to know, for JSON."""
        facts: dict[str, object] = msgspec.to_builtins(self._conf)
        return facts

    @property
    def where(self) -> str:
        """What to call it, in the log."""
        return self._hello.oci_conf or "oci.conf"

    @property
    def tells_apart(self) -> bool:
        """Whether its commands name containers of one step differently.

        A member of a pod has its own number for that, `%t`; without an id there is `%p`.
        """
        conf = self._conf
        return conf.ignore_file_config_json or "%t" in (
            conf.run_time_run or conf.run_time_create or ""
        )

    async def forbidden(self, shim: Shim) -> str:
        """Return why the user cannot make the directory for steps, or ""; slurmstepd is root."""
        if self._conf.container_path is None:
            return ""
        from scrun.supervisor.shim.site import NO_PLACE

        path = os.path.dirname(self._task("0", "/").step_directory(self._conf))
        reply = await shim.call("script", script=_MAKES % shlex.quote(path))
        if not (place := reply["text"].strip()):
            return ""
        return f"{path}: {place}: Permission denied; {NO_PLACE}"

    def container(
        self,
        job: str,
        directory: str,
        step: Step,
        config: Mapping[str, Any],
        number: int | None = None,
    ) -> "SiteContainer":
        """Return what is run for another container, given its config.json with absolute paths.

        `number` is that of its task; without it, of its place among the shim's containers. Raises
        SettingsError if a pattern has no value here, or one that cannot be quoted.
        """
        task = msgspec.structs.replace(
            self._task(job, directory),
            task=str(self._next if number is None else number),
            bundle=step.bundle,
            rootfs=config["root"]["path"],
            pid=int.from_bytes(os.urandom(8)) | 1 << 63,
            arguments=tuple(step.arguments),
        )
        if not self._conf.ignore_file_config_json:
            task = msgspec.structs.replace(task, bundle=task.task_directory(self._conf))
        return self._of(task, step.bundle, listens=not (step.program_is_known or step.terminal))

    def _task(self, job: str, directory: str) -> Task:
        uid = real_id("uid")
        environment = self._hello.environment
        return Task(
            job=job,
            step=environment.get("SLURM_STEP_ID", "0"),
            node=environment.get("SLURMD_NODENAME") or self._hello.node,
            user=user_name(uid),
            uid=uid,
            spool=self._hello.directory,
            directory=directory,
        )

    def again(self, facts: Mapping[str, Any]) -> "SiteContainer":
        """Return what is run for a container that another supervisor has made."""
        task = convert(facts["task"], Task)
        return self._of(task, facts["bundle"], listens=facts["listens"])

    def _of(self, task: Task, bundle: str, *, listens: bool) -> "SiteContainer":
        self._next = max(self._next, int(task.task) + 1)
        commands = TaskCommands(self._conf, self._patterns, task, PROCESS_FILE)
        return SiteContainer(commands, bundle, listens=listens)


class SiteContainer:
    """What a shim runs by an oci.conf for one container (`site` of `supervisor.shim`)."""

    def __init__(self, commands: TaskCommands, bundle: str, *, listens: bool) -> None:
        self._commands = commands
        self._bundle = bundle
        self._listens = listens

    def facts(self) -> dict[str, object]:
        """Return what another supervisor has to know, for JSON."""
        task = msgspec.to_builtins(self._commands.task)
        return {"task": task, "bundle": self._bundle, "listens": self._listens}

    def fields(self) -> dict[str, object]:
        """Return the call's `site`."""
        commands, conf = self._commands, self._commands.conf
        texts = {"kill": commands.kill(signal.SIGKILL), "delete": commands.delete()}
        if (run := commands.run()) is not None:
            texts["run"] = run
        else:
            texts |= {"create": commands.create(), "start": commands.start()}
            texts["query"] = commands.query()
        return {
            "commands": texts,
            "pid": str(commands.task.pid),
            "step": commands.task.step_directory(conf),
            "task": commands.task.task_directory(conf),
            "keep": conf.disable_cleanup,
            "file": conf.create_env_file,
            "hides": _expression(conf.env_exclude),
            "withheld": _expression(conf.run_time_env_exclude),
            "config": commands.is_container,
        }

    def changed(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the config.json for the runtime: what slurmstepd would make of it."""
        commands, conf = self._commands, self._commands.conf
        if not commands.is_container:
            return config
        process = config["process"]
        pairs = (entry.partition("=") for entry in process.get("env") or ())
        mount = commands.task.mount_point(conf)
        return changed_config(
            config, conf, arguments=process["args"],
            environment={name: value for name, _, value in pairs}, bundle=self._bundle,
            mount=(commands.task.step_directory(conf), mount) if mount else None,
        )  # fmt: skip

    async def signal(
        self, shim: Shim, target: str, number: int, is_over: Callable[[], bool]
    ) -> None:
        """Let RunTimeKill signal the first process; EngineError if that was not delivered."""
        command, reason = self._commands.kill(number), "its node does not answer"
        with trio.move_on_after(_KNOWN) as patience:
            # the runtime does not know a container for some milliseconds after its start
            while not is_over():
                try:
                    await shim.call("signal", id=target, number=number, all=False, command=command)
                    return
                except ShimError as error:
                    reason = str(error)
                await trio.sleep(_RETRY)
        if patience.cancelled_caught:
            raise EngineError(f"the signal was not delivered: {reason}")

    def exec(self, process: Mapping[str, Any]) -> dict[str, object]:
        """Return the members of the call `exec` for a program.

        Raises:
            EngineError: The site has no command for it.
            BundleError: Its description is too long.
        """
        variables = process_variables(process)
        script = exec_script(self._commands.exec(), self.state, variables)
        return {"command": script, "variables": variables}

    def not_run(self, code: int, streams: ContainerStreams) -> Ending | None:
        """Return the ending of a container whose program the runtime did not find.

        Only RunTimeRun ends with its container, and has to be heard for that: its streams have
        ended.
        """
        return program_missing(code, streams) if self._listens else None

    @property
    def state(self) -> str:
        """The command that prints the container's state; "" if unknown."""
        return self._commands.state()

    def pause(self, *, resume: bool) -> str:
        """Return the command that pauses or resumes it; "" for signals."""
        return self._commands.pause(resume=resume)


def program_missing(code: int, streams: ContainerStreams) -> Ending | None:
    """Return how what runs in the foreground ended, if the runtime did not find the program."""
    if not code:
        return None
    status = program_failure(streams.first_errors.decode(errors="replace"))
    return None if status is None else not_run(status)


def _expression(text: str | None) -> str | None:
    """Return an expression of oci.conf(5) as one of Python's."""
    return None if text is None else extended(text).pattern
