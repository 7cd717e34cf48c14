"""Run the OCI runtime of this machine in `create`, on behalf of the supervisor.

So the container's first process becomes a child of the subreaper above `create` (conmon or
containerd's shim) and not of the supervisor, which is not below the engine. The engine waits for
it, signals it and finds its namespaces as with crun or runc.

Wire: the supervisor sends CALL (`scrun.protocol.progress`), the length of the command as a decimal
number, NUL, and the command's words separated by NUL. The answer is a line with its exit status,
negative if a signal ended it, together with the descriptor that holds the lock of the pid file, if
there is one. Standard input, output and error are those of `create`.
"""

import _socket
import posix

from scrun.core.rights import send_fds
from scrun.protocol.wire import LIMIT

_DIGITS = 10  # with the byte before them


def run(words: "list[bytes]") -> int:
    """Run a command to its end; return its exit status."""
    pid = posix.posix_spawnp(words[0], words, posix.environ)
    return posix.waitstatus_to_exitcode(posix.waitpid(pid, 0)[1])


def call(sock: _socket.socket, data: bytes, lock: "int | None") -> "tuple[int, bytes]":
    """Run the command that the supervisor has sent.

    Args:
        sock: The connection to the supervisor.
        data: What was received so far: the message, perhaps without its end.
        lock: The descriptor that holds the pid file's lock.

    Returns:
        The exit status, and what was received after the message.

    Raises:
        ConnectionError: The supervisor closed the connection, or sends what is not a command.
    """
    head, _, rest = data.partition(b"\0")
    length = int(head[1:]) if head[1:].isdigit() and len(head) <= _DIGITS else 0
    if not 0 < length <= LIMIT:
        raise ConnectionResetError("the supervisor sent what is not a command")
    while len(rest) < length:
        if not (part := sock.recv(65536)):
            raise ConnectionResetError("the supervisor closed the connection")
        rest += part
    status = run(rest[:length].split(b"\0"))
    send_fds(sock, b"%d\n" % status, [] if lock is None else [lock])
    return status, rest[length:]
