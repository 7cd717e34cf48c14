"""A child runs once: if its supervisor dies before anybody knows of it, it does not."""

import os
import subprocess

import pytest

from scrun.supervisor.children.persistent import Gate, open_gate

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


def waiting(gate: Gate) -> "subprocess.Popen[bytes]":
    command = gate.before(["echo", "two words"])
    return subprocess.Popen(command, pass_fds=gate.descriptors, stdout=subprocess.PIPE)


def test_it_passes_when_it_is_told() -> None:
    gate = Gate()
    child = waiting(gate)
    assert child.poll() is None
    gate.open()
    assert child.communicate(timeout=10)[0] == b"two words\n"
    gate.close()


def test_it_ends_with_whoever_would_tell() -> None:
    gate = Gate()
    child = waiting(gate)
    gate.close()
    assert child.communicate(timeout=10)[0] == b""
    assert child.returncode == 1


def test_a_successor_tells() -> None:
    gate = Gate()
    child, kept = waiting(gate), os.dup(gate.fd)
    gate.close()
    open_gate(kept)
    assert child.communicate(timeout=10)[0] == b"two words\n"
    open_gate(kept)  # nobody waits any more
    os.close(kept)
