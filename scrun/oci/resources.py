"""`linux.resources` of an `update`: the limits to change. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from scrun.core.errors import UsageError

_OPTIONS: dict[str, tuple[str, str]] = {
    "blkio-weight": ("blockIO", "weight"),
    "cpu-burst": ("cpu", "burst"),
    "cpu-idle": ("cpu", "idle"),
    "cpu-period": ("cpu", "period"),
    "cpu-quota": ("cpu", "quota"),
    "cpu-rt-period": ("cpu", "realtimePeriod"),
    "cpu-rt-runtime": ("cpu", "realtimeRuntime"),
    "cpu-share": ("cpu", "shares"),
    "cpuset-cpus": ("cpu", "cpus"),
    "cpuset-mems": ("cpu", "mems"),
    "kernel-memory": ("memory", "kernel"),
    "kernel-memory-tcp": ("memory", "kernelTCP"),
    "memory": ("memory", "limit"),
    "memory-reservation": ("memory", "reservation"),
    "memory-swap": ("memory", "swap"),
    "pids-limit": ("pids", "limit"),
}
_SCHEMATA = {"l3-cache-schema": "l3CacheSchema", "mem-bw-schema": "memBwSchema"}
_TEXTS = ("cpuset-cpus", "cpuset-mems")
_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}
_LARGEST = 2**63 - 1

LIMIT = 1 << 20
"""The largest JSON document of resources, in bytes."""

_VALUES = 10_000
_LEVELS = 10


def read_resources(content: bytes, name: str) -> dict[str, Any]:
    """Parse the JSON object of an engine."""
    if len(content) > LIMIT:
        raise UsageError(f"{name}: is larger than {LIMIT >> 20} MiB")
    if sum(map(content.count, (b",", b"[", b"{"))) > _VALUES:
        raise UsageError(f"{name}: has more than {_VALUES} values")
    try:
        found = json.loads(content, parse_constant=_no_number, parse_float=_number_of)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{name}: is not an object: linux.resources is expected")
    if deep := [key for key, value in found.items() if not _is_flat(value, _LEVELS)]:
        raise UsageError(f"{name}: {deep[0]}: is nested more than {_LEVELS} levels deep")
    return found


def _is_flat(value: object, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_flat(part, levels - 1) for part in inner)


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _number_of(text: str) -> float:
    number = float(text)
    if number in (float("inf"), -float("inf")):  # JSON has no form for it
        raise ValueError(f"{text[:80]} is too large")
    return number


def resources_from_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Make `linux.resources` from the options of `update`."""
    resources: dict[str, Any] = {}
    for name, (part, member) in _OPTIONS.items():
        value = options.get(name)
        if isinstance(value, str):
            number = value if name in _TEXTS else _number(name, value)
            resources.setdefault(part, {})[member] = number
    for name, member in _SCHEMATA.items():
        if isinstance(options.get(name), str):
            resources.setdefault("intelRdt", {})[member] = options[name]
    return resources


def changes(wanted: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """List the members that would change, `memory.limit=1024`; docker's 0 changes nothing."""
    now = dict(_members(present, ""))
    return [
        f"{name}={value}"
        for name, value in _members(wanted, "")
        if value not in (0, "", None, False) and now.get(name) != value
    ]


def _members(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _members(inner, f"{prefix}{key}.")
        elif inner != []:
            yield f"{prefix}{key}", inner


def _number(name: str, text: str) -> int:
    number, factor = text, 1
    if text[-1:].lower() in _UNITS:
        number, factor = text[:-1], 1 << _UNITS[text[-1].lower()]
    digits = number.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise UsageError(f"--{name} {text}: a number expected")
    if len(digits) > 18 or int(digits) * factor > _LARGEST:
        raise UsageError(f"--{name} {text}: is too large")
    return int(number) * factor
