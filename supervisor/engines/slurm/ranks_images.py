"""The images that the shims of a container of several tasks mount, each for its task."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import trio

from scrun.core.errors import EngineError
from scrun.supervisor.contracts.node import ImageFile, Mounting
from scrun.supervisor.engines.slurm.rank_task import for_all
from scrun.supervisor.engines.slurm.ranks_step import RanksStep
from scrun.supervisor.nodes.gathering import Rank
from scrun.supervisor.nodes.mounting import mount as by_shim
from scrun.supervisor.nodes.spreading import Receiver, Spreading

_PATIENCE = 10.0


class RanksImages:
    """See `supervisor.contracts.node.Mounts`."""

    def __init__(self, step: RanksStep) -> None:
        """Have mounted none for the shims of a step."""
        self._step = step
        self._names: dict[int, str] = {}
        self._sent: Spreading | None = None

    def of(self, rank: Rank) -> str:
        """Return the shim's name of what it has mounted, or ""."""
        return self._names.get(rank.number, "")

    async def ask(self, script: Callable[[int], str]) -> list[str]:
        """Run a script for each task, where it sees what is mounted for that.

        Raises:
            EngineError: One could not be run.
        """
        answers: dict[int, str] = {}

        async def ask(rank: Rank) -> None:
            text = script(rank.number)
            reply = await rank.shim.call("script", script=text, images=self.of(rank))
            answers[rank.number] = str(reply["text"])

        ranks = await self._step.ranks()
        await for_all(ranks, ask)
        return [answers[rank.number] for rank in ranks]

    async def mount(self, mounting: Mounting) -> str:
        """Mount them on all nodes.

        Raises:
            EngineError: They cannot be mounted on one; then they are on none.
        """
        ranks = await self._step.ranks()
        by_site = any(self._step.sites[rank.number] is not None for rank in ranks)
        if by_site and not mounting.only_looks:
            raise EngineError("commands of an oci.conf make it")
        ways: list[str] = []

        async def mount(rank: Rank) -> None:
            name = rank.shim.name("images") if mounting.mounts else ""
            self._names[rank.number] = name
            ways.append(await by_shim(rank.shim, name, mounting, rank.number))

        try:
            await for_all(ranks, mount)
        except EngineError:
            await self._unmount()
            raise
        return ways[0]

    async def send(
        self, images: Sequence[ImageFile], limit: int, say: Callable[[int, int], None]
    ) -> list[list[str]]:
        """Send images to all nodes.

        Raises:
            EngineError: One could not be sent to one of them.
        """
        if self._sent is None:
            ranks = await self._step.ranks()
            self._sent = Spreading([Receiver(rank.node, rank.shim) for rank in ranks])
        return await self._sent.send(images, limit, say)

    async def unmount(self) -> None:
        """Undo both, as far as there are shims."""
        await self._unmount()
        if self._sent is not None:
            await self._sent.leave()

    async def _unmount(self) -> None:

        async def unmount(rank: Rank) -> None:
            if name := self._names.pop(rank.number, ""):
                await rank.shim.call("unmount", id=name)

        with suppress(EngineError), trio.move_on_after(_PATIENCE):
            await for_all(await self._step.ranks(), unmount)
