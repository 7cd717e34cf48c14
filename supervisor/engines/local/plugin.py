"""The plugin engine/local: this machine."""

from collections.abc import Mapping

import msgspec

from scrun.settings.file.load import Local, RuntimeSettings, Settings
from scrun.settings.oci_conf.parse import version_of
from scrun.supervisor.engines.local.engine import LocalEngine

plugin_type = "engine/local"
plugin_name = "This machine"
plugin_version = "1.0.0"


class LocalConfiguration(msgspec.Struct, frozen=True):
    """The sections of the settings that this engine uses."""

    local: Local
    runtime: RuntimeSettings
    oci_conf: tuple[int, int, int] | None = None
    """Which version: an engine reads it once, so another one makes another engine."""


def configure(settings: Settings, environment: Mapping[str, str]) -> LocalConfiguration:
    """Return its settings, and which version of the oci.conf it will read."""
    path = settings.local.oci_conf
    return LocalConfiguration(settings.local, settings.runtime, version_of(path) if path else None)


def engine(root: str, configuration: LocalConfiguration) -> LocalEngine:
    """Make the engine; nothing is asked or looked for yet."""
    return LocalEngine(root, configuration.local, configuration.runtime)
