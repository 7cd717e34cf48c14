"""Where the settings come from: files, the environment, and the default root directory.

All commands on a container must find the same files, and engines pass hardly any variables on:
`delete` gets only XDG_RUNTIME_DIR. So the home is that of the passwd entry of the real user, never
$HOME.
"""

import posix
import pwd
import sys

from scrun.core.errors import SettingsError
from scrun.core.paths import read_trusted

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
        lines = _read(uid_map).decode("ascii", "replace").split("\n")
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
    """Read a settings file; None if it is missing and its kind may be.

    A settings file decides which programs scrun starts, so only root and the user may write it.

    Raises:
        OSError: It cannot be read, or must not be trusted; `strerror` says why.
    """
    try:
        posix.lstat(path)  # usually it does not exist, and then nothing has to be imported
        return read_trusted(path, limit=LIMIT)
    except (FileNotFoundError, NotADirectoryError):
        if kind == "named":
            raise
        return None


def default_root(env: "Mapping[str, str]", setting: str | None = None) -> str:
    """Choose the directory of the records and sockets, scrun(1) `--root`.

    `setting` is the value of the command line, SCRUN_ROOT or a file, if there is one.

    Raises:
        SettingsError: No directory can be found.
    """
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


def _read(path: str) -> bytes:
    descriptor = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        content = b""
        while len(content) < LIMIT and (piece := posix.read(descriptor, 65536)):
            content += piece
        return content
    finally:
        posix.close(descriptor)
