"""A call of `scrun pool`."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from scrun.cli.parse import Parsed
from scrun.core.errors import UsageError
from scrun.core.typed import convert
from scrun.settings.file.load import Settings
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.create_request import read_command_line, settings_of
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.log.journal import Journal


class PoolCall(msgspec.Struct, frozen=True):
    """What a pool's jobs are requested with: all that a successor needs for more of them.

    Attributes:
        name: The pool's.
        directory: The working directory of `pool start`.
    """

    name: str
    child_env: ChildEnv
    directory: str
    settings: Settings

    def job_request(self, root: str, journal: Journal) -> JobRequest:
        """Return the request for one job of one node.

        Args:
            root: The root directory, which marks the job as ours.
        """
        one = {"SCRUN_JOB_NUM_NODES": "1", "SCRUN_NTASKS": "1"}
        return JobRequest(
            container=f"pool-{self.name}",
            child_env=self.child_env.with_more(one),
            directory=self.directory,
            record=os.path.join(root, "pool"),
            journal=journal,
            on_job_id=lambda *_: None,
            on_lost=lambda _: None,
            job_name=f"pool-{self.name}",
        )


def read_pool_call(fields: Sequence[bytes]) -> tuple[Parsed, PoolCall]:
    """Parse a request; see `scrun.protocol.wire`. Reads the settings files.

    Raises:
        UsageError: It is malformed.
        SettingsError: The settings are wrong.
    """
    call = read_command_line(fields, "pool")
    if len(call.parsed.operands) != 2:
        raise UsageError("the request names no pool: does it come from another scrun?")
    settings = settings_of(call.parsed, call.child_env.environment, call.directory)
    name = call.parsed.operands[1]
    return call.parsed, PoolCall(name, call.child_env, call.directory, settings)


@contextmanager
def pool_call_in_memory(call: PoolCall) -> Iterator[int]:
    """Yield a descriptor of a file in memory with it."""
    memory = os.memfd_create("scrun-pool", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            # variables need not be UTF-8; json can write and read such, msgspec cannot
            file.write(json.dumps(msgspec.to_builtins(call)).encode())
        yield memory
    finally:
        os.close(memory)


def recalled_pool_call(memory: int) -> PoolCall:
    """Return what another supervisor has kept.

    Raises:
        ValueError: It is something else.
    """
    try:
        return convert(json.loads(os.pread(memory, os.fstat(memory).st_size, 0)), PoolCall)
    except (ValueError, msgspec.MsgspecError) as error:
        raise ValueError(f"this is not a call: {error}") from error
