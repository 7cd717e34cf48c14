"""Has shims create containers, and remembers the seccomp filters that their runtime compiles.

crun 1.8 takes 12 of the 25 ms of a `create` to compile the rules of podman or docker. Newer ones
keep filters, but in the directory of their state, which each shim has for itself.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec

from scrun.supervisor.nodes.connection import Shim

_MOST = 16  # some 10 KiB each
_LONGEST = 1 << 18
_OF_CRUN = "run.oci.seccomp"
"""Begins crun's annotations for it: one says what becomes of unknown system calls."""

_Key = tuple[str, str, bytes]

_filters: OrderedDict[_Key, str] = OrderedDict()
"""Those that are known, by the shim's place, its runtime and the rules; the one used last comes
last. Not by what a shim calls its node: one that lies would give other nodes its filters."""


async def create(shim: Shim, config: Mapping[str, Any], **fields: object) -> None:
    """Let a shim create a container, whose runtime compiles its seccomp rules only once.

    Raises:
        ShimError: The runtime failed.
        ShimLost: The shim has gone.
    """
    key = None if "site" in fields else await _key_of(shim, config)
    if key is None:
        await shim.call("create", config=config, **fields)
        return
    known = _filters.get(key, "")
    reply = await shim.call("create", config=config, filter=known, **fields)
    told = reply.get("filter", "")
    if isinstance(told, str) and len(told) < _LONGEST:
        _remember(key, known or told)


async def _key_of(shim: Shim, config: Mapping[str, Any]) -> _Key | None:
    """Return what its filter depends on; None if it has none that could be used again."""
    if not shim.place:
        return None
    linux = config.get("linux")
    rules = linux.get("seccomp") if isinstance(linux, dict) else None
    if not isinstance(rules, dict) or rules.get("listenerPath"):
        return None
    hello = await shim.hello()
    annotations = config.get("annotations") or {}
    of_crun = sorted(item for item in annotations.items() if item[0].startswith(_OF_CRUN))
    return shim.place, hello.runtime, msgspec.json.encode([rules, of_crun])


def _remember(key: _Key, known: str) -> None:
    if known:
        _filters[key] = known
        _filters.move_to_end(key)
    if len(_filters) > _MOST:
        _filters.popitem(last=False)
