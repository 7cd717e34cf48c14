"""One whose init does not want."""

from scrun_none.engine import configure, engine

__all__ = ["configure", "engine"]

plugin_type = "engine/sulky"
plugin_name = "Sulky"
plugin_version = "1.0.0"


def init() -> None:
    """Fail."""
    raise RuntimeError("not today")
