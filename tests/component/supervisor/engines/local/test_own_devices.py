"""What a runtime that root calls gets in place of this machine's devices."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from scrun.supervisor.engines.local.own_devices import spared


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("name", ["null", "zero", "full", "random", "urandom"])
def test_a_device_is_another_node(name: str, tmp_path: Path, opened: ExitStack) -> None:
    """runc gives /dev/zero to the container's user, and crun before 1.24 all of them."""
    path = f"/dev/{name}"
    fd = os.open(path, os.O_RDWR)
    opened.callback(os.close, fd)
    stdin, stdout, stderr = spared((fd, -1, fd), str(tmp_path))
    assert stdin == stderr != fd
    assert stdout == -1
    assert os.fstat(stdin).st_rdev == os.stat(path).st_rdev
    assert os.fstat(stdin).st_ino != os.stat(path).st_ino
    os.fchown(stdin, 12345, 12345)  # as those do
    assert os.stat(path).st_uid == 0


def test_the_rest_stays(tmp_path: Path, opened: ExitStack) -> None:
    """A terminal, a pipe or a file is the caller's own."""
    terminal, other = os.openpty()
    file = os.memfd_create("file")
    for fd in (terminal, other, file):
        opened.callback(os.close, fd)
    assert spared((other, file, terminal), str(tmp_path)) == (other, file, terminal)
