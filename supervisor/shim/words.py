"""What an OCI runtime says when it fails."""

import os

from .runtime import log_of

_LAST_WORDS = 1 << 16
_LARGEST_LOG = 1 << 20


class Refused(ValueError):
    """A call cannot be done; its text is for the supervisor."""


def read_log(place: str, words: bytes) -> "tuple[str, str]":
    """Return what a runtime that failed says: in a sentence, and its log.

    Args:
        place: The directory with its log.
        words: What it wrote to standard error.
    """
    try:
        with open(log_of(place), "rb") as file:
            log = file.read(_LARGEST_LOG).decode("utf-8", "replace")
    except OSError:
        log = ""
    return last_error(log) or last_line(words), log


def with_root(text: str, root: str) -> str:
    """Return what a runtime says, and which root directory is missing: crun 1.28 does not name it.

    Args:
        text: What it says.
        root: The root directory, or "".
    """
    if root not in text:
        try:
            os.stat(root)
        except (FileNotFoundError, NotADirectoryError):
            return f"{text}: there is no {root}"
        except (OSError, ValueError):  # the container's user may see it where we do not
            pass
    return text


def last_line(words: bytes) -> str:
    """Return the last line of what a program wrote, "" if it wrote nothing."""
    lines = words[-_LAST_WORDS:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def last_error(log: str) -> str:
    """Return the last error of a log of JSON values, one on a line or on several (crun 1.28)."""
    import json  # with re, enum and more: they take as long as all of hello
    import re

    decoder, begins = json.JSONDecoder(), re.compile(r"^\{", re.MULTILINE)
    error, place = "", 0
    while True:
        found = begins.search(log, place)
        if found is None:
            return error
        try:
            entry, place = decoder.raw_decode(log, found.start())
        except (ValueError, RecursionError):
            entry, place = None, found.start() + 1
        if isinstance(entry, dict) and entry.get("level") in ("error", "fatal", "panic"):
            error = str(entry.get("msg", ""))
