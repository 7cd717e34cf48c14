"""Turns pyxis' options of srun and sbatch into options of `scrun run`.

pyxis is a SPANK plugin that an administrator has to install; here its options work for any user.
Its own defaults are kept: the container's user is the caller, whose variables it has below those
of the image, and the image's entrypoint does not run.

A command line is read as far as finding its command needs it. Which options there are, and which
take an argument, the tool's own `--help` says (`known`). Of a long option that neither that nor
this module knows it is assumed that it takes one: most do.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from scrun.core.errors import UsageError
from scrun.core.place import job_of, job_variables
from scrun.pull.file_names import OF_A_TASK, letters
from scrun.settings.slurm.requests import TABLE

SHORT = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile",
    "G": "gpus", "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes",
    "S": "core-spec", "T": "threads", "W": "wait", "a": "array", "b": "begin",
    "c": "cpus-per-task", "d": "dependency", "e": "error", "i": "input", "m": "distribution",
    "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "r": "relative", "t": "time",
    "w": "nodelist", "x": "exclude",
}  # fmt: skip
"""Short options with an argument."""

_SHORT_FLAGS = {
    "E": "preserve-env", "H": "hold", "I": "immediate", "K": "kill-on-bad-exit", "O": "overcommit",
    "Q": "quiet", "V": "version", "X": "disable-status", "Z": "no-allocate",
    "h": "help", "k": "no-kill", "l": "label", "s": "oversubscribe", "u": "unbuffered",
    "v": "verbose",
}  # fmt: skip
# their argument, if any, stands behind an equals sign
_FLAGS = frozenset(
    (
        *_SHORT_FLAGS.values(), "contiguous", "debugger-test", "exact", "exclusive",
        "get-user-env", "ignore-pbs", "interactive", "multi-prog", "nice", "no-requeue", "overlap",
        "parsable", "propagate", "pty", "quit-on-interrupt", "reboot", "requeue", "resv-ports",
        "send-libs", "spread-job", "test-only", "usage", "use-min-nodes", "wait-all-nodes",
        "whole", "x11", "container-mount-home", "no-container-mount-home", "container-remap-root",
        "no-container-remap-root", "container-entrypoint", "no-container-entrypoint",
        "container-entrypoint-log", "container-writable", "container-readonly",
    )
)  # fmt: skip


# they are listed without their argument, or as if it could be left out
_WITH_ARGUMENT = ("container", "export", "wrap")
_LISTED = re.compile(r"^ {2,8}(?:-(\w),? +| {4})--([a-z][a-z0-9-]*)(\[?)(=?)", re.MULTILINE)


def known(help_text: str) -> dict[str, tuple[str, bool]]:
    """Return the options of a tool's `--help`: each letter, or "", and whether it has a value."""
    found: dict[str, tuple[str, bool]] = {}
    for letter, name, bracket, equals in _LISTED.findall(help_text):
        takes = (bool(equals) and not bracket) or name in _WITH_ARGUMENT
        found.setdefault(name, (letter, takes))
    return found


class Word(msgspec.Struct, frozen=True):
    """An option as it was written; an unknown short one has its letter as its name."""

    name: str
    value: str | None
    words: tuple[str, ...]


def read(
    arguments: Sequence[str],
    *,
    batch: bool = False,
    listed: Mapping[str, tuple[str, bool]] | None = None,
) -> tuple[list[Word], list[str]]:
    """Split a command line into options and the command.

    With `batch` it is one of sbatch, where `--wait` has no argument. `listed` are the tool's
    options, as `known` returns them.
    """
    found: list[Word] = []
    listed = listed or {}
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--":
            return found, list(arguments[position + 1 :])
        if len(word) < 2 or word[0] != "-":
            break
        position += 1
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = _whole(name, listed)
            needs = listed[name][1] if name in listed else name not in _FLAGS
            takes = needs and not equals
            given = value if equals else None
        else:
            name, takes, given = _short(word, listed)
        if batch and name == "wait":
            takes = False
        words: tuple[str, ...] = (word,)
        if takes:
            if position == len(arguments):
                raise UsageError(f"option {word} needs a value")
            given, words = arguments[position], (word, arguments[position])
            position += 1
        found.append(Word(name, given, words))
    return found, list(arguments[position:])


def _whole(name: str, listed: Mapping[str, tuple[str, bool]]) -> str:
    """Complete the beginning of a long option, as getopt_long(3) does."""
    if name in listed or not listed or name in _FLAGS or name.startswith(("container", "no-cont")):
        return name
    found = [one for one in listed if one.startswith(name)]
    return found[0] if len(found) == 1 else name


def _short(word: str, listed: Mapping[str, tuple[str, bool]]) -> tuple[str, bool, str | None]:
    """Read a short option: its name, whether the next word is its argument, else that."""
    letter, rest = word[1], word[2:]
    name = next((name for name, (short, _) in listed.items() if short == letter), "")
    if name in listed and listed[name][1]:
        return name, not rest, rest.removeprefix("=") or None
    if not name and letter in SHORT:
        return SHORT[letter], not rest, rest.removeprefix("=") or None
    name = name or _SHORT_FLAGS.get(letter, letter)
    return name, False, rest.removeprefix("=") or None


_CONTAINER = (
    "container-image", "container-mounts", "container-workdir", "container-name", "container-save",
    "container-mount-home", "no-container-mount-home", "container-remap-root",
    "no-container-remap-root", "container-entrypoint", "no-container-entrypoint",
    "container-entrypoint-log", "container-writable", "container-readonly", "container-env",
    "container-unshare",
)  # fmt: skip
_EITHER = (
    ("container-mount-home", "no-container-mount-home"),
    ("container-remap-root", "no-container-remap-root"),
    ("container-entrypoint", "no-container-entrypoint"),
    ("container-writable", "container-readonly"),
)
_VARIABLE = "PYXIS_"
# options of srun that mean nothing for a container, or what is done anyway
_WITHOUT = frozenset(
    (
        "disable-status", "kill-on-bad-exit", "pty", "quiet", "verbose", "wait", "propagate",
        "no-kill", "preserve-env", "quit-on-interrupt", "bcast", "bcast-exclude", "compress",
        "send-libs", "threads", "debugger-test",
    )
)  # fmt: skip
_BY_OPTION = {request.option.removeprefix("--"): name for name, request in TABLE.items()}
_BY_OPTION |= {"chdir": "SCRUN_WORKING_DIR", "switches": "SCRUN_REQ_SWITCH"}
_OF_ROOT = "/root"
_NAMED = ("auto", "create", "exec", "no_exec")
_INTERPRETERS = ("sh", "bash", "dash", "ksh", "zsh", "python", "python3")

HELP = """
Options provided by scrun, as those of pyxis:
      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
                              [pyxis] run in a container of an image of a
                              registry, or of a squashfs file
      --container-mounts=SRC:DST[:FLAGS][,SRC:DST...]
                              [pyxis] mount files and directories; FLAGS are
                              joined by plus signs
      --container-workdir=PATH
                              [pyxis] working directory in the container
      --container-name=NAME   [pyxis] keep its files under a name, and use those
                              that are there
      --container-save=PATH   [pyxis] write its files to a squashfs file
      --container-mount-home  [pyxis] mount the home directory
      --no-container-mount-home
                              [pyxis] do not (default)
      --container-remap-root  [pyxis] be root in the container
      --no-container-remap-root
                              [pyxis] do not (default)
      --container-entrypoint  [pyxis] run the image's entrypoint
      --no-container-entrypoint
                              [pyxis] do not (default)
      --container-entrypoint-log
                              [pyxis] show its output (always)
      --container-writable    [pyxis] its files can be written (default)
      --container-readonly    [pyxis] they cannot
      --container-env=NAME[,NAME...]
                              [pyxis] yours count more than the image's
      --container-unshare=KIND[,KIND...]
                              [pyxis] own namespaces: ipc, net, uts
"""


class Call(msgspec.Struct, frozen=True):
    """A call of srun or sbatch: pyxis' options, also as `given`, the others, the command."""

    container: dict[str, str]
    others: list[Word]
    command: list[str]
    given: list[Word] = []


def understand(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    batch: bool = False,
    listed: Mapping[str, tuple[str, bool]] | None = None,
) -> Call:
    """Read a command line, as `read`, and PYXIS_CONTAINER_IMAGE and the like."""
    words, command = read(arguments, batch=batch, listed=listed)
    return Call(
        container_options(words, environment),
        [word for word in words if word.name not in _CONTAINER],
        command,
        [word for word in words if word.name in _CONTAINER],
    )


def container_options(words: Sequence[Word], environment: Mapping[str, str]) -> dict[str, str]:
    """Return pyxis' options among others, and those of the environment."""
    found: dict[str, str] = {}
    for word in words:
        if word.name not in _CONTAINER:
            continue
        if word.name in found and found[word.name] != (word.value or ""):
            raise UsageError(f"--{word.name} is given twice")
        found[word.name] = word.value or ""
    for one, other in _EITHER:
        if one in found and other in found:
            raise UsageError(f"--{one} does not go with --{other}")
    for name in _CONTAINER:
        value = environment.get(_VARIABLE + name.upper().replace("-", "_"))
        opposite = next((set(pair) - {name} for pair in _EITHER if name in pair), set())
        if value is None or name in found or opposite & found.keys() or name.startswith("no-"):
            continue
        if opposite or name == "container-entrypoint-log":
            if value.lower() in ("1", "yes", "true", "on"):
                found[name] = ""
        else:
            found[name] = value
    return found


def image_of(text: str) -> str:
    """Return enroot's `[USER@][REGISTRY#]IMAGE[:TAG]`, engine's image or path, as for `run`."""
    if text.startswith(("/", "./", "../")) or text.endswith((".sqsh", ".sqfs")):
        return text if "/" in text else f"./{text}"
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "docker", text
    if scheme == "podman":
        return f"containers-storage:{rest}"
    if scheme != "docker":
        raise UsageError(f"--container-image={text}: {scheme}:// is not known: use docker://")
    head, number, name = rest.rpartition("#")
    if number:
        registry = head.rpartition("@")[2]  # the user is that of `podman login`
        return f"docker://{registry}/{name}"
    _, at, name = rest.partition("@")
    if at and not name.startswith("sha256:"):
        rest = name
    return f"docker://{rest}"


def name_of(container: Mapping[str, str]) -> tuple[str, str]:
    """Return the name of `--container-name`, and what may be done with one that is there."""
    name, colon, how = container.get("container-name", "").partition(":")
    if colon and how not in _NAMED:
        raise UsageError(
            f"--container-name={name}:{how}: {how!r} is unknown; use {', '.join(_NAMED)}"
        )
    return name, how or "auto"


def options_of(
    container: Mapping[str, str], ids: tuple[int, int], *, beside: bool = False
) -> tuple[list[str], str]:
    """Return the options of `scrun run`, and its image; `beside` one that runs by that name."""
    name, _ = name_of(container)
    image = image_of(container["container-image"]) if container.get("container-image") else ""
    if not image or beside:
        if not name:
            raise UsageError("--container-image is missing: name an image")
        image = f"name:{name}"
    words = ["--all-env"]
    if "container-remap-root" in container:
        words += ["--user", "0:0"]
    else:
        words += ["--user", "{}:{}".format(*ids)]
    if "container-entrypoint" not in container:
        words.append("--no-entrypoint")
    if name and not beside:
        words += ["--writable", "--name", name]
    elif "container-readonly" in container:
        words.append("--read-only")
    if "container-mount-home" in container and "container-remap-root" in container:
        # where the image's root has it, as enroot does
        words += ["--mount", f"~:{_OF_ROOT}", "--env", f"HOME={_OF_ROOT}"]
    elif "container-mount-home" in container:
        words.append("--home")
    for option, ours in (("container-mounts", "--mount"), ("container-env", "--env")):
        for part in _parts(container, option):
            if option == "container-mounts" and part.endswith(":"):
                raise UsageError(f"--{option}={container[option]}: {part!r} has an empty part")
            words += [ours, part]
    if kinds := _parts(container, "container-unshare"):
        words += ["--unshare", ",".join(kinds)]
    for option, ours in (("container-workdir", "--workdir"), ("container-save", "--save")):
        if value := container.get(option):
            words += [ours, value]
    return words, image


def _parts(container: Mapping[str, str], option: str) -> list[str]:
    if (text := container.get(option)) is None:
        return []
    parts = text.split(",")
    if "" in parts:
        raise UsageError(f"--{option}={text}: has an empty part: take the comma away")
    return parts


def of_the_job(others: Sequence[Word], salloc: Mapping[str, tuple[str, bool]]) -> list[Word]:
    """Return the options for which scrun has no request, and that are salloc's: of a job alone."""
    return [word for word in others if word.name in salloc and is_unknown(word)]


def _is_ours(name: str) -> bool:
    return name in (*_STREAMS, "export", "jobid") or name in _BY_OPTION


def is_unknown(word: Word) -> bool:
    """Tell whether scrun has no request for an option."""
    return not (word.name in _WITHOUT or _is_ours(word.name))


_OF_STEPS = ("exclude", "relative")
"""Options that srun heeds within a job, too."""


def requests_of(
    others: Sequence[Word],
    environment: Mapping[str, str],
    salloc: Mapping[str, tuple[str, bool]] | None = None,
) -> dict[str, str]:
    """Return the variables that request what options of srun do.

    Within a job a step without `-N` and `-n` has as many nodes and tasks as the job, and what only
    a job can have has no effect, as with srun. `salloc` has the options of a job.
    """
    found: dict[str, str] = {}
    for word in others:
        if word.name in _WITHOUT or word.name in _STREAMS or word.name == "export":
            continue
        if word.name == "jobid":
            found["SLURM_JOB_ID"] = word.value or ""
        elif variable := _BY_OPTION.get(word.name):
            found[variable] = "yes" if word.value is None else word.value
        elif job_of(environment) and word.name in (salloc or {}) and word.name not in _OF_STEPS:
            continue
        else:
            option = word.words[0].partition("=")[0]
            raise UsageError(f"srun {option}: does not go with --container-image: leave it out")
    if job_of(environment) and not {"SCRUN_JOB_NUM_NODES", "SCRUN_NTASKS"} & set(found):
        job = job_variables(environment)
        for variable, of_job in (
            ("SCRUN_JOB_NUM_NODES", "SLURM_JOB_NUM_NODES"),
            ("SCRUN_NTASKS", "SLURM_NTASKS"),
        ):
            if value := job.get(of_job):
                found[variable] = value
    return found


_STREAMS = {"input": 0, "output": 1, "error": 2}


def streams_of(others: Sequence[Word], tasks: int = 1) -> dict[int, str]:
    """Return the files of standard streams, for at least `tasks` tasks (`file_names`)."""
    found: dict[int, str] = {}
    for word in others:
        number, value = _STREAMS.get(word.name), word.value
        if number is None or not value:
            continue
        found.pop(number, None)
        which = letters(value)
        if tasks > 1 and (which & OF_A_TASK or value.isdecimal()):
            raise UsageError(
                f"srun --{word.name}={value}: cannot be a file for each of {tasks} tasks with "
                "--container-image: name one for all, and use --label"
            )
        if value != "all" and not (value.isdecimal() and int(value) < tasks):
            found[number] = "/dev/null" if value == "none" else value
    if 1 in found and 2 not in found:
        found[2] = ""
    return found


def appends(others: Sequence[Word], environment: Mapping[str, str]) -> bool:
    """Tell whether the files for output keep what is in them, by `--open-mode`."""
    given = next((word.value for word in reversed(others) if word.name == "open-mode"), None)
    return (given or environment.get("SLURM_OPEN_MODE") or "").startswith("a")


def exported(others: Sequence[Word]) -> "tuple[bool, list[str]]":
    """Return whether all variables are passed on, and which besides, by `--export`."""
    value = next((word.value for word in reversed(others) if word.name == "export"), None)
    if value is None:
        return True, []
    names = [name for name in value.split(",") if name]
    everything = "ALL" in names
    return everything, [name for name in names if name not in ("ALL", "NONE", "NIL")]


def batch_options(script: str) -> list[Word]:
    """Return the options in a batch script: its lines `#SBATCH` before the first command."""
    found: list[Word] = []
    for line in script.splitlines()[1:]:
        if line.startswith("#SBATCH"):
            found += _in_line(line)
        elif line.strip() and not line.startswith("#"):
            break
    return found


def _in_line(line: str) -> list[Word]:
    """Read a line `#SBATCH`; a comment at its end has a number sign that begins a word."""
    try:
        words = shlex.split(line.removeprefix("#SBATCH"))
    except ValueError as error:
        raise UsageError(f"{line}: {error}") from None
    end = next((at for at, word in enumerate(words) if word.startswith("#")), len(words))
    return read(words[:end], batch=True)[0]


def batch_script(script: str, name: str, run: Sequence[str], arguments: Sequence[str]) -> str:
    """Return a script that runs another one in a container.

    `run` are the words of `scrun run` up to the image. Only a shell or Python can be the
    interpreter.
    """
    first, _, _ = script.partition("\n")
    if not first.startswith("#!"):
        raise UsageError(f"{name}: is not a script; its first line has to begin with #!")
    interpreter = first.removeprefix("#!").split()
    if interpreter and os.path.basename(interpreter[0]) == "env":
        interpreter = interpreter[1:]
    if not interpreter or os.path.basename(interpreter[0]) not in _INTERPRETERS:
        raise UsageError(f"{name}: {first}: cannot run in a container: use sh, bash or python3")
    kept = []
    for line in script.splitlines()[1:]:
        if line.startswith("#SBATCH"):
            words = _in_line(line)
            others = [part for word in words if word.name not in _CONTAINER for part in word.words]
            if others:
                kept.append(f"#SBATCH {shlex.join(others)}")
    call = shlex.join([*run, *interpreter, "-c", script, name, *arguments])
    # a step of the batch script has its node only, and one task
    alone = "export SCRUN_JOB_NUM_NODES=1 SCRUN_NTASKS=1 SCRUN_JOB_NODELIST=$SLURMD_NODENAME"
    return "\n".join(["#!/bin/sh", *kept, alone, f"exec {call}", ""])
