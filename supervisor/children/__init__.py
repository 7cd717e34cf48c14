"""Child processes: starting, reading and reaping."""
