"""Runs commands that stage something."""

import subprocess
from collections import deque
from collections.abc import Sequence

from scrun.core.errors import StagingError
from scrun.oci.signals import its_end
from scrun.supervisor.children.processes import child
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.contracts.engine import JobRequest


async def carry_out(command: Sequence[str], request: JobRequest, what: str) -> None:
    """Run a command for a bundle; StagingError has its last line of standard error."""
    last_lines: deque[str] = deque(
        maxlen=1
    )  # a rootless copy prints a line for each unreadable file
    async with (
        messages(last_lines.append) as stderr,
        child(command, request.child_env, stderr=stderr) as running,
    ):
        status = await running.wait()
    if status:
        reason = last_lines[-1] if last_lines else f"it {its_end(status)}"
        raise StagingError(f"{what} failed: {reason}")


def run(command: Sequence[str], what: str = "copying the root file system") -> None:
    """Run a command to its end, in a worker thread, for nobody's bundle in particular."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip() or f"it {its_end(done.returncode)}").splitlines()[-1]
        raise StagingError(f"{what} failed: {reason}")
