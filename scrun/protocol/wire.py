"""Requests and replies between the commands and the supervisor.

A request is one frame on an AF_UNIX stream: four bytes of length (big endian), then fields
separated by NUL. NUL is the one byte that arguments, paths and environment cannot contain, so
nothing needs quoting: packing is a `join`, unpacking a `split`. Every command uses this module,
so it imports what is built in alone.

A reply is one byte, the exit status of the command, and text until end of file: output for
standard output if the status is 0, else the reason, for standard error and `--log`. `follow` and
`attach` go on after the status 0: see `scrun.commands.logs` and `scrun.commands.attach`.

Any number of messages precede the reply to `create`. Each is one byte, which no exit status uses,
then text and NUL; CALL has a format of its own.

* TO_STDERR: a line for standard error, as it is shown; TO_LOG: a level (in runc's words), a blank
  and a line for `--log`. They come if the call asked for them (`--debug`, `-v`,
  SCRUN_STDERR_DEBUG, …).
* LIVE: a line for a terminal, which replaces the last one; an empty one clears it.
* CALL: a command for `create` to run (`scrun.client.submit`).
* REASON_SHOWN: standard error already shows the reason that the reply gives.

Requests, with their fields::

    state  [ID]
    start  [ID, AGAIN, PID]            AGAIN: "1" if a supervisor was asked before, and has not
                                       answered: what it has done already is not an error
                                       PID: of the container that is meant, if it is known:
                                       another one may have the id by now
    kill   [ID, SIGNAL, ALL]           ALL: "1" or absent
    delete [ID, FORCE, PID]            FORCE: "1" or ""
    pause  [ID, AGAIN]
    resume [ID, AGAIN]
    ps     [ID, FORMAT, OPTION...]     FORMAT: "table" or "json"; options of ps(1)
    events [ID]                        one line of statistics
    update [ID, TIME, RESOURCES]       TIME: a time limit or ""; RESOURCES: JSON
    follow [ID, KIND, POSITION]        KIND: "output" or "messages"
    attach [ID, POSITION]              frames follow the status (`scrun.protocol.attach`), with the
           end of a pipe for what is typed
    create [PID, UMASK, CWD, COUNT, ARGUMENT..., NAME=VALUE...]
           with four descriptors: the container's 0, 1 and 2, and the supervisor's end of the
           anchor's socket; with those of `--preserve-fds`; and with one more, the caller's mount
           namespace, if the supervisor has another one. PID is the caller's; the anchor's
           follows in a line of its own. The caller confirms a successful reply with one byte.
    exec   [PID, UMASK, CWD, COUNT, ARGUMENT...]
           with the same descriptors, for one more program; PID is its anchor's
    runs   [ID, PID]                   whether that runs, if there was no answer to `exec`
    tidy   []                          starts to clean up after dead supervisors
    jobs   []                          the jobs that wait for their next container, as JSON
    release [JOB]                      releases one of them, or all: JOB is ""; replies with ids
    pool   [PID, UMASK, CWD, COUNT, ARGUMENT..., NAME=VALUE...]
           starts, stops or resizes a pool; empty if the supervisor has none of that name
    pools  []                          the nodes of its pools, as JSON
    adopt  []                          what a dead supervisor has left (`scrun.client.hand_over`),
                                       with a descriptor
    borrow [REQUEST]                   of another supervisor (`supervisor.containers.lending`)
"""

import _socket
import posix
import sys
import time

from scrun.core.paths import outer_id
from scrun.core.rights import send_fds

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Connection(Protocol):
        """A socket, or trio's."""

        def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


REASON_SHOWN = b"\xfb"
CALL = b"\xfc"
LIVE = b"\xfd"
TO_LOG = b"\xfe"
TO_STDERR = b"\xff"


LIMIT = 16 * 1024 * 1024
"""The largest request, in bytes: Linux passes at most 6 MiB of arguments and environment."""

NOBODY = (ConnectionRefusedError, FileNotFoundError, NotADirectoryError)
"""What `connect` raises when nobody listens. Any other error leaves that open: the caller may have
no descriptor left, or no permission."""

REPLY = 16 * 1024 * 1024
"""The longest reply, in bytes; the longest are states, with the annotations of a config.json."""

PATIENCE = 120
"""Seconds to wait for the answer of another user's supervisor, which only root asks and does not
trust. A request that takes longer is still carried out."""

_NOT_TWICE = (b"start", b"pause", b"resume")
_ANSWER = 30
"""Seconds from the first byte of an answer to its last."""

_PATH_MAX = 107
_NOBODY = 65534
_PEERCRED_SIZE = 12


def encoded(text: str) -> bytes:
    """Return text as the system has it, as `os.fsencode`."""
    return text.encode(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())


def decoded(text: bytes) -> str:
    """Return what the system has as text, as `os.fsdecode`."""
    return text.decode(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())


def frame(fields: "list[bytes]") -> bytes:
    """Pack fields into one frame: the operation's name and its arguments, none with a NUL."""
    body = b"\0".join(fields)
    return len(body).to_bytes(4, "big") + body


def connect(directory: str, name: str, patience: int = 0) -> _socket.socket:
    """Connect to DIRECTORY/NAME, or raise one of `NOBODY`; patience is seconds, 0 for ever."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    path = directory + "/" + name
    if patience:  # struct timeval
        timeout = patience.to_bytes(8, "little") + bytes(8)
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, timeout)
    try:
        if len(encoded(path)) <= _PATH_MAX:
            sock.connect(path)
        else:  # sun_path holds 108 bytes; engines' directories can be longer (docker's is)
            holder = posix.open(directory, posix.O_PATH | posix.O_DIRECTORY)
            try:
                sock.connect(f"/proc/self/fd/{holder}/{name}")
            finally:
                posix.close(holder)
    except OSError as error:
        sock.close()
        error.filename = path
        raise
    return sock


def connect_supervisor(directory: str, name: str, patience: int = 0) -> _socket.socket:
    """Connect to a supervisor of the same user; root may connect to anybody's.

    `patience` is as for `connect`, and for the answer; for another user's supervisor 0 means
    `PATIENCE`. Raises PermissionError if another user serves the socket.
    """
    foreign = posix.stat(directory).st_uid != posix.geteuid()
    sock = connect(directory, name, patience or (PATIENCE if foreign else 0))
    try:
        check_peer(sock)
        if patience or peer_uid(sock) != posix.geteuid():
            _wait_at_most(sock, patience or PATIENCE)
    except PermissionError as error:
        sock.close()
        error.filename = directory
        raise
    return sock


def peer_pid(sock: "Connection") -> int:
    """Return the peer's pid, 0 if it is in a PID namespace that we do not see."""
    return int.from_bytes(_peer(sock)[:4], "little")


def peer_uid(sock: "Connection") -> int:
    """Return the peer's uid."""
    return int.from_bytes(_peer(sock)[4:8], "little")


def _peer(sock: "Connection") -> bytes:
    """Return the peer's pid, uid and gid (unix(7), SO_PEERCRED)."""
    return sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _PEERCRED_SIZE)


def check_peer(sock: _socket.socket) -> None:
    """Refuse a peer of another user, by PermissionError, unless root asks."""
    owner, user = peer_uid(sock), posix.geteuid()
    # root of a user namespace is not root: users whom it does not map appear as nobody
    is_ours = owner == user or (user == 0 and owner != _NOBODY)
    if is_ours and owner == _NOBODY:
        is_ours = outer_id("uid", _NOBODY) == _NOBODY
    if not is_ours:
        raise PermissionError(1, f"is served by another user (uid {owner})")


def send(sock: _socket.socket, fields: "list[bytes]", fds: "list[int] | None" = None) -> None:
    """Send one request; descriptors travel with its first byte.

    A supervisor that refuses a request may answer and hang up before it has read all of it.
    `receive` then returns the answer, or raises if there was none.
    """
    data = frame(fields)
    try:
        _send(sock, data, fds)
    except BrokenPipeError:
        pass


def _send(sock: _socket.socket, data: bytes, fds: "list[int] | None") -> None:
    if fds:
        data = data[send_fds(sock, data, fds) :]
    sock.sendall(data)


def confirm(sock: _socket.socket) -> None:
    """Confirm that the answer to a `create` has arrived."""
    try:
        sock.send(b"\0")
    except OSError:
        pass  # the supervisor is gone, and its containers with it


def receive(sock: _socket.socket) -> "tuple[int, bytes]":
    """Read the reply: status and text; ConnectionError without one, OSError if it is too long."""
    reply = read_answer(sock, b"")
    return reply[0], reply[1:]


def read_answer(sock: _socket.socket, reply: bytes) -> bytes:
    """Read a reply to its end, after the part that was read already; raises as `receive` does."""
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
                raise incomplete(90)
            if time.monotonic() > end:
                raise BlockingIOError
    except BlockingIOError:
        raise incomplete(110) from None
    if not size:
        raise ConnectionResetError("the supervisor closed the connection")
    return b"".join(parts)


def incomplete(number: int) -> OSError:
    """Return the error for an answer that is too long (90, EMSGSIZE), or takes too long."""
    if number == 90:
        return OSError(90, f"its answer is longer than {REPLY >> 20} MiB", "the supervisor")
    return TimeoutError(110, "does not answer in time; try again", "the supervisor")


def wait_for_ever(sock: _socket.socket) -> None:
    """Remove the time limit that `connect_supervisor` has set: output may come at any time."""
    _wait_at_most(sock, 0)


def _wait_at_most(sock: _socket.socket, seconds: float) -> None:
    """Make recv(2) fail with EAGAIN after so many seconds; 0 waits for ever."""
    whole = int(seconds)
    timeout = whole.to_bytes(8, "little") + int((seconds - whole) * 1e6).to_bytes(8, "little")
    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, timeout)


def asked_again(fields: "list[bytes]") -> "list[bytes]":
    """Return a request for the successor of a supervisor that may have carried it out."""
    return [*fields[:2], b"1", *fields[3:]] if fields[0] in _NOT_TWICE else fields


def ask(
    directory: str, name: str, fields: "list[bytes]", meanwhile: "Callable[[], None] | None" = None
) -> "tuple[int, bytes]":
    """Send one request, and do `meanwhile`; raise one of `NOBODY`, or OSError if unanswered."""
    return converse(lambda: connect_supervisor(directory, name), fields, meanwhile)


def converse(
    connect: "Callable[[], _socket.socket]",
    fields: "list[bytes]",
    meanwhile: "Callable[[], None] | None" = None,
) -> "tuple[int, bytes]":
    """Send one request, and wait for its answer; raises OSError if all hang up.

    A supervisor that hangs up without an answer was about to exit, has died, or did not get the
    whole request in time, for example because this process was stopped. The next attempt to
    connect tells which. The next one accepts what the first one has done already.
    """
    for _ in range(3):
        sock = connect()
        try:
            send(sock, fields)
            if meanwhile is not None:
                meanwhile()
            return receive(sock)
        except ConnectionResetError:
            fields = asked_again(fields)
        finally:
            sock.close()
    raise ConnectionResetError(104, "it hangs up without an answer; try again", "the supervisor")
