"""Scripts of plugstack.conf without a container: for `scrun lua check`, and to list their options.

The program prints the options as JSON. It calls `slurm_spank_init`, as `create` does.
"""

import json
import os
import re
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing

import msgspec
import trio

from scrun.cli.parse import Parsed
from scrun.core.errors import SpankError, hint
from scrun.core.output import write
from scrun.core.paths import read_regular
from scrun.settings.file.load import Log, Settings
from scrun.settings.spank.callbacks import CALLBACKS
from scrun.settings.spank.plugstack import Option, PlugstackLine, StackScript
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.create_request import settings_of
from scrun.supervisor.contracts.target import SLURM
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.scripts.spank.around import find
from scrun.supervisor.scripts.spank.items import JobFacts
from scrun.supervisor.scripts.spank.scripts import Context, Scripts, Variables

_PATIENCE = 30.0
_ITS_WORDS = re.compile(rb"\b(slurm_spank_\w+|spank_options|SPANK)\b")


def is_spank(path: str) -> bool:
    """Return whether a script is one for plugstack.conf, and not a scrun.lua, by its words."""
    text = read_regular(path)
    return b"slurm_scrun_" not in text and _ITS_WORDS.search(text) is not None


async def check_spank(
    path: str, settings: Settings, child_env: ChildEnv, directory: str, journal: Journal
) -> None:
    """Load a script, print what it defines; refuse a function that is never called."""
    script = StackScript(path, PlugstackLine("the command line", True, True, "lua.so", path, ()))
    async with _opened(path, [script], settings, child_env, directory, journal) as (_, context):
        [member] = context.members
        _tell(path, settings.lua.version, member.functions, member.options)
        for name in member.unknown:
            raise SpankError(f"{path}: {name}: no such callback{hint(name, CALLBACKS)}")


@asynccontextmanager
async def _opened(
    source: str,
    found: Sequence[StackScript],
    settings: Settings,
    child_env: ChildEnv,
    directory: str,
    journal: Journal,
) -> AsyncIterator[tuple[Scripts, Context]]:
    async with unwrapped() as nursery:
        scripts = Scripts(
            source, found, settings.lua, _PATIENCE, child_env, directory, journal, nursery,
            JobFacts(SLURM),
        )  # fmt: skip
        try:
            yield scripts, await scripts.open("allocator", Variables(child_env.environment))
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


def run(parsed: Parsed, argv: list[str]) -> int:
    """Print the options that the scripts register."""
    del argv
    options = trio.run(_options, settings_of(parsed, os.environ, os.getcwd()))
    write(json.dumps(options).encode())
    return 0


async def _options(settings: Settings) -> list[object]:
    source, found = find(settings)
    if not found:
        return []
    os.umask(umask := os.umask(0o077))
    child_env, here = ChildEnv({**os.environ}, umask), os.getcwd()
    place = tempfile.TemporaryDirectory(prefix="scrun-lua-", ignore_cleanup_errors=True)
    with place as directory, closing(Journal(f"{directory}/log", Log(), "options")) as journal:
        async with _opened(source, found, settings, child_env, here, journal) as opened:
            scripts, context = opened
            await scripts.call(context, "slurm_spank_init")
            return [msgspec.to_builtins(option) for _, option in context.options.values()]
