"""Containers: their records, lives and ends."""
