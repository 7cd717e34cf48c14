"""Starts children and reaps them: ours, and the orphans that come to a subreaper."""

import _signal as signal  # without enum, which takes longer than hello
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

TOLD = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
"""The signals that do not end the shim: the supervisor is told."""

_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # it ignores them
_STANDARD_ERROR = 2
_HIGH = 10
_DEVICES = "/dev"  # there a device can be opened, whatever `nodev` says of other places


def become_subreaper() -> None:
    """Become the parent of orphans: the containers' first processes, when their runtime has ended.

    From now on nobody but root may trace this process, either: it will know a secret.

    Raises:
        OSError: The kernel refuses.
    """
    from .libc import DUMPABLE, SUBREAPER, prctl

    prctl(SUBREAPER, 1)
    prctl(DUMPABLE, 0)


class Children:
    """The one place that reaps.

    Attributes:
        reaped: The process whose end is being told, and what it has used (wait4(2)).
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[int], None]] = {}
        self._unclaimed: dict[int, tuple[int, Any]] = {}
        self.reaped: tuple[int, Any] = (0, None)
        self._expected = 0
        self._null = os.open("/dev/null", os.O_RDWR)

    def use_own_null(self, directory: str) -> None:
        """Have a /dev/null of our own from now on, made in a directory (see `own_device`).

        Raises:
            OSError: No descriptor is left.
        """
        null = own_device("/dev/null", directory)
        os.close(self._null)
        self._null = null

    def spawn(
        self,
        command: "Sequence[str]",
        ended: "Callable[[int], None]",
        stdio: "Sequence[int | None]" = (None, None, None),
        place: "str | None" = None,
        env: "Mapping[str, str] | None" = None,
        passed: "Sequence[int]" = (),
        terminal: bool = False,
        enter: "Callable[[], None] | None" = None,
        program: int = -1,
    ) -> int:
        """Start a program in a session of its own; return its pid.

        Args:
            command: The path of the program, and its arguments.
            ended: Called with its wait status.
            stdio: Its descriptors 0 to 2; None is /dev/null. None of ours is below 3.
            place: Its working directory, if it is not ours.
            env: Its environment, if it is not ours.
            passed: Its descriptors from 3 on.
            terminal: Whether descriptor 0 becomes its controlling terminal.
            program: A descriptor of the program itself, close-on-exec, if it is not to be looked
                up; what the node does not run from there is run by its path.

        Raises:
            OSError: The machine has no process left.
        """
        own = os.environ if env is None else env
        if enter is None and place is None and not (terminal or passed):
            fds = [self._null if fd is None else fd for fd in stdio]
            pid = _spawned(command, fds, own, program)
            if pid:
                self._waiting[pid] = ended
                return pid
        return self._fork(
            lambda: self._become(command, stdio, place, own, passed, terminal, enter, program),
            ended,
        )

    def fork(
        self, work: "Callable[[], int]", ended: "Callable[[int], None]", kept: "Sequence[int]"
    ) -> int:
        """Do something that blocks in a process of its own; return its pid.

        Args:
            work: Does it; returns the exit status.
            ended: Called with its wait status.
            kept: Its descriptors; it gets no others of ours, whose ends somebody waits for.

        Raises:
            OSError: The machine has no process left.
        """
        return self._fork(lambda: _do(work, kept), ended)

    def _fork(self, child: "Callable[[], None]", ended: "Callable[[int], None]") -> int:
        # a signal that came before the child is ready would find our handler, and be lost
        before = signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)
        try:
            pid = os.fork()
            if pid == 0:
                child()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._waiting[pid] = ended
        return pid

    def _become(
        self,
        command: "Sequence[str]",
        stdio: "Sequence[int | None]",
        place: "str | None",
        env: "Mapping[str, str]",
        passed: "Sequence[int]",
        terminal: bool,
        enter: "Callable[[], None] | None",
        program: int,
    ) -> None:
        """Be the program, in the child; never returns."""
        try:
            _be_apart(_BY_PYTHON)
            if enter is not None:  # before: it changes the directory
                enter()
            if place is not None:
                try:
                    os.chdir(place)
                except FileNotFoundError:  # we made it, and its target has been deleted meanwhile
                    return
            if program >= 0:  # out of the way of those that follow
                import fcntl

                program = fcntl.fcntl(program, fcntl.F_DUPFD_CLOEXEC, _HIGH + len(passed))
            for number, fd in enumerate(stdio):
                os.dup2(self._null if fd is None else fd, number)
            if len(passed) > 1:  # one of them may have the number of another
                import fcntl

                passed = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH) for fd in passed]
            for number, fd in enumerate(passed, 3):  # last: ours may have these numbers
                os.dup2(fd, number)
                os.set_inheritable(number, True)
            if terminal:
                import fcntl
                import termios

                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            if program >= 0:
                try:
                    os.execve(program, list(command), env)
                except OSError:
                    pass
            os.execve(command[0], list(command), env)
        except BaseException as error:
            os.write(2, (f"{command[0]}: {error}\n").encode(errors="replace"))
        finally:
            os._exit(127)

    def expect(self) -> None:
        """Keep the statuses of processes nobody knows, until `expect_no_longer`.

        A runtime is at work, and what it started may end before its pid is read.
        """
        self._expected += 1

    def expect_no_longer(self) -> None:
        """End what one `expect` began. All pids are claimed that will be."""
        self._expected -= 1
        if not self._expected:
            self._unclaimed.clear()  # a pid may be used again

    def claim(self, pid: int, ended: "Callable[[int], None]") -> None:
        """Tell the end of a process of the runtime's: at once, if it has ended already."""
        kept = self._unclaimed.pop(pid, None)
        if kept is None:
            self._waiting[pid] = ended
        else:
            self.reaped = pid, kept[1]
            ended(kept[0])

    def has_ended(self, pid: int) -> bool:
        """Tell whether the status of a process that nobody knew is kept."""
        return pid in self._unclaimed

    def reap(self) -> None:
        """Reap all that have ended, and tell."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = self._waiting.pop(pid, None)
            if ended is not None:
                self.reaped = pid, used
                ended(status)
            elif self._expected:
                self._unclaimed[pid] = status, used


def _spawned(
    command: "Sequence[str]", stdio: "Sequence[int]", env: "Mapping[str, str]", program: int
) -> int:
    """Start a program as `spawn` does, without a fork, which takes 1.5 ms more; return its pid.

    Returns 0 where that is not possible: before Python 3.8, with another C library, and if there
    is no such program, which is then said as for all others.
    """
    spawn: Callable[..., int] | None = getattr(os, "posix_spawn", None)
    if spawn is None:
        return 0
    paths = [command[0]] if program < 0 else [f"/proc/self/fd/{program}", command[0]]
    duplicate = getattr(os, "POSIX_SPAWN_DUP2")  # noqa: B009 - 3.8, as the other
    actions = [(duplicate, fd, number) for number, fd in enumerate(stdio)]
    ended_by = (*_BY_PYTHON, *TOLD)
    for path in paths:
        try:
            return spawn(
                path, list(command), env, file_actions=actions, setsid=True, setsigdef=ended_by
            )
        except (NotImplementedError, OSError):
            pass
    return 0


def _be_apart(more: "Sequence[int]" = ()) -> None:
    """Lead a session, in a child, and have signals end it."""
    signal.set_wakeup_fd(-1)  # the pipe is the parent's, too
    os.setsid()
    for number in (*more, *TOLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD)


def _do(work: "Callable[[], int]", kept: "Sequence[int]") -> None:
    """Do something in a child; never returns."""
    status = 1
    try:
        _be_apart()
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            if fd > _STANDARD_ERROR and fd not in kept:
                try:
                    os.close(fd)
                except OSError:  # it was the one that listed them
                    pass
        status = work()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def exit_status(status: int) -> int:
    """Return what a shell says of a wait status: 128+n for a signal."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def own_device(path: str, directory: str) -> int:
    """Open a device for reading and writing: a node of our own, which has no name any more.

    A runtime gives the standard streams to the program's user, so that it can open them by name,
    and some give away a device as well: crun before 1.24 in a user namespace, runc 1.1.3 and 1.1.4
    in an `exec`, and all versions of runc /dev/zero. If root calls it, the machine's own device
    has another owner from then on.

    Only root needs one. Where root may make none, it is that of a user namespace, to whom the
    machine's does not belong, and the machine's is opened.

    Args:
        directory: Where to make the node, if devices can be opened there.

    Raises:
        OSError: No descriptor is left, or there is no such device.
    """
    if os.geteuid() == 0:
        number = os.stat(path).st_rdev
        for folder in (directory, _DEVICES):
            name = os.path.join(folder, f".scrun-{os.getpid()}")
            try:
                os.mknod(name, stat.S_IFCHR | 0o600, number)
            except OSError:  # a read-only one; or a dead process' of this number
                continue
            try:
                os.chmod(name, 0o666)  # whatever the umask
                return os.open(name, os.O_RDWR)
            except OSError:  # `nodev`
                pass
            finally:
                os.unlink(name)
    return os.open(path, os.O_RDWR)
