"""Plugins: what they say of themselves, and what becomes of those that say something else."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio
from scrun_none import engine as no_engine
from scrun_none import stager as no_stager

from scrun.core.errors import PluginUnavailable
from scrun.model.record import Record
from scrun.settings.file.load import Lua, Settings
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts import plugin as api
from scrun.supervisor.contracts.deleter import Deleter
from scrun.supervisor.contracts.engine import JobRequest, NodeAnswer, Program, Step
from scrun.supervisor.contracts.plugin import EnginePlugin, StagePlugin
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.contracts.stager import Leftover, Submission
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.engines.local import plugin as local
from scrun.supervisor.engines.slurm import plugin as slurm
from scrun.supervisor.plugins import registry
from scrun.supervisor.plugins.choose import Engines, Stagers
from scrun.supervisor.plugins.registry import (
    GROUP,
    Installed,
    Plugins,
    built_in,
    check,
    find,
    is_type,
    load,
)
from scrun.supervisor.staging import builtin, scripted
from tests import CHECKOUT
from tests.harness.program import run_program

pytestmark = pytest.mark.covers("promise plugins")

# modules are plugins: mypy holds that they have what one needs
ENGINES: list[EnginePlugin[Any]] = [slurm, local, no_engine]
STAGERS: list[StagePlugin[Any]] = [scripted, builtin, no_stager]

Made = Callable[..., Installed]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Installs a plugin of a module's text, with the metadata that pip would write."""
    monkeypatch.syspath_prepend(str(tmp_path))
    count = 0

    def install(full: str, text: str, package: str = "other") -> Installed:
        nonlocal count
        count += 1
        module = f"{tmp_path.name.replace('-', '_')}_{package}_{count}"
        (tmp_path / f"{module}.py").write_text(text)
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        with (info / "entry_points.txt").open("a") as points:
            points.write(f"[{GROUP}]\n{full} = {module}\n")
        return Installed(full, module, f"{package} 1.0")

    return install


def source(full: str, more: str = "", *, version: str = api.VERSION) -> str:
    """The text of a plugin that is one."""
    return f"""
plugin_type = {full!r}
plugin_name = "A plugin"
plugin_version = {version!r}
def configure(settings, environment): ...
def engine(root, configuration): ...
def stager(configuration, submission): ...
async def undo(left): ...
{more}
"""


# What a plugin says of itself


@pytest.mark.covers("plugin-api Identification: major/minor, the major type names the API")
@pytest.mark.parametrize("installed", built_in(), ids=lambda installed: installed.type)
def test_our_own_are_as_they_have_to_be(installed: Installed) -> None:
    assert is_type(installed.type)
    assert check(installed.type, load(installed)) == ""
    assert find(installed.type) == installed


@pytest.mark.covers("plugin-api Data objects: plugin_type")
def test_there_is_a_null_plugin_of_each_kind() -> None:
    """Beside scrun: docs/examples/plugin-none."""
    types = [no_engine.plugin_type, no_stager.plugin_type]
    assert types == [f"{major}/none" for major in api.FUNCTIONS]
    assert [check(*pair) for pair in zip(types, (no_engine, no_stager), strict=True)] == ["", ""]


@pytest.mark.covers("plugin-api Identification: major/minor, the major type names the API")
@pytest.mark.parametrize(
    "text",
    ["slurm", "engine/", "/slurm", "engine/Slurm", "sched/maui", "engine/a/b", "engine/a\n",
     "engine/" + "a" * 33],
)  # fmt: skip
def test_what_is_no_type(text: str) -> None:
    assert not is_type(text)
    with pytest.raises(PluginUnavailable, match="is not a plugin type"):
        find(text)


@pytest.mark.covers("plugin-api Versioning: another major or minor version changes the API")
@pytest.mark.covers("plugin-api Versioning: everything in a cluster has one version of Slurm")
@pytest.mark.covers("plugin-api Data objects: the micro version does not apply to SPANK plugins")
@pytest.mark.parametrize(
    ("version", "usable"),
    [("1.0.0", True), ("1.0.9", True), ("1.0", True), ("1.1.0", False), ("2.0.0", False),
     ("0.0.0", False), ("1", False), ("10.0.0", False)],
)  # fmt: skip
def test_the_micro_version_is_not_looked_at(version: str, usable: bool) -> None:
    plugin = SimpleNamespace(**vars(builtin) | {"plugin_version": version})
    complaint = check("stage/builtin", plugin)
    assert (complaint == "") is usable
    if complaint:
        assert complaint.startswith(f"is for version {version} of the plugin API, and this scrun")


@pytest.mark.covers("plugin-api Identification: major/minor, the major type names the API")
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"plugin_type": "stage/other"}, "has plugin_type stage/other; ask its author"),
        ({"plugin_type": None}, "plugin_type is not a string; ask its author"),
        ({"plugin_name": ""}, "plugin_name is not a string; ask its author"),
        ({"plugin_version": 22}, "plugin_version is not a string; ask its author"),
        ({"stager": None}, "has no function stager; ask its author"),
        ({"undo": 5}, "has no function undo; ask its author"),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, object], complaint: str) -> None:
    assert check("stage/builtin", SimpleNamespace(**vars(builtin) | changes)) == complaint


# Those of other packages


@pytest.mark.covers("plugin-api Identification: major/minor, the major type names the API")
def test_another_package_has_one(made: Made) -> None:
    installed = made("engine/mine", source("engine/mine"))
    assert find("engine/mine") == installed
    assert load(installed).plugin_name == "A plugin"
    assert str(installed) == "plugin engine/mine (of other 1.0)"


def test_an_object_in_a_module_can_be_one(made: Made) -> None:
    text = "class inner:\n" + "\n".join(
        f"    {line}" for line in source("stage/mine").splitlines()
    )
    installed = made("stage/mine", text)
    place = Installed(installed.type, f"{installed.entry_point}:inner", installed.package)
    assert load(place).plugin_type == "stage/mine"


@pytest.mark.covers("plugin-api Runtime support: other dependencies of a plugin")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nothing_like_this", "needs the Python module nothing_like_this, which is not"),
        ("x = 1 /", "cannot be loaded: "),
        ("raise SystemExit('bye')", "cannot be loaded: "),
        ("raise OSError(2, 'No such', '/lib/x.so')", "cannot be loaded: "),
        ("", "plugin_type is not a string"),
    ],
)
def test_one_that_cannot_be_loaded(made: Made, text: str, reason: str) -> None:
    installed = made("engine/mine", text)
    with pytest.raises(PluginUnavailable) as raised:
        load(installed)
    assert str(raised.value).startswith(f"plugin engine/mine (of other 1.0): {reason}")
    assert "\n" not in str(raised.value)


@pytest.mark.covers("plugin-api Runtime support: other dependencies of a plugin")
def test_a_module_that_is_not_there(made: Made) -> None:
    installed = Installed("engine/mine", "no_such_module:x", "other 1.0")
    with pytest.raises(PluginUnavailable, match="needs the Python module no_such_module"):
        load(installed)


def test_two_packages_with_the_same_type(made: Made) -> None:
    made("engine/mine", source("engine/mine"), "first")
    made("engine/mine", source("engine/mine"), "second")
    with pytest.raises(
        PluginUnavailable,
        match=r"^plugin engine/mine: first 1\.0 and second 1\.0 both provide it; uninstall one of",
    ):
        find("engine/mine")


@pytest.mark.covers("security plugins: engines and stagers of other packages")
def test_nobody_takes_the_place_of_ours(made: Made) -> None:
    made("engine/local", source("engine/local"))
    assert find("engine/local").entry_point == local.__name__


def test_one_that_is_not_installed() -> None:
    with pytest.raises(PluginUnavailable) as raised:
        find("engine/slrum")
    assert str(raised.value) == (
        "plugin engine/slrum is not installed beside scrun: is it slurm? there are local, "
        "slurm (scrun plugins)"
    )


# init and fini


@pytest.mark.covers("plugin-api API functions: init, after loading and before any call")
@pytest.mark.covers("plugin-api API functions: fini, before unloading and after the last call")
async def test_init_after_loading_and_fini_at_the_end(made: Made, tmp_path: Path) -> None:
    """Each once; the last one that was loaded is the first to go."""
    for name in ("one", "two"):
        more = f"""
def say(text):
    with open({str(tmp_path / "said")!r}, "a") as file:
        print(text, {name!r}, file=file)
def init(): say("init")
def fini(): say("fini")
"""
        made(f"engine/{name}", source(f"engine/{name}", more), name)
    said = tmp_path / "said"
    async with registry.plugins() as loaded:
        assert not said.exists()
        first = await loaded.engine("one")
        assert said.read_text() == "init one\n"
        await loaded.engine("two")
        assert await loaded.engine("one") is first
        assert said.read_text() == "init one\ninit two\n"
    assert said.read_text() == "init one\ninit two\nfini two\nfini one\n"


@pytest.mark.covers("plugin-api API functions: they are not dlopen(3)'s _init and _fini")
async def test_neither_has_to_be_there(made: Made) -> None:
    made("stage/mine", source("stage/mine"))
    loaded = Plugins()
    assert (await loaded.stage("mine")).plugin_type == "stage/mine"
    assert await loaded.end() == {}


@pytest.mark.covers("plugin-api API functions: init, after loading and before any call")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise RuntimeError('no')", "its init failed: RuntimeError: no"),
        ("raise SystemExit(3)", "its init failed: SystemExit: 3"),
        (
            "from scrun.core.errors import PluginUnavailable as E; raise E('buy it first')",
            "its init failed: buy it first",
        ),
        ("return 1", "its init failed: it returned 1"),
        ("return -1", "its init failed: it returned -1"),
    ],
)
async def test_an_init_that_fails(made: Made, text: str, reason: str) -> None:
    """It is not used, and tried again when somebody asks again."""
    made("engine/mine", source("engine/mine", f"def init(): {text}"))
    loaded = Plugins()
    for _ in range(2):
        with pytest.raises(PluginUnavailable) as raised:
            await loaded.engine("mine")
        assert str(raised.value) == f"plugin engine/mine (of other 1.0): {reason}"
    assert await loaded.end() == {}


@pytest.mark.covers("plugin-api Thread safety: functions are called reentrantly")
@pytest.mark.covers("plugin-api Performance: functions are quick")
async def test_an_init_that_hangs(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on meanwhile: nothing of a plugin's runs in the event loop."""
    monkeypatch.setattr(registry, "_LOADING", 0.2)
    made("engine/mine", source("engine/mine", "import time\ndef init(): time.sleep(1)"))
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await trio.sleep(0.01)
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        with pytest.raises(PluginUnavailable, match=r"its init took longer than 0\.2 s"):
            await Plugins().engine("mine")
        nursery.cancel_scope.cancel()
    assert turns > 5


@pytest.mark.covers("plugin-api API functions: fini, before unloading and after the last call")
async def test_a_fini_that_fails_or_hangs(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENDING", 0.2)
    made("engine/fails", source("engine/fails", "def fini(): raise OSError(5, 'no')"), "one")
    made("engine/hangs", source("engine/hangs", "import time\ndef fini(): time.sleep(1)"), "two")
    loaded = Plugins()
    await loaded.engine("fails")
    await loaded.engine("hangs")
    began = time.monotonic()
    wrong = await loaded.end()
    assert time.monotonic() - began < 0.9
    assert wrong["engine/fails"].startswith("its fini failed: ")
    assert wrong["engine/hangs"] == "its fini took longer than 0.2 s"


@pytest.mark.covers("plugin-api Performance: functions are quick")
async def test_a_configure_that_hangs(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_CONFIGURING", 0.2)
    more = "import time\ndef configure(settings, environment): time.sleep(1)"
    made("engine/mine", source("engine/mine", more))
    engines = Engines("/nowhere", Plugins())
    with pytest.raises(PluginUnavailable, match=r"engine/mine: no answer within 0\.2 s"):
        await engines.choose(Settings(engine="mine"), {})


async def test_a_configure_that_wants_to_end_the_process(made: Made) -> None:
    more = "import sys\ndef configure(settings, environment): sys.exit(3)"
    made("engine/mine", source("engine/mine", more))
    with pytest.raises(PluginUnavailable, match="engine/mine: SystemExit: 3"):
        await Engines("/nowhere", Plugins()).choose(Settings(engine="mine"), {})


# Choosing


async def test_the_same_configuration_is_the_same_engine(made: Made) -> None:
    made("engine/none", "from scrun_none.engine import *")
    engines = Engines("/nowhere", Plugins())
    first = await engines.choose(Settings(engine="none"), {})
    assert first.name == "none"
    assert await engines.choose(Settings(engine="none", stager="none"), {"A": "b"}) is first


async def test_an_engine_that_has_another_name(made: Made) -> None:
    more = "from scrun_none.engine import configure, engine"
    made("engine/mine", source("engine/mine", more))
    with pytest.raises(PluginUnavailable, match="engine/mine makes an engine 'none'"):
        await Engines("/nowhere", Plugins()).choose(Settings(engine="mine"), {})


# An engine that does not inherit the contract, as none could when it was written

OLDER = """
from contextlib import asynccontextmanager

class Machine:
    name = "older"
    released = []
    async def release(self, *of): self.released.append(of)
    @asynccontextmanager
    async def allocate(self, request): yield Job()

class Job:
    hands_on = True
    async def session(self, program): return Session()
    async def let_end(self): self.ended = True

class Session:
    async def run(self): return 7

def engine(root, configuration): return Machine()
"""


async def test_an_engine_that_has_only_what_it_must_have(made: Made) -> None:
    """It shares and adopts nothing, and releases a job for whoever deletes its container."""
    made("engine/older", source("engine/older", OLDER))
    engine = await Engines("/nowhere", Plugins()).choose(Settings(engine="older"), {})
    assert (engine.shares_jobs, engine.adopts) == (False, False)
    assert await engine.jobs_of_the_dead(ChildEnv({}), "/") is None
    deleter = Deleter(ChildEnv({"A": "b"}), "/home")
    await engine.release_for("7", ChildEnv({}), "/r", deleter)
    assert cast(Any, engine).released == [("7", ChildEnv({}), "/r")]


async def test_the_jobs_of_such_an_engine(made: Made) -> None:
    """Each has what it has itself, and says so; for the rest it says that it has nothing."""
    made("engine/older", source("engine/older", OLDER))
    engine = await Engines("/nowhere", Plugins()).choose(Settings(engine="older"), {})
    async with engine.allocate(cast(JobRequest, None)) as job:
        assert (job.hands_on, job.lets_end) == (True, True)
        assert (job.creates_first, job.below_engine, job.mounts_images) == (False, False, False)
        assert (job.launch, job.separate_tasks, job.mount_points) == ("", None, ())
        assert (job.reaching(), job.keep(cast(Step, None))) == (None, False)
        assert (await job.neighbours(), await job.handles(15)) == ({}, False)
        job.mounted.add("a note")
        assert job.mounted == set()
        with job.entered():
            await job.unmount()
            await job.let_end()
        assert cast(Any, job).ended
        with pytest.raises(AttributeError, match="'Job' object has no attribute 'run'"):
            await job.run(cast(Step, None))
        session = await job.session(cast(Program, None))
        assert await session.handles(15) is False
        assert cast(int, await session.run()) == 7


async def test_the_stager_that_is_named(made: Made) -> None:
    made("stage/none", "from scrun_none.stager import *")
    stagers = Stagers(Plugins())
    assert (await stagers.choose(Settings(), {}, None)).name == "builtin"
    for name in ("builtin", "none"):
        assert (await stagers.choose(Settings(stager=name), {}, None)).name == name
    settings = Settings(stager="lua", lua=Lua(script="none"))
    with pytest.raises(PluginUnavailable, match=r"there is no scrun\.lua"):
        await stagers.choose(settings, {}, None)


# What stands in the place of structures with counters


@pytest.mark.covers("plugin-api all: counters of arrays")
@pytest.mark.covers("plugin-api slurm_job_info_t: environment, spank_job_env, gres_detail_str")
@pytest.mark.covers("plugin-api slurm_step_launch_params_t: env, het_job_*, spank_job_env")
@pytest.mark.parametrize(
    "kind",
    [
        JobRequest,
        Step,
        Program,
        NodeAnswer,
        Target,
        ChildEnv,
        Submission,
        Staged,
        Leftover,
        Settings,
        Record,
    ],
)
def test_what_plugins_are_given_cannot_be_changed(kind: type[msgspec.Struct]) -> None:
    """Nobody has to keep a counter right: a changed copy is made by `msgspec.structs.replace`."""
    assert kind.__struct_config__.frozen
    counters = ("_size", "_cnt", "count")
    assert not [name for name in kind.__struct_fields__ if name.endswith(counters)]


# What it costs


@pytest.mark.covers("plugin-api Performance: functions are quick")
def test_nothing_is_looked_up_for_our_own() -> None:
    """importlib.metadata is imported for a name that scrun does not have, and only then."""
    program = """if True:
    import sys
    import trio
    from scrun.settings.file.load import Settings
    from scrun.supervisor.daemon.server import Server
    from scrun.supervisor.plugins.choose import Engines
    from scrun.supervisor.plugins.registry import Plugins
    from scrun.supervisor.plugins.choose import Stagers

    async def choose(name):
        loaded = Plugins()
        await Engines("/nowhere", loaded).choose(Settings(engine=name), {})
        await Stagers(loaded).choose(Settings(), {}, None)

    trio.run(choose, "local")
    slurm = "scrun.supervisor.engines.slurm.engine"
    print("importlib.metadata" in sys.modules, slurm in sys.modules)
    try:
        trio.run(choose, "unheard-of")
    except Exception:
        print("importlib.metadata" in sys.modules)
    """
    done = run_program([sys.executable, "-c", program], cwd=CHECKOUT)
    assert done.stderr == ""
    assert done.stdout.split() == ["False", "False", "True"]
