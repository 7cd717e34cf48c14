"""Descriptors that are passed while many others of the user's are on their way."""

import subprocess
import sys

import pytest

from tests.harness.users import other

# Root may pass any number, so a user does it. What waits in a socket is on its way.
_MANY = """
import array, os, resource, socket, sys
from scrun.core.rights import send_fds
many, hard, own = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
waits, _ = ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
rights = array.array("i", [0] * 100)
for _ in range(many // 100):
    waits.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
resource.setrlimit(resource.RLIMIT_NOFILE, (own, hard))
here, there = socket.socketpair()
try:
    sent = send_fds(here, b"data", [0, 1])
except OSError as error:
    sys.exit(error.strerror)
data, fds, *_ = socket.recv_fds(there, 10, 5)
print(sent, data, len(fds), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def passed(*limits: int) -> str:
    done = subprocess.run(
        [*other().prefix, sys.executable, "-c", _MANY, *map(str, limits)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize("many", [0, 600])
def test_they_are_passed(many: int) -> None:
    """The limit is the same afterwards: programs that are started inherit it."""
    assert passed(many, 1000, 100) == "4 b'data' 2 100\n"


def test_more_than_may_ever_be_open() -> None:
    assert passed(600, 600, 100).startswith("4 b'data'")
    assert "Too many references" in passed(900, 800, 100)
