"""What a container takes of a pool's node, and what such a node has. Pure."""

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from scrun.core.errors import SettingsError
from scrun.settings.slurm.request_sources import CPUS, GPUS, MEMORY
from scrun.supervisor.contracts.reuse import Room, Taken

POOL = "SCRUN_POOL"
"""The request for a pool."""

_PER_CPU = "SCRUN_MEM_PER_CPU"
_SIZE = re.compile("([0-9]{1,15})([KMGT]?)", re.ASCII | re.IGNORECASE)
_MEBIBYTES = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
# The containers of a node share a shim and its step: one task, whatever it has of devices
_ONE = ("SCRUN_JOB_NUM_NODES", "SCRUN_NTASKS", "SCRUN_NTASKS_PER_NODE")
_NOT_SHARED = (
    f"{GPUS}_PER_SOCKET", "SCRUN_TRES_PER_TASK", "SCRUN_CPUS_PER_GPU", "SCRUN_MEM_PER_GPU",
    "SCRUN_DEPENDENCY", "SCRUN_EXCLUSIVE", "SCRUN_LABELIO", "SCRUN_MPI_TYPE",
)  # fmt: skip
_GPUS = (GPUS, f"{GPUS}_PER_NODE", f"{GPUS}_PER_TASK")
_GRES = re.compile("gpu(?::([0-9]{1,4}))?", re.ASCII)
_GPU = re.compile("0|[1-9][0-9]{0,3}|(?:GPU|MIG)-[A-Za-z0-9_.:-]{1,60}", re.ASCII)
_VISIBLE = (
    "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
)  # fmt: skip
_NVIDIA = "NVIDIA_VISIBLE_DEVICES"
_DEVICE = re.compile("/dev/nvidia[0-9]{1,4}", re.ASCII)
_MOST_OF_IT = 0.9  # of a time limit is left when a new node is there
_OFF = ("", "0", "no", "false", "off", "none")
_NO = ("0", "no", "false", "off", "n", "f")


def room_of(wanted: Mapping[str, str]) -> Room:
    """Return what a container takes, by its requests; SettingsError if a pool cannot meet one."""
    for names, usual in ((_ONE, ("", "1")), (_NOT_SHARED, _OFF)):
        for variable in names:
            if (text := wanted.get(variable, "")).lower() not in usual:
                raise SettingsError(
                    f"{variable}={text}: containers of a pool have one task each, and no nodes or "
                    "jobs of their own: leave it out, or do without the pool"
                )
    processors = _number(CPUS, wanted.get(CPUS) or "1")
    each = _mebibytes(_PER_CPU, wanted) * processors
    shares = wanted.get("SCRUN_OVERCOMMIT", "no").lower() not in _NO
    memory = max(each, _mebibytes(MEMORY, wanted))
    return Room(0 if shares else processors, memory, _gpus(wanted))


def why_no_node(room: Room, seconds: float, limit: float | None, node: Mapping[str, str]) -> str:
    """Return why no node of a pool would have room for a container, or "" if one may have.

    Args:
        seconds: For how long the container wants it.
        limit: The time limit that each of its jobs asks for, in seconds; None if it does not.
        node: What each of its jobs asks for.
    """
    if seconds and (limit is None or seconds > limit * _MOST_OF_IT):
        return "its nodes have no time limit that is known to be long enough"
    if node.get("SCRUN_EXCLUSIVE", "").lower() not in _OFF:
        return ""  # all of a node, whatever that is
    try:
        asked = room_of({**node, **dict.fromkeys(_ONE, "1")})
    except SettingsError:  # as for a type of GPU: Slurm knows
        return ""
    there = Room(asked.processors, asked.memory or math.inf, asked.gpus)
    return "" if room.fits(there) else f"its nodes have {asked} each"


def _gpus(wanted: Mapping[str, str]) -> int:
    found = 0
    for variable in _GPUS:
        text = wanted.get(variable, "")
        if text.lower() not in _OFF:
            if not re.fullmatch("[0-9]{1,4}", text):
                raise SettingsError(f"{variable}={text}: a pool counts GPUs of any kind")
            found = max(found, int(text))
    text = wanted.get("SCRUN_GRES", "")
    if text.lower() not in _OFF:
        if (asked := _GRES.fullmatch(text)) is None:
            raise SettingsError(
                f"SCRUN_GRES={text}: a pool counts GPUs of any kind, no other gres"
            )
        found = max(found, int(asked[1] or 1))
    return found


GPUS_SCRIPT = 'echo "$SLURM_GPUS_ON_NODE|$CUDA_VISIBLE_DEVICES|$ROCR_VISIBLE_DEVICES"'
"""Prints what `gpus_of_node` reads. A variable of CUDA's alone may be the caller's."""


def gpus_of_node(said: str) -> list[str]:
    """Return the GPUs of a node, as variables name them, from what GPUS_SCRIPT has printed."""
    number, *lists = said.strip().split("|")
    count = int(number) if re.fullmatch("[0-9]{1,4}", number) else 0
    for text in lists:
        names = text.split(",")
        are_ours = len({*names}) == len(names) == count
        if are_ours and all(_GPU.fullmatch(name) for name in names):
            return names
    return [str(index) for index in range(count)]


def room_of_node(job: Mapping[str, str], gpus: int = 0) -> Room:
    """Return what the node of a job with one node has, given the job's SLURM_* variables.

    Its memory is unlimited if the job has not been allocated any.
    """
    processors = int((re.match("[0-9]+", job.get("SLURM_JOB_CPUS_PER_NODE", "")) or ["1"])[0])
    memory = math.inf
    if text := job.get("SLURM_MEM_PER_NODE"):
        memory = float(text)
    elif text := job.get("SLURM_MEM_PER_CPU"):
        memory = float(text) * processors
    return Room(processors, memory or math.inf, gpus)


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


class PartOfNode(msgspec.Struct, frozen=True):
    """What a container of a pool has of its node.

    Attributes:
        whole: How many processors the job has there.
        has_gpus: Whether the job has GPUs, which other containers must not see.
    """

    taken: Taken
    whole: int
    has_gpus: bool

    @property
    def variables(self) -> dict[str, str]:
        """Those that name its GPUs, which hide the others of its job."""
        return dict.fromkeys(_VISIBLE, ",".join(self.taken.gpus) or "-1") if self.has_gpus else {}

    @property
    def processors(self) -> dict[str, Any]:
        """The field of the call `create` that binds it; {}: it may use all."""
        number = self.taken.room.processors
        fields = {"number": number, "of": self.whole, "as": self.taken.container}
        return {"processors": fields} if number else {}

    def fit(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return a config.json with the container's own GPUs, where it has named any.

        NVIDIA's runtime on the node would give it all of them for a variable of its image.
        """
        if not self.has_gpus:
            return config
        own = ",".join(self.taken.gpus) or "void"
        env = [
            f"{_NVIDIA}={own}" if item.startswith(f"{_NVIDIA}=") else item
            for item in config["process"].get("env") or ()
        ]
        linux = {**(config.get("linux") or {})}
        devices = linux.get("devices") or []
        named = [one for one in devices if _DEVICE.fullmatch(one["path"])]
        if named:
            linux["devices"] = [one for one in devices if one not in named] + [
                {**named[0], "path": f"/dev/nvidia{gpu}", "minor": int(gpu)}
                for gpu in self.taken.gpus
                if gpu.isdecimal()
            ]
        mounts = config.get("mounts") or []
        bound = [one for one in mounts if _DEVICE.fullmatch(one["destination"])]
        if bound:
            mounts = [one for one in mounts if one not in bound] + [
                {**bound[0], "source": f"/dev/nvidia{gpu}", "destination": f"/dev/nvidia{gpu}"}
                for gpu in self.taken.gpus
                if gpu.isdecimal()
            ]
        return {
            **config, "process": {**config["process"], "env": env}, "linux": linux,
            "mounts": mounts,
        }  # fmt: skip
