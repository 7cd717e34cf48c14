"""The tests of scrun."""
