"""The step in which a shim runs, or one for each task, and the connections to them.

A step that another supervisor has begun is opened from what that has left. All containers of the
job are resumed with one call, which sends what their streams lack: so each prepares its streams,
and waits for the others.
"""

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import trio

from scrun.core.errors import EngineError, SettingsError, leaves
from scrun.core.typed import convert
from scrun.model.states import Ending, exited, taken
from scrun.supervisor.children.processes import exit_code
from scrun.supervisor.children.pumps import messages, received
from scrun.supervisor.core.deposits import STEP, Deposit, no_deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import until, unwrapped
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.slurm.job_state import JobState, ending_of_step, step_exit
from scrun.supervisor.engines.slurm.shim_site import NodeSite, SiteConfs
from scrun.supervisor.engines.slurm.step import SrunStep, StepStreams
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.beginning import Direct, Gathering, Rank, begun, gathered
from scrun.supervisor.nodes.code import boot_command
from scrun.supervisor.nodes.code import variables as code_variables
from scrun.supervisor.nodes.connection import Hello, Shim, ShimError, ShimLost, connected
from scrun.supervisor.nodes.dialing import NotReached
from scrun.supervisor.wire.frames import UNREACHED

if TYPE_CHECKING:
    from scrun.supervisor.nodes.resumed import ResumedShim

_OWN_PORTS = 1.0
_LAST_DATA = 1.0
_WAY_OUT = 10.0
_RAN_OUT = 128 + 9
_ATTEMPTS, _PAUSE = 3, 1.0  # of a successor, to let the shim connect
_FOR_CONTAINERS = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
_FIRST_WORDS, _MOST_WORDS = 100, 200
_LONGEST_WORDS = 4000
_NO_CGROUP = "error: proctrack_g_add: "  # slurmstepd's

_runtimes: dict[str, str] = {}
"""The runtimes that shims have tried, by the names of their nodes."""


class ShimStep:
    """A step with a shim (see `scrun.supervisor.shim`).

    Attributes:
        sites: The oci.conf whose commands the shim of each task runs, if there is one.
        deposit: Keeps what its job needs to outlive us.
        is_gathered: Whether each task has a shim, which has to connect to us.
    """

    is_gathered = False
    _who = "the shim"

    def __init__(
        self,
        step: SrunStep,
        journal: Journal,
        direct: Callable[[], Direct],
        confs: SiteConfs,
        place: str = "",
        deposit: Deposit | None = None,
        found: Inheritance | None = None,
    ) -> None:
        """Create it; `run` runs it.

        `direct` finds out whether and how the shim may connect to us; it reads files. `place` is
        the name of its node, if that is known. Without a deposit nothing keeps what its job needs
        to outlive us. `found`: what another supervisor has left, which has begun it.
        """
        self.deposit = deposit or no_deposit()
        self._found = found
        self._there = trio.Event()  # that the shim it has left is known, or never will be
        self._old: tuple[ResumedShim, Rank] | None = None
        self._targets: dict[str, str] = {}
        self._written: dict[int, int] = {}
        self._place = place
        self.step = step
        self.hello: Hello | None = None
        self.sites: dict[int, NodeSite | None] = {}
        self._confs = confs
        self._journal = journal
        self._find_direct = direct
        self._ranks: list[Rank] = []
        self._launched = trio.Event()
        step.on_message = self._look
        self._known = trio.Event()  # that it is there, or never will be
        self._leaving = trio.Event()
        self._over = trio.Event()
        self._scope = trio.CancelScope(shield=True)  # the shim cleans up first: see `leave`
        self._status = 1
        self._obeyed = False
        self._is_refused = False
        self._words: list[str] = []
        self._told: tuple[int, ...] = ()
        self._expected: list[str] = []

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    @property
    def _shim(self) -> Shim | None:
        return self._ranks[0].shim if self._ranks else None

    @property
    def is_of_use(self) -> bool:
        """Whether its shim makes containers, or will do so."""
        lost = self._shim is not None and self._shim.lost.is_set()
        return not (lost or self._leaving.is_set() or self.is_over)

    async def ranks(self) -> list[Rank]:
        """Wait for the shims of all tasks; EngineError if one did not start, or all have ended."""
        await self._known.wait()
        if not self._ranks or self.is_over:
            raise self._missing()
        return self._ranks

    def _missing(self) -> EngineError:
        return EngineError(f"{self._who} could not be started: {self.reason}")

    async def old_shim(self) -> "tuple[ResumedShim, Rank]":
        """Wait for what another supervisor has left; it is not connected. EngineError if over."""
        await self._there.wait()
        if self._old is None:
            raise self._missing()
        return self._old

    async def resumed(
        self, name: str, target: str, container: str, written: Mapping[int, int]
    ) -> bool:
        """Let the shim go on with a container or an exec whose streams are prepared.

        `written`: how many bytes of each of its streams were. Returns whether it was started;
        raises EngineError if the shim cannot connect to us.
        """
        assert self._found is not None
        self._targets[target] = container
        self._written.update(written)
        self._found.together.without(name)
        shim, _ = await self.old_shim()
        await self._known.wait()
        if not self._ranks:
            raise self._missing()
        return shim.lost.is_set() or shim.is_started(target)

    @contextmanager
    def expecting(self, container: str) -> Iterator[None]:
        """Keep Slurm's signals for a container while the block runs.

        Its name counts, as `create` has it. If it is created meanwhile, it has got them.
        """
        self._expected.append(container)
        self._say_expected()
        try:
            yield
        finally:
            if self.has_made(container):
                self._say_expected()

    def has_made(self, container: str) -> bool:
        """Note that its shim expects a container no longer; return whether that is news.

        A shim that has made one knows by its name.
        """
        if is_news := container in self._expected:
            self._expected.remove(container)
        return is_news

    def _say_expected(self) -> None:
        if self._shim is not None and self._known.is_set():
            self._shim.tell("expect", names=self._expected)

    @property
    def what(self) -> str:
        """How containers are launched, for the log."""
        who = "a shim" if len(self._ranks) == 1 else f"{len(self._ranks)} shims"
        means = dict.fromkeys(self._means_of(rank) for rank in self._ranks)
        return f"launched by {who} on {self.nodes}, with {', '.join(means)}"

    def _means_of(self, rank: Rank) -> str:
        site = self.sites[rank.number]
        return rank.hello.runtime if site is None else f"the commands of {site.where}"

    @property
    def nodes(self) -> str:
        return ", ".join(dict.fromkeys(rank.node for rank in self._ranks)) or "the node"

    @property
    def reason(self) -> str:
        """Why no shim serves the job, as far as it or srun said."""
        return "; ".join(self._words[-3:]) or self.step.state.reason(self._status)

    @property
    def site(self) -> NodeSite | None:
        """The oci.conf that counts for its first task."""
        return self.sites.get(0)

    @property
    def is_unreached(self) -> bool:
        """Whether a node cannot connect to us, which one task does without: srun carries it."""
        return False

    @property
    def is_lacking(self) -> bool:
        """Whether its node lacks something that a shim needs, and `srun --container` does not.

        Then either what should have become one ended by itself, or it was there and useless.
        """
        codes = [os.waitstatus_to_exitcode(status) for status in self.step.state.statuses]
        return self._is_refused or (self.hello is None and max(codes, default=0) > 0)

    async def leave(self) -> None:
        """End the shim and all that it made, and wait for the end of srun, for a while."""
        self.deposit.drop(STEP)  # else srun sees no end of its input
        self._leaving.set()
        with trio.move_on_after(_WAY_OUT):
            await self._over.wait()
        self._scope.cancel()
        await self._over.wait()

    @property
    def _was_told(self) -> bool:
        return self._leaving.is_set()

    @property
    def ended_well(self) -> bool:
        """Whether the shim has ended when it was told to, and srun after it."""
        return self._over.is_set() and self._obeyed and not self._scope.cancelled_caught

    def ending(self, salloc: JobState | None, status: int) -> Ending:
        """Return how a container ended, given the wait status that the shim reported (waitpid(2)).

        That is with what Slurm says of its step: `leave` comes before.
        """
        code = exit_code(status)
        if code == _RAN_OUT:
            seen = ending_of_step(self.step.state, step_exit(self.step.state, code), salloc)
            if seen.reason == "out-of-memory":
                return seen
        return exited(code)

    def lost(self, salloc: JobState | None, where: str = "") -> Ending:
        """Return the ending of a container whose shim has gone without a word; `leave` first."""
        ended = step_exit(self.step.state, self._status)
        seen = ending_of_step(self.step.state, ended, salloc)
        if seen.reason == "out-of-memory":
            return seen
        text = f"the step of the container's shim ended: {where}{self.reason}"
        return taken("scrun-failure", text)

    async def run(self, options: Sequence[str], variables: Mapping[str, str]) -> None:
        """Run the step until it ends, or somebody wants to leave it."""
        try:
            if self._found is not None:
                await self._run_on(self._found)
                return
            await self._run_once(options, variables)
            if (why := self._why_again()) and not self._leaving.is_set():
                self._journal.write("info", f"{why}: a second step")
                self._words.clear()
                self._scope = trio.CancelScope(shield=True)
                self.step.renew()
                await self._run_once(options, variables)
        finally:
            self._obeyed = self._was_told
            self._over.set()
            self._there.set()
            self._known.set()

    async def _run_on(self, found: Inheritance) -> None:
        to_srun, from_srun = found.take(f"{STEP}to_srun"), found.take(f"{STEP}from_srun")
        ended = trio.Event()
        async with (
            received(found.take(f"{STEP}words"), self._take_words),
            unwrapped() as nursery,
        ):
            nursery.start_soon(self._connect, to_srun, from_srun, ended)
            try:
                with self._scope:
                    self._status = await self.step.run_on(found)
            finally:
                ended.set()

    async def _run_once(self, options: Sequence[str], variables: Mapping[str, str]) -> None:
        code = await in_thread(code_variables)
        options = [*options, "--export=" + ",".join(code)]
        ended, self._launched = trio.Event(), trio.Event()

        def hold(words: int) -> None:
            self.deposit.hold({f"{STEP}words": words})

        with ExitStack() as undo:  # as long as they have no other owners

            def ours(fd: int) -> int:
                undo.callback(os.close, fd)
                return fd

            stdin, to_srun = map(ours, os.pipe())
            from_srun, stdout = map(ours, os.pipe())  # `connected` will own our ends
            # else srun may die of what the shim says last, and slurmstepd kills it before it is
            # done
            kept = ours(os.dup(from_srun))
            self.deposit.hold({f"{STEP}to_srun": to_srun, f"{STEP}from_srun": from_srun})
            async with messages(self._take_words, hold) as error, unwrapped() as nursery:
                undo.pop_all()
                nursery.start_soon(self._connect, to_srun, from_srun, ended)
                streams = StepStreams((stdin, stdout, error), terminal=False, listen=False)
                env = {**variables, **code}
                try:
                    with self._scope:  # when srun's task runs, the shim is just on its way
                        self._status = await self.step.run(
                            options, boot_command(), streams, lambda: None, env, self.deposit
                        )
                finally:
                    ended.set()
                    os.close(stdin)
                    os.close(stdout)  # now what srun wrote has an end
                    os.close(kept)

    def _look(self) -> None:
        if self.step.state.step_id:
            self._launched.set()

    def _why_again(self) -> str:
        """Return why a second step may get a shim where the first has none, or ""."""
        said = "\n".join(self._words)
        if self.hello is None and self.step.state.launch_failed and _NO_CGROUP in said:
            return "the node lost the step's cgroup"  # slurmstepd did
        ends = [os.WTERMSIG(end) for end in self.step.state.statuses if os.WIFSIGNALED(end)]
        self._told = tuple(end for end in ends if end in _FOR_CONTAINERS)
        if self.hello is None and self._told:  # an interpreter that starts has no handlers yet
            return f"Slurm sent signal {self._told[0]} before the shim could handle it"
        return ""

    async def _connect(self, to_srun: int, from_srun: int, srun_ended: trio.Event) -> None:
        try:
            async with (
                until(self._leaving.wait),
                self._ready(to_srun, from_srun) as shim,
            ):
                self._known.set()
                self._say_expected()
                await shim.lost.wait()
        except ShimLost as error:
            self._journal.write("verbose", str(error))
        await self._lose(srun_ended)

    async def _lose(self, srun_ended: trio.Event) -> None:
        """The shim has gone, or never started."""
        if self.hello is None:  # what srun says decides whether there is a second try
            with trio.move_on_after(_WAY_OUT):
                await srun_ended.wait()
                return
        self._known.set()

    @asynccontextmanager
    async def _ready(self, to_srun: int, from_srun: int) -> AsyncIterator[Shim]:
        """Connect to the shim, and make it ready for use."""
        if self._found is None:
            async with connected(to_srun, from_srun, self._journal) as shim:
                await self._get_ready(shim)
                yield shim
        else:
            from scrun.supervisor.nodes.resumed import reconnected

            async with reconnected(to_srun, from_srun, self._journal) as old:
                await self._resume(old, self._found)
                yield old

    async def _get_ready(self, shim: Shim) -> None:
        direct = await self._direct()  # the shim is on its way
        with trio.move_on_after(_OWN_PORTS):  # of a narrow range srun is to have its own first
            async with until(shim.lost.wait):
                await self._launched.wait()
        known = _runtimes.get(self._place, "")
        self.hello = await begun(shim, direct, self._journal, self._place, known)
        if self._place and self.hello.runtime:
            _runtimes[self._place] = self.hello.runtime
        shim.place = self._place or self._place_in_step(self.hello)
        if not shim.is_direct:
            self.deposit.give_up("its streams go over srun")
        try:
            site = self.sites[0] = await self._site_on(self.hello, shim)
        except (SettingsError, ShimError) as error:
            raise self._refused(str(error)) from None
        self.deposit.note(site=None if site is None else site.facts())
        self._ranks = [Rank(shim, self.hello, 0)]

    async def _resume(self, shim: "ResumedShim", found: Inheritance) -> None:
        """Connect to the shim, when its containers are ready.

        A shim that has gone has had containers, whose end is told as always. Raises ShimLost if
        the shim cannot connect to us.
        """
        self.hello = hello = convert(found.facts["hello"], Hello)
        self._old = shim, Rank(shim, hello, 0)
        self._ranks = [self._old[1]]
        self._there.set()
        await found.together.complete.wait()
        site = found.facts.get("site")
        self.sites[0] = None if site is None else self._confs.again(site, hello)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                direct = await self._direct()
                how = (direct.ports, direct.alone, direct.sealing)
                await shim.resume(hello, self._targets, self._written, *how)
                return
            except ShimLost:
                return
            except (ShimError, NotReached, OSError) as error:
                if attempt == _ATTEMPTS:
                    self._ranks = []
                    raise self._refused(f"it cannot be reached again: {error}") from None
                await trio.sleep(_PAUSE)

    def _place_in_step(self, hello: Hello) -> str:
        """Return a place that no other step has: only the shim itself names its node."""
        step = self.step.state.step_id
        return f"step {step} {hello.node}" if step else ""

    async def _direct(self) -> Direct:
        return (await in_thread(self._find_direct))._replace(told=self._told)

    async def _site_on(self, hello: Hello, shim: Shim) -> NodeSite | None:
        """Return the oci.conf that counts on a node.

        Raises:
            SettingsError: That is wrong.
            ShimError: It cannot be read.
            ShimLost: There is none, and no runtime; or it wants what the user may not do; or the
                shim has gone.
        """
        node = hello.environment.get("SLURMD_NODENAME") or hello.node
        site = await self._confs.of_node(hello, shim)
        if site is None and not hello.runtime:
            self._is_refused = await self._confs.is_unseen(shim)
            raise self._refused(f"{node}: no OCI runtime (crun or runc) works there")
        if site is not None and (forbidden := await site.forbidden(shim)):
            self._is_refused = True
            raise self._refused(f"{node}: {forbidden}")
        return site

    def _refused(self, words: str) -> ShimLost:
        self._words.append(words)
        return ShimLost(words)

    def doubt_runtime(self) -> None:
        """Let the next shim on its node try the runtimes again."""
        _runtimes.pop(self._place, None)

    def _take_words(self, line: str) -> None:
        if len(self._words) == _MOST_WORDS:
            del self._words[_FIRST_WORDS]  # a node may say any number: the first and last count
        self._words.append(line[:_LONGEST_WORDS])
        self._journal.write("error", line)


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
