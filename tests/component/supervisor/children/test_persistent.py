"""A child runs once: if its supervisor dies before anybody knows of it, it does not."""

import os
import subprocess

import pytest

from scrun.supervisor.children.persistent import behind_gate, open_gate

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


def waiting() -> "tuple[subprocess.Popen[bytes], int]":
    """Start a child; return it, and the end of the pipe on which it is told."""
    waits, gate = os.pipe()
    command = behind_gate(waits, ["echo", "two words"])
    child = subprocess.Popen(command, pass_fds=[waits], stdout=subprocess.PIPE)
    os.close(waits)
    return child, gate


def test_it_passes_when_it_is_told() -> None:
    child, gate = waiting()
    assert child.poll() is None
    open_gate(gate)
    os.close(gate)
    assert child.communicate(timeout=10)[0] == b"two words\n"


def test_it_ends_with_whoever_would_tell() -> None:
    child, gate = waiting()
    os.close(gate)
    assert child.communicate(timeout=10)[0] == b""
    assert child.returncode == 1


def test_a_successor_tells() -> None:
    child, gate = waiting()
    kept = os.dup(gate)
    os.close(gate)
    open_gate(kept)
    assert child.communicate(timeout=10)[0] == b"two words\n"
    open_gate(kept)  # nobody waits any more
    os.close(kept)
