"""Imports trio and msgspec without what they import and a supervisor has no use for.

Of a supervisor's start its imports take nine tenths; a user's first container waits for them
(docs/decisions/first-container.md).
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CoroutineType, ModuleType
from typing import Any

from scrun.supervisor.core.later import Later, postpone
from scrun.supervisor.imports import classes

_LATER = (
    *("ssl", "hmac"),  # and with them OpenSSL, for what we do not use of trio: 4.9 MiB
    *("bz2", "lzma"),  # shutil looks only whether they are there
    "_colorize",  # traceback has it since Python 3.13, and with it dataclasses since 3.14
    *("ipaddress", "locale", "textwrap", "tokenize"),
)


def postpone_modules() -> None:
    """Have modules imported when they are used which others import in vain."""
    known = [name for name in _LATER if name in sys.stdlib_module_names]
    postpone(*known, packages=["idna"])


def import_libraries() -> None:
    """Import msgspec and trio."""
    with _instead({"typing_extensions": None}):  # what msgspec looks for is in `typing`, too
        importlib.import_module("msgspec")
    _import_trio()


def _import_trio() -> None:
    """Import trio with what stands for attrs; if it needs more of that, with attrs."""
    before = {*sys.modules}
    if not before.isdisjoint(("attr", "attrs", "outcome", "trio")):
        importlib.import_module("trio")
        return
    with _no_search_for_a_library():
        try:
            with _instead({**classes.modules(), "inspect": _inspect()}):
                importlib.import_module("trio")
        except Exception:
            for name in {*sys.modules} - before:
                if name.partition(".")[0] in ("outcome", "trio"):
                    del sys.modules[name]
            importlib.import_module("trio")


@contextmanager
def _instead(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Have other modules stand for some that are not imported yet."""
    mine = {name: it for name, it in modules.items() if name not in sys.modules}
    sys.modules.update(mine)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, it in mine.items():
            if sys.modules.get(name, _ABSENT) is it:
                del sys.modules[name]


_ABSENT: Any = object()


def _inspect() -> ModuleType:
    """Return what trio needs of `inspect` for each call in a thread, and for each lock.

    The whole of it takes 5 ms, because it examines source code as well.
    """
    module = Later("inspect")

    def getcoroutinestate(coroutine: "CoroutineType[object, object, object]") -> str:
        if coroutine.cr_running:
            return "CORO_RUNNING"
        if coroutine.cr_suspended:
            return "CORO_SUSPENDED"
        return "CORO_CREATED" if coroutine.cr_frame is not None else "CORO_CLOSED"

    vars(module).update(
        cleandoc=lambda text: text,  # for the docstrings of trio.Path
        iscoroutine=lambda thing: isinstance(thing, CoroutineType),
        getcoroutinestate=getcoroutinestate,
        CORO_CLOSED="CORO_CLOSED",
    )
    return module


@contextmanager
def _no_search_for_a_library() -> Iterator[None]:
    """Tell trio where pthread_setname_np is, for which it would call ldconfig."""
    if "ctypes.util" in sys.modules:
        yield
        return
    import ctypes

    util = ModuleType("ctypes.util")
    vars(util).update(find_library=lambda _: "libc.so.6")
    vars(ctypes)["util"] = util
    with _instead({"ctypes.util": util}):
        yield
    del vars(ctypes)["util"]


class _PatternLater:
    """A regular expression that is compiled when it is used."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._arguments = pattern, flags

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        pattern = _compile(*self._arguments)
        vars(self).update({name: getattr(pattern, name) for name in _MEMBERS})
        return getattr(pattern, name)


_compile: Callable[..., object] = re.compile
_MEMBERS = [name for name in dir(re.Pattern) if not name.startswith("__")]


@contextmanager
def patterns_later() -> Iterator[None]:
    """Have modules that are imported now compile their regular expressions when they use them."""

    def compile_later(pattern: str | bytes, flags: int = 0) -> _PatternLater:
        return _PatternLater(pattern, flags)

    vars(re)["compile"] = compile_later
    try:
        yield
    finally:
        vars(re)["compile"] = _compile
