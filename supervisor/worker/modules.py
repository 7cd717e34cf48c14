"""The search path of `require`: the directories of a site's packages, as in the site's own Lua.

lupa's Lua searches /usr/local only. Debian, Fedora and SUSE install modules in /usr/share/lua, and
those in C in the directory of the libraries.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSIONS = ("5.1", "5.2", "5.3", "5.4", "5.5")

# Functions of Lua 5.1, with which Slurm is mostly built, that later versions lack.
_OF_5_1 = frozenset(
    ("unpack", "setfenv", "getfenv", "loadstring", "module", "seeall", "loaders", "getn", "setn",
     "maxn", "foreach", "foreachi", "gfind", "pow", "log10", "ldexp", "frexp", "cosh", "sinh",
     "tanh", "mod")
)  # fmt: skip
_NIL = re.compile(
    r"\(\w+ '(\w+)'\)|\b(?:global|field|method|local|upvalue) '(\w+)' \(a nil value\)"
)
_MISSING = re.compile(r"module '([\w.-]+)' not found")
_NO_INTEGER = "number has no integer representation"


def search_path(built_in: str, variable: str | None, entries: tuple[str, ...]) -> str:
    """Return the entries that `require` searches.

    Relative entries are removed unless LUA_PATH or LUA_CPATH has them: `create` may be called in a
    directory whose files belong to anybody. Without `;;` the variable replaces the default.
    """
    wanted = (variable or "").split(";")
    if variable is not None and ";;" not in variable:
        return built_in
    kept = [entry for entry in built_in.split(";") if entry[:1] == "/" or entry in wanted]
    return ";".join(dict.fromkeys((*kept, *entries)))


def path(built_in: str, version: str, environment: Mapping[str, str]) -> str:
    """Return the value of package.path."""
    directory = f"/usr/share/lua/{version}"
    entries = (f"{directory}/?.lua", f"{directory}/?/init.lua")
    return search_path(built_in, _variable("LUA_PATH", version, environment), entries)


def cpath(built_in: str, version: str, environment: Mapping[str, str], libraries: str) -> str:
    """Return the value of package.cpath; `libraries` is the directory of system libraries."""
    entries = tuple(f"{directory}/lua/{version}/?.so" for directory in (libraries, "/usr/lib"))
    return search_path(built_in, _variable("LUA_CPATH", version, environment), entries)


def library_directory(maps: str = "/proc/self/maps") -> str:
    """Return the directory of the system libraries: that of the libc in use."""
    try:
        with open(maps, encoding="utf-8", errors="replace") as file:
            for line in file:
                name = line.rstrip().rpartition(" ")[2]
                if os.path.basename(name).startswith(("libc.so", "libc-2")):
                    directory = os.path.dirname(name)
                    return directory if directory.startswith("/usr/") else f"/usr{directory}"
    except OSError:
        pass
    return "/usr/lib"


def advice(reason: str, version: str, shared: str = "/usr/share/lua") -> str:
    """Return which version of Lua a script needs, if its error message tells; after a space.

    `shared` has the system's packages, with one subdirectory per version.
    """
    remedy = 'version = "{}" in the section [lua] of scrun.toml'
    missing = _MISSING.search(reason)
    if missing:
        files = [f"{missing[1].replace('.', '/')}{end}" for end in (".lua", "/init.lua")]
        others = [
            other
            for other in VERSIONS
            if any(os.path.exists(os.path.join(shared, other, file)) for file in files)
        ]
        if not others or version in others:
            return ""
        return f" (it is installed for Lua {', '.join(others)}: {remedy.format(others[-1])})"
    if version == "5.1":
        return ""
    name = next((first or second for first, second in _NIL.findall(reason)), "")
    if "nil value" in reason and name in _OF_5_1:
        return f" (Lua {version} has no {name}, Lua 5.1 has: {remedy.format('5.1')})"
    if _NO_INTEGER in reason:
        return f" (Lua 5.1 rounds such a number: {remedy.format('5.1')})"
    return ""


def _variable(name: str, version: str, environment: Mapping[str, str]) -> str | None:
    versioned = f"{name}_{version.replace('.', '_')}"
    return environment.get(versioned if versioned in environment else name)
