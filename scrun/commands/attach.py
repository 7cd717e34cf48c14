"""scrun attach: connect this terminal to a container that `run --detach` started.

It shows what the container writes from now on, and forwards signals. If the container has a
terminal, input goes there, and ctrl-p ctrl-q detaches. The exit status is the container's, if it
ends meanwhile.

Wire: `attach ID POSITION` and the end of a pipe with what is typed; the answer is FRAMED, a byte
of bits, and then frames in both directions (`scrun.protocol.attach`). If the supervisor dies, its
successor is asked for the rest, reads the rest of the pipe, and gets those signals again
that the dead one may not have delivered.
"""

import _signal
import os
from collections import deque

from scrun.anchor.foreground import KeptTerminal
from scrun.cli.failure import report_failure
from scrun.cli.parse import Parsed
from scrun.client.find import resolve
from scrun.client.reach import connect_served, explain_unserved
from scrun.client.watch import Watch
from scrun.core.errors import StateError
from scrun.core.output import write
from scrun.core.ready import ready
from scrun.model.record import OUTPUT
from scrun.protocol import wire
from scrun.protocol.anchor import LOST
from scrun.protocol.attach import DATA, FRAMED, PIPED, SIGNAL, SIZE, TAKEN, TERMINAL, frame

_DETACH = b"\x10\x11"  # ctrl-p ctrl-q, as podman and docker have it
_PIECE = 65536
_TYPED = 2048
"""Bytes: select(2) calls a pipe writable if it has room for a page."""


def run(parsed: Parsed) -> int:
    """Stay until the container ends, or the user detaches."""
    container, directory = resolve(parsed)
    typed, typing = os.pipe()
    watch = Watch(directory, OUTPUT, [b"attach", os.fsencode(container)], fds=[typed])
    answer = watch.first(connect_served(directory))
    if not answer:
        raise explain_unserved(directory)
    if answer not in (b"\0", FRAMED):
        return report_failure(wire.read_answer(watch.sock, answer)[1:], answer[0], parsed)
    bits = watch.sock.recv(1)[0]
    relay = _Relay(watch, parsed, typing if bits & PIPED else None, lasts=answer == FRAMED)
    if bits & TERMINAL and not parsed.count("no-stdin") and os.isatty(0):
        kept = KeptTerminal(0)
        kept.make_raw()
        try:
            return relay.run(from_terminal=True)
        finally:
            kept.restore()
    return relay.run(from_terminal=False)


class _Relay:
    """Relays bytes and signals between this process and a container's supervisor."""

    def __init__(self, watch: Watch, parsed: Parsed, typing: int | None, *, lasts: bool) -> None:
        # `typing` is the pipe for what is typed, None for a supervisor that wants frames; `lasts`
        # says whether a successor of the supervisor can go on
        self._watch = watch
        self._parsed = parsed
        self._typing = typing
        self._lasts = lasts
        self._unsure: deque[bytes] = deque()  # sent, and not known to be taken
        self._keys = b""

    def run(self, *, from_terminal: bool) -> int:
        signals = _signals()
        wire.wait_for_ever(self._watch.sock)
        if from_terminal:
            self._send(_size())
        full: list[int] = []  # the pipe, if the container does not read
        while True:
            keys = [0] if from_terminal and not full else []
            inputs = [self._watch.sock.fileno(), signals, *keys]
            readable, with_room = ready(inputs, full)
            if with_room:
                full = []
            elif 0 in readable and not self._has_room():
                full = [self._typing] if self._typing is not None else []
                continue
            if signals in readable:
                for number in os.read(signals, _PIECE):
                    resized = number == _signal.SIGWINCH
                    self._send(_size() if resized else frame(SIGNAL, bytes([number])))
            if 0 in readable and self._type():
                return 0
            if self._watch.sock.fileno() in readable and (status := self._show()) is not None:
                return status

    def _send(self, content: bytes) -> None:
        """Send a frame; if that fails, the end of the connection is noticed when it is read."""
        if content and self._lasts:
            self._unsure.append(content)
        try:
            self._watch.sock.sendall(content)
        except OSError:
            pass

    def _has_room(self) -> bool:
        return self._typing is None or bool(ready([], [self._typing], 0)[1])

    def _type(self) -> bool:
        """Pass on what was typed; return whether this detaches."""
        typed = os.read(0, _TYPED)
        plain, self._keys, leaving = without_keys(self._keys, typed)
        if self._typing is None:
            self._send(frame(DATA, plain))
        elif plain:
            os.write(self._typing, plain)
        return leaving or not typed

    def _show(self) -> int | None:
        """Show what arrives; return the container's exit status if it has ended."""
        frames = self._watch.frames()
        if frames is None:
            return self._go_on()
        for kind, content in frames:
            if kind == SIGNAL:
                return content[0] if content else LOST
            if kind == TAKEN and self._unsure:
                self._unsure.popleft()
            elif kind == DATA:
                write(content)
        return None

    def _go_on(self) -> int | None:
        """Go on with the successor of a supervisor that has gone; what is typed waits."""
        while self._lasts and self._watch.again() == FRAMED:
            wire.wait_for_ever(self._watch.sock)
            try:
                self._watch.sock.recv(1)  # the bits, which are known
                for content in self._unsure:
                    self._watch.sock.sendall(content)
            except OSError:
                continue
            return None
        if not self._lasts:
            return LOST
        for piece in self._watch.rest():
            write(piece)
        try:
            status = self._watch.status()
        except StateError as error:
            return report_failure(str(error).encode(), LOST, self._parsed)
        return LOST if status is None else status


def without_keys(held: bytes, typed: bytes) -> tuple[bytes, bytes, bool]:
    """Return what to send, what to hold back, and whether both keys that detach were typed."""
    text = held + typed
    before, found, _ = text.partition(_DETACH)
    if found:
        return before, b"", True
    if text.endswith(_DETACH[:1]):
        return text[:-1], text[-1:], False
    return text, b"", False


def _signals() -> int:
    """Return a descriptor from which the numbers of signals are read that are to be passed on."""
    told, telling = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.set_wakeup_fd(telling, warn_on_full_buffer=False)
    for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "WINCH"):
        _signal.signal(getattr(_signal, "SIG" + name), _ignore)
    return told


def _ignore(number: int, _: object) -> None:
    """Do nothing: its number is in the pipe."""


def _size() -> bytes:
    """Return a frame with the terminal's size, or nothing if there is none."""
    try:
        columns, rows = os.get_terminal_size(0)
    except OSError:
        return b""
    return frame(SIZE, rows.to_bytes(2, "big") + columns.to_bytes(2, "big"))
