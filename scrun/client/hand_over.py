"""Find or start the successor of a supervisor that has died, and hand over what that has left.

The keeper becomes this program (`supervisor.daemon.keeper`).
"""

import time

from scrun.client.launch import launch
from scrun.core.errors import ScrunError
from scrun.protocol import wire

_PATIENCE = 600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0


def hand_over(root: str, name: str, held: str, lingers: str) -> None:
    """Hand over, and try again for a while if there is no successor.

    Args:
        root: The directory of the records.
        name: The name of the supervisor.
        held: The number of the descriptor with all that it has left.
        lingers: Whether it stays when it has nothing to do.
    """
    end = time.monotonic() + _PATIENCE
    pause = _FIRST_PAUSE
    while time.monotonic() < end:
        try:
            sock = launch(root, name, lingers=bool(lingers))
            wire.send(sock, [b"adopt"], [int(held)])
            if wire.receive(sock)[0] == 0:
                return
        except (ScrunError, OSError):
            pass  # it was killed as well, or has no memory; it has logged why
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
