"""What a site's oci.conf(5) has run for a container, and the files that its commands read.

The supervisor has filled in their patterns, all but `%p`, which only is known here. The rest is as
slurmstepd does it.
"""

import errno
import os
import time

from .files import LEFT, is_private, own_only, remove_made, remove_tree, write_private
from .json_text import dumps, loads
from .loop import READ
from .processes import children_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from .children import Children
    from .loop import Loop

    Told = Callable[[dict[str, Any]], None]
    Run = Callable[[list[str], Callable[[int], None], Sequence[int | None]], int]

NO_PID = (1 << 22) + 1
"""A number that no process has (PID_MAX_LIMIT), for `%p` where there is no process."""

NO_PLACE = "set ContainerPath in the oci.conf to another directory"
_ANSWER = 1 << 20
_CREATING = 2.0  # until RunTimeQuery has to know a new container
_FIRST_PAUSE, _GROWS, _LONGEST_PAUSE = 0.01, 1.5, 1.0  # seconds; the last one as in Slurm
_WITH_PIDFD = 30.0  # the pid may belong to another process
_ALIVE = ("creating", "created", "running", "paused")


class Site:
    """What an oci.conf has run for one container.

    Attributes:
        runs: Whether one command runs the container, in the foreground.
        waits: Whether that has still to be called.
        is_container: Whether the commands make an OCI container, and not just a process.
        directory: The task's directory, the working directory of the commands.
        pid: The process of that one command, `%p`; 0 if there is none.
    """

    def __init__(self, fields: "Mapping[str, Any]", own: "Mapping[str, str]") -> None:
        """`fields` is `site` of the call, `own` the shim's environment."""
        self._fields = fields
        self.runs = self.waits = "run" in fields["commands"]
        self.is_container: bool = fields["config"]
        self.directory: str = fields["task"]
        names = kept((f"{name}={value}" for name, value in own.items()), fields["withheld"])
        self.env = dict(pair.split("=", 1) for pair in names)
        self.pid = 0
        self._is_made = False

    def command(self, name: str) -> "list[str]":
        return self.filled(self._fields["commands"][name])

    def filled(self, text: str) -> "list[str]":
        """Return a command whose pid the supervisor did not know."""
        text = text.replace(self._fields["pid"], str(self.pid or NO_PID))
        return ["/bin/sh", "-c", text]

    def prepare(self, config: "dict[str, Any]", place: str) -> None:
        """Make the task's directory, and in it what its commands read.

        Args:
            config: The config.json; its environment is changed.

        Raises:
            ValueError: It cannot be made.
        """
        try:
            self._make_directory()
            process = config["process"]
            process["env"] = kept(process["env"], self._fields["hides"])
            if self._fields["file"] != "disabled":
                text = environment_file(process["env"], newlines=self._fields["file"] == "newline")
                write_private(os.path.join(self.directory, "environment"), text)
            if self.is_container:
                write_private(os.path.join(self.directory, "config.json"), dumps(config))
            self.note(place)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # elsewhere there are no more
            where = error.filename or self.directory
            raise ValueError(f"{where}: {error.strerror}; {NO_PLACE}") from None

    def resize(self, rows: int, columns: int) -> None:
        """Write the size of the terminal into config.json."""
        path = os.path.join(self.directory, "config.json")
        if not (rows and columns and self.is_container):
            return
        with open(path, encoding="utf-8", errors="surrogatepass") as file:
            config = loads(file.read())
        config["process"]["consoleSize"] = {"height": rows, "width": columns}
        write_private(path, dumps(config))

    def _make_directory(self) -> None:
        step = self._fields["step"]
        os.makedirs(step, 0o700, exist_ok=True)
        if not is_private(step):
            raise ValueError(f"{step}: others may enter it; {NO_PLACE}")
        own_only(step)
        self._is_made = True
        remove_tree(self.directory)  # DisableCleanup has left one of a job that was requeued
        os.mkdir(self.directory, 0o700)

    def note(self, place: str) -> None:
        """Write down what the next shim has to do, should this one be killed."""
        left = {"delete": self.command("delete")[-1], "made": self._made()}
        write_private(os.path.join(place, LEFT), dumps(left))

    def _made(self) -> "list[str]":
        return [] if self._fields["keep"] else [self.directory, self._fields["step"]]

    def remove(self) -> None:
        """Remove the task's directory, and the step's after the last task, unless they stay."""
        if self._is_made:
            remove_made(self._made())


def kept(variables: "Iterable[str]", excluded: "str | None") -> "list[str]":
    """Return the variables, each `NAME=VALUE`, that an expression does not match."""
    if excluded is None:
        return list(variables)
    import re

    expression = re.compile(excluded)
    return [variable for variable in variables if not expression.search(variable)]


def environment_file(variables: "Iterable[str]", *, newlines: bool) -> str:
    """Return the content of CreateEnvFile: each variable ends in a newline, or in a NUL.

    As in Slurm, the form with newlines leaves out variables that contain one.
    """
    end = "\n" if newlines else "\0"
    return "".join(one + end for one in variables if not newlines or "\n" not in one)


def query(command: "list[str]", answer: int, run: "Run", told: "Told") -> None:
    """Call RunTimeQuery once.

    Args:
        answer: A descriptor of an empty file, owned from now on.
        told: Called with the container's state; {} if the runtime does not know it.
    """

    def done(_: int) -> None:
        content = os.pread(answer, _ANSWER, 0)
        os.close(answer)
        told(state_of(content))

    try:
        run(command, done, (None, answer, None))
    except BaseException:
        os.close(answer)
        raise


def state_of(content: bytes) -> "dict[str, Any]":
    """Return the state that a runtime has printed; {} if that is nothing of the kind."""
    try:
        state = loads(content.decode())
    except (ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


class CreatedContainer:
    """What follows RunTimeCreate: the container is found, and its end is seen.

    oci.conf(5) has no command for a container's status. Its first process is a child of this one,
    a subreaper, unless the runtime stays its parent; then only its end can be known, by a pidfd,
    or, if it is in another PID namespace, by RunTimeQuery.
    """

    def __init__(self, loop: "Loop", children: "Children", ask: "Callable[[Told], None]") -> None:
        """`ask` calls RunTimeQuery once."""
        self._loop, self._children, self._ask = loop, children, ask

    def find(self, found: "Told") -> None:
        """Ask until the runtime has created it; tell its state, {} if that is never known."""
        deadline, pause = time.monotonic() + _CREATING, _FIRST_PAUSE

        def answered(state: "dict[str, Any]") -> None:
            nonlocal pause
            if (state and state.get("status") != "creating") or time.monotonic() > deadline:
                found(state)
                return
            self._loop.after(pause, lambda: self._ask(answered))
            pause *= _GROWS

        self._ask(answered)

    def await_end(self, pid: int, ended: "Callable[[int], None]") -> None:
        """Tell its wait status when it has ended; 0 if nobody knows it.

        Args:
            pid: Its first process; 0 if that is unknown.
        """
        if self._children.has_ended(pid) or pid in children_of(os.getpid()):
            self._children.claim(pid, ended)
        else:
            self._await_end(pid, _FIRST_PAUSE, ended)

    def _await_end(self, pid: int, pause: float, ended: "Callable[[int], None]") -> None:
        fd = _pidfd(pid)

        def ask(gone: int = 0) -> None:
            self._loop.cancel(key)
            if fd >= 0:
                self._loop.forget(fd)
                os.close(fd)

            def answered(state: "dict[str, Any]") -> None:
                if state.get("status") in _ALIVE:
                    longer = min(pause * _GROWS, _LONGEST_PAUSE)
                    self._await_end(0 if gone else pid, longer, ended)
                else:
                    ended(0)

            self._ask(answered)

        if fd >= 0:
            self._loop.watch(fd, READ, ask)
        key = self._loop.after(_WITH_PIDFD if fd >= 0 else pause, ask)


def pid_of(state: "Mapping[str, Any]") -> int:
    """Return the first process of a container; 0 if its state has none."""
    pid = state.get("pid")
    return pid if isinstance(pid, int) and 0 < pid < 1 << 31 else 0


def _pidfd(pid: int) -> int:
    """Open a pidfd; -1 if there is no process to be seen, or before Python 3.9."""
    try:
        return -1 if not pid else int(getattr(os, "pidfd_open")(pid))  # noqa: B009 - 3.9
    except (AttributeError, OSError):
        return -1
