"""Report errors in one line, in the form that engines read, which is that of runc and crun.

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

from scrun.cli.parse import Parsed
from scrun.core.errors import NOT_RUNNING, ScrunError, UsageError, described, leaves
from scrun.core.text import escaped, one_line, printable
from scrun.settings.file.sources import environment


def explain(error: Exception, parsed: "Parsed | None") -> int:
    if parsed is None and isinstance(error, UsageError):
        parsed = Parsed()  # the options before the error, perhaps `--log` among them
        parsed.options = error.options or {}
    status, has_place, text = 1, True, described(error)
    if isinstance(error, ScrunError):
        status, has_place = error.exit_code, error.show_traceback
    elif text.startswith("internal error"):
        text += "; run it again with --debug"
    details = ""
    if has_place and parsed is not None and parsed.options.get("debug"):
        import traceback

        details = "".join(traceback.format_exception(error))
    return report_failure(text.encode(errors="replace"), status, parsed, details)


def explain_end(error: BaseException, parsed: "Parsed | None") -> int:
    """Report the exception that has ended a program, maybe a group; return the exit status.

    For an interrupt it is the one of a shell, without a report; what is not an error is raised.
    """
    first = next(leaves(error))
    if isinstance(first, KeyboardInterrupt):
        return 128 + 2
    if not isinstance(first, Exception):
        raise error
    return explain(first, parsed)


def report_failure(
    answer: bytes,
    status: int,
    parsed: "Parsed | None",
    details: str = "",
    *,
    reason_shown: bool = False,
) -> int:
    """Write the reason to standard error, `--log` and SCRUN_LOG_FILE; return the exit status.

    `details` is a traceback, for the logs, or without logs for standard error. `reason_shown`:
    standard error already shows the reason.
    """
    text = answer.decode(errors="replace")
    log = parsed.text("log") if parsed is not None else None
    log_format = (parsed.text("log-format") if parsed is not None else None) or "text"
    file, form = _file(parsed)
    if details:
        if log:
            append(log, "debug", details, log_format)
        elif not file:
            _show(details)
    if file:
        about = f"container {parsed.id}: " if parsed is not None and parsed.id else ""
        if details:
            append(f"file:{file}", "debug", about + details, form, 0o600)
        append(f"file:{file}", "error", about + one_line(text), form, 0o600)
    if reason_shown:
        if log:
            append(log, "error", one_line(text), log_format)
    elif parsed is None or parsed.command != "kill" or not _is_known_to_podman(text):
        report(text, log=log, log_format=log_format)
    return status


def _is_known_to_podman(text: str) -> bool:
    """Tell whether podman is the caller, and the error only says that a container has stopped.

    `podman stop`, `kill` and `rm --force` race with the container's end. They accept a signal that
    comes too late, but they pass the runtime's standard error on: people would see an error.
    """
    if not text.startswith(NOT_RUNNING):
        return False
    try:
        with open(f"/proc/{posix.getppid()}/comm", "rb") as file:
            return file.read() == b"podman\n"
    except OSError:
        return False


def _file(parsed: "Parsed | None") -> "tuple[str, str]":
    """Return the path and format of SCRUN_LOG_FILE, if errors belong there.

    The settings are read only if the variable is set, because that is slow. A log file that only
    scrun.toml names gets the supervisor's messages, not those of commands.
    """
    named = environment().get("SCRUN_LOG_FILE", "")
    if not named.startswith("/"):
        return "", ""
    options = parsed.options if parsed is not None else {}
    given, config = options.get("log-format"), options.get("config-file")
    # with --log, --log-format is about that
    form = given if isinstance(given, str) and "log" not in options else None
    from scrun.settings.file.load import LEVELS, load

    try:
        log = load(environment(), config if isinstance(config, str) else None).log
    except ScrunError:  # perhaps the very error that is being reported
        return named, form or "text"
    if LEVELS.index(log.file_level or log.level) < LEVELS.index("error"):
        return "", ""
    return named, form or log.format


def _show(details: str) -> None:
    for line in details.splitlines():
        try:
            posix.write(2, f"scrun: debug: {printable(line)}\n".encode(errors="backslashreplace"))
        except OSError:
            return


def log_line(level: str, msg: str, when: float, format: str) -> str:  # noqa: A002 - runc's word
    """Return one line of a log in the form of runc's logrus, without the newline.

    `when` is in seconds since the epoch; written as local time, in RFC 3339 form. A `format` other
    than ``json`` is text.
    """
    import json

    stamp = _rfc3339(when)
    if format == "json":
        entry = {"level": level, "msg": msg, "time": stamp}
        return escaped(json.dumps(entry, ensure_ascii=False, separators=(",", ":")))
    return f'time="{stamp}" level={level} msg={escaped(json.dumps(msg, ensure_ascii=False))}'


def log_lines(level: str, msg: str, when: float, format: str) -> str:  # noqa: A002 - as above
    """Return a message without the last newline; in JSON it is one entry, else one per line."""
    parts = [msg] if format == "json" else msg.splitlines() or [""]
    return "\n".join(log_line(level, part, when, format) for part in parts)


def report(error_text: str, *, log: str | None, log_format: str, stderr: int = 2) -> None:
    """Write the reason of a failure, joined to one line, to the log and to stderr.

    Errors in here are ignored: the exit status still has to be delivered. `log` is the value of
    ``--log``: a path or, as with crun, ``file:PATH``, ``syslog:NAME`` or ``journald:NAME``.
    """
    msg = one_line(error_text)
    if log:
        append(log, "error", msg, log_format)
    _write(stderr, f"scrun: {printable(msg)}\n")


def append(log: str, level: str, msg: str, log_format: str, mode: int = 0o644) -> None:
    """Write one message to the target of ``--log``; errors are ignored."""
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
