"""Which engine runs a container, and with which settings."""

from collections.abc import Hashable, Mapping

from scrun.errors import EngineUnavailable, PluginUnavailable
from scrun.settings.load import Settings
from supervisor.engines.base import Engine
from supervisor.plugins.registry import Plugins, configured

AUTO = ("slurm", "local")
"""Those that are tried, in this order, where nobody names one."""


class Engines:
    """The engines of a supervisor, one for each group of settings that asks for its own."""

    def __init__(self, root: str, plugins: Plugins) -> None:
        """Start without any.

        Args:
            root: The directory under which records are; the embedded engine keeps its state
                and its counter of jobs there.
            plugins: Who makes engines.
        """
        self._root = root
        self._plugins = plugins
        self._known: dict[tuple[str, Hashable], Engine] = {}

    async def choose(self, settings: Settings, environment: Mapping[str, str]) -> Engine:
        """Return the engine that the settings name, or the one that can be had.

        Raises:
            EngineUnavailable: The engine that was asked for cannot be used; with the reason.
            PluginUnavailable: There is none of that name.
        """
        if settings.engine != "auto":
            return await self._engine(settings.engine, settings, environment)
        *better, last = AUTO
        for name in better:
            try:
                return await self._engine(name, settings, environment)
            except EngineUnavailable:
                continue
        return await self._engine(last, settings, environment)

    async def _engine(
        self, name: str, settings: Settings, environment: Mapping[str, str]
    ) -> Engine:
        plugin = await self._plugins.engine(name)
        configuration = await configured(plugin, settings, environment)
        key = (name, configuration)
        if key not in self._known:
            made = plugin.engine(self._root, configuration)
            if made.name != name:  # the record has its name, and finds it again by that
                raise PluginUnavailable(f"plugin engine/{name} makes an engine {made.name!r}")
            self._known[key] = made
        return self._known[key]

    def tidy(self) -> None:
        """Have all of them tidied up."""
        for engine in self._known.values():
            engine.tidy()
