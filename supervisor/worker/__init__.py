"""The Lua worker: the process that runs a site's scripts. RUNS IN: that process."""
