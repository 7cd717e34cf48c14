"""One without a function that stagers have to have."""

from scrun_none.stager import configure, stager

__all__ = ["configure", "stager"]

plugin_type = "stage/mute"
plugin_name = "Mute"
plugin_version = "1.0.7"
