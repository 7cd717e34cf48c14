"""The anchor: what `create` leaves behind for an engine to watch.

It is the process whose pid stands in `--pid-file`. It must be a descendant of `create`, because
conmon and containerd's shim are subreapers that wait for it, must hear signals, and must exit
with the container's status; and there is one per container for as long as it lives, so it has to
weigh nothing. A shell that waits on a socket does all that in 0.1 MiB:

* its socket (descriptor 3) is the supervisor's: a line `STATUS` from there is the end, end of
  file is the death of the supervisor, and is told by `LOST`;
* a signal is passed on as a line with its name. What became of it is the supervisor's business.
  One that comes in the microseconds in which a shell has looked for signals and does not read
  yet, right after its begin or after another signal, is passed on with the next;
* dash does not tell an interrupted `read` from end of file by its status (1 in both cases), so
  the traps leave a mark;
* the descriptor of the locked pid file stays open in it (number 9): the lock is the anchor's.

It leads a session of its own, as the first process of runc's and crun's containers does, so that
neither a hang-up nor a key of the terminal on which `create` was typed ends it. With a terminal of
the container's that is the session's controlling terminal, so that its hang-up and change of size
arrive here as SIGHUP and SIGWINCH. Then it is a bare Python: bash,
which is /bin/sh on some systems, restarts its `read` after SIGWINCH, and would pass a new size on
only with the next signal. There are few containers with terminals, and people sit before them.
"""

import _signal
import os
import sys

LOST = 125
"""Exit status of an anchor whose supervisor died, as docker and podman have it for own faults."""

PASSED_ON = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "WINCH")

_SCRIPT = f"""
for s in {" ".join(PASSED_ON)}; do trap "g=1; echo $s >&3" $s; done
trap '' PIPE
while g=0; do read -r s <&3 && exit "$s"; [ $g = 1 ] || exit {LOST}; done
"""


_WITH_TERMINAL = f"""
import _signal, os, sys
names = {{getattr(_signal, "SIG" + name): name for name in {PASSED_ON!r}}}
def tell(number, frame):
    try:
        os.write(3, names[number].encode() + b"\\n")
    except OSError:
        pass
for number in names:
    _signal.signal(number, tell)
os.close(os.open(sys.argv[1], os.O_RDWR))
said = b""
while not said.endswith(b"\\n"):
    try:
        part = os.read(3, 64)
    except ConnectionResetError:
        part = b""
    if not part:
        os._exit({LOST})
    said += part
os._exit(int(said))
"""


def leave(sock: int, lock: "int | None", terminal: "str | None") -> int:
    """Start the anchor as a child of this process.

    Args:
        sock: The anchor's end of the pair whose other end goes to the supervisor.
        lock: The descriptor of the locked pid file, if there is one.
        terminal: The path of the container's terminal, if it has one.

    Returns:
        The anchor's pid.
    """
    null = os.open("/dev/null", os.O_RDWR)
    actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
    # Numbers below 10 are all that a redirection of dash can name. Numbers that are in the way
    # are moved first: dup2 onto itself would leave close-on-exec set.
    sock = out_of_the_way(sock)
    kept = {0, 1, 2, 3}
    actions.append((os.POSIX_SPAWN_DUP2, sock, 3))
    if lock is not None:
        lock = out_of_the_way(lock)
        actions.append((os.POSIX_SPAWN_DUP2, lock, 9))
        kept.add(9)
    # An inherited pipe kept open here would keep its reader waiting for the container's life.
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd not in kept and _inherited(fd):
            actions.append((os.POSIX_SPAWN_CLOSE, fd))
    try:
        program, words = "/bin/sh", ["-c", _SCRIPT]
        if terminal is not None:
            program, words = sys.executable, ["-I", "-S", "-c", _WITH_TERMINAL, terminal]
        return os.posix_spawn(
            program,
            ["scrun-anchor", *words],
            {},
            file_actions=actions,
            setsid=True,
            # Ignored signals stay ignored over exec, and a shell cannot trap those: a job of
            # a non-interactive shell ignores INT and QUIT, one under nohup HUP.
            setsigdef=[getattr(_signal, "SIG" + name) for name in (*PASSED_ON, "PIPE")],
            setsigmask=[],
        )
    finally:
        os.close(null)
        os.close(sock)
        if lock is not None:
            os.close(lock)


def out_of_the_way(fd: int) -> int:
    """Duplicate a descriptor out of the way of the numbers that the anchor uses; close-on-exec."""
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


def _inherited(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:  # the directory's own descriptor, closed by now
        return False


class PidFile:
    """The file of `--pid-file`: appears whole, under lock (flock(2)) for the anchor's life.

    Its directory may be everybody's: a name that somebody else has taken is an error, and no link
    is followed.

    Attributes:
        lock: The descriptor that holds the lock; a duplicate of it belongs to the anchor.
    """

    __slots__ = ("_path", "_temporary", "lock")

    def __init__(self, path: str) -> None:
        """Make the file beside its place, so that what is wrong there is known before a job is.

        Raises:
            OSError: The directory is missing or may not be written, or something else than a
                file is there.
        """
        import fcntl

        self._path = path
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
        """Write the pid, decimal and without a newline.

        Raises:
            OSError: The file system is full.
        """
        try:
            os.write(self.lock, b"%d" % pid)
        except OSError as error:
            raise self._named(error) from None

    def publish(self) -> None:
        """Give the file its name.

        Raises:
            OSError: Somebody has taken the name meanwhile.
        """
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
