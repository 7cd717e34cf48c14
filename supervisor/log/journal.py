"""What is said about one container, and where that is written.

Everything goes through its journal: our own messages, those of salloc and srun, of the OCI
runtime, and what staging changed. From there each goes, by the level of the place, to

* ROOT/ID/log, always;
* the file of `[log]` or SCRUN_LOG_FILE, and syslog, if the settings ask for them;
* `create`, for its standard error and its `--log`, if the call asked for that, and until it is
  answered: from then on its standard error is the container's alone.

Nothing here waits, or fails a container: what cannot be written is lost. The root directory is
scrun's own; the file of the settings may be on any file system, and has a thread of its own.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from scrun.cli.report import log_lines
from scrun.settings.file.load import LEVELS, Level, Log
from scrun.supervisor.log.files import LogFile
from scrun.supervisor.log.limited import LimitedFile

if TYPE_CHECKING:
    from scrun.cli.syslog import Syslog

Put = Callable[[Level, str], None]

_AS_RUNC = {"fatal": "fatal", "error": "error", "info": "info", "verbose": "info"}


class Shown(msgspec.Struct, frozen=True):
    """What `create` writes itself, of the messages about its container.

    Attributes:
        stderr: The level for its standard error.
        log: The level for its `--log`; the failure it ends with is there whatever this is.
        failure_in_file: Whether it writes that failure to the file of `[log]`, too: it does when
            the file is SCRUN_LOG_FILE.
        live: Whether it shows on its terminal, in one line that changes, what is waited for.
    """

    stderr: Level = "quiet"
    log: Level = "quiet"
    failure_in_file: bool = False
    live: bool = False


class _Sink(msgspec.Struct, frozen=True):
    """Where messages go: those up to a level, and perhaps not what `create` writes there."""

    least: int
    put: Put
    gets_failures: bool = True


class Journal:
    """The open places.

    Attributes:
        path: The container's own log.
        own: That.
    """

    def __init__(
        self,
        path: str,
        settings: Log,
        container: str,
        shown: Shown | None = None,
        file: LogFile | None = None,
    ) -> None:
        """Open them.

        Args:
            path: The container's own log.
            settings: The section [log] of the settings.
            container: The container's id, for the places that others write to, too.
            shown: What `create` is to be told, see `show_to`.
            file: The settings' file (`supervisor.log.files.open_file`); closed with the journal.
        """
        self.path = path
        self._when_written: Callable[[], None] | None = None
        self._shown = shown or Shown()
        self._about = f"container {container}: "
        self._form = settings.format
        self.own = LimitedFile(path, settings.limit << 20)
        self._file = file
        self._places = [_Sink(LEVELS.index(settings.level), self._append)]
        self._caller: _Sink | None = None
        self._live: Callable[[str], None] | None = None
        self._syslog: Syslog | None = None
        if file is not None:
            least = LEVELS.index(settings.file_level or settings.level)
            self._places.append(_Sink(least, self._to_file, not self._shown.failure_in_file))
        self._syslog = _syslog(settings)
        if self._syslog is not None:
            put = self._to_syslog(self._syslog)
            self._places.append(_Sink(LEVELS.index(settings.syslog_level), put))
        if file is not None and not file.opened.is_set():
            self.write("error", f"log.file: {file.path} does not answer; messages may be lost")

    @property
    def shown(self) -> Shown:
        """What `create` is to be told."""
        return self._shown

    def show_live(self, caller: Callable[[str], None] | None) -> None:
        """Tell `run` what is waited for from now on; None: not any more."""
        self._live = caller

    def live(self, text: str) -> None:
        """Say what is waited for, in one line; "" is nothing."""
        if self._live is not None:
            self._live(text)

    def show_to(self, caller: Put | None) -> None:
        """Tell `create` from now on; None: not any more.

        It gets what one of its two levels lets through, to choose from. It is called in the
        thread of `write`, which then has to be the event loop's.
        """
        least = max(LEVELS.index(self._shown.stderr), LEVELS.index(self._shown.log))
        self._caller = None if caller is None else _Sink(least, caller, gets_failures=False)

    def write(self, level: Level, text: str, *, reported: bool = False) -> None:
        """Write one message.

        Args:
            level: How much it matters.
            text: The message; more than one line if it is a traceback.
            reported: Whether `create` ends with these very words: then it writes them itself.
        """
        number = LEVELS.index(level)
        for place in (*self._places, *([self._caller] if self._caller else ())):
            if number <= place.least and (place.gets_failures or not reported):
                place.put(level, text)
        if self._when_written is not None:
            self._when_written()

    def when_written(self, call: Callable[[], None]) -> None:
        """Call somebody whenever something was written."""
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
        """Close what is open; later messages are dropped."""
        self._places.clear()
        if self._syslog is not None:
            self._syslog.close()
        if self._file is not None:
            self._file.close()
            self._file = None
        self.own.close()


def as_runc(level: Level) -> str:
    """Name a level as logrus does, for those who read runc's logs."""
    return _AS_RUNC.get(level, "debug")


def _syslog(settings: Log) -> "Syslog | None":
    if settings.syslog_level == "quiet":
        return None
    from scrun.cli.syslog import Syslog  # hardly anybody has it on

    return Syslog(settings.syslog)
