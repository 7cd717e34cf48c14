"""Looking at processes through /proc."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """One process, as far as it could be read when it was looked at."""

    pid: int
    argv: tuple[str, ...]
    environment: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def is_supervisor(self) -> bool:
        """Whether this is a supervisor of scrun."""
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
        """Whether this is the anchor of a container."""
        return is_anchor(self.argv)

    def mentions(self, text: str) -> bool:
        """Whether the text is in its arguments, its environment or the paths it has open."""
        return any(text in item for item in (*self.argv, *self.environment, *self.files))

    def __str__(self) -> str:
        return f"{self.pid}: {' '.join(self.argv)[:200]}"


def _strings(path: str) -> tuple[str, ...]:
    try:
        data = Path(path).read_bytes()
    except OSError:  # gone, or a zombie
        return ()
    return tuple(os.fsdecode(item) for item in data.split(b"\0") if item)


def _files(directory: str) -> tuple[str, ...]:
    found: list[str] = []
    with contextlib.suppress(OSError):
        links = [f"{directory}/cwd"]
        links += [f"{directory}/fd/{name}" for name in os.listdir(f"{directory}/fd")]
        for link in links:
            with contextlib.suppress(OSError):
                found.append(os.readlink(link))
    return tuple(found)


def is_anchor(argv: Sequence[str]) -> bool:
    """Whether this is the command line of the anchor of a container."""
    return bool(argv) and argv[0].startswith("scrun-anchor ")


def processes() -> Iterator[Process]:
    """All processes of this machine but zombies, kernel threads and the caller."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            place = f"/proc/{name}"
            if argv := _strings(f"{place}/cmdline"):
                yield Process(int(name), argv, _strings(f"{place}/environ"), _files(place))


def processes_of(text: str) -> list[Process]:
    """All processes that have the text in their arguments, environment or open paths."""
    return [process for process in processes() if process.mentions(text)]


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
