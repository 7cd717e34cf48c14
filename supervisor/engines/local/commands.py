"""The commands that run, signal and remove a container on this machine.

These are the commands of crun or runc; a site's own are in `site_commands`. Pure, except
`prepare` and `made_by`.
"""

import os
import shlex
import sys
from _blake2 import blake2s  # hashlib brings OpenSSL
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from scrun.core.errors import StagingError, described
from scrun.core.paths import packages, real_id
from scrun.core.typed import decode_as
from scrun.oci.signals import signal_name
from scrun.supervisor.children.node_scripts import PROCESS_FILE
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.core.files import write
from scrun.supervisor.engines.local.runtime_config import (
    by_systemd,
    in_cgroup,
    with_absolute_paths,
    with_told_hooks,
)
from scrun.supervisor.engines.local.runtimes import InstalledRuntime
from scrun.supervisor.shim.mpi import Mpi
from scrun.supervisor.shim.runtime import Runtime


def program(folder: str, name: str) -> str:
    """Return the path of a program, such as `reapers/runtime.py`."""
    return f"{packages()}/scrun/supervisor/{folder}/{name}.py"


RUNTIME = "runtime"
"""The state directory of crun or runc, in the record."""

_CONFIG = "config.json"
_MADE_BY = "runtime.json"


class RuntimeContainer(msgspec.Struct, frozen=True):
    """What the commands need to know of a container; it is replaced as more becomes known.

    Attributes:
        record: Its record directory, unique on this machine.
        directory: The working directory of its `create`.
        rootfs: Its root file system, "" where the commands do not use it.
        arguments: Its command, () where the commands do not use it.
        pid: The first process that was started for it, or 0.
        foreground: The process in whose foreground it runs, if that is not `pid`, or 0.
        systemd: Whether systemd has to make its cgroup.
    """

    record: str
    job_id: str
    directory: str = "/"
    bundle: str = ""
    rootfs: str = ""
    arguments: tuple[str, ...] = ()
    pid: int = 0
    foreground: int = 0
    systemd: bool = False

    @property
    def id(self) -> str:
        return os.path.basename(self.record)

    @property
    def name(self) -> str:
        """The id that crun or runc gets.

        crun names a keyring after it, and the kernel refuses a name that begins with a dot.
        """
        return f"_{self.id}" if self.id.startswith(".") else self.id

    @property
    def digest(self) -> bytes:
        """A hash of the record: containers of other root directories may have the same id."""
        return blake2s(os.fsencode(self.record), digest_size=4).digest()


class Commands(Protocol):
    """The commands of a runtime, and what staging has to know of it."""

    @property
    def cgroups(self) -> bool:
        """Whether the runtime applies config.json's resources here."""

    @property
    def maps_root(self) -> bool:
        """Whether the runtime wants user 0 in every id map."""

    @property
    def link_rootfs(self) -> bool:
        """Whether the root file system has to be in the bundle, as `rootfs`."""

    def child_env(self, child_env: ChildEnv) -> ChildEnv:
        """Return the environment of the commands, from that of a container's `create`."""

    def prepare(
        self, container: RuntimeContainer, step: Step, variables: dict[str, str]
    ) -> RuntimeContainer:
        """Write the files that the runtime needs besides the staged bundle. Blocks.

        Returns the container, with its bundle; `delete` removes the files.

        Raises:
            StagingError: They cannot be written; or the root directory is missing.
            SettingsError: A pattern of the site has no value here.
        """

    def kill(self, container: RuntimeContainer, number: int) -> list[str]:
        """Send a signal to a container's first process."""

    def delete(self, container: RuntimeContainer) -> list[str]:
        """End and remove a container, if it exists: a shell and its script."""

    def state(self, container: RuntimeContainer) -> str:
        """Print a container's state: a shell command."""

    def exec(self, container: RuntimeContainer, preserved: Sequence[int] = ()) -> str:
        """Run the program that the file `PROCESS_FILE` describes: a shell command.

        It gets the descriptors `preserved` from 3 on, if the job hands any on. Raises EngineError
        if the site has no such command.
        """

    def pause(self, container: RuntimeContainer, *, resume: bool) -> str:
        """Pause or resume a container: a shell command; "" to send signals instead."""

    def update(self, container: RuntimeContainer) -> str:
        """Change limits to those on standard input: a shell command; "" if impossible."""


class RuntimeCommands(msgspec.Struct, frozen=True):
    """The commands of crun, runc and runtimes with the same command line."""

    runtime: InstalledRuntime

    link_rootfs = False

    @property
    def cgroups(self) -> bool:
        return self.runtime.cgroups

    @property
    def maps_root(self) -> bool:
        return self.runtime.maps_root

    def child_env(self, child_env: ChildEnv) -> ChildEnv:
        return child_env

    def prepare(
        self, container: RuntimeContainer, step: Step, variables: dict[str, str]
    ) -> RuntimeContainer:
        """Write config.json into the record, where `delete` leaves it (see `Commands`)."""
        bundle = step.submitted or step.bundle
        try:
            with open(os.path.join(step.bundle, _CONFIG), "rb") as file:
                config = with_absolute_paths(msgspec.json.decode(file.read()), step.bundle)
            _look_for(config["root"]["path"], step.bundle)
            Mpi(variables).show(config)
            self.fit(config.get("process") or {})
            if self.cgroups and real_id("uid") == 0:
                # only for root: runc fails if it cannot create a cgroup that config.json names
                name = f"{container.digest.hex()}-{container.id[:200]}"
                config = in_cgroup(config, name)
            if not self.runtime.takes_config:
                config = with_told_hooks(config, container.record, os.path.realpath(bundle))
            write(_config(container), msgspec.json.encode(config))
            write(os.path.join(container.record, _MADE_BY), msgspec.json.encode(self.runtime))
        except OSError as error:
            raise StagingError(f"{_config(container)}: {described(error)}") from error
        systemd = self.cgroups and by_systemd(config)
        return msgspec.structs.replace(container, bundle=bundle, systemd=systemd)

    def fit(self, process: dict[str, Any]) -> None:
        """Leave out what the runtime refuses (see `supervisor.shim.runtime`)."""
        Runtime(self.runtime.path, "").fit(process)

    def create(
        self, container: RuntimeContainer, log: str, pid_file: str, console: str | None,
        preserved: int = 0,
    ) -> list[str]:  # fmt: skip
        """Return the command that creates a container without starting its program.

        The container's first process inherits the command's standard streams, and outlives it.

        Args:
            log: The runtime's error log, as JSON; errors go to standard error as well.
            pid_file: Where it writes the first process's pid.
            console: The socket that receives the terminal, if there is one.
            preserved: How many descriptors after standard error the container gets.
        """
        bundle = [container.record]
        if self.runtime.takes_config:
            bundle = [container.bundle, "--config", _config(container)]
        # the other commands know it from their state
        words = ["--systemd-cgroup"] if container.systemd else []
        words += ["create", "--bundle", *bundle, "--pid-file", pid_file]
        words += ["--console-socket", console] if console is not None else []
        words += [f"--preserve-fds={preserved}"] if preserved else []
        return self.runtime.command(_root(container), *words, "--", container.name, log=log)

    def start(self, container: RuntimeContainer) -> list[str]:
        return self._words(container, "start")

    def kill(self, container: RuntimeContainer, number: int) -> list[str]:
        return [*self._words(container, "kill"), signal_name(number)]

    def delete(self, container: RuntimeContainer) -> list[str]:
        return ["/bin/sh", "-c", self._shell(container, "delete", "--force")]

    def state(self, container: RuntimeContainer) -> str:
        return self._shell(container, "state")

    def exec(self, container: RuntimeContainer, preserved: Sequence[int] = ()) -> str:
        more = [f"--preserve-fds={len(preserved)}"] if preserved else []
        words = self._words(container, "exec", *more, "--process", PROCESS_FILE)
        return shlex.join([*put_in_place(preserved), *words])

    def pause(self, container: RuntimeContainer, *, resume: bool) -> str:
        """Both crun and runc need a cgroup for this."""
        return self._shell(container, "resume" if resume else "pause") if self.cgroups else ""

    def update(self, container: RuntimeContainer) -> str:
        return self._shell(container, "update", "--resources", "-") if self.cgroups else ""

    def _shell(self, container: RuntimeContainer, *words: str) -> str:
        return shlex.join(self._words(container, *words))

    def _words(self, container: RuntimeContainer, *words: str) -> list[str]:
        return self.runtime.command(_root(container), *words, "--", container.name)


def _root(container: RuntimeContainer) -> str:
    """Return the runtime's root directory: each container has its own.

    Hooks get the id that the runtime knows, and a container of another root directory of scrun may
    have the same one.
    """
    return os.path.join(container.record, RUNTIME)


def made_by(record: str) -> RuntimeCommands | None:
    """Return the commands of the runtime that made a record's container, if one did. Blocks."""
    try:
        with open(os.path.join(record, _MADE_BY), "rb") as file:
            return RuntimeCommands(decode_as(file.read(), InstalledRuntime))
    except (OSError, msgspec.MsgspecError):
        return None


def put_in_place(preserved: Sequence[int]) -> list[str]:
    """Return the words before a runtime's command that gets descriptors from 3 on."""
    if not preserved:
        return []
    numbers = ",".join(map(str, preserved))
    return [sys.executable, "-I", "-S", program("reapers", "descriptors"), numbers]


def _config(container: RuntimeContainer) -> str:
    return os.path.join(container.record, _CONFIG)


def _look_for(root: str, bundle: str) -> None:
    """Find the root directory that a script may have named: crun 1.28 does not say which it is."""
    try:
        os.stat(root)
    except (FileNotFoundError, NotADirectoryError):
        name = os.path.join(bundle, _CONFIG)
        raise StagingError(f"{name}: root.path: {root}: does not exist") from None
    except (OSError, ValueError):  # mapped users may see it where we do not
        pass
