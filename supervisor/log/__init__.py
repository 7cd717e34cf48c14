"""Logs: one for each container, and one of the supervisor itself."""
