"""The program of `scrun plugins`: loads every installed plugin, and reports the results.

Each is loaded in a separate registry, one after the other: a plugin that hangs or fails costs the
others nothing but time.
"""

from collections import Counter

import msgspec
import trio

from scrun.cli.columns import listed
from scrun.cli.parse import Parsed
from scrun.core.errors import described
from scrun.core.output import say
from scrun.settings.file.load import Settings
from scrun.supervisor.contracts.create_request import CreateRequest, own_create_request
from scrun.supervisor.plugins.registry import Installed, Plugins, built_in, configured, others

HEAD = ("TYPE", "API", "PACKAGE", "NAME", "USABLE")


class Row(msgspec.Struct, frozen=True):
    """One plugin, `major/minor`, and why it cannot be used, or not even be loaded."""

    type: str
    name: str
    version: str
    package: str
    usable: bool
    reason: str = ""


def run(parsed: Parsed, argv: list[str]) -> int:
    found = trio.run(rows, own_create_request(argv, "plugins"))
    text = listed(parsed, found, name=str, row=msgspec.to_builtins, head=HEAD, cells=_cells)
    say(text.encode("utf-8", "replace"))
    return 0


async def rows(order: CreateRequest) -> list[Row]:
    """Return a row for each plugin: scrun's own, then the others by type."""
    own = built_in()
    every = [*own, *await trio.to_thread.run_sync(others)]
    of_type = Counter(installed.type for installed in every)
    found = []
    for installed in every:
        reason = ""
        if installed not in own and of_type[installed.type] > 1:
            taken = any(one.type == installed.type for one in own)
            reason = "scrun has one itself" if taken else "more than one package provides it"
        found.append(await _row(installed, order, reason))
    return found


async def _row(installed: Installed, order: CreateRequest, reason: str) -> Row:
    loaded = Plugins()
    name = version = ""
    if not reason:
        try:
            plugin = await loaded.load(installed.type, installed)
            name, version = plugin.plugin_name, plugin.plugin_version
            await _configure(loaded, installed.type, order)
        except Exception as error:
            reason = described(error).removeprefix(f"{installed}: ")
        reason = reason or (await loaded.end()).get(installed.type, "")
    return Row(installed.type, name, version, installed.package, not reason, reason)


async def _configure(loaded: Plugins, full: str, order: CreateRequest) -> None:
    major, _, minor = full.partition("/")
    plugin = await (loaded.engine(minor) if major == "engine" else loaded.stage(minor))
    key = "engine" if major == "engine" else "stager"
    settings: Settings = msgspec.structs.replace(order.settings, **{key: minor})
    await configured(plugin, settings, order.child_env.environment)


def _cells(row: Row) -> tuple[str, ...]:
    usable = "yes" if row.usable else f"no: {row.reason}"
    return (row.type, row.version, row.package, row.name, usable)
