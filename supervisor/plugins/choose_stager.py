"""Chooses the stager of a container, also to clean up after a dead supervisor."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from scrun.model.record import Record
from scrun.settings.file.load import Settings
from scrun.settings.script import find_script
from scrun.supervisor.contracts.plugin import StagePlugin
from scrun.supervisor.contracts.stager import Leftover, Stager, Submission
from scrun.supervisor.core.threads import look
from scrun.supervisor.plugins.registry import Plugins, configured


class Chosen(msgspec.Struct, frozen=True):
    """The stager of one container.

    Attributes:
        name: `NAME` of its plugin `stage/NAME`.
    """

    name: str
    plugin: StagePlugin[Any]
    configuration: Any

    def ready(self, submission: Submission) -> AbstractAsyncContextManager[Stager]:
        """Make a stager for a bundle (see `StagePlugin.stager`)."""
        return self.plugin.stager(self.configuration, submission)


class Stagers:
    """The stagers of a supervisor."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins

    async def choose(
        self, settings: Settings, environment: Mapping[str, str], engine: str
    ) -> Chosen:
        """Return the stager that the settings name; else `lua` if there is a script, or `builtin`.

        Raises:
            PluginUnavailable: There is no stager of that name, or it cannot be used.
            SettingsError: The script is missing or not trusted.
        """
        name = settings.stager
        if name == "auto":
            # the script's file system may hang
            script = await look("scrun.lua", find_script, settings, engine)
            name = "lua" if script else "builtin"
        plugin = await self._plugins.stage(name)
        configuration = await configured(plugin, settings, environment)
        return Chosen(name, plugin, configuration)

    async def undo(self, left: Leftover) -> None:
        """Clean up after the stager of a container whose supervisor died.

        Raises:
            StagingError: Something could not be cleaned up.
            PluginUnavailable: The stager is not installed any more.
        """
        await (await self._plugins.stage(_stager_of(left.record))).undo(left)


def _stager_of(record: Record) -> str:
    """Return the name of a record's stager, which older versions did not store."""
    return record.stager or ("lua" if record.moved else "builtin")
