"""What a container takes of a pool's node, and what such a node has. Pure."""

import math
import re
from collections.abc import Mapping

from scrun.core.errors import SettingsError
from scrun.settings.slurm.request_sources import CPUS, GPUS, KINDS, MEMORY
from scrun.supervisor.contracts.reuse import Room

POOL = "SCRUN_POOL"
"""The request for a pool."""

_PER_CPU = "SCRUN_MEM_PER_CPU"
_SIZE = re.compile("([0-9]{1,15})([KMGT]?)", re.ASCII | re.IGNORECASE)
_MEBIBYTES = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
# The containers of a node share a shim and its step: one task, whatever it has of devices
_ONE = ("SCRUN_JOB_NUM_NODES", "SCRUN_NTASKS", "SCRUN_NTASKS_PER_NODE")
_NOT_SHARED = (
    *sorted(KINDS[GPUS]), "SCRUN_CPUS_PER_GPU", "SCRUN_MEM_PER_GPU", "SCRUN_DEPENDENCY",
    "SCRUN_EXCLUSIVE", "SCRUN_LABELIO", "SCRUN_MPI_TYPE",
)  # fmt: skip
_OFF = ("", "0", "no", "false", "off", "none")


def room_of(wanted: Mapping[str, str]) -> Room:
    """Return what a container takes, given its requests by SCRUN_* variable.

    Raises:
        SettingsError: A pool cannot meet a request, or its value is not valid.
    """
    for names, usual in ((_ONE, ("", "1")), (_NOT_SHARED, _OFF)):
        for variable in names:
            if (text := wanted.get(variable, "")).lower() not in usual:
                raise SettingsError(
                    f"{variable}={text}: containers of a pool have one task each, and no devices, "
                    "nodes or jobs of their own: leave it out, or do without the pool"
                )
    processors = _number(CPUS, wanted.get(CPUS) or "1")
    each = _mebibytes(_PER_CPU, wanted) * processors
    shares = wanted.get("SCRUN_OVERCOMMIT", "no").lower() not in (
        "0",
        "no",
        "false",
        "off",
        "n",
        "f",
    )
    return Room(0 if shares else processors, max(each, _mebibytes(MEMORY, wanted)))


def room_of_node(job: Mapping[str, str]) -> Room:
    """Return what the node of a job with one node has, given the job's SLURM_* variables.

    Its memory is unlimited if the job has not been allocated any.
    """
    processors = int((re.match("[0-9]+", job.get("SLURM_JOB_CPUS_PER_NODE", "")) or ["1"])[0])
    memory = math.inf
    if text := job.get("SLURM_MEM_PER_NODE"):
        memory = float(text)
    elif text := job.get("SLURM_MEM_PER_CPU"):
        memory = float(text) * processors
    return Room(processors, memory or math.inf)


def _number(variable: str, text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise SettingsError(f"{variable}={text}: not a number of 1 or more")
    return int(text)


def _mebibytes(variable: str, wanted: Mapping[str, str]) -> float:
    """Return a size as salloc(1) reads it: in MiB unless it has another unit."""
    text = wanted.get(variable) or "0"
    if (found := _SIZE.fullmatch(text)) is None:
        raise SettingsError(f"{variable}={text}: not a size such as 512M or 4G")
    return int(found[1]) * _MEBIBYTES[found[2].upper()]
