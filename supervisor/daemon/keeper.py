"""The keeper: a process that holds what containers need to live, and calls a successor.

It is a shell that reads from a pipe of the supervisor's. At its end of file, when the supervisor
has died, it calls a program that starts another supervisor and hands over to that what the dead
one has left (`scrun.client.hand_over`), and calls it again for as long as that fails: scrun may
just be being installed anew. Until then it only has a descriptor of the socket in which all that
waits (`supervisor.core.deposits`), and only KILL ends it: whoever ends a session or a service
sends SIGTERM to it and to the supervisor, in any order. If the keeper dies, the supervisor starts
another one; if both die at once, all ends with them.
"""

import os
import sys
from contextlib import suppress

import trio

from scrun.core.paths import packages
from scrun.supervisor.children.processes import ChildEnv, child
from scrun.supervisor.core.deposits import Deposits
from scrun.supervisor.log.supervisor_log import log

# /proc/uptime: the shell can read that by itself
_SCRIPT = """\
trap '' TERM INT HUP
read -r word
[ "$word" = end ] && exit
limit=$1
shift
read -r began _ </proc/uptime
until (trap - TERM INT HUP; exec "$@" "$began"); do
    sleep 0.2
    read -r now _ </proc/uptime
    [ "$((${now%.*} - ${began%.*}))" -le "$limit" ] || exit
done
"""
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from scrun.client.hand_over import hand_over; hand_over(*sys.argv[2:])"
)
_PAUSE = 1.0
_LIMIT = 60.0  # beside the time after which the program gives up; it may not even start
_LONGEST = 2e9


class Keeper:
    """The keeper of one supervisor.

    Attributes:
        line: Our end of its pipe, whose end of file calls a successor; -1 without a keeper.
    """

    def __init__(
        self, root: str, name: str, deposits: Deposits, patience: float, *, lingers: bool
    ) -> None:
        """Prepare.

        Args:
            root: The directory of the records.
            name: The name of the supervisor.
            deposits: What it holds.
            patience: For how many seconds it calls a successor.
            lingers: Whether the supervisor stays when it has nothing to do.
        """
        python = [sys.executable, "-I", *(["-S"] if sys.flags.no_site else []), "-c", _PROGRAM]
        words = [packages(), root, name, str(deposits.held), str(patience)]
        words += ["1" if lingers else ""]
        limit = str(int(min(patience, _LONGEST) + _LIMIT))
        self._command = ["/bin/sh", "-c", _SCRIPT, "scrun-keeper", limit, *python, *words]
        self._deposits = deposits
        self.line = -1

    async def run(self) -> None:
        """Have one as soon as it is needed, and until this is cancelled."""
        await self._deposits.needed.wait()
        while True:
            ours, theirs = -1, -1
            try:
                theirs, ours = os.pipe()
                self.line = ours
                async with child(
                    self._command,
                    ChildEnv(dict(os.environ)),
                    stdin=theirs,
                    pass_fds=(self._deposits.held,),
                    dies_with_us=False,
                ) as keeper:
                    os.close(theirs)
                    theirs = -1
                    try:
                        await keeper.wait()
                    finally:
                        self.dismiss()
                log.warning("the keeper has ended: another one takes its place")
            except OSError as error:
                log.warning("the keeper cannot be started: %s", error)
            finally:
                self.line = -1
                for fd in (ours, theirs):
                    if fd >= 0:
                        os.close(fd)
            await trio.sleep(_PAUSE)

    def dismiss(self) -> None:
        """Have it end without a successor: we exit, and nothing is left for one."""
        if self.line >= 0:
            with suppress(BrokenPipeError):  # it has ended
                os.write(self.line, b"end\n")
