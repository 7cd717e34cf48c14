"""Register scrun as a runtime in Docker's daemon.json, and in rootless docker's unit. Pure.

dockerd(8), "Daemon configuration file": `runtimes` is an object of objects, `path` is the program,
and `default-runtime` names one of them. dockerd reads both again at SIGHUP. The unit is what
dockerd-rootless-setuptool.sh writes; systemd.service(5): an empty `ExecStart=` clears the list.
"""

import json
import re

from scrun.core.errors import SettingsError

NAME = "scrun"
_MARK = "# Made by `scrun install docker`, which also removes it.\n"
_COMMENT = re.compile(r"^[ \t]*[#;].*\n?", re.MULTILINE)
_GOES_ON = re.compile(r"\\\r?\n[ \t]*")
# what a line begins with says how systemd takes its program, and not which it is
_EXEC_START = re.compile(r"^[ \t]*ExecStart[ \t]*=[ \t]*([-:+!]*)(\S.*)$", re.MULTILINE)
_INDENT = re.compile(r"^([ \t]+)\"", re.MULTILINE)


def add(text: str | None, program: str, path: str, *, default: bool = False) -> str:
    """Return daemon.json with the runtime in it, which may be its `default` one.

    Raises:
        SettingsError: dockerd could not read the text, or it has another default runtime.
    """
    text = "{\n}\n" if text is None else text
    content = _read(text, path)
    runtimes = content.setdefault("runtimes", {})
    if not isinstance(runtimes, dict):
        raise SettingsError(f"{path}: runtimes: is not an object; correct that first")
    runtimes[NAME] = {"path": program}
    if default and content.setdefault("default-runtime", NAME) != NAME:
        there = content["default-runtime"]
        raise SettingsError(f"{path}: default-runtime is {there!r}; remove that line first")
    return _write(content, text, path)


def remove(text: str, backup: str | None, path: str) -> str | None:
    """Return daemon.json without the runtime; None if there was no file before `add`.

    The text before that, `backup`, is returned unchanged if nothing else has changed since.
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
    """Return the program of the runtime scrun in daemon.json; "" if it is unclear, or None."""
    runtimes = _read(text, path).get("runtimes")
    if not isinstance(runtimes, dict) or NAME not in runtimes:
        return None
    there = runtimes[NAME]
    program = there.get("path") if isinstance(there, dict) else None
    return program if isinstance(program, str) and len(there) == 1 else ""


def drop_in(unit: str, program: str) -> str | None:
    """Return what has a unit of rootless docker start it by `scrun outside`, or None."""
    found = _EXEC_START.findall(_GOES_ON.sub(" ", _COMMENT.sub("", unit)))
    if not found:
        return None
    how, command = found[-1]
    quoted = re.sub(r'(["\\])', r"\\\1", program).replace("%", "%%")
    return f'{_MARK}[Service]\nExecStart=\nExecStart={how}"{quoted}" outside {command}\n'


def is_drop_in(text: str) -> bool:
    """Tell whether scrun has made a drop-in."""
    return text.startswith(_MARK)


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
