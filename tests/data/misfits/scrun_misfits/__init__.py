"""Plugins that scrun must not use, each for a reason of its own."""
