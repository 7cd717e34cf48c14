"""The plugin engine/slurm: the nodes of a cluster."""

from collections.abc import Mapping

from scrun.core.errors import EngineUnavailable
from scrun.settings.file.load import Settings
from scrun.settings.oci_conf.parse import beside, version_of
from scrun.settings.slurm_conf import find_slurm_conf
from scrun.supervisor.contracts.target import HOST_ONLY
from scrun.supervisor.engines.slurm.engine import SlurmConfiguration, SlurmEngine
from scrun.supervisor.engines.slurm.room import POOL
from scrun.supervisor.engines.slurm.tools import find_tools

plugin_type = "engine/slurm"
plugin_name = "Slurm"
plugin_version = "1.0.0"


def configure(settings: Settings, environment: Mapping[str, str]) -> SlurmConfiguration:
    """See `supervisor.contracts.plugin.EnginePlugin`.

    Raises:
        EngineUnavailable: Slurm's commands are not found; or there is no slurm.conf, and no
            setting names Slurm.
    """
    conf = find_slurm_conf(settings)
    if conf is None and settings.engine == "auto":
        raise EngineUnavailable("there is no slurm.conf")
    slurm = settings.slurm
    own = {POOL: slurm.pool} if slurm.pool else {}
    return SlurmConfiguration(
        tools=find_tools(slurm.bin, conf, environment),
        release_timeout=slurm.release_timeout,
        give_up=slurm.give_up,
        host_only=(*HOST_ONLY, *settings.staging.host_only),
        defaults=tuple(sorted({**own, **slurm.defaults}.items())),
        allowed=frozenset(slurm.allow),
        runtime=settings.runtime,
        launch=slurm.launch,
        linger=slurm.linger,
        pool_node=tuple(sorted(slurm.pool_node.items())),
        seal_streams=slurm.seal_streams,
        restore_timeout=settings.restore_timeout,
        oci_conf=version_of(beside(conf)),
    )


def engine(root: str, configuration: SlurmConfiguration) -> SlurmEngine:
    """Make the engine; Slurm is asked nothing yet."""
    return SlurmEngine(configuration, root)
