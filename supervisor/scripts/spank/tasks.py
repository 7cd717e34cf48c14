"""What scripts learn about a job and its task. Pure, except `environment_of`."""

import os
import re
from collections.abc import Mapping, Sequence

import msgspec

from scrun.model.states import Ending
from scrun.oci.config import read_config
from scrun.supervisor.scripts.spank.items import JobFacts


def facts_of_job(
    before: JobFacts, job_id: str, environment: Mapping[str, str], arguments: Sequence[str]
) -> JobFacts:
    """Add what is known once there is a job.

    Args:
        before: What was known before.
        job_id: The job's id.
        environment: The job's variables (SLURM_*).
        arguments: The command of the container.
    """
    return msgspec.structs.replace(
        before,
        job=int(job_id) if job_id.isdecimal() else 0,
        nodes=_number(environment.get("SLURM_NNODES")) or 1,
        tasks=_number(environment.get("SLURM_NTASKS")) or 1,
        cpus=_number(environment.get("SLURM_JOB_CPUS_PER_NODE")),
        argv=tuple(arguments),
    )


def environment_of(bundle: str, more: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment that the task of a staged bundle will have.

    Args:
        bundle: The bundle.
        more: Changes to it; None removes a variable.

    Raises:
        BundleError: Its config.json cannot be read.
    """
    _, config = read_config(os.path.join(bundle, "config.json"))
    pairs = (entry.partition("=") for entry in config.process.env)
    environment: dict[str, str | None] = {name: value for name, _, value in pairs if name}
    environment.update(more)
    return {name: value for name, value in environment.items() if value is not None}


def wait_status(ending: Ending) -> int:
    """Return the wait status of a task (wait(2)).

    Shells, and so runtimes, return 128+n for a signal; a program that exits with such a status
    itself looks the same.
    """
    signal = ending.status - 128
    return signal if 0 < signal < 65 else ending.status << 8


def _number(text: str | None) -> int:
    """Return the number at the start of a text: 64 for `64(x2)`."""
    found = re.match(r"[0-9]{1,9}", text or "")
    return int(found[0]) if found else 0
