"""Convert an engine's flags, as found in config.json, to requests for the job (SCRUN_*).

`--cpus`, `--memory` and GPUs arrive in config.json as limits and devices of this machine; the job
needs as much. `slurm.*` annotations name options of salloc. What arrives, measured with podman
4.3.1 and Docker 20.10:

* `--cpus 1.5`: `linux.resources.cpu`, quota 150000 and period 100000; `--cpu-quota` alone has
  no period, and the kernel's default is 100000.
* `--memory 100m`: `linux.resources.memory.limit`, in bytes.
* `--pids-limit`: `linux.resources.pids.limit`; podman as root writes 2048 by default.
* Rootless podman with cgroups v1 drops all of these, with a warning of its own.
* `--device` of a GPU: `linux.devices`, `/dev/nvidia0`; from rootless podman a bind mount.
* Docker's `--gpus 2`: NVIDIA's hook, and NVIDIA_VISIBLE_DEVICES=0,1 after all other variables.
  Without NVIDIA's tools on this machine it fails. podman 4.3 ignores the flag.
* `--annotation`: annotations (in Docker since 24). `--label`: nothing, with either.

The engine resolves `--device nvidia.com/gpu=…` (CDI) into device nodes, and refuses it if the
submit host has no CDI specification.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from scrun.core.errors import closest
from scrun.oci.config import Config
from scrun.settings.slurm.requests import KEYS, TABLE

PREFIX = "slurm."
OPTIONS = "slurm.option."
CPUS, MEMORY, GPUS = "SCRUN_CPUS_PER_TASK", "SCRUN_MEM_PER_NODE", "SCRUN_GPUS"
_PERIOD = 100_000
_MEBIBYTE = 1 << 20
_BY_PODMAN = 2048  # podman's default limit of processes
_GPU = re.compile(r"/dev/nvidia(\d{1,4})", re.ASCII)
_GPU_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"

# Requests for the same resource. Slurm refuses most of these together; so the request of one
# source replaces all requests of lower sources for that resource.
KINDS: Mapping[str, frozenset[str]] = {
    CPUS: frozenset({CPUS, "SCRUN_CPUS_PER_GPU", "SCRUN_TRES_PER_TASK"}),
    MEMORY: frozenset({MEMORY, "SCRUN_MEM_PER_CPU", "SCRUN_MEM_PER_GPU"}),
    GPUS: frozenset(
        {f"{GPUS}{kind}" for kind in ("", "_PER_NODE", "_PER_SOCKET", "_PER_TASK")}
        | {"SCRUN_GRES", "SCRUN_TRES_PER_TASK"}
    ),
}


class Flags(msgspec.Struct, frozen=True):
    """The requests of an engine's flags.

    Attributes:
        requests: Values by SCRUN_* variable; keys of `KINDS`.
        origins: The flag and the member of config.json, by the same variables.
        notes: A line for the log about each flag that has no effect.
    """

    requests: dict[str, str] = {}
    origins: dict[str, str] = {}
    notes: tuple[str, ...] = ()


NO_FLAGS = Flags()


def read_flags(config: Config, *, resources: bool) -> Flags:
    """Read the flags from a config.json.

    `resources` says whether limits and devices count (`[slurm] engine_flags`).
    """
    notes: list[str] = []
    requests: dict[str, str] = {}
    origins: dict[str, str] = {}
    if not resources:
        return NO_FLAGS
    limits = config.linux.resources
    for variable, value, origin in (
        (CPUS, _cpus(_table(limits.get("cpu"))), "--cpus, linux.resources.cpu"),
        (MEMORY, _memory(_table(limits.get("memory"))), "--memory, linux.resources.memory"),
    ):
        if value:
            requests[variable], origins[variable] = value, origin
    gpus, origin, note = _gpus(config)
    if gpus:
        requests[GPUS], origins[GPUS] = str(gpus), origin
    if processes := processes_asked(limits):
        notes.append(f"--pids-limit {processes} is not enforced: Slurm has no such limit")
    return Flags(requests, origins, (*notes, *([note] if note else [])))


def processes_asked(limits: Mapping[str, object]) -> int:
    """Return the limit of processes that a user has set for a container, or 0."""
    processes = _number(_table(limits.get("pids")).get("limit"))
    return processes if 0 < processes != _BY_PODMAN else 0


def variable_of(annotation: str) -> str | None:
    """Return the request that a `slurm.*` annotation names, or None.

    Its name is that of the SCRUN_* variable (`slurm.cpus_per_task`) or of the option that this
    becomes (`slurm.cpus-per-task`, `slurm.time`).
    """
    name = _plain_name(annotation)
    if (variable := f"SCRUN_{name.upper()}") in TABLE:
        return variable
    return _BY_OPTION.get(name)


def named_by(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the values of `slurm.*` annotations, by the variables that they name.

    An annotation that names no request keeps its own name.
    """
    return {variable_of(name) or name: value for name, value in _of_slurm(annotations)}


def nearest(annotation: str) -> str:
    """Return a hint at the request whose name is most like an unknown annotation's, or ""."""
    own = annotation.removeprefix("SCRUN_")
    close = closest(_plain_name(own)[:80], [*KEYS, *_BY_OPTION])
    if not close:
        return ""
    by_variable = own != annotation and close in KEYS
    return f" (is it {f'SCRUN_{close.upper()}' if by_variable else PREFIX + close}?)"


def _plain_name(annotation: str) -> str:
    return annotation.removeprefix(PREFIX).lower().replace("-", "_").replace(".", "_")


# the first of those with the same option counts: --switches, --chdir
_BY_OPTION = {
    _plain_name(request.option.removeprefix("--")): request.variable
    for request in reversed([*TABLE.values()])
}


def _of_slurm(annotations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the annotations for requests; `slurm.option.*` is for scripts (`plugin_options`)."""
    return (
        item
        for item in annotations.items()
        if item[0].startswith(PREFIX) and not item[0].startswith(OPTIONS)
    )


def _cpus(limits: Mapping[str, object]) -> str:
    quota, period = _number(limits.get("quota")), _number(limits.get("period")) or _PERIOD
    return str(-(-quota // period)) if quota > 0 < period else ""


def _memory(limits: Mapping[str, object]) -> str:
    limit = _number(limits.get("limit"))
    return f"{-(-limit // _MEBIBYTE)}M" if limit > 0 else ""


def _gpus(config: Config) -> tuple[int, str, str]:
    """Count the requested GPUs.

    A list in the environment is a request, wherever it comes from. "all" is not, because CUDA
    images set it for everybody. NVIDIA's hook shows that the user did request GPUs; "all" is then
    one, because the number on a node is unknown here.

    Returns:
        Their number, where it was found, and a line for the log or "".
    """
    if nodes := set(_gpu_nodes(config)):
        return len(nodes), "--device, /dev/nvidia*", ""
    visible = _last(config.process.env, _VISIBLE)
    names = {name for name in visible.split(",") if name not in ("", "none", "void")}
    if names != {"all"}:
        return len(names), f"--gpus, {_VISIBLE}", ""
    how_many = "SCRUN_GPUS, or the annotation slurm.gpus, says how many"
    hooks = [hook.path for hook in (*config.hooks.prestart, *config.hooks.create_runtime)]
    if any(os.path.basename(path) in _GPU_HOOKS for path in hooks):
        return 1, f"--gpus, {_VISIBLE}", f"--gpus all requests one GPU: {how_many}"
    return 0, "", f"{_VISIBLE}=all requests no GPU, because images set it by default: {how_many}"


def _gpu_nodes(config: Config) -> Iterator[str]:
    paths = [device.path for device in config.linux.devices]
    for path in (*paths, *(mount.destination for mount in config.mounts)):
        if found := _GPU.fullmatch(path):
            yield found[1]


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> int:
    """Return a limit; 0 if it is missing or not a number."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 63:
        return value
    return 0


def _last(env: Iterable[str], name: str) -> str:
    """Return a variable's value; the last of several counts, as in the runtimes."""
    values = [entry.partition("=")[2] for entry in env if entry.startswith(f"{name}=")]
    return values[-1] if values else ""
