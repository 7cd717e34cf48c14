"""Errors, in the shape that engines read: runc's and crun's.

An error is one line on stderr, and before that one line in ``--log``. Who reads which:

* podman, for the runtimes in its ``runtime_supports_json``, passes ``--log FILE
  --log-format json`` and takes the *whole file* as one JSON object (readConmonPipeData in
  libpod/oci_conmon_common.go): a second line, of whatever level, and the message is lost.
  So only the error that a command ends with goes to ``--log``. For all other runtimes it
  shows what the runtime wrote to stderr.
* containerd, and so docker, reads every line of the same file and shows the last ``msg``
  whose level is ``error`` (getLastRuntimeError in pkg/process/utils.go).

Imported only when there is an error to report, and by the supervisor for its own logs.
"""

import contextlib
import json
import os
import time


def log_line(level: str, msg: str, when: float, format: str) -> str:  # noqa: A002 - runc's word
    """Return one line of a log as runc's logrus writes it, without the newline.

    Args:
        level: ``error``, ``warning``, ``info`` or ``debug``.
        msg: The message.
        when: Seconds since the epoch; written in local time, as RFC 3339.
        format: ``json``; anything else is text.
    """
    stamp = _rfc3339(when)
    if format == "json":
        entry = {"level": level, "msg": msg, "time": stamp}
        return json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    return f'time="{stamp}" level={level} msg={json.dumps(msg, ensure_ascii=False)}'


def report(error_text: str, *, log: str | None, log_format: str, stderr: int = 2) -> None:
    """Tell the caller, and whoever reads the log, why the command failed.

    Nothing that goes wrong here is an error: the exit status has yet to be delivered.

    Args:
        error_text: The message; it is made one line if it is not.
        log: The value of ``--log``: a path, or as crun has it ``file:PATH``,
            ``syslog:NAME`` or ``journald:NAME``.
        log_format: The value of ``--log-format``.
        stderr: The file descriptor that people and engines read.
    """
    msg = "; ".join(line for line in map(str.strip, error_text.splitlines()) if line)
    if log:
        _append(log, msg, log_format)
    # ids and paths come from anywhere: what would move a terminal's cursor is written out
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in msg)
    with contextlib.suppress(OSError):
        _write(stderr, f"scrun: {shown}\n")


def _append(log: str, msg: str, log_format: str) -> None:
    kind, _, rest = log.partition(":")
    if kind in ("syslog", "journald"):  # journald listens where syslog does
        import syslog

        syslog.openlog(rest or "scrun", syslog.LOG_PID)
        syslog.syslog(syslog.LOG_ERR, msg.replace("\0", "\\0"))
        return
    path = rest if kind == "file" else log
    try:
        # O_NONBLOCK: a named pipe that nobody reads fails here, instead of for ever
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(path, flags | os.O_NOCTTY, 0o644)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return
    with contextlib.suppress(OSError):
        _write(fd, log_line("error", msg, time.time(), log_format) + "\n")
    os.close(fd)


def _write(fd: int, line: str) -> None:
    """Write in one call, so that lines of several writers stay whole."""
    # argv that is not UTF-8 arrives as lone surrogates: \udc80 is an escape in JSON, too
    os.write(fd, line.encode("utf-8", "backslashreplace"))


def _rfc3339(when: float) -> str:
    local = time.localtime(when)
    minutes = local.tm_gmtoff // 60
    sign = "-" if minutes < 0 else "+"
    offset = f"{sign}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}" if minutes else "Z"
    return time.strftime("%Y-%m-%dT%H:%M:%S", local) + offset
