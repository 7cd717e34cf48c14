"""The interface of plugins: a module that identifies itself and has the functions of its type.

A type is `major/minor`: the major type (`engine`, `stage`) determines the functions, the minor one
is the plugin's name. docs/howto/plugins.md explains how to write one, with a complete example.

All plugins have::

    plugin_type = "engine/slurm"       as installed; `slurm` is the NAME of `--engine NAME`
    plugin_name = "Slurm's commands"   for people
    plugin_version = "1.0.0"           the version of this API that it was written for

and may have `init()`, called after loading, and `fini()`, called when the supervisor ends. An
exception of `init`, or a number but 0, says that the plugin cannot be used. Both run in a worker
thread, one at a time.
"""

from collections.abc import Hashable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from scrun.settings.file.load import Settings
from scrun.supervisor.contracts.engine import Engine
from scrun.supervisor.contracts.stager import Leftover, Stager, Submission

Configuration = TypeVar("Configuration", bound=Hashable)

VERSION = "1.0.0"
"""The version of this API. Plugins for another major or minor version are refused."""


class Plugin(Protocol):
    """The attributes of all plugins."""

    plugin_type: str
    plugin_name: str
    plugin_version: str


class EnginePlugin(Plugin, Protocol[Configuration]):
    """The functions of `engine/NAME`."""

    def configure(self, settings: Settings, environment: Mapping[str, str]) -> Configuration:
        """Return what the engine needs to know from a call. In a worker thread: may block.

        Containers with equal configurations share one engine.

        Args:
            settings: The container's; those of `[plugins.NAME]` are `settings.plugins["NAME"]`.
            environment: The caller's.

        Raises:
            EngineUnavailable: The engine cannot be used here; with the reason.
        """

    def engine(self, root: str, configuration: Configuration) -> Engine:
        """Make the engine, for records in `root`. In a worker thread: may read files."""


class StagePlugin(Plugin, Protocol[Configuration]):
    """The functions of `stage/NAME`."""

    def configure(self, settings: Settings, environment: Mapping[str, str]) -> Configuration:
        """Return what the stager needs to know from a call. In a worker thread: may block.

        Raises:
            PluginUnavailable: It cannot be used here; with the reason.
        """

    def stager(
        self, configuration: Configuration, submission: Submission
    ) -> AbstractAsyncContextManager[Stager]:
        """Prepare a stager for one container. There is no job yet.

        Raises:
            StagingError: It cannot stage this bundle.
        """

    async def undo(self, left: Leftover) -> None:
        """Remove the rest of a staging whose supervisor died, if there is any.

        Raises:
            StagingError: It cannot be removed; the container's record stays.
        """


FUNCTIONS = {"engine": ("configure", "engine"), "stage": ("configure", "stager", "undo")}
"""The required functions of a plugin, by major type."""
