"""The values for the patterns of an oci.conf(5). Pure.

slurmstepd makes a directory for each step, and in it one for each task, where it writes the
config.json for the OCI runtime and the file with the environment. The embedded engine does the
same, and `scrun oci-conf render` shows it.
"""

import os

import msgspec

from scrun.settings.oci_conf.parse import OciConf
from scrun.settings.oci_conf.patterns import substitute

NO_PID = (1 << 22) + 1
"""A number that no process can have (PID_MAX_LIMIT). 0 would be the process group of kill's
caller."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a step: one container.

    Attributes:
        job: The job's number, `%j`.
        step: The step's number, `%s`.
        task: The task's number, `%t`.
        node: The node's name, `%n`.
        user: The user's name, `%u`.
        uid: The user's number, `%U`.
        spool: The directory for directories of steps, unless ContainerPath names another.
        directory: The job's working directory, `%Z`.
        bundle: The bundle that the runtime gets, `%b`.
        rootfs: The root file system, `%r`.
        pid: The first process that was started for it, `%p`.
        arguments: The command, `%@`; None if unknown.
    """

    job: str
    node: str
    user: str
    uid: int
    spool: str
    step: str = "0"
    task: str = "0"
    directory: str = "/"
    bundle: str = ""
    rootfs: str = ""
    pid: int = NO_PID
    arguments: tuple[str, ...] | None = None

    def step_directory(self, conf: OciConf) -> str:
        """Return the step's directory, `%m`.

        Raises:
            SettingsError: ContainerPath has a letter without a value.
        """
        parent = self.spool
        if conf.container_path is not None:
            parent = substitute(conf.container_path, self._values(), shell=False)
        return os.path.join(parent, f"oci-job{self.job}-{self.step}")

    def task_directory(self, conf: OciConf) -> str:
        """Return the task's directory, with config.json and the environment."""
        return os.path.join(self.step_directory(conf), f"task-{self.task}")

    def mount_point(self, conf: OciConf) -> str | None:
        """Return the step's directory in the container, if MountSpoolDir is set."""
        if conf.mount_spool_dir is None:
            return None
        return substitute(conf.mount_spool_dir, self._all_values(conf), shell=False)

    def fill(self, pattern: str, conf: OciConf, **more: str) -> str:
        """Fill in a command.

        `more` are values for additional letters.

        Raises:
            SettingsError: A value is missing, or cannot be quoted safely.
        """
        values = {**self._all_values(conf), **more}
        arguments = ["/bin/false"] if self.arguments is None else self.arguments
        return substitute(pattern, {**values, "@": arguments})

    def _values(self) -> dict[str, str]:
        return {
            "b": self.bundle,
            "j": self.job,
            "n": self.node,
            "p": str(self.pid),
            "r": self.rootfs,
            "s": self.step,
            "t": self.task,
            "u": self.user,
            "U": str(self.uid),
            "Z": self.directory,
        }

    def _all_values(self, conf: OciConf) -> dict[str, str]:
        environment = os.path.join(self.task_directory(conf), ENVIRONMENT)
        return {**self._values(), "e": environment, "m": self.step_directory(conf)}


ENVIRONMENT = "environment"
