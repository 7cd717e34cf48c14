"""Somebody who connects to ports of ours, and does not know the secret: many times at once."""

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scrun.supervisor.wire.frames import RANDOM, knock
from tests import CHECKOUT

KINDS = ("idle", "noisy", "copying", "reconnecting")
"""What they do: nothing; say what is no proof; say what a shim has said; come again and again."""

_COPIED = knock(b"the secret of another container", bytes(16))
_NOISE = os.urandom(RANDOM)
_SAYS = {
    "idle": b"",
    "noisy": _NOISE + os.urandom(RANDOM),
    "copying": _COPIED,
    "reconnecting": b"",
}


class Strangers:
    """They, in a process of their own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ports(self, ports: list[int]) -> None:
        """Connect to these from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, ports)) + "\n")
        self._process.stdin.flush()

    def wait_for(self, count: int) -> None:
        """Wait until so many have been connected, in all."""
        assert self._process.stdout is not None
        while int(self._process.stdout.readline()) < count:
            pass


@contextmanager
def strangers(
    kind: str, ports: list[int], count: int, prefix: tuple[str, ...] = ()
) -> Iterator[Strangers]:
    """Have so many of them at each port, while the block runs.

    Args:
        kind: One of `KINDS`.
        ports: The ports at first.
        count: How many are at each port at once.
        prefix: What runs their command, as another user.
    """
    command = [*prefix, sys.executable, "-m", __name__, kind, str(count)]
    process = subprocess.Popen(
        command, cwd=CHECKOUT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    found = Strangers(process)
    try:
        found.ports(ports)
        yield found
    finally:
        process.kill()
        process.communicate()


def ports_of(pid: int) -> set[int]:
    """The ports at which a process listens."""
    found = set()
    with suppress(OSError):
        links = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in links:
                    found.add(int(words[1].rpartition(":")[2], 16))
    return found


@contextmanager
def at_every_port(
    kind: str, count: int, processes: Callable[[], list[int]], prefix: tuple[str, ...] = ()
) -> Iterator[None]:
    """Have them at each port of some processes, from the moment on that it is there.

    Args:
        kind: One of `KINDS`.
        count: How many are at each port at once.
        processes: Returns the pids; called all the time.
        prefix: What runs their command, as another user.
    """
    over = threading.Event()
    with strangers(kind, [], count, prefix) as there:

        def look() -> None:
            while not over.is_set():
                there.ports([port for pid in processes() for port in ports_of(pid)])
                over.wait(0.002)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


class _Port:
    """Those at one port."""

    def __init__(self, port: int, kind: str, count: int) -> None:
        self._address = ("127.0.0.1", port)
        self._kind, self._count = kind, count
        self._socks: list[socket.socket] = []
        self.made = 0

    def turn(self) -> bool:
        """Make all of them be there; return whether somebody listens there."""
        for sock in list(self._socks):
            if self._kind == "reconnecting" or self._is_over(sock):
                sock.close()
                self._socks.remove(sock)
        while len(self._socks) < self._count:
            sock = socket.socket()
            try:
                sock.connect(self._address)
                sock.sendall(_SAYS[self._kind])
            except OSError as error:
                sock.close()
                return not isinstance(error, ConnectionRefusedError)
            sock.setblocking(False)
            self._socks.append(sock)
            self.made += 1
        return True

    def _is_over(self, sock: socket.socket) -> bool:
        try:
            return not sock.recv(4096)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        for sock in self._socks:
            sock.close()


def _main(kind: str, count: int) -> None:
    there: dict[int, _Port] = {}
    poll = select.poll()
    poll.register(0, select.POLLIN)
    made = told = 0
    while True:
        if poll.poll(5):
            if not (line := sys.stdin.readline()):
                return
            wanted = set(map(int, line.split()))
            there.update((one, _Port(one, kind, count)) for one in wanted - set(there))
        for number, port in list(there.items()):
            before = port.made
            listens = port.turn()
            made += port.made - before
            if not listens:
                there.pop(number).close()
        if made > told:
            told = made
            print(made, flush=True)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
