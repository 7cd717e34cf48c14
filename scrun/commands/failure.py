"""What went wrong, in one line, where the caller looks for it."""

import os

from scrun.cli.parse import Parsed
from scrun.cli.report import report
from scrun.errors import ScrunError


def explain(error: Exception, parsed: "Parsed | None") -> int:
    """Report an exception, and return the exit status that goes with it."""
    if isinstance(error, ScrunError):
        status, text = error.exit_code, str(error)
    elif isinstance(error, OSError):
        names = ", ".join(str(name) for name in (error.filename, error.filename2) if name)
        status, text = 1, f"{names}: {error.strerror}" if names else str(error)
    else:
        status = 1
        text = f"internal error: {type(error).__name__}: {error}; run it again with --debug"
    if parsed is not None and parsed.options.get("debug"):
        import traceback

        text += "".join(["\n", *traceback.format_exception(error)])
    return report_failure(os.fsencode(text), status, parsed)


def report_failure(answer: bytes, status: int, parsed: "Parsed | None") -> int:
    """Write the reason to standard error and to `--log`; return the exit status."""
    options = parsed.options if parsed is not None else {}
    log, log_format = options.get("log"), options.get("log-format")
    report(
        answer.decode(errors="replace"),
        log=log if isinstance(log, str) else None,
        log_format=log_format if isinstance(log_format, str) else "text",
    )
    return status
