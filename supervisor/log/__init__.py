"""Logs: one for each container, and the supervisor's own."""
