"""The sources of requests for a container's job, and their precedence.

Highest first:

1. the environment of `create`,
2. the annotations of config.json (`podman run --annotation SCRUN_PARTITION=gpu`),
3. `process.env` of config.json (`podman run -e SCRUN_JOB_NUM_NODES=2`),
4. annotations `slurm.*` (`podman run --annotation slurm.partition=gpu`),
5. the engine's flags (`podman run --cpus 2`),
6. `[slurm.defaults]` of scrun.toml.

Requests have the name of the variable, except in 4. An empty value counts too: it cancels the
request of a lower source. Annotations override `process.env` because images set their environment
far more often than annotations, and users can add both. An engine's flag was typed for this
container, so it overrides the defaults; requests in Slurm's own terms override it. It replaces
all requests of lower sources for the same resource: Slurm refuses `--mem` with `--mem-per-cpu`.

config.json may come from an untrusted image, and does not tell which parts a user has typed
(docs/decisions/annotations.md). So only requests count that are marked `safe` in `requests.TABLE`
or named by `[slurm] allow`, and only with plain values. All others are refused with an error: a
container must not run under another account, or for another time, than requested because a name
was misspelled or not allowed.

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
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from scrun.core.errors import SettingsError, closest
from scrun.oci.config import Config
from scrun.settings.slurm.requests import KEYS, TABLE, from_environment

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
    """Read a config.json's flags; with `resources` limits and devices, too (engine_flags)."""
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
    """Return values of `slurm.*` annotations by variables; unknown ones by their own names."""
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


# The characters of names, numbers, times, node lists and lists of features or devices. Excluded:
# the slash (salloc and srun read a FILE if a node list has one), the percent sign (patterns of
# file names), quotes and other special characters of shells, line breaks, anything but ASCII.
PLAIN = re.compile(r"[A-Za-z0-9 _.,:=+*@&|()\[\]-]*")
_WITH_SLASH = re.compile(r"[A-Za-z0-9_.,:=+*/-]*")
# these name a kind of resource such as gres/gpu, and never a file
_NAMES_A_TRES = ("SCRUN_TRES_BIND", "SCRUN_TRES_PER_TASK")
_OURS = "SCRUN_"
# what a refusal of Slurm's is about, and parts of the names of the requests for that
_ABOUT: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"authenticat|credential|munge|connect|communicat|socket|timed out|user id", ()),
    (r"\baccount\b", ("ACCOUNT", "PARTITION")),
    (r"partition name", ("PARTITION",)),
    (r"\bqos spec", ("QOS",)),
    (r"time limit (is )?(invalid|spec)", ("TIME",)),
    (r"\bfeature", ("CONSTRAINT", "PREFER")),
    (r"generic resource|\bgres\b|\btres\b", ("GPU", "GRES", "TRES")),
    (r"license", ("LICENSES",)),
    (r"reservation", ("RESERVATION",)),
)
# enough for the node list of a large job; config.json's 16 MiB do not fit into a command line
_LONGEST = 4096


class Wanted(msgspec.Struct, frozen=True):
    """The requests for a job, merged from all sources.

    Attributes:
        requests: Values by SCRUN_* variable.
        notes: A line for the log about each of the engine's flags that has no effect.
        because: The requests that come from the engine's flags and config.json, for the message
            when Slurm refuses the job; or "".
    """

    requests: dict[str, str]
    notes: tuple[str, ...] = ()
    because: str = ""


def read_requests(annotations: Mapping[str, str], env: Iterable[str]) -> dict[str, str]:
    """Return the requests in a config.json, safe or not, also unknown ones.

    An annotation `slurm.*` or `SCRUN_*` that names no request is returned under its own name; an
    engine that uses requests refuses it.

    `env` is its process.env, entries `NAME=VALUE`; the last of several counts, as for the
    runtimes.
    """
    pairs = (entry.partition("=") for entry in env)
    variables = {name: value for name, equals, value in pairs if equals}
    named = {name: text for name, text in annotations.items() if name.startswith(_OURS)}
    return {**named_by(annotations), **from_environment(variables), **named}


def gather(
    environment: Mapping[str, str],
    asked: Mapping[str, str],
    defaults: Mapping[str, str],
    flags: Flags = NO_FLAGS,
    allowed: Collection[str] = (),
) -> Wanted:
    """Merge the sources.

    Of the `environment` of `create`, the caller's own, all counts; of config.json what is safe or
    `allowed` (`[slurm] allow`).

    Raises:
        SettingsError: config.json has a request or a value that an image must not have, or an
            annotation for an unknown request.
    """
    own = from_environment(environment)
    counted: dict[str, str] = {}
    for variable, value in asked.items():
        if variable in own:
            continue  # the caller overrides config.json
        if variable in TABLE and (TABLE[variable].safe or variable in allowed):
            _check_plain(variable, value)
            counted[variable] = value
        elif value:  # an empty one cancels a request of the image
            raise SettingsError(f"config.json: {_refusal(variable)}")
    named = {**counted, **own}
    derived = {key: text for key, text in flags.requests.items() if not KINDS[key] & named.keys()}
    replaced = frozenset().union(*(KINDS[variable] for variable in derived))
    below = {key: text for key, text in defaults.items() if key not in replaced}
    because = [f"{key}={text} from {flags.origins[key]}" for key, text in derived.items()]
    because += [f"{key}={text} from config.json" for key, text in counted.items() if text]
    return Wanted({**below, **derived, **named}, flags.notes, ", ".join(because))


def concerned(because: str, reason: str) -> str:
    """Return those requests that a refusal may be about; all, if it says nothing of one kind."""
    kinds = next(
        (kinds for words, kinds in _ABOUT if re.search(words, reason, re.IGNORECASE)), ("",)
    )
    each = re.split(r", (?=SCRUN_)", because)
    return ", ".join(one for one in each if any(kind in one.partition("=")[0] for kind in kinds))


def names_of_requests(env: Iterable[str]) -> list[str]:
    """Return requests in a process.env, which a scrun in the container would trust."""
    names = (entry.partition("=")[0] for entry in env)
    return [name for name in dict.fromkeys(names) if name in TABLE]


def _refusal(name: str) -> str:
    """Say why a request of a config.json is refused."""
    if name in TABLE:
        key = name.removeprefix("SCRUN_").lower()
        return (
            f"{name}: an image could have set it: set it in the environment of create or in "
            f'[slurm.defaults] of scrun.toml, or permit it there (allow = ["{key}"] in [slurm])'
        )
    return f"annotation {ascii(name[:80])[1:-1]}: unknown request{nearest(name)}"


def _check_plain(variable: str, value: str) -> None:
    pattern = _WITH_SLASH if variable in _NAMES_A_TRES else PLAIN
    if len(value) > _LONGEST or not pattern.fullmatch(value):
        shown = value if len(value) <= 80 else value[:77] + "..."
        raise SettingsError(
            f"config.json: {variable}={ascii(shown)[1:-1]}: is not accepted from an image (file "
            "names, quotes, control characters): set it in the environment of create"
        )
