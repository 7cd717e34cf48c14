"""The parent processes of containers on this machine. RUNS IN: a process per such container."""
