"""The sources of requests for a container's job, and their precedence.

Highest first:

1. the environment of `create`,
2. the annotations of config.json (`podman run --annotation SCRUN_PARTITION=gpu`),
3. `process.env` of config.json (`podman run -e SCRUN_JOB_NUM_NODES=2`),
4. annotations `slurm.*` (`podman run --annotation slurm.partition=gpu`, see `engine_flags`),
5. the engine's flags (`podman run --cpus 2`, see `engine_flags`),
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
"""

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from scrun.core.errors import SettingsError
from scrun.settings.slurm.engine_flags import KINDS, NO_FLAGS, Flags, named_by, nearest
from scrun.settings.slurm.requests import TABLE, from_environment

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

    Args:
        environment: The environment of `create`; it is the caller's own, so all of it counts.
        asked: The requests of config.json (`read_requests`).
        defaults: `[slurm.defaults]`, by variable.
        flags: The requests of the engine's flags.
        allowed: Requests that config.json may make besides the safe ones (`[slurm] allow`).

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
    """Return the names of requests in a process.env, which the container must not get.

    A scrun inside the container would take them for its caller's environment, where even an
    image's SCRUN_PROLOG counts.
    """
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
