"""The plugins of a supervisor: each is found and loaded when the first container needs it.

scrun's own plugins are in a table; all others are Python entry points of the group `scrun.plugins`
in packages installed beside scrun. Entry points are looked up only for types that are not in the
table: importing `importlib.metadata` takes longer than creating most containers.
"""

import importlib
import re
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import trio

from scrun.core.errors import OF_PLUGINS, PluginUnavailable, closest, described
from scrun.core.version import VERSION as SCRUN_VERSION
from scrun.settings.file.load import Settings
from scrun.supervisor.contracts import plugin as api
from scrun.supervisor.core.threads import in_thread

GROUP = "scrun.plugins"
_TYPE = re.compile(f"({'|'.join(api.FUNCTIONS)})/[a-z][a-z0-9_-]{{0,31}}", re.ASCII)

_BUILT_IN = {
    "engine/slurm": "scrun.supervisor.engines.slurm.plugin",
    "engine/local": "scrun.supervisor.engines.local.plugin",
    "stage/lua": "scrun.supervisor.staging.scripted",
    "stage/builtin": "scrun.supervisor.staging.builtin",
}


class Installed(msgspec.Struct, frozen=True):
    """An installed plugin, which may not be loaded.

    Attributes:
        type: The type it is installed as: `major/minor`.
        entry_point: Its module, and after a colon the object in it, if it is not the module.
        package: Its package, with the version.
    """

    type: str
    entry_point: str
    package: str

    def __str__(self) -> str:
        return f"plugin {self.type} (of {self.package})"


def is_type(text: str) -> bool:
    """Return whether a text is a valid type of a plugin."""
    return _TYPE.fullmatch(text) is not None


def built_in() -> list[Installed]:
    own = f"scrun {SCRUN_VERSION}"
    return [Installed(full, entry_point, own) for full, entry_point in _BUILT_IN.items()]


def others() -> list[Installed]:
    """Return the plugins of other packages, sorted by type. Blocks: it reads directories."""
    from importlib.metadata import entry_points

    importlib.invalidate_caches()  # it may have been installed after this process began
    try:
        found = [
            Installed(entry.name, entry.value, f"{entry.dist.name} {entry.dist.version}")
            for entry in entry_points(group=GROUP)
            if entry.dist is not None
        ]
    except Exception as error:  # the metadata of any package may be damaged
        reason = f"cannot look for plugins: {described(error)}"
        raise PluginUnavailable(f"{reason}; `pip check` where scrun is installed") from error
    return sorted(found, key=lambda installed: (installed.type, installed.package))


def find(full: str) -> Installed:
    """Find a plugin by its type, or PluginUnavailable. Blocks: it reads directories."""
    if not is_type(full):
        raise PluginUnavailable(f"{full!r} is not a plugin type: use engine/NAME or stage/NAME")
    if full in _BUILT_IN:
        return next(installed for installed in built_in() if installed.type == full)
    installed = others()
    found = [entry for entry in installed if entry.type == full]
    if len(found) == 1:
        return found[0]
    if found:
        packages = " and ".join(entry.package for entry in found)
        raise PluginUnavailable(
            f"plugin {full}: {packages} both provide it; uninstall one of them"
        )
    major, _, minor = full.partition("/")
    known = [entry.type for entry in (*built_in(), *installed)]
    names = sorted({have.partition("/")[2] for have in known if have.startswith(f"{major}/")})
    close = closest(minor, names)
    hint = f"is it {close}? " if close else ""
    raise PluginUnavailable(
        f"plugin {full} is not installed beside scrun: {hint}there are {', '.join(names)} "
        "(scrun plugins)"
    )


def load(installed: Installed) -> api.Plugin:
    """Import a plugin and check its symbols, without calling `init`; PluginUnavailable. Blocks."""
    if not is_type(installed.type):
        raise PluginUnavailable(f"{installed}: not a plugin type: use engine/NAME or stage/NAME")
    module, _, attribute = installed.entry_point.partition(":")
    if installed.type not in _BUILT_IN:
        OF_PLUGINS.add(module.partition(".")[0])
    try:
        plugin: Any = importlib.import_module(module)
        for part in filter(None, attribute.split(".")):
            plugin = getattr(plugin, part)
    except ModuleNotFoundError as error:
        raise PluginUnavailable(
            f"{installed}: needs the Python module {error.name}, which is not installed beside "
            "scrun; install it there"
        ) from error
    except (Exception, SystemExit) as error:
        reason = f"cannot be loaded: {described(error, foreign=True)}"
        raise PluginUnavailable(f"{installed}: {reason}; ask its author") from error
    if complaint := check(installed.type, plugin):
        raise PluginUnavailable(f"{installed}: {complaint}")
    return cast(api.Plugin, plugin)


def check(full: str, plugin: object) -> str:
    """Return why a plugin does not fit its type, or ""."""
    for symbol in ("plugin_type", "plugin_name", "plugin_version"):
        if not isinstance(value := getattr(plugin, symbol, None), str) or not value:
            return f"{symbol} is not a string; ask its author"
    its_type, version = [getattr(plugin, symbol) for symbol in ("plugin_type", "plugin_version")]
    if its_type != full:
        return f"has plugin_type {its_type}; ask its author"
    if version.split(".")[:2] != api.VERSION.split(".")[:2]:
        return (
            f"is for version {version} of the plugin API, and this scrun has {api.VERSION}; "
            "install a matching version"
        )
    missing = [
        name
        for name in api.FUNCTIONS[full.partition("/")[0]]
        if not callable(getattr(plugin, name, None))
    ]
    if missing:
        return f"has no function {missing[0]}; ask its author"
    return ""


_LOADING = 10.0
_CONFIGURING = 30.0
_ENDING = 5.0


class Plugins:
    """The loaded plugins of one supervisor."""

    def __init__(self) -> None:
        self._loaded: dict[str, api.Plugin] = {}
        self._loading = trio.Lock()

    async def engine(self, name: str) -> api.EnginePlugin[Any]:
        """Return the plugin `engine/NAME`, or raise PluginUnavailable."""
        return cast(api.EnginePlugin[Any], await self.load(f"engine/{name}"))

    async def stage(self, name: str) -> api.StagePlugin[Any]:
        """Return the plugin `stage/NAME`, or raise PluginUnavailable."""
        return cast(api.StagePlugin[Any], await self.load(f"stage/{name}"))

    async def load(self, full: str, installed: Installed | None = None) -> api.Plugin:
        """Return a plugin, or PluginUnavailable; the first call loads it, and calls `init`."""
        if full in self._loaded:
            return self._loaded[full]
        async with self._loading:
            if full not in self._loaded:
                with trio.move_on_after(_LOADING):
                    self._loaded[full] = await in_thread(
                        self._begin, installed or full, abandon=True
                    )
            if full not in self._loaded:
                raise PluginUnavailable(
                    f"plugin {full}: loading it and its init took longer than {_LOADING:g} s"
                )
        return self._loaded[full]

    def _begin(self, which: Installed | str) -> api.Plugin:
        installed = find(which) if isinstance(which, str) else which
        plugin = load(installed)
        init = getattr(plugin, "init", None)
        if init is not None:
            try:
                result = init()
            except (Exception, SystemExit) as error:
                reason = f"its init failed: {described(error, foreign=True)}"
                raise PluginUnavailable(f"{installed}: {reason}") from error
            if isinstance(result, int) and result:  # as of a plugin of Slurm's
                raise PluginUnavailable(f"{installed}: its init failed: it returned {result:d}")
        return plugin

    async def end(self) -> dict[str, str]:
        """Call `fini` of each, in reverse order; return the failures, by type."""
        wrong: dict[str, str] = {}
        for full, plugin in reversed([*self._loaded.items()]):
            fini = getattr(plugin, "fini", None)
            if fini is None:
                continue
            with trio.move_on_after(_ENDING, shield=True) as scope:
                try:
                    await in_thread(fini, abandon=True)
                except (Exception, SystemExit) as error:
                    wrong[full] = f"its fini failed: {described(error, foreign=True)}"
            if scope.cancelled_caught:
                wrong[full] = f"its fini took longer than {_ENDING:g} s"
        self._loaded.clear()
        return wrong


@asynccontextmanager
async def plugins() -> AsyncIterator[Plugins]:
    """Provide a supervisor's plugins for as long as the block lasts."""
    loaded = Plugins()
    try:
        yield loaded
    finally:
        await loaded.end()


async def configured(
    plugin: api.EnginePlugin[Any] | api.StagePlugin[Any],
    settings: Settings,
    environment: Mapping[str, str],
) -> Hashable:
    """Return a plugin's configuration for a call; PluginUnavailable if that takes too long."""
    with trio.move_on_after(_CONFIGURING):
        try:
            configuration: Hashable = await in_thread(
                plugin.configure, settings, environment, abandon=True
            )
        except SystemExit as error:  # it would end the supervisor
            reason = described(error, foreign=True)
            raise PluginUnavailable(f"plugin {plugin.plugin_type}: {reason}") from error
        return configuration
    raise PluginUnavailable(
        f"plugin {plugin.plugin_type}: no answer within {_CONFIGURING:g} s; check whether a file "
        "system or a daemon hangs"
    )
