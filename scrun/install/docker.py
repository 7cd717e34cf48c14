"""Docker's daemon.json, with scrun among its runtimes. Pure.

dockerd(8), "Daemon configuration file": `runtimes` is an object of objects, `path` is the
program, `default-runtime` a name in it. Both are read again at SIGHUP.
"""

import json

from scrun.core.errors import SettingsError
from scrun.install import jsontext

NAME = "scrun"


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
    if text is None:
        return _new(program, default=default)
    content = jsontext.check(text, path)
    entry = {"path": program}
    runtimes = content.get("runtimes")
    if runtimes is None and "runtimes" not in content:
        text = jsontext.insert(text, jsontext.begin(text), "runtimes", {NAME: entry})
    elif not isinstance(runtimes, dict):
        raise SettingsError(f"{path}: runtimes: not an object; put that right first")
    elif runtimes.get(NAME) != entry:
        start = _runtimes(text)
        if old := jsontext.member(text, start, NAME):
            text = text[: old.value] + json.dumps(entry) + text[old.end :]
        else:
            text = jsontext.insert(text, start, NAME, entry)
    there = content.get("default-runtime")
    if default and there is None:
        text = jsontext.insert(text, jsontext.begin(text), "default-runtime", NAME)
    elif default and there != NAME:
        raise SettingsError(f"{path}: default-runtime is {there!r}; remove that line first")
    return text


def remove(text: str, path: str) -> str | None:
    """Return daemon.json without the runtime; None: without it there would be no file.

    Raises:
        SettingsError: The text is not what dockerd would read.
    """
    program = entry(text, path)
    if program is None:
        return text
    if text in (_new(program, default=False), _new(program, default=True)):
        return None
    start = jsontext.begin(text)
    if jsontext.check(text, path).get("default-runtime") == NAME:
        text, _ = jsontext.remove(text, start, "default-runtime")  # it would name nothing
    text, ours = jsontext.remove(text, _runtimes(text), NAME)
    return jsontext.remove(text, start, "runtimes")[0] if ours else text


def entry(text: str, path: str) -> str | None:
    """Return the program that daemon.json calls scrun; "" if that is unclear, None for none.

    Raises:
        SettingsError: The text is not what dockerd would read.
    """
    runtimes = jsontext.check(text, path).get("runtimes")
    if not isinstance(runtimes, dict) or NAME not in runtimes:
        return None
    there = runtimes[NAME]
    program = there.get("path") if isinstance(there, dict) else None
    return program if isinstance(program, str) and len(there) == 1 else ""


def _runtimes(text: str) -> int:
    found = jsontext.member(text, jsontext.begin(text), "runtimes")
    assert found is not None
    return found.value


def _new(program: str, *, default: bool) -> str:
    """Write a whole file. Two blanks, where `jsontext.insert` takes four: so `remove` knows it."""
    content: dict[str, object] = {"runtimes": {NAME: {"path": program}}}
    if default:
        content["default-runtime"] = NAME
    return json.dumps(content, indent=2) + "\n"
