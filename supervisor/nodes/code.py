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
import zlib
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from types import CodeType

import msgspec

from scrun.core.paths import packages

PACKAGE = "scrun.supervisor.shim"
_VARIABLE = 100_000  # characters; the kernel takes 128 KiB


@functools.cache
def variables() -> dict[str, str]:
    """Return variables for the step's environment that carry the code; reads files.

    Raises:
        OSError: Our own modules cannot be read.
    """
    text = base64.b64encode(_code()).decode()
    parts = [text[at : at + _VARIABLE] for at in range(0, len(text), _VARIABLE)]
    return {f"SCRUN_SHIM_{number}": part for number, part in enumerate(parts)}


def _code() -> bytes:
    """Return the code.

    That is a line with two words: the length of the first part, and the version of our bytecode
    in hexadecimal. Then, compressed by zlib, the sources by their modules' names as JSON, and the
    same compiled, by `marshal`.
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
    text = zlib.compress(msgspec.json.encode(sources))
    line = f"{len(text)} {MAGIC_NUMBER.hex()}\n"
    return line.encode() + text + zlib.compress(marshal.dumps(compiled))
