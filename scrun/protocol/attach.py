"""The frames of an attached terminal, in both directions.

A kind, four bytes of length (big endian), content. DATA is output or what was typed, SIZE the
terminal's rows and columns, two bytes each, SIGNAL a signal's number; from the supervisor SIGNAL
is the exit status.
"""

DATA, SIZE, SIGNAL = b"d", b"w", b"s"


def frame(kind: bytes, content: bytes) -> bytes:
    """Pack what goes over the connection."""
    return kind + len(content).to_bytes(4, "big") + content


def take_frames(data: bytes) -> "tuple[list[tuple[bytes, bytes]], bytes]":
    """Take the whole frames out of what has come: kinds and contents, and what is left."""
    frames = []
    place = 0
    while len(data) >= place + 5:
        end = place + 5 + int.from_bytes(data[place + 1 : place + 5], "big")
        if len(data) < end:
            break
        frames.append((data[place : place + 1], data[place + 5 : end]))
        place = end
    return frames, data[place:]
