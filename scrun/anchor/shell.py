"""The anchor: the process that `create` leaves behind for an engine to watch.

Its pid stands in `--pid-file`. It must be a descendant of `create`, because conmon and
containerd's shim are subreapers that wait for it; it must forward signals, and exit with the
container's status. There is one per container, for the container's whole life, so it must be
small. A shell that waits on a socket does all that in 0.1 MiB:

* its socket (descriptor 3) leads to the supervisor: a line `STATUS` from there ends it; end of
  file means that the supervisor died, and it exits with `LOST`;
* it forwards a signal as a line with the signal's name. A signal that arrives in the microseconds
  after the shell has checked for signals and before it reads, right after its start or after
  another signal, is forwarded with the next one;
* dash's `read` has the same status (1) after an interrupt and at end of file, so the traps set a
  variable;
* the descriptor of the locked pid file stays open in it (number 9), so the anchor holds the lock.

It leads a session of its own, as the first process of a runc or crun container does, so that
neither a hang-up nor a key of the terminal on which `create` was typed ends it. If the container
has a terminal, that is the session's controlling terminal, so that a hang-up or a change of its
size arrives as SIGHUP or SIGWINCH. Then the anchor is a bare Python: bash, which is /bin/sh on
some systems, restarts its `read` after SIGWINCH, and would forward a new size only with the next
signal. Few containers have terminals.

Engines take its pid for the container's and work in its namespaces: `podman cp` enters its mount
namespace, and the network for a container with mapped users is made in its network namespace. So
it has namespaces of its own, of every kind. Its root directory is empty until the supervisor shows
the container's files there (`containers.shown_files`). An intermediate process makes the anchor
and removes the host's root from its reach once its program is loaded; for the reasons see
docs/decisions/pid-namespaces.md.
"""

import _signal
import posix
import sys

from scrun.protocol import wire
from scrun.protocol.anchor import LOST, PASSED_ON

_EMPTY = "/proc"
"""Where the empty root is mounted first: a directory that every host has."""

# `podman top ID` and `docker top ID` show the anchor with its command line, which begins with this
_EXPLAINED = ": stands here for a container on the cluster, whose processes 'exec ID ps' shows; "

_SCRIPT = (
    f'{_EXPLAINED}for s in {" ".join(PASSED_ON)}; do trap "g=1; echo $s >&3" $s; done; '
    "trap '' PIPE; exec 4>&-; "
    f'while g=0; do read -r s <&3 && exit "$s"; [ $g = 1 ] || exit {LOST}; done'
)

_WITH_TERMINAL = f"""
import _signal, posix
names = {{getattr(_signal, "SIG" + name): name for name in {PASSED_ON!r}}}
def forward(number, frame):
    try:
        posix.write(3, names[number].encode() + b"\\n")
    except OSError:
        pass
for number in names:
    _signal.signal(number, forward)
posix.close(4)
status = b""
while not status.endswith(b"\\n"):
    try:
        part = posix.read(3, 64)
    except ConnectionResetError:
        part = b""
    if not part:
        posix._exit({LOST})
    status += part
posix._exit(int(status))
"""


class AnchorProcess:
    """An anchor that is about to be left behind, as a grandchild of this process.

    It is made concurrently with this process: `pid` waits for the first half, `settle` for the
    rest.

    An ordinary user on a host without user namespaces gets an anchor in the caller's namespaces,
    and the container's log says so. Nobody else with the same rights could enter other ones.
    """

    def __init__(
        self, container: str, sock: int, lock: "int | None", terminal: "str | None"
    ) -> None:
        """Start to make it.

        `sock` is the anchor's end of the socket pair, whose other end goes to the supervisor; it
        is closed here as soon as the anchor has it. `lock` holds the pid file's lock; `terminal`
        is the path of the container's.
        """
        self._name = f"scrun-anchor {container}"
        self._sock, self._lock, self._terminal = sock, lock, terminal
        self._pid = 0
        self._begin(apart=True)

    @property
    def pid(self) -> int:
        """Its process id; OSError if it could not be made."""
        if not self._pid:
            try:
                try:
                    self._pid = int(self._next())
                except _UnprivilegedError:
                    self._reap()
                    self._begin(apart=False)
                    self._pid = int(self._next())
            except BaseException:
                self.give_up()
                raise
            finally:
                posix.close(self._sock)
        return self._pid

    def settle(self) -> None:
        """Wait until the host's root is out of its reach; OSError if it has died."""
        if self.pid and self._maker:
            try:
                self._next()
            finally:
                self._reap()

    def give_up(self) -> None:
        """Reap its maker: the anchor is not needed any more, and has been told to end."""
        if self._maker:
            self._reap()

    def _begin(self, *, apart: bool) -> None:
        self._said = b""
        self._told, telling = posix.pipe()
        self._maker = posix.fork()
        if self._maker == 0:
            try:
                _make(self._name, self._sock, self._lock, self._terminal, telling, apart=apart)
            except BaseException as error:
                kind = "unprivileged" if isinstance(error, _UnprivilegedError) else "failed"
                posix.write(telling, wire.encoded(f"{kind} {_reason(error)}\n"))
            finally:
                posix._exit(0)
        posix.close(telling)

    def _next(self) -> bytes:
        while b"\n" not in self._said:
            part = posix.read(self._told, 4096)
            if not part:
                break
            self._said += part
        line, _, self._said = self._said.partition(b"\n")
        if line.isdigit():
            return line
        word, _, why = line.partition(b" ")
        kind = _UnprivilegedError if word == b"unprivileged" else OSError
        reason = wire.decoded(why) or "its maker was killed"
        raise kind(0, f"cannot make a process for the engine to watch: {reason}")

    def _reap(self) -> None:
        posix.close(self._told)
        posix.waitpid(self._maker, 0)
        self._maker = 0


class _UnprivilegedError(OSError):
    """The caller may not make namespaces."""


def _reason(error: BaseException) -> str:
    if not isinstance(error, OSError):
        return repr(error)
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


def _make(
    name: str, sock: int, lock: "int | None", terminal: "str | None", telling: int, *, apart: bool
) -> None:
    """Make the anchor, report its pid, and remove the host's root from its reach."""
    inherited = [int(name) for name in posix.listdir("/proc/self/fd")]
    null = posix.open("/dev/null", posix.O_RDWR)
    loaded, loading = posix.pipe()
    fds = {0: null, 1: null, 2: null, 3: sock, 4: loading}
    if lock is not None:
        fds[9] = lock
    # A redirection in dash can only name descriptors below 10. All of these are moved out of the
    # way first: dup2 onto itself would leave close-on-exec set.
    fds = {number: out_of_the_way(fd) for number, fd in fds.items()}
    posix.close(loading)
    if apart:
        _go_apart()
    anchor = posix.fork()
    if anchor == 0:
        try:
            _become(name, fds, inherited, terminal, apart=apart)
        except BaseException as error:
            posix.write(fds[4], wire.encoded(_reason(error)))
        finally:
            posix._exit(LOST)
    posix.close(fds[4])
    posix.write(telling, b"%d\n" % anchor)
    try:
        # its program closes the pipe, or its death does
        why = posix.read(loaded, 4096)
        ended = posix.waitid(posix.P_PID, anchor, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT)
        # it may have been told its status already: that of a program of `exec`
        if why or (ended and ended.si_code != posix.CLD_EXITED):
            raise OSError(0, wire.decoded(why) or "it was killed")
        if apart:
            from scrun.core.namespaces import become_root

            posix.chdir(_EMPTY)
            become_root()
    except BaseException:
        posix.kill(anchor, 9)  # still an unreaped child, so the pid is valid
        raise
    posix.write(telling, b"0\n")


def _go_apart() -> None:
    from scrun.core import namespaces as ns

    kinds = ns.NEW_MOUNT | ns.NEW_PID | ns.NEW_IPC | ns.NEW_UTS | ns.NEW_NETWORK | ns.NEW_CGROUP
    uid, gid = posix.geteuid(), posix.getegid()
    unprivileged = False
    try:
        try:
            ns.unshare(kinds)
        except PermissionError:
            unprivileged = True
            ns.unshare(kinds | ns.NEW_USER)
            ns.map_own_ids(uid, gid)
        ns.mount("none", "/", None, ns.RECURSIVE | ns.PRIVATE)
        safe = ns.NO_SUID | ns.NO_DEVICES | ns.NO_PROGRAMS
        ns.mount("scrun", _EMPTY, "tmpfs", safe, "mode=755")
        posix.mkdir(f"{_EMPTY}/proc")
        ns.mount(None, _EMPTY, None, ns.REMOUNT | ns.BIND | ns.READ_ONLY | safe)
    except OSError as error:
        if unprivileged:
            raise _UnprivilegedError(error.errno, error.strerror, error.filename) from None
        raise


def _become(
    name: str,
    fds: "dict[int, int]",
    inherited: "list[int]",
    terminal: "str | None",
    *,
    apart: bool,
) -> None:
    """Become the anchor's program: a shell, or a bare Python.

    It gets the descriptors `fds`, by their numbers there; this process may have `inherited` others
    from the caller of `create`. `apart`: it is in namespaces of its own.
    """
    if apart:
        from scrun.core import namespaces as ns

        try:
            ns.mount("proc", f"{_EMPTY}/proc", "proc", ns.NO_SUID | ns.NO_DEVICES | ns.NO_PROGRAMS)
        except OSError:  # in a container that hides parts of /proc
            pass
    posix.chdir("/")  # another directory would lead to the host, and keep it mounted
    posix.setsid()
    if terminal is not None:
        posix.close(posix.open(terminal, posix.O_RDWR))  # becomes the controlling terminal
    for number, fd in fds.items():
        posix.dup2(fd, number)
    # The reader of an inherited pipe would have to wait until the container's end.
    for fd in {*inherited} - {*fds, *fds.values()}:
        posix.closerange(fd, fd + 1)  # that of listdir itself is closed already
    # Ignored signals stay ignored over exec, and a shell cannot trap them: a job of
    # a non-interactive shell ignores INT and QUIT, one under nohup HUP.
    for signal in (*PASSED_ON, "PIPE"):
        _signal.signal(getattr(_signal, "SIG" + signal), _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    program, words = "/bin/sh", ["-c", _SCRIPT]
    if client := sys._xoptions.get("client"):
        program, words = str(client), [_EXPLAINED.removesuffix("; ")]
    elif terminal is not None:
        program, words = sys.executable, ["-I", "-S", "-c", _WITH_TERMINAL]
    posix.execve(program, [name, *words], {})


def out_of_the_way(fd: int) -> int:
    """Duplicate a descriptor to a number of 10 or above, which the anchor does not use."""
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
