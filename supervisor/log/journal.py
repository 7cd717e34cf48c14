"""The messages about one container, and where they are written.

All messages go through its journal: our own, those of salloc, srun and the OCI runtime, and what
staging changed. Depending on the level of each destination, they go to

* ROOT/ID/log, always;
* the file of `[log]` or SCRUN_LOG_FILE, and syslog, if the settings request it;
* `create`, for its standard error and its `--log`, if the call requests it, until `create` gets
  its answer: from then on its standard error is the container's alone.

Nothing here waits, or fails a container: what cannot be written is lost. The root directory is
scrun's own; the file of the settings may be on any file system, and has a thread of its own.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from scrun.cli.failure import log_lines
from scrun.core.progress import Rarely, Say, with_bar
from scrun.settings.file.load import LEVELS, Level, Log
from scrun.supervisor.log.files import LimitedFile, LogFile

if TYPE_CHECKING:
    from scrun.cli.syslog import Syslog

Put = Callable[[Level, str], None]

_AS_RUNC = {"fatal": "fatal", "error": "error", "info": "info", "verbose": "info"}


class Shown(msgspec.Struct, frozen=True):
    """Which messages about its container `create` writes itself.

    Attributes:
        stderr: The level for its standard error.
        log: The level for its `--log`, which gets its final error in any case.
        failure_in_file: Whether it writes that error to the file of `[log]`, too: if the file is
            SCRUN_LOG_FILE.
        live: Whether it shows what it waits for on its terminal, in one line that changes.
    """

    stderr: Level = "quiet"
    log: Level = "quiet"
    failure_in_file: bool = False
    live: bool = False


class _Sink(msgspec.Struct, frozen=True):
    """A destination: gets messages up to a level; perhaps not errors that `create` writes."""

    least: int
    put: Put
    gets_failures: bool = True


class Journal:
    """The open destinations of one container's messages; `own` is its own log, at `path`."""

    def __init__(
        self,
        path: str,
        settings: Log,
        container: str,
        shown: Shown | None = None,
        file: LogFile | None = None,
    ) -> None:
        """The settings' `file` (`supervisor.log.files.open_file`) is closed with the journal."""
        self.path = path
        self._when_written: Callable[[], None] | None = None
        self._shown = shown or Shown()
        self._about = f"container {container}: "
        self._form = settings.format
        self.own = LimitedFile(path, settings.limit << 20, again=True)
        self._file = file
        self._sinks = [_Sink(LEVELS.index(settings.level), self._append)]
        self._caller: _Sink | None = None
        self._live: Callable[[str], None] | None = None
        self._syslog: Syslog | None = None
        if file is not None:
            least = LEVELS.index(settings.file_level or settings.level)
            self._sinks.append(_Sink(least, self._to_file, not self._shown.failure_in_file))
        self._syslog = _syslog(settings)
        if self._syslog is not None:
            put = self._to_syslog(self._syslog)
            self._sinks.append(_Sink(LEVELS.index(settings.syslog_level), put))
        if file is not None and not file.opened.is_set():
            self.write("error", f"log.file: {file.path} does not answer; messages may be lost")

    @property
    def shown(self) -> Shown:
        return self._shown

    def show_live(self, caller: Callable[[str], None] | None) -> None:
        """Show `run` from now on what it waits for; None: no longer."""
        self._live = caller

    def live(self, text: str) -> None:
        """Show in one line what `run` waits for; "" for nothing."""
        if self._live is not None:
            self._live(text)

    def progress(self) -> Say:
        """Return what says how far something is: to `run` at once, else in a line now and then."""
        rarely = Rarely(lambda text: self.write("info", text))

        def say(text: str, share: float | None = None, /) -> None:
            self.live(with_bar(text, share))
            rarely(text)

        return say

    def show_to(self, caller: Put | None) -> None:
        """Send messages to `create` from now on; None: no longer.

        It gets what one of its two levels lets through. It is called in the thread of `write`,
        which must be the event loop's then.
        """
        least = max(LEVELS.index(self._shown.stderr), LEVELS.index(self._shown.log))
        self._caller = None if caller is None else _Sink(least, caller, gets_failures=False)

    def write(self, level: Level, text: str, *, reported: bool = False) -> None:
        """Write one message; `create` itself may have reported it."""
        number = LEVELS.index(level)
        for sink in (*self._sinks, *([self._caller] if self._caller else ())):
            if number <= sink.least and (sink.gets_failures or not reported):
                sink.put(level, text)
        if self._when_written is not None:
            self._when_written()

    def rest(self) -> None:
        """Need no descriptor of the container's own log between messages: they will be rare."""
        self.own.rest()

    def when_written(self, call: Callable[[], None]) -> None:
        self._when_written = call

    def _line(self, level: Level, text: str) -> bytes:
        line = log_lines(as_runc(level), text, time.time(), self._form) + "\n"
        return line.encode(errors="backslashreplace")

    def _append(self, level: Level, text: str) -> None:
        self.own.write(self._line(level, text))

    def _to_file(self, level: Level, text: str) -> None:
        if self._file is not None:
            self._file.put(self._line(level, self._about + text))

    def _to_syslog(self, syslog: "Syslog") -> Put:
        return lambda level, text: syslog.send(level, self._about + text)

    def close(self) -> None:
        """Close the destinations; later messages are dropped."""
        self._sinks.clear()
        if self._syslog is not None:
            self._syslog.close()
        if self._file is not None:
            self._file.close()
            self._file = None
        self.own.close()


def as_runc(level: Level) -> str:
    """Return the name of a level in logrus, for readers of runc's logs."""
    return _AS_RUNC.get(level, "debug")


def _syslog(settings: Log) -> "Syslog | None":
    if settings.syslog_level == "quiet":
        return None
    from scrun.cli.syslog import Syslog  # rarely used

    return Syslog(settings.syslog)
