"""Who stages a container's bundle, and who cleans up after a stager whose supervisor died."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from scrun.model.record import Record
from scrun.settings.file.load import Settings
from scrun.supervisor.contracts.plugin import StagePlugin
from scrun.supervisor.contracts.stager import Leftover, Stager, Submission
from scrun.supervisor.core.threads import look
from scrun.supervisor.plugins.registry import Plugins, configured
from scrun.supervisor.scripts.find import find_script


class Chosen(msgspec.Struct, frozen=True):
    """The stager of one container.

    Attributes:
        name: `NAME` of its plugin `stage/NAME`.
        plugin: That.
        configuration: What that has made of the settings.
    """

    name: str
    plugin: StagePlugin[Any]
    configuration: Any

    def ready(self, submission: Submission) -> AbstractAsyncContextManager[Stager]:
        """Have it ready for a bundle (see `StagePlugin.stager`)."""
        return self.plugin.stager(self.configuration, submission)


class Stagers:
    """The stagers of a supervisor."""

    def __init__(self, plugins: Plugins) -> None:
        """Start without any.

        Args:
            plugins: Who stages.
        """
        self._plugins = plugins

    async def choose(
        self, settings: Settings, environment: Mapping[str, str], engine: str
    ) -> Chosen:
        """Return the stager that the settings name, or else the script's or the policy.

        Raises:
            PluginUnavailable: There is none of that name, or it cannot be used.
            SettingsError: The script must not be used.
        """
        name = settings.stager
        if name == "auto":
            # the script may lie on a file system that hangs
            script = await look("scrun.lua", find_script, settings, engine)
            name = "lua" if script else "builtin"
        plugin = await self._plugins.stage(name)
        configuration = await configured(plugin, settings, environment)
        return Chosen(name, plugin, configuration)

    async def undo(self, left: Leftover) -> None:
        """Clean up after the stager of a container whose supervisor died.

        Raises:
            StagingError: It cannot be done.
            PluginUnavailable: That stager is not installed any more.
        """
        await (await self._plugins.stage(_stager_of(left.record))).undo(left)


def _stager_of(record: Record) -> str:
    """Return who staged it; an older scrun has not written that down."""
    return record.stager or ("lua" if record.moved else "builtin")
