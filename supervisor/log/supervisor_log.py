"""The supervisor's own log: ROOT/@supervisor.log, which is also its standard error.

Messages about one container go to that container's journal. This log has what would be seen by
nobody else: tracebacks of internal errors, and why a supervisor ended. All supervisors of a root
directory write to one file, so readers need not know their names (`scrun logs --supervisor`); it
is limited to two files of one MiB.

The interpreter and the C library write fatal errors to descriptor 2, so that is the file itself.
"""

import contextlib
import faulthandler
import logging
import os
import time
import traceback

from scrun.cli.failure import log_lines
from scrun.core.errors import ScrunError, described, leaves
from scrun.core.paths import OWN_LOG

LIMIT = 1 << 20
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

log = logging.getLogger("scrun")


def begin(root: str, name: str, *, detached: bool) -> None:
    """Begin to log, and make descriptor 2 the log; standard error stays unless we are detached."""
    handler = _Handler(os.path.join(root, OWN_LOG) if detached else None, name)
    # warnings of libraries arrive here, too, such as trio's about asynchronous generators
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.raiseExceptions = False
    faulthandler.enable(2)


def end(root: str) -> None:
    """Remove the log if it is empty."""
    path = os.path.join(root, OWN_LOG)
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(2), os.lstat(path)) and not os.fstat(2).st_size:
            os.unlink(path)


def fault(what: str, error: BaseException) -> None:
    """Log an error, or all errors of a group, of `what`; an internal one with its traceback."""
    for leaf in leaves(error):
        expected = isinstance(leaf, ScrunError)
        log.error("%s: %s", what, described(leaf), exc_info=None if expected else leaf)


def traceback_of(error: BaseException) -> str:
    """Return its traceback; without the lines of the source where these cannot be read.

    Python 3.13 imports `tokenize` to read them, which fails where descriptors have run out. What
    a fault is logged for must not become the supervisor's end.
    """
    try:
        return "".join(traceback.format_exception(error)).rstrip()
    except Exception:
        frames = traceback.walk_tb(error.__traceback__)
        where = [f"{frame.f_code.co_filename}:{line}" for frame, line in frames]
        return "\n".join([*where, type(error).__name__])


class _Handler(logging.Handler):
    """Writes to descriptor 2, the current file: another supervisor may have rotated it."""

    def __init__(self, path: str | None, name: str) -> None:
        super().__init__()
        self._path = path
        self._about = f"supervisor {name}[{os.getpid()}]: "
        self._look()

    def emit(self, record: logging.LogRecord) -> None:
        text = self._about + record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + traceback_of(record.exc_info[1])
        line = log_lines(record.levelname.lower(), text, time.time(), "text") + "\n"
        with contextlib.suppress(OSError):
            self._look()
            os.write(2, line.encode(errors="backslashreplace"))

    def _look(self) -> None:
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            try:
                there = os.lstat(self._path)
                if os.path.samestat(os.fstat(2), there):
                    if there.st_size < LIMIT:
                        return
                    os.replace(self._path, self._path + ".1")
            except FileNotFoundError:
                pass
            fd = os.open(self._path, _FLAGS, 0o600)
            os.dup2(fd, 2, inheritable=False)
            os.close(fd)
