"""JSON that comes from outside, read within bounds.

A document costs many times its size once it is read: sixteen MiB of `[],` become some 800 MiB of
lists, in a supervisor that serves other containers too. And what is nested deeply ends whoever
goes through it recursively, long after it was read. So both are bounded, far above what engines
write.
"""

import re
from typing import Any

import msgspec

from scrun.core.errors import BundleError
from scrun.core.paths import read_regular

VALUES = 100_000
"""Nor does one have more values; one of podman's has some 1,500."""

LEVELS = 100
"""Nor more levels; the deepest that the runtime specification knows is the eighth."""


def read_file(name: str) -> bytes:
    """Read a regular file of bounded size; never wait for a FIFO's writer.

    Raises:
        BundleError: It cannot be read, is no regular file, or too large.
    """
    try:
        return read_regular(name)
    except OSError as error:
        raise BundleError(f"{name}: {error.strerror}") from error
    except ValueError as error:  # NUL or a lone surrogate
        raise BundleError(f"{name!r}: is not a file name: {error}") from error


def decode(content: bytes, name: str) -> Any:  # noqa: ANN401
    """Read JSON, without the members that are null: runc and crun take those for absent.

    Of members with the same name the last counts, as with runc.

    Args:
        content: Its text.
        name: What the errors call it.

    Raises:
        BundleError: It is not JSON, or beyond the bounds.
    """
    # each value but the first follows one of these; in texts they may be as well
    if sum(map(content.count, (b",", b"[", b"{"))) > VALUES:
        raise BundleError(f"{name}: has more than {VALUES} values")
    try:
        value = msgspec.json.decode(content)
    except RecursionError as error:
        raise BundleError(f"{name}: is nested more than {LEVELS} levels deep") from error
    except msgspec.ValidationError as error:
        number = re.search(rb"[0-9]{4301}", content)  # more than Python makes an integer of
        where = f" (byte {number.start()})" if number else ""
        raise BundleError(f"{name}: has an integer that is too large{where}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BundleError(f"{name}: is not JSON: {error}") from error
    if _is_deeper(value, LEVELS):
        inner = value.items() if isinstance(value, dict) else ()
        deep = next((f"{key}: " for key, part in inner if _is_deeper(part, LEVELS - 1)), "")
        raise BundleError(f"{name}: {deep}is nested more than {LEVELS} levels deep")
    value = _without_nulls(value)
    if b"\\u0000" in content and (place := _with_nul(value, "")) is not None:
        raise BundleError(f"{name}: {place}: contains a NUL character")
    return value


def place_of(parent: str, key: "str | int") -> str:
    """Name a member as errors do: `process.args[0]`."""
    if isinstance(key, int):
        return f"{parent}[{key}]"
    return f"{parent}.{key}" if parent else key


def _is_deeper(value: object, levels: int) -> bool:
    """Tell whether so many objects and arrays are not enough on the way to the innermost one."""
    layer = [value]
    for _ in range(levels):
        layer = [
            inner
            for part in layer
            if isinstance(part, (dict, list))
            for inner in (part.values() if isinstance(part, dict) else part)
        ]
    return any(isinstance(part, (dict, list)) for part in layer)


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value


def _with_nul(value: object, place: str) -> str | None:
    """Find a text with a NUL, which is its end for the kernel and for programs in C."""
    if isinstance(value, str):
        return place if "\0" in value else None
    members: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        if odd := [key for key in value if "\0" in key]:
            return place_of(place, odd[0].replace("\0", "\\u0000"))
        members += value.items()
    elif isinstance(value, list):
        members += enumerate(value)
    found = (_with_nul(part, place_of(place, key)) for key, part in members)
    return next((at for at in found if at is not None), None)
