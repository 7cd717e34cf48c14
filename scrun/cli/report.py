"""Write errors in the form that engines read, which is that of runc and crun.

An error is one line in ``--log``, and one line on stderr. Their readers are:

* podman, for the runtimes in its ``runtime_supports_json``, passes ``--log FILE
  --log-format json`` and parses the *whole file* as one JSON object (readConmonPipeData in
  libpod/oci_conmon_common.go): with a second line, of whatever level, the message is lost.
  So only the error that ends a command goes to ``--log``, unless the call asks for more
  (``--debug``, SCRUN_DEBUG). In that case, and for all other runtimes, podman shows what
  the runtime wrote to stderr.
* containerd, and so docker, reads every line of that file and shows the last ``msg``
  whose level is ``error`` (getLastRuntimeError in pkg/process/utils.go).
"""

import posix
import time

from scrun.core.text import escaped, one_line, printable


def log_line(level: str, msg: str, when: float, format: str) -> str:  # noqa: A002 - runc's word
    """Return one line of a log in the form of runc's logrus, without the newline.

    `level`: ``error``, ``warning``, ``info`` or ``debug``. `when` is in seconds since the epoch;
    written as local time, in RFC 3339 form. `format`: ``json``; anything else is text.
    """
    import json

    stamp = _rfc3339(when)
    if format == "json":
        entry = {"level": level, "msg": msg, "time": stamp}
        return escaped(json.dumps(entry, ensure_ascii=False, separators=(",", ":")))
    return f'time="{stamp}" level={level} msg={escaped(json.dumps(msg, ensure_ascii=False))}'


def log_lines(level: str, msg: str, when: float, format: str) -> str:  # noqa: A002 - as above
    """Return a message that may have many lines, without the last newline.

    In JSON it is one entry. As text each line is an entry, so that a traceback stays readable
    and each line of the log has its time and level.
    """
    parts = [msg] if format == "json" else msg.splitlines() or [""]
    return "\n".join(log_line(level, part, when, format) for part in parts)


def report(error_text: str, *, log: str | None, log_format: str, stderr: int = 2) -> None:
    """Write the reason of a failure to the log and to stderr.

    Errors in here are ignored: the exit status still has to be delivered.

    `error_text` is the message; several lines are joined to one. `log` is the value of ``--log``:
    a path or, as with crun, ``file:PATH``, ``syslog:NAME`` or ``journald:NAME``. `stderr` is the
    file descriptor that people and engines read.
    """
    msg = one_line(error_text)
    if log:
        append(log, "error", msg, log_format)
    _write(stderr, f"scrun: {printable(msg)}\n")


def append(log: str, level: str, msg: str, log_format: str, mode: int = 0o644) -> None:
    """Write one message to the target of ``--log``; errors are ignored.

    `mode` are the permissions of a file that is made for it.
    """
    kind, _, rest = log.partition(":")
    if kind in ("syslog", "journald"):  # journald listens where syslog does
        from scrun.cli.syslog import DEV_LOG, Syslog

        daemon = Syslog(DEV_LOG, rest or "scrun")
        daemon.send(level, msg)
        daemon.close()
        return
    path = rest if kind == "file" else log
    try:
        # O_NONBLOCK: opening a named pipe that nobody reads fails instead of blocking
        flags = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_CLOEXEC
        fd = posix.open(path, flags | posix.O_NONBLOCK | posix.O_NOCTTY, mode)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return
    _write(fd, log_lines(level, msg, time.time(), log_format) + "\n")
    posix.close(fd)


def _write(fd: int, line: str) -> None:
    """Write in one call, so that lines of several writers stay whole."""
    # argv that is not UTF-8 arrives as lone surrogates: \udc80 is an escape in JSON, too
    try:
        posix.write(fd, line.encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def _rfc3339(when: float) -> str:
    local = time.localtime(when)
    minutes = local.tm_gmtoff // 60
    sign = "-" if minutes < 0 else "+"
    offset = f"{sign}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}" if minutes else "Z"
    return time.strftime("%Y-%m-%dT%H:%M:%S", local) + offset
