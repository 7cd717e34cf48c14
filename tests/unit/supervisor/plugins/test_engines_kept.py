"""What a supervisor keeps of engines and tools: what is in use, and not all for ever."""

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from scrun.core.errors import EngineUnavailable
from scrun.settings.file.load import Local, RuntimeSettings, Settings
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.engines.local import engine as local
from scrun.supervisor.engines.local.engine import LocalEngine
from scrun.supervisor.engines.slurm import tools
from scrun.supervisor.plugins import choose
from scrun.supervisor.plugins.choose import EngineChoices, Engines
from scrun.supervisor.plugins.registry import Plugins


async def test_the_runtime_is_that_of_each_callers_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not that of the first one's, for all who come later."""
    looked: list[str] = []

    def find(setting: str | None, *, env: Mapping[str, str], may_limit: bool) -> str:
        assert may_limit
        looked.append(env["PATH"])
        return f"{env['PATH']}/crun"

    monkeypatch.setattr(local, "find_runtime", find)
    monkeypatch.setattr(local, "RuntimeCommands", lambda found: found)
    engine = LocalEngine(str(tmp_path), Local(), RuntimeSettings())
    for path in ("/a", "/b", "/a", "/b"):
        assert cast(str, await engine.commands(ChildEnv({"PATH": path}))) == f"{path}/crun"
    assert looked == ["/a", "/b"]
    for number in range(1000):
        await engine.commands(ChildEnv({"PATH": f"/{number}"}))
    assert len(engine._commands) <= local._PATHS


class Plugin:
    """A plugin that makes an engine for each configuration."""

    plugin_type = "engine/local"

    def configure(self, settings: Settings, environment: Mapping[str, str]) -> str:
        return environment["PATH"]

    def engine(self, root: str, configuration: str) -> Any:
        return LocalEngine(root, Local(), RuntimeSettings())


class OnePlugin:
    async def engine(self, name: str) -> Plugin:
        return Plugin()


async def test_engines_that_nobody_uses_are_not_kept() -> None:
    engines = Engines("/r", cast(Plugins, OnePlugin()))
    settings = Settings(engine="local")
    first = await engines.choose(settings, {"PATH": "first"})
    for number in range(100):
        await engines.choose(settings, {"PATH": f"{number}"})
    assert await engines.choose(settings, {"PATH": "first"}) is first  # a container has it
    with trio.fail_after(10):  # a thread that has made one may have it still, for a moment
        while len(engines._known) > choose._KEPT + 1:
            gc.collect()
            await trio.sleep(0.01)


async def test_of_equal_requests_only_the_first_is_looked_at() -> None:
    """Whether an engine was found for it or not."""
    asked: list[str] = []

    class Choosing:
        async def choose(self, settings: Settings, environment: Mapping[str, str]) -> str:
            asked.append(environment["PATH"])
            await trio.sleep(0.01)
            if environment["PATH"] == "none":
                raise EngineUnavailable("there is none")
            return environment["PATH"]

    choices = EngineChoices(cast(Engines, Choosing()))
    found: list[str] = []

    async def take(path: str, engine: str) -> None:
        try:
            chosen = await choices.choose(Settings(engine=engine), {"PATH": path})
            found.append(cast(str, chosen))
        except EngineUnavailable as error:
            found.append(str(error))

    async with trio.open_nursery() as nursery:
        for path in ("a", "b", "none"):
            for engine in ("local", "local", "other"):
                nursery.start_soon(take, path, engine)
    assert sorted(asked) == ["a", "a", "b", "b", "none", "none"]
    assert sorted(found) == ["a"] * 3 + ["b"] * 3 + ["there is none"] * 3


def test_tools_of_many_paths_are_not_kept() -> None:
    for number in range(2 * tools._PATHS):
        tools._find("sh", f"/usr/bin:/bin:/{number}")
    assert len(tools._found) <= tools._PATHS
