"""The commands by which a container is run, signalled and removed on this machine.

Either those of an OCI runtime that was found (crun, runc), or those that a site has written down
in an oci.conf(5). Pure: lists of words.
"""

import os
import sys
from typing import Protocol

import msgspec

from scrun.oci.signals import signal_name
from scrun.settings.ociconf import OciConf, substitute
from supervisor import runtimes
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

    def run(self, container: str, bundle: str, log: str) -> list[str]:
        """Run a container in the foreground; the command's exit status is the container's."""
        ...

    def kill(self, container: str, bundle: str, number: int) -> list[str]:
        """Send a signal to a container's first process."""
        ...

    def delete(self, container: str, bundle: str) -> list[str]:
        """End and remove a container, if there is one."""
        ...


class RuntimeCommands(msgspec.Struct, frozen=True):
    """Those of a runtime with the command line of crun and runc."""

    runtime: Runtime
    state: str

    @property
    def cgroups(self) -> bool:
        """Whether the runtime applies config.json's resources here."""
        return self.runtime.cgroups

    @property
    def maps_root(self) -> bool:
        """Whether the runtime wants user 0 in every id map."""
        return self.runtime.maps_root

    def run(self, container: str, bundle: str, log: str) -> list[str]:
        """See `Commands`."""
        return runtimes.run_command(
            self.runtime, root=self.state, bundle=bundle, id=container, log=log
        )

    def kill(self, container: str, bundle: str, number: int) -> list[str]:
        """See `Commands`."""
        del bundle
        return runtimes.kill_command(
            self.runtime, root=self.state, id=container, signal=signal_name(number)
        )

    def delete(self, container: str, bundle: str) -> list[str]:
        """See `Commands`."""
        del bundle
        return runtimes.delete_command(self.runtime, root=self.state, id=container)


class OciConfCommands(msgspec.Struct, frozen=True):
    """Those of an oci.conf: RunTimeRun, or RunTimeCreate, RunTimeStart and RunTimeQuery.

    Attributes:
        conf: The file's content.
        node: This machine's name, `%n`.
        user: The user's name, `%u`, and `uid`, `%U`.
        uid: See user.
    """

    conf: OciConf
    node: str
    user: str
    uid: int

    @property
    def cgroups(self) -> bool:
        """Whether resources are applied: the site's commands are taken to know."""
        return True

    @property
    def maps_root(self) -> bool:
        """Whether the runtime wants user 0 in every id map: it may be runc."""
        return True

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

    def _shell(self, pattern: str, container: str, bundle: str) -> list[str]:
        # %j is all of the id: with %u, %s, %t and %n, which are the same for every container,
        # each pattern for an id that Slurm's documentation shows stays unique.
        values = {
            "b": bundle,
            "e": os.path.join(bundle, "environment"),
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
        return ["/bin/sh", "-c", substitute(pattern, values)]
