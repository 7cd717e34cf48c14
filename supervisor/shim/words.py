"""What an OCI runtime says when it fails."""

import os

from .runtime import log_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_LAST_WORDS = 1 << 16
_LARGEST_LOG = 1 << 16  # in JSON it may be six times as long


class CallRefused(ValueError):
    """A call cannot be done; its text is for the supervisor."""


def read_log(place: str, words: bytes) -> "tuple[str, str]":
    """Return what a runtime that failed says: in a sentence, and its log."""
    try:
        with open(log_of(place), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LARGEST_LOG))
            log = file.read(_LARGEST_LOG).decode("utf-8", "replace")
    except OSError:
        log = ""
    return last_error(log) or last_line(words), log


def with_missing(text: str, paths: "Iterable[str]") -> str:
    """Return what a runtime says, and what this node lacks: crun 1.28 does not name the root."""
    for path in paths:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
            return f"{text}: there is no {path} on the node {node}"
        except (OSError, ValueError):  # the container's user may see it where we do not
            pass
    return text


def needs(config: "dict[str, Any]", place: str) -> "list[str]":
    """Return the paths that a container's root, bind mounts and devices need.

    Args:
        place: Where relative paths begin.
    """
    mounts = [
        one.get("source", "")
        for one in config.get("mounts") or []
        if {"bind", "rbind"} & {one.get("type"), *(one.get("options") or [])}
    ]
    devices = [one["path"] for one in (config.get("linux") or {}).get("devices") or []]
    root = (config.get("root") or {}).get("path", "")
    return [os.path.join(place, path) for path in (root, *mounts, *devices)]


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
