"""scrun forward: reach ports of a container, wherever it runs, at ports of this machine.

It listens, and lasts until the container ends. Only processes of the user's own can connect,
unless an address other than the loopback is given.

Wire: `forward ID PORT,PORT…`, with a listening socket for each port; the answer is a NUL, then
lines about connections that failed, and at last another NUL: the container has ended. If the
supervisor dies, its successor gets the same request; connections wait in the sockets meanwhile.

Errors: the container does not run, or nothing can connect to its network; a local port is taken.
"""

import errno
import os
import socket
from contextlib import ExitStack
from typing import NamedTuple

from scrun.cli.failure import report, report_failure
from scrun.cli.parse import Parsed
from scrun.client.find import resolve
from scrun.client.reach import connect_served, explain_unserved
from scrun.client.watch import Watch
from scrun.core.errors import UsageError
from scrun.core.output import discard, say
from scrun.core.paths import has_record
from scrun.core.rights import MOST
from scrun.model.record import OUTPUT
from scrun.protocol import wire

_LOCAL = "127.0.0.1"
_QUEUE = 4096
_PIECE = 65536
_END = b"\0"
_ANY_FREE = "0:PORT takes any free port"


class Forwarded(NamedTuple):
    """A port of a container, and where it is reached: at port 0, any free one."""

    address: str
    local: int
    port: int


def run(parsed: Parsed) -> int:
    wanted = [read_forwarded(text) for text in parsed.operands]
    if not wanted:
        raise UsageError("forward needs a port of the container, such as 8888 or 0:8888")
    if len(wanted) > MOST:
        raise UsageError(f"forward takes {MOST} ports at most: call it once more for the others")
    container, directory = resolve(parsed)
    if not has_record(directory):
        raise explain_unserved(directory)
    listeners = [listening(one) for one in wanted]
    ports = ",".join(str(one.port) for one in wanted)
    fields = [b"forward", os.fsencode(container), ports.encode()]
    watch = Watch(directory, OUTPUT, fields, fds=[one.fileno() for one in listeners])
    answer = watch.first(connect_served(directory))
    if not answer:
        raise explain_unserved(directory)
    if answer != _END:
        return report_failure(wire.read_answer(watch.sock, answer)[1:], answer[0], parsed)
    for one, listener in zip(wanted, listeners, strict=True):
        say(f"{_told(one, listener, url=bool(parsed.count('print-url')))}\n".encode())
    if parsed.count("detach") and not _in_background():
        return 0
    return _stay(watch, parsed)


def read_forwarded(text: str) -> Forwarded:
    """Parse PORT, LOCAL:PORT, ADDRESS:PORT or ADDRESS:LOCAL:PORT; an IPv6 address has brackets."""
    before, _, last = text.rpartition(":")
    address, found, middle = before.rpartition(":")
    if not found:  # LOCAL, or an address
        address, middle = ("", before) if before.isdigit() else (before, "")
    elif before.startswith("[") and before.endswith("]"):
        address, middle = before, ""
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    elif ":" in address:
        raise UsageError(f"forward {text}: an IPv6 address needs brackets: [::1]:8888")
    port, local = _number(last, text), _number(middle or last, text)
    if not port:
        raise UsageError(f"forward {text}: a container has no port 0")
    return Forwarded(address or _LOCAL, local, port)


def _number(word: str, text: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 6 and int(word) < 1 << 16):
        raise UsageError(f"forward {text}: {word!r} is not a port, from 0 to 65535")
    return int(word)


def listening(one: Forwarded) -> socket.socket:
    """Listen there, or raise OSError with what is wrong and what helps."""
    try:
        # bytes need no IDNA, which has no word for the user where a name does not fit it
        name = os.fsencode(one.address)
        [found, *_] = socket.getaddrinfo(name, one.local, type=socket.SOCK_STREAM)
        with ExitStack() as undo:
            listener = undo.enter_context(socket.socket(*found[:2]))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(found[4])
            listener.listen(_QUEUE)
            undo.pop_all()
    except OSError as error:
        is_elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        remedy = "name an address of this machine" if is_elsewhere else _ANY_FREE * bool(one.local)
        text = "; ".join(filter(None, (error.strerror, remedy)))
        raise OSError(error.errno, text, f"{one.address}:{one.local}") from None
    listener.setblocking(False)
    return listener


def _told(one: Forwarded, listener: socket.socket, *, url: bool) -> str:
    host, local = listener.getsockname()[:2]
    if url and host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{local}/" if url else f"{host}:{local} -> {one.port}"


def _in_background() -> bool:
    """Go on in a process of its own; return whether this is that."""
    if os.fork():
        return False
    os.setsid()
    os.chdir("/")
    discard(0, 1, 2)
    return True


def _stay(watch: Watch, parsed: Parsed) -> int:
    """Show what the supervisor says, until the container has ended."""
    rest = b""
    while True:
        wire.wait_for_ever(watch.sock)
        try:
            part = watch.sock.recv(_PIECE)
        except ConnectionError:
            part = b""
        if part:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                report(line.decode(errors="replace"), log=None, log_format="text")
            if rest.startswith(_END):
                return 0
            continue
        rest = b""
        answer = watch.again()
        if not answer:
            return 0  # it has ended with its supervisor
        if answer != _END:
            wire.read_answer(watch.sock, answer)
            return 0
