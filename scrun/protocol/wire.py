"""Requests and replies between the commands and the supervisor.

A request is one frame on an AF_UNIX stream: four bytes of length (big endian), then fields
separated by NUL. NUL is the one byte that arguments, paths and environment cannot contain, so
nothing needs quoting and both halves are a `join` and a `split`: this module is on the path of
every command and imports nothing but `_socket`.

A reply is one byte, the exit status of the command, and what the command prints until end of
file: on standard output when the status is 0, else the reason, for standard error and `--log`.
The reply to `create` may have messages before it, which begin with 252 to 255: see
`scrun.protocol.progress`.

Requests (`FIELDS` in brackets)::

    state  [ID]
    start  [ID]
    kill   [ID, SIGNAL, ALL]           ALL: "1" or not there
    delete [ID, FORCE]                 FORCE: "1" or ""
    pause  [ID]
    resume [ID]
    create [PID, UMASK, CWD, COUNT, ARGUMENT..., NAME=VALUE...]
           with the descriptors 0, 1 and 2 of the container and the anchor's socket; PID is the
           caller's, and the anchor's follows in a line; the caller confirms the answer by one byte
    exec   as create without variables, for one more program; PID is its anchor's
    tidy                               begins to look for what dead supervisors have left
"""

import _socket

LIMIT = 16 * 1024 * 1024
"""The largest request, in bytes: Linux passes at most 6 MiB of arguments and environment."""

NOBODY = (ConnectionRefusedError, FileNotFoundError, NotADirectoryError)
"""What `connect` raises when nobody listens. After any other error nothing is known: the caller
may have no descriptor left, or no permission."""

REPLY = 16 * 1024 * 1024
"""The longest reply, in bytes; the longest are states, with the annotations of a config.json."""

PATIENCE = 120
"""Seconds that another user's supervisor may take to answer: only root asks one, and trusts it in
nothing. What takes longer there is done all the same."""

_ANSWER = 30
"""Seconds that an answer may take from its first byte to its last."""

_PATH_MAX = 107
_NOBODY = 65534
_PEERCRED_SIZE = 12


def frame(fields: "list[bytes]") -> bytes:
    """Pack fields into one frame.

    Args:
        fields: The operation's name and its arguments, none of them with a NUL.
    """
    body = b"\0".join(fields)
    return len(body).to_bytes(4, "big") + body


def connect(directory: str, name: str, patience: int = 0) -> _socket.socket:
    """Connect to the socket DIRECTORY/NAME, whoever serves it.

    Args:
        directory: Where it is.
        name: Its name there.
        patience: Seconds to wait for a server that has a full queue; 0 is for ever.

    Raises:
        OSError: Nobody listens there (`NOBODY`), or that cannot be known.
    """
    import os

    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    path = directory + "/" + name
    if patience:  # struct timeval
        timeout = patience.to_bytes(8, "little") + bytes(8)
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, timeout)
    try:
        if len(os.fsencode(path)) <= _PATH_MAX:
            sock.connect(path)
        else:  # sun_path holds 108 bytes; engines' directories can be longer (docker's is)
            holder = os.open(directory, os.O_PATH | os.O_DIRECTORY)
            try:
                sock.connect(f"/proc/self/fd/{holder}/{name}")
            finally:
                os.close(holder)
    except OSError as error:
        sock.close()
        error.filename = path
        raise
    return sock


def connect_supervisor(directory: str, name: str, patience: int = 0) -> _socket.socket:
    """Connect to a supervisor: one of the same user, unless root asks.

    Args:
        directory: Where its socket is.
        name: The socket's name there.
        patience: As for `connect`; of another user's there is some in any case.

    Raises:
        OSError: As `connect`; or somebody else serves it (PermissionError).
    """
    import os

    foreign = os.stat(directory).st_uid != os.geteuid()
    sock = connect(directory, name, patience or (PATIENCE if foreign else 0))
    try:
        check_server(sock)
        if served_by(sock) != os.geteuid():
            _wait_at_most(sock, patience or PATIENCE)
    except PermissionError as error:
        sock.close()
        error.filename = directory
        raise
    return sock


def served_by(sock: _socket.socket) -> int:
    """Return the uid of the one at the other end (unix(7), SO_PEERCRED)."""
    peer = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _PEERCRED_SIZE)
    return int.from_bytes(peer[4:8], "little")


def check_server(sock: _socket.socket) -> None:
    """Refuse one who is another user, unless root asks.

    Raises:
        PermissionError: See above.
    """
    import os

    owner, user = served_by(sock), os.geteuid()
    # root of a user namespace is not root: whom that does not have is shown as nobody
    is_ours = owner == user or (user == 0 and owner != _NOBODY)
    if is_ours and owner == _NOBODY:
        from scrun.core.paths import outer_id

        is_ours = outer_id("uid", _NOBODY) == _NOBODY
    if not is_ours:
        raise PermissionError(1, f"is served by another user (uid {owner})")


def send(sock: _socket.socket, fields: "list[bytes]", fds: "list[int] | None" = None) -> None:
    """Send one request, with descriptors beside its first byte.

    A supervisor that refuses it may have answered and hung up before it has taken all: then
    `receive` has the answer, or says that there is none.
    """
    data = frame(fields)
    try:
        _send(sock, data, fds)
    except BrokenPipeError:
        pass


def _send(sock: _socket.socket, data: bytes, fds: "list[int] | None") -> None:
    if fds:
        rights = b"".join(fd.to_bytes(4, "little") for fd in fds)
        sent = sock.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        data = data[sent:]
    sock.sendall(data)


def confirm(sock: _socket.socket) -> None:
    """Tell that the answer to a `create` has arrived."""
    try:
        sock.send(b"\0")
    except OSError:
        pass  # the supervisor is gone, and what it has created with it


def receive(sock: _socket.socket) -> "tuple[int, bytes]":
    """Read the reply to a request.

    Returns:
        The exit status and what to print.

    Raises:
        ConnectionError: The supervisor went away without a word.
        OSError: It takes too long, or its answer has no end.
    """
    reply = answer(sock, b"")
    return reply[0], reply[1:]


def answer(sock: _socket.socket, reply: bytes) -> bytes:
    """Read a reply to its end, of which `reply` has come already.

    Raises:
        ConnectionError: The supervisor went away without a word.
        OSError: It takes too long, or its answer has no end.
    """
    import time

    parts = [reply] if reply else []
    size = len(reply)
    try:
        if not parts:
            parts.append(sock.recv(65536))
            size = len(parts[0])
        end = time.monotonic() + _ANSWER
        while parts[-1]:
            _wait_at_most(sock, max(end - time.monotonic(), 0.001))
            parts.append(sock.recv(65536))
            size += len(parts[-1])
            if size > REPLY:
                raise OSError(90, f"its answer is longer than {REPLY >> 20} MiB", "the supervisor")
            if time.monotonic() > end:
                raise BlockingIOError
    except BlockingIOError:
        raise TimeoutError(110, "does not answer in time; try again", "the supervisor") from None
    if not size:
        raise ConnectionResetError("the supervisor closed the connection")
    return b"".join(parts)


def wait_for_ever(sock: _socket.socket) -> None:
    """Take the limit of `connect_supervisor` away: what follows comes in its own time."""
    _wait_at_most(sock, 0)


def _wait_at_most(sock: _socket.socket, seconds: float) -> None:
    """Have recv(2) fail after a while (EAGAIN)."""
    whole = int(seconds)
    timeout = whole.to_bytes(8, "little") + int((seconds - whole) * 1e6).to_bytes(8, "little")
    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, timeout)
