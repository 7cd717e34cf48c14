"""The file of `--pid-file`, whose lock the anchor holds (see `scrun.anchor.shell`)."""

import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from scrun.anchor.shell import AnchorProcess


_OFD_SETLK = 37  # fcntl(2), of a 64-bit Linux: the lock of an open file, which processes share
_READ, _WRITE = 0, 1
_NO_TEMPORARY_FILES = (21, 22, 95)  # EISDIR EINVAL EOPNOTSUPP
_LONGEST = 255  # NAME_MAX
_LOCKED = (11, 13)  # EAGAIN EACCES


class PidFile:
    """The file of `--pid-file`: it appears complete, and locked while the anchor lives.

    Both kinds of locks are there, flock(2) and fcntl(2): Slurm's tools and those that start
    services see one or the other. A file that somebody holds locked, such as that of a living
    container, is not replaced. Until it is published the file has no name, so nothing stays if
    this process is killed; where the file system has no such files, it has a temporary name.

    Its directory may be world-writable: a name that somebody else has taken is an error, and no
    link is followed.

    Attributes:
        lock: The descriptor that holds the lock; the anchor has a duplicate of it.
    """

    def __init__(self, path: str) -> None:
        """Make the file without a name, so that errors show before a job is requested."""
        import fcntl

        self._path = path
        self._anchor: AnchorProcess | None = None
        directory = path[: path.rfind("/") + 1]
        self._temporary = f"{directory}.scrun-{posix.getpid()}-{posix.urandom(4).hex()}"
        self._replaced = -1
        try:
            if len(path.rpartition("/")[2].encode()) > _LONGEST:  # else only `publish` would fail
                raise OSError(36, "File name too long")
            self._check()
            self.lock = self._make(directory or ".")
        except OSError as error:
            self._let_go()
            raise self._named(error) from None
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.fcntl(self.lock, _OFD_SETLK, _whole(_WRITE))
        except OSError:  # on NFS it is the same lock
            pass
        posix.fchmod(self.lock, 0o644)  # only now can somebody else open and lock it

    def _make(self, directory: str) -> int:
        flags = posix.O_RDWR | posix.O_CLOEXEC
        self._is_named = False
        try:
            return posix.open(directory, flags | posix.O_TMPFILE, 0o600)
        except OSError as error:
            if error.errno not in _NO_TEMPORARY_FILES:
                raise
        self._is_named = True
        return posix.open(self._temporary, flags | posix.O_CREAT | posix.O_EXCL, 0o600)

    def _check(self) -> None:
        """Refuse a locked path, or what is not a file; hold the lock of a file to be replaced."""
        import fcntl

        try:
            kind = posix.lstat(self._path).st_mode & 0o170000
        except FileNotFoundError:
            return
        if kind == 0o120000:
            return
        if kind != 0o100000:
            raise OSError(22, "exists and is not a file")
        flags = posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC
        try:
            self._replaced = posix.open(self._path, flags)
        except OSError:  # of somebody else, or removed meanwhile
            return
        try:
            fcntl.flock(self._replaced, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.fcntl(self._replaced, _OFD_SETLK, _whole(_READ))
        except OSError as error:
            if error.errno in _LOCKED:
                # not its own number: others have that for want of processes
                raise OSError(
                    16, "is locked: its process lives; end that, or name another file"
                ) from None

    def _let_go(self) -> None:
        if self._replaced >= 0:
            posix.close(self._replaced)
            self._replaced = -1

    def write(self, pid: int) -> None:
        try:
            posix.pwrite(self.lock, b"%d" % pid, 0)
            posix.ftruncate(self.lock, len(b"%d" % pid))
        except OSError as error:
            raise self._named(error) from None

    def name_anchor(self, pid: int, anchor: "AnchorProcess | None" = None) -> None:
        """Write the pid of an anchor; `publish` waits until one that is left behind is settled."""
        self._anchor = anchor
        self.write(pid)

    def name_process(self, pid: int) -> None:
        """Write the pid of a process that takes the anchor's place."""
        if self._anchor is not None:
            self._anchor.give_up()
            self._anchor = None
        self.write(pid)

    def publish(self) -> None:
        """Give the file its name; from then on an engine may work with the process.

        Raises OSError if somebody has taken the name meanwhile, or the anchor has died.
        """
        if self._anchor is not None:
            self._anchor.settle()
        try:
            if not self._is_named:
                # a descriptor, although the path is absolute: else Python calls link(2)
                posix.link(f"/proc/self/fd/{self.lock}", self._temporary, src_dir_fd=self.lock)
                self._is_named = True
            posix.rename(self._temporary, self._path)
            self._is_named = False
        except OSError as error:
            raise self._named(error) from None
        self._let_go()

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, f"--pid-file {self._path}")

    def discard(self) -> None:
        self._let_go()
        if self._is_named:
            try:
                posix.unlink(self._temporary)
            except OSError:
                pass  # its directory is gone


def _whole(kind: int) -> bytes:
    """Return struct flock: a lock of a whole file."""
    return kind.to_bytes(2, sys.byteorder) + bytes(30)
