"""When `create` is answered, and how long `start` is waited for.

`create` is answered when the bundle is staged, or when its caller has waited long enough: the
container is *created* then, may be started, and waits for the rest.
"""

import math
import signal
from functools import partial

import trio

from scrun.model.states import Phase, killed
from scrun.supervisor.containers import conmon
from scrun.supervisor.containers.notices import Notices
from scrun.supervisor.containers.phases import Phases
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.create_request import CreateRequest

_UNSTARTED = 20.0  # podman calls `start` in the moment in which `create` has ended
_UNANSWERED = 30.0  # less than the patience of any engine: podman's is 240 s, a kubelet's 120


class Creation:
    """The `create` of one container, and the `start` that has to follow.

    Attributes:
        making: Its first process is being made: `create` is answered when that is there.
        asked_to_start: Set by `start`.
    """

    def __init__(
        self, container: Phases, create_request: CreateRequest, stdio: Stdio, notices: Notices
    ) -> None:
        """Nobody is answered yet.

        Args:
            container: Which is created.
            create_request: What is asked for.
            stdio: The container's descriptors.
            notices: What it says while its job waits.
        """
        self.making = False
        self.asked_to_start = trio.Event()
        self._container = container
        self._create_request = create_request
        self._stdio = stdio
        self._notices = notices

    async def answer_in_time(self) -> None:
        """Answer `create` before its caller loses patience, whatever is still waited for.

        What Slurm refuses it refuses at once: that is `create`'s error. A `run` in the foreground
        has all the time in the world, and shows what it waits for.
        """
        container = self._container
        if self._create_request.in_foreground:
            if self._create_request.shown.live and not self._stdio.error_is_terminal:
                self._notices.begin()
            return
        with trio.move_on_after(_UNANSWERED) as unanswered:
            await container.queued.wait()
        pending = self._notices.pending  # its pod's, for which another member has waited
        if not (pending or unanswered.cancelled_caught):
            with trio.move_on_after(self._create_request.settings.create_timeout):
                await container.settled.wait()
        if container.phase is Phase.CREATING and not (container.ending or self.making):
            await container.named.wait()
            podman = conmon.calls(self._create_request.child_env.environment)
            await self.be_created(_UNSTARTED if podman else math.inf)

    async def be_created(self, patience: float = math.inf) -> None:
        """Answer `create`, and wait for `start`; not for ever, if there is a patience.

        A podman that is interrupted while its conmon waits for `create` goes, and leaves the
        container behind as created. Without an end its job would come one day, and never go.
        `podman start` creates one anew that has ended.
        """
        container = self._container
        died = partial(self._lost, "'s conmon died before its start")
        async with conmon.watch_conmon(
            self._create_request.child_env.environment, container.pid, died
        ):
            if container.become(Phase.CREATED):
                container.settled.set()
            with trio.move_on_after(patience):
                await self.asked_to_start.wait()
        if not self.asked_to_start.is_set():
            self._lost(f" has not started it for {patience:g} s")

    def _lost(self, why: str) -> None:
        """End: nobody is left who could start it."""
        text = f"container {self._container.id} was ended: podman{why}"
        self._container.end(killed(signal.SIGKILL, text))
