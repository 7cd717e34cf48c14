"""What a plugin is: a module that says what it is, and has the functions of its kind.

Its type is `major/minor`: the major type names the functions (`engine`, `stage`), the minor one
tells it from others that have the same. docs/howto/plugins.md is for people who write one, and has
a whole example.

All plugins have::

    plugin_type = "engine/slurm"       as it is installed, `NAME` in `--engine NAME`
    plugin_name = "Slurm's commands"   for people
    plugin_version = "1.0.0"           of this API, as the plugin was written for it

and may have `init()`, called when it was loaded, and `fini()`, when the supervisor goes. An
exception of `init` says why the plugin cannot be used. Both run in a worker thread, one at a time.
"""

from collections.abc import Hashable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from scrun.settings.file.load import Settings
from scrun.supervisor.contracts.engine import Engine
from scrun.supervisor.contracts.stager import Leftover, Stager, Submission

Configuration = TypeVar("Configuration", bound=Hashable)

VERSION = "1.0.0"
"""Of this API. What was written for another major or minor one is not used."""


class Plugin(Protocol):
    """What all plugins have."""

    plugin_type: str
    plugin_name: str
    plugin_version: str


class EnginePlugin(Plugin, Protocol[Configuration]):
    """The functions of `engine/NAME`."""

    def configure(self, settings: Settings, environment: Mapping[str, str]) -> Configuration:
        """Take from a call what the engine is made from. In a worker thread: it may block.

        Containers for which this is equal share one engine.

        Args:
            settings: The container's; those of `[plugins.NAME]` are `settings.plugins["NAME"]`.
            environment: The caller's.

        Raises:
            EngineUnavailable: The engine cannot be used here; with the reason.
        """
        ...

    def engine(self, root: str, configuration: Configuration) -> Engine:
        """Make the engine; it must not block.

        Args:
            root: The directory of the records.
            configuration: What `configure` has returned.
        """
        ...


class StagePlugin(Plugin, Protocol[Configuration]):
    """The functions of `stage/NAME`."""

    def configure(self, settings: Settings, environment: Mapping[str, str]) -> Configuration:
        """Take from a call what the stager is made from. In a worker thread: it may block.

        Raises:
            PluginUnavailable: It cannot be used here; with the reason.
        """
        ...

    def stager(
        self, configuration: Configuration, submission: Submission
    ) -> AbstractAsyncContextManager[Stager]:
        """Have a stager ready for one container. There is no job yet.

        Raises:
            StagingError: It cannot stage this bundle.
        """
        ...

    async def undo(self, left: Leftover) -> None:
        """Undo what is left of a staging whose supervisor died; there may be nothing.

        Raises:
            StagingError: It cannot be undone; the container's record stays.
        """
        ...


FUNCTIONS = {"engine": ("configure", "engine"), "stage": ("configure", "stager", "undo")}
"""The functions that a plugin must have, by its major type."""
