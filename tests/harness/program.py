"""A program that a test runs to its end."""

import subprocess
from collections.abc import Sequence
from os import PathLike
from typing import Any


def run_program(
    argv: Sequence[str | PathLike[str]], **how: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a program that has nothing to read; keep what it writes, as text.

    Args:
        argv: Its command line.
        how: What differs from that, as for `subprocess.run`.

    Raises:
        subprocess.TimeoutExpired: It took more than a minute, or `timeout` seconds.
    """
    usual = {
        "stdin": None if "input" in how else subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "timeout": 60,
    }
    return subprocess.run(argv, **{**usual, **how})


def output_of(argv: Sequence[str | PathLike[str]], **how: Any) -> str:
    """Run a program, which succeeds and says nothing on standard error; return its output."""
    done = run_program(argv, **how)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout
