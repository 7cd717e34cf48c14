"""Docker's daemon.json, with scrun among its runtimes. Pure.

dockerd(8), "Daemon configuration file": `runtimes` is an object of objects, `path` is the
program, `default-runtime` a name in it. Both are read again at SIGHUP.
"""

import json
import re

from scrun.core.errors import SettingsError

NAME = "scrun"
_INDENT = re.compile(r"^([ \t]+)\"", re.MULTILINE)


def add(text: str | None, program: str, path: str, *, default: bool = False) -> str:
    """Return daemon.json with the runtime in it.

    Args:
        text: What there is now; None: no such file.
        program: scrun, absolute.
        path: The file, for errors.
        default: Whether docker uses it where no runtime is named.

    Raises:
        SettingsError: The text is not what dockerd would read, or has another default runtime.
    """
    text = "{\n}\n" if text is None else text
    content = _read(text, path)
    runtimes = content.setdefault("runtimes", {})
    if not isinstance(runtimes, dict):
        raise SettingsError(f"{path}: runtimes: not an object; put that right first")
    runtimes[NAME] = {"path": program}
    if default and content.setdefault("default-runtime", NAME) != NAME:
        there = content["default-runtime"]
        raise SettingsError(f"{path}: default-runtime is {there!r}; remove that line first")
    return _write(content, text, path)


def remove(text: str, backup: str | None, path: str) -> str | None:
    """Return daemon.json without the runtime; None: without it there would be no file.

    Args:
        text: What there is now.
        backup: What there was before `add`; None: no such file. It is returned as it is if it
            differs in nothing else.
        path: The file, for errors.

    Raises:
        SettingsError: The text is not what dockerd would read.
    """
    if entry(text, path) is None:
        return text
    content = _read(text, path)
    runtimes = content["runtimes"]
    assert isinstance(runtimes, dict)
    del runtimes[NAME]
    if content.get("default-runtime") == NAME:
        del content["default-runtime"]  # it would name nothing
    old = {} if backup is None else _read(backup, path)
    if not runtimes and "runtimes" not in old:
        del content["runtimes"]
    return backup if content == old else _write(content, text, path)


def entry(text: str, path: str) -> str | None:
    """Return the program that daemon.json calls scrun; "" if that is unclear, None for none.

    Raises:
        SettingsError: The text is not what dockerd would read.
    """
    runtimes = _read(text, path).get("runtimes")
    if not isinstance(runtimes, dict) or NAME not in runtimes:
        return None
    there = runtimes[NAME]
    program = there.get("path") if isinstance(there, dict) else None
    return program if isinstance(program, str) and len(there) == 1 else ""


def _read(text: str, path: str) -> dict[str, object]:
    """Read a text that has to be one object, without a name that comes twice in any."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise SettingsError(f"{path}: a name comes twice in an object; leave one of them out")
        return found

    try:
        content = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not JSON, so left alone: {error}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: not a JSON object, so left alone")
    return content


def _write(content: dict[str, object], text: str, path: str) -> str:
    """Return the content with the indentation of a text, or that text if it says the same."""
    if content == _read(text, path):
        return text
    indent = (
        found[1] if (found := _INDENT.search(text)) else "  " if "\n" in text.strip() else None
    )
    written = json.dumps(content, indent=indent, ensure_ascii=text.isascii())
    return written + ("\n" if text.endswith("\n") else "")
