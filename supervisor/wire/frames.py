"""The frames between the supervisor and the shim, for both ends (see `supervisor.shim`). Pure."""

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PROTOCOL = 7

SEALED = 2
"""The first protocol whose direct connection has sealed frames (`seals`)."""

SOCKETS = 3
"""The first one with `sockets` in the call `create`: an older shim would leave them out."""

EARLY = 4
"""The first one that takes a connection's bytes before it is made, and forgets it at its end."""

NETWORKS = 5
"""The first one whose `network` changes the networks of a container that runs."""

BESIDE = 6
"""The first one that lets a supervisor on its machine `reach` a container's network."""

NESTED = 7
"""The first one that calls a runtime in a user namespace around the container's (`users`)."""

FROM_SRUN = ("SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST")
"""The step's variables that say where srun is; slurmstepd connects there."""

LOOPBACK = "127.0.0.1"

HEADER = struct.Struct(">BII")
"""Kind, stream, length of the payload in bytes."""

CALL, REPLY, EVENT, DATA, CREDIT, END, CLOSED, LINE, QUIET = range(1, 10)

CREDIT_BYTES = struct.Struct(">I")

NEWLINE = HEADER.pack(LINE, 0, 1) + b"\n"
"""What ends each burst of frames from the shim over srun."""

LONGEST = 1 << 24
"""The longest payload, in bytes: a config.json with everything that the runtimes take."""

PIECE = 1 << 18
"""The most bytes of a DATA frame."""

WINDOW = 1 << 20
"""The most bytes of a stream on their way, written by nobody yet."""

SCRIPT_OUTPUT = 1 << 23

RANDOM = 32
"""Bytes of each of the four parts of the proof with which a direct connection begins."""

_BLOCK = 64  # bytes, of SHA-256
_KNOCK = RANDOM // 2

UNREACHED = "no connection to the submit host"
"""What a shim says that cannot do without one, with the reasons."""


class BrokenFrame(Exception):
    """The other end sent something that is not a frame."""


def frame(kind: int, stream: int = 0, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return HEADER.pack(kind, stream, len(payload)) + payload


def knock(secret: bytes, random: bytes) -> bytes:
    """Return what who connects says first: half of `RANDOM` new bytes, and proof of the secret."""
    return random + proof(secret, b"knock", random)[:_KNOCK]


def proof(secret: bytes, who: bytes, both: bytes) -> bytes:
    """Return what proves that an end knows the secret: an HMAC with SHA-256 (RFC 2104).

    The secret went over srun, and has at most 64 bytes. `who` is b"shim" or b"supervisor", or
    b"knock"; `both` has the random bytes of the shim, then those of the supervisor.
    """
    sha256 = hash_function("sha256", "_sha256", "_sha2")
    block = secret.ljust(_BLOCK, b"\0")
    inner, outer = (bytes(byte ^ pad for byte in block) for pad in (0x36, 0x5C))
    whole: bytes = sha256(outer + sha256(inner + who + both).digest()).digest()
    return whole


def hash_function(name: str, *modules: str) -> "Callable[..., Any]":
    """Return one without OpenSSL, which takes as long to load as an interpreter to start.

    It is in one of the modules, in some version of Python's. Raises OSError if this Python does
    not have it, or may not use it (FIPS 140).
    """
    found: Callable[..., Any]
    for module in (*modules, "hashlib"):
        try:
            found = getattr(__import__(module), name)
            found()
        except (ImportError, AttributeError, ValueError):
            continue
        return found
    raise OSError(f"this Python has no {name}")


def sum_of(code: bytes) -> str:
    """Return the digest of the shim's code."""
    text: str = hash_function("sha256", "_sha256", "_sha2")(code).hexdigest()
    return text
