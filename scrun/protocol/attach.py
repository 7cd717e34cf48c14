"""The frames that `attach`, `logs --follow` and the supervisor exchange.

A frame is a kind (one byte), a length (four bytes, big endian) and content. DATA carries output,
or what was typed; SIZE the terminal's rows and columns, two bytes each (big endian); SIGNAL a
signal's number in one byte or, from the supervisor, the exit status.

A request with a position, in decimal digits or empty for the present end of the output, gets more:
POSITION, eight bytes (big endian), is that of the next DATA, counting what the limit of the output
has discarded; TAKEN says, without content, that one more frame was taken, in their order; END that
the text is complete. So after the death of a supervisor its successor can be asked for the rest,
and told what the other has not taken.

With such a request `attach` passes the end of a pipe. If the answer's second byte has PIPED, what
is typed comes from there: the supervisor moves it to the container by splice(2), so each byte is
in the pipe or has arrived, whoever is killed. Otherwise, and from older versions, DATA has it.
"""

DATA, SIZE, SIGNAL, POSITION, TAKEN, END = b"d", b"w", b"s", b"p", b"t", b"e"
TERMINAL, PIPED = 1, 2
"""Bits of the second byte of the answer to `attach`: the container has a terminal; see above."""

FRAMED = b"\xfa"
"""The answer to `follow` with a position; without one, or from an older version, 0 and text."""


def frame(kind: bytes, content: bytes) -> bytes:
    """Pack one frame."""
    return kind + len(content).to_bytes(4, "big") + content


def take_frames(data: bytes) -> "tuple[list[tuple[bytes, bytes]], bytes]":
    """Split received bytes into complete frames (kind, content) and the incomplete rest."""
    frames = []
    begin = 0
    while len(data) >= begin + 5:
        end = begin + 5 + int.from_bytes(data[begin + 1 : begin + 5], "big")
        if len(data) < end:
            break
        frames.append((data[begin : begin + 1], data[begin + 5 : end]))
        begin = end
    return frames, data[begin:]
