"""The loaded plugins of a supervisor: each is loaded when the first container needs it."""

from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import trio

from scrun.core.errors import PluginUnavailable, described
from scrun.settings.file.load import Settings
from scrun.supervisor.contracts import plugin as api
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.plugins.installed import Installed, find, load

_LOADING = 10.0
_CONFIGURING = 30.0
_ENDING = 5.0


class Plugins:
    """The loaded plugins of one supervisor."""

    def __init__(self) -> None:
        self._loaded: dict[str, api.Plugin] = {}
        self._loading = trio.Lock()

    async def engine(self, name: str) -> api.EnginePlugin[Any]:
        """Return the plugin `engine/NAME`.

        Raises:
            PluginUnavailable: The plugin does not exist or cannot be used.
        """
        return cast(api.EnginePlugin[Any], await self.load(f"engine/{name}"))

    async def stage(self, name: str) -> api.StagePlugin[Any]:
        """Return the plugin `stage/NAME`.

        Raises:
            PluginUnavailable: The plugin does not exist or cannot be used.
        """
        return cast(api.StagePlugin[Any], await self.load(f"stage/{name}"))

    async def load(self, full: str, installed: Installed | None = None) -> api.Plugin:
        """Return a plugin; the first call finds and loads it, and calls its `init`.

        Args:
            installed: The plugin to load, if it was found already.

        Raises:
            PluginUnavailable: The plugin does not exist or cannot be used.
        """
        if full in self._loaded:
            return self._loaded[full]
        async with self._loading:
            if full not in self._loaded:
                with trio.move_on_after(_LOADING):
                    self._loaded[full] = await in_thread(
                        self._begin, installed or full, abandon=True
                    )
            if full not in self._loaded:
                raise PluginUnavailable(
                    f"plugin {full}: loading it and its init took longer than {_LOADING:g} s"
                )
        return self._loaded[full]

    def _begin(self, which: Installed | str) -> api.Plugin:
        installed = find(which) if isinstance(which, str) else which
        plugin = load(installed)
        init = getattr(plugin, "init", None)
        if init is not None:
            try:
                result = init()
            except (Exception, SystemExit) as error:
                reason = f"its init failed: {described(error, foreign=True)}"
                raise PluginUnavailable(f"{installed}: {reason}") from error
            if isinstance(result, int) and result:  # as of a plugin of Slurm's
                raise PluginUnavailable(f"{installed}: its init failed: it returned {result:d}")
        return plugin

    async def end(self) -> dict[str, str]:
        """Call `fini` of each, in reverse order.

        Returns:
            The failures, by type.
        """
        wrong: dict[str, str] = {}
        for full, plugin in reversed([*self._loaded.items()]):
            fini = getattr(plugin, "fini", None)
            if fini is None:
                continue
            with trio.move_on_after(_ENDING, shield=True) as scope:
                try:
                    await in_thread(fini, abandon=True)
                except (Exception, SystemExit) as error:
                    wrong[full] = f"its fini failed: {described(error, foreign=True)}"
            if scope.cancelled_caught:
                wrong[full] = f"its fini took longer than {_ENDING:g} s"
        self._loaded.clear()
        return wrong


@asynccontextmanager
async def plugins() -> AsyncIterator[Plugins]:
    """Provide a supervisor's plugins for as long as the block lasts."""
    loaded = Plugins()
    try:
        yield loaded
    finally:
        await loaded.end()


async def configured(
    plugin: api.EnginePlugin[Any] | api.StagePlugin[Any],
    settings: Settings,
    environment: Mapping[str, str],
) -> Hashable:
    """Return a plugin's configuration for a call.

    Raises:
        PluginUnavailable: The plugin takes too long.
        ScrunError: The plugin cannot be used here.
    """
    with trio.move_on_after(_CONFIGURING):
        try:
            configuration: Hashable = await in_thread(
                plugin.configure, settings, environment, abandon=True
            )
        except SystemExit as error:  # it would end the supervisor
            reason = described(error, foreign=True)
            raise PluginUnavailable(f"plugin {plugin.plugin_type}: {reason}") from error
        return configuration
    raise PluginUnavailable(
        f"plugin {plugin.plugin_type}: no answer within {_CONFIGURING:g} s; check whether a file "
        "system or a daemon hangs"
    )
