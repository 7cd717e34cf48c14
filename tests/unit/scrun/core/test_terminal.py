"""Terminals that cannot be opened."""

import os
import resource

import pytest

from scrun.core.terminal import openpty


def test_what_could_not_be_opened_is_named() -> None:
    """openpty(3) gives the reason alone."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limit[1]))
    try:
        with pytest.raises(OSError, match="Too many open files: '/dev/ptmx'"):
            openpty()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
