"""Read the settings that every command needs, without a heavy import.

A command needs only the root directory and the grouping to reach its supervisor. TOML needs
`tomllib`, which needs `re`: ten times the cost of the rest of the command. So `quick` parses a
strict subset of TOML by hand, and returns None where it is not sure; then the full loader
(`scrun.settings.file.load`) reads the file, or reports what is wrong with it.

All commands on a container must find the same files, and engines pass hardly any variables on:
`delete` gets only XDG_RUNTIME_DIR. So the home is that of the passwd entry of the real user, never
$HOME.
"""

import posix
import pwd
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM_FILE = "/etc/scrun/scrun.toml"
USER_FILE = ".config/scrun/scrun.toml"
GROUPS = ("user", "pod", "container")

LIMIT = 1 << 20
"""The largest settings file, in bytes."""

_BARE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_TEXT = bytes(byte for byte in range(256) if byte in b"\t\n" or 32 <= byte != 127)


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

    Whoever can write it decides which programs scrun starts, so only root and the user may.

    Raises:
        OSError: It cannot be read, or must not be trusted; `strerror` says why.
    """
    try:
        posix.lstat(path)  # usually it does not exist, and then nothing has to be imported
        from scrun.core.paths import read_trusted

        return read_trusted(path, limit=LIMIT)
    except (FileNotFoundError, NotADirectoryError):
        if kind == "named":
            raise
        return None


def quick(env: "Mapping[str, str]", config_file: str | None = None) -> dict[str, str] | None:
    """Find `root` and `group` as the full loader would, SCRUN_ROOT included.

    Returns:
        The keys that are set; None if only the full loader can tell, or must report an error.
    """
    found: dict[str, str] = {}
    for path, kind in files(env, config_file):
        try:
            content = read(path, kind)
        except OSError:
            return None
        keys = scan(content) if content else {}
        if keys is None:
            return None
        found.update(keys)
    root = env.get("SCRUN_ROOT")
    if root:
        if root[0] != "/":
            return None
        found["root"] = root
    return found


def scan(content: bytes) -> dict[str, str] | None:
    """Find the top-level keys `root` and `group` in a settings file, if that is simple.

    Simple is: every line before the first table is blank, a comment, or a bare key with a
    plain string, number or boolean; after it, no table header that is not one bare name.
    In such a document no line can be part of a value that began on another one.
    """
    content = content.replace(b"\r\n", b"\n")
    if content.translate(None, _TEXT):
        return None  # control characters, which TOML has none of
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    found: dict[str, str] = {}
    seen = set()
    in_table = False
    for raw in text.split("\n"):
        line = raw.strip(" \t")
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            in_table = True
            name = line[1:].partition("]")[0]
            if not _BARE.issuperset(name.replace(".", "")):
                return None
            if name.partition(".")[0] in ("root", "group"):
                return None
            continue
        if in_table:
            continue  # where a value has many lines, at worst one of them looks like a header
        key, equals, value = line.partition("=")
        key = key.rstrip(" \t")
        plain = _plain(value.strip(" \t"))
        if not key or not equals or not _BARE.issuperset(key) or key in seen or plain is None:
            return None
        seen.add(key)
        if key not in ("root", "group"):
            continue
        if not (plain.startswith("/") if key == "root" else plain in GROUPS):
            return None
        found[key] = plain
    return found


def default_root(env: "Mapping[str, str]", setting: str | None = None) -> str:
    """Choose the directory of the records and sockets, scrun(1) `--root`.

    Args:
        env: The environment of the command.
        setting: The value of the command line, SCRUN_ROOT or a file, if there is one.

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
    from scrun.core.errors import SettingsError

    raise SettingsError(
        f"no directory for the containers of uid {uid}: set XDG_RUNTIME_DIR, or give --root"
    )


def _plain(value: str) -> str | None:
    """Parse a plain string; None for a value that is neither that nor a number or boolean.

    A number or boolean becomes "", which is neither a path nor a group.
    """
    quote = value[:1]
    if quote in ("'", '"') and not value.startswith(quote * 3):
        text, closed, rest = value[1:].partition(quote)
        if not closed or (quote == '"' and "\\" in text):
            return None
        return text if rest.lstrip(" \t")[:1] in ("", "#") else None
    word = value.partition("#")[0].rstrip(" \t")
    return "" if word and _BARE.issuperset(word.replace(".", "").replace("+", "")) else None


def _read(path: str) -> bytes:
    descriptor = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return _drain(descriptor)
    finally:
        posix.close(descriptor)


def _drain(descriptor: int, most: int = LIMIT) -> bytes:
    content = b""
    while len(content) < most and (piece := posix.read(descriptor, 65536)):
        content += piece
    return content
