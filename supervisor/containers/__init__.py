"""Containers: records, lifecycle, and how they end."""
