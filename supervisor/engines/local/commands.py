"""The commands by which a container is run, signalled and removed on this machine.

Those of an OCI runtime that was found (crun, runc); a site's own are in `site_commands`. Pure:
lists of words.
"""

import hashlib
import os
import shlex
from typing import Protocol

import msgspec

from scrun.oci.signals import signal_name
from supervisor import runtimes
from supervisor.engines.base import Step
from supervisor.engines.script import PROCESS_FILE
from supervisor.processes import Setting
from supervisor.runtimes import Runtime


class Container(msgspec.Struct, frozen=True):
    """A container, as far as its commands have to know it; more of it becomes known.

    Attributes:
        record: Its record directory, which is its alone on this machine.
        job_id: Its job.
        directory: The working directory of its `create`.
        bundle: The bundle that the runtime gets.
        rootfs: Its root file system, "" where the commands do not ask for it.
        arguments: Its command, likewise.
        pid: The first process that was started for it; 0: there is none.
    """

    record: str
    job_id: str
    directory: str = "/"
    bundle: str = ""
    rootfs: str = ""
    arguments: tuple[str, ...] = ()
    pid: int = 0

    @property
    def digest(self) -> bytes:
        """What tells it from those of other root directories, where one may have the same id."""
        return hashlib.blake2s(os.fsencode(self.record), digest_size=4).digest()


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

    @property
    def link_rootfs(self) -> bool:
        """Whether the root file system has to be in the bundle, as `rootfs`."""
        ...

    @property
    def is_container(self) -> bool:
        """Whether what runs is a container of the runtime's, and ends with `delete`.

        Else it is the command's own process, with those that it starts.
        """
        ...

    def place(self, container: Container) -> str:
        """Say where the runtime keeps what it knows of a container; "" if that is not known."""
        ...

    def setting(self, setting: Setting) -> Setting:
        """Return the surroundings of the commands, from those of a container's `create`."""
        ...

    def prepare(self, container: Container, step: Step, variables: dict[str, str]) -> Container:
        """Make files ready that the runtime gets beside the staged bundle. Blocks.

        Args:
            container: It.
            step: What it will run.
            variables: The job's.

        Returns:
            The container, with its bundle. `delete` removes what was made.

        Raises:
            StagingError: They cannot be written.
            SettingsError: The site's patterns ask for what there is not.
        """
        ...

    def working_directory(self, container: Container) -> str:
        """Say where `run` works, once it is prepared."""
        ...

    @property
    def logs_to_stderr(self) -> bool:
        """Whether `run` can write its log to standard error, as JSON, and nothing else there."""
        ...

    def run(self, container: Container, log: str | None) -> list[str]:
        """Run a container in the foreground; the command's exit status is the container's.

        Args:
            container: It.
            log: Where the runtime writes what went wrong, as JSON; None: to standard error.
        """
        ...

    def kill(self, container: Container, number: int) -> list[str]:
        """Send a signal to a container's first process."""
        ...

    def delete(self, container: Container) -> list[str]:
        """End and remove a container, if there is one: a shell with its command."""
        ...

    def state(self, container: Container) -> str:
        """Print a container's state: a command for a shell."""
        ...

    def exec(self, container: Container) -> str:
        """Run the program that the file `PROCESS_FILE` describes: a command for a shell.

        Raises:
            EngineError: The site has none.
        """
        ...

    def hold(self, container: Container, *, resume: bool) -> str:
        """Pause or resume a container: a command for a shell; "" for signals instead."""
        ...

    def update(self, container: Container) -> str:
        """Change limits, to those on standard input; "" where that is not possible."""
        ...


class RuntimeCommands(msgspec.Struct, frozen=True):
    """Those of a runtime with the command line of crun and runc."""

    runtime: Runtime
    root: str

    link_rootfs = False
    is_container = True
    logs_to_stderr = True

    @property
    def cgroups(self) -> bool:
        """Whether the runtime applies config.json's resources here."""
        return self.runtime.cgroups

    @property
    def maps_root(self) -> bool:
        """Whether the runtime wants user 0 in every id map."""
        return self.runtime.maps_root

    def place(self, container: Container) -> str:
        """See `Commands`. crun and runc make a directory."""
        return os.path.join(self.root, _name(container))

    def setting(self, setting: Setting) -> Setting:
        """See `Commands`."""
        return setting

    def prepare(self, container: Container, step: Step, variables: dict[str, str]) -> Container:
        """See `Commands`. The staged bundle is all that it needs."""
        del variables
        return msgspec.structs.replace(container, bundle=step.bundle)

    def working_directory(self, container: Container) -> str:
        """See `Commands`."""
        del container
        return "/"

    def run(self, container: Container, log: str | None) -> list[str]:
        """See `Commands`."""
        return runtimes.run_command(
            self.runtime, root=self.root, bundle=container.bundle, id=_name(container), log=log
        )

    def create(
        self, container: Container, log: str, pid_file: str, console: str | None
    ) -> list[str]:
        """Make a container whose program does not run yet.

        Args:
            container: It.
            log: Where the runtime writes what went wrong, as JSON; and to standard error.
            pid_file: Where it writes the first process' pid.
            console: The socket that gets the terminal, if it has one.
        """
        return runtimes.create_command(
            self.runtime,
            root=self.root,
            bundle=container.bundle,
            id=_name(container),
            log=log,
            pid_file=pid_file,
            console=console,
        )

    def start(self, container: Container) -> list[str]:
        """Let the program run."""
        return runtimes.command(self.runtime, "start", _name(container), root=self.root)

    def kill(self, container: Container, number: int) -> list[str]:
        """See `Commands`."""
        return runtimes.kill_command(
            self.runtime, root=self.root, id=_name(container), signal=signal_name(number)
        )

    def delete(self, container: Container) -> list[str]:
        """See `Commands`."""
        words = runtimes.delete_command(self.runtime, root=self.root, id=_name(container))
        return ["/bin/sh", "-c", shlex.join(words)]

    def state(self, container: Container) -> str:
        """See `Commands`."""
        return self._shell("state", _name(container))

    def exec(self, container: Container) -> str:
        """See `Commands`."""
        return self._shell("exec", "--process", PROCESS_FILE, _name(container))

    def hold(self, container: Container, *, resume: bool) -> str:
        """See `Commands`. crun and runc do it by a cgroup."""
        if not self.cgroups:
            return ""
        return self._shell("resume" if resume else "pause", _name(container))

    def update(self, container: Container) -> str:
        """See `Commands`."""
        if not self.cgroups:
            return ""
        return self._shell("update", "--resources", "-", _name(container))

    def _shell(self, *words: str) -> str:
        return shlex.join(runtimes.command(self.runtime, *words, root=self.root))


def _name(container: Container) -> str:
    """Name a container as the runtime knows it.

    Its id is not first: it may begin with a dash, and the runtime would take it for an option.
    """
    return f"{container.digest.hex()}-{os.path.basename(container.record)[:200]}"
