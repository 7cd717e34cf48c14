"""Where the requests for a container's job come from, and which source counts more.

Highest first:

1. the environment of `create`,
2. the annotations of config.json (`podman run --annotation SCRUN_PARTITION=gpu`),
3. `process.env` of config.json (`podman run -e SCRUN_JOB_NUM_NODES=2`),
4. annotations `slurm.*` (`podman run --annotation slurm.partition=gpu`, see `engine_flags`),
5. the engine's flags (`podman run --cpus 2`, see `engine_flags`),
6. `[slurm.defaults]` of scrun.toml.

The name is the variable's everywhere but in 4. An empty value counts too: it takes back what a
lower source asks for. Annotations stand above `process.env` because an image sets its environment
far more often than annotations, and whoever runs it can add either. A flag stands below what names
Slurm's own thing, and above the defaults: it was typed for this container. It takes the place of
all requests about the same resource, as Slurm refuses `--mem` beside `--mem-per-cpu`.

config.json may come from an image, which nobody has to trust, and nothing in it tells what was
typed (docs/decisions/annotations.md). Of its requests those marked `safe` in `requests.TABLE`
count, those that `[slurm] allow` names, and of their values only plain ones. Everything else is
refused, with one line: a container that runs under another account than the one asked for, or for
another time, because a name was misspelled or not allowed, helps nobody.
"""

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from scrun.core.errors import SettingsError
from scrun.settings.slurm.engine_flags import KINDS, NO_FLAGS, Flags, named_by, nearest
from scrun.settings.slurm.requests import TABLE, from_environment

# What names, numbers, times, node lists and lists of features or devices are made of. Not in it:
# the slash (salloc and srun read a FILE when a node list has one), the percent sign (patterns of
# file names), quotes and other signs of shells, line breaks, anything but ASCII.
PLAIN = re.compile(r"[A-Za-z0-9 _.,:=+*@&|()\[\]-]*")
_WITH_SLASH = re.compile(r"[A-Za-z0-9_.,:=+*/-]*")
# these name a kind of resource as gres/gpu, and are never the name of a file
_NAMES_A_TRES = ("SCRUN_TRES_BIND", "SCRUN_TRES_PER_TASK")
_OURS = "SCRUN_"
# a node list of a large job fits; config.json's 16 MiB do not fit into a command line
_LONGEST = 4096


class Wanted(msgspec.Struct, frozen=True):
    """What a job is asked for with, all sources taken together.

    Attributes:
        requests: Values by SCRUN_* variable.
        notes: A line for the log about each of the engine's flags that asks for nothing.
        because: Which of them come from the engine's flags and config.json, for the message when
            Slurm refuses; or "".
    """

    requests: dict[str, str]
    notes: tuple[str, ...] = ()
    because: str = ""


def asked_by(annotations: Mapping[str, str], env: Iterable[str]) -> dict[str, str]:
    """Pick the requests out of a config.json, safe or not, and what was meant to be one.

    An annotation `slurm.*` or `SCRUN_*` that names no request is in the answer by its own name: it
    is for the engine that needs requests to refuse it.

    Args:
        annotations: Its annotations.
        env: Its process.env, entries `NAME=VALUE`; the last of several counts, as for the
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
    """Take the sources together.

    Args:
        environment: Of `create`; the caller's own, so all of it counts.
        asked: What config.json asks for (`asked_by`).
        defaults: `[slurm.defaults]`, by variable.
        flags: What the engine's flags ask for.
        allowed: Requests that config.json may make besides the safe ones (`[slurm] allow`).

    Raises:
        SettingsError: config.json asks for what an image must not ask for, or gives a value that
            it must not give, or has an annotation for requests that is none.
    """
    own = from_environment(environment)
    counted: dict[str, str] = {}
    for variable, value in asked.items():
        if variable in own:
            continue  # the caller's word counts, whatever config.json says
        if variable in TABLE and (TABLE[variable].safe or variable in allowed):
            _check_plain(variable, value)
            counted[variable] = value
        elif value:  # an empty one takes back what the image asks for
            raise SettingsError(f"config.json: {_refusal(variable)}")
    named = {**counted, **own}
    derived = {key: text for key, text in flags.requests.items() if not KINDS[key] & named.keys()}
    replaced = frozenset().union(*(KINDS[variable] for variable in derived))
    below = {key: text for key, text in defaults.items() if key not in replaced}
    because = [f"{key}={text} from {flags.origins[key]}" for key, text in derived.items()]
    because += [f"{key}={text} from config.json" for key, text in counted.items() if text]
    return Wanted({**below, **derived, **named}, flags.notes, ", ".join(because))


def names_of_requests(env: Iterable[str]) -> list[str]:
    """Return the requests among the entries of a process.env, which are for scrun alone.

    None may stay in the container, whether it counted or not: for a scrun in there it would be
    the caller's own environment, in which an image's SCRUN_PROLOG counts.
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
    return f"annotation {ascii(name[:80])[1:-1]}: is no request that scrun knows{nearest(name)}"


def _check_plain(variable: str, value: str) -> None:
    pattern = _WITH_SLASH if variable in _NAMES_A_TRES else PLAIN
    if len(value) > _LONGEST or not pattern.fullmatch(value):
        shown = value if len(value) <= 80 else value[:77] + "..."
        raise SettingsError(
            f"config.json: {variable}={ascii(shown)[1:-1]}: is not accepted from an image (file "
            "names, quotes, control characters): set it in the environment of create"
        )
