"""The parents of containers on this machine. RUNS IN: a process for each such container."""
