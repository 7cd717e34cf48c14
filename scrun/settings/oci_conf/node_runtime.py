"""The commands of the OCI runtime on a node for running containers. Pure.

oci.conf(5) has commands to run, signal, query and delete a container, but none for `exec`, which
came to OCI runtimes later. It is derived from those commands, which name the runtime, its root and
the container's id. A site whose runtime needs another command sets it in the section [runtime] of
scrun.toml, with the same substitutions and `%f` for a file.
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
_RUNC = r"(?:^|[\s/])runc\s"
_OTHERS = r"(?:^|[\s/])(?:apptainer|singularity)\s"


class NodeRuntime(msgspec.Struct, frozen=True):
    """Patterns of commands, filled in by `oci_conf.patterns.substitute`; "" if unknown.

    Attributes:
        kill: Signals the first process: see `signalled`.
        state: Prints the container's state, with its `pid`, as JSON.
        exec: Runs one more program, which the file `%f` describes.
        pause: Suspends a container's processes; without it they get SIGSTOP.
        resume: Resumes them; without it they get SIGCONT.
    """

    kill: str = ""
    state: str = ""
    exec: str = ""
    pause: str = ""
    resume: str = ""


def node_runtime(conf: OciConf | None, own: RuntimeSettings) -> NodeRuntime:
    """Merge the commands of oci.conf and scrun.toml.

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


def calls_runc(conf: OciConf) -> bool:
    """Tell whether an oci.conf has runc make containers, as far as its words show."""
    makes = conf.run_time_run or conf.run_time_create or ""
    return re.search(_RUNC, makes) is not None


def signalled(kill: str, name: str) -> str:
    """Make the command for any signal from RunTimeKill, which always sends the same.

    The name replaces the one in the command, an option or the last word. Without one it is
    appended, as for runc and crun; kill(1) gets an option. `-a` of runc and crun is removed: Slurm
    calls RunTimeKill to end everything, but here a signal is for the first process. (Without
    cgroups, runc 1.1 cannot do it either.)

    `name` is the signal's name, without SIG.
    """
    kill = re.sub(_ALL, "", kill, count=1)
    if found := re.search(_OPTION, kill):
        return f"{kill[: found.start()]}{found[1]}{name}{kill[found.end() :]}"
    if found := re.match(_PLAIN, kill):
        return f"{kill[: found.end()]} -s {name}{kill[found.end() :]}"
    return f"{_without_signal(kill)} {name}"


def _without_signal(kill: str) -> str:
    """Remove the signal at the end of a command, in linear time."""
    words = kill.rstrip().rsplit(maxsplit=1)
    named = len(words) == 2 and re.fullmatch(_NAMES, words[1], re.IGNORECASE)
    return words[0] if named else kill.rstrip()


def derived_exec(conf: OciConf) -> str:
    """Make the command of `exec` from another one, for runtimes with runc's command line.

    A command is not used if the container is not its last word (`… 2>/dev/null || true`) or is not
    named by an id (`kill %p`). Neither is Apptainer's, whose `oci exec` needs the program's words.

    Returns:
        `crun --root=/r exec --process %f ID` for `crun --root=/r state ID`; "" if no command can
        be used.
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
