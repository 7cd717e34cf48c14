"""Chooses the engine of a container, and its stager, also to clean up after a dead supervisor."""

import inspect
from abc import ABCMeta
from collections import deque
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast
from weakref import WeakValueDictionary

import msgspec
import trio

from scrun.core.errors import EngineUnavailable, PluginUnavailable, ScrunError
from scrun.settings.file.load import Settings
from scrun.settings.script import find_script
from scrun.supervisor.contracts.engine import Engine, Job, JobRequest, Program, Session
from scrun.supervisor.contracts.plugin import StagePlugin
from scrun.supervisor.contracts.stager import Leftover, Stager, Submission
from scrun.supervisor.core.threads import look
from scrun.supervisor.plugins.registry import Plugins, configured

_KEPT = 16

AUTO = ("slurm", "local")
"""The engines to try, in this order, when no setting names one."""

_SAYS = {"creates_first": "created", "lets_end": "let_end", "mounts_images": "mount"}


class Engines:
    """The engines of a supervisor, one for each combination of settings."""

    def __init__(self, root: str, plugins: Plugins) -> None:
        """`root` is the records'; the local engine keeps its state and counter of jobs there."""
        self._root = root
        self._plugins = plugins
        # A container keeps its engine, and similar containers should share it; but each new
        # combination of settings makes one, so only the recent ones are kept besides.
        self._known: WeakValueDictionary[tuple[str, Hashable], Engine] = WeakValueDictionary()
        self._recent: deque[Engine] = deque(maxlen=_KEPT)

    async def choose(self, settings: Settings, environment: Mapping[str, str]) -> Engine:
        """Return the engine that the settings name, or else the first one that works."""
        if settings.engine != "auto":
            return await self._engine(settings.engine, settings, environment)
        *better, last = AUTO
        for name in better:
            try:
                return await self._engine(name, settings, environment)
            except EngineUnavailable:
                continue
        return await self._engine(last, settings, environment)

    async def _engine(
        self, name: str, settings: Settings, environment: Mapping[str, str]
    ) -> Engine:
        plugin = await self._plugins.engine(name)
        configuration = await configured(plugin, settings, environment)
        key = (name, configuration)
        if (known := self._known.get(key)) is None:
            # in a thread: Slurm's engine reads oci.conf
            made = await look(
                f"engine {name}", plugin.engine, self._root, configuration,
                failure=PluginUnavailable,
            )  # fmt: skip
            if made.name != name:  # the record has this name, to find the engine again
                raise PluginUnavailable(f"plugin engine/{name} makes an engine {made.name!r}")
            if name not in AUTO:
                made = cast(Engine, WholeEngine(made))
            known = self._known.setdefault(key, made)  # another call may have been faster
        self._recent.append(known)
        return known

    @property
    def known(self) -> list[Engine]:
        """Those that are in use, and the recent ones."""
        return list(self._known.values())

    def tidy(self) -> None:
        for engine in self.known:
            engine.tidy()


class EngineChoices:
    """The engines of many requests at once: of equal ones, only the first is looked at."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._known: dict[Hashable, _Choice] = {}

    async def choose(self, settings: Settings, environment: Mapping[str, str]) -> Engine:
        """Return the engine; see `Engines.choose`."""
        key = (msgspec.json.encode(settings), frozenset(environment.items()))
        choice = self._known.setdefault(key, _Choice())
        async with choice.lock:
            if choice.engine is None and choice.failure is None:
                try:
                    choice.engine = await self._engines.choose(settings, environment)
                except ScrunError as error:
                    choice.failure = error
        if choice.engine is None:
            assert choice.failure is not None
            raise choice.failure
        return choice.engine


class _Choice:
    """An engine that is being chosen, has been, or cannot be."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.engine: Engine | None = None
        self.failure: ScrunError | None = None


class _Whole:
    """What a plugin has made; what that lacks is as in its contract.

    A plugin need not inherit the contract, and may be older than parts of it.
    """

    contract: ABCMeta

    def __init__(self, own: object) -> None:
        self._own: Any = own

    def __getattr__(self, name: str) -> object:
        if hasattr(self._own, name) or name in self.contract.__abstractmethods__:
            return getattr(self._own, name)
        if name in _SAYS:  # an older one says it by having the method
            return hasattr(self._own, _SAYS[name])
        default = inspect.getattr_static(self.contract, name)
        return default.__get__(self) if hasattr(default, "__get__") else default


class WholeSession(_Whole):
    """A plugin's session."""

    contract: ABCMeta = Session


class WholeJob(_Whole):
    """A plugin's job."""

    contract: ABCMeta = Job

    async def session(self, program: Program) -> Session:
        return cast(Session, WholeSession(await self._own.session(program)))


class WholeEngine(_Whole):
    """A plugin's engine."""

    contract: ABCMeta = Engine

    @asynccontextmanager
    async def allocate(self, request: JobRequest) -> AsyncIterator[Job]:
        async with self._own.allocate(request) as job:
            yield cast(Job, WholeJob(job))


class Chosen(msgspec.Struct, frozen=True):
    """The stager of one container, `NAME` of its plugin `stage/NAME`."""

    name: str
    plugin: StagePlugin[Any]
    configuration: Any

    def ready(self, submission: Submission) -> AbstractAsyncContextManager[Stager]:
        """Make a stager for a bundle (see `StagePlugin.stager`)."""
        return self.plugin.stager(self.configuration, submission)


def script_for(settings: Settings, engine: str) -> str | None:
    """Find the script that decides about the stager, where the settings name none.

    Call this in a thread: the script's file system may hang. Raises SettingsError if the script is
    missing or not trusted.
    """
    return find_script(settings, engine) if settings.stager == "auto" else None


class Stagers:
    """The stagers of a supervisor."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins

    async def choose(
        self, settings: Settings, environment: Mapping[str, str], script: str | None
    ) -> Chosen:
        """Return the stager that the settings name; else `lua` if there is a script, or `builtin`.

        Args:
            script: What `script_for` has found.

        Raises:
            PluginUnavailable: There is no stager of that name, or it cannot be used.
        """
        name = settings.stager
        if name == "auto":
            name = "lua" if script else "builtin"
        plugin = await self._plugins.stage(name)
        configuration = None  # as the settings of ours come with the submission
        if name != "builtin":
            configuration = await configured(plugin, settings, environment)
        return Chosen(name, plugin, configuration)

    async def undo(self, left: Leftover) -> None:
        """Clean up after the stager of a container whose supervisor died, or StagingError."""
        # older versions did not store it
        name = left.record.stager or ("lua" if left.record.moved else "builtin")
        await (await self._plugins.stage(name)).undo(left)
