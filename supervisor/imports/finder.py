"""Finds modules where they are known to be.

The interpreter's own finder lists each folder, tries five endings for each module, and takes the
names of its files apart: a third of what an import costs that reads compiled code. This one looks
for one file; what it does not find, or is not up to date, is left to that of the interpreter.
"""

import _imp
import importlib.machinery
import importlib.util
import marshal
import posix
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

_PACKAGES = frozenset(
    ("daemon", "msgspec", "outcome", "scrun", "sniffio", "sortedcontainers", "trio")
)
_HEADER = 16  # of compiled code: the version of the bytecode, flags, the source's time and size
_32_BITS = 0xFFFFFFFF


def install() -> None:
    """Have modules found so from now on, unless the interpreter was told to do it otherwise."""
    if (
        sys.flags.optimize
        or sys.pycache_prefix is not None
        or sys.implementation.cache_tag is None
    ):
        return
    if PathFinder in sys.meta_path:
        # built-in modules come before files
        sys.meta_path.insert(sys.meta_path.index(PathFinder), Finder)


class Finder:
    """See the module."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the standard library, or of a package that we know."""
        top, _, below = name.partition(".")
        if path is None:
            if top not in sys.stdlib_module_names:
                return None
            folder = _STANDARD
        elif top in _PACKAGES or top in sys.stdlib_module_names:
            if len(path) != 1:
                return None
            folder = path[0]
            below = name.rpartition(".")[2]
        else:
            return None
        stem = below or top
        found = _read(name, folder, stem)
        if found is None and (found := _read(name, f"{folder}/{stem}", "__init__")) is not None:
            found.submodule_search_locations = [f"{folder}/{stem}"]
        return found


class _Loader(SourceFileLoader):
    """Has the code already."""

    code: CodeType | None

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code; a second time it is read again."""
        code, self.code = self.code, None
        return super().get_code(fullname) if code is None else code


def _read(name: str, folder: str, stem: str) -> ModuleSpec | None:
    """Read a module's compiled code; None if there is none, or it is not up to date."""
    source, compiled = f"{folder}/{stem}.py", f"{folder}/__pycache__/{stem}{_ENDING}"
    try:
        status = posix.stat(source)
        fd = posix.open(compiled, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = posix.read(fd, posix.fstat(fd).st_size)
    finally:
        posix.close(fd)
    seconds, size = int(status.st_mtime) & _32_BITS, status.st_size & _32_BITS
    times = seconds.to_bytes(4, "little") + size.to_bytes(4, "little")
    if data[:_HEADER] != _BEGINNING + times:
        return None
    try:
        code = marshal.loads(memoryview(data)[_HEADER:])
    except (EOFError, TypeError, ValueError):
        return None
    _imp._fix_co_filename(code, source)  # type: ignore[attr-defined]
    loader = _Loader(name, source)
    loader.code = code
    spec = ModuleSpec(name, loader, origin=source)
    spec.has_location = True
    spec.cached = compiled
    return spec


_STANDARD: str = vars(sys)["_stdlib_dir"] or ""
_ENDING = f".{sys.implementation.cache_tag}.pyc"
_BEGINNING = importlib.util.MAGIC_NUMBER + bytes(4)  # and no flags
