"""One for another version of the plugin API."""

from scrun_none.engine import configure, engine

__all__ = ["configure", "engine"]

plugin_type = "engine/old"
plugin_name = "Old"
plugin_version = "0.9.0"
