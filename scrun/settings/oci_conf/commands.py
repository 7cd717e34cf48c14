"""What an oci.conf(5) has run for one task: its commands, filled in. Pure.

The embedded engine runs it on this machine, and a shim on its node. slurmstepd makes a directory
for each step, and in it one for each task, where it writes the config.json for the OCI runtime and
the file with the environment. The embedded engine does the same, and `scrun oci-conf render` shows
it.

oci.conf(5) has commands to run, signal, query and delete a container, but none for `exec`, which
came to OCI runtimes later. It is derived from those commands, which name the runtime, its root and
the container's id. A site whose runtime needs another command sets it in the section [runtime] of
scrun.toml, with the same substitutions and `%f` for a file.
"""

import os
import re
import shlex

import msgspec

from scrun.core.errors import EngineError, SettingsError
from scrun.oci.signals import signal_name
from scrun.settings.file.load import RuntimeSettings
from scrun.settings.oci_conf.parse import OciConf
from scrun.settings.oci_conf.patterns import substitute

ENVIRONMENT = "environment"
NO_PID = (1 << 22) + 1
"""A number that no process can have (PID_MAX_LIMIT). 0 would be the process group of kill's
caller."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a step: one container; its values are those of a pattern's letters.

    `spool` is the directory for directories of steps, unless ContainerPath names another;
    `directory` is the job's, and `pid` the first process that was started for it. `arguments` may
    be unknown: None.
    """

    job: str
    node: str
    user: str
    uid: int
    spool: str
    step: str = "0"
    task: str = "0"
    directory: str = "/"
    bundle: str = ""
    rootfs: str = ""
    pid: int = NO_PID
    arguments: tuple[str, ...] | None = None

    def step_directory(self, conf: OciConf) -> str:
        parent = self.spool
        if conf.container_path is not None:
            parent = substitute(conf.container_path, self._values(), shell=False)
        return os.path.join(parent, f"oci-job{self.job}-{self.step}")

    def task_directory(self, conf: OciConf) -> str:
        """Return the task's directory, with config.json and the environment."""
        return os.path.join(self.step_directory(conf), f"task-{self.task}")

    def mount_point(self, conf: OciConf) -> str | None:
        """Return the step's directory in the container, if MountSpoolDir is set."""
        if conf.mount_spool_dir is None:
            return None
        return substitute(conf.mount_spool_dir, self._all_values(conf), shell=False)

    def fill(self, pattern: str, conf: OciConf, **more: str) -> str:
        """Fill in a command; `more` are values for additional letters."""
        values = {**self._all_values(conf), **more}
        arguments = ["/bin/false"] if self.arguments is None else self.arguments
        return substitute(pattern, {**values, "@": arguments})

    def _values(self) -> dict[str, str]:
        return {
            "b": self.bundle, "j": self.job, "n": self.node, "p": str(self.pid),
            "r": self.rootfs, "s": self.step, "t": self.task, "u": self.user,
            "U": str(self.uid), "Z": self.directory,
        }  # fmt: skip

    def _all_values(self, conf: OciConf) -> dict[str, str]:
        environment = os.path.join(self.task_directory(conf), ENVIRONMENT)
        return {**self._values(), "e": environment, "m": self.step_directory(conf)}


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

    def exec_or_refuse(self) -> str:
        if not self.exec:
            raise EngineError(
                "exec: the site's oci.conf has no command for it: set `exec` in the section "
                "[runtime] of scrun.toml"
            )
        return self.exec


def node_runtime(conf: OciConf | None, own: RuntimeSettings) -> NodeRuntime:
    """Merge the commands of oci.conf and scrun.toml, which has pause and resume, or neither."""
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


_PREFIXED = re.compile(r"(?<![\w-])(kill\s+(?:-s\s*|-))SIG(?=[A-Z])")
_INNER = re.compile(r"""\$\([^()'"`\\{}$#<]*\)|"[^"]*"|'[^']*'|\\.""", re.DOTALL)
_BUILT_IN = frozenset(
    (
        "alias", "bg", "break", "case", "cd", "command", "continue", "eval", "exec", "exit",
        "export", "fg", "for", "function", "if", "jobs", "local", "read", "readonly", "return",
        "set", "shift", "source", "time", "times", "trap", "type", "ulimit", "umask", "unalias",
        "unset", "until", "wait", "while",
    )
)  # fmt: skip


def in_place_of_the_shell(pattern: str) -> str:
    """Put `exec` before a simple command: a signal would only end Debian's shell."""
    first = re.match(r"\s*([\w/][\w./+-]*)(?:\s|$)", pattern)
    simple = not set(_INNER.sub("", pattern)) & set(";&|<>(){}`\n\\\"'")
    if first is None or first[1] in _BUILT_IN or not simple:
        return pattern
    return f"exec {pattern.lstrip()}"


def portable(command: str) -> str:
    """Remove SIG from the names of signals for kill(1).

    POSIX has no SIG there, and some shells refuse it ("invalid signal number or name: SIGTERM").
    The examples in Slurm's documentation have it.
    """
    return _PREFIXED.sub(r"\1", command)


def program_of(pattern: str) -> str | None:
    """Return the program that a command of oci.conf runs; None if only a shell could tell."""
    try:
        words = shlex.split(pattern)
    except ValueError:
        return None
    while words and (words[0] == "exec" or re.fullmatch(r"\w+=.*", words[0])):
        words.pop(0)
    plain = words and re.fullmatch(r"[\w./+-]+", words[0])
    return words[0] if plain else None


class TaskCommands(msgspec.Struct, frozen=True):
    """The commands for a task, as text for `sh -c`; `exec` runs what is at the path `file`.

    Each raises SettingsError if a pattern needs a value that there is not.
    """

    conf: OciConf
    patterns: NodeRuntime
    task: Task
    file: str

    @property
    def is_container(self) -> bool:
        """Whether they make an OCI container, and not just a process."""
        return not self.conf.ignore_file_config_json

    def run(self) -> str | None:
        """Return RunTimeRun, which runs in the foreground; None if there are the next three."""
        pattern = self.conf.run_time_run
        return None if pattern is None else self._filled(in_place_of_the_shell(pattern))

    def create(self) -> str:
        return self._filled(self.conf.run_time_create or "false")

    def start(self) -> str:
        return self._filled(self.conf.run_time_start or "false")

    def query(self) -> str:
        return self._filled(self.conf.run_time_query or "false")

    def kill(self, number: int) -> str:
        """Return RunTimeKill for a signal: it names one, or takes one at its end."""
        pattern = self.conf.run_time_kill or ("false" if self.is_container else "kill %p")
        return self._filled(signalled(pattern, signal_name(number)))

    def delete(self) -> str:
        return self._filled(portable(self.conf.run_time_delete or "true"))

    def state(self) -> str:
        """Return the command that prints the container's state; "" if unknown."""
        return self._filled(self.patterns.state)

    def exec(self) -> str:
        """Return the command that runs one more program; EngineError if the site has none."""
        return self._filled(self.patterns.exec_or_refuse())

    def pause(self, *, resume: bool) -> str:
        """Return the command that pauses or resumes the container; "" for signals."""
        return self._filled(self.patterns.resume if resume else self.patterns.pause)

    def _filled(self, pattern: str) -> str:
        return self.task.fill(pattern, self.conf, f=self.file)
