"""Containers on real engines while things break, and what is left afterwards."""
