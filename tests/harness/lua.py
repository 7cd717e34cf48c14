"""A scrun.lua in its worker, without a container around it."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio

from scrun.core.errors import StagingError, leaves
from scrun.settings.file.load import Level, Log, Lua
from scrun.settings.script import ScriptSite
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.scripts.host import StagingScript, loaded
from scrun.supervisor.scripts.process import Remote
from tests.harness import users
from tests.harness.nightly import nightly

ALL = ("5.1", "5.2", "5.3", "5.4", "5.5")
WITH_POSIX = [one for one in ALL if Path(f"/usr/share/lua/{one}/posix/init.lua").exists()]
"""What Debian's lua-posix is for: up to 5.3 in Debian 12, up to 5.4 in 13, all but 5.2 in sid.
Debian 12's does not load in 5.3, where it lacks bit32; the first two load in each."""
VERSIONS = ("5.1", "5.4", nightly("5.2"), nightly("5.3"), nightly("5.5"))
USUAL = (nightly("5.1"), "5.4", nightly("5.5"))
"""For what depends on the version little: each row costs a process."""
OUT = "function slurm_scrun_stage_out() return slurm.SUCCESS end\n"
HEAD = "function slurm_scrun_stage_in(id, bundle, spool, file, job, uid, gid, env)\n"
ARGUMENTS = ("c1", "/b", "/spool", "/b/config.json", 7, 1000, 100, None)
JOB = {"SLURM_JOB_ID": "7", "SCRUN_ANNOTATION_a=b": "c"}


class Said(Journal):
    """A journal that keeps what is written."""

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory / "log"), Log(), "c1")
        self.lines: list[tuple[Level, str]] = []

    def write(self, level: Level, text: str, *, reported: bool = False) -> None:
        del reported
        self.lines.append((level, text))

    def texts(self, level: Level | None = None) -> list[str]:
        """The script's own words, without what stands before them."""
        return [
            text.removeprefix("scrun.lua: ")
            for kind, text in self.lines
            if level is None or kind == level
        ]


@contextmanager
def failing() -> Iterator[list[str]]:
    """Expect one StagingError, in whatever groups; its text is in the list afterwards."""
    texts: list[str] = []
    try:
        yield texts
    except* StagingError as group:
        texts += [str(error) for error in leaves(group)]
    assert len(texts) == 1


class Bench:
    """Runs scripts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said = Said(directory)
        self.setting = ChildEnv({"PATH": users.PATH, "FROM_CREATE": "yes"}, 0o027)

    def write(self, script: str | bytes) -> str:
        path = self.directory / "scrun.lua"
        path.write_bytes(script if isinstance(script, bytes) else script.encode())
        return str(path)

    @asynccontextmanager
    async def loaded(
        self, script: str | bytes, settings: Lua | None = None
    ) -> AsyncIterator[StagingScript]:
        path = self.write(script)
        async with loaded(
            path,
            settings or Lua(),
            self.setting,
            str(self.directory),
            self.said,
            ScriptSite("tux"),
        ) as script_:
            yield script_

    async def stage_in(
        self,
        body: str,
        settings: Lua | None = None,
        remote: Remote | None = None,
        job: Mapping[str, str] | None = None,
        before: str = "",
    ) -> tuple[str, str]:
        """Call a stage_in that has a body, which begins in line 2 and may lack the return."""
        script = f"{HEAD}{body}\nreturn slurm.SUCCESS end\n{OUT}{before}"
        async with self.loaded(script, settings) as loaded_script:
            return await loaded_script.call(
                "slurm_scrun_stage_in",
                ARGUMENTS,
                ("/b", "/b/rootfs"),
                JOB if job is None else job,
                remote or _no_remote,
            )

    async def says(self, body: str, settings: Lua | None = None, **how: object) -> list[str]:
        """What such a stage_in prints and logs."""
        await self.stage_in(body, settings, **how)  # type: ignore[arg-type]
        return self.said.texts()

    async def fails(self, body: str, settings: Lua | None = None, **how: object) -> str:
        """Why such a stage_in fails, without the path of the script."""
        with trio.fail_after(30), failing() as texts:
            await self.stage_in(body, settings, **how)  # type: ignore[arg-type]
        return texts[0].removeprefix(f"{self.directory}/scrun.lua: ")

    async def refuses(self, script: str, settings: Lua | None = None) -> str:
        """Why a script cannot be loaded, without its path."""
        with trio.fail_after(30), failing() as texts:
            async with self.loaded(script, settings):
                pass
        path = f"{self.directory}/scrun.lua: "
        assert texts[0].startswith(path)
        return texts[0].removeprefix(path)


async def _no_remote(script: str, output: int) -> int:
    raise AssertionError(f"remote_command({script!r}, {output})")
