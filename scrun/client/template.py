"""What the containers of a job's tasks have in common: only the first one is staged.

32 tasks of `srun -n32 scrun run IMAGE` on a node want 32 containers that differ in Slurm's
variables alone. The first goes the usual way, by a supervisor, which leaves a template of what it
has made in `ROOT/@templates/KEY`. The others make theirs from that (`scrun.client.replay`). A
caller that finds no template makes the first container; others wait for it. KEY is a digest of all
that a caller says and is; the template has whatever else the first container depended on.

This is for `run IMAGE` in a task, so it imports little.
docs/decisions/tasks.md explains why.
"""

import fcntl
import marshal
import posix
import time
from _blake2 import blake2s

from scrun.cli.parse import Parsed, record_root
from scrun.client.supervisor_name import place
from scrun.core.place import contents, is_of_task
from scrun.core.templates import FOLDER, VARIABLE, signature
from scrun.core.version import VERSION
from scrun.settings.file import sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_OF_NOBODY = (b"OLDPWD", b"PWD", b"SHLVL", b"TMPDIR", b"_")
"""No container gets these of its caller. slurmstepd sets TMPDIR for the first task only."""

_FRESH = 60.0
"""Seconds for which nobody tries again, where no template was possible."""

_LARGEST = 4 << 20
_READ = posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NOFOLLOW | posix.O_NONBLOCK
_SHARED = frozenset(
    (
        "all-env", "config-file", "entrypoint", "env", "home", "mount", "no-entrypoint", "no-home",
        "read-only", "root", "slurm-conf", "user", "workdir",
    )
)  # fmt: skip
"""The options that may be given: with others the container has a record that stays, a terminal,
messages, or a place of its own."""


class Template:
    """What was found for a call; a context manager. `content` is missing without a template."""

    def __init__(self, parsed: Parsed) -> None:
        """Look for it; wait for whoever makes the first container of the kind."""
        self.root = ""
        self.content: dict[str, object] | None = None
        self._path, self._lock = "", -1
        if not _may_share(parsed):
            return
        self.root = record_root(parsed)
        try:
            self._find(_key(parsed))
        except OSError:
            self.close()  # the usual way has the words for it

    def __enter__(self) -> "Template":  # noqa: PYI034 - typing is not imported here
        return self

    def __exit__(self, *error: object) -> None:
        self.made("")

    def _find(self, key: str) -> None:
        folder = f"{self.root}/{FOLDER}"
        for directory in (self.root, folder):
            try:
                posix.mkdir(directory, 0o700)
            except FileExistsError:
                if not _is_own(directory):
                    return
        self._path = f"{folder}/{key}"
        if self._read():
            return
        self._lock = posix.open(f"{self._path}.lock", _READ | posix.O_RDWR | posix.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if self._read():
            self.close()
        else:
            posix.environ[VARIABLE] = key.encode()

    def _read(self) -> bool:
        """Read it; return whether that says all: what it is, or that there can be none."""
        try:
            fd = posix.open(self._path, _READ)
        except OSError:
            return False
        try:
            status = posix.fstat(fd)
            if status.st_uid != posix.geteuid() or not 0 <= status.st_size <= _LARGEST:
                return False
            content = b""
            while part := posix.read(fd, status.st_size + 1):
                content += part
        finally:
            posix.close(fd)
        if not content:
            return time.time() - status.st_mtime < _FRESH
        try:
            found = marshal.loads(content)
            if is_current(found):
                self.content = found
        except (EOFError, ValueError, TypeError, KeyError):
            pass  # it was cut off when the machine went down
        return self.content is not None

    def made(self, record: str) -> None:
        """Let the others go on; without a template they do what the first one has done."""
        del record
        if self._lock < 0:
            self.close()
            return
        if not self._read():
            try:
                flags = posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC
                posix.close(posix.open(self._path, _READ | flags, 0o600))
                posix.utime(self._path)
            except OSError:
                pass
        self.content = None
        self.close()

    def discard(self) -> None:
        self.content = None
        try:
            posix.unlink(self._path)
        except OSError:
            pass

    def close(self) -> None:
        posix.environ.pop(VARIABLE, None)
        if self._lock >= 0:
            posix.close(self._lock)
            self._lock = -1


def is_current(content: "dict[str, object]") -> bool:
    """Tell whether nothing has changed on which the first container depended."""
    until, paths = content["until"], content["depends"]
    return time.time() < until and all(  # type: ignore[operator]
        signature(path) == seen
        for path, seen in paths  # type: ignore[attr-defined]
    )


def _is_own(directory: str) -> bool:
    """Tell whether a directory is ours, and nobody else may write to it."""
    status = posix.lstat(directory)
    is_directory = status.st_mode & 0o170000 == 0o040000
    return is_directory and status.st_uid == posix.geteuid() and not status.st_mode & 0o022


def _may_share(parsed: Parsed) -> bool:
    """Tell whether a call may be like others of its step: nothing in it is its own."""
    if not place().task or not _SHARED.issuperset(parsed.options):
        return False
    env = posix.environ
    if any(name.startswith(b"PMIX") or name == VARIABLE for name in env):
        return False  # PMIx's directory is mounted, which is a step's own
    given = [*parsed.texts("env"), *[""] * bool(parsed.text("env"))]
    if not all("=" in entry for entry in given):
        return False  # the value is one of ours, perhaps of the task's
    return not (posix.isatty(0) and posix.isatty(1))


def _key(parsed: Parsed) -> str:
    """Return a digest of all that a call says, and of what its process is and has."""
    posix.umask(umask := posix.umask(0o077))
    named = parsed.text("config-file")
    mounted = [text.partition(":")[0] for text in parsed.texts("mount")]
    image = parsed.operands[0]
    paths = [path for path, _ in sources.files(sources.environment(), named)]
    own = (
        VERSION, sorted(map(repr, parsed.options.items())), parsed.operands, umask,
        posix.getresuid(), posix.getresgid(), posix.getgroups(),
        [posix.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("user", "mnt", "pid")],
        posix.uname().nodename, contents("/proc/sys/kernel/random/boot_id"), posix.getcwdb(),
        [(path, signature(path)) for path in (*paths, image)],
        [_identity(source) for source in mounted],
        sorted(_common(posix.environ.items())),
    )  # fmt: skip
    return blake2s(repr(own).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _identity(path: str) -> "tuple[int, ...] | None":
    """Return what a mount's source is; what is in it does not count."""
    seen = signature(path)
    return seen and seen[:2]


def _common(
    environment: "Iterable[tuple[bytes, bytes]]",
) -> "Iterable[tuple[bytes, bytes]]":
    """Return those variables that Slurm does not set for each task."""
    return [
        (name, value)
        for name, value in environment
        if name == b"SLURM_CONF" or not (is_of_task(name) or name in _OF_NOBODY)
    ]
