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

Engines take its pid for the container's, and work in its namespaces: `podman cp` goes to its mount
namespace, a network for a container with mapped users is made in its network namespace. So it has
namespaces of its own, of every kind, and the root directory there is empty until the supervisor
shows the container's files in it (`containers.show_files`). A process in between makes the anchor,
and takes the host's root away from it when its program is loaded; docs/decisions/pid-namespaces.md
has why it is done that way.
"""

import _signal
import os
import sys

from scrun.protocol.anchor import LOST, PASSED_ON

_EMPTY = "/proc"
"""Where the empty root is mounted first, in a place that is there on every host."""

# `podman top ID` and `docker top ID` show the anchor with its command line, which begins with this
_EXPLAINED = (
    ": stands here for a container on the cluster, whose processes 'top ID -o pid,args' shows; "
)

_SCRIPT = (
    f'{_EXPLAINED}for s in {" ".join(PASSED_ON)}; do trap "g=1; echo $s >&3" $s; done; '
    "trap '' PIPE; exec 4>&-; "
    f'while g=0; do read -r s <&3 && exit "$s"; [ $g = 1 ] || exit {LOST}; done'
)

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
os.close(4)
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


class AnchorProcess:
    """An anchor that is about to be left behind, as a child of a child of this process.

    It is made beside this process, which has other things to do meanwhile: `pid` waits for the
    first half of that, and `settle` for the rest.

    Whoever could enter its namespaces could have made them: an ordinary user on a host without
    user namespaces gets an anchor in those of the caller's, and the container's log says so.
    """

    __slots__ = ("_lock", "_maker", "_pid", "_said", "_sock", "_terminal", "_told")

    def __init__(self, sock: int, lock: "int | None", terminal: "str | None") -> None:
        """Begin to make it.

        Args:
            sock: The anchor's end of the pair whose other end goes to the supervisor. Taken over:
                it is closed here as soon as the anchor has it.
            lock: The descriptor of the locked pid file, if there is one.
            terminal: The path of the container's terminal, if it has one.
        """
        self._sock, self._lock, self._terminal = sock, lock, terminal
        self._pid = 0
        self._begin(apart=True)

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            OSError: There is no anchor.
        """
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
                os.close(self._sock)
        return self._pid

    def settle(self) -> None:
        """Wait until the host's root is out of its reach.

        Raises:
            OSError: There is no anchor any more.
        """
        if self.pid and self._maker:
            try:
                self._next()
            finally:
                self._reap()

    def give_up(self) -> None:
        """Need it no more: it has been told to end."""
        if self._maker:
            self._reap()

    def _begin(self, *, apart: bool) -> None:
        self._said = b""
        self._told, telling = os.pipe()
        self._maker = os.fork()
        if self._maker == 0:
            try:
                _make(self._sock, self._lock, self._terminal, telling, apart=apart)
            except BaseException as error:
                kind = "unprivileged" if isinstance(error, _UnprivilegedError) else "failed"
                os.write(telling, os.fsencode(f"{kind} {_reason(error)}\n"))
            finally:
                os._exit(0)
        os.close(telling)

    def _next(self) -> bytes:
        while b"\n" not in self._said:
            part = os.read(self._told, 4096)
            if not part:
                break
            self._said += part
        line, _, self._said = self._said.partition(b"\n")
        if line.isdigit():
            return line
        word, _, why = line.partition(b" ")
        kind = _UnprivilegedError if word == b"unprivileged" else OSError
        reason = os.fsdecode(why) or "the one that makes it was killed"
        raise kind(0, f"there is no process that an engine could watch: {reason}")

    def _reap(self) -> None:
        os.close(self._told)
        os.waitpid(self._maker, 0)
        self._maker = 0


class _UnprivilegedError(OSError):
    """The caller may not make namespaces; so nobody with the same rights may enter any."""


def _reason(error: BaseException) -> str:
    if not isinstance(error, OSError):
        return repr(error)
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


def _make(
    sock: int, lock: "int | None", terminal: "str | None", telling: int, *, apart: bool
) -> None:
    """Make the anchor, tell its pid, and take the host's root away from it."""
    inherited = [int(name) for name in os.listdir("/proc/self/fd")]
    null = os.open("/dev/null", os.O_RDWR)
    loaded, loading = os.pipe()
    fds = {0: null, 1: null, 2: null, 3: sock, 4: loading}
    if lock is not None:
        fds[9] = lock
    # Numbers below 10 are all that a redirection of dash can name. What is in the way of these
    # is moved first, all of it: dup2 onto itself would leave close-on-exec set.
    fds = {number: out_of_the_way(fd) for number, fd in fds.items()}
    os.close(loading)
    if apart:
        _go_apart()
    anchor = os.fork()
    if anchor == 0:
        try:
            _become(fds, inherited, terminal, apart=apart)
        except BaseException as error:
            os.write(fds[4], os.fsencode(_reason(error)))
        finally:
            os._exit(LOST)
    os.close(fds[4])
    os.write(telling, b"%d\n" % anchor)
    try:
        # its program closes the pipe, or its end does
        why = os.read(loaded, 4096)
        if why or os.waitid(os.P_PID, anchor, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            raise OSError(0, os.fsdecode(why) or "it ended at once")
        if apart:
            from scrun.core.namespaces import become_root

            os.chdir(_EMPTY)
            become_root()
    except BaseException:
        os.kill(anchor, 9)  # it is ours still, and has not been waited for
        raise
    os.write(telling, b"0\n")


def _go_apart() -> None:
    """Move to namespaces of our own, with an empty root beside the one that we still have."""
    from scrun.core import namespaces as ns

    kinds = ns.NEW_MOUNT | ns.NEW_PID | ns.NEW_IPC | ns.NEW_UTS | ns.NEW_NETWORK | ns.NEW_CGROUP
    uid, gid = os.geteuid(), os.getegid()
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
        os.mkdir(f"{_EMPTY}/proc")
        ns.mount(None, _EMPTY, None, ns.REMOUNT | ns.BIND | ns.READ_ONLY | safe)
    except OSError as error:
        if unprivileged:
            raise _UnprivilegedError(error.errno, error.strerror, error.filename) from None
        raise


def _become(
    fds: "dict[int, int]", inherited: "list[int]", terminal: "str | None", *, apart: bool
) -> None:
    """Become the anchor's program: a shell, or a bare Python.

    Args:
        fds: The descriptors that it has, by their numbers there.
        inherited: Those that this process got from the caller of `create`, perhaps.
        terminal: The path of the container's terminal, if it has one.
        apart: Whether it is in namespaces of its own.
    """
    if apart:
        from scrun.core import namespaces as ns

        try:
            ns.mount("proc", f"{_EMPTY}/proc", "proc", ns.NO_SUID | ns.NO_DEVICES | ns.NO_PROGRAMS)
        except OSError:  # there is a container around all this that hides parts of /proc
            pass
    os.chdir("/")  # another directory would lead to the host, and be held there
    os.setsid()
    if terminal is not None:
        os.close(os.open(terminal, os.O_RDWR))  # it is the session's from now on
    for number, fd in fds.items():
        os.dup2(fd, number)
    # An inherited pipe kept open here would keep its reader waiting for the container's life.
    for fd in {*inherited} - {*fds, *fds.values()}:
        try:
            os.close(fd)
        except OSError:  # it was the listing's own
            pass
    # Ignored signals stay ignored over exec, and a shell cannot trap those: a job of
    # a non-interactive shell ignores INT and QUIT, one under nohup HUP.
    for name in (*PASSED_ON, "PIPE"):
        _signal.signal(getattr(_signal, "SIG" + name), _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    program, words = "/bin/sh", ["-c", _SCRIPT]
    if terminal is not None:
        program, words = sys.executable, ["-I", "-S", "-c", _WITH_TERMINAL]
    os.execve(program, ["scrun-anchor", *words], {})


def out_of_the_way(fd: int) -> int:
    """Duplicate a descriptor out of the way of the numbers that the anchor uses; close-on-exec."""
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
