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

config.json may come from an image, which nobody has to trust. Of its requests only those marked
`safe` in `requests.TABLE` count, and of their values only plain ones. The others are *ignored*: an
image that was built for another place still runs. A value that is not plain, of a request that
would count, is *refused*: it is a mistake or an attack, and a container with another shape than
the one asked for would be no help to either.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from scrun.errors import SettingsError
from scrun.settings.engine_flags import KINDS, NO_FLAGS, Flags, named_by
from scrun.settings.requests import TABLE, from_environment

# What names, numbers, times, node lists and lists of features or devices are made of. Not in it:
# the slash (salloc and srun read a FILE when a node list has one), the percent sign (patterns of
# file names), quotes and other signs of shells, line breaks, anything but ASCII.
PLAIN = re.compile(r"[A-Za-z0-9 _.,:=+*@&|()\[\]-]*")
_WITH_SLASH = re.compile(r"[A-Za-z0-9_.,:=+*/-]*")
# these name a kind of resource as gres/gpu, and are never the name of a file
_NAMES_A_TRES = ("SCRUN_TRES_BIND", "SCRUN_TRES_PER_TASK")
# a node list of a large job fits; config.json's 16 MiB do not fit into a command line
_LONGEST = 4096


class Wanted(msgspec.Struct, frozen=True):
    """What a job is asked for with, all sources taken together.

    Attributes:
        requests: Values by SCRUN_* variable.
        notes: A line for the log about each request that was ignored.
        because: Which of them come from the engine's flags, for the message when Slurm refuses;
            or "".
    """

    requests: dict[str, str]
    notes: tuple[str, ...] = ()
    because: str = ""


def asked_by(annotations: Mapping[str, str], env: Iterable[str]) -> dict[str, str]:
    """Pick the requests out of a config.json, safe or not.

    Args:
        annotations: Its annotations.
        env: Its process.env, entries `NAME=VALUE`; the last of several counts, as for the
            runtimes.
    """
    pairs = (entry.partition("=") for entry in env)
    variables = {name: value for name, equals, value in pairs if equals}
    own_names = {**from_environment(variables), **from_environment(annotations)}
    return {**named_by(annotations), **own_names}


def gather(
    environment: Mapping[str, str],
    asked: Mapping[str, str],
    defaults: Mapping[str, str],
    flags: Flags = NO_FLAGS,
) -> Wanted:
    """Take the sources together.

    Args:
        environment: Of `create`; the caller's own, so all of it counts.
        asked: What config.json asks for (`asked_by`).
        defaults: `[slurm.defaults]`, by variable.
        flags: What the engine's flags ask for.

    Raises:
        SettingsError: config.json has a value that an image must not give.
    """
    own = from_environment(environment)
    counted: dict[str, str] = {}
    notes = list(flags.notes)
    for variable, value in asked.items():
        if not TABLE[variable].safe:
            notes.append(
                f"{variable} of config.json is ignored, as an image could have set it: set it in "
                "the environment of create, or in [slurm.defaults] of scrun.toml"
            )
        elif variable not in own:
            _check_plain(variable, value)
            counted[variable] = value
    named = {**counted, **own}
    derived = {key: text for key, text in flags.requests.items() if not KINDS[key] & named.keys()}
    replaced = frozenset().union(*(KINDS[variable] for variable in derived))
    below = {key: text for key, text in defaults.items() if key not in replaced}
    because = ", ".join(f"{key}={text} from {flags.origins[key]}" for key, text in derived.items())
    return Wanted({**below, **derived, **named}, tuple(notes), because)


def names_of_requests(env: Iterable[str]) -> list[str]:
    """Return the requests among the entries of a process.env, which are for scrun alone.

    None may stay in the container, whether it counted or not: for a scrun in there it would be
    the caller's own environment, in which an image's SCRUN_PROLOG counts.
    """
    names = (entry.partition("=")[0] for entry in env)
    return [name for name in dict.fromkeys(names) if name in TABLE]


def _check_plain(variable: str, value: str) -> None:
    pattern = _WITH_SLASH if variable in _NAMES_A_TRES else PLAIN
    if len(value) > _LONGEST or not pattern.fullmatch(value):
        shown = value if len(value) <= 80 else value[:77] + "..."
        raise SettingsError(
            f"config.json: {variable}={ascii(shown)[1:-1]}: is not accepted from an image (file "
            "names, quotes, control characters): set it in the environment of create"
        )
