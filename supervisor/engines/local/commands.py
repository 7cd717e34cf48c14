"""The commands by which a container is run, signalled and removed on this machine.

Either those of an OCI runtime that was found (crun, runc), or those that a site has written down
in an oci.conf(5). Pure: lists of words.
"""

import os
import shlex
import sys
from typing import Protocol

import msgspec

from scrun.errors import EngineError
from scrun.oci.signals import signal_name
from scrun.settings.node_runtime import NodeRuntime
from scrun.settings.ociconf import OciConf, substitute
from supervisor import runtimes
from supervisor.engines.script import PROCESS_FILE
from supervisor.runtimes import Runtime

_MINDER = os.path.join(os.path.dirname(__file__), "minder.py")


class Commands(Protocol):
    """What has to be known of a runtime."""

    @property
    def cgroups(self) -> bool:
        """Whether the runtime applies config.json's resources here."""
        ...

    @property
    def maps_root(self) -> bool:
        """Whether the runtime wants user 0 in every id map."""
        ...

    def place(self, container: str) -> str:
        """Say where the runtime keeps what it knows of a container; "" if that is not known."""
        ...

    def run(self, container: str, bundle: str, log: str) -> list[str]:
        """Run a container in the foreground; the command's exit status is the container's."""
        ...

    def kill(self, container: str, bundle: str, number: int) -> list[str]:
        """Send a signal to a container's first process."""
        ...

    def delete(self, container: str, bundle: str) -> list[str]:
        """End and remove a container, if there is one."""
        ...

    def state(self, container: str, bundle: str) -> str:
        """Print a container's state: a command for a shell."""
        ...

    def exec(self, container: str, bundle: str) -> str:
        """Run the program that the file `PROCESS_FILE` describes: a command for a shell.

        Raises:
            EngineError: The site has none.
        """
        ...

    def hold(self, container: str, bundle: str, *, resume: bool) -> str:
        """Pause or resume a container: a command for a shell; "" for signals instead."""
        ...

    def update(self, container: str, bundle: str) -> str:
        """Change limits, to those on standard input; "" where that is not possible."""
        ...


class RuntimeCommands(msgspec.Struct, frozen=True):
    """Those of a runtime with the command line of crun and runc."""

    runtime: Runtime
    root: str

    @property
    def cgroups(self) -> bool:
        """Whether the runtime applies config.json's resources here."""
        return self.runtime.cgroups

    @property
    def maps_root(self) -> bool:
        """Whether the runtime wants user 0 in every id map."""
        return self.runtime.maps_root

    def place(self, container: str) -> str:
        """See `Commands`. crun and runc make a directory."""
        return os.path.join(self.root, container)

    def run(self, container: str, bundle: str, log: str) -> list[str]:
        """See `Commands`."""
        return runtimes.run_command(
            self.runtime, root=self.root, bundle=bundle, id=container, log=log
        )

    def kill(self, container: str, bundle: str, number: int) -> list[str]:
        """See `Commands`."""
        del bundle
        return runtimes.kill_command(
            self.runtime, root=self.root, id=container, signal=signal_name(number)
        )

    def delete(self, container: str, bundle: str) -> list[str]:
        """See `Commands`."""
        del bundle
        return runtimes.delete_command(self.runtime, root=self.root, id=container)

    def state(self, container: str, bundle: str) -> str:
        """See `Commands`."""
        del bundle
        return self._shell("state", container)

    def exec(self, container: str, bundle: str) -> str:
        """See `Commands`."""
        del bundle
        return self._shell("exec", "--process", PROCESS_FILE, container)

    def hold(self, container: str, bundle: str, *, resume: bool) -> str:
        """See `Commands`. crun and runc do it by a cgroup."""
        del bundle
        if not self.cgroups:
            return ""
        return self._shell("resume" if resume else "pause", container)

    def update(self, container: str, bundle: str) -> str:
        """See `Commands`."""
        del bundle
        return self._shell("update", "--resources", "-", container) if self.cgroups else ""

    def _shell(self, *words: str) -> str:
        return shlex.join(runtimes.command(self.runtime, *words, root=self.root))


class OciConfCommands(msgspec.Struct, frozen=True):
    """Those of an oci.conf: RunTimeRun, or RunTimeCreate, RunTimeStart and RunTimeQuery.

    Attributes:
        conf: The file's content.
        node: This machine's name, `%n`.
        user: The user's name, `%u`, and `uid`, `%U`.
        uid: See user.
        patterns: What it says about running containers, and what scrun.toml says.
    """

    conf: OciConf
    node: str
    user: str
    uid: int
    patterns: NodeRuntime

    @property
    def cgroups(self) -> bool:
        """Whether resources are applied: the site's commands are taken to know."""
        return True

    @property
    def maps_root(self) -> bool:
        """Whether the runtime wants user 0 in every id map: it may be runc."""
        return True

    def place(self, container: str) -> str:
        """See `Commands`."""
        del container
        return ""

    def run(self, container: str, bundle: str, log: str) -> list[str]:
        """See `Commands`."""
        del log
        if self.conf.run_time_run is not None:
            return self._shell(self.conf.run_time_run, container, bundle)
        patterns = (
            self.conf.run_time_create,
            self.conf.run_time_start,
            self.conf.run_time_query,
        )
        words = [self._shell(pattern or "false", container, bundle)[2] for pattern in patterns]
        return [sys.executable, "-I", "-S", _MINDER, *words]

    def kill(self, container: str, bundle: str, number: int) -> list[str]:
        """See `Commands`. RunTimeKill names a signal at its end, or takes one there."""
        pattern = f"{self.conf.kill_pattern or 'false'} {signal_name(number)}"
        return self._shell(pattern, container, bundle)

    def delete(self, container: str, bundle: str) -> list[str]:
        """See `Commands`."""
        return self._shell(self.conf.run_time_delete or "true", container, bundle)

    def state(self, container: str, bundle: str) -> str:
        """See `Commands`."""
        return self._filled(self.patterns.state, container, bundle)

    def exec(self, container: str, bundle: str) -> str:
        """See `Commands`."""
        if not self.patterns.exec:
            raise EngineError(
                "exec: the oci.conf has no command that tells how: set `exec` in the section "
                "[runtime] of scrun.toml"
            )
        return self._filled(self.patterns.exec, container, bundle)

    def hold(self, container: str, bundle: str, *, resume: bool) -> str:
        """See `Commands`."""
        pattern = self.patterns.resume if resume else self.patterns.pause
        return self._filled(pattern, container, bundle)

    def update(self, container: str, bundle: str) -> str:
        """See `Commands`: oci.conf has no command for it."""
        del container, bundle
        return ""

    def _shell(self, pattern: str, container: str, bundle: str) -> list[str]:
        return ["/bin/sh", "-c", self._filled(pattern, container, bundle)]

    def _filled(self, pattern: str, container: str, bundle: str) -> str:
        # %j is all of the id: with %u, %s, %t and %n, which are the same for every container,
        # each pattern for an id that Slurm's documentation shows stays unique.
        values = {
            "b": bundle,
            "e": os.path.join(bundle, "environment"),
            "f": PROCESS_FILE,
            "j": container,
            "m": bundle,
            "n": self.node,
            "p": "0",
            "r": os.path.join(bundle, "rootfs"),
            "s": "0",
            "t": "0",
            "u": self.user,
            "U": str(self.uid),
            "@": [],
        }
        return substitute(pattern, values)
