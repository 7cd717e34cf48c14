"""What `root` and `group` of scrun.toml are, in a small file that every command can read.

To reach its supervisor a command needs these two alone, and to read TOML costs ten times as much
as the rest of it. So whoever has read the settings leaves the values in the default root
directory, with the identity of each file that they come from. A command, the client in C included
(`scrun/native/settings.c`), believes it as long as these files are what they were, and nobody else
can have written it.

Format: fields that each end with NUL: the version of scrun; the file of `--config-file` or
SCRUN_CONFIG, or nothing; `root` and `group`, or nothing; then the path and identity of each
settings file, whether it exists or not.
"""

import posix
import time

from scrun.core.errors import ScrunError, SettingsError
from scrun.core.paths import read_trusted
from scrun.core.version import VERSION
from scrun.protocol.wire import decoded, encoded
from scrun.settings.file.sources import default_root, files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_LIMIT = 16383
_MOST = 63
_HEAD = 4
_FRESH = 1_000_000_000
"""Nanoseconds in which a file may change again without another time of change."""


def recall(env: "Mapping[str, str]", config_file: str | None = None) -> "dict[str, str] | None":
    """Return the keys that are set, or None if only the settings themselves tell."""
    found = None
    try:
        found = _read(_place(env, config_file))
    except Exception as error:
        if not isinstance(error, (OSError, SettingsError)):
            raise
    *parts, rest = found.split(b"\0") if found else [b""]
    fields = [decoded(part) for part in parts]
    listed = files(env, config_file)
    named = [path for path, kind in listed if kind == "named"]
    paths = [path for path, _ in listed]
    if rest or fields[:2] != [VERSION, *(named or [""])] or fields[_HEAD::2] != paths:
        return None
    if len(fields) != _HEAD + 2 * len(paths):
        return None
    if any(
        _identity(path) != was for path, was in zip(paths, fields[_HEAD + 1 :: 2], strict=True)
    ):
        return None
    return {key: value for key, value in zip(("root", "group"), fields[2:], strict=False) if value}


def remember(
    env: "Mapping[str, str]", config_file: str | None, before: "list[str]", found: "dict[str, str]"
) -> None:
    """Leave the values for later commands; where that is not possible, these read the settings.

    `before` is what `identities` returned before the files were read.
    """
    from scrun.core.own_directory import own_directory
    from scrun.core.whole_files import write_whole

    listed = files(env, config_file)
    named = [path for path, kind in listed if kind == "named"]
    paths = [path for path, _ in listed]
    if identities(env, config_file) != before or any(map(_is_fresh, before)):
        return
    fields = [VERSION, *(named or [""]), found.get("root", ""), found.get("group", "")]
    for path, identity in zip(paths, before, strict=True):
        fields += [path, identity]
    content = b"".join(encoded(field) + b"\0" for field in fields)
    if len(content) > _LIMIT or len(fields) > _MOST or (named and named[0][0] != "/"):
        return
    try:
        place = _place(env, config_file)
        own_directory(place.rpartition("/")[0])
        write_whole(place, content)
    except (OSError, ScrunError):
        pass


def identities(env: "Mapping[str, str]", config_file: str | None) -> "list[str]":
    """Return what each settings file is now: `DEVICE INODE SIZE MTIME CTIME`, times in ns, or `-`.

    Raises:
        OSError: One cannot be examined.
    """
    return [_identity(path) for path, _ in files(env, config_file)]


def _identity(path: str) -> str:
    try:
        s = posix.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "-"
    return f"{s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}"


def _is_fresh(identity: str) -> bool:
    return identity != "-" and time.time_ns() - int(identity.split()[-1]) < _FRESH


def _place(env: "Mapping[str, str]", config_file: str | None) -> str:
    """Return the path of the file: one for each settings file that is named, by its FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in encoded(config_file or env.get("SCRUN_CONFIG") or ""):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{default_root(env)}/@settings-{value:016x}"


def _read(path: str) -> bytes:
    """Read the file, unless somebody else could have written it.

    Raises:
        OSError: It cannot be read.
    """
    if posix.lstat(path).st_uid != posix.geteuid():
        raise PermissionError(1, "belongs to another user", path)
    return read_trusted(path, limit=_LIMIT)
