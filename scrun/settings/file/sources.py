"""Where the settings come from: files, the environment, and the default root directory.

All commands on a container must find the same files, and engines pass hardly any variables on:
`delete` gets only XDG_RUNTIME_DIR. So the home is that of the passwd entry of the real user, never
$HOME.

`recall` reads what `root` and `group` of scrun.toml are from a small file of every command's.
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
import pwd
import sys
import time

from scrun.core.errors import ScrunError, SettingsError
from scrun.core.paths import read_trusted
from scrun.core.version import VERSION
from scrun.protocol.wire import decoded, encoded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM_FILE = "/etc/scrun/scrun.toml"
USER_FILE = ".config/scrun/scrun.toml"

LIMIT = 1 << 20
"""The largest settings file, in bytes."""


def environment() -> "Mapping[str, str]":
    """Return the environment: `os.environ`, but without an import of `os` for it."""
    if "os" in sys.modules:
        return sys.modules["os"].environ  # type: ignore[no-any-return]
    how = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())
    return {name.decode(*how): value.decode(*how) for name, value in posix.environ.items()}


def real_uid(env: "Mapping[str, str]", uid_map: str = "/proc/self/uid_map") -> int:
    """Return the caller's uid outside the user namespace that an engine made.

    Rootless podman calls the runtime as uid 0 of its own user namespace; the line of `uid_map`
    that begins with 0 has the uid outside (user_namespaces(7)). The map counts before
    _CONTAINERS_ROOTLESS_UID, because `create` gets that variable and `delete` does not, and the
    two must agree; the variable is used only without /proc.
    """
    uid = posix.geteuid()
    if uid != 0:
        return uid
    try:
        with open(uid_map, "rb") as file:
            lines = file.read(LIMIT).decode("ascii", "replace").split("\n")
    except OSError:
        rootless = env.get("_CONTAINERS_ROOTLESS_UID", "")
        return int(rootless) if rootless.isascii() and rootless.isdigit() else 0
    for line in lines:
        fields = line.split()
        if len(fields) == 3 and fields[0] == "0":
            return int(fields[1])
    return 0


def files(env: "Mapping[str, str]", config_file: str | None = None) -> list[tuple[str, str]]:
    """List the settings files with their kind; later ones take precedence.

    A `named` file (`--config-file`, or else SCRUN_CONFIG) is the only one and has to exist; the
    `system` file and the `user` file may be missing.
    """
    named = config_file or env.get("SCRUN_CONFIG")
    if named:
        return [(named, "named")]
    listed = [(SYSTEM_FILE, "system")]
    try:
        home = pwd.getpwuid(real_uid(env)).pw_dir
    except KeyError:
        return listed  # a user without a passwd entry has no home
    if home.startswith("/"):
        listed.append((f"{home.rstrip('/')}/{USER_FILE}", "user"))
    return listed


def read(path: str, kind: str) -> bytes | None:
    """Read a settings file, of root or the user alone; None if it may be missing, and is."""
    try:
        posix.lstat(path)  # usually it does not exist, and then nothing has to be imported
        return read_trusted(path, limit=LIMIT)
    except (FileNotFoundError, NotADirectoryError):
        if kind == "named":
            raise
        return None


def default_root(env: "Mapping[str, str]", setting: str | None = None) -> str:
    """Choose the directory of records, scrun(1) `--root`, by what is set anywhere."""
    if setting:
        return setting
    uid = real_uid(env)
    if uid == 0:
        return "/run/scrun"
    runtime = env.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return runtime.rstrip("/") + "/scrun"
    try:
        if posix.stat(f"/run/user/{uid}").st_mode & 0o170000 == 0o040000:
            return f"/run/user/{uid}/scrun"
    except OSError:
        pass
    raise SettingsError(
        f"no directory for the containers of uid {uid}: set XDG_RUNTIME_DIR, or give --root"
    )


_LARGEST = 16383
_MOST = 63
_HEAD = 4
_FRESH = 1_000_000_000
"""Nanoseconds in which a file may change again without another time of change."""


def recall(env: "Mapping[str, str]", config_file: str | None = None) -> "dict[str, str] | None":
    """Return the keys that are set, or None if only the settings themselves tell."""
    found = None
    try:
        found = _read_own(_place(env, config_file))
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
    if len(content) > _LARGEST or len(fields) > _MOST or (named and named[0][0] != "/"):
        return
    try:
        place = _place(env, config_file)
        own_directory(place.rpartition("/")[0])
        write_whole(place, content)
    except (OSError, ScrunError):
        pass


def identities(env: "Mapping[str, str]", config_file: str | None) -> "list[str]":
    """Return what each settings file is now: `DEVICE INODE SIZE MTIME CTIME` (ns), or `-`."""
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


def _read_own(path: str) -> bytes:
    if posix.lstat(path).st_uid != posix.geteuid():
        raise PermissionError(1, "belongs to another user", path)
    return read_trusted(path, limit=_LARGEST)
