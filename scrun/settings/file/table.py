"""Parse a settings file as TOML, and check its keys and values. Pure.

Types are checked later, when the table is converted to structs (`scrun.settings.file.load`).
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from scrun.core.errors import SettingsError, closest
from scrun.settings.slurm import requests

_DOTS = 100  # in a line; tomllib takes n * n steps for a key of n parts


def read_table(content: bytes, name: str, kind: type[msgspec.Struct]) -> dict[str, object]:
    """Parse one settings file.

    Args:
        content: The file's content.
        name: Its name in errors.
        kind: The struct with its keys.

    Raises:
        SettingsError: It is not TOML, or has an invalid key or value.
    """
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.count(b".") > _DOTS:
            raise SettingsError(f"{name}: line {number} has more than {_DOTS} dots")
    import tomllib  # takes 1.6 ms of a supervisor's start, and few have a file

    try:
        table: dict[str, object] = tomllib.loads(content.decode())
    except RecursionError as error:
        raise SettingsError(f"{name}: not TOML: nested too deeply") from error
    except ValueError as error:  # not UTF-8, not TOML, a huge integer
        raise SettingsError(f"{name}: not TOML: {error}") from error
    check_keys(table, kind, name)
    for key, complaint in _impossible(table, ""):
        raise SettingsError(f"{name}: {key}: {complaint}")
    slurm = table.get("slurm")
    if isinstance(slurm, dict) and isinstance(slurm.get("defaults"), dict):
        slurm["defaults"] = _defaults(slurm["defaults"], name)
    if isinstance(slurm, dict) and isinstance(slurm.get("allow"), list):
        slurm["allow"] = _allowed(slurm["allow"], name)
    return table


def check_keys(
    table: Mapping[str, object], kind: type[msgspec.Struct], name: str, prefix: str = ""
) -> None:
    """Refuse unknown keys, with a hint at a similar one.

    Args:
        table: The table.
        kind: The struct with its keys.
        name: The name of the table in errors.
        prefix: The prefix of its keys in errors.

    Raises:
        SettingsError: A key is unknown.
    """
    fields = _fields(kind)
    for key, value in table.items():
        if key not in fields:
            raise SettingsError(f"{name}: {prefix}{key}: unknown key{_hint(key, fields)}")
        inner = fields[key]
        is_table = isinstance(inner, type) and issubclass(inner, msgspec.Struct)
        if is_table and isinstance(value, dict):
            check_keys(value, inner, name, f"{prefix}{key}.")


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def _impossible(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield values that are valid TOML but invalid for every setting."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _impossible(inner, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _impossible(inner, f"{key}[{number}]")
    elif isinstance(value, str) and "\0" in value:
        yield key, "contains a NUL character"
    elif isinstance(value, float) and value != value:
        yield key, "is not a number"
    elif isinstance(value, int) and value.bit_length() > 63:  # TOML's limit
        yield key, "is too large"


def _allowed(names: list[object], name: str) -> list[object]:
    """Convert the names in `[slurm] allow` to those of variables."""
    known = [variable.removeprefix("SCRUN_").lower() for variable in requests.TABLE]
    for key in names:
        if isinstance(key, str) and key not in known:
            raise SettingsError(f"{name}: slurm.allow: {key}: unknown request{_hint(key, known)}")
    return [f"SCRUN_{key.upper()}" if isinstance(key, str) else key for key in names]


def _defaults(table: Mapping[str, object], name: str) -> dict[str, object]:
    """Convert the keys of `[slurm.defaults]` to names of variables, and the values to text."""
    result: dict[str, object] = {}
    known = [variable.removeprefix("SCRUN_").lower() for variable in requests.TABLE]
    for key, value in table.items():
        if key not in known:
            raise SettingsError(f"{name}: slurm.defaults.{key}: unknown key{_hint(key, known)}")
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, int):
            value = str(value)
        elif not isinstance(value, str):
            raise SettingsError(f"{name}: slurm.defaults.{key}: expected string, int or boolean")
        result["SCRUN_" + key.upper()] = value
    return result


def _hint(key: str, known: Iterable[str]) -> str:
    close = closest(key, known)
    return f" (is it {close}?)" if close else ""
