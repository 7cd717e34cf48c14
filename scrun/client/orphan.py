"""Operations on a container that no supervisor serves.

Either there is no such container, or its supervisor died. A container that lives is about to be
adopted (docs/decisions/adoption.md): `state` is answered from its record, and the other operations
wait for the successor. Otherwise the supervisor's death ended the job and the anchor, so only a
record is left: the container is *stopped*. `state` is answered from the record; for `delete`
another supervisor cancels the job by its id, if there is still one, and removes the rest.
"""

from scrun.cli.parse import Parsed
from scrun.client.ask import build_request, converse, setting
from scrun.core.errors import ScrunError, StateError, UnknownContainer
from scrun.core.output import say
from scrun.core.paths import has_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket


def run(parsed: Parsed, directory: str, *, asked: bool) -> int:
    """Run one of state, start, kill, pause, resume and delete.

    Args:
        parsed: The command line.
        directory: The container's record.
        asked: Whether its supervisor was asked, and has died before it answered.

    Raises:
        UnknownContainer: There is no such container.
        StateError: It is stopped, and the operation needs a running one.
        OSError: The record cannot be read.
    """
    root, _, container = directory.rpartition("/")
    if not has_record(directory):
        if parsed.command == "delete" and parsed.options.get("force"):
            return 0
        raise UnknownContainer(f"container {container} does not exist")
    if parsed.command == "state" and (living := _living_state(directory)):
        say(living)
        return 0
    if parsed.command == "delete":
        from scrun.client.over import remove_over
        from scrun.client.supervisor_name import supervisor_name

        if remove_over(directory, supervisor_name(setting(parsed, "group") or "user", parsed)):
            return 0
    from scrun.client.successor import wait_for_successor

    if sock := wait_for_successor(directory):
        from scrun.client.ask import forward

        sock.close()
        return forward(parsed, again=asked)
    if parsed.command == "delete":
        status, answer = delete(parsed, directory, build_request(parsed, container))
        if status:
            from scrun.cli.failure import report_failure

            return report_failure(answer, status, parsed)
        return 0
    # takes 25 ms: not for unknown containers, which engines ask about when they clean up
    from scrun.model.record import read_record, stopped_state

    record = read_record(directory)
    if record.is_unfinished:
        tidy_up(parsed, root)
    if parsed.command in ("start", "pause", "resume"):
        raise StateError(f"container {container} is stopped: its supervisor is gone; delete it")
    if parsed.command == "state":
        say(stopped_state(record))
    if parsed.command == "kill" and not parsed.count("all"):
        from scrun.model.states import not_running

        raise StateError(not_running(container))
    return 0


def _living_state(directory: str) -> bytes:
    """Return the answer to `state` for a container that is about to be adopted; else nothing."""
    from scrun.model.adoption import living_record
    from scrun.model.record import living_state

    try:
        record = living_record(directory)
    except ScrunError:  # a damaged record, which `delete --force` removes
        return b""
    return b"" if record is None else living_state(record)


def tidy_up(parsed: Parsed, root: str) -> None:
    """Have a supervisor clean up after dead ones, in the background; errors do not matter."""
    from scrun.client.launch import launch_beside
    from scrun.client.supervisor_name import supervisor_name

    try:
        launch_beside(root, supervisor_name("user", parsed), to_tidy=True)
    except (ScrunError, OSError):
        pass


def delete(parsed: Parsed, directory: str, fields: "list[bytes]") -> "tuple[int, bytes]":
    """Have a supervisor delete a container that nobody serves; start it if necessary.

    Args:
        parsed: The command line, of any command.
        directory: The container's record.
        fields: The request.

    Returns:
        The exit status, and the reason if it is not 0.

    Raises:
        ScrunError: The supervisor does not start.
        OSError: It dies each time.
    """
    from scrun.client.launch import is_waited_for, launch
    from scrun.client.supervisor_name import place, supervisor_name

    root = directory.rpartition("/")[0]
    name = supervisor_name(setting(parsed, "group") or "user", parsed)
    file = parsed.text("config-file") or ""

    def served() -> "socket":
        return launch(
            root, name, settings_file=file, lingers=not (place().task or is_waited_for())
        )

    return converse(served, fields)
