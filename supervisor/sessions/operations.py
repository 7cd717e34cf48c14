"""Operations on a running container besides signals: exec, pause, resume."""

from functools import partial

import trio

from scrun.core.errors import StateError
from scrun.core.place import place_of
from scrun.supervisor.containers.anchors import Anchor
from scrun.supervisor.containers.container import Container
from scrun.supervisor.containers.live_session import LiveSession
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.create_request import CommandLine
from scrun.supervisor.contracts.engine import hands_on
from scrun.supervisor.core.threads import look
from scrun.supervisor.sessions.sessions import prepare


async def execute(container: Container, call: CommandLine, anchor: Anchor, stdio: Stdio) -> None:
    """Run one more program in a container; returns as soon as it runs.

    Args:
        container: The container.
        call: The command line of `exec`.
        anchor: Gets the program's status; taken over.
        stdio: The program's descriptors; taken over.

    Raises:
        StateError: The container does not run.
        ScrunError: The program cannot be run.
    """
    try:
        running = await container.running("exec")
        _check_goes_on(container, "exec")
        if container.paused:
            raise StateError(
                f"container {container.id}: exec is not possible: it is paused; resume it"
            )
        prepared = await look(
            "the bundle", prepare, call, running.bundle, running.staged, stdio.terminal
        )
        if stdio.preserved and not hands_on(running.job):
            await container.tell_missed(stdio, ["--preserve-fds"])
        programs = container.programs
        in_step = not call.parsed.count("detach") and bool(
            place_of(call.pid, call.child_env.environment).step
        )
        parts = (running.journal, anchor, stdio, programs.deposit())
        session = LiveSession(call.pid, *parts, in_step=in_step)
        if not programs.begin(session, partial(session.run, running.job, prepared)):
            raise StateError(f"container {container.id}: exec is not possible: it has ended")
    except BaseException:
        stdio.close()
        with trio.CancelScope(shield=True):
            await anchor.close()
        raise
    await session.settled.wait()
    if session.failure is not None:
        raise session.failure


def _check_goes_on(container: Container, purpose: str) -> None:
    """Refuse operations that need a step, which a suspended job would delay.

    Raises:
        StateError: The job is suspended.
    """
    if container.suspended:
        raise StateError(
            f"container {container.id}: {purpose} is not possible: an administrator or the "
            "scheduler has suspended its job; wait until Slurm resumes it"
        )


async def pause(container: Container, *, resume: bool) -> None:
    """Pause or resume a container.

    Raises:
        StateError: It does not run, or there is nothing to do.
        EngineError: It could not be done.
    """
    purpose = "resume" if resume else "pause"
    running = await container.running(purpose)
    _check_goes_on(container, purpose)
    if container.paused is not resume:
        word = "is not paused" if resume else "is already paused"
        raise StateError(f"container {container.id} {word}")
    await running.job.pause(resume=resume)
    container.set_paused(not resume)
