"""The commands by which the OCI runtime on a node is told things about a running container. Pure.

oci.conf(5) has commands to run a container, to signal, to query and to delete it, and none for
what came to OCI runtimes later: `exec`. It is derived from those that are there, which name the
runtime, its root and the container's id; a site whose runtime needs other words writes them into
the section [runtime] of scrun.toml, with the same substitutions and `%f` for a file.
"""

import re

import msgspec

from scrun.core.errors import SettingsError
from scrun.settings.file.load import RuntimeSettings
from scrun.settings.oci_conf.parse import OciConf

_ID = r"(?!-)(?:(?!%p)[^\s;&|<>()])+"
_NAMES = r"(?:SIG)?(?:HUP|INT|QUIT|KILL|TERM|1|2|3|9|15)"
_OPTION = rf"(?i)(?<=\s)(-s\s+|-s=|--signal[\s=]+|-){_NAMES}(?=\s)"
_ALL = r"(?<=\skill)\s+(?:-a|--all)(?=\s)"
_PLAIN = r"\s*(?:exec\s+)?(?:/\S*/)?kill(?=\s)"
_OTHERS = r"(?:^|[\s/])(?:apptainer|singularity)\s"


class NodeRuntime(msgspec.Struct, frozen=True):
    """Patterns of commands, filled in by `oci_conf.parse.substitute`; "" is unknown.

    Attributes:
        kill: Signals the first process: see `signalled`.
        state: Prints the container's state as JSON, its `pid` among it.
        exec: Runs one more program: the one that the file `%f` describes.
        pause: Stops a container's processes; without it they get SIGSTOP.
        resume: Lets them go on; without it they get SIGCONT.
    """

    kill: str = ""
    state: str = ""
    exec: str = ""
    pause: str = ""
    resume: str = ""


def node_runtime(conf: OciConf | None, own: RuntimeSettings) -> NodeRuntime:
    """Take what oci.conf says and what scrun.toml says together.

    Args:
        conf: The oci.conf; None where there is none.
        own: The section [runtime].

    Raises:
        SettingsError: Only one of pause and resume is set.
    """
    if (own.pause is None) is not (own.resume is None):
        raise SettingsError("runtime.pause and runtime.resume: one without the other: set both")
    conf = conf or OciConf()
    return NodeRuntime(
        kill=conf.run_time_kill or "",
        state=conf.run_time_query or "",
        exec=own.exec or derived_exec(conf),
        pause=own.pause or "",
        resume=own.resume or "",
    )


def signalled(kill: str, name: str) -> str:
    """Make the command that sends a signal from RunTimeKill, which sends one only.

    The name takes the place of the one that is named there, by an option or as the last word. It
    is appended where there is none, as runc and crun have it; kill(1) gets an option. `-a` of
    runc and crun goes: Slurm calls RunTimeKill to end everything, and here a signal is for the
    first process. (Without cgroups runc 1.1 cannot do it either.)

    Args:
        kill: The pattern.
        name: The signal's name, without SIG.
    """
    kill = re.sub(_ALL, "", kill, count=1)
    if found := re.search(_OPTION, kill):
        return f"{kill[: found.start()]}{found[1]}{name}{kill[found.end() :]}"
    if found := re.match(_PLAIN, kill):
        return f"{kill[: found.end()]} -s {name}{kill[found.end() :]}"
    return f"{_without_signal(kill)} {name}"


def _without_signal(kill: str) -> str:
    """Take the signal from the end of a command, in time that grows with its length alone."""
    words = kill.rstrip().rsplit(maxsplit=1)
    named = len(words) == 2 and re.fullmatch(_NAMES, words[1], re.IGNORECASE)
    return words[0] if named else kill.rstrip()


def derived_exec(conf: OciConf) -> str:
    """Make the command of `exec` from another one, for runtimes with runc's command line.

    A command is passed over where the container is not the last word (`… 2>/dev/null || true`) or
    not named by an id (`kill %p`): what would be made of it is something else. So is Apptainer's,
    whose `oci exec` wants the program's words.

    Returns:
        `crun --root=/r exec --process %f ID` for `crun --root=/r state ID`; "" if none fits.
    """
    known = (
        (conf.run_time_query or "", "state"),
        (_without_signal(conf.run_time_kill or ""), "kill"),
        (conf.run_time_delete or "", "delete"),
    )
    for pattern, operation in known:
        # an option's value may be such a word as well: the last one counts
        found = re.fullmatch(rf"(.*\S\s+){operation}(?:\s+-\S+)*\s+({_ID})\s*", pattern)
        if found and not re.search(_OTHERS, found[1]):
            return f"{found[1]}exec --process %f {found[2]}"
    return ""
