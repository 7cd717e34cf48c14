"""What an oci.conf(5) has run for one task: its commands, filled in. Pure.

The embedded engine runs it on this machine, and a shim on its node.
"""

import msgspec

from scrun.core.errors import EngineError
from scrun.oci.signals import signal_name
from scrun.settings.oci_conf.node_runtime import NodeRuntime, signalled
from scrun.settings.oci_conf.parse import OciConf
from scrun.settings.oci_conf.shell_commands import in_place_of_the_shell, portable
from scrun.settings.oci_conf.task import Task


class TaskCommands(msgspec.Struct, frozen=True):
    """The commands for a task, as text for `sh -c`.

    Each raises SettingsError if a pattern needs a value that there is not.

    Attributes:
        patterns: The commands for running containers, from oci.conf and scrun.toml.
        file: The path of what `exec` runs, `%f`.
    """

    conf: OciConf
    patterns: NodeRuntime
    task: Task
    file: str

    @property
    def is_container(self) -> bool:
        """Whether they make an OCI container, and not just a process."""
        return not self.conf.ignore_file_config_json

    def run(self) -> str | None:
        """Return RunTimeRun, which runs in the foreground; None if there are the next three."""
        pattern = self.conf.run_time_run
        return None if pattern is None else self._filled(in_place_of_the_shell(pattern))

    def create(self) -> str:
        """Return RunTimeCreate."""
        return self._filled(self.conf.run_time_create or "false")

    def start(self) -> str:
        """Return RunTimeStart."""
        return self._filled(self.conf.run_time_start or "false")

    def query(self) -> str:
        """Return RunTimeQuery."""
        return self._filled(self.conf.run_time_query or "false")

    def kill(self, number: int) -> str:
        """Return RunTimeKill for a signal: it names one, or takes one at its end."""
        pattern = self.conf.run_time_kill or ("false" if self.is_container else "kill %p")
        return self._filled(signalled(pattern, signal_name(number)))

    def delete(self) -> str:
        """Return RunTimeDelete."""
        return self._filled(portable(self.conf.run_time_delete or "true"))

    def state(self) -> str:
        """Return the command that prints the container's state; "" if unknown."""
        return self._filled(self.patterns.state)

    def exec(self) -> str:
        """Return the command that runs one more program.

        Raises:
            EngineError: The site has none.
        """
        if not self.patterns.exec:
            raise EngineError(
                "exec: the site's oci.conf has no command for it: set `exec` in the section "
                "[runtime] of scrun.toml"
            )
        return self._filled(self.patterns.exec)

    def pause(self, *, resume: bool) -> str:
        """Return the command that pauses or resumes the container; "" for signals."""
        return self._filled(self.patterns.resume if resume else self.patterns.pause)

    def _filled(self, pattern: str) -> str:
        return self.task.fill(pattern, self.conf, f=self.file)
