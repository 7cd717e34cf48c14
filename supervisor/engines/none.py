"""The plugin engine/none: containers go through all of their life, and nothing runs.

What an engine has to have, and nothing in it: to try staging without a runtime, to see what scrun
itself takes, and to begin an engine of one's own with.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from scrun.core.errors import EngineError
from scrun.model.states import Ending, exited
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import Job, JobRequest, NodeAnswer, Program, Session, Step
from scrun.supervisor.contracts.target import Target

plugin_type = "engine/none"
plugin_name = "Nothing runs"
plugin_version = "1.0.0"


class NoEngine:
    """No place (see `supervisor.contracts.engine.Engine`)."""

    name = "none"

    def tidy(self) -> None:
        """Nothing is there."""

    async def target(self, child_env: ChildEnv) -> Target:
        """Describe a place that needs no change but what a user's rights ask for."""
        uid = os.geteuid()
        return Target(elsewhere=False, uid=uid, gid=os.getegid(), rootless=uid != 0, host_only=())

    @asynccontextmanager
    async def allocate(self, request: JobRequest) -> AsyncIterator[Job]:
        """Give a job that is none."""
        request.known("0", False)
        request.journal.write("info", "the engine is none: nothing will run")
        yield _NoJob()

    async def release(self, job_id: str, child_env: ChildEnv, record: str) -> None:
        """Nothing is held."""


class _NoJob:
    """No job (see `supervisor.contracts.engine.Job`)."""

    id = "0"
    environment: Mapping[str, str] = {}

    async def run(self, step: Step) -> Ending:
        """Say that it runs, and that it has ended."""
        step.running()
        return exited(0)

    async def signal(self, number: int) -> None:
        """Nobody is there who could get it."""

    def resized(self) -> None:
        """Nobody looks."""

    async def session(self, program: Program) -> Session:
        """Refuse."""
        raise EngineError("the engine is none: there is no container to run a program in")

    async def pause(self, *, resume: bool) -> None:
        """Nothing moves."""

    async def inspect(self, script: Callable[[str], str]) -> list[NodeAnswer]:
        """Nobody answers."""
        return []

    async def update(self, resources: str, wanted: Sequence[str], limit: str) -> None:
        """There are no limits."""

    async def command(
        self, script: str, output: int, variables: Mapping[str, str] | None = None
    ) -> int:
        """Refuse."""
        raise EngineError("the engine is none: there is no node to run a command on")


def configure(settings: object, environment: Mapping[str, str]) -> None:
    """Need nothing."""


def engine(root: str, configuration: None) -> NoEngine:
    """See `supervisor.contracts.plugin.EnginePlugin`."""
    return NoEngine()
