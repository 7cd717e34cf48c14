"""Plugins for scrun without effect: the least that an engine and a stager need."""
