"""The parent of a container, as conmon and containerd's shim are.

Run as a program (`python3 -I -S -c SOURCE REPORT CLOSED PID-FILE COMMAND…`): becomes a
subreaper, runs `COMMAND` (scrun create …) with its own descriptors 0 to 2, waits for the process
in the pid file, and tells on the descriptor REPORT, a line each::

    create STATUS         how create ended
    anchor PID            what the pid file says
    exit STATUS           how that process ended, as its parent sees it

CLOSED names those of the descriptors 0 to 2 that COMMAND gets closed, as in "02", or "-".
"""

import ctypes
import os
import sys

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    report, closed, pid_file, *command = sys.argv[1:]
    out = int(report)
    os.set_inheritable(out, False)
    ended: dict[int, int] = {}

    def tell(event: str, value: int) -> None:
        os.write(out, f"{event} {value}\n".encode())

    def wait_for(pid: int) -> int:
        while pid not in ended:
            found, status = os.wait()
            ended[found] = os.waitstatus_to_exitcode(status)
        return ended[pid]

    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    create = os.posix_spawnp(
        command[0],
        command,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_CLOSE, int(fd)) for fd in closed if fd != "-"],
    )
    # else this process would keep the container's pipes open
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    status = wait_for(create)
    tell("create", status)
    if status == 0:
        with open(pid_file) as file:
            anchor = int(file.read())
        tell("anchor", anchor)
        tell("exit", wait_for(anchor))


if __name__ == "__main__":
    main()
