"""A service manager, as systemd is for a unit of Type=forking with PIDFile= and Restart=always.

Run as a program (`python3 -I -S -c SOURCE PID-FILE START STOP-POST STARTS`, with shell commands):
becomes a subreaper, so that what START leaves behind is its child; waits for START; reads the
main process from PID-FILE, watches it by a pidfd, runs STOP-POST when it has ended, and starts
again, STARTS times in all. It tells on its standard output, a line each::

    main PID              the unit is active
    ended STATUS          how the main process ended, as its parent sees it
    failed STATUS         START did not succeed

A line on its standard input stops the unit: TERM to the main process, KILL after the seconds in
that line; then the manager ends.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    pid_file, start, stop_post, starts = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")

    def tell(event: str, value: int) -> None:
        os.write(1, f"{event} {value}\n".encode())

    def call(command: str) -> int:
        null = subprocess.DEVNULL
        return subprocess.call(["sh", "-c", command], stdin=null, stdout=2)

    left = int(starts)
    while left:
        left -= 1
        if status := call(start):
            tell("failed", status)
            return
        main_pid = int(Path(pid_file).read_text())
        tell("main", main_pid)
        pidfd = os.pidfd_open(main_pid)
        if 0 in select.select([pidfd, 0], [], [])[0]:
            left = 0
            patience = float(sys.stdin.readline() or 0)
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            if not select.select([pidfd], [], [], patience)[0]:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        _, status = os.waitpid(main_pid, 0)  # it is a child of this process, or this fails
        os.close(pidfd)
        tell("ended", os.waitstatus_to_exitcode(status))
        call(stop_post)


class Service:
    """A unit, and the manager that keeps it running."""

    def __init__(
        self,
        prefix: list[str],
        environment: dict[str, str],
        directory: Path,
        *,
        pid_file: Path,
        start: str,
        stop_post: str,
        starts: int,
    ) -> None:
        source = Path(__file__).read_text()
        program = [sys.executable, "-I", "-S", "-c", source, str(pid_file)]
        program += [start, stop_post, str(starts)]
        self._errors = open(directory / "service.log", "w+b")  # noqa: SIM115  (closed in __exit__)
        self._manager = subprocess.Popen(
            [*prefix, *program],
            env=environment,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,  # else select does not know of a line that was read with another
            start_new_session=True,
        )

    def tells(self, event: str, timeout: float = 30) -> int:
        """Wait for the next thing that the manager tells, which has to be this one."""
        assert self._manager.stdout is not None
        ready = select.select([self._manager.stdout], [], [], timeout)[0]
        line = self._manager.stdout.readline().decode() if ready else "nothing"
        assert line.startswith(f"{event} "), f"{line!r}, not {event}; {self.errors()}"
        return int(line.split()[1])

    def errors(self) -> str:
        """What the unit's commands have printed."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def stop(self, patience: float) -> int:
        """Stop the unit, and return the status of its main process."""
        assert self._manager.stdin is not None
        self._manager.stdin.write(f"{patience}\n".encode())
        self._manager.stdin.flush()
        status = self.tells("ended")
        self.wait()
        return status

    def wait(self) -> None:
        """Wait for the manager to end, after the last STOP-POST."""
        assert self._manager.wait(30) == 0, self.errors()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._manager, self._errors:
            if self._manager.poll() is None:
                self._manager.kill()


if __name__ == "__main__":
    main()
