"""Calls crun or runc to create a container, and stays as its parent to its end.

This is a program for containers that no container engine waits for: those of `scrun run`, and
those whose changes have to be copied back before their engine may learn of their end. It becomes
the subreaper of the runtime, so the container's first process is its child. With a terminal it
copies between that and its own standard streams, as the runtimes do in the foreground.

It writes the exit status of the runtime's `create` to a descriptor, as a line. If that is 0, it
writes the container's status to another one in the end, 128+n for a signal: its parent may have
died meanwhile. What that, and what it has waited for, has used follows: seconds in user mode and
in the kernel, and the KiB of the largest process. SIGWINCH means that the terminal has a new size.

It imports little: each such container has one of these.
"""

import os
import signal
import sys

CONSOLE = "@console"
"""The placeholder in the command for the path of the console socket."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SOCKET = "console"
TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from scrun.anchor.foreground import Carried


def main(line: int, told: int, pid_file: str, preserved: "list[int]", command: "list[str]") -> int:
    """Create the container and stay; return 0 if there was one.

    The status of `create` goes to the descriptor `line`, and that of the container, with what it
    has used, to `told`. `create` writes the pid of the first process to the file, which has the
    preserved descriptors.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for own_end in (line, told):
        os.set_inheritable(own_end, False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    console = None
    if CONSOLE in command:
        console = _listen()
        # short, however long the path of the record is
        path = f"/proc/{os.readlink('/proc/self')}/cwd/{_SOCKET}"
        command = [path if word == CONSOLE else word for word in command]
    # undo what Python sets for itself
    own = [signal.SIGPIPE, signal.SIGXFSZ]
    runtime = os.posix_spawn(command[0], command, os.environ, setsigdef=own)
    for fd in preserved:  # whoever is at the other end may wait for the container to close it
        os.close(fd)
    status = os.waitstatus_to_exitcode(os.waitpid(runtime, 0)[1])
    carried = None
    if console is not None and status == 0:
        carried = _carried(console)
    # from now on the container may outlive the supervisor; if it is not to, its keepalive ends it
    prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    try:
        os.write(line, b"%d\n" % status)
    except BrokenPipeError:
        pass  # it has just died
    os.close(line)
    if status:
        return 1
    with open(pid_file, encoding="ascii") as file:
        pid = int(file.read(32))
    if carried is not None:
        carried.carry_until(os.pidfd_open(pid))
        carried.carry_the_rest()
        carried.restore()
    os.write(told, _end_of(pid))
    return 0


def _listen() -> "socket.socket":
    """Listen in the working directory, which is the container's record."""
    import socket

    console = socket.socket(socket.AF_UNIX)
    console.bind(_SOCKET)
    console.listen(1)
    return console


def _carried(console: "socket.socket") -> "Carried":
    """Receive the terminal (runc's terminals.md), which the runtime sent before it ended."""
    sys.path.insert(0, os.path.dirname(__file__).removesuffix("/scrun/supervisor/reapers"))
    from scrun.anchor.foreground import Carried
    from scrun.core.rights import receive_fds

    connection, _ = console.accept()
    with connection, console:
        _, [master], _ = receive_fds(connection, 4096, 1)
    os.unlink(_SOCKET)
    carried = Carried(master)
    signal.signal(signal.SIGWINCH, lambda *_: carried.resize())
    carried.begin()
    return carried


def _end_of(pid: int) -> bytes:
    """Wait for a child, and reap orphans meanwhile; return the status, and what it has used."""
    while True:
        ended, status, used = os.wait4(-1, 0)
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            figures = used.ru_utime, used.ru_stime, used.ru_maxrss
            # a supervisor from before an upgrade reads a number of 16 bytes
            return b"%-16d %f %f %d" % (code if code >= 0 else 128 - code, *figures)


if __name__ == "__main__":
    own = [int(fd) for fd in sys.argv[4].split(",") if fd]
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], own, sys.argv[5:]))
