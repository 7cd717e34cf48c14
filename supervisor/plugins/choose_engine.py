"""Which engine runs a container, and with which settings."""

from collections import deque
from collections.abc import Hashable, Mapping
from weakref import WeakValueDictionary

from scrun.core.errors import EngineUnavailable, PluginUnavailable
from scrun.settings.file.load import Settings
from scrun.supervisor.contracts.engine import Engine
from scrun.supervisor.core.threads import look
from scrun.supervisor.plugins.registry import Plugins, configured

_KEPT = 16

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
        # A container has its engine for as long as it is there, and others like it should get the
        # same; but each new combination of settings makes one, so not all are kept.
        self._known: WeakValueDictionary[tuple[str, Hashable], Engine] = WeakValueDictionary()
        self._recent: deque[Engine] = deque(maxlen=_KEPT)

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
        if (known := self._known.get(key)) is None:
            # a site's files are read: Slurm's engine looks at the oci.conf
            made = await look(
                f"engine {name}", plugin.engine, self._root, configuration,
                failure=PluginUnavailable,
            )  # fmt: skip
            if made.name != name:  # the record has its name, and finds it again by that
                raise PluginUnavailable(f"plugin engine/{name} makes an engine {made.name!r}")
            known = self._known.setdefault(key, made)  # another call may have been faster
        self._recent.append(known)
        return known

    def tidy(self) -> None:
        """Have all of them tidied up."""
        for engine in list(self._known.values()):
            engine.tidy()
