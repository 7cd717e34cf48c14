"""Which engine runs a container, and with which settings."""

from collections.abc import Mapping

from scrun.errors import EngineUnavailable
from scrun.settings.load import Settings
from scrun.settings.slurmconf import find_slurm_conf
from supervisor.engines.base import Engine
from supervisor.engines.local.engine import LocalEngine
from supervisor.engines.slurm.engine import SlurmEngine
from supervisor.engines.slurm.tools import find_tools
from supervisor.staging.plan import HOST_ONLY

ENGINES = (SlurmEngine.name, LocalEngine.name)


class Engines:
    """The engines of a supervisor, one for each group of settings that asks for its own."""

    def __init__(self, root: str) -> None:
        """Start without any.

        Args:
            root: The directory under which records are; the embedded engine keeps its state
                and its counter of jobs there.
        """
        self._root = root
        self._known: dict[object, Engine] = {}

    def choose(self, settings: Settings, environment: Mapping[str, str]) -> Engine:
        """Return the engine that the settings name, or the one that can be had.

        Raises:
            EngineUnavailable: The engine that was asked for cannot be used; with the reason.
        """
        if settings.engine == "local":
            return self._local(settings)
        try:
            return self._slurm(settings, environment)
        except EngineUnavailable:
            if settings.engine == "slurm":
                raise
            return self._local(settings)

    def tidy(self) -> None:
        """Have all of them tidied up."""
        for engine in self._known.values():
            engine.tidy()

    def _slurm(self, settings: Settings, environment: Mapping[str, str]) -> Engine:
        conf = find_slurm_conf(settings)
        if conf is None and settings.engine == "auto":
            raise EngineUnavailable("no slurm.conf is there")
        tools = find_tools(settings.slurm.bin, conf, environment)
        key = (
            tools,
            settings.slurm.release_timeout,
            settings.staging.host_only,
            tuple(sorted(settings.slurm.defaults.items())),
            settings.runtime,
        )
        if key not in self._known:
            self._known[key] = SlurmEngine(
                tools,
                release_timeout=settings.slurm.release_timeout,
                host_only=(*HOST_ONLY, *settings.staging.host_only),
                defaults=settings.slurm.defaults,
                runtime=settings.runtime,
            )
        return self._known[key]

    def _local(self, settings: Settings) -> Engine:
        key = (settings.local, settings.runtime)
        if key not in self._known:
            self._known[key] = LocalEngine(self._root, settings.local, settings.runtime)
        return self._known[key]
