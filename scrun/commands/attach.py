"""scrun attach: connect this terminal to a container that `run --detach` started.

It shows what the container writes from now on, and forwards signals. If the container has a
terminal, input goes there, and ctrl-p ctrl-q detaches. The exit status is the container's, if it
ends meanwhile.

Wire: `attach ID`; the answer is a byte 0, a byte that is 1 if the container has a terminal, and
then frames in both directions (`scrun.protocol.attach`).

Errors: StateError, when scrun does not capture the container's output.
"""

import _signal
import _socket
import os
import select

from scrun.cli.parse import Parsed
from scrun.client.ask import record_root
from scrun.core.output import write
from scrun.protocol import wire
from scrun.protocol.anchor import LOST
from scrun.protocol.attach import DATA, SIGNAL, SIZE, frame, take_frames

_DETACH = b"\x10\x11"  # ctrl-p ctrl-q, as podman and docker have it
_PIECE = 65536


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Stay until the container ends, or the user detaches.

    Raises:
        ScrunError: There is no such container, or nobody serves it.
    """
    del argv
    from scrun.client.find import resolve_id
    from scrun.client.successor import connect_served

    root = record_root(parsed)
    container = resolve_id(parsed, root)
    directory = os.path.join(root, container)
    sock = connect_served(directory)
    wire.send(sock, [b"attach", os.fsencode(container)])
    first = sock.recv(1)
    if first != b"\0":
        from scrun.cli.failure import report_failure

        status = first or b"\1"
        return report_failure(wire.read_answer(sock, status)[1:], status[0], parsed)
    has_terminal = sock.recv(1) == b"\1"
    wire.wait_for_ever(sock)
    if has_terminal and not parsed.count("no-stdin") and os.isatty(0):
        from scrun.anchor.foreground import KeptTerminal

        kept = KeptTerminal(0)
        kept.make_raw()
        try:
            status_code = _relay(sock, from_terminal=True)
        finally:
            kept.restore()
    else:
        status_code = _relay(sock, from_terminal=False)
    return status_code


def _relay(sock: _socket.socket, *, from_terminal: bool) -> int:
    """Relay bytes and signals; return the exit status, or 0 when detached."""
    _pass_signals_on(sock)
    if from_terminal:
        _send_size(sock)
    inputs = [sock.fileno(), *([0] if from_terminal else [])]
    received = b""
    keys = b""
    while True:
        ready, _, _ = select.select(inputs, [], [])
        if 0 in ready:
            typed = os.read(0, 4096)
            plain, keys, leaving = without_keys(keys, typed)
            try:
                sock.sendall(frame(DATA, plain))
            except OSError:
                inputs.remove(0)  # the container ends; its status is still to be read
            if leaving or not typed:
                return 0
        if sock.fileno() not in ready:
            continue
        try:
            part = sock.recv(_PIECE)
        except OSError:  # it died before it had read what was typed
            part = b""
        if not part or len(received) > wire.REPLY:
            return LOST
        frames, received = take_frames(received + part)
        for kind, content in frames:
            if kind == SIGNAL:
                return content[0] if content else LOST
            write(content)


def without_keys(held: bytes, typed: bytes) -> "tuple[bytes, bytes, bool]":
    """Look for the two keys that detach.

    Args:
        held: The first of them, if the last input ended with it; else nothing.
        typed: The new input.

    Returns:
        What to send, what to hold back, and whether both keys were typed.
    """
    text = held + typed
    before, found, _ = text.partition(_DETACH)
    if found:
        return before, b"", True
    if text.endswith(_DETACH[:1]):
        return text[:-1], text[-1:], False
    return text, b"", False


def _pass_signals_on(sock: _socket.socket) -> None:
    fd = sock.fileno()

    def forward(number: int, _: object) -> None:
        try:
            os.write(fd, frame(SIGNAL, bytes([number])))
        except OSError:
            pass  # `_relay` notices

    def resize(number: int, _: object) -> None:
        del number
        _send_size(sock)

    for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2"):
        _signal.signal(getattr(_signal, "SIG" + name), forward)
    _signal.signal(_signal.SIGWINCH, resize)


def _send_size(sock: _socket.socket) -> None:
    try:
        columns, rows = os.get_terminal_size(0)
        size = rows.to_bytes(2, "big") + columns.to_bytes(2, "big")
        os.write(sock.fileno(), frame(SIZE, size))
    except OSError:
        pass  # no terminal, or nobody listens
