"""The shim's code, and how it gets to the node, on which nothing of ours is installed.

What connects to us travels in the step's environment, and the rest over that connection. All in
the environment would be there as soon, but srun has that in memory four times, for as long as the
container lives. Over srun's standard input, what is longer than a KiB takes 43 ms more: srun waits
for an acknowledgement.

A bare interpreter takes 8 ms; to compile the modules would take twice as long. So they travel
compiled, to an interpreter that writes the same bytecode as ours, and else as sources. Docstrings
and columns stay in: to take them out makes a user's first container wait for 20 ms.
"""

import base64
import functools
import marshal
import os
import zlib
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from types import CodeType

import msgspec

from scrun.core.paths import packages
from scrun.supervisor.children.processes import SYSTEM_PATH
from scrun.supervisor.wire.frames import sum_of

LACKS_PYTHON = ("there is no Python on this node", "scrun needs Python 3.6 or newer on the node")
"""What is said where no shim will ever run, unless somebody installs something."""

BOOT = r"""
import sys
if sys.version_info < (3, 6):
    sys.exit("scrun needs Python 3.6 or newer on the node, this is %d.%d" % sys.version_info[:2])
import _frozen_importlib, _frozen_importlib_external, _signal, binascii, marshal, os, zlib

told = []
for name in "HUP", "INT", "QUIT", "USR1", "USR2":
    _signal.signal(getattr(_signal, "SIG" + name), lambda number, _: told.append(number))

class Modules:
    known = {}
    sizes = []

    def add(self, given):
        line, _, self.left = given.partition(b"\n")
        self.sizes = [int(size) for size in line.split()]
        self.rest = zlib.decompressobj()
        if not self.sizes:
            import json
            self.known.update(json.loads(self.rest.decompress(self.left).decode()))

    def find_spec(self, name, path=None, target=None):
        while self.sizes and name.startswith("scrun") and name not in self.known:
            part = self.rest.decompress(self.left, self.sizes.pop(0))
            self.left = self.rest.unconsumed_tail
            self.known.update(marshal.loads(part))
        if name in self.known:
            package = name + "." in " ".join(self.known)
            return _frozen_importlib.ModuleSpec(name, self, is_package=package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        code = self.known[module.__name__]
        if isinstance(code, str):
            code = compile(code, module.__name__, "exec", dont_inherit=True)
        exec(code, module.__dict__)

given = binascii.a2b_base64(os.environ.pop("SCRUN_SHIM", ""))
if not given:
    sys.exit("SCRUN_SHIM did not reach the node: does the site clear the environment?")
line, _, given = given.partition(b"\n")
python, length = line.decode().split()
magic = _frozen_importlib_external.MAGIC_NUMBER.hex()
modules = Modules()
modules.add(given[:int(length)] if python == magic else given[int(length):])
sys.meta_path.insert(0, modules)
from scrun.supervisor.shim.arrival import arrive
arrive(modules.add, magic, told)
"""

_SHELL = f"""PATH=${{PATH:-{SYSTEM_PATH}}}
export PATH
for python in python3 /usr/libexec/platform-python; do
    command -v "$python" >/dev/null 2>&1 && exec "$python" -I -S -X utf8 -c "$0"
done
echo "there is no Python on this node" >&2
exit 127"""


def boot_command() -> list[str]:
    """Return the command of the step that becomes the shim."""
    return ["/bin/sh", "-c", _SHELL, BOOT]


PACKAGE = "scrun.supervisor.shim"
OURS = MAGIC_NUMBER.hex()
_FOLDERS = (PACKAGE, "scrun.supervisor.wire")
_PACKAGES = ("scrun", "scrun.supervisor", *_FOLDERS)  # they are empty there
# zlib's best level takes 80 ms for the code of the connection, of a user's first container;
# this one takes 5, for 8 % more
_SMALL, _FAST = 6, 4
_FIRST = ("arrival", "dial", "frames", "json_text")
_UNTIL_HELLO = (
    *("children", "files", "link", "loop", "main", "mpi", "processes", "processor", "runtime"),
    *("seals", "slurm_signals"),
)
_UNTIL_CREATED = (
    *("console", "containers", "libc", "making", "site", "site_containers", "streams"),
    *("targets", "usage"),
)


@functools.cache
def variables() -> dict[str, str]:
    """Return the variable for the step's environment; reads files, also for what `code` returns.

    It is in base64: a line with the version of our bytecode in hexadecimal, and a length; modules
    as `code` has them, compiled, of that length; the same as sources. Raises OSError if our own
    modules cannot be read.
    """
    first, *others = _compiled()
    _codes[True] = _packed(others, _FAST)
    compiled, sources = _packed([first], _SMALL), _packed_sources(first=True)
    line = f"{OURS} {len(compiled)}\n".encode()
    sums()
    return {"SCRUN_SHIM": base64.b64encode(line + compiled + sources).decode()}


def code(python: str) -> bytes:
    """Return the code that is not in the environment; reads files.

    That is a line of numbers, and, compressed by zlib, dictionaries of modules by `marshal`: those
    until hello, those for a container, and the others. The numbers are the lengths of these before
    they are compressed, and 0 for the last. Or the line is empty, and sources follow, as JSON.

    Args:
        python: The version of the bytecode of the node's Python, in hexadecimal.

    Raises:
        OSError: Our own modules cannot be read.
    """
    if (found := known_code(python)) is None:
        compiled = python == OURS
        found = _packed(_compiled()[1:], _FAST) if compiled else _packed_sources(first=False)
        _codes[compiled] = found
    return found


@functools.cache
def sums() -> tuple[str, str]:
    """Return the digests of what `code` returns, for our bytecode and others; reads files."""
    ours, others = (sum_of(code(python)) for python in (OURS, ""))
    return ours, others


_codes: dict[bool, bytes] = {}


def known_code(python: str) -> bytes | None:
    """Return what `code` has returned before."""
    return _codes.get(python == OURS)


def _packed(parts: list[bytes], level: int) -> bytes:
    sizes = (*map(len, parts[:-1]), 0)
    return " ".join(map(str, sizes)).encode() + b"\n" + zlib.compress(b"".join(parts), level)


def _packed_sources(*, first: bool) -> bytes:
    level = _SMALL if first else _FAST  # those are in srun's environment
    return b"\n" + zlib.compress(msgspec.json.encode(_sources(first=first)), level)


def _files() -> dict[str, str]:
    """Return the shim's files by the names of their modules."""
    return {
        f"{package}.{file.removesuffix('.py')}": os.path.join(folder, file)
        for package in _FOLDERS
        for folder in [os.path.join(packages(), *package.split("."))]
        for file in sorted(os.listdir(folder))
        if file.endswith(".py") and file != "__init__.py"
    }


def _sources(*, first: bool) -> dict[str, str]:
    sources = dict.fromkeys(_PACKAGES, "") if first else {}
    for name, path in _files().items():
        if (part_of(name) == 0) is first:
            with open(path, encoding="utf-8") as source:
                sources[name] = source.read()
    return sources


def _compiled() -> list[bytes]:
    """Return the modules in the order in which they are needed; see `part_of`."""
    parts: list[dict[str, CodeType]] = [{}, {}, {}, {}]
    for name in _PACKAGES:
        parts[0][name] = compile("", name, "exec", dont_inherit=True)
    for name, path in _files().items():
        found = SourceFileLoader(name, path).get_code(name)  # from its cache
        assert found is not None
        parts[part_of(name)][name] = found
    return [marshal.dumps(part) for part in parts]


def part_of(name: str) -> int:
    """Return when a module is needed: 0 to connect, 1 before hello, 2 for a container, 3 for some.

    To decompress all takes 2 ms, for which a container would wait.
    """
    stem = name.rpartition(".")[2]
    return next((at for at, stems in enumerate(_WHEN) if stem in stems), len(_WHEN))


_WHEN = (_FIRST, _UNTIL_HELLO, _UNTIL_CREATED)
