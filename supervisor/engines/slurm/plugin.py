"""The plugin engine/slurm: the nodes of a cluster."""

from collections.abc import Mapping

import msgspec

from scrun.core.errors import EngineUnavailable
from scrun.settings.file.load import RuntimeSettings, Settings
from scrun.settings.file.load import Slurm as SlurmSettings
from scrun.settings.oci_conf.parse import beside, version_of
from scrun.settings.slurm_conf import find_slurm_conf
from scrun.supervisor.contracts.target import HOST_ONLY
from scrun.supervisor.engines.slurm.engine import SlurmEngine
from scrun.supervisor.engines.slurm.launching import Launch
from scrun.supervisor.engines.slurm.room import POOL
from scrun.supervisor.engines.slurm.tools import Tools, find_tools
from scrun.supervisor.nodes.beginning import ALONE

plugin_type = "engine/slurm"
plugin_name = "Slurm"
plugin_version = "1.0.0"


class SlurmConfiguration(msgspec.Struct, frozen=True):
    """All settings that distinguish one cluster, or one use of it, from another."""

    tools: Tools
    release_timeout: float
    give_up: tuple[str, ...]
    host_only: tuple[str, ...]
    defaults: tuple[tuple[str, str], ...]
    allowed: frozenset[str]
    runtime: RuntimeSettings
    launch: Launch = "container"
    linger: float = 0
    pool_node: tuple[tuple[str, str], ...] = ()
    seal_streams: bool = True
    restore_timeout: float = ALONE
    oci_conf: tuple[int, int, int] | None = None
    """Which version: an engine reads it once, so another one makes another engine."""


def configure(settings: Settings, environment: Mapping[str, str]) -> SlurmConfiguration:
    """See `supervisor.contracts.plugin.EnginePlugin`.

    Raises:
        EngineUnavailable: Slurm's commands are not found; or there is no slurm.conf, and no
            setting names Slurm.
    """
    conf = find_slurm_conf(settings)
    if conf is None and settings.engine == "auto":
        raise EngineUnavailable("there is no slurm.conf")
    return SlurmConfiguration(
        tools=find_tools(settings.slurm.bin, conf, environment),
        release_timeout=settings.slurm.release_timeout,
        give_up=settings.slurm.give_up,
        host_only=(*HOST_ONLY, *settings.staging.host_only),
        defaults=tuple(sorted(_defaults(settings.slurm).items())),
        allowed=frozenset(settings.slurm.allow),
        runtime=settings.runtime,
        launch=settings.slurm.launch,
        linger=settings.slurm.linger,
        pool_node=tuple(sorted(settings.slurm.pool_node.items())),
        seal_streams=settings.slurm.seal_streams,
        restore_timeout=settings.restore_timeout,
        oci_conf=version_of(beside(conf)),
    )


def _defaults(settings: SlurmSettings) -> dict[str, str]:
    return {POOL: settings.pool, **settings.defaults} if settings.pool else settings.defaults


def engine(root: str, configuration: SlurmConfiguration) -> SlurmEngine:
    """Make the engine; Slurm is asked nothing yet."""
    return SlurmEngine(
        configuration.tools,
        release_timeout=configuration.release_timeout,
        give_up=configuration.give_up,
        host_only=configuration.host_only,
        defaults=dict(configuration.defaults),
        allowed=configuration.allowed,
        runtime=configuration.runtime,
        launch=configuration.launch,
        linger=configuration.linger,
        pool_node=dict(configuration.pool_node),
        seal_streams=configuration.seal_streams,
        restore_timeout=configuration.restore_timeout,
        root=root,
    )
