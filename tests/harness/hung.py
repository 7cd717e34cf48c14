"""A file system that stops answering: FUSE, whose server is this program (linux/fuse.h).

Whoever waits for it is in the kernel, and cannot be killed. The server is a process of its own
because a test that fails here stops with all its threads. Its end makes all that waits fail.
"""

import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scrun.core import namespaces as ns
from tests import CHECKOUT

_IN, _OUT = struct.Struct("IIQQIIII"), struct.Struct("IiQ")
_GETATTR, _INIT = 3, 26
_SETTINGS = struct.pack("IIIIHHII36x", 7, 31, 65536, 0, 1, 1, 65536, 1)
_DIRECTORY = struct.pack("6Q10I", 1, *[0] * 8, stat.S_IFDIR | 0o755, 2, 0, 0, 0, 4096, 0)
_PIECE = 1 << 17
_PATIENCE = 10


def _serve(place: str, *, can_be_seen: bool) -> None:
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fuse},rootmode=40755,user_id=0,group_id=0,allow_other"
    ns.mount("hung", place, "fuse", ns.NO_SUID, options)
    print("mounted", flush=True)
    signal.alarm(_PATIENCE)
    while request := os.read(fuse, _PIECE):
        _, kind, number, *_ = _IN.unpack_from(request)
        if kind == _INIT:
            answer = _SETTINGS
        elif kind == _GETATTR and can_be_seen:
            answer = struct.pack("QII", 0, 0, 0) + _DIRECTORY
        else:
            print("asked", flush=True)
            continue
        os.write(fuse, _OUT.pack(_OUT.size + len(answer), 0, number) + answer)


class Hung:
    """A directory that hangs for whoever goes there."""

    def __init__(self, place: Path, *, can_be_seen: bool) -> None:
        """Mount it; `can_be_seen` tells whether stat(2) is answered still."""
        self.place = place
        place.mkdir()
        words = ["-m", "tests.harness.hung", str(place), *(["seen"] if can_be_seen else [])]
        self._server = subprocess.Popen(
            [sys.executable, *words], cwd=CHECKOUT, stdout=subprocess.PIPE, bufsize=0
        )
        self._hear(b"mounted\n")

    def _hear(self, word: bytes) -> None:
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == word

    def wait(self) -> None:
        """Wait until somebody waits for it; in vain, it has failed meanwhile."""
        self._hear(b"asked\n")

    def fail(self) -> None:
        """Fail all that waits, and whoever comes later."""
        self._server.kill()
        self._server.wait()

    def close(self) -> None:
        """Fail, and unmount it."""
        self.fail()
        assert self._server.stdout is not None
        self._server.stdout.close()
        subprocess.run(["umount", "--lazy", self.place], check=True, timeout=30)


@contextmanager
def hung(place: Path, *, can_be_seen: bool) -> Iterator[Hung]:
    """Have such a directory. It fails after ten seconds: a test that fails cannot unmount it."""
    made = Hung(place, can_be_seen=can_be_seen)
    try:
        yield made
    finally:
        made.close()


if __name__ == "__main__":
    _serve(sys.argv[1], can_be_seen="seen" in sys.argv[2:])
