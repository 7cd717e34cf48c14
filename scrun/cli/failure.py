"""Report errors in one line, where the caller looks for it."""

import posix

from scrun.cli.parse import Parsed
from scrun.cli.report import append, report
from scrun.core.errors import NOT_RUNNING, ScrunError, UsageError, described, leaves
from scrun.core.text import one_line, printable
from scrun.settings.file.sources import environment


def explain(error: Exception, parsed: "Parsed | None") -> int:
    """Report an exception, and return the exit status for it."""
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
    """Report the exception that has ended a program; it may be a group.

    Returns:
        The exit status for it; for an interrupt the one of a shell, without a report.

    Raises:
        BaseException: It is not an error, for example SystemExit.
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

    `parsed` is the command line, as far as it is known. `details` is a traceback, for the logs, or
    without logs for standard error. `reason_shown` says whether standard error already shows the
    reason.
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
