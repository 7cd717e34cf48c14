"""Reaches the supervisor of a container, or the one that adopts it; else does without.

docs/decisions/adoption.md has how a supervisor adopts. Commands that engines call use this module,
so it imports built-in modules only.
"""

import _socket
import time

from scrun.cli.failure import report_failure
from scrun.cli.parse import Parsed, setting
from scrun.client.supervisor_name import place, supervisor_name
from scrun.core.errors import ScrunError, StateError, UnknownContainer
from scrun.core.output import say
from scrun.core.paths import has_record, read_regular
from scrun.protocol import wire

_PATIENCE = 60.0
_DYING = 2.0
_PAUSE = 0.05
_TRIES = 5


def ask_supervisor(parsed: Parsed, directory: str, fields: "list[bytes]") -> int:
    """Send a request and print the answer; return the exit status (see `fetch_answer`)."""
    return tell(parsed, *fetch_answer(directory, fields))


def tell(parsed: Parsed, status: int, answer: bytes) -> int:
    """Print an answer, or report the failure that it is the reason of; return the exit status."""
    if status:
        return report_failure(answer, status, parsed)
    say(answer)
    return 0


def fetch_answer(directory: str, fields: "list[bytes]", patience: int = 0) -> "tuple[int, bytes]":
    """Send a request; return the exit status and the answer (see `connect_served`).

    `patience` is the seconds that a supervisor has for its answer; 0 waits for ever.
    """
    return wire.converse(lambda: connect_served(directory, patience), fields)


def wait_for_successor(directory: str) -> "_socket.socket | None":
    """Connect to the supervisor that adopts a container; None if nobody does, OSError in doubt."""
    begun = time.monotonic()
    may_come = True
    while True:
        try:
            return wire.connect_supervisor(directory, "supervisor")
        except wire.NOBODY:
            if not may_come:
                return None
        # after a "no" we connect once more: it may just have been adopted
        may_come = time.monotonic() - begun < _patience(directory)
        if may_come:
            time.sleep(_PAUSE)


def _patience(directory: str) -> float:
    """Return how long a successor may take, in seconds; 0 if there will be none.

    A process that is being killed closes its socket before it is dead. A supervisor that has
    adopted the container listens already.
    """
    # records take longer to import than all of an `exec` that finds its supervisor
    from scrun.model.adoption import held_record
    from scrun.model.identity import is_dead

    try:
        record = held_record(directory)
    except (ScrunError, OSError):
        return 0
    if record is None or record.supervisor is None:
        return 0
    return _PATIENCE if is_dead(record.supervisor) else _DYING


def connect_served(directory: str, patience: int = 0) -> _socket.socket:
    """Connect to a container's supervisor, or its successor; ScrunError if nobody serves it."""
    try:
        return wire.connect_supervisor(directory, "supervisor", patience)
    except wire.NOBODY:
        sock = wait_for_successor(directory)
        if sock is None:
            raise explain_unserved(directory) from None
        return sock


def was_deleted(parsed: Parsed, directory: str, pid: bytes = b"") -> bool:
    """Delete a container that its own command has created; tell whether nothing is left.

    Its supervisor may have died. Another container may have its id by now, with another `pid`.
    """
    fields = [b"delete", wire.encoded(directory.rpartition("/")[2]), b"1", *[pid] * bool(pid)]
    for number in range(_TRIES):
        if not has_record(directory):
            return True
        time.sleep(_PAUSE * number)
        try:
            try:
                return wire.ask(directory, "supervisor", fields)[0] == 0
            except wire.NOBODY:
                if sock := wait_for_successor(directory):
                    sock.close()
                else:
                    return delete(parsed, directory, fields)[0] == 0
        except (ScrunError, OSError):
            pass  # that one has died as well
    return not has_record(directory)


def delete_own(parsed: Parsed, directory: str, pid: bytes) -> None:
    """Delete what a `run` has made, by its pid; after a failure the next `list` shows it."""
    container = wire.encoded(directory.rpartition("/")[2])
    try:
        wire.ask(directory, "supervisor", [b"delete", container, b"1", pid])
    except OSError:
        was_deleted(parsed, directory, pid)


def explain_unserved(directory: str) -> "UnknownContainer | StateError":
    """Return the error that says why no supervisor serves a container."""
    container = directory.rpartition("/")[2]
    if not has_record(directory):
        return UnknownContainer(f"container {container} does not exist")
    return StateError(f"container {container} is stopped: its supervisor is gone; delete it")


def run_unserved(parsed: Parsed, directory: str) -> "int | None":
    """Run one of state, start, kill, pause, resume and delete on a container that nobody serves.

    Either there is no such container, or its supervisor died. A container that lives is about to
    be adopted (docs/decisions/adoption.md): `state` is answered from its record, and the other
    operations wait for the successor: None if one serves it by now. Otherwise the supervisor's
    death ended the job and the anchor, so only a record is left: the container is *stopped*.
    `state` is answered from the record; for `delete` another supervisor cancels the job by its id,
    if there is still one, and removes the rest.
    """
    root, _, container = directory.rpartition("/")
    if not has_record(directory):
        if parsed.command == "delete" and parsed.options.get("force"):
            return 0
        raise explain_unserved(directory)
    if parsed.command == "state" and (living := _living_state(directory)):
        say(living)
        return 0
    if parsed.command == "delete" and remove_over(
        directory, supervisor_name(setting(parsed, "group") or "user", parsed)
    ):
        return 0
    if sock := wait_for_successor(directory):
        sock.close()
        return None
    if parsed.command == "delete":
        fields = [b"delete", wire.encoded(container), b"1" * bool(parsed.options.get("force"))]
        return tell(parsed, *delete(parsed, directory, fields))
    # takes 25 ms: not for unknown containers, which engines ask about when they clean up
    from scrun.model.record import read_record, stopped_state

    record = read_record(directory)
    if record.is_unfinished:
        tidy_up(parsed, root)
    if parsed.command in ("start", "pause", "resume"):
        raise explain_unserved(directory)
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

    try:
        launch_beside(root, supervisor_name("user", parsed), to_tidy=True)
    except (ScrunError, OSError):
        pass


def delete(parsed: Parsed, directory: str, fields: "list[bytes]") -> "tuple[int, bytes]":
    """Have a supervisor delete a container; return the exit status, and the reason if not 0."""
    from scrun.client.launch import is_waited_for, launch

    root = directory.rpartition("/")[0]
    name = supervisor_name(setting(parsed, "group") or "user", parsed)
    file, lingers = parsed.text("config-file"), not (place().task or is_waited_for())
    return wire.converse(lambda: launch(root, name, settings_file=file, lingers=lingers), fields)


def remove_over(directory: str, socket: str) -> bool:
    """Remove the record of a container if nothing else is left of it; tell whether that was so.

    Its supervisor has undone all else before it ended. That of a pod, which podman's first
    container has, ends before podman calls `delete`; to start another one takes longer than all of
    `start`. The supervisor at `socket` removes what we leave should we be killed; one has to look
    after a record that stays, or say why not.
    """
    import fcntl
    import os

    from scrun.core.trees import remove_aside

    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        lock = os.open(f"{directory}/lock", flags)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_over(directory, lock):
            return False
    except (OSError, ValueError, RecursionError):  # somebody works on it, or it is damaged
        return False
    else:
        root = os.path.dirname(directory)
        remove_aside(directory, f"{root}/@tmp{socket}{os.urandom(4).hex()}")
        return True
    finally:
        os.close(lock)


def _is_over(directory: str, lock: int) -> bool:
    """Tell whether the record is our own, and all that is left; of a lost one more may be."""
    import json
    import os

    from scrun.model.lost import LOST

    for path in (directory, os.path.dirname(directory)):
        if os.lstat(path).st_uid != os.geteuid():
            return False
    if not os.path.samestat(os.fstat(lock), os.stat(f"{directory}/lock")):
        return False  # whoever held it has removed that one
    if not os.path.islink(f"{directory}/supervisor"):
        return False
    # a `Record`, the import of which would take longer than all the rest
    record = json.loads(read_regular(f"{directory}/state.json"))
    if not isinstance(record, dict) or record.get("status") != "stopped":
        return False
    annotations = record.get("annotations", {})
    if not isinstance(annotations, dict):
        return False
    is_left = record.get("job_id") and record.get("owns_job") is not False
    is_left = is_left or any(map(record.get, ("staged", "moved", "audit")))
    is_lost = LOST.items() <= annotations.items()
    return not (is_left or is_lost)
