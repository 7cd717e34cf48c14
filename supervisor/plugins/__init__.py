"""Engines and stagers as plugins: what one is (api), and who finds and loads them (registry)."""
