"""How a container in a job and this machine reach each other."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec
import trio

Reach = Callable[[trio.socket.SocketType, int], Awaitable[None]]
"""Carries bytes between a client's socket and a port of a container, until both directions have
ended; raises ScrunError or OSError where the client is to see a reset."""


class EngineSide(Protocol):
    """The networks of an engine, or its sockets, which a container in a job is to reach here."""

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


class Networks(msgspec.Struct, frozen=True):
    """What a container has of its engine's networks.

    Attributes:
        addresses: Those that it is to reach, each with the address that it has there, as
            `10.89.0.5/24`; see `OfNetworks.reach_out`.
        files: What the engine's files for it alone have of them, by where it mounts these.
    """

    addresses: tuple[str, ...] = ()
    files: Mapping[str, str] = {}


class OfNetworks:
    """What a `Job` does about networks, if it can."""

    def reaching(self, *, outside: bool = False) -> AbstractAsyncContextManager[Reach] | None:
        """Reach the container's network while the block runs; None: this job does not.

        Args:
            outside: Whether for clients that are not to be taken for some on its loopback.

        Raises:
            StateError: The container does not run.
            EngineError: Its network cannot be entered.
        """
        return None

    async def connect_network(self, networks: Networks) -> None:
        """Connect the network of a created container that came late, or change what it has.

        Raises:
            EngineError: It does not reach them.
        """
        return

    async def reach_out(self, engine: EngineSide) -> None:
        """Serve what the running container connects to in an engine's networks, for ever."""
        return

    async def shim_protocol(self) -> int:
        """Return the protocol of the shims that make the container (`wire.frames`); 0: none do.

        Raises:
            EngineError: Its nodes do not answer.
        """
        return 0

    async def reach_sockets(self, engine: EngineSide) -> None:
        """Serve what the running container connects to at `Step.sockets`, until it has ended.

        Args:
            engine: The address that it is asked for is where the container mounts the socket.
        """
        return
