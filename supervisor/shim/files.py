"""The shim's directory: made, locked and removed; and those that dead shims have left."""

import _signal as signal  # without enum, which takes longer than hello
import fcntl
import os
import stat
from _operator import _compare_digest as compare_digest  # hmac brings OpenSSL

from scrun.supervisor.wire.frames import RANDOM, proof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Look = tuple[str, int, int | None]

_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_RANDOM = 6
_ATTEMPTS = 20
_EVERYBODYS = ("/tmp", "/var/tmp")
_MEMORY = "/dev/shm"
_ROOM = 16 << 20  # for hundreds of containers
_LOCK = "lock"
_PATIENCE = 30  # seconds
_NOBODY = 65534
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

DIFFER = "differ on the node"

LEFT = "site.json"
"""The file in a container's directory with what is to be run and removed after it, by oci.conf."""


class ShimDirectory:
    """The shim's own directory, locked while it lives."""

    def __init__(self, path: str, lock: int) -> None:
        """Use `make_directory`."""
        self.path = path
        self.lock = lock

    def remove(self) -> None:
        remove_tree(self.path)


def make_directory(env: "Mapping[str, str]", key: bytes) -> ShimDirectory:
    """Make the shim's directory, which nobody else may enter.

    Args:
        key: What supervisors and shims of this user know, and no container: it marks what is a
            shim's.

    Raises:
        OSError: It cannot be made anywhere.
    """
    first = None
    for folder in _places(env):
        try:
            made = _make_in(own_only(folder))
            os.pwrite(made.lock, _mark(key, made.path), 0)
            return made
        except OSError as error:
            first = first or error
    raise first or FileNotFoundError(2, "No folder for temporary files")


def _mark(key: bytes, path: str) -> bytes:
    return proof(key, b"directory of a shim", os.fsencode(os.path.basename(path)))


def folders(env: "Mapping[str, str]") -> "list[str]":
    """Return where on the node's disks files of ours may be, the best place first."""
    own = env.get("TMPDIR", "")
    return [own if own.startswith("/") else "/tmp", "/var/tmp"]


def own_only(folder: str) -> str:
    """Return a folder by its real path, if nobody else can replace what the user makes there.

    Each component belongs to root or the user; others may write to it only with the sticky bit.
    Whether a group has members is not asked: a name service may hang.

    Raises:
        OSError: Somebody can, or it is not there.
    """
    real = path = os.path.realpath(folder)
    while True:
        status = os.stat(path)
        shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if shared or not (status.st_uid in (0, os.geteuid()) or _is_unmapped(status.st_uid)):
            raise PermissionError(1, "Others could replace what is made there", path)
        if path == "/":
            return real
        path = os.path.dirname(path)


def _is_unmapped(uid: int) -> bool:
    """Tell whether an owner stands for users that our user namespace does not have, as root."""
    if uid != _NOBODY:
        return False
    with open("/proc/self/uid_map") as file:
        maps = [[int(word) for word in line.split()] for line in file]
    return not any(inside <= uid < inside + count for inside, _, count in maps)


def _places(env: "Mapping[str, str]") -> "list[str]":
    """Return where small files of ours may be, the best place first.

    A disk may take a millisecond to make a file, and a container needs a dozen. A site that
    sets a TMPDIR for each job means it, and may empty it after the job.
    """
    own, *others = folders(env)
    if own in _EVERYBODYS and _has_room(_MEMORY):
        return [_MEMORY, own, *others]
    return [own, _MEMORY, *others]


def _has_room(folder: str) -> bool:
    try:
        space = os.statvfs(folder)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize >= _ROOM


def _make_in(folder: str) -> ShimDirectory:
    for _ in range(_ATTEMPTS):
        letters = "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(_RANDOM))
        path = os.path.join(folder, f"scrun-{os.geteuid()}-{letters}")
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            continue
        lock = _locked(path, os.O_CREAT)
        if lock is not None:
            return ShimDirectory(path, lock)
    raise FileExistsError(17, f"No free name in {folder}")


def _locked(path: str, create: int = 0) -> "int | None":
    """Lock a directory; None if somebody else has, or has removed it."""
    name = os.path.join(path, _LOCK)
    try:
        lock = os.open(name, os.O_RDWR | os.O_NOFOLLOW | create, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.lstat(name)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None


def others(env: "Mapping[str, str]", own: str) -> "list[str]":
    """Return the directories of the user's other shims on this node."""
    start, found = f"scrun-{os.geteuid()}-", []
    for given in {*folders(env), _MEMORY, "/tmp"}:
        try:
            folder = own_only(given)
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            path = os.path.join(folder, name)
            ours = name.startswith(start) and len(name) == len(start) + _RANDOM
            if ours and path != own and is_private(path):
                found.append(path)
    return found


def is_private(path: str) -> bool:
    """Tell whether a path is a directory of the user's, and nobody else may enter it."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    private = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o700
    return private and status.st_uid == os.geteuid()


def remove_left(paths: "Sequence[str]", runtimes: "Sequence[Sequence[str]]", key: bytes) -> None:
    """Delete containers and files of shims that are dead. Blocks; for a process of its own.

    A container that sees /tmp can make a directory there like theirs. A runtime would call the
    hooks, and a shell the command, that are in it: so only what has a shim's mark is obeyed.

    Args:
        paths: What `others` found.
        runtimes: Each runtime's name, and its program with options up to `--root`.
    """
    signal.alarm(_PATIENCE)
    for path in paths:
        lock = _locked(path)
        if lock is None:
            _remove_empty(path)
            continue
        is_a_shims = compare_digest(os.pread(lock, RANDOM + 1, 0), _mark(key, path))
        for name, *command in runtimes if is_a_shims else ():
            root = os.path.join(path, name)
            for container in sorted(os.listdir(root)) if os.path.isdir(root) else ():
                _wait([*command, root, "delete", "--force", "--", container])
        for name in sorted(os.listdir(path)) if is_a_shims else ():
            _remove_of_site(os.path.join(path, name, LEFT))
        remove_tree(path)
        os.close(lock)


def _remove_of_site(left: str) -> None:
    """Delete a container of an oci.conf's commands, if that file tells of one."""
    try:
        with open(left) as file:
            text = file.read()
    except OSError:
        return
    from .json_text import loads

    try:
        told = loads(text)
    except ValueError:  # its shim was killed while it wrote
        return
    _wait(["/bin/sh", "-c", "exec >/dev/null 2>&1\n" + told["delete"]])
    remove_made(told["made"])


def remove_made(made: "Sequence[str]") -> None:
    """Remove a task's directory, and the step's if no other task has one there."""
    if not made:
        return
    task, step = made
    remove_tree(task)
    try:
        names = os.listdir(step)
    except OSError:
        return
    if not any(name.startswith("task-") for name in names):
        remove_tree(step)


def _remove_empty(path: str) -> None:
    """Remove a directory if it is empty: its shim ended before it had the lock."""
    try:
        os.rmdir(path)
    except OSError:
        pass


def _wait(command: "list[str]") -> None:
    pid = os.fork()
    if pid == 0:
        try:
            os.execv(command[0], command)
        finally:
            os._exit(127)
    os.waitpid(pid, 0)


def plain(error: Exception) -> str:
    """Return an error's text, without what Python adds to the system's."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def write_private(path: str, text: str) -> None:
    """Write a file that only the user may read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(text)


def remove_file(path: str) -> None:
    """Remove a file, which need not exist."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def remove_tree(path: str) -> None:
    """Remove a directory and what is in it, as far as that is possible; the lock last.

    No link is followed, nor one that takes the place of a directory meanwhile.
    """
    try:
        folder = os.open(path, _FOLDER)
    except OSError:
        return
    try:
        _empty(folder)
    except (OSError, RecursionError):
        pass
    finally:
        os.close(folder)
    _remove_empty(path)


def _empty(folder: int) -> None:
    for name in sorted(os.listdir(folder), key=lambda name: name == _LOCK):
        try:
            inner = os.open(name, _FOLDER, dir_fd=folder)
        except OSError:  # it is not a directory, or cannot be entered
            inner = -1
        try:
            if inner < 0:
                os.unlink(name, dir_fd=folder)
            else:
                _empty(inner)
                os.rmdir(name, dir_fd=folder)
        except OSError:
            pass
        finally:
            if inner >= 0:
                os.close(inner)


def unlike(looks: "Sequence[Look]") -> "list[int]":
    """Return the numbers of those that are others here.

    Args:
        looks: Of each its path, its inode, and the seconds of its time if that may not differ.
    """
    return [number for number, look in enumerate(looks) if not _is_there(*look)]


def _is_there(path: str, inode: int, seconds: "int | None") -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return status.st_ino == inode and seconds in (None, status.st_mtime_ns // 10**9)
