"""What `scrun map` runs: a container for each line of a file.

A line has the words of `scrun run`, or only arguments of an image; or it is a JSON object.
"""

import hashlib
import json
import os
import shlex
from typing import Any

from scrun.cli.grammar import is_image
from scrun.cli.parse import parse
from scrun.core.errors import UsageError
from scrun.core.paths import LIMIT

_REQUESTS = {
    "cpus": "cpus-per-task", "gpus": "gpus", "mem": "mem", "nodes": "nodes", "ntasks": "ntasks",
    "partition": "partition", "time": "time",
}  # fmt: skip
_KEYS: dict[str, tuple[type, str]] = {
    "image": (str, "an image, or --image names one"),
    "args": (list, "a list of strings"),
    "env": (dict, "an object with strings"),
    "requests": (dict, "an object with strings or numbers"),
}
_NO_IMAGE = "{0} does not name an image: write docker://{0}, or ./{0} for a directory"
_LONGEST = 128 * 1024
"""Bytes of a word of a command, with its NUL: MAX_ARG_STRLEN of execve(2)."""

Tasks = dict[int, list[str]]
"""By the number of its line, the words after `run` of each."""


def read_tasks(file: str, image: str | None) -> Tasks:
    """Read the lines of a file (`-`: standard input); empty lines and comments are left out."""
    with open(0 if file == "-" else file, "rb", closefd=file != "-") as source:
        content = source.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise UsageError(f"{file}: has more than {LIMIT >> 20} MiB: divide it")
    if image is not None and not is_image("run", image):
        raise UsageError("map: --image: " + _NO_IMAGE.format(image))
    tasks = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        text = os.fsdecode(line).strip()
        try:
            words = _of_object(text, image) if text[:1] == "{" else _of_words(text, image)
            if words:
                _check(words)
                tasks[number] = words
        except (ValueError, RecursionError, UsageError) as error:
            raise UsageError(f"{file}, line {number}: {error}") from None
    return tasks


def _of_words(text: str, image: str | None) -> list[str]:
    words = shlex.split(text, comments=True)
    return [image, *words] if words and image is not None else words


def _of_object(text: str, image: str | None) -> list[str]:
    found: dict[str, Any] = {
        "image": image,
        "args": [],
        "env": {},
        "requests": {},
        **json.loads(text),
    }
    if unknown := found.keys() - _KEYS.keys():
        raise ValueError(f"{min(unknown)!r} is unknown: use {', '.join(_KEYS)}")
    for name, (kind, what) in _KEYS.items():
        value = found[name]
        each = value.values() if isinstance(value, dict) else value
        if not isinstance(value, kind) or not all(type(one) in (str, int) for one in each):
            raise ValueError(f"{name!r} has to be {what}")
    if not is_image("run", image := found["image"]):
        raise ValueError(_NO_IMAGE.format(image))
    if unknown := found["requests"].keys() - _REQUESTS.keys():
        raise ValueError(f"request {min(unknown)!r} is unknown: use {', '.join(_REQUESTS)}")
    words = [f"--{_REQUESTS[name]}={value}" for name, value in found["requests"].items()]
    words += [f"--env={name}={value}" for name, value in found["env"].items()]
    return [*words, image, *map(str, found["args"])]


def _check(words: list[str]) -> None:
    for word in words:
        if "\0" in word or len(os.fsencode(word)) >= _LONGEST:
            raise ValueError("a word has a NUL, or is too long")
    try:
        found = parse(["run", *words])
    except UsageError as error:
        if error.left is None:
            raise
        return  # an option of a site's script, which `run` knows
    if found.command != "run" or found.count("detach"):
        raise ValueError("only `run` is possible here, without --detach")


def digest(words: list[str]) -> str:
    """Tell lines apart."""
    return hashlib.sha256(b"\0".join(map(os.fsencode, words))).hexdigest()[:16]
