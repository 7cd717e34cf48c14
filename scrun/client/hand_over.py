"""Find or start the successor of a supervisor that has died, and hand over what that has left.

The keeper calls this program until it succeeds (`supervisor.daemon.keeper`). Its code is that
which is installed now, so the successor may be newer than the supervisor was.
"""

import os
import sys
import time

from scrun.client.launch import launch
from scrun.core.errors import ScrunError
from scrun.core.supervisors import parts, successor_of
from scrun.protocol import wire

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0


def hand_over(root: str, name: str, patience: str, lingers: str, began: str) -> None:
    """Hand over; exit with 1 if that has to be tried again.

    Standard input is a socket, at whose other end the keeper has all that the supervisor has left.

    `patience`: for how many seconds somebody tries; then the containers end. `lingers` says
    whether the successor stays when it has nothing to do. `began` is when the supervisor died, in
    seconds since the machine's boot.
    """
    why = _try(root, successor_of(name), lingers=bool(lingers))
    if not why:
        return
    elapsed = time.clock_gettime(time.CLOCK_BOOTTIME) - float(began)
    pause = min(max(_FIRST_PAUSE, elapsed / 2), _LONGEST_PAUSE)
    if elapsed + pause < float(patience):
        time.sleep(pause)
        sys.exit(1)
    _leave_word(root, name, f"no supervisor could take it over for {float(patience):g} s: {why}")


def _try(root: str, name: str, *, lingers: bool) -> str:
    """Hand over; return why that is not possible, or ""."""
    try:
        sock = launch(root, name, lingers=lingers)
        wire.send(sock, [b"adopt"], [0])
        status, answer = wire.receive(sock)
    except (ScrunError, OSError) as error:  # it was killed as well, or has no memory
        return str(error) or type(error).__name__
    return answer.decode(errors="replace") if status else ""


def _leave_word(root: str, name: str, why: str) -> None:
    """Note in the records why the containers end, for `state` and `list`."""
    from scrun.client.find import containers

    for container in containers(root):
        directory = os.path.join(root, container)
        try:
            link = os.path.basename(os.readlink(os.path.join(directory, "supervisor")))
            if parts(link)[0] == parts(name)[0]:
                _note(directory, why)
        except (ScrunError, OSError):
            continue


def _note(directory: str, why: str) -> None:
    """Note it, unless somebody lives who works on the container."""
    import msgspec

    from scrun.model.adoption import held_record
    from scrun.model.identity import is_dead
    from scrun.model.record import write_record

    record = held_record(directory)
    if record is None or record.supervisor is None or not is_dead(record.supervisor):
        return
    said = {"org.scrun.reason": "scrun-failure", "org.scrun.message": why}
    write_record(
        directory,
        msgspec.structs.replace(record, annotations={**record.annotations, **said}),
    )
