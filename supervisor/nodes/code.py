"""How the shim comes to the node: as text in a command, and modules on its standard input.

Nothing of ours is installed there. A bare interpreter takes 8 ms; to compile the modules would
take twice as long, so they travel compiled as well, for an interpreter that writes the same
bytecode as ours.
"""

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

PACKAGE = "scrun.supervisor.shim"

BOOT = r"""
import sys
if sys.version_info < (3, 6):
    sys.exit("scrun needs Python 3.6 or newer on the node, this is %d.%d" % sys.version_info[:2])
import _frozen_importlib, _frozen_importlib_external, marshal, os, zlib

def take(count):
    parts = []
    while count:
        part = os.read(0, count)
        if not part:
            sys.exit(0)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)

line = b""
while not line.endswith(b"\n"):
    line += take(1)
sources, compiled, magic = line.split()
sources, compiled = take(int(sources)), take(int(compiled))
ours = _frozen_importlib_external.MAGIC_NUMBER.hex()
if magic.decode() == ours:
    modules = marshal.loads(zlib.decompress(compiled))
else:
    import json
    modules = json.loads(zlib.decompress(sources).decode())

class Modules:
    def find_spec(self, name, path=None, target=None):
        if name in modules:
            package = name + "." in " ".join(modules)
            return _frozen_importlib.ModuleSpec(name, self, is_package=package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        code = modules[module.__name__]
        if isinstance(code, str):
            code = compile(code, module.__name__, "exec", dont_inherit=True)
        exec(code, module.__dict__)

sys.meta_path.insert(0, Modules())
from scrun.supervisor.shim.main import main
main()
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


@functools.cache
def code() -> bytes:
    """Return what is to be sent first to the step's standard input; reads files.

    That is a line with three words: the lengths of two parts, and the version of our bytecode, in
    hexadecimal. Then, compressed by zlib, the sources by their modules' names as JSON, and the
    same compiled, by `marshal`.

    Raises:
        OSError: Our own modules cannot be read.
    """
    folder = os.path.join(packages(), *PACKAGE.split("."))
    sources: dict[str, str] = {"scrun": "", "scrun.supervisor": ""}
    compiled: dict[str, CodeType | None] = {
        name: compile("", name, "exec", dont_inherit=True) for name in sources
    }
    for file in sorted(os.listdir(folder)):
        stem, end = os.path.splitext(file)
        if end != ".py":
            continue
        name = PACKAGE if stem == "__init__" else f"{PACKAGE}.{stem}"
        path = os.path.join(folder, file)
        with open(path, encoding="utf-8") as source:
            sources[name] = source.read()
        compiled[name] = SourceFileLoader(name, path).get_code(name)  # from its cache
    parts = [
        zlib.compress(part) for part in (msgspec.json.encode(sources), marshal.dumps(compiled))
    ]
    line = f"{len(parts[0])} {len(parts[1])} {MAGIC_NUMBER.hex()}\n"
    return line.encode() + b"".join(parts)
