"""The first of the shim that runs: it is told where to connect, and gets the rest of the code.

Blocks, for there is nothing else to do yet.
"""

import os
import select
import sys
import time

from scrun.supervisor.wire.frames import (
    CALL,
    DATA,
    EVENT,
    FROM_SRUN,
    HEADER,
    LONGEST,
    LOOPBACK,
    NEWLINE,
    UNREACHED,
    BrokenFrame,
    frame,
    hash_function,
    sum_of,
)

from .dial import NoConnection, dial
from .json_text import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

_SENDING = 10.0  # seconds for the code, from who has proved to know the secret


def arrive(add: "Callable[[bytes], None]", python: str, told: "Iterable[int]" = ()) -> None:
    """Ask for the code, and be the shim. Returns if nobody is there any more.

    Args:
        python: The version of our bytecode, in hexadecimal.

    Raises:
        SystemExit: Something else arrived over srun.
    """
    try:
        call = loads(_payload(0, CALL).decode())
    except ConnectionError:
        return
    except (BrokenFrame, ValueError) as failure:
        sys.exit(f"received something over srun that is not a call: {failure}")
    # So that the end of the step is not late: srun has answered slurmstepd at once, with the call,
    # and its kernel would wait for the next answer, up to 40 ms, before it acknowledges the first
    # of what ends our outputs. As nothing answers this, it will not wait again.
    os.write(1, b"\n")
    began = time.monotonic()
    direct, code, error, reached = None, b"", "", False
    if call["port"]:
        try:
            hash_function("blake2b", "_blake2")  # to seal frames there
            direct = _connected(call)
            number = direct[0].fileno()
            code = _asked(call, number, number, {"python": python}, _SENDING)
        except (OSError, BrokenFrame) as failure:
            direct, error = None, str(failure)
            reached = isinstance(failure, NoConnection) and failure.reached
    if direct is None:
        if call["needed"]:
            sys.exit(f"{UNREACHED}: {error}")
        waited = 0.0 if reached else time.monotonic() - began
        words = {"python": python, "error": error, "waited": waited}
        try:
            code = _asked(call, 0, 1, words, None)
        except ConnectionError:
            return
        except BrokenFrame as failure:
            sys.exit(f"over srun: {failure}")
    add(code)
    from .main import main

    main(call, direct, told)


def hosts(environment: "Mapping[str, str]", host: str) -> "list[str]":
    """Return where the supervisor may be: beside srun, to which slurmstepd connects.

    Args:
        environment: The step's, in which Slurm says where that is.
        host: The name that the supervisor's machine has for itself, if Slurm does not say it: a
            name service that hangs would hold us up.
    """
    found = [environment[name] for name in FROM_SRUN if environment.get(name)]
    return list(dict.fromkeys([*(found or [host]), LOOPBACK]))


def _connected(call: "dict[str, Any]") -> "tuple[socket, bytes]":
    addresses = [(host, call["port"]) for host in hosts(os.environ, call["host"])]
    return dial(addresses, bytes.fromhex(call["secret"]), call["patience"])


def _asked(
    call: "dict[str, Any]",
    source: int,
    sink: int,
    words: "dict[str, Any]",
    patience: "float | None",
) -> bytes:
    """Ask for the code; return it.

    Raises:
        BrokenFrame: Something else arrived.
        OSError: It did not arrive.
    """
    said = frame(EVENT, 0, dumps({"event": "code", **words}).encode())
    os.write(sink, said if source == sink else said + NEWLINE)
    code = _payload(source, DATA, patience)
    if sum_of(code) not in call["code"]:
        raise BrokenFrame("received something that is not the shim's code")
    return code


def _payload(fd: int, kind: int, patience: "float | None" = None) -> bytes:
    """Return the payload of the next frame.

    Raises:
        BrokenFrame: It is of another kind.
        ConnectionResetError: The other end has closed.
        OSError: It did not arrive in time.
    """
    deadline = time.monotonic() + (patience or 0)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    data, size = bytearray(), HEADER.size
    while len(data) < size:
        left = None if patience is None else max(0, int((deadline - time.monotonic()) * 1000))
        if not poll.poll(left):
            raise OSError("the shim's code did not arrive")
        piece = os.read(fd, size - len(data))
        if not piece:
            raise ConnectionResetError("closed before the shim's code arrived")
        data += piece
        if len(data) == HEADER.size == size:
            found, _, length = HEADER.unpack(data)
            if found != kind or length > LONGEST:
                raise BrokenFrame(f"kind {found}, {length} bytes")
            size += length
    return bytes(data[HEADER.size :])
