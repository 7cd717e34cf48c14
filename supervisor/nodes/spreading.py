"""Sends images to nodes that do not see them: once, and then from node to node.

The nodes are a tree: the first has it from us, or has it already, and each passes it on to two,
while it still arrives. A node that gets it from no other one gets it from us. Several shims may
have one disk, as tasks on a node have, or nodes with a directory of all: one of them fetches it
there, and nobody but the others of that disk waits for it. So containers that send to the same
nodes in another order do not wait for one another in a circle.
"""

import functools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import trio

from scrun.core.errors import EngineError, described
from scrun.supervisor.contracts.target import ImageFile
from scrun.supervisor.core.nurseries import for_all
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.nodes.beginning import Rank
from scrun.supervisor.nodes.connection import Shim, ShimError
from scrun.supervisor.nodes.ends import RegularFile
from scrun.supervisor.wire.seals import digest

_PEERS = 2
_PATIENCE = 10.0
_SECRET = 32
_PART = 1 << 20
_REMEMBERED = 256


class Spreading:
    """The images that some shims use."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._ranks = ranks
        self._held: list[tuple[Shim, str]] = []

    async def send(
        self, images: Sequence[ImageFile], limit: int, say: Callable[[int, int], None]
    ) -> list[list[str]]:
        """Send images, as far as they are not there; return their paths, for each shim.

        `limit` is the most bytes of images on each node, or 0. `say` gets how many bytes have been
        sent, and how many there will be. Raises EngineError if one could not be sent; `leave`
        undoes the rest.
        """
        found: list[list[str]] = [[] for _ in self._ranks]
        total = sum(image.size for image in images)
        before = 0
        for image in images:

            def tell(count: int, before: int = before) -> None:
                say(before + count, total)

            there = await self._send(image, limit, tell)
            for paths, path in zip(found, there, strict=True):
                paths.append(path)
            before += image.size
        return found

    async def _send(self, image: ImageFile, limit: int, say: Callable[[int], None]) -> list[str]:
        """Send one; return its path for each shim."""
        nodes = [_Node(self._held, each) for each in self._ranks]
        await for_all(nodes, lambda node: node.fetch(image, limit), cancels=True)
        waiting = [node for node in nodes if node.comes]
        has = [node for node in nodes if node.path][:1]
        those = [node for node in nodes if not node.path and not node.comes]
        ways = [functools.partial(node.wait, image, say) for node in waiting]
        ways.append(functools.partial(self._pass_on, [*has, *those], image, say))
        await for_all(ways, lambda way: way(), cancels=True)
        return [node.path for node in nodes]

    async def _pass_on(
        self, nodes: "Sequence[_Node]", image: ImageFile, say: Callable[[int], None]
    ) -> None:
        """Have each node get it from the one above it, and the first from us, if it has not."""
        secret = os.urandom(_SECRET).hex()
        below = {at: nodes[_PEERS * at + 1 : _PEERS * (at + 1) + 1] for at in range(len(nodes))}
        passing = [at for at in below if below[at]]
        await for_all(passing, lambda at: nodes[at].serve(secret, below[at]), cancels=True)
        receiving = [node for node in nodes if not node.path]
        if receiving:
            await _digest(image.file)  # once for all of them
        await for_all(receiving, lambda node: node.receive(image, say), cancels=True)

    async def leave(self) -> None:
        """Let the shims use them no longer; incomplete ones are removed."""
        held, self._held = self._held, []
        for shim, name in held:
            with suppress(EngineError), trio.move_on_after(_PATIENCE):
                await shim.call("leave", id=name)


class _Node:
    """A shim's node, the image's path or "" there, and whether another shim fetches it."""

    def __init__(self, held: list[tuple[Shim, str]], rank: Rank) -> None:
        self._rank = rank
        self.path = ""
        self.comes = False
        self._name = rank.shim.name("image")
        self._held = held
        self._from: dict[str, object] = {}

    async def fetch(self, image: ImageFile, limit: int) -> None:
        """Ask whether it is there; if not, and no other shim fetches it, it is ours to send."""
        self._held.append((self._rank.shim, self._name))
        reply = await self._call("fetch", name=image.name, size=image.size, limit=limit)
        self.path, self.comes = str(reply["path"]), bool(reply["comes"])

    async def wait(self, image: ImageFile, say: Callable[[int], None]) -> None:
        """Wait until it is there; if the other shim has failed, get it from us."""
        self.path = str((await self._call("wait")).get("path", ""))
        if not self.path:
            await self.receive(image, say)

    async def serve(self, secret: str, below: "Sequence[_Node]") -> None:
        """Let it pass the image on."""
        reply = await self._call("serve", secret=secret, peers=len(below))
        for node in below:
            node._from = {**reply, "secret": secret, "patience": _PATIENCE}
            del node._from["call"]

    async def receive(self, image: ImageFile, say: Callable[[int], None]) -> None:
        """Let it get the image, from the node above or from us."""
        expected = await _digest(image.file)
        if self._from:
            with suppress(ShimError):
                self.path = (await self._call("receive", digest=expected, **self._from))["path"]
                return
        opened = _opened(image.file, say)
        with self._named():
            shim = self._rank.shim
            reply = await shim.send("receive", opened, id=self._name, digest=expected)
        self.path = str(reply["path"])

    async def _call(self, verb: str, **fields: object) -> dict[str, Any]:
        with self._named():
            return await self._rank.shim.call(verb, id=self._name, **fields)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except ShimError as error:
            raise ShimError(f"{self._rank.node}: {error}") from None


class _File(RegularFile):
    """An image, which is read from its beginning, and counted."""

    def __init__(self, fd: int, say: Callable[[int], None]) -> None:
        super().__init__(fd)
        self._count = 0
        self._say = say

    async def read_into(self, room: memoryview, offsets: object = None) -> int:
        count = await super().read_into(room)
        self._count += count
        self._say(self._count)
        return count


@asynccontextmanager
async def _opened(path: str, say: Callable[[int], None]) -> AsyncIterator[_File]:
    try:
        fd = await in_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise EngineError(described(error)) from error
    with _File(fd, say) as file:
        yield file


async def _digest(path: str) -> str:
    """Return an image's digest; one that was not changed is not read again."""
    try:
        status = await in_thread(os.stat, path)
        version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return await in_thread(_digest_of, path, version, abandon=True)
    except OSError as error:
        raise EngineError(described(error)) from error


@functools.lru_cache(_REMEMBERED)
def _digest_of(path: str, version: tuple[int, ...]) -> str:
    found = digest()
    with open(path, "rb", buffering=0) as file:
        while part := file.read(_PART):
            found.update(part)
    text: str = found.hexdigest()
    return text
