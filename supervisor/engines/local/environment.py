"""The environment of a container, changed in the last moment."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec


@contextmanager
def changed_environment(bundle: str, variables: Mapping[str, str | None]) -> Iterator[None]:
    """Change `process.env` in a bundle's config.json for as long as the block lasts.

    The bundle may be one that a site's script has made, or even left as it was submitted.

    Args:
        bundle: The bundle.
        variables: What is added; None: taken out. Nothing is touched if there are none.
    """
    if not variables:
        yield
        return
    name = os.path.join(bundle, "config.json")
    with open(name, "rb") as file:
        before = file.read()
    config = msgspec.json.decode(before)
    kept = [
        entry
        for entry in config["process"].get("env") or []
        if entry.partition("=")[0] not in variables
    ]
    added = [f"{key}={value}" for key, value in variables.items() if value is not None]
    config["process"]["env"] = [*kept, *added]
    _write(name, msgspec.json.encode(config))
    try:
        yield
    finally:
        if os.path.exists(name):
            _write(name, before)


def _write(name: str, content: bytes) -> None:
    with open(name, "rb+") as file:
        file.write(content)
        file.truncate()
