"""The commands of a site's oci.conf(5), run as slurmstepd runs them.

Before, what slurmstepd writes for a task is written, which may block: the runtime gets a bundle of
its own, the staged config.json, changed as oci.conf asks (environment, hooks, mounts).
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from scrun.core.errors import StagingError, why
from scrun.core.trees import remove_tree
from scrun.settings.oci_conf.commands import ENVIRONMENT, NO_PID, NodeRuntime, Task, TaskCommands
from scrun.settings.oci_conf.parse import OciConf
from scrun.settings.oci_conf.patterns import without
from scrun.supervisor.children.node_scripts import PROCESS_FILE
from scrun.supervisor.children.processes import ChildEnv, own_program
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.core.files import make_private, not_ours, write
from scrun.supervisor.engines.local.commands import RuntimeContainer, program
from scrun.supervisor.engines.local.runtime_config import changed_config
from scrun.supervisor.shim.site import NO_PLACE, environment_file

_CONFIG = "config.json"
_REAPER = program("reapers", "site_commands")


class OciConfCommands(msgspec.Struct, frozen=True):
    """The commands of an oci.conf: RunTimeRun, or RunTimeCreate, RunTimeStart and RunTimeQuery.

    See `supervisor.engines.local.commands.Commands`.

    Attributes:
        node: This machine's name, `%n`.
        user: The user's name, `%u`.
        uid: The user's id, `%U`.
        patterns: The commands for running containers, from oci.conf and scrun.toml.
    """

    conf: OciConf
    node: str
    user: str
    uid: int
    patterns: NodeRuntime

    cgroups = True  # resources are left to the site's commands
    maps_root = True  # it may be runc

    @property
    def link_rootfs(self) -> bool:
        """Whether it has to be in the bundle: a command that ignores config.json looks there."""
        return self.conf.ignore_file_config_json

    @property
    def is_container(self) -> bool:
        """Whether the commands make an OCI container, and not just a process."""
        return not self.conf.ignore_file_config_json

    def child_env(self, child_env: ChildEnv) -> ChildEnv:
        """Apply RunTimeEnvExclude (see `Commands`)."""
        environment = without(child_env.environment, self.conf.run_time_env_exclude)
        return msgspec.structs.replace(child_env, environment=environment)

    def prepare(
        self, container: RuntimeContainer, step: Step, variables: dict[str, str]
    ) -> RuntimeContainer:
        task = self._task(container)
        bundle, rootfs = write_task(self.conf, task, step, variables)
        return msgspec.structs.replace(
            container, bundle=bundle, rootfs=rootfs, arguments=tuple(step.arguments)
        )

    def working_directory(self, container: RuntimeContainer) -> str:
        """Return the working directory of `run`: the task's directory, as in Slurm since 23.02."""
        return self._task(container).task_directory(self.conf)

    @property
    def creates_first(self) -> bool:
        """Whether the commands can create an OCI container without starting it."""
        return self.is_container and self.conf.run_time_run is None

    def run(self, container: RuntimeContainer, log: str) -> list[str]:
        """Return the command that runs a container; it ends as that, and has JSON in its log."""
        if (run := self._of(container).run()) is not None:
            return ["/bin/sh", "-c", run]
        return self.create(container, log, -1)

    def create(self, container: RuntimeContainer, log: str, line: int) -> list[str]:
        """Return the command that creates a container, and goes on as `run` when it is told to.

        `line` is the descriptor of the socket (see `supervisor.reapers.site_commands`); -1: it is
        to start without a word.
        """
        of_task = self._of(container)
        words = [of_task.create(), of_task.start(), of_task.query()]
        return [sys.executable, "-I", "-S", _REAPER, str(line), log, *words]

    def kill(self, container: RuntimeContainer, number: int) -> list[str]:
        return ["/bin/sh", "-c", self._of(container).kill(number)]

    def delete(self, container: RuntimeContainer) -> list[str]:
        """Call RunTimeDelete and remove the task's files (see `Commands`)."""
        of_task = self._of(container)
        text = f"(eval {shlex.quote(of_task.delete())}); s=$?"
        if container.foreground:
            text += f"; kill -s TERM {container.foreground} 2>/dev/null"
        if not self.is_container and container.pid:
            text += f"; kill -s KILL -- -{container.pid} 2>/dev/null"
        if not self.conf.disable_cleanup:
            made = of_task.task.step_directory(self.conf)
            rm = own_program("rm")
            text += f"; {rm} -rf --one-file-system -- {shlex.quote(made)}"
        return ["/bin/sh", "-c", f"{text}; exit $s"]

    def state(self, container: RuntimeContainer) -> str:
        return self._of(container).state()

    def exec(self, container: RuntimeContainer, preserved: Sequence[int] = ()) -> str:
        """The site's command gets no descriptors beyond the standard three."""
        del preserved
        return self._of(container).exec()

    def pause(self, container: RuntimeContainer, *, resume: bool) -> str:
        return self._of(container).pause(resume=resume)

    def update(self, container: RuntimeContainer) -> str:
        """Return "": oci.conf has no command for it."""
        del container
        return ""

    def _of(self, container: RuntimeContainer) -> TaskCommands:
        return TaskCommands(self.conf, self.patterns, self._task(container), PROCESS_FILE)

    def _task(self, container: RuntimeContainer) -> Task:
        """Describe the container as a task of Slurm.

        Each root directory counts its own jobs, so a job's number is not unique. `%j` is a number
        that no other container on this machine has, and begins with the job's. So every pattern
        for an id in Slurm's documentation stays unique.
        """
        return Task(
            job=f"{container.job_id}{int.from_bytes(container.digest):010}",
            node=self.node,
            user=self.user,
            uid=self.uid,
            spool=container.record,
            directory=container.directory,
            bundle=container.bundle or os.path.join(container.record, "bundle"),
            rootfs=container.rootfs,
            pid=container.pid or NO_PID,
            arguments=container.arguments or None,
        )


def write_task(
    conf: OciConf, task: Task, step: Step, variables: Mapping[str, str]
) -> tuple[str, str]:
    """Write the files of a task; return the bundle for the runtime, and the root file system.

    Raises:
        StagingError: They cannot be written.
        SettingsError: A pattern has no value here.
    """
    made, inner = task.step_directory(conf), task.task_directory(conf)
    try:
        with open(os.path.join(step.bundle, _CONFIG), "rb") as file:
            config: dict[str, Any] = msgspec.json.decode(file.read())
        _remove_older(made)
        make_private(made, NO_PLACE)
        os.mkdir(inner, 0o700)
        rootfs = os.path.join(step.bundle, config["root"]["path"])
        environment = _environment(conf, config, variables)
        if conf.create_env_file != "disabled":
            pairs = (f"{name}={value}" for name, value in environment.items())
            text = environment_file(pairs, newlines=conf.create_env_file == "newline")
            write(os.path.join(inner, ENVIRONMENT), text.encode(errors="surrogateescape"))
        if conf.ignore_file_config_json:
            return step.bundle, rootfs
        mount = task.mount_point(conf)
        changed = changed_config(
            config, conf, arguments=step.arguments, environment=environment, bundle=step.bundle,
            mount=(made, mount) if mount else None,
        )  # fmt: skip
        write(os.path.join(inner, _CONFIG), msgspec.json.encode(changed))
    except OSError as error:
        raise StagingError(f"{inner}: {why(error, NO_PLACE)}") from error
    return inner, rootfs


def _environment(
    conf: OciConf, config: Mapping[str, Any], variables: Mapping[str, str]
) -> dict[str, str]:
    """Return the container's variables: the job's, overridden by those of config.json."""
    own = (entry.partition("=") for entry in config["process"].get("env") or [])
    return without({**variables, **{name: value for name, _, value in own}}, conf.env_exclude)


def _remove_older(made: str) -> None:
    """Remove what DisableCleanup left of an older container of this number."""
    if not os.path.lexists(made):
        return
    if reason := not_ours(made):
        raise StagingError(f"{made}: {reason}; {NO_PLACE}")
    remove_tree(made)
