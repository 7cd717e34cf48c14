"""A real terminal that remembers what is on its screen: tmux(1)."""

import itertools
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness.daemons import program
from tests.harness.wait import wait_until

_NUMBERS = itertools.count()


class Tmux:
    """A terminal in which one command runs; its exit status is shown when it has ended."""

    def __init__(
        self,
        directory: Path,
        prefix: Sequence[str],
        command: Sequence[str],
        environment: Mapping[str, str],
        size: tuple[int, int] = (120, 20),
    ) -> None:
        """Open it.

        Args:
            directory: Where its socket goes; its user has to be able to write there.
            prefix: Words before a command, that make it one of the user's.
            command: The command, with its arguments.
            environment: The command's.
            size: Columns and lines.
        """
        # not the one of another server, which may still be ending
        self._socket = directory / f"tmux{next(_NUMBERS)}"
        self._prefix, self._environment = prefix, dict(environment)
        width, height = map(str, size)
        # a shell stays, so that what is on the screen stays as well
        script = 'trap : INT; "$@"; echo "status $?"; exec sleep 1000'
        self._must(
            "new-session", "-d", "-x", width, "-y", height, "sh", "-c", script, "sh", *command
        )

    def _must(self, *words: str) -> str:
        done = subprocess.run(
            [*self._prefix, program("tmux"), "-f", "/dev/null", "-S", str(self._socket), *words],
            env={"LC_ALL": "C.UTF-8", **self._environment}, capture_output=True, text=True,
            check=False, timeout=20, cwd="/",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def screen(self, *options: str) -> str:
        """What is on the screen; with `-e`, its colours as well."""
        return self._must("capture-pane", "-p", *options)

    def press(self, *keys: str) -> None:
        self._must("send-keys", *keys)

    def shows(self, text: str, seconds: float = 20) -> str:
        """Wait until a text is on the screen; return all of it."""
        wait_until(f"{text!r} is shown", lambda: text in self.screen(), seconds)
        return self.screen()

    def pid(self) -> int:
        """The pid of the shell in it."""
        return int(self._must("display-message", "-p", "#{pane_pid}"))

    def close(self) -> None:
        """Close it, as when somebody closes a window: what runs in it gets SIGHUP."""
        self._must("kill-server")
