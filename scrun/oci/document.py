"""Read untrusted JSON within bounds.

A parsed document takes many times its size in memory: sixteen MiB of `[],` become some 800 MiB of
lists, in a supervisor that serves other containers too. Deep nesting exhausts the stack of any
recursive function, long after the document was read. So both are bounded, far above what engines
write.
"""

import re
from typing import Any

import msgspec

from scrun.core.errors import BundleError, why
from scrun.core.paths import read_regular

VALUES = 100_000
"""The most values in a document; podman's config.json has some 1,500."""

LEVELS = 100
"""The deepest nesting; the runtime specification has eight levels."""


def read_file(name: str) -> bytes:
    """Read a regular file of bounded size; never wait for a FIFO's writer."""
    try:
        return read_regular(name)
    except OSError as error:
        raise BundleError(f"{name}: {why(error)}") from error
    except ValueError as error:  # NUL or a lone surrogate
        raise BundleError(f"{name!r}: is not a file name: {error}") from error


# an escaped backslash; a whole character; or a half of one
_HIGH, _LOW = rb"\\u[Dd][89ABab][0-9A-Fa-f]{2}", rb"\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}"
_HALF = re.compile(rb"\\\\|%b%b|(%b|%b)" % (_HIGH, _LOW, _HIGH, _LOW))


def decode(content: bytes, name: str) -> Any:  # noqa: ANN401
    """Parse JSON as runc does: null is absent, the last of equal members counts."""
    # each value but the first follows one of these; strings may contain them too
    if sum(map(content.count, (b",", b"[", b"{"))) > VALUES:
        raise BundleError(f"{name}: has more than {VALUES} values")
    try:
        value = msgspec.json.decode(content)
    except RecursionError as error:
        raise BundleError(f"{name}: is nested more than {LEVELS} levels deep") from error
    except msgspec.ValidationError as error:
        number = re.search(rb"[0-9]{4301}", content)  # Python converts at most 4300 digits
        where = f" (byte {number.start()})" if number else ""
        raise BundleError(f"{name}: has an integer that is too large{where}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if half := _half_of_a_character(content):
            raise BundleError(
                f"{name}: {half} is half of a character, which no text can have: write the "
                "character itself"
            ) from error
        raise BundleError(f"{name}: is not JSON: {error}") from error
    if _is_deeper(value, LEVELS):
        inner = value.items() if isinstance(value, dict) else ()
        deep = next((f"{key}: " for key, part in inner if _is_deeper(part, LEVELS - 1)), "")
        raise BundleError(f"{name}: {deep}is nested more than {LEVELS} levels deep")
    if b"null" in content:
        value = _without_nulls(value)
    if b"\\u0000" in content and (member := _with_nul(value, "")) is not None:
        raise BundleError(f"{name}: {member}: contains a NUL character")
    return value


def member_path(parent: str, key: "str | int") -> str:
    """Return a member's path in the form of errors: `process.args[0]`."""
    if isinstance(key, int):
        return f"{parent}[{key}]"
    return f"{parent}.{key}" if parent else key


def _half_of_a_character(content: bytes) -> str:
    """Return a lone surrogate's escape, if any: runc and crun read it in two ways."""
    half = next((found[1] for found in _HALF.finditer(content) if found[1]), b"")
    whole = _HALF.sub(lambda found: b"?" if found[1] else found[0], content)
    try:
        msgspec.json.decode(whole)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return half.decode()


def _is_deeper(value: object, levels: int) -> bool:
    """Tell whether objects and arrays are nested deeper than so many levels."""
    layer = [value]
    for _ in range(levels):
        if not layer:
            return False
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


def _with_nul(value: object, path: str) -> str | None:
    """Find a string with a NUL, which ends it for the kernel and for programs in C."""
    if isinstance(value, str):
        return path if "\0" in value else None
    members: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        if odd := [key for key in value if "\0" in key]:
            return member_path(path, odd[0].replace("\0", "\\u0000"))
        members += value.items()
    elif isinstance(value, list):
        members += enumerate(value)
    found = (_with_nul(part, member_path(path, key)) for key, part in members)
    return next((at for at in found if at is not None), None)
