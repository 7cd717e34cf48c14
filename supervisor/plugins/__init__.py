"""Finds, loads and chooses plugins: engines and stagers."""
