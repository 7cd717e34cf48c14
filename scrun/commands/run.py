"""scrun run: create a container, start it, and wait for its end.

In the foreground this process is the container's anchor: it forwards signals, exits with the
container's status, and deletes the container at the end unless `--keep` is given. With `--replace`
it deletes another container that has the id before it begins: of two calls at the same time one
replaces the other one's container, or finds the id taken. With `--detach` it is `create` and
`start` in one call; output for a terminal, pipe or socket is then captured in the container's
record, for `scrun logs` and `scrun attach`.

Wire: as `create`, `start` and `delete`; the last two name the pid, because another `run --replace`
may have replaced the container meanwhile.

Errors: as those; a container that cannot be started is deleted again.
"""

import os
from collections.abc import Callable

from scrun.anchor.foreground import CarriedTerminal, KeptTerminal, pass_signals_on, stay
from scrun.cli.failure import report_failure
from scrun.cli.grammar import GLOBAL, OF_IMAGES
from scrun.cli.parse import Parsed, record_root
from scrun.client.anchored import Anchored, preserved
from scrun.client.ask import forward
from scrun.client.reach import delete_own, fetch_answer
from scrun.client.submit import submit
from scrun.core.errors import NotTaken, ScrunError, UsageError
from scrun.core.pods import wants_terminal
from scrun.oci.ids import check_id


def run(parsed: Parsed, created: Callable[[str], None] = lambda _: None) -> int:
    """Run a container; `created` gets its record when it has a job, before its program starts."""
    container = check_id(parsed.id or "")
    _refuse_options_of_images(parsed)
    detach = bool(parsed.count("detach"))
    if parsed.text("console-socket") and not detach:
        raise UsageError("run: --console-socket needs --detach: else it uses this terminal")
    directory = record_root(parsed) + "/" + container
    if parsed.count("replace"):
        preserved(parsed)  # what is wrong with it is said before anything is deleted
        if status := delete_other(parsed, container):
            return status
    with Anchored(parsed) as anchored:
        own = None if detach else _terminal(parsed)
        carried = own if isinstance(own, CarriedTerminal) else None
        anchored.begin(carried, leave=detach)
        status, answer, reason_shown = submit(parsed, anchored)
        anchored.sent()
        if status == 0:
            reason_shown = False
            if not detach:
                pass_signals_on(anchored.socket, carried)
            pid = answer or b"%d" % anchored.pid
            asked = [b"start", os.fsencode(container), b"", pid]
            try:
                created(directory)
                status, answer = fetch_answer(directory, asked)
            except (ScrunError, OSError) as error:
                if not isinstance(error, NotTaken):
                    delete_own(parsed, directory, pid)
                raise
            if status:
                delete_own(parsed, directory, pid)
    if status:
        # nobody has seen what the runtime wrote to a terminal that this process relays
        return report_failure(answer, status, parsed, reason_shown=reason_shown and not carried)
    if detach:
        return 0
    keep = bool(parsed.count("keep"))
    try:
        if carried:
            carried.begin()
        return stay(anchored.socket, carried)
    except NotTaken:
        keep = True  # nobody would delete it, either
        raise
    finally:
        if own:
            own.restore()
        if not keep:
            delete_own(parsed, directory, pid)


def _refuse_options_of_images(parsed: Parsed) -> None:
    known = {option[0] for option in OF_IMAGES}
    if wrong := [name for name in parsed.options if name in known]:
        raise UsageError(
            f"run: --{wrong[0]} is for an image, and {parsed.id} is a container's id: "
            f"write docker://{parsed.id}, or ./{parsed.id} for a directory"
        )


def delete_other(parsed: Parsed, container: str) -> int:
    """Delete the container that has an id, whoever serves it; return the exit status."""
    delete = Parsed()
    delete.command, delete.id = "delete", container
    known = {option[0] for option in GLOBAL}
    delete.options = {name: value for name, value in parsed.options.items() if name in known}
    delete.options["force"] = True
    return forward(delete)


def _terminal(parsed: Parsed) -> KeptTerminal | CarriedTerminal | None:
    """Return the terminal that the container will use; the caller's is restored at the end."""
    if os.isatty(0) and os.isatty(1):
        return KeptTerminal(0)
    bundle = parsed.text("bundle") or "."
    return CarriedTerminal() if wants_terminal(bundle, parsed.text("config")) else None
