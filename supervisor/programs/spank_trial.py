"""scrun lua check of a script for plugstack.conf: it is loaded, and no more."""

import re
from collections.abc import Mapping, Sequence

import trio

from scrun.core.errors import SpankError, closest
from scrun.core.output import write
from scrun.core.paths import read_regular
from scrun.settings.file.load import Settings
from scrun.settings.spank.callbacks import CALLBACKS
from scrun.settings.spank.plugin_options import Option
from scrun.settings.spank.plugstack import Line, StackScript
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.target import SLURM
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.scripts.spank.contexts import Variables
from scrun.supervisor.scripts.spank.phases import Facts
from scrun.supervisor.scripts.spank.scripts import Scripts

_PATIENCE = 30.0
_ITS_WORDS = re.compile(rb"\b(slurm_spank_\w+|spank_options|SPANK)\b")


def is_spank(path: str) -> bool:
    """Whether a script is one of plugstack.conf's, and no scrun.lua: by its words.

    Raises:
        OSError: It cannot be read.
    """
    text = read_regular(path)
    return b"slurm_scrun_" not in text and _ITS_WORDS.search(text) is not None


async def check_spank(
    path: str, settings: Settings, child_env: ChildEnv, directory: str, journal: Journal
) -> None:
    """Load a script, and tell what it defines.

    Raises:
        SpankError: It cannot be loaded, or has a function that nobody calls.
    """
    script = StackScript(path, Line("the command line", True, True, "lua.so", path, ()))
    async with trio.open_nursery() as nursery:
        scripts = Scripts(
            path, [script], settings.lua, _PATIENCE, child_env, directory, journal, nursery,
            Facts(SLURM),
        )  # fmt: skip
        try:
            context = await scripts.open("allocator", Variables(child_env.environment))
            [member] = context.members
            _tell(path, settings.lua.version, member.functions, member.options)
            for name in member.unknown:
                close = closest(name, CALLBACKS)
                hint = f" (is it {close}?)" if close else ""
                raise SpankError(f"{path}: {name}: is no function that is ever called{hint}")
        finally:
            scripts.end()


def _tell(
    path: str, version: str, functions: Sequence[str], options: Mapping[str, Option]
) -> None:
    lines = [f"{path}: loaded by Lua {version}"]
    lines += [f"{name}: defined" for name in functions]
    lines += [f"option --{name}: {option.usage}" for name, option in options.items()]
    if "slurm_spank_init" in functions:
        lines.append("slurm_spank_init is not called: it may register more options")
    write("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))
