"""Runs a container with RunTimeCreate, RunTimeStart and RunTimeQuery, and exits with its status.

What follows RunTimeCreate is the shim's code (`CreatedContainer`), and so are the loop and the
children. With a socket of the supervisor's, a line on it says that the container is created.
Supervisors answer with one to start it, as often as they like, and are told so in turn.

It imports little: each such container has one of these.
"""

import _signal as signal
import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__).removesuffix("/scrun/supervisor/reapers"))

from scrun.supervisor.shim.children import Children, exit_status
from scrun.supervisor.shim.json_text import dumps
from scrun.supervisor.shim.libc import SUBREAPER, prctl
from scrun.supervisor.shim.loop import READ, Loop
from scrun.supervisor.shim.site import CreatedContainer, pid_of, query

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from scrun.supervisor.shim.site import Told

_PDEATHSIG = 1
_WORDS = 1 << 16


class Reaper:
    """The parent of one container; `status`: None as long as that lives."""

    def __init__(self, line: int, log: str, start: str, state: str) -> None:
        """`line` is the descriptor of the socket; -1: there is none.

        `log` gets errors of RunTimeStart and RunTimeQuery, in runc's format. Errors of
        RunTimeCreate go to the container's standard error.
        """
        self.status: int | None = None
        self._line, self._log, self._start_command, self._query = line, log, start, state
        self._loop, self._children = Loop(), Children()
        self._is_starting = False
        self._created = CreatedContainer(self._loop, self._children, self._ask)

    def run(self, create: str) -> int:
        """Create the container and stay to its end; return its status."""
        prctl(SUBREAPER, 1)
        if self._line >= 0:
            os.set_inheritable(self._line, False)
        self._loop.take_signals([signal.SIGCHLD], lambda _: self._children.reap())
        self._children.expect()
        self._children.spawn(_shell(create), self._has_created, (0, 1, 2))
        self._loop.run(lambda: self.status is not None and not self._is_starting)
        assert self.status is not None
        return self.status

    def _ask(self, told: "Told") -> None:
        answer = os.memfd_create("state", os.MFD_CLOEXEC)
        query(_shell(self._query), answer, self._children.spawn, told)

    def _has_created(self, status: int) -> None:
        if status:
            self.status = exit_status(status)
        else:
            self._created.find(self._found)

    def _found(self, state: "dict[str, Any]") -> None:
        if not state:
            self._fail(f"RunTimeQuery does not know the new container: {self._query}")
            return
        self._created.await_end(pid_of(state), self._has_ended)
        self._children.expect_no_longer()
        if self._line < 0:
            self._start()
            return
        # now the container may outlive the supervisor; if it is not to, its keepalive ends it
        prctl(_PDEATHSIG, 0)
        self._tell()
        self._loop.watch(self._line, READ, self._told)

    def _tell(self) -> None:
        try:
            os.write(self._line, b"\n")
        except OSError:
            pass  # the supervisor has died, and nobody adopts the container

    def _told(self, _: int) -> None:
        self._loop.forget(self._line)
        try:
            word = os.read(self._line, 1)
        except OSError:
            return
        if word:
            self._start()

    def _start(self) -> None:
        words = os.memfd_create("words", os.MFD_CLOEXEC)
        self._is_starting = True

        def started(status: int) -> None:
            said = os.pread(words, _WORDS, 0).decode(errors="replace").strip().splitlines()
            os.close(words)
            self._is_starting = False
            if status:
                command = f"RunTimeStart failed: {self._start_command}"
                self._fail(said[-1] if said else command)
            elif self._line >= 0:
                self._tell()
                os.close(self._line)  # for a supervisor whose predecessor has read that

        self._children.spawn(_shell(self._start_command), started, (None, 1, words))

    def _has_ended(self, status: int) -> None:
        if self.status is None:
            self.status = exit_status(status)

    def _fail(self, reason: str) -> None:
        with open(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            file.write(dumps({"level": "error", "msg": reason}) + "\n")
        self.status = 1


def _shell(text: str) -> "list[str]":
    return ["/bin/sh", "-c", text]


if __name__ == "__main__":
    line, log, create, start, state = sys.argv[1:6]
    sys.exit(Reaper(int(line), log, start, state).run(create))
