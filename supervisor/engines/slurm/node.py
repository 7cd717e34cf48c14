"""The commands of the nodes' OCI runtime, from the site's configuration."""

import msgspec

from scrun.core.errors import EngineError, SettingsError
from scrun.core.paths import real_id
from scrun.oci.signals import signal_name
from scrun.settings.oci_conf.commands import NodeRuntime, signalled
from scrun.settings.oci_conf.patterns import substitute
from scrun.supervisor.children.node_scripts import PROCESS_FILE
from scrun.supervisor.core.names import user_name


class NodeCommands(msgspec.Struct, frozen=True):
    """A site's command patterns, filled in for the container of one task of a step."""

    patterns: NodeRuntime

    def kill(self, step_id: str, node: str, number: int, task: int = 0) -> str:
        """Return the command that signals the container's first process.

        Raises:
            SettingsError: The pattern needs what only slurmstepd knows, such as the bundle's path.
        """
        return self._filled(
            signalled(self.patterns.kill, signal_name(number)), step_id, node, task
        )

    def state(self, step_id: str, node: str, task: int = 0) -> str:
        """Return the command that prints the container's state, or "" if it is not known."""
        try:
            return self._filled(self.patterns.state, step_id, node, task)
        except SettingsError:
            return ""

    def exec(self, step_id: str, node: str, task: int = 0) -> str:
        """Return the command that runs another program.

        Raises:
            EngineError: The site has no such command.
            SettingsError: See `kill`.
        """
        if not self.patterns.exec:
            raise EngineError(
                "exec: the site's oci.conf has no command for it: set `exec` in the "
                "section [runtime] of scrun.toml"
            )
        return self._filled(self.patterns.exec, step_id, node, task)

    def pause(self, *, resume: bool, step_id: str, node: str, task: int) -> str:
        """Return the command that pauses or resumes the container, or ""."""
        pattern = self.patterns.resume if resume else self.patterns.pause
        return self._filled(pattern, step_id, node, task)

    def _filled(self, pattern: str, step_id: str, node: str, task: int) -> str:
        """Fill in a pattern, for the shell.

        `%t` is the index of a task among those of its node (22.05, measured: the second node's
        container is `….0.node2`; 24.11, from its source).
        """
        job, _, step = step_id.partition(".")
        uid = real_id("uid")
        values = {"j": job, "s": step, "t": str(task), "n": node, "f": PROCESS_FILE}
        values |= {"u": user_name(uid), "U": str(uid)}
        return substitute(pattern, values)
