"""What a site's oci.conf(5) has run for a container, and the files that its commands read.

The supervisor has filled in their patterns, all but `%p`, which only is known here. The rest is as
slurmstepd does it.
"""

import os

from .files import LEFT, is_private, own_only, remove_made, remove_tree, write_private
from .json_text import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from .loop import Loop

    Told = Callable[[dict[str, Any]], None]
    Run = Callable[[list[str], Callable[[int], None], Sequence[int | None]], int]

NO_PID = (1 << 22) + 1
"""A number that no process has (PID_MAX_LIMIT), for `%p` where there is no process."""

NO_PLACE = "set ContainerPath in the oci.conf to another directory"
_ANSWER = 1 << 20
_FIRST_PAUSE, _GROWS, _LONGEST_PAUSE = 0.01, 1.5, 1.0  # seconds; the last one as in Slurm
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
        """Return one of its commands."""
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


def query(site: Site, place: str, run: "Run", told: "Told") -> None:
    """Call RunTimeQuery once.

    Args:
        told: Called with the container's state; {} if the runtime does not know it.
    """
    answer = os.open(os.path.join(place, "state"), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def done(_: int) -> None:
        content = os.pread(answer, _ANSWER, 0)
        os.close(answer)
        told(_state(content))

    try:
        run(site.command("query"), done, (None, answer, None))
    except BaseException:
        os.close(answer)
        raise


def _state(content: bytes) -> "dict[str, Any]":
    try:
        state = loads(content.decode())
    except (ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


class Asking:
    """Calls RunTimeQuery at growing intervals until the answer will do."""

    def __init__(
        self,
        loop: "Loop",
        ask: "Callable[[Told], None]",
        will_do: "Callable[[dict[str, Any]], bool]",
        told: "Told",
    ) -> None:
        self._loop, self._ask_once, self._will_do, self._told = loop, ask, will_do, told
        self._pause = _FIRST_PAUSE
        self._ask()

    def _ask(self) -> None:
        self._ask_once(self._answered)

    def _answered(self, state: "dict[str, Any]") -> None:
        if self._will_do(state):
            self._told(state)
            return
        self._loop.after(self._pause, self._ask)
        self._pause = min(self._pause * _GROWS, _LONGEST_PAUSE)


def is_alive(state: "Mapping[str, Any]") -> bool:
    """Tell whether a container has not ended, by its state."""
    return state.get("status") in _ALIVE


def pid_of(state: "Mapping[str, Any]") -> int:
    """Return the first process of a container; 0 if its state has none."""
    pid = state.get("pid")
    return pid if isinstance(pid, int) and 0 < pid < 1 << 31 else 0
