"""Passes descriptors to another process (unix(7), SCM_RIGHTS)."""

import _socket

_TOO_MANY = 109  # ETOOMANYREFS


def send_fds(sock: _socket.socket, data: bytes, fds: "list[int]") -> int:
    """Send the beginning of some data, with descriptors; return how many bytes were sent.

    The kernel refuses that to a process with fewer open files allowed than descriptors of its
    user's are on their way, to whoever they are. Those that a supervisor keeps for its successor
    are: with a hundred containers there are more than the usual 1024.

    Args:
        sock: A socket of AF_UNIX.
        data: The data; not empty.
        fds: The descriptors.

    Raises:
        OSError: They cannot be sent; so with more of them on their way than may ever be open.
    """
    rights = b"".join(fd.to_bytes(4, "little") for fd in fds)
    ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if fds else []
    try:
        return sock.sendmsg([data], ancillary)
    except OSError as error:
        if error.errno != _TOO_MANY:
            raise
    import resource  # only now: a command that starts often imports next to nothing

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        return sock.sendmsg([data], ancillary)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
