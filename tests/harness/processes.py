"""Looking at processes through /proc."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """One process, as far as it could be read when it was looked at."""

    pid: int
    argv: tuple[str, ...]
    environment: tuple[str, ...]

    @property
    def is_supervisor(self) -> bool:
        program = [argument.removesuffix("/__main__.py") for argument in self.argv[1:6]]
        return any(os.path.basename(argument) == "supervisor" for argument in program)

    @property
    def is_keeper(self) -> bool:
        """Whether this is the keeper of a supervisor, or what it runs to find a successor."""
        return "scrun-keeper" in self.argv or any("hand_over" in word for word in self.argv)

    @property
    def has_shim(self) -> bool:
        """Whether this is a shim, or the srun that brings one to its node."""
        return any("scrun.supervisor.shim" in word for word in self.argv)

    @property
    def is_scrun(self) -> bool:
        """Whether this is a command of ours: the client, or the Python program."""
        return any(word.endswith(("/scrun", "/scrun/main.py")) for word in self.argv[:10])

    @property
    def is_anchor(self) -> bool:
        return is_anchor(self.argv)

    def mentions(self, text: str) -> bool:
        """Whether the text is in its arguments, its environment or the paths that it has open."""
        if any(text in item for item in (*self.argv, *self.environment)):
            return True
        return _has_open(f"/proc/{self.pid}", text)

    def __str__(self) -> str:
        return f"{self.pid}: {' '.join(self.argv)[:200]}"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:  # gone, or a zombie
        return b""


def _strings(data: bytes) -> tuple[str, ...]:
    return tuple(os.fsdecode(item) for item in data.split(b"\0") if item)


def _has_open(directory: str, text: str) -> bool:
    try:
        links = [f"{directory}/cwd"]
        links += [f"{directory}/fd/{name}" for name in os.listdir(f"{directory}/fd")]
    except OSError:
        return False
    for link in links:
        try:
            if text in os.readlink(link):
                return True
        except OSError:
            continue
    return False


def is_anchor(argv: Sequence[str]) -> bool:
    """Whether this is the command line of the anchor of a container."""
    return bool(argv) and argv[0].startswith("scrun-anchor ")


def _command_lines(but: Collection[str] = ()) -> Iterator[tuple[str, bytes]]:
    for name in os.listdir("/proc"):
        if not name.isdigit() or name in but or int(name) == os.getpid():
            continue
        if argv := _read(f"/proc/{name}/cmdline"):
            yield name, argv


def processes(word: str = "") -> Iterator[Process]:
    """All processes of this machine but zombies, kernel threads and the caller.

    Args:
        word: Only those that have it in their command line.
    """
    mark = os.fsencode(word)
    for name, argv in _command_lines():
        if mark in argv:
            yield _process(name, argv, _read(f"/proc/{name}/environ"))


def _process(name: str, argv: bytes, environment: bytes) -> Process:
    return Process(int(name), _strings(argv), _strings(environment))


def processes_of(text: str, but: Collection[str] = ()) -> list[Process]:
    """All processes that have the text in their arguments, environment or open paths.

    Args:
        text: What they have.
        but: Names in /proc that are passed over. Who looks often saves much by that.
    """
    mark, found = os.fsencode(text), []
    for name, argv in _command_lines(but):
        environment = _read(f"/proc/{name}/environ")
        if mark in argv or mark in environment or _has_open(f"/proc/{name}", text):
            found.append(_process(name, argv, environment))
    return found


def shims_of(job: str) -> list[int]:
    shims = processes("scrun.supervisor.shim")
    return [shim.pid for shim in shims if f"SLURM_JOB_ID={job}" in shim.environment]


def descriptors() -> dict[str, str]:
    """What this process has open: numbers, and what /proc shows for them."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the directory
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


def descendants(pid: int) -> list[int]:
    """The children of a process, their children, and so on."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        with contextlib.suppress(OSError):  # one that ends cannot be listed, or read
            for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    children = [int(child) for child in task.read_text().split()]
                    found += children
                    waiting += children
    return found


def voluntary_switches(pid: int) -> int:
    """How often the threads of a process have gone to sleep so far."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                total += int(line.split()[1])
    return total


def peak(pid: int) -> int:
    """Return the most memory that a process has had, in KiB; proc(5): VmHWM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def peer(sock: socket.SocketType) -> int:
    """Return the pid of who listens, or has connected, at the other end (unix(7))."""
    size = struct.calcsize("3i")
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", credentials)[0])


def signal_quietly(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def run(*command: str) -> None:
    """Run a command of the system's, successfully."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=20)
