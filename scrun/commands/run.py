"""scrun run: create a container, start it, and stay with it to its end.

In the foreground this process is the container's anchor: signals are passed on, the exit status is
the container's, and the container is deleted at the end unless `--keep` is given. With `--detach`
it is `create` and `start` in one call; output for a terminal, pipe or socket is kept in the
container's record then, for `scrun logs` and `scrun attach`.

Wire: as `create`, `start` and `delete`.

Errors: as those; when it cannot be started it is deleted again.
"""

import os

from scrun.anchor.foreground import CarriedTerminal, KeptTerminal, pass_signals_on, stay
from scrun.cli.parse import Parsed
from scrun.client.anchored import Anchored
from scrun.client.ask import ask, record_root
from scrun.client.submit import submit
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
    detach = bool(parsed.count("detach"))
    if parsed.text("console-socket") and not detach:
        raise UsageError("run: --console-socket is for --detach: else the terminal is this one")
    directory = record_root(parsed) + "/" + container
    with Anchored(parsed) as anchored:
        own = None if detach else _terminal(parsed)
        carried = own if isinstance(own, CarriedTerminal) else None
        anchored.begin(carried, leave=detach)
        status, answer, reason_shown = submit(parsed, argv, anchored)
        anchored.sent()
        if status == 0:
            reason_shown = False
            if not detach:
                pass_signals_on(anchored.socket, carried)
            status, answer = ask(directory, "supervisor", [b"start", os.fsencode(container)])
            if status:
                _delete(directory)
    if status:
        from scrun.cli.failure import report_failure

        # what the runtime has said to a terminal that we carry nobody has seen
        return report_failure(answer, status, parsed, reason_shown=reason_shown and not carried)
    if detach:
        return 0
    try:
        if carried:
            carried.begin()
        return stay(anchored.socket, carried)
    finally:
        if own:
            own.restore()
        if not parsed.count("keep"):
            _delete(directory)


def _delete(directory: str) -> None:
    """Have a container deleted; what cannot be is told by the next `list`."""
    try:
        ask(directory, "supervisor", [b"delete", os.fsencode(os.path.basename(directory)), b"1"])
    except OSError:
        pass


def _terminal(parsed: Parsed) -> "KeptTerminal | CarriedTerminal | None":
    """Return the terminal that the container will use, to set the caller's back at the end."""
    if os.isatty(0) and os.isatty(1):
        return KeptTerminal(0)
    bundle = parsed.text("bundle") or "."
    return CarriedTerminal() if wants_terminal(bundle, parsed.text("config")) else None
