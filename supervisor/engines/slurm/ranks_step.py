"""The step of a container of several tasks: each task is a shim."""

from collections.abc import Callable, Mapping, Sequence

import trio

from scrun.core.errors import SettingsError, leaves
from scrun.supervisor.core.nurseries import until
from scrun.supervisor.engines.slurm.shim_site import SiteConfs
from scrun.supervisor.engines.slurm.shim_step import ShimStep
from scrun.supervisor.engines.slurm.step import SrunStep
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.beginning import Direct
from scrun.supervisor.nodes.dialing import NotReached
from scrun.supervisor.nodes.gathering import Gathering, gathered
from scrun.supervisor.nodes.messages import ShimError, ShimLost
from scrun.supervisor.shim.frames import UNREACHED

_LAST_DATA = 1.0
_WAY_OUT = 10.0


class RanksStep(ShimStep):
    """A step with a shim in each task."""

    is_gathered = True
    _who = "the shims"

    def __init__(
        self,
        step: SrunStep,
        journal: Journal,
        direct: Callable[[], Direct],
        confs: SiteConfs,
        tasks: int,
    ) -> None:
        super().__init__(step, journal, direct, confs)
        self._tasks = tasks
        self._how = Direct(False, None)
        self._incomplete = trio.Event()

    @property
    def is_unreached(self) -> bool:
        """Whether a node cannot connect to us, which one task could do without."""
        return any(UNREACHED in words for words in self._words)

    @property
    def _was_told(self) -> bool:
        return super()._was_told or all(rank.is_dismissed for rank in self._ranks)

    def _look(self) -> None:
        """Notice a task that ends, or never begins, before all shims are there, too."""
        super()._look()
        state = self.step.state
        if not self._ranks and (state.missing < self._tasks or state.launch_failed):
            self._incomplete.set()

    async def _run_once(self, options: Sequence[str], variables: Mapping[str, str]) -> None:
        self._how = await self._direct()
        await super()._run_once(options, variables)

    async def _connect(self, to_srun: int, from_srun: int, srun_ended: trio.Event) -> None:
        self._incomplete = trio.Event()
        try:
            async with (
                until(self._leaving.wait),
                until(srun_ended.wait, _LAST_DATA),
                gathered(to_srun, from_srun, self._tasks, self._how, self._journal) as gathering,
            ):
                if not self._how.allowed:
                    raise NotReached("Slurm encrypts its connections, but not these")
                async with until(self._incomplete.wait):
                    await gathering.complete.wait()
                    await self._get_all_ready(gathering)
                    self._known.set()
                    await trio.sleep_forever()
                gathering.end()  # and go on to listen: who is late is not to say that nobody does
                await trio.sleep(_WAY_OUT)
        except* (NotReached, OSError) as group:  # of several, if a shim is lost meanwhile
            self._words.append(f"{UNREACHED}: {next(leaves(group))}")
        except* ShimLost as group:
            self._journal.write("verbose", str(next(leaves(group))))
        await self._lose(srun_ended)

    async def _get_all_ready(self, gathering: Gathering) -> None:
        for rank in gathering.ranks:
            rank.shim.place = self._place_in_step(rank.hello)
            try:
                self.sites[rank.number] = await self._site_on(rank.hello, rank.shim)
            except (SettingsError, ShimError) as error:
                raise self._refused(str(error)) from None
        self._ranks = gathering.ranks
        self.hello = self._ranks[0].hello
