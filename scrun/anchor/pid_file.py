"""The file of `--pid-file`, whose lock the anchor holds (see `scrun.anchor.shell`)."""

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from scrun.anchor.shell import AnchorProcess


class PidFile:
    """The file of `--pid-file`: it appears complete, and locked (flock(2)) while the anchor lives.

    Its directory may be world-writable: a name that somebody else has taken is an error, and no
    link is followed.

    Attributes:
        lock: The descriptor that holds the lock; the anchor has a duplicate of it.
    """

    __slots__ = ("_anchor", "_path", "_temporary", "lock")

    def __init__(self, path: str) -> None:
        """Make the file under a temporary name, so that errors show before a job is requested.

        Raises:
            OSError: The directory is missing or not writable, or the path exists and is not a
                file.
        """
        import fcntl

        self._path = path
        self._anchor: AnchorProcess | None = None
        directory = path[: path.rfind("/") + 1]
        self._temporary = f"{directory}.scrun-{posix.getpid()}-{posix.urandom(4).hex()}"
        flags = posix.O_RDWR | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC
        try:
            self._check()
            self.lock = posix.open(self._temporary, flags, 0o600)
        except OSError as error:
            raise self._named(error) from None
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        posix.fchmod(self.lock, 0o644)  # only now can somebody else open and lock it

    def _check(self) -> None:
        """Refuse a path that is no file: rename(2) would replace even a device."""
        try:
            kind = posix.lstat(self._path).st_mode & 0o170000
        except FileNotFoundError:
            return
        if kind not in (0o100000, 0o120000):
            raise OSError(22, "exists and is not a file")

    def write(self, pid: int) -> None:
        """Write the pid, decimal and without a newline; replace any other.

        Raises:
            OSError: The file system is full.
        """
        try:
            posix.pwrite(self.lock, b"%d" % pid, 0)
            posix.ftruncate(self.lock, len(b"%d" % pid))
        except OSError as error:
            raise self._named(error) from None

    def name_anchor(self, pid: int, anchor: "AnchorProcess | None" = None) -> None:
        """Write the pid of an anchor.

        Args:
            pid: The pid.
            anchor: The anchor, if it is left behind: `publish` waits until it is settled.

        Raises:
            OSError: The file system is full.
        """
        self._anchor = anchor
        self.write(pid)

    def name_process(self, pid: int) -> None:
        """Write the pid of a process that takes the anchor's place.

        Raises:
            OSError: The file system is full.
        """
        if self._anchor is not None:
            self._anchor.give_up()
            self._anchor = None
        self.write(pid)

    def publish(self) -> None:
        """Give the file its name; from then on an engine may work with the process.

        Raises:
            OSError: Somebody has taken the name meanwhile, or the anchor has died.
        """
        if self._anchor is not None:
            self._anchor.settle()
        try:
            posix.rename(self._temporary, self._path)
        except OSError as error:
            raise self._named(error) from None

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, f"--pid-file {self._path}")

    def discard(self) -> None:
        """Remove the file, unless it was published."""
        try:
            posix.unlink(self._temporary)
        except OSError:
            pass  # it was published, or its directory is gone
