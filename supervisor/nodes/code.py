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

import msgspec

from scrun.core.paths import packages
from scrun.supervisor.nodes.lean_code import lean

PACKAGE = "scrun.supervisor.shim"
_ABOVE = ("scrun", "scrun.supervisor")  # packages, which are empty there
_UNTIL_HELLO = (
    *("children", "files", "frames", "hello", "json_text", "link"),
    *("loop", "main", "mpi", "processes", "runtime"),
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


@functools.cache
def variables(*, sources: bool) -> dict[str, str]:
    """Return variables for the step's environment that carry the code; reads files.

    Args:
        sources: Whether it is for other interpreters than ours, too.

    Raises:
        OSError: Our own modules cannot be read.
    """
    text = base64.b64encode(_code(with_sources=sources)).decode()
    parts = [text[at : at + _VARIABLE] for at in range(0, len(text), _VARIABLE)]
    return {f"SCRUN_SHIM_{number}": part for number, part in enumerate(parts)}


def _code(*, with_sources: bool) -> bytes:
    """Return the code.

    That is a line with three words: the length of the first part, the version of our bytecode in
    hexadecimal, and a length. Then, compressed by zlib, the sources by their modules' names as
    JSON (or nothing), and the same compiled, by `marshal`: first the modules until hello, which
    have that length before they are compressed, then the others.
    """
    text = zlib.compress(msgspec.json.encode(_sources())) if with_sources else b""
    first, later = _compiled()
    line = f"{len(text)} {MAGIC_NUMBER.hex()} {len(first)}\n"
    return line.encode() + text + zlib.compress(first + later)


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
def _compiled() -> tuple[bytes, bytes]:
    """Return the modules until hello, and the others."""
    compiled = {name: compile("", name, "exec", dont_inherit=True) for name in _ABOVE}
    for name, path in _files().items():
        code = SourceFileLoader(name, path).get_code(name)  # from its cache
        assert code is not None
        compiled[name] = lean(code)
    first = {name: compiled[name] for name in compiled if is_first(name)}
    later = {name: compiled[name] for name in compiled if name not in first}
    return marshal.dumps(first), marshal.dumps(later)


def is_first(name: str) -> bool:
    """Tell whether a module is imported before hello.

    To decompress all takes 4 ms, which is done while the supervisor hears of it.
    """
    return name.rpartition(".")[0] != PACKAGE or name.rpartition(".")[2] in _UNTIL_HELLO
