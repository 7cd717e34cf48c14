"""Does what the supervisor asks for containers and execs (see the package's docstring)."""

import errno
import json
import os
import signal

from .children import exit_status
from .console import Stdio
from .files import remove_tree, write_private
from .memory import Memory
from .processes import kill_quietly
from .runtime import merged, pid_file_of, process_of
from .targets import Target
from .words import read_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .children import Children
    from .loop import Loop
    from .mpi import Mpi
    from .runtime import Runtime
    from .streams import Streams

    Reply = Callable[[dict[str, Any]], None]

_KILLED = 128 + signal.SIGKILL
_ENDING = 2.0  # for processes that got SIGKILL
_DELETING = 10.0
_TRY, _TRIES = 0.01, 300


class Refused(ValueError):
    """A call cannot be done; its text is for the supervisor."""


class Containers:
    """The containers and execs of this shim.

    Attributes:
        last_status: The exit status of the container that ended last.
    """

    def __init__(
        self,
        loop: "Loop",
        children: "Children",
        streams: "Streams",
        runtime: "Runtime",
        directory: str,
        mpi: "Mpi",
        ended: "Callable[[str, int, bool], None]",
    ) -> None:
        """Have none.

        Args:
            loop: What waits.
            children: What starts and reaps.
            streams: What carries bytes.
            runtime: The runtime.
            directory: The shim's directory.
            mpi: What the first one gets for MPI.
            ended: Called with the id and the wait status of what has ended, and whether memory
                may be why.
        """
        self._loop, self._children, self._streams = loop, children, streams
        self._runtime, self._directory, self._tell_ended = runtime, directory, ended
        self._targets: dict[str, Target] = {}
        self._deleted: dict[str, list[Reply]] = {}
        self._made = 0
        self._memory = Memory()
        self._mpi = mpi
        self._delayed: dict[str, object] = {}
        self.last_status = 0

    def create(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Have the runtime create a container."""
        config = call["config"]
        process = config.get("process")
        variables = call.get("variables", {})
        if process is not None:
            self._adapt(process, call["streams"], variables)
        joins = {kind: self._process_of(other) for kind, other in call.get("joins", {}).items()}
        if self._delay(call, reply, joins):
            return
        target = self._make(call, call["name"], None)
        target.variables = variables
        try:
            before = self._runtime.join(config, joins)
            self._runtime.separate(config, f"{os.path.basename(self._directory)}-{self._made}")
            passed = self._mpi.give(config)
            write_private(os.path.join(target.place, "config.json"), json.dumps(config))
            command = self._runtime.create(
                target.place, target.name, target.stdio.terminal, len(passed)
            )
            self._begin(target, before + command, reply, passed)
            self._mpi.given()
        except BaseException:
            self._unmake(target)
            raise

    def exec(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Have the runtime run one more program in a container."""
        container = self._get(call["container"])
        process = call["process"]
        self._adapt(process, call["streams"], container.variables)
        target = self._make(call, container.name, container)
        try:
            write_private(process_of(target.place), json.dumps(process))
            command = self._runtime.exec(target.place, target.name, target.stdio.terminal)
            self._begin(target, command, reply)
        except BaseException:
            self._unmake(target)
            raise

    def _adapt(
        self,
        process: "dict[str, Any]",
        streams: "dict[str, int]",
        variables: "Mapping[str, str]",
    ) -> None:
        process["env"] = merged(process.get("env") or [], {**os.environ, **variables})
        if "terminal" in streams and streams.get("rows") and streams.get("columns"):
            size = {"height": streams["rows"], "width": streams["columns"]}
            process["consoleSize"] = size

    def _delay(self, call: "dict[str, Any]", reply: "Reply", joins: "Mapping[str, int]") -> bool:
        """Create a container later if the namespaces cannot be entered yet.

        An ordinary user cannot enter those of a process that is still crun, and nothing tells when
        the container's program has taken its place.
        """
        tries = call.setdefault("tries", _TRIES)
        if not tries or all(os.access(f"/proc/{pid}/ns/user", os.R_OK) for pid in joins.values()):
            return False

        def again() -> None:
            del self._delayed[call["id"]]
            try:
                self.create(call, reply)
            except (OSError, ValueError) as error:
                reply({"error": str(error)})

        call["tries"] = tries - 1
        self._delayed[call["id"]] = self._loop.after(_TRY, again)
        return True

    def _process_of(self, container: str) -> int:
        pid = self._get(container).pid
        if not pid:
            raise Refused(f"{container}, whose namespaces it is to enter, has ended")
        return pid

    def _make(self, call: "dict[str, Any]", name: str, container: "Target | None") -> Target:
        target_id = call["id"]
        if not self._runtime.path:
            raise Refused("no OCI runtime is installed on this node, neither crun nor runc")
        if target_id in self._targets:
            raise Refused(f"{target_id} exists already")
        if container is not None and container.doomed:
            raise Refused(f"{container.id} is being deleted")
        self._made += 1
        place = os.path.join(self._directory, str(self._made))
        os.mkdir(place, 0o700)
        try:
            stdio = Stdio(self._streams, call["streams"], place)
        except BaseException:
            remove_tree(place)
            raise
        target = self._targets[target_id] = Target(target_id, place, name, container, stdio)
        return target

    def _unmake(self, target: Target) -> None:
        target.stdio.abandon()
        remove_tree(target.place)
        del self._targets[target.id]

    def _begin(
        self, target: Target, command: "list[str]", reply: "Reply", passed: "Sequence[int]" = ()
    ) -> None:
        self._children.expect()
        try:
            stdio = target.stdio.child
            begun = lambda status: self._begun(target, status, reply)  # noqa: E731
            self._run(target, command, begun, stdio, passed)
        except BaseException:
            self._children.expect_no_longer()
            raise
        target.stdio.close_child()

    def _run(
        self,
        target: Target,
        command: "list[str]",
        ended: "Callable[[int], None]",
        stdio: "Sequence[int | None]" = (None, None, None),
        passed: "Sequence[int]" = (),
    ) -> int:
        """Run the runtime for a target."""

        def done(status: int) -> None:
            target.running.discard(pid)
            ended(status)
            target.changed()

        pid = self._children.spawn(command, done, stdio, target.place, passed=passed)
        target.running.add(pid)
        return pid

    def _begun(self, target: Target, status: int, reply: "Reply") -> None:
        """Go on after `create` or `exec`."""
        try:
            pid = self._pid_of(target, status)
        except (OSError, ValueError) as error:
            text, log = read_log(target.place, target.stdio.words())
            text = "it has been deleted" if target.doomed else text or str(error)
            reply({"error": text, "log": log})
            target.stdio.fail()
            if not target.doomed:
                self.delete({"id": target.id}, _ignore)
        else:
            target.begin(pid)
            reply({"pid": pid})
            target.stdio.begin()
            if target.doomed:
                target.signal_all(signal.SIGKILL)
            self._children.claim(pid, lambda status: self._ended(target, status))
        finally:
            self._children.expect_no_longer()
            if target.container is not None:
                _remove(process_of(target.place))

    def _pid_of(self, target: Target, status: int) -> int:
        """Return the first process of what a runtime has begun."""
        if status:
            raise Refused(f"the OCI runtime ended with status {exit_status(status)}")
        with open(pid_file_of(target.place)) as file:
            pid = int(file.read(32))
        target.stdio.receive()
        return pid

    def _ended(self, target: Target, status: int) -> None:
        target.pid = 0
        short = False
        if target.container is None:
            self.last_status = exit_status(status)
            short = self._memory.was_short() and self.last_status == _KILLED
        target.stdio.release()
        self._tell_ended(target.id, status, short)
        target.changed()

    def start(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Have the runtime start a container's program."""
        self._simply(self._get(call["id"]), ["start"], [], reply)

    def _simply(
        self, target: Target, verb: "list[str]", after: "list[str]", reply: "Reply"
    ) -> None:
        """Run a command of the runtime's for a container, and answer with its success."""
        _remove(os.path.join(target.place, "words"))
        words = os.open(
            os.path.join(target.place, "words"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600
        )

        def done(status: int) -> None:
            said = os.pread(words, 1 << 16, 0)
            os.close(words)
            if status:
                text, log = read_log(target.place, said)
                text = text or f"the OCI runtime ended with status {exit_status(status)}"
                reply({"error": text, "log": log})
            else:
                reply({})

        command = self._runtime.command(target.place, *([*verb, "--", target.name, *after]))
        try:
            self._run(target, command, done, (None, words, words))
        except BaseException:
            os.close(words)
            raise

    def signal(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Send a signal to the first process or to all."""
        target, number = self._get(call["id"]), int(call["number"])
        if not 0 < number < signal.NSIG:
            raise Refused(f"there is no signal {number}")
        if not target.made:
            raise Refused(f"{target.id} is not there yet")
        if call.get("all"):
            target.signal_all(number)
        elif target.pid:
            try:
                os.kill(target.pid, number)  # our child, not reaped: no other has its pid
            except PermissionError:
                if target.container is not None:
                    raise
                self._simply(target, ["kill"], [str(number)], reply)
                return
        reply({})

    def resize(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Give a terminal a size."""
        self._get(call["id"]).stdio.resize(int(call["rows"]), int(call["columns"]))
        reply({})

    def delete(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Kill what is left of a container or exec, and forget it."""
        target = self._targets.get(call["id"])
        if call["id"] in self._delayed:
            self._loop.cancel(self._delayed.pop(call["id"]))
        if target is None:
            reply({})
            return
        whole = target.container
        owner = whole if whole is not None and whole.doomed else target
        self._deleted.setdefault(owner.id, []).append(reply)
        if target.doomed:
            return
        doomed = [target] + [one for one in self._targets.values() if one.container is target]
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
            one.signal_all(signal.SIGKILL)
        forget()

    def _forget(self, target: Target, doomed: "list[Target]") -> None:
        """Have the runtime forget a container, then remove the files."""
        if target.container is not None:
            self._gone(target, doomed)
            return

        def done(_: int) -> None:
            self._loop.cancel(late)
            self._gone(target, doomed)

        command = self._runtime.command(target.place, "delete", "--force", "--", target.name)
        try:
            pid = self._run(target, command, done)
        except OSError:  # no process is left; nor is one of the container
            self._gone(target, doomed)
            return
        late = self._loop.after(_DELETING, lambda: kill_quietly(-pid, signal.SIGKILL))

    def _gone(self, target: Target, doomed: "list[Target]") -> None:
        for one in doomed:
            one.let_go()
            remove_tree(one.place)
            self._targets.pop(one.id, None)
        for reply in self._deleted.pop(target.id, []):
            reply({})

    def delete_commands(self) -> "list[list[str]]":
        """Return the commands that have the runtime forget every container there is."""
        return [
            [*self._runtime.options(), "delete", "--force", "--", target.name]
            for target in self._targets.values()
            if target.container is None
        ]

    def _get(self, target: str) -> Target:
        try:
            return self._targets[target]
        except KeyError:
            raise Refused(f"there is no {target}") from None


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def _ignore(_reply: "dict[str, Any]") -> None:
    """Answer nobody."""
