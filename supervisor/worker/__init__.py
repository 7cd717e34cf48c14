"""The Lua worker: a process in which the scripts of a site run. RUNS IN: that process."""
