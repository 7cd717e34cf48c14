"""Tests of the whole: the installed command, real runtimes, a real cluster."""
