"""Which options the scripts of plugstack.conf register: for the help, and to read them.

A program of its own. The scripts are loaded and `slurm_spank_init` is called, as `create` does in
the allocator context; standard output has the options, as JSON.
"""

import json
import os
import tempfile

import msgspec
import trio

from scrun.cli.failure import explain
from scrun.cli.parse import parse
from scrun.core.output import write
from scrun.settings.file.load import Log, Settings
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.create_request import settings_of
from scrun.supervisor.contracts.target import SLURM
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.scripts.spank.around import find
from scrun.supervisor.scripts.spank.contexts import Variables
from scrun.supervisor.scripts.spank.phases import Facts
from scrun.supervisor.scripts.spank.scripts import Scripts

_PATIENCE = 30.0


def main(argv: list[str]) -> int:
    """Print them; return the exit status.

    Args:
        argv: Global options of scrun's.
    """
    parsed = None
    try:
        parsed = parse([*argv, "version"])
        options = trio.run(_options, settings_of(parsed, os.environ, os.getcwd()))
    except Exception as error:
        return explain(error, parsed)
    write(json.dumps(options).encode())
    return 0


async def _options(settings: Settings) -> list[object]:
    source, found = find(settings)
    if not found:
        return []
    os.umask(umask := os.umask(0o077))
    child_env = ChildEnv({**os.environ}, umask)
    with tempfile.TemporaryDirectory(prefix="scrun-lua-", ignore_cleanup_errors=True) as place:
        journal = Journal(os.path.join(place, "log"), Log(), "options")
        async with unwrapped() as nursery:
            scripts = Scripts(
                source, found, settings.lua, _PATIENCE, child_env, os.getcwd(), journal, nursery,
                Facts(SLURM),
            )  # fmt: skip
            try:
                context = await scripts.open("allocator", Variables(os.environ))
                await scripts.call(context, "slurm_spank_init")
                return [msgspec.to_builtins(option) for _, option in context.options.values()]
            finally:
                scripts.end()
                journal.close()
