"""scrun run: create a container, start it, and stay with it to its end.

In the foreground this process is the container's anchor: signals are passed on, the exit status is
the container's, and the container is deleted at the end unless `--keep` is given. With `--detach`
it is `create` and `start` in one call; output for a terminal, pipe or socket is kept in the
container's record then, for `scrun logs` and `scrun attach`.

Wire: as `create`, `start` and `delete`.

Errors: as those; when it cannot be started it is deleted again.
"""

import _socket
import os

from scrun.anchor import shell
from scrun.anchor.foreground import CarriedTerminal, KeptTerminal, pass_signals_on, stay
from scrun.anchor.pid_file import PidFile
from scrun.cli.parse import Parsed
from scrun.client.ask import ask, record_root
from scrun.client.console import Console
from scrun.client.submit import submit
from scrun.commands.create import delete, open_closed_descriptors
from scrun.core.errors import UsageError
from scrun.core.pods import wants_terminal
from scrun.oci.ids import check_id


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Run a container.

    Args:
        parsed: The parsed command line.
        argv: The same as it came.

    Raises:
        ScrunError: There is no container then.
        OSError: The pid file, the console socket or the root directory is at fault.
    """
    container = check_id(parsed.id or "")
    detach, console = bool(parsed.count("detach")), parsed.text("console-socket")
    if console and not detach:
        raise UsageError("run: --console-socket is for --detach: else the terminal is this one")
    open_closed_descriptors()
    directory = record_root(parsed) + "/" + container
    pid_file = PidFile(path) if (path := parsed.text("pid-file")) else None
    own = None if detach else _terminal(parsed)
    carried = own if isinstance(own, CarriedTerminal) else None
    try:
        terminal = Console(console) if console else None
        stdio = terminal.stdio if terminal else [0, 1, 2]
        if carried:
            stdio = [carried.slave] * 3
        ours, theirs = _socket.socketpair()
        left = None
        if detach:
            lock = pid_file.lock if pid_file else None
            left = shell.AnchorProcess(theirs.detach(), lock, terminal.path if terminal else None)
        fds = [*stdio, ours.fileno()]
        status, answer, told = submit(parsed, argv, left, fds, pid_file, terminal)
        ours.close()
        if status == 0:
            told = False
            if not detach:
                pass_signals_on(theirs, carried)
            status, answer = ask(directory, "supervisor", [b"start", os.fsencode(container)])
            if status:
                delete(directory)
    finally:
        if pid_file:
            pid_file.discard()
    if status:
        from scrun.cli.failure import report_failure

        # what the runtime has said to a terminal that we carry nobody has seen
        return report_failure(answer, status, parsed, told=told and not carried)
    if detach:
        return 0
    try:
        if carried:
            carried.begin()
        return stay(theirs, carried)
    finally:
        if own:
            own.restore()
        if not parsed.count("keep"):
            delete(directory)


def _terminal(parsed: Parsed) -> "KeptTerminal | CarriedTerminal | None":
    """Return the terminal that the container will use, to set the caller's back at the end."""
    if os.isatty(0) and os.isatty(1):
        return KeptTerminal(0)
    bundle = parsed.text("bundle") or "."
    return CarriedTerminal() if wants_terminal(bundle, parsed.text("config")) else None
