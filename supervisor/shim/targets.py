"""A container or an exec, and finding the processes of it."""

import _signal as signal  # without enum, which takes longer than hello
import os

from .processes import descendants, is_called_with, kill_quietly
from .runtime import pid_file_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .arrivals import Arrivals
    from .console import ProgramStdio
    from .images import Mounted
    from .site import Site
    from .space import Space
    from .user_network import UserNetwork


class NodeProcess:
    """A container, or an exec in one.

    Attributes:
        id: The supervisor's name of it.
        name: The runtime's name of the container.
        container: The container that an exec is in; None for a container.
        variables: Those that it has from its own request, not from the step's.
        processors: Those to which it is bound; none: all of ours.
        shares: The name under which it has them.
        needs: The paths that a container needs here which the runtime makes, if we see them.
        is_plain: Whether its start and end change nothing but what the runtime knows of it.
        tells_filter: Whether the supervisor wants to know its seccomp filter.
        site: What an oci.conf has run for the container; None without one, and for an exec.
        pid: Its first process; 0 before it is there and after it has been reaped.
        running: The runtime's processes at work for it.
        ended: How it ended, as `_tell_ended` has it; None before.
        images: The images that its root file system is of, if they are mounted by us; for an exec
            those of its container.
        lost: Whether these went away.
        network: What connects its own network; None if it has the node's, or no connection.
        sockets: What it connects to at the engine's sockets that it mounts; None without such.
        is_isolated: Whether the runtime was to make its network namespace, with nothing in it.
        why: Why it has the node's network, "" if that is to be; None if nobody wants to know.
        signals: What Slurm sent it and its program has not got.
        began: When its program began.
        start_called: When its supervisor called for that; of a container.
        told_to_end: When the supervisor had a SIGTERM for it.
        cgroups: The directories of its own control groups (`own_cgroups`).
        spent: What each of its processes that the runtime has started has used, once it has ended.
        usage: What the container has used, when it has ended and that is known.
        changes: To be called when a process of it or of the runtime has ended.
    """

    def __init__(
        self,
        id: str,  # noqa: A002
        place: str,
        name: str,
        container: "NodeProcess | None",
        stdio: "ProgramStdio",
        targets: "Mapping[str, NodeProcess]",
    ) -> None:
        """Describe one that is about to be made; `targets` are all that there are."""
        self.id, self.place, self.name = id, place, name
        self.container, self.stdio = container, stdio
        self.variables: Mapping[str, str] = {}
        self.processors: frozenset[int] = frozenset()
        self.shares = ""
        self.needs: list[str] = []
        self.is_plain = False
        self.tells_filter = False
        self.site: Site | None = None
        self.pid = 0
        self.running: set[int] = set()
        self.doomed = False
        self.made = self.started = False
        self.ended: tuple[int, bool, bool] | None = None
        self.images: Mounted | None = None if container is None else container.images
        self.lost = False
        self.why: str | None = None
        self.is_isolated = False
        self.network: UserNetwork | None = None if container is None else container.network
        self.sockets: Arrivals | None = None
        self.signals: list[int] = []
        self.began = self.start_called = self.told_to_end = 0.0
        self.cgroups: dict[str, str] = {}
        self.spent: list[dict[str, Any]] = []
        self.usage: dict[str, Any] | None = None
        self.changes: list[Callable[[], None]] = []
        self._targets = targets
        self._mounts = ""
        self._pids = ""
        self._held = -1

    @property
    def space(self) -> "Space | None":
        """The namespaces in which its runtime runs, if these are not ours."""
        if self.images is not None:
            return self.images.space
        return None if self.network is None else self.network.space

    def arrivals(self) -> "list[Arrivals]":
        """Return what has arrived from it for the submit host."""
        outbound = None if self.network is None else self.network.outbound
        return [one for one in (outbound, self.sockets) if one is not None]

    @property
    def is_busy(self) -> bool:
        """Whether a process is left that is to end before its files go."""
        return bool(self.pid or self.running)

    @property
    def is_by_foreground(self) -> bool:
        """Whether its first process is that of a site's runtime, and its program a child of it."""
        if self.container is not None:
            return self.container.site is not None
        return self.site is not None and self.site.runs

    def changed(self) -> None:
        """Tell that a process has ended."""
        for change in list(self.changes):
            change()

    def begin(self, pid: int) -> None:
        self.pid, self.made = pid, True
        if self.container is None:
            try:  # held, for the number of a namespace that is gone may be the next one's
                self._held = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
            except OSError:  # it has ended, or is another user's
                return
            self._mounts, self._pids = _namespace(pid, "mnt"), _namespace(pid, "pid")

    def let_go(self) -> None:
        """Release all but its directory and images; what it has left is not found any more."""
        if self.site is not None:
            self.site.remove()
        if self.network is not None and self.container is None:
            self.network.let_go()
        if self.sockets is not None:
            self.sockets.close()
        self._mounts = ""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def processes(self) -> "list[int]":
        """Return all its processes; of a container also those that the first one has left."""
        found = {self.pid, *descendants(self.pid)} if self.pid else set()
        if self._mounts and self._mounts != _namespace(os.getpid(), "mnt"):
            all_of_us = descendants(os.getpid(), self._apart())
            found.update(pid for pid in all_of_us if _namespace(pid, "mnt") == self._mounts)
        return sorted(found)

    def _apart(self) -> "set[int]":
        """Return the first processes of other PID namespaces: below them is nothing of it."""
        shared = ("", self._pids, _namespace(os.getpid(), "pid"))
        others = ((one.pid, (one.container or one)._pids) for one in self._targets.values())
        return {pid for pid, pids in others if pid and pids not in shared}

    def signal_all(self, number: int) -> None:
        """Send a signal to all its processes, and to those that they start meanwhile."""
        seen: set[int] = set()
        for _ in range(2):
            for pid in self.processes():
                if pid not in seen:
                    kill_quietly(pid, number)
                    seen.add(pid)

    def stop_runtime(self) -> None:
        """Kill the runtime's processes at work for it, and what they have started."""
        for runtime in self.running:
            kill_quietly(runtime, signal.SIGSTOP)  # so that it starts nothing behind our back
            for _ in range(2):
                for pid in descendants(runtime):
                    kill_quietly(pid, signal.SIGKILL)
            kill_quietly(runtime, signal.SIGKILL)
        if self.running:  # of crun's, the first process of a container is a child of ours already
            for _ in range(2):
                for pid in descendants(os.getpid()):
                    if is_called_with(pid, pid_file_of(self.place)):
                        kill_quietly(pid, signal.SIGKILL)


def _namespace(pid: int, kind: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""
