"""The file of `--pid-file`, whose lock the anchor holds (see `scrun.anchor.shell`)."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from scrun.anchor.shell import AnchorProcess


class PidFile:
    """The file of `--pid-file`: appears whole, under lock (flock(2)) for the anchor's life.

    Its directory may be everybody's: a name that somebody else has taken is an error, and no link
    is followed.

    Attributes:
        lock: The descriptor that holds the lock; a duplicate of it belongs to the anchor.
    """

    __slots__ = ("_left", "_path", "_temporary", "lock")

    def __init__(self, path: str) -> None:
        """Make the file beside its place, so that what is wrong there is known before a job is.

        Raises:
            OSError: The directory is missing or may not be written, or something else than a
                file is there.
        """
        import fcntl

        self._path = path
        self._left: AnchorProcess | None = None
        directory = os.path.dirname(path) or "."
        self._temporary = f"{directory}/.scrun-{os.getpid()}-{os.urandom(4).hex()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._check()
            self.lock = os.open(self._temporary, flags, 0o600)
        except OSError as error:
            raise self._named(error) from None
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fchmod(self.lock, 0o644)  # only now somebody else can open it, and lock it

    def _check(self) -> None:
        """Refuse a place that the file could not take, or must not: rename(2) takes a device's."""
        try:
            kind = os.lstat(self._path).st_mode & 0o170000
        except FileNotFoundError:
            return
        if kind not in (0o100000, 0o120000):
            raise OSError(22, "is there, and is not a file")

    def write(self, pid: int) -> None:
        """Write the pid, decimal and without a newline, in the place of any other.

        Raises:
            OSError: The file system is full.
        """
        try:
            os.pwrite(self.lock, b"%d" % pid, 0)
            os.ftruncate(self.lock, len(b"%d" % pid))
        except OSError as error:
            raise self._named(error) from None

    def names(self, pid: int, left: "AnchorProcess | None" = None) -> None:
        """Write the pid of an anchor.

        Args:
            pid: It.
            left: The anchor, if it is left behind: `publish` waits until it is settled.

        Raises:
            OSError: The file system is full.
        """
        self._left = left
        self.write(pid)

    def names_instead(self, pid: int) -> None:
        """Write the pid of a process that takes the anchor's place.

        Raises:
            OSError: The file system is full.
        """
        if self._left is not None:
            self._left.give_up()
            self._left = None
        self.write(pid)

    def publish(self) -> None:
        """Give the file its name; from then on an engine may work with the process.

        Raises:
            OSError: Somebody has taken the name meanwhile, or there is no anchor any more.
        """
        if self._left is not None:
            self._left.settle()
        try:
            os.rename(self._temporary, self._path)
        except OSError as error:
            raise self._named(error) from None

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, f"--pid-file {self._path}")

    def discard(self) -> None:
        """Remove what was not published."""
        try:
            os.unlink(self._temporary)
        except OSError:
            pass  # it is published, or its directory is gone
