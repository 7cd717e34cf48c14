"""One with a dependency that is not installed."""

import scrun_is_not_this  # type: ignore[import-not-found]

plugin_type = "engine/needy"
plugin_name = f"Needy, of {scrun_is_not_this}"
plugin_version = "1.0.0"
