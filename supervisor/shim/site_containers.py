"""Makes containers by the commands of a site's oci.conf(5)."""

import _signal as signal  # without enum, which takes longer than hello
import os

from .console import device, set_size
from .processes import descendants, kill_quietly
from .site import CreatedContainer, pid_of, query

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .children import Children
    from .containers import NodeContainers
    from .loop import Loop
    from .site import Site, Told
    from .targets import NodeProcess

_KILLING = 2.0  # for RunTimeKill
_TRY, _TRIES = 0.05, 40  # until the runtime has made a terminal


class SiteContainers:
    """What differs from containers that crun or runc makes."""

    def __init__(self, loop: "Loop", children: "Children", containers: "NodeContainers") -> None:
        self._loop, self._children, self._containers = loop, children, containers

    def run(
        self,
        target: "NodeProcess",
        site: "Site",
        command: "list[str]",
        variables: "Mapping[str, str] | None" = None,
    ) -> int:
        """Run what stays in the foreground, as the first process of a container or an exec."""
        pid = self._children.spawn(
            command,
            lambda status: self._over(target, site, status),
            target.stdio.child,
            site.directory,
            {**site.env, **(variables or {})},
            terminal=target.stdio.terminal,
        )
        target.stdio.close_child()
        target.begin(pid)
        target.stdio.begin()
        self.resized(target)
        return pid

    def resized(self, target: "NodeProcess") -> None:
        """Pass the size of a terminal on, where it is not the container's own.

        crun 1.8 in the foreground does not: it has one, and makes another for the container.
        """
        site = target.site if target.container is None else target.container.site
        if site is None or not target.stdio.terminal:
            return
        if target.container is None and not site.runs:
            return
        if target.container is None and site.waits:
            site.resize(*target.stdio.size)
        elif target.pid:
            self._resize(target, _TRIES)

    def _resize(self, target: "NodeProcess", tries: int) -> None:
        found = False
        for pid in descendants(target.pid) if target.pid else ():
            try:
                terminal = os.open(f"/proc/{pid}/fd/0", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
            except OSError:  # it has none, or is not to be looked into
                continue
            try:
                if os.isatty(terminal) and device(terminal) != target.stdio.device:
                    set_size(terminal, *target.stdio.size)
                    found = True
            finally:
                os.close(terminal)
        if target.pid and tries and not found:  # the runtime has not made it yet
            self._loop.after(_TRY, lambda: self._resize(target, tries - 1))

    def start(self, target: "NodeProcess", site: "Site") -> None:
        """Call RunTimeRun."""
        site.waits = False
        site.pid = self.run(target, site, site.command("run"))
        site.note(target.place)

    def _over(self, target: "NodeProcess", site: "Site", status: int) -> None:
        if target.container is None:
            if not site.is_container:  # what it has started ends with it
                kill_quietly(-site.pid, signal.SIGKILL)
            site.pid = 0
        self._containers.ended(target, status)

    def find(self, target: "NodeProcess", site: "Site", found: "Callable[[int], None]") -> None:
        """Ask until the runtime has created a container; tell its first process, 0 if never."""
        self._created(target, site).find(lambda state: found(pid_of(state)))

    def await_end(self, target: "NodeProcess", site: "Site", pid: int) -> None:

        def ended(status: int) -> None:
            if target.pid:
                self._containers.ended(target, status)

        self._created(target, site).await_end(pid, ended)

    def _created(self, target: "NodeProcess", site: "Site") -> CreatedContainer:
        def run(
            command: "list[str]", done: "Callable[[int], None]", stdio: "Sequence[int | None]"
        ) -> int:
            return self._containers.run(target, command, done, stdio)

        def ask(told: "Told") -> None:
            if self._containers.targets.get(target.id) is not target:
                told({})
                return
            path = os.path.join(target.place, "state")
            answer = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            query(site.command("query"), answer, run, told)

        return CreatedContainer(self._loop, self._children, ask)

    def kill(self, target: "NodeProcess", site: "Site", killed: "Callable[[], None]") -> None:
        """Call RunTimeKill with SIGKILL, then kill the processes that can be seen from here."""
        if site.waits:  # for `start`, which will not be called
            site.waits = False
            self._containers.ended(target, signal.SIGKILL)
            killed()
            return
        gone: list[bool] = []

        def go_on(_: int = 0) -> None:
            if not gone:
                gone.append(True)
                self._loop.cancel(late)
                target.signal_all(signal.SIGKILL)
                killed()

        late = self._loop.after(_KILLING, go_on)
        try:
            self._containers.run(target, site.command("kill"), go_on)
        except OSError:  # no process is left
            go_on()
