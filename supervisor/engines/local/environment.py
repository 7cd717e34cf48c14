"""Changes the environment of a container just before it is made."""

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

import msgspec
import trio

from scrun.supervisor.core.threads import in_thread


@asynccontextmanager
async def changed_environment(
    bundle: str, variables: Mapping[str, str | None]
) -> AsyncIterator[None]:
    """Change `process.env` in a bundle's config.json for as long as the block lasts.

    The bundle may be the work of a site's script, or even the submitted one.

    Args:
        variables: The new values; None removes a variable. Without any, nothing is touched.
    """
    if not variables:
        yield
        return
    name = os.path.join(bundle, "config.json")
    before = await in_thread(_change, name, variables)
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await in_thread(_restore, name, before)


def with_variables(own: Iterable[str], variables: Mapping[str, str | None]) -> list[str]:
    """Return config.json's `process.env` with other values; None removes a variable. Pure."""
    kept = [entry for entry in own if entry.partition("=")[0] not in variables]
    added = [f"{key}={value}" for key, value in variables.items() if value is not None]
    return [*kept, *added]


def _change(name: str, variables: Mapping[str, str | None]) -> bytes:
    """Change a config.json; return the old content."""
    with open(name, "rb") as file:
        before = file.read()
    config = msgspec.json.decode(before)
    config["process"]["env"] = with_variables(config["process"].get("env") or (), variables)
    _write(name, msgspec.json.encode(config))
    return before


def _restore(name: str, before: bytes) -> None:
    if os.path.exists(name):
        _write(name, before)


def _write(name: str, content: bytes) -> None:
    with open(name, "rb+") as file:
        file.write(content)
        file.truncate()
