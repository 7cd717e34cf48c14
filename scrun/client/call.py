"""What `create` does for its supervisor: it calls the OCI runtime of this machine.

The container's first process becomes a child of whoever is the subreaper above `create`, conmon or
containerd's shim, and never of the supervisor, which is nobody's descendant. So the engine waits
for it, signals it and finds its namespaces as with crun or runc.

Wire: the supervisor sends CALL (`scrun.protocol.progress`), the length of the command as a decimal
number, NUL, and the command's words separated by NUL. The answer is a line with its exit status,
negative if a signal ended it, and beside it the descriptor that holds the lock of the pid file, if
there is one. Standard input, output and error are those of `create`.
"""

import _socket
import os


def call(sock: _socket.socket, data: bytes, lock: "int | None") -> "tuple[int, bytes]":
    """Carry out what the supervisor asks for.

    Args:
        sock: The connection to it.
        data: What has come so far: the message, perhaps without its end.
        lock: The descriptor that holds the pid file's lock.

    Returns:
        The exit status, and what has come after the message.

    Raises:
        ConnectionError: The supervisor went away.
    """
    head, _, rest = data.partition(b"\0")
    length = int(head[1:])
    while len(rest) < length:
        if not (part := sock.recv(65536)):
            raise ConnectionResetError("the supervisor closed the connection")
        rest += part
    words = [os.fsdecode(word) for word in rest[:length].split(b"\0")]
    status = os.waitstatus_to_exitcode(
        os.waitpid(os.posix_spawnp(words[0], words, os.environ), 0)[1]
    )
    rights = lock.to_bytes(4, "little") if lock is not None else b""
    ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else []
    sock.sendmsg([b"%d\n" % status], ancillary)
    return status, rest[length:]
