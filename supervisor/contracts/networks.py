"""How a container in a job and this machine reach each other."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

Reach = Callable[[trio.socket.SocketType, int], Awaitable[None]]
"""Carries bytes between a client's socket and a port of a container, until both directions have
ended; raises ScrunError or OSError where the client is to see a reset."""


class EngineSide(Protocol):
    """The networks of an engine, on this machine, which a container in a job is to reach."""

    async def connect(self, address: str, port: int) -> trio.socket.SocketType:
        """Connect to an address; the socket is the caller's.

        Raises:
            OSError: That fails.
            EngineError: It is not in one of the networks.
        """
        ...

    async def ask(self, question: bytes) -> bytes:
        """Ask the engine's name server (RFC 1035, 4.2.1).

        Raises:
            OSError: It does not answer.
            EngineError: There is none.
        """
        ...
