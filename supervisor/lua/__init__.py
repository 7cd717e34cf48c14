"""Runs scrun.lua: the script in a process of its own, and what it is given."""
