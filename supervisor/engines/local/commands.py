"""The commands by which a container is run, signalled and removed on this machine.

Those of an OCI runtime that was found (crun, runc); a site's own are in `site_commands`. Pure:
lists of words.
"""

import hashlib
import os
import shlex
from typing import Protocol

import msgspec

from scrun.core.errors import StagingError, described
from scrun.core.paths import real_id
from scrun.oci.signals import signal_name
from scrun.supervisor.children.node_scripts import PROCESS_FILE
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.core.files import write
from scrun.supervisor.engines.local import runtimes
from scrun.supervisor.engines.local.runtime_config import (
    in_cgroup,
    with_absolute_paths,
    with_told_hooks,
)
from scrun.supervisor.engines.local.runtimes import InstalledRuntime

RUNTIME = "runtime"
"""The directory in a record where crun or runc keeps what it knows of the container."""

_CONFIG = "config.json"
_MADE_BY = "runtime.json"


class RuntimeContainer(msgspec.Struct, frozen=True):
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
    def id(self) -> str:
        """Its id."""
        return os.path.basename(self.record)

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

    def child_env(self, child_env: ChildEnv) -> ChildEnv:
        """Return the surroundings of the commands, from those of a container's `create`."""
        ...

    def prepare(
        self, container: RuntimeContainer, step: Step, variables: dict[str, str]
    ) -> RuntimeContainer:
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

    def kill(self, container: RuntimeContainer, number: int) -> list[str]:
        """Send a signal to a container's first process."""
        ...

    def delete(self, container: RuntimeContainer) -> list[str]:
        """End and remove a container, if there is one: a shell with its command."""
        ...

    def state(self, container: RuntimeContainer) -> str:
        """Print a container's state: a command for a shell."""
        ...

    def exec(self, container: RuntimeContainer) -> str:
        """Run the program that the file `PROCESS_FILE` describes: a command for a shell.

        Raises:
            EngineError: The site has none.
        """
        ...

    def pause(self, container: RuntimeContainer, *, resume: bool) -> str:
        """Pause or resume a container: a command for a shell; "" for signals instead."""
        ...

    def update(self, container: RuntimeContainer) -> str:
        """Change limits, to those on standard input; "" where that is not possible."""
        ...


class RuntimeCommands(msgspec.Struct, frozen=True):
    """Those of a runtime with the command line of crun and runc."""

    runtime: InstalledRuntime

    link_rootfs = False

    @property
    def cgroups(self) -> bool:
        """Whether the runtime applies config.json's resources here."""
        return self.runtime.cgroups

    @property
    def maps_root(self) -> bool:
        """Whether the runtime wants user 0 in every id map."""
        return self.runtime.maps_root

    def child_env(self, child_env: ChildEnv) -> ChildEnv:
        """See `Commands`."""
        return child_env

    def prepare(
        self, container: RuntimeContainer, step: Step, variables: dict[str, str]
    ) -> RuntimeContainer:
        """See `Commands`: its config.json, in the record, which `delete` leaves there."""
        del variables
        bundle = step.submitted or step.bundle
        try:
            with open(os.path.join(step.bundle, _CONFIG), "rb") as file:
                config = with_absolute_paths(msgspec.json.decode(file.read()), step.bundle)
            if self.cgroups and real_id("uid") == 0:
                # nobody else has to: runc would fail if it could not make a given one
                name = f"{container.digest.hex()}-{container.id[:200]}"
                config = in_cgroup(config, name)
            if not self.runtime.takes_config:
                config = with_told_hooks(config, container.record, os.path.realpath(bundle))
            write(_config(container), msgspec.json.encode(config))
            write(os.path.join(container.record, _MADE_BY), msgspec.json.encode(self.runtime))
        except OSError as error:
            raise StagingError(f"{_config(container)}: {described(error)}") from error
        return msgspec.structs.replace(container, bundle=bundle)

    def create(
        self, container: RuntimeContainer, log: str, pid_file: str, console: str | None
    ) -> list[str]:
        """Make a container whose program does not run yet.

        Args:
            container: It.
            log: Where the runtime writes what went wrong, as JSON; and to standard error.
            pid_file: Where it writes the first process' pid.
            console: The socket that gets the terminal, if it has one.
        """
        bundle, config = self._bundle(container)
        return runtimes.create_command(
            self.runtime,
            root=_root(container),
            bundle=bundle,
            config=config,
            id=container.id,
            log=log,
            pid_file=pid_file,
            console=console,
        )

    def start(self, container: RuntimeContainer) -> list[str]:
        """Let the program run."""
        return self._words(container, "start", "--", container.id)

    def kill(self, container: RuntimeContainer, number: int) -> list[str]:
        """See `Commands`."""
        return runtimes.kill_command(
            self.runtime, root=_root(container), id=container.id, signal=signal_name(number)
        )

    def delete(self, container: RuntimeContainer) -> list[str]:
        """See `Commands`."""
        words = runtimes.delete_command(self.runtime, root=_root(container), id=container.id)
        return ["/bin/sh", "-c", shlex.join(words)]

    def state(self, container: RuntimeContainer) -> str:
        """See `Commands`."""
        return self._shell(container, "state", "--", container.id)

    def exec(self, container: RuntimeContainer) -> str:
        """See `Commands`."""
        return self._shell(container, "exec", "--process", PROCESS_FILE, "--", container.id)

    def pause(self, container: RuntimeContainer, *, resume: bool) -> str:
        """See `Commands`. crun and runc do it by a cgroup."""
        if not self.cgroups:
            return ""
        return self._shell(container, "resume" if resume else "pause", "--", container.id)

    def update(self, container: RuntimeContainer) -> str:
        """See `Commands`."""
        if not self.cgroups:
            return ""
        return self._shell(container, "update", "--resources", "-", "--", container.id)

    def _bundle(self, container: RuntimeContainer) -> tuple[str, str | None]:
        """Say what the runtime gets for the bundle, and for config.json if it is told that."""
        if self.runtime.takes_config:
            return container.bundle, _config(container)
        return container.record, None

    def _shell(self, container: RuntimeContainer, *words: str) -> str:
        return shlex.join(self._words(container, *words))

    def _words(self, container: RuntimeContainer, *words: str) -> list[str]:
        return runtimes.command(self.runtime, *words, root=_root(container))


def _root(container: RuntimeContainer) -> str:
    """Say what the runtime takes for its root directory: each container has its own.

    Hooks are told the id that the runtime knows, and another root directory of ours may have it,
    too.
    """
    return os.path.join(container.record, RUNTIME)


def made_by(record: str) -> RuntimeCommands | None:
    """Read which runtime has made the container of a record; None: none has. Blocks."""
    try:
        with open(os.path.join(record, _MADE_BY), "rb") as file:
            return RuntimeCommands(msgspec.json.decode(file.read(), type=InstalledRuntime))
    except (OSError, msgspec.MsgspecError):
        return None


def _config(container: RuntimeContainer) -> str:
    return os.path.join(container.record, _CONFIG)
