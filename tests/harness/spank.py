"""Scripts of a plugstack.conf in their worker, without a container around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from scrun.settings.file.load import Lua
from scrun.settings.spank.plugstack import PlugstackLine, StackScript
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.scripts.spank.items import ContextName, JobFacts
from scrun.supervisor.scripts.spank.scripts import Context, Scripts, Variables
from tests.harness import users
from tests.harness.lua import Said

CALLBACK = "slurm_spank_local_user_init"
FACTS = JobFacts("24.11.5", 1000, 100, (4, 5), 7, 2, 3, 4, ("a", "b c"), 0, None)


class SpankBench:
    """Runs scripts.

    Attributes:
        said: What they have said.
        variables: Their environments.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said = Said(directory)
        self.variables = Variables({"A": "1", "PATH": users.PATH})

    def script(
        self,
        text: str,
        *,
        required: bool = True,
        fails: bool = True,
        line: int = 1,
        name: str = "a",
    ) -> StackScript:
        path = self.directory / f"{name}.lua"
        path.write_text(text)
        where = f"plugstack.conf:{line}"
        return StackScript(
            str(path), PlugstackLine(where, required, fails, "lua.so", str(path), ("x=1", "y"))
        )

    @asynccontextmanager
    async def opened(
        self,
        *scripts: StackScript,
        context: ContextName = "allocator",
        lua: Lua | None = None,
        facts: JobFacts = FACTS,
        patience: float = 20,
    ) -> AsyncIterator[tuple[Scripts, Context]]:
        setting = ChildEnv(dict(self.variables.job), 0o022)
        async with trio.open_nursery() as nursery:
            made = Scripts(
                "plugstack.conf", scripts, lua or Lua(), patience, setting, str(self.directory),
                self.said, nursery, facts,
            )  # fmt: skip
            try:
                yield made, await made.open(context, self.variables)
            finally:
                made.end()

    async def says(
        self,
        body: str,
        *,
        callback: str = CALLBACK,
        context: ContextName = "allocator",
        lua: Lua | None = None,
        facts: JobFacts = FACTS,
        given: dict[str, str | bool] | None = None,
        before: str = "",
    ) -> list[str]:
        """What a callback with a body logs; `say(…)` logs its arguments, parted by spaces."""
        say = (
            "function say(...) local t = {...} for i = 1, select('#', ...) do"
            " t[i] = tostring(t[i]) end SPANK.log_info('%s', table.concat(t, ' ')) end "
        )
        script = self.script(f"{say}{before}\nfunction {callback}(spank) {body} end")
        first = len(self.said.lines)
        async with self.opened(script, context=context, lua=lua, facts=facts) as (scripts, made):
            scripts.given = given or {}
            await scripts.call(made, callback)
        return [text.removeprefix("a.lua: ") for _, text in self.said.lines[first:]]
