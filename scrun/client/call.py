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


def call(sock: _socket.socket, data: bytes, lock: "int | None") -> "tuple[int, bytes]":
    """Run the command that the supervisor has sent.

    Args:
        sock: The connection to the supervisor.
        data: What was received so far: the message, perhaps without its end.
        lock: The descriptor that holds the pid file's lock.

    Returns:
        The exit status, and what was received after the message.

    Raises:
        ConnectionError: The supervisor closed the connection.
    """
    head, _, rest = data.partition(b"\0")
    length = int(head[1:])
    while len(rest) < length:
        if not (part := sock.recv(65536)):
            raise ConnectionResetError("the supervisor closed the connection")
        rest += part
    words = rest[:length].split(b"\0")
    status = posix.waitstatus_to_exitcode(
        posix.waitpid(posix.posix_spawnp(words[0], words, posix.environ), 0)[1]
    )
    send_fds(sock, b"%d\n" % status, [] if lock is None else [lock])
    return status, rest[length:]
