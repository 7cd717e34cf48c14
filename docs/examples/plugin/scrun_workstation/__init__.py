"""Plugins for scrun on a machine without Slurm."""
