"""Descriptors that are passed between processes."""

import os
import socket

import pytest

from scrun.core.rights import MOST, receive_fds, send_fds


@pytest.mark.usefixtures("no_descriptor_stays")
@pytest.mark.parametrize("many", [0, 1, MOST])
def test_they_are_passed(many: int) -> None:
    here, there = socket.socketpair()
    with here, there:
        assert send_fds(here, b"data", [0] * many) == 4
        data, fds, whole = receive_fds(there, 10)
        assert (data, len(fds), whole) == (b"data", many, True)
        for fd in fds:
            assert not os.get_inheritable(fd)
            assert os.path.sameopenfile(fd, 0)
            os.close(fd)


@pytest.mark.usefixtures("no_descriptor_stays")
def test_more_than_are_wanted() -> None:
    here, there = socket.socketpair()
    with here, there:
        send_fds(here, b"data", [0] * 8)
        data, fds, whole = receive_fds(there, 10, 4)
        assert (data, len(fds), whole) == (b"data", 4, False)
        for fd in fds:
            os.close(fd)
