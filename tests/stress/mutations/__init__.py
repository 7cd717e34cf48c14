"""Deliberate faults of the product, and the tests that have to notice them (tools/mutate)."""
