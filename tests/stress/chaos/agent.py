"""Starts commands in a job, as a shell there would, and reaps them; runs on its own, in the job.

    agent.py SOCKET NAME

It is told by messages, each with the three standard descriptors of a command, and answers with
what it has started and what has ended. When the other side closes the connection, it ends, and
with it the script, the element or the step.
"""

import array
import ctypes
import json
import os
import select
import signal
import socket
import sys

_SUBREAPER = 36
_LARGEST = 1 << 18
_DEFAULT = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


def main(path: str, name: str) -> None:
    """Serve until the connection is closed."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in _DEFAULT[:4]:  # what Slurm says is for those that it has started
        signal.signal(number, lambda *_: None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(path)
        job = {key: value for key, value in os.environ.items() if key.startswith("SLURM_")}
        _say(sock, {"name": name, "pid": os.getpid(), "job": job})
        while True:
            ready, _, _ = select.select([sock.fileno(), readable], [], [])
            if sock.fileno() in ready and not _start(sock):
                return
            if readable in ready:
                os.read(readable, 4096)
                for pid, status in _ended():
                    _say(sock, {"ended": pid, "status": status})


def _say(sock: socket.socket, message: dict[str, object]) -> None:
    sock.sendall(json.dumps(message).encode())


def _start(sock: socket.socket) -> bool:
    """Start what is asked for; False when nothing will be any more."""
    fds = array.array("i")
    data, ancillary, _, _ = sock.recvmsg(_LARGEST, socket.CMSG_SPACE(3 * fds.itemsize))
    if not data:
        return False
    for _, _, content in ancillary:
        fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    order = json.loads(data)
    try:
        pid = os.posix_spawnp(
            order["argv"][0],
            order["argv"],
            {**os.environ, **order["environment"]},
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)],
            setsid=True,
            setsigdef=_DEFAULT,
            setsigmask=(),
        )
    except OSError as error:
        _say(sock, {"failed": str(error)})
    else:
        _say(sock, {"started": pid})
    finally:
        for fd in fds:
            os.close(fd)
    return True


def _ended() -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        found.append((pid, os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main(*sys.argv[1:])
