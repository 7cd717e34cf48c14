"""Finds the supervisors of a root directory, and looks at them from outside.

That works with every version of them: it asks the kernel and reads the records.
"""

import _socket
import os
import time
from collections.abc import Iterator, Sequence

from scrun.client.find import containers
from scrun.core.errors import ScrunError, UsageError
from scrun.core.paths import keepers
from scrun.core.place import stat_fields
from scrun.core.supervisors import parts
from scrun.model.record import read_record
from scrun.protocol import wire

_PATIENCE = 2
ANSWERS = 10
"""The seconds after which what is shown is shown without a supervisor that does not answer."""


class Supervisor:
    """One that runs.

    Attributes:
        pid: 0 if it is in a PID namespace that we do not see.
        containers: Those that it serves and that have not stopped.
        memory: Its own in bytes (PSS, else RSS); None if that cannot be read.
        since: When it started, in seconds since the epoch; None likewise.
    """

    def __init__(self, root: str, name: str, pid: int, served: Sequence[str]) -> None:
        self.root, self.name, self.pid, self.containers = root, name, pid, served
        self.version = parts(name)[1]
        self.memory = _memory(pid)
        self.since = _since(pid)

    def __str__(self) -> str:
        """How messages name it."""
        return f"supervisor {self.pid or self.name}"

    def pidfd(self) -> int:
        """Return a descriptor of its process; ProcessLookupError if it has ended."""
        fd = os.pidfd_open(self.pid)
        # the number is still its own, as the socket is
        if (sock := _connected(self.root, self.name)) is None:
            os.close(fd)
            raise ProcessLookupError
        sock.close()
        return fd


def supervisors(root: str) -> list[Supervisor]:
    """Return the supervisors that listen in a root directory, sorted by name."""
    found = []
    served: dict[str, list[str]] | None = None
    for name in sorted(_names(root)):
        if (sock := _connected(root, name)) is not None:
            pid = wire.peer_pid(sock)
            sock.close()
            served = _served(root) if served is None else served
            found.append(Supervisor(root, name, pid, served.get(name, [])))
    return found


def chosen(found: Sequence[Supervisor], words: Sequence[str]) -> list[Supervisor]:
    """Return those that somebody names: by pid, or by how their name begins."""
    result = []
    for word in words:
        named = [one for one in found if word in (str(one.pid), one.name)]
        named = named or [one for one in found if one.name.startswith(word)]
        if len(named) != 1:
            what = "names several supervisors" if named else "is not a running supervisor"
            raise UsageError(f"{word}: {what}: see 'scrun supervisor list'")
        result += named
    return result


def ask_all(root: str, fields: list[bytes], patience: int = 0) -> Iterator[tuple[int, bytes]]:
    """Ask each supervisor that may have jobs that wait; one that hangs up has ended.

    Each has `patience` seconds for its answer, any time if that is 0. If one does not answer
    nothing is known of what it has: that is an OSError, when all others were asked.
    """
    unknown: list[OSError] = []
    for name in keepers(root):
        try:
            sock = wire.connect_supervisor(root, name, patience)
            try:
                wire.send(sock, fields)
                yield wire.receive(sock)
            finally:
                sock.close()
        except (*wire.NOBODY, ConnectionError):
            continue
        except OSError as error:
            unknown.append(error)
    if unknown:
        raise unknown[0]


def _names(root: str) -> list[str]:
    try:
        entries = os.listdir(root)
    except FileNotFoundError:
        return []
    return [name for name in entries if name.startswith("@") and not name.endswith(".lock")]


def _connected(root: str, name: str) -> _socket.socket | None:
    try:
        return wire.connect_supervisor(root, name, _PATIENCE)
    except OSError:
        return None


def _served(root: str) -> dict[str, list[str]]:
    """Return the containers that have not stopped, by the names of their supervisors."""
    served: dict[str, list[str]] = {}
    for container in containers(root):
        directory = os.path.join(root, container)
        try:
            name = os.path.basename(os.readlink(os.path.join(directory, "supervisor")))
            if read_record(directory).status != "stopped":
                served.setdefault(name, []).append(container)
        except (OSError, ScrunError):
            continue
    return served


def _memory(pid: int) -> int | None:
    for file, key in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            with open(f"/proc/{pid}/{file}", encoding="ascii", errors="replace") as lines:
                for line in lines:
                    if line.startswith(key):
                        return int(line.split()[1]) * 1024
        except OSError:
            continue
    return None


def _since(pid: int) -> float | None:
    if not (fields := stat_fields(pid)):
        return None
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - uptime + int(fields[19]) / os.sysconf("SC_CLK_TCK")
