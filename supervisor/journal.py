"""The log of one container: ROOT/ID/log, and the file that the settings name.

Everything that is said about a container goes there: our own messages, those of salloc and srun,
of the OCI runtime, and what staging changed. Nothing of it reaches the container's stderr.
"""

import os
import time

from scrun.cli.report import log_line
from scrun.errors import SettingsError
from scrun.settings.load import LEVELS, Level, Log

_AS_RUNC = {"fatal": "fatal", "error": "error", "info": "info", "verbose": "info"}
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Journal:
    """Open log files."""

    def __init__(self, path: str, settings: Log, container: str) -> None:
        """Open them.

        Args:
            path: The container's own log.
            settings: The section [log] of the settings.
            container: The container's id, for the file that others write to, too.

        Raises:
            SettingsError: The settings' file cannot be opened.
        """
        self._least = LEVELS.index(settings.level)
        self._form = settings.format
        self._container = container
        self._own = os.open(path, _FLAGS, 0o600)
        self._shared = -1
        if settings.file is not None:
            try:
                self._shared = os.open(settings.file, _FLAGS, 0o600)
            except OSError as error:
                os.close(self._own)
                reason = error.strerror
                raise SettingsError(f"log.file: {settings.file}: {reason}") from error

    def write(self, level: Level, text: str) -> None:
        """Write one line. A full disk is no reason to end a container: then it is lost."""
        if LEVELS.index(level) > self._least or self._own < 0:
            return
        shown, now = _AS_RUNC.get(level, "debug"), time.time()
        self._append(self._own, log_line(shown, text, now, self._form))
        if self._shared >= 0:
            text = f"container {self._container}: {text}"
            self._append(self._shared, log_line(shown, text, now, self._form))

    def _append(self, fd: int, line: str) -> None:
        try:
            os.write(fd, line.encode(errors="replace") + b"\n")
        except OSError:
            pass

    def close(self) -> None:
        """Close the files; later lines are dropped."""
        for fd in (self._own, self._shared):
            if fd >= 0:
                os.close(fd)
        self._own = self._shared = -1  # numbers that the kernel gives away again
