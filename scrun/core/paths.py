"""Read files that another user may have written, without blocking, and check who could have.

Imports little: commands use it.
"""

import _stat as stat
import errno
import posix
import sys

LIMIT = 16 * 1024 * 1024
"""The largest file, in bytes, that scrun reads as a whole."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

LOOKED = "@looked"
"""Names the boot of this machine in which a supervisor last cleaned up after dead ones."""

OWN_LOG = "@supervisor.log"
"""The log of all supervisors of a root directory; no container id begins with `@`."""

COMMON = "@user-"
"""Begins the names of supervisors that serve all containers of a user."""

BUILDS = "@build-"
"""Begins the names of supervisors that serve a step of a user's build."""

BUILDAH = b"buildah-"
"""Begins the name of the process in which buildah calls the runtime."""

OUTSIDE = "SCRUN_OUTSIDE"
"""The variable with the socket of `scrun outside`, below an engine with a network of its own."""

ENGINES_NETWORK = "SCRUN_ENGINES_NETWORK"
"""The variable of a supervisor that `scrun outside` has started, with that network's inode."""

SHIMS = "/scrun/shims/pyxis"
"""Ends the directory of `scrun shims pyxis`, whose srun calls scrun: scrun must not call it."""

_LINKS = 40
_NOBODY = 65534
"""The owner shown for files of users whom a user namespace does not map (user_namespaces(7))."""


def packages() -> str:
    """Return the directory of the package `scrun`, for `sys.path`."""
    import os

    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def python() -> "list[str]":
    """Return the interpreter, which reads nothing of the user's."""
    return [sys.executable, "-I", *(["-S"] if sys.flags.no_site else [])]


def python_code(code: str, *arguments: str) -> "list[str]":
    """Return the command of a process of its own that runs code, which may import scrun."""
    first = "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    return [*python(), "-c", first + code, packages(), *arguments]


class Untrusted(PermissionError):
    """Another user could have written a file that decides what runs; `strerror` says how."""


def read_regular(path: str, limit: int = LIMIT) -> bytes:
    """Read a regular file of bounded size, or raise OSError; never wait for a FIFO's writer."""
    return _read(path, limit)[1]


def open_regular(path: "str | bytes") -> int:
    """Open a regular file for reading; nothing else is opened, not even for a moment.

    A FIFO would wait for its writer, and a device may do something when it is opened.
    """
    found = posix.open(path, posix.O_PATH | posix.O_CLOEXEC)
    try:
        if not stat.S_ISREG(posix.fstat(found).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
        flags = posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC
        return posix.open(f"/proc/self/fd/{found}", flags)
    except OSError as error:
        error.filename = path
        raise
    finally:
        posix.close(found)


def _read(path: str, limit: int) -> tuple[posix.stat_result, bytes]:
    fd = open_regular(path)
    try:
        status = posix.fstat(fd)
        content = b""
        # in pieces of its size, to allocate no more memory than it needs
        while len(content) <= limit and (piece := posix.read(fd, min(status.st_size, limit) + 1)):
            content += piece
    finally:
        posix.close(fd)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit >> 20} MiB", path)
    return status, content


def has_record(directory: str) -> bool:
    """Tell whether a container exists: whether ROOT/ID is a directory."""
    try:
        return stat.S_ISDIR(posix.lstat(directory).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def keepers(root: str) -> list[str]:
    """Return the sockets of supervisors that may keep jobs, sorted; none without a directory."""
    try:
        names = [name for name in posix.listdir(root) if name.startswith((COMMON, BUILDS))]
    except FileNotFoundError:
        return []
    return sorted(name for name in names if _is_socket(f"{root}/{name}"))


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(posix.lstat(path).st_mode)
    except OSError:
        return False


def read_trusted(path: str, trusted: "Collection[int]" = (), limit: int = LIMIT) -> bytes:
    """Read a file that decides what runs; Untrusted if others could have written it."""
    status, content = _read(path, limit)
    if reason := replaceable(path, trusted):
        raise Untrusted(errno.EPERM, of_path(path, reason).removeprefix(f"{path}: "), path)
    now = posix.stat(path)
    if (now.st_ino, now.st_dev) != (status.st_ino, status.st_dev):
        raise Untrusted(errno.EPERM, "was replaced while it was read; try again", path)
    return content


def replaceable(path: str, trusted: "Collection[int]" = ()) -> str:
    """Tell how another user could write to a path or replace it; "" if none can.

    The rule is that of sshd's StrictModes: each component of the path, links included, belongs to
    root or the caller (or is `trusted`), and nobody else may write to it. Others may write to a
    directory with the sticky bit: there they cannot rename the files of others. A group is
    harmless if the caller is its only member. The path may be missing where nobody else can make
    it; the reason begins with the path at fault.

    In a user namespace all users that it does not map, root of the host among them, appear as
    nobody. So there nobody counts as root, from `/` or a mounted file system down to the first
    directory of another owner.
    """
    owners = {0, posix.geteuid(), *trusted}
    links = 0
    full = path if path.startswith("/") else f"{posix.getcwd()}/{path}"
    todo = full.split("/")[::-1]
    directory = "/"
    above = posix.stat("/")
    reason = _fault("/", above, above, owners)
    while todo and not reason:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            directory = directory.rpartition("/")[0] or "/"
            above = posix.stat(directory)
            continue
        here = f"{directory.rstrip('/')}/{name}"
        try:
            status = posix.lstat(here)
        except FileNotFoundError:
            break
        reason = _fault(here, status, above, owners)
        if not stat.S_ISLNK(status.st_mode):
            directory, above = here, status
            continue
        links += 1
        if links > _LINKS:
            raise OSError(errno.ELOOP, posix.strerror(errno.ELOOP), path)
        target = posix.readlink(here)
        todo += target.split("/")[::-1]
        if target.startswith("/"):
            directory, above = "/", posix.stat("/")
    return reason


def of_path(path: str, reason: str) -> str:
    """Put the examined path before a reason of `replaceable`."""
    return reason if reason.startswith(f"{path}: ") else f"{path}: is not safe to use: {reason}"


def _fault(
    path: str, status: posix.stat_result, above: posix.stat_result, owners: "Collection[int]"
) -> str:
    """Tell what is wrong with one component of a path; `above` is its directory's status."""
    uid, mode = status.st_uid, status.st_mode
    if uid not in owners and not _is_outer_root(status, above):
        return f"{path}: belongs to uid {uid}, who is neither root nor you"
    folder = stat.S_ISDIR(mode)
    if not (folder or stat.S_ISREG(mode)) or (folder and mode & stat.S_ISVTX):
        return ""
    remedy = ", or +t" if folder else ""
    if mode & stat.S_IWOTH:
        return f"{path}: everybody may write to it (chmod o-w{remedy})"
    if mode & stat.S_IWGRP and not _is_private(path, status.st_gid):
        return f"{path}: group {status.st_gid} may write to it (chmod g-w{remedy})"
    return ""


def _is_outer_root(status: posix.stat_result, above: posix.stat_result) -> bool:
    """Tell whether an owner appears as nobody because a user namespace does not map them."""
    if status.st_uid != _NOBODY or outer_id("uid", _NOBODY) == _NOBODY:
        return False
    return above.st_uid == _NOBODY or above.st_dev != status.st_dev


def _is_private(path: str, gid: int) -> bool:
    """Tell whether a group that may write has no member but root or the caller.

    That is root's group, or the one named after the user, which distributions make for each user.
    Whose primary group it is cannot be found out where a directory service does not list users.
    """
    import grp
    import pwd

    try:
        if "system.posix_acl_access" in posix.listxattr(path):
            return False  # these bits are then the ACL's mask
    except OSError:
        pass  # a file system without ACLs
    if (outer := outer_id("gid", gid)) < 0:
        return False
    try:
        group = grp.getgrgid(outer)
        user = pwd.getpwuid(real_id("uid")).pw_name
    except KeyError:
        return False
    return group.gr_name in ("root", user) and {"root", user}.issuperset(group.gr_mem)


def outer_id(kind: str, number: int) -> int:
    """Return a uid or gid (`kind`) as it is outside this user namespace; -1 if not mapped."""
    if not (lines := _id_maps.get(kind, "")):
        with open(f"/proc/self/{kind}_map", encoding="ascii") as file:
            lines = _id_maps[kind] = file.read()
    for line in lines.splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= number < inside + count:
            return outside + number - inside
    return -1


# a map is written once, and no process of ours enters another user namespace; a `create` reads
# it 30 times
_id_maps: dict[str, str] = {}


def real_id(kind: str) -> int:
    """Return this process's effective uid or gid (`kind`), outside its user namespace."""
    own = posix.geteuid() if kind == "uid" else posix.getegid()
    outer = outer_id(kind, own)
    return own if outer < 0 else outer


def looked(root: str) -> bool:
    """Tell whether a supervisor has cleaned up after dead ones since the machine's boot."""
    try:
        with open(f"{root}/{LOOKED}", "rb") as file:
            seen = file.read(64)
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return seen == file.read().strip()
    except OSError:
        return False
