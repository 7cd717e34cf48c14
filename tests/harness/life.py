"""One container from create to delete, as an engine sees it."""

import atexit
import contextlib
import functools
import json
import os
import re
import select
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from tests.harness.processes import signal_quietly
from tests.harness.terminal import ConsoleSocket, Terminal
from tests.harness.wait import wait_until

if TYPE_CHECKING:
    from tests.harness.site import Site

Stdio = int | Literal["null", "pipe", "closed"]
State = dict[str, Any]

TIMEOUT = 30.0
"""Seconds for whatever should come at once; generous, for machines with other load."""


@functools.cache
def _subreaper() -> Path:
    """The program of subreaper.c, where each user may run it."""
    place = Path(tempfile.mkdtemp(prefix="scrun-subreaper-"))
    atexit.register(shutil.rmtree, place)
    place.chmod(0o755)
    source = Path(__file__).with_name("subreaper.c")
    subprocess.run(["cc", "-O1", "-o", place / "subreaper", source], check=True, timeout=60)
    return place / "subreaper"


class Collector:
    """Reads a pipe to its end, in a thread of its own."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._chunks: list[bytes] = []
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        with open(self._fd, "rb", buffering=0) as pipe:
            while data := pipe.read(65536):
                self._chunks.append(data)

    @property
    def so_far(self) -> bytes:
        """What has come until now."""
        return b"".join(self._chunks)

    def all(self, timeout: float = TIMEOUT) -> bytes:
        """Wait for the end of file, and return everything."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"no end of file after {timeout} s: {self.so_far!r}"
        return self.so_far


class Life:
    """A container, and the subreaper that is its parent.

    Attributes:
        stdin: The descriptor to write to when `stdin="pipe"`.
        stdout: What the container writes, when `stdout="pipe"`.
        stderr: The same for standard error; what `create` has to say comes there too.
    """

    def __init__(
        self,
        site: "Site",
        container: str,
        bundle: Path,
        *,
        stdin: Stdio = "null",
        stdout: Stdio = "pipe",
        stderr: Stdio = "pipe",
        terminal: bool = False,
        options: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.site = site
        self.id = container
        self.bundle = bundle
        self.stdin = -1
        self._events: dict[str, int] = {}
        self._told = b""
        self._directory = site.base / "l" / container
        self._directory.mkdir()
        site.user.give(self._directory)
        self.pid_file = self._directory / "pid"
        self._console = ConsoleSocket(self._directory / "console") if terminal else None
        arguments = ["create", "--bundle", str(bundle), "--pid-file", str(self.pid_file)]
        if self._console:
            arguments += ["--console-socket", str(self._console.path)]
        command = [*site.command, *options, *arguments, container]
        self._begin(command, [stdin, stdout, stderr], {**site.environment, **(environment or {})})

    def _begin(self, command: list[str], stdio: list[Stdio], environment: dict[str, str]) -> None:
        ours: list[int] = []
        given: list[int] = []
        theirs: list[int] = []
        for number, kind in enumerate(stdio):
            if kind == "pipe":
                ends = os.pipe()
                theirs.append(ends[number > 0])
                ours.append(ends[number == 0])
                given.append(theirs[-1])
            else:
                ours.append(-1)
                theirs.append(kind if isinstance(kind, int) else subprocess.DEVNULL)
        report, report_end = os.pipe()
        closed = "".join(str(number) for number, kind in enumerate(stdio) if kind == "closed")
        self._subreaper = subprocess.Popen(
            [
                *self.site.user.prefix,
                _subreaper(),
                str(report_end),
                closed or "-",
                str(self.pid_file),
                *command,
            ],
            stdin=theirs[0],
            stdout=theirs[1],
            stderr=theirs[2],
            env=environment,
            cwd=self.site.base,
            pass_fds=[report_end],
            start_new_session=True,
        )
        for fd in (*given, report_end):
            os.close(fd)
        self._report = report
        self.stdin = ours[0]
        self.stdout = Collector(ours[1]) if ours[1] >= 0 else None
        self.stderr = Collector(ours[2]) if ours[2] >= 0 else None

    # What the subreaper tells

    def _event(self, name: str, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        while name not in self._events:
            if not poll.poll(max(0, deadline - time.monotonic()) * 1000):
                raise AssertionError(f"no {name} within {timeout} s; {self.describe()}")
            data = os.read(self._report, 4096)
            if not data:
                raise AssertionError(f"the subreaper ended before {name}; {self.describe()}")
            self._told += data
            *lines, self._told = self._told.split(b"\n")
            for line in lines:
                event, value = line.decode().split()
                self._events[event] = int(value)
        return self._events[name]

    def create_status(self, timeout: float = TIMEOUT) -> int:
        return self._event("create", timeout)

    def created(self, timeout: float = TIMEOUT) -> "Life":
        """Wait for `create` to return, successfully."""
        status = self.create_status(timeout)
        assert status == 0, f"create returned {status}; {self.describe()}"
        return self

    def refused(self, timeout: float = TIMEOUT) -> str:
        """Wait for `create` to fail, and return what it said: one line."""
        status = self.create_status(timeout)
        assert status == 1, f"create returned {status}; {self.describe()}"
        said = self.errors()
        assert said.count("\n") == 1, f"not one line: {said!r}"
        return said

    @property
    def anchor(self) -> int:
        """The pid that `create` left in the pid file."""
        return self._event("anchor", TIMEOUT)

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Wait for the process of the pid file to exit, and return its status.

        As engines have it: 128 and the number for a signal.
        """
        status = self._event("exit", timeout)
        return status if status >= 0 else 128 - status

    @property
    def without_supervisor(self) -> int:
        """What it ends with when its supervisor dies: here its own process is killed."""
        return 137 if self.site.engine == "local" else 125

    @property
    def ended(self) -> bool:
        """Whether the anchor has exited."""
        try:
            self.wait(0)
        except AssertionError:
            return False
        return True

    # The operations

    def run(self, *arguments: str, timeout: float = TIMEOUT) -> subprocess.CompletedProcess[str]:
        """Call scrun with a command and its options; the id is added."""
        return self.site.run(*arguments, self.id, timeout=timeout)

    def must(self, *arguments: str, timeout: float = TIMEOUT) -> str:
        """Call scrun, successfully, and return what it printed."""
        return self.site.must(*arguments, self.id, timeout=timeout)

    def start(self, timeout: float = TIMEOUT) -> "Life":
        self.must("start", timeout=timeout)
        return self

    def state(self, timeout: float = TIMEOUT) -> State:
        """`scrun state`, as it was printed."""
        state: State = json.loads(self.must("state", timeout=timeout))
        return state

    @property
    def job_id(self) -> str:
        return str(self.state()["annotations"]["org.scrun.job_id"])

    @property
    def status(self) -> str:
        """The status in the container's state; "gone" when there is no such container."""
        asked = self.run("state")
        if asked.returncode:
            assert "does not exist" in asked.stderr, asked.stderr
            return "gone"
        return str(json.loads(asked.stdout)["status"])

    def wait_for(self, status: str, timeout: float = TIMEOUT) -> "Life":
        """Wait for a status of the container's state."""
        wait_until(f"{self.id} is {status}", lambda: self.status == status, timeout)
        return self

    def kill(self, signal: str = "TERM", timeout: float = TIMEOUT) -> None:
        self.site.must("kill", self.id, signal, timeout=timeout)

    def delete(self, timeout: float = TIMEOUT) -> None:
        """`scrun delete --force`: without that a line says that it was running."""
        self.must("delete", "--force", timeout=timeout)

    def ends(self, status: int = 0, timeout: float = TIMEOUT, *, says: str | None = None) -> None:
        """Hold that it ends with this status, and perhaps what it has said, and delete it."""
        assert (found := self.wait(timeout)) == status, (found, status)
        assert says is None or self.output() == says
        self.delete(max(timeout, TIMEOUT))

    # The container's side

    def terminal(self, timeout: float = TIMEOUT) -> Terminal:
        """The master of the container's terminal, received once."""
        assert self._console is not None
        return self._console.receive(timeout)

    def output(self, timeout: float = TIMEOUT) -> str:
        """All of the container's standard output, when it has ended."""
        assert self.stdout is not None
        return self.stdout.all(timeout).decode()

    def errors(self, timeout: float = TIMEOUT) -> str:
        """All of the container's standard error, when it has ended."""
        assert self.stderr is not None
        return self.stderr.all(timeout).decode()

    def says(self, text: str, timeout: float = TIMEOUT, *, times: int | None = None) -> "Life":
        """Wait until a text is in the container's standard output, or is there so many times."""
        stdout = self.stdout
        assert stdout is not None

        def said() -> bool:
            count = stdout.so_far.count(text.encode())
            return count > 0 if times is None else count == times

        wait_until(f"{self.id} says {text!r}", said, timeout)
        return self

    def complains(self, pattern: "str | re.Pattern[str]", timeout: float = TIMEOUT) -> None:
        """Wait until a text that fits is in the container's standard error."""
        stderr = self.stderr
        assert stderr is not None
        found = re.compile(pattern)
        wait_until(f"{pattern} is said", lambda: found.search(stderr.so_far.decode()), timeout)

    def close_stdin(self) -> None:
        """End the container's standard input."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    # The end

    def describe(self) -> str:
        """What is known about it, for a failing test."""
        lines: list[str] = []
        with contextlib.suppress(OSError):  # its record may be gone
            log = self.site.root / self.id / "log"
            lines = log.read_text(errors="replace").splitlines()
        errors = self.stderr.so_far.decode(errors="replace") if self.stderr else ""
        return f"{self.id}: events {self._events}, stderr {errors!r}, log {lines[-20:]}"

    def end(self) -> None:
        """Remove what the test has left of it; only what it started itself."""
        print(self.describe())  # pytest shows it if the test has failed
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            stack.callback(self._end_subreaper)
            if self._events.get("create", -1) < 0 or (self.site.root / self.id).exists():
                self.site.run("delete", "--force", self.id)

    def _end_subreaper(self) -> None:
        try:
            self._subreaper.wait(5)
        except subprocess.TimeoutExpired:
            if anchor := self._events.get("anchor"):
                signal_quietly(anchor)
            self._subreaper.kill()
            self._subreaper.wait(5)

    def _close(self) -> None:
        self.close_stdin()
        if self._console:
            self._console.close()
        if self._report >= 0:
            os.close(self._report)
            self._report = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
