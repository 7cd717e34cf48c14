"""The supervisor's side of a scrun.lua, which runs in a worker (see `process`)."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from scrun.core.errors import StagingError
from scrun.settings.file.load import Lua
from scrun.settings.script import ScriptSite
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.scripts.process import Remote, Worker, working

_LOADING = 30.0


class StagingScript:
    """A loaded script, in its worker, and functions that are missing."""

    def __init__(self, path: str, worker: Worker) -> None:
        self.path = path
        self.missing: tuple[str, ...] = ()
        self._worker = worker

    async def load(self, settings: Lua, site: ScriptSite) -> None:
        numbers = str(settings.memory << 20), str(settings.output_limit << 20)
        trusted = ",".join(map(str, site.trusted))
        with trio.move_on_after(_LOADING):
            missing = await self._worker.ask(
                "load", settings.version, *numbers, self.path, site.cluster, trusted,
                until=b"loaded",
            )  # fmt: skip
            self.missing = tuple(os.fsdecode(name) for name in missing)
            return
        raise self._worker.failure(f"was not loaded within {_LOADING:g} s")

    def check_complete(self) -> None:
        if len(self.missing) == 1:
            raise self._worker.failure(f"function {self.missing[0]} is missing")
        if self.missing:
            raise self._worker.failure(f"functions {' and '.join(self.missing)} are missing")

    async def call(
        self,
        function: str,
        arguments: Sequence[str | int | None],
        originals: tuple[str, str],
        environment: Mapping[str, str],
        remote: Remote,
    ) -> tuple[str, str]:
        """Call one of its functions; return what it has set as paths of bundle and root, or "".

        Of the arguments None stands for the list of the variables. `originals` are the bundle and
        its root file system; `environment` is the job's, also for the script's commands.
        """
        entries = [f"{name}={value}" for name, value in environment.items()]
        # a name may come from config.json, where any text is possible
        entries = [entry for entry in entries if entry[0] != "=" and "\0" not in entry]
        words = [_field(argument) for argument in arguments]
        self._worker.add_variables(dict(entry.split("=", 1) for entry in entries))
        count = str(len(words))
        bundle, root = await self._worker.ask(
            "call", function, *originals, count, *words, *entries, until=b"done", remote=remote
        )
        return os.fsdecode(bundle), os.fsdecode(root)


@asynccontextmanager
async def loaded(
    path: str,
    settings: Lua,
    child_env: ChildEnv,
    directory: str,
    journal: Journal,
    site: ScriptSite = ScriptSite(),  # noqa: B008 (it is frozen)
    *,
    complete: bool = True,
) -> AsyncIterator[StagingScript]:
    """Provide a loaded script for as long as the block lasts.

    `child_env` is of `create`, for the script and its commands; `site` says who may own it.
    `complete`: it must have both functions.
    """
    async with working(path, StagingError, settings, child_env, directory, journal) as worker:
        worker.label = "scrun.lua"
        script = StagingScript(path, worker)
        await script.load(settings, site)
        if complete:
            script.check_complete()
        yield script


def _field(argument: str | int | None) -> str:
    if argument is None:
        return "e:"
    return f"n:{argument}" if isinstance(argument, int) else f"s:{argument}"
