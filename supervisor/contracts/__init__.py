"""Interfaces between the parts of the supervisor: engines, stagers, plugins, requests."""
