"""Does what the supervisor asks for containers and execs (see the package's docstring)."""

import _signal as signal  # without enum, which takes longer than hello
import os
import time

from .children import exit_status
from .files import remove_file, remove_tree
from .making import Making, ignore
from .processes import bind, kill_quietly
from .runtime import CallRefused, last_line, read_log
from .site_containers import SiteContainers
from .slurm_signals import SlurmSignals, is_busy
from .usage import ShortMemory, cgroups_of, limit_of, of_cgroups, of_process, of_step, together

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .children import Children
    from .images import NodeImages
    from .loop import Loop
    from .mpi import Mpi
    from .runtime import Runtime
    from .streams import ShimStreams
    from .targets import NodeProcess

    Reply = Callable[[dict[str, Any]], None]

_KILLED = 128 + signal.SIGKILL
_ENDING = 2.0  # for processes that got SIGKILL
_DELETING = 10.0
_WORDS = 1 << 16
# crun 1.8 says it before it does anything, and hardly ever: a second call is safe
_BEFORE_MAIN = b"Failed to re-execute libcrun"


class NodeContainers:
    """The containers and execs of this shim.

    Attributes:
        targets: They, by their ids.
        last_status: The exit status of the container that ended last.
        signals: What Slurm sends.
        made: How many containers there were so far.
    """

    def __init__(
        self,
        loop: "Loop",
        children: "Children",
        streams: "ShimStreams",
        runtime: "Runtime",
        directory: str,
        mpi: "Mpi",
        signals: SlurmSignals,
        ended: "Callable[[NodeProcess], None]",
    ) -> None:
        """`ended` gets what has ended."""
        self._loop, self._children = loop, children
        self._runtime, self._tell_ended = runtime, ended
        self.signals = signals
        self._directory = directory
        self._images: NodeImages | None = None
        self.targets: dict[str, NodeProcess] = {}
        self._deleted: dict[str, list[Reply]] = {}
        self._memory = ShortMemory()
        self.made = 0
        self._sites = SiteContainers(loop, children, self)
        self.making = Making(loop, children, streams, runtime, directory, self, self._sites, mpi)
        self.last_status = 0

    @property
    def images(self) -> "NodeImages":
        """The images that containers have as layers; most shims mount none."""
        if self._images is None:
            from .images import NodeImages

            self._images = NodeImages(self._loop, self._children, self._directory, self._lost)
        return self._images

    def forget_others(self, known: "Sequence[str]") -> None:
        """Delete what a supervisor's successor does not know."""
        for target in list(self.targets.values()):
            if target.id not in known and not target.doomed:
                self.delete({"id": target.id}, ignore)

    def offer_again(self) -> None:
        """Offer a supervisor's successor what containers have connected to, see `Outbound`."""
        for target in self.targets.values():
            for arrivals in target.arrivals():
                arrivals.offer_again()

    def state(self) -> "dict[str, dict[str, Any]]":
        """Return what became of the containers and execs, by their ids."""
        return {
            target.id: {"started": target.started, "ended": target.ended, "usage": target.usage}
            for target in self.targets.values()
        }

    def _lost(self, target: "NodeProcess") -> None:
        """End a container whose files are gone."""
        target.lost = True
        target.stop_runtime()
        target.signal_all(signal.SIGKILL)
        if target.pid:  # it may be another user's
            words = ("kill", "--", target.name, "KILL")
            self.run(target, self._runtime.command(target.place, *words), ignore)

    def unmount(self, name: str) -> None:
        """Undo `Making.mount`, whether it is done or not; nothing if nobody asked for it."""
        self.making.cancel(name)
        self.images.unmount(name)

    def get(self, target: str) -> "NodeProcess":
        """Return a container or an exec.

        Raises:
            CallRefused: It does not exist.
        """
        try:
            return self.targets[target]
        except KeyError:
            raise CallRefused(f"there is no {target}") from None

    def run(
        self,
        target: "NodeProcess",
        command: "list[str]",
        ended: "Callable[[int], None]",
        stdio: "Sequence[int | None]" = (None, None, None),
        passed: "Sequence[int]" = (),
    ) -> int:
        """Run the runtime, or a command of the site's, for a target."""

        def done(status: int) -> None:
            target.running.discard(pid)
            ended(status)
            target.changed()
            self._unseal()

        site = target.site
        # a console socket's path is relative to the directory
        own = target.place if target.stdio.terminal else None
        place, env = (own, None) if site is None else (site.directory, site.env)
        enter = None if target.space is None else target.space.enter
        program = self._runtime.sealed() if command[0] == self._runtime.path else -1
        bound = (target.container or target).processors
        ours = os.sched_getaffinity(0) if bound else bound
        bind(0, bound)  # for runtimes that pass on theirs
        try:
            pid = self._children.spawn(
                command, done, stdio, place, env, passed, enter=enter, program=program
            )
        finally:
            bind(0, ours)
        target.running.add(pid)
        return pid

    def _unseal(self) -> None:
        """Free the runtime's copy, if its next command may be a day away."""
        if all(one.started or one.container for one in self.targets.values()):
            self._runtime.unseal()

    def ended(self, target: "NodeProcess", status: int) -> None:
        """Tell that the first process of a target has ended."""
        self._note_usage(target)
        target.pid = 0
        short = False
        if target.container is None:
            if target.images is not None and self.images.are_going(target.images):
                target.lost = True
            self.last_status = exit_status(status)
            short = self._memory.was_short() and self.last_status == _KILLED
        target.stdio.release()
        target.ended = (status, short, target.lost)
        self._tell_ended(target)
        target.changed()

    def _note_usage(self, target: "NodeProcess") -> None:
        """Note what a target has used, as its first process was reaped; else nobody knows."""
        container = target.container or target
        pid, used = self._children.reaped
        if pid and pid == target.pid:
            container.spent.append(of_process(used))
        if container is not target or not target.start_called:
            return
        usage = together(target.spent)
        if self.made == 1:
            usage.update(of_step(cgroups_of("self")))
        usage.update(of_cgroups(target.cgroups))
        if usage:
            usage.update(limit_of(cgroups_of("self")))
            target.usage = {**usage, "wall": time.monotonic() - target.start_called}

    def start(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Let the runtime start a container's program."""
        target = self.get(call["id"])
        if target.container is not None:
            raise CallRefused(f"{target.id} is started already")
        if target.started:  # its supervisor died before it knew
            reply({})
            return
        target.start_called = time.monotonic()
        if target.is_plain and self._runtime.start(target.name):
            self._started(target, {}, reply)
            self._unseal()
        elif target.site is None:
            words = ("start", "--", target.name)
            command = self._runtime.command(target.place, *words)
            self._simply(target, command, lambda answer: self._started(target, answer, reply))
        elif not target.site.runs:
            command = target.site.command("start")
            self._simply(target, command, lambda answer: self._started(target, answer, reply))
        elif target.site.waits:
            self._sites.start(target, target.site)
            self._started(target, {}, reply)
        else:
            raise CallRefused(f"{target.id} has ended")

    def _started(self, target: "NodeProcess", answer: "dict[str, Any]", reply: "Reply") -> None:
        reply(answer)
        if "error" not in answer:
            self.runs(target)

    def runs(self, target: "NodeProcess") -> None:
        """Note that the program of a container or an exec has begun."""
        target.started = True
        self.signals.started(target, self)

    def handles(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Tell whether a program does something about a signal."""
        reply({"handles": is_busy(self.get(call["id"]), int(call["number"]))})

    def _simply(
        self, target: "NodeProcess", command: "list[str]", reply: "Reply", again: bool = False
    ) -> None:
        """Run a command of the runtime's for a container, and answer with its success."""
        remove_file(os.path.join(target.place, "words"))
        words = os.open(
            os.path.join(target.place, "words"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600
        )

        def done(status: int) -> None:
            said = os.pread(words, _WORDS, 0)
            os.close(words)
            if status and _BEFORE_MAIN in said and not again:
                self._simply(target, command, reply, again=True)
            elif status:
                text, log = read_log(target.place, said)
                text = text or f"the OCI runtime ended with status {exit_status(status)}"
                reply({"error": text, "log": log})
            else:
                reply({})

        try:
            self.run(target, command, done, (None, words, words))
        except BaseException:
            os.close(words)
            raise

    def signal(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Send a signal to the first process or to all."""
        target, number = self.get(call["id"]), int(call["number"])
        if not 0 < number < signal.NSIG:
            raise CallRefused(f"there is no signal {number}")
        if not target.made:
            raise CallRefused(f"{target.id} is not there yet")
        if self.signals.is_told(target, number):
            reply({})
            return
        site = target.site
        if site is not None and call.get("all"):
            self._sites.kill(target, site, lambda: reply({}))
            return
        if site is not None and target.pid:
            self._simply(target, site.filled(call["command"]), reply)
            return
        if call.get("all"):
            target.signal_all(number)
            reply({})
        else:
            self.deliver(target, number, reply)

    def deliver(self, target: "NodeProcess", number: int, reply: "Reply | None" = None) -> None:
        """Send a signal to the first process, if there is one."""
        reply = reply or ignore
        if target.pid:
            try:
                os.kill(target.pid, number)  # our child, not reaped: no other has its pid
            except PermissionError:
                if target.container is not None:
                    raise
                words = ("kill", "--", target.name, str(number))
                self._simply(target, self._runtime.command(target.place, *words), reply)
                return
        reply({})

    def resize(self, call: "dict[str, Any]", reply: "Reply") -> None:
        target = self.get(call["id"])
        target.stdio.resize(int(call["rows"]), int(call["columns"]))
        self._sites.resized(target)
        reply({})

    def delete(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Kill the rest of a container or exec, and forget it."""
        target = self.targets.get(call["id"])
        self.making.cancel(call["id"])
        if target is None:
            reply({})
            return
        whole = target.container
        owner = whole if whole is not None and whole.doomed else target
        self._deleted.setdefault(owner.id, []).append(reply)
        if target.doomed:
            return
        doomed = [target] + [one for one in self.targets.values() if one.container is target]
        late = self._loop.after(_ENDING, lambda: forget(True))
        gone: list[bool] = []

        def forget(late_already: bool = False) -> None:
            if gone or (not late_already and any(one.is_busy for one in doomed)):
                return
            gone.append(True)
            self._loop.cancel(late)
            for one in doomed:
                one.changes.remove(forget)
            self._forget(target, doomed)

        for one in doomed:
            one.doomed = True
            one.changes.append(forget)
            one.stop_runtime()
            if one.site is not None and one.pid:
                self._sites.kill(one, one.site, _nothing)
            else:
                one.signal_all(signal.SIGKILL)
        forget()

    def _forget(self, target: "NodeProcess", doomed: "list[NodeProcess]") -> None:
        """Let the runtime forget a container, then remove the files."""
        if target.container is not None:
            self._gone(target, doomed)
            return
        if target.ended and target.is_plain and self._runtime.forget(target.name):
            self._gone(target, doomed)
            return

        words = os.open(os.path.join(target.place, "words"), os.O_RDWR | os.O_CREAT, 0o600)

        def done(status: int) -> None:
            self._loop.cancel(late)
            said = os.pread(words, _WORDS, 0) if status and target.site is not None else b""
            os.close(words)
            self._gone(target, doomed, last_line(said))

        try:
            pid = self.run(target, self._delete_command(target), done, (None, words, words))
        except OSError:  # no process is left; nor is one of the container
            os.close(words)
            self._gone(target, doomed)
            return
        late = self._loop.after(_DELETING, lambda: kill_quietly(-pid, signal.SIGKILL))

    def _gone(self, target: "NodeProcess", doomed: "list[NodeProcess]", words: str = "") -> None:
        for one in doomed:
            one.let_go()
            one.stdio.let_go()
            if one.images is not None and one.container is None:
                self.images.let_go(one.images)
            remove_tree(one.place)
            self.targets.pop(one.id, None)
        for reply in self._deleted.pop(target.id, []):
            reply({"words": words} if words else {})

    def delete_all(self) -> None:
        """Let the runtime forget every container, and wait for nothing.

        Raises:
            OSError: No process is left.
        """
        for target in self.targets.values():
            if target.container is None:
                self.run(target, self._delete_command(target), ignore)

    def remove_all(self) -> None:
        """Remove what lies elsewhere than in the shim's directory."""
        for target in self.targets.values():
            if target.site is not None:
                target.site.remove()

    def _delete_command(self, target: "NodeProcess") -> "list[str]":
        if target.site is not None:
            return target.site.command("delete")
        return self._runtime.command(target.place, "delete", "--force", "--", target.name)


def _nothing() -> None:
    """Do nothing."""
