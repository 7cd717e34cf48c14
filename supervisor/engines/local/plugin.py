"""The plugin engine/local: this machine."""

from collections.abc import Mapping

import msgspec

from scrun.settings.file.load import Local, RuntimeSettings, Settings
from scrun.supervisor.engines.local.engine import LocalEngine

plugin_type = "engine/local"
plugin_name = "This machine"
plugin_version = "1.0.0"


class LocalConfiguration(msgspec.Struct, frozen=True):
    """The sections of the settings that this engine uses."""

    local: Local
    runtime: RuntimeSettings


def configure(settings: Settings, environment: Mapping[str, str]) -> LocalConfiguration:
    """See `supervisor.contracts.plugin.EnginePlugin`."""
    return LocalConfiguration(settings.local, settings.runtime)


def engine(root: str, configuration: LocalConfiguration) -> LocalEngine:
    """See `supervisor.contracts.plugin.EnginePlugin`."""
    return LocalEngine(root, configuration.local, configuration.runtime)
