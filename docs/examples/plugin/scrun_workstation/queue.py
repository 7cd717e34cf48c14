"""The plugin engine/queue: this machine, with a limited number of containers at a time.

The others wait in the order in which they came. In scrun.toml::

    engine = "queue"

    [plugins.queue]
    slots = 2
"""

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec
import trio

from scrun.core.errors import PluginUnavailable, SettingsError
from scrun.settings.file.load import Settings
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import Engine, Job, JobRequest
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.engines.local import plugin as local

plugin_type = "engine/queue"
plugin_name = "This machine, a limited number of containers at a time"
plugin_version = "1.0.0"


def init() -> None:
    """Refuse to load where no container could run, before one waits in the queue."""
    if not any(map(shutil.which, ("crun", "runc"))):
        raise PluginUnavailable("neither crun nor runc is installed; install one of them")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table [plugins.queue] of scrun.toml."""

    slots: Annotated[int, msgspec.Meta(ge=1)] = 1


class Configuration(msgspec.Struct, frozen=True):
    """Containers with equal configurations share a queue."""

    options: Options
    machine: local.LocalConfiguration


def configure(settings: Settings, environment: Mapping[str, str]) -> Configuration:
    """Read the table."""
    try:
        options = msgspec.convert(settings.plugins.get("queue", {}), Options)
    except msgspec.ValidationError as error:
        raise SettingsError(f"[plugins.queue]: {error}") from error
    return Configuration(options, local.configure(settings, environment))


def engine(root: str, configuration: Configuration) -> "Queue":
    """Make the queue."""
    return Queue(local.engine(root, configuration.machine), configuration.options.slots)


class Queue:
    """An engine in front of another engine (see `supervisor.contracts.engine.Engine`)."""

    name = "queue"

    def __init__(self, machine: Engine, slots: int) -> None:
        """Begin with all slots free."""
        self._machine = machine
        self._free = trio.Semaphore(slots)

    def tidy(self) -> None:
        """Tidy up after the other engine: this one has nothing on disk."""
        self._machine.tidy()

    async def target(self, setting: ChildEnv) -> Target:
        """Describe this machine."""
        return await self._machine.target(setting)

    @asynccontextmanager
    async def allocate(self, request: JobRequest) -> AsyncIterator[Job]:
        """Wait for a slot, and keep it until the block is left."""
        if self._free.value == 0:
            request.journal.write("info", "waiting until another container has ended")
        async with self._free, self._machine.allocate(request) as job:
            yield job

    async def release(self, job_id: str, setting: ChildEnv, record: str) -> None:
        """End a job whose supervisor died; its slot ended with the supervisor."""
        await self._machine.release(job_id, setting, record)
