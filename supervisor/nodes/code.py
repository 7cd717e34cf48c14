"""How the shim comes to the node: as text in a command, and modules in the step's environment.

Not by srun's standard input: what is longer than a KiB takes 43 ms more there, because srun waits
for an acknowledgement.

Nothing of ours is installed there. A bare interpreter takes 8 ms; to compile the modules would
take twice as long, so they travel compiled as well, for an interpreter that writes the same
bytecode as ours.
"""

import base64
import functools
import marshal
import os
import sys
import zlib
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from types import CodeType

import msgspec

from scrun.core.paths import packages
from scrun.supervisor.nodes.lean_code import lean

PACKAGE = "scrun.supervisor.shim"
_ABOVE = ("scrun", "scrun.supervisor")  # packages, which are empty there
_UNTIL_HELLO = (
    *("children", "files", "frames", "hello", "json_text", "link"),
    *("loop", "main", "mpi", "processes", "runtime"),
)
_UNTIL_CREATED = (
    *("console", "containers", "dial", "libc", "looks", "making", "memory", "site"),
    *("site_containers", "streams", "targets", "words"),
)
_VARIABLE = 100_000  # characters; the kernel takes 128 KiB


class Sources:
    """Whether shims get their sources, too, half of the code: srun has it in memory four times.

    They do until one did not need them. One that lacks them says so (`NEEDS_SOURCES` of
    `supervisor.nodes.boot`), and then all get them.
    """

    def __init__(self) -> None:
        """Begin without knowing any node."""
        self._needed: bool | None = None

    @property
    def needed(self) -> bool:
        """Whether the next one gets them."""
        return self._needed is not False

    def not_needed_by(self, python: str) -> None:
        """Note that a shim runs, by this version of Python."""
        if self._needed is None and python.split(".")[:2] == [*map(str, sys.version_info[:2])]:
            self._needed = False

    def missed(self) -> None:
        """Note that a shim could not begin without them."""
        self._needed = True


_variables: dict[bool, dict[str, str]] = {}


def known_variables(*, sources: bool) -> dict[str, str] | None:
    """Return what `variables` has returned before."""
    return _variables.get(sources)


def variables(*, sources: bool) -> dict[str, str]:
    """Return variables for the step's environment that carry the code; reads files.

    Args:
        sources: Whether it is for other interpreters than ours, too.

    Raises:
        OSError: Our own modules cannot be read.
    """
    if (known := known_variables(sources=sources)) is None:
        text = base64.b64encode(_code(with_sources=sources)).decode()
        parts = [text[at : at + _VARIABLE] for at in range(0, len(text), _VARIABLE)]
        known = {f"SCRUN_SHIM_{number}": part for number, part in enumerate(parts)}
        _variables[sources] = known
    return known


def _code(*, with_sources: bool) -> bytes:
    """Return the code.

    That is a line of words: the length of the sources, the version of our bytecode in hexadecimal,
    and lengths. Then, compressed by zlib, the sources by their modules' names as JSON (or
    nothing), and the same compiled, by `marshal`: the modules until hello, those for a container,
    and the others. All of these but the last have those lengths before they are compressed.
    """
    text = zlib.compress(msgspec.json.encode(_sources())) if with_sources else b""
    parts = _compiled()
    words = (len(text), MAGIC_NUMBER.hex(), *map(len, parts[:-1]))
    return " ".join(map(str, words)).encode() + b"\n" + text + zlib.compress(b"".join(parts))


def _files() -> dict[str, str]:
    """Return the shim's files by the names of their modules."""
    folder = os.path.join(packages(), *PACKAGE.split("."))
    stems = sorted(file.removesuffix(".py") for file in os.listdir(folder) if file.endswith(".py"))
    return {
        PACKAGE if stem == "__init__" else f"{PACKAGE}.{stem}": os.path.join(folder, f"{stem}.py")
        for stem in stems
    }


def _sources() -> dict[str, str]:
    sources = dict.fromkeys(_ABOVE, "")
    for name, path in _files().items():
        with open(path, encoding="utf-8") as source:
            sources[name] = source.read()
    return sources


@functools.cache
def _compiled() -> list[bytes]:
    """Return the modules in the order in which they are needed; see `part_of`."""
    compiled = {name: compile("", name, "exec", dont_inherit=True) for name in _ABOVE}
    for name, path in _files().items():
        code = SourceFileLoader(name, path).get_code(name)  # from its cache
        assert code is not None
        compiled[name] = lean(code)
    parts: list[dict[str, CodeType]] = [{}, {}, {}]
    for name, code in compiled.items():
        parts[part_of(name)][name] = code
    return [marshal.dumps(part) for part in parts]


def part_of(name: str) -> int:
    """Return when a module is needed: 0 before hello, 1 for each container, 2 for some.

    To decompress all takes 2 ms, for which a container would wait.
    """
    package, _, stem = name.rpartition(".")
    if package != PACKAGE or stem in _UNTIL_HELLO:
        return 0
    return 1 if stem in _UNTIL_CREATED else 2
