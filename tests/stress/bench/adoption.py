"""How long it takes until a successor has all containers of a supervisor that is killed."""

import ctypes
import json
import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from scrun.protocol import wire
from tests.harness.processes import peer
from tests.stress.bench.figures import Goal, table
from tests.stress.bench.stand import Made, Stand
from tests.stress.bench.weights import spent

_SAYS = b"this one goes on"
_ROUNDS = 3
_MODIFIED = 2  # IN_MODIFY
_EVENT = struct.Struct("iIII")  # struct inotify_event
_PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Taken:
    """One adoption.

    Attributes:
        last: Seconds from the kill until the last container was adopted.
        half: Seconds until half of them were.
        cpu: Milliseconds of CPU of the successor until then.
        answers: Seconds until it had answered a request for each of them, one after the other.
    """

    last: float
    half: float
    cpu: float
    answers: float


class Adoptions:
    """Containers that sleep, whose supervisor is killed some times."""

    def __init__(self, stand: Stand, sizes: dict[str, int]) -> None:
        """Prepare.

        Args:
            stand: Where.
            sizes: How many containers in each arrangement: "here", "in one job", "in their jobs".
        """
        self._stand = stand
        self._sizes = sizes
        self._taken: dict[str, list[Taken]] = {}
        self._states: dict[str, list[str]] = {}

    def round(self) -> None:
        for arrangement, count in self._sizes.items():
            made = self._make(arrangement, count)
            root, ids = self._stand.site.root, [each.id for each in made]
            self._taken[arrangement] = [adopt(root, ids) for _ in range(_ROUNDS)]
            self._states[arrangement] = self._look(ids)
            for each in made:
                each.remove()

    def _make(self, arrangement: str, count: int) -> list[Made]:
        stand = self._stand
        bundle = stand.member if arrangement == "in one job" else stand.sleep
        made = [stand.create(bundle) for _ in range(count)]
        for each in made:
            each.take("", "start")
        made[-1].runs()
        return made

    def _look(self, ids: Sequence[str]) -> list[str]:
        """Ask for states all through an adoption, which takes longer then."""
        said: list[str] = []
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                command = [*self._stand.site.command, "state", random.choice(ids)]
                done = subprocess.run(command, env=self._stand.site.environment,
                    capture_output=True, check=False)  # fmt: skip
                said.append(json.loads(done.stdout)["status"] if done.stdout else "?")

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            adopt(self._stand.site.root, ids)
        finally:
            over.set()
            asking.join()
        return said

    def table(self) -> str:
        rows = []
        for arrangement, taken in self._taken.items():
            said = self._states[arrangement]
            rows += [
                [
                    f"{self._sizes[arrangement]} {arrangement}",
                    f"{one.half:.2f}",
                    f"{one.last:.2f}",
                    f"{one.answers:.2f}",
                    f"{one.cpu / 1e3:.2f}",
                    f"{len(said) - said.count('running')} of {len(said)}",
                ]
                for one in taken
            ]
        head = ["containers", "half of them, s", "all, s", "all have answered, s"]
        return table([*head, "successor's CPU s", "wrong states"], rows)

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        found = []
        for arrangement, taken in self._taken.items():
            what = f"{self._sizes[arrangement]} {arrangement}"
            said = self._states[arrangement]
            wrong = float(len(said) - said.count("running"))
            last = statistics.median(one.last for one in taken)
            found += [
                Goal(f"{what} adopted, in s", "nothing", last, 3),
                Goal(f"{what}: `state` is wrong meanwhile", "never", wrong, 0),
            ]
        return found


def adopt(root: Path, ids: Sequence[str]) -> Taken:
    """Kill the supervisor of some containers, and wait for the next one to have them all."""
    logs = [root / name / "log" for name in ids]
    found = Lines(logs)
    with closing(_connected(root, ids[-1])) as sock:
        supervisor = peer(sock)
    began = time.perf_counter()
    os.kill(supervisor, signal.SIGKILL)
    times = [at - began for at in found.wait()]
    with closing(_connected(root, ids[-1])) as sock:
        _, cpu = spent([peer(sock)])
    for name in ids:
        with closing(_connected(root, name)) as sock:
            wire.send(sock, [b"kill", name.encode(), b"0"])
            status, answer = wire.receive(sock)
            if status:
                raise SystemExit(f"bench: {answer.decode()}")
    answers = time.perf_counter() - began
    return Taken(max(times), statistics.median(times), cpu, answers)


def _connected(root: Path, container: str) -> socket.socket:
    plain = wire.connect_supervisor(str(root / container), "supervisor")
    return socket.socket(fileno=plain.detach())


class Lines:
    """Tells when containers are adopted: their logs say so. Nothing polls (inotify(7))."""

    def __init__(self, logs: Sequence[Path]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_CLOEXEC)
        self._logs: dict[int, Path] = {}
        for log in logs:
            watch = self._libc.inotify_add_watch(self._fd, os.fsencode(log), _MODIFIED)
            if watch < 0:
                raise SystemExit(f"bench: {log}: {os.strerror(ctypes.get_errno())}")
            self._logs[watch] = log
        self._before = {log: log.read_bytes().count(_SAYS) for log in logs}

    def wait(self) -> list[float]:
        """Wait for all of them, and return when each was adopted."""
        times: dict[Path, float] = {}
        over = time.perf_counter() + _PATIENCE
        try:
            while len(times) < len(self._logs):
                content = os.read(self._fd, 1 << 16)
                now = time.perf_counter()
                for watch in _watches(content):
                    log = self._logs[watch]
                    if log not in times and log.read_bytes().count(_SAYS) > self._before[log]:
                        times[log] = now
                if now > over:
                    raise SystemExit(f"bench: {len(times)} of {len(self._logs)} were adopted")
        finally:
            os.close(self._fd)
        return [*times.values()]


def _watches(content: bytes) -> set[int]:
    found, at = set(), 0
    while at < len(content):
        watch, _, _, length = _EVENT.unpack_from(content, at)
        found.add(watch)
        at += _EVENT.size + length
    return found
