"""scrun create: ask for a job, make the bundle ready there, and leave an anchor behind.

Wire: `create PID UMASK CWD COUNT ARGUMENT... NAME=VALUE...` with four descriptors: the
container's standard input, output and error, and the supervisor's end of the anchor's socket.
PID is that of this process; the anchor's follows in a line of its own.
The answer comes when the container is *created*: allocated and staged. Messages may come before
it (`scrun.protocol.progress`). It is confirmed by one more byte: a `create` that is killed before
it has made the pid file leaves no container behind that nobody knows.

Errors: whatever can be known without a job is refused before one is asked for; then there is no
container, no anchor and no pid file.

The making of the anchor begins before the supervisor is asked, and goes on beside that: its pid
follows the request, and no job is asked for before. When this process is killed half-way the
supervisor sees the connection close, ends what it began, and the anchor with it.
"""

import _socket
import os

from scrun.anchor import shell
from scrun.anchor.pid_file import PidFile
from scrun.cli.parse import Parsed
from scrun.client.ask import ask
from scrun.client.console import Console
from scrun.client.submit import submit
from scrun.oci.ids import check_id


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Create a container.

    Args:
        parsed: The parsed command line.
        argv: The same as it came; the supervisor reads it again, with the same table.

    Raises:
        ScrunError: In words for the caller; the container does not exist then.
        OSError: The pid file, the console socket or the root directory is at fault.
    """
    check_id(parsed.id or "")
    open_closed_descriptors()
    pid_file = PidFile(path) if (path := parsed.text("pid-file")) else None
    try:
        console = Console(path) if (path := parsed.text("console-socket")) else None
        ours, theirs = _socket.socketpair()
        lock = pid_file.lock if pid_file else None
        left = shell.AnchorProcess(theirs.detach(), lock, console.path if console else None)
        stdio = console.stdio if console else [0, 1, 2]
        fds = [*stdio, ours.fileno()]
        status, answer, told = submit(parsed, argv, left, fds, pid_file, console)
    finally:
        if pid_file:
            pid_file.discard()
    if status:
        from scrun.cli.failure import report_failure

        return report_failure(answer, status, parsed, told=told)
    return 0


def delete(directory: str) -> None:
    """Have a container deleted; what cannot be is told by the next `list`.

    Args:
        directory: Its record.
    """
    try:
        ask(directory, "supervisor", [b"delete", os.fsencode(os.path.basename(directory)), b"1"])
    except OSError:
        pass


def open_closed_descriptors() -> None:
    """Put /dev/null where standard input, output or error were closed.

    Else the next file that is opened takes that number, and a socket of ours would be handed to
    the container as its standard input.
    """
    while (fd := os.open("/dev/null", os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
