"""scrun shims: programs to put before Slurm's in PATH, which take pyxis' options as well.

`scrun shims pyxis` writes them and prints their directory. Each is a script for sh that becomes
Slurm's own program unless there is something of pyxis' on the command line; else it calls `scrun
shims pyxis srun ARGUMENT…`, which becomes `run IMAGE`.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable

from scrun.cli.parse import Parsed, parse
from scrun.client.program import words_of
from scrun.core.errors import SettingsError, UsageError
from scrun.core.output import say
from scrun.core.paths import SHIMS, replaceable
from scrun.core.place import here, job_of
from scrun.core.users import user_name
from scrun.core.whole_files import write_whole
from scrun.pull.file_names import facts_of, file_name, letters
from scrun.pull.pyxis import (
    HELP,
    Call,
    Word,
    appends,
    batch_options,
    batch_script,
    container_options,
    exported,
    is_unknown,
    known,
    name_of,
    of_the_job,
    options_of,
    requests_of,
    streams_of,
    understand,
)

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


class Redirected:
    """Files instead of standard streams; one named by the job has another name at first."""

    def __init__(self, *, append: bool) -> None:
        # `append`: what is in a file stays there
        self._append = append
        self._how = _WRITE | (os.O_APPEND if append else os.O_TRUNC)
        self._late: list[tuple[str, str]] = []

    @property
    def any_late(self) -> bool:
        return bool(self._late)

    def use(self, number: int, name: str) -> None:
        fd = os.open(name, self._how if number else os.O_RDONLY | os.O_CLOEXEC, 0o666)
        _put(fd, number)

    def use_later(self, number: int, pattern: str) -> None:
        """Use a file for output that gets its name later, when its percent signs are known."""
        directory = os.path.dirname(pattern.partition("%")[0])
        name = os.path.join(directory, f".{os.getpid()}.{number}.{os.urandom(4).hex()}")
        try:
            fd = os.open(name, _WRITE | os.O_EXCL | os.O_APPEND, 0o666)
        except OSError as error:
            raise OSError(error.errno, error.strerror, pattern) from None
        _put(fd, number)
        self._late.append((name, pattern))

    def name(self, name_of: Callable[[str], str]) -> None:
        """Give the files their names; `name_of` returns that of a pattern."""
        for temporary, pattern in self._late:
            name = name_of(pattern)
            if self._append and os.path.exists(name):
                _put_before(name, temporary)
            try:
                os.rename(temporary, name)
            except OSError as error:
                raise OSError(error.errno, error.strerror, name) from None
        self._late.clear()

    def discard(self) -> None:
        for temporary, _ in self._late:
            try:
                os.unlink(temporary)
            except OSError:
                pass
        self._late.clear()


def _put(fd: int, number: int) -> None:
    os.dup2(fd, number)
    os.close(fd)


def _put_before(old: str, new: str) -> None:
    """Put what is in a file before what is in another one, which has a few messages."""
    with open(old, "rb") as source, open(new, "rb+") as target:
        said = target.read()
        target.seek(0)
        shutil.copyfileobj(source, target)
        target.write(said)


_TOOLS = ("srun", "sbatch")
_SCRIPT_OF_A_JOB = "script"
_MARK, _HEAD = b"\n# written by `scrun shims pyxis`:", 64
_SCRIPT = """\
#!/bin/sh
# written by `scrun shims pyxis`: Slurm's own program, or scrun where there are options of pyxis
tool=${0##*/} here=${0%%/*} script= ours=${PYXIS_CONTAINER_IMAGE-}${PYXIS_CONTAINER_NAME-}
for word do
	case $word in
	--container-id*) ;;
	--container-*|--no-container-*|--help|-h) ours=yes ;;
	--wrap*|--version|-V|--usage) script=yes ;;
	*)
		[ $tool = srun ] || ! [ -f "$word" ] || {
			script=yes
			! grep -q '^#SBATCH.* --.*container-' "$word" || ours=yes
		}
		;;
	esac
done
# else it is on standard input
[ $tool = srun ] || [ -n "$script" ] || [ -t 0 ] || ours=yes
[ -z "$ours" ] || exec %s shims pyxis $tool "$@"
old=$IFS IFS=:
for folder in $PATH; do
	IFS=$old
	[ "$folder" != "$here" ] && [ -x "$folder/$tool" ] || continue
	line=
	{ read -r _ && read -r line; } <"$folder/$tool" 2>/dev/null # one like this: for another HOME
	case $line in *'`scrun shims pyxis`'*) ;; *) exec "$folder/$tool" "$@" ;; esac
done
echo "$tool: not found behind $here in PATH" >&2
exit 127
"""


def run(parsed: Parsed) -> int:
    """Print the directory, or be one of the programs in it."""
    kind, *arguments = parsed.operands
    if kind != "pyxis":
        raise UsageError(f"unknown shims {kind!r}: use pyxis: see 'scrun shims --help'")
    if not arguments:
        say(f"{_write(parsed)}\n".encode())
        return 0
    tool, *words = arguments
    if tool == _SCRIPT_OF_A_JOB:
        line = [*words_of(parsed), *_line(understand(words, os.environ), parsed)]
        os.execv(line[0], line)
    if tool not in _TOOLS:
        raise UsageError(f"unknown program {tool!r}: use {' or '.join(_TOOLS)}")
    if any(word in ("--help", "-h") for word in words[:1]):
        done = subprocess.run([_real(tool), *words], check=False)
        say(HELP.encode())
        return done.returncode
    call = understand(words, os.environ, batch=tool == "sbatch", listed=_listed(tool))
    return _batch(call, words, parsed) if tool == "sbatch" else _srun(call, words, parsed)


def _directory() -> str:
    home = os.environ.get("HOME") or os.path.expanduser("~")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return cache + SHIMS


def _write(parsed: Parsed) -> str:
    directory = _directory()
    if reason := replaceable(directory):
        raise SettingsError(f"{reason}; set XDG_CACHE_HOME to a directory of your own")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    content = (_SCRIPT % shlex.join(words_of(parsed))).encode()
    for tool in _TOOLS:
        path = os.path.join(directory, tool)
        try:
            with open(path, "rb") as file:
                if file.read() == content:
                    continue
        except FileNotFoundError:
            pass
        write_whole(path, content, 0o755)
    return directory


def _real(tool: str) -> str:
    """Find Slurm's program behind the one that called this; HOME may be another than ours."""
    for folder in os.environ.get("PATH", "").split(":"):
        path = os.path.join(folder or ".", tool)
        if os.access(path, os.X_OK) and not _is_ours(path):
            return path
    raise UsageError(f"{tool}: not found in PATH: is Slurm installed here?")


def _is_ours(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return _MARK in file.read(_HEAD)
    except OSError:
        return False


def _listed(tool: str) -> dict[str, tuple[str, bool]]:
    """Return the options that a program of Slurm's lists; none if it does not answer."""
    done = subprocess.run(
        [_real(tool), "--help"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return known(done.stdout.decode(errors="replace"))


def _srun(call: Call, words: list[str], parsed: Parsed) -> int:
    if not call.container:
        os.execv(path := _real("srun"), [path, *words])
    salloc: dict[str, tuple[str, bool]] = {}
    if any(is_unknown(word) for word in call.others):
        salloc = _listed("salloc")
        of_job = of_the_job(call.others, salloc)
        if of_job and not job_of(os.environ):
            _in_a_job(call, of_job, salloc, parsed)
    os.environ.update(requests_of(call.others, os.environ, salloc))
    if not (job_of(os.environ) or "SCRUN_JOB_NAME" in os.environ or not call.command):
        os.environ["SCRUN_JOB_NAME"] = os.path.basename(call.command[0])  # as srun does
    line = _line(call, parsed)
    files = _redirected(call, runs=line[0] == "run")
    if here().task and "engine" not in parsed.options:
        line = ["--engine", "slurm", *line]  # srun makes a step there, too
    line = [*words_of(parsed), *line]
    if files.any_late:
        return _run_here(line, files)
    os.execv(line[0], line)
    raise AssertionError("unreachable")


def _line(call: Call, parsed: Parsed) -> list[str]:
    """Return the words for scrun that carry a call out."""
    name, how = name_of(call.container)
    runs = bool(name) and _is_running(name, parsed)
    if name and how == "create" and (runs or _is_there(name, parsed)):
        raise UsageError(
            f"--container-name={name}:create: it exists already: leave :create out, or "
            f"'scrun image remove name:{name}'"
        )
    options, image = _run_options(call, beside=runs)
    if name and how in ("auto", "exec") and (how == "exec" or runs):
        return ["exec", name, *call.command]
    return ["run", *options, image, *call.command]


def _in_a_job(
    call: Call, of_job: list[Word], salloc: dict[str, tuple[str, bool]], parsed: Parsed
) -> None:
    """Become salloc, which gets what scrun has no request for, and calls this again in the job."""
    names = {word.name for word in call.others}
    job = [part for word in call.others if word.name in salloc for part in word.words]
    if "job-name" not in names and call.command:
        job.append(f"--job-name={os.path.basename(call.command[0])}")  # as srun does
    rest = [word for word in call.others if word not in of_job]
    within = [part for word in (*call.given, *rest) for part in word.words]
    again = [*words_of(parsed), "shims", "pyxis", "srun", *within, "--", *call.command]
    path = _real("salloc")
    os.execv(path, [path, "--quiet", *job, "--", *again])


def _redirected(call: Call, *, runs: bool) -> Redirected:
    """Open the files that replace the standard streams; ask for a job only if it `runs`."""
    sizes = [os.environ.get(name) or "1" for name in ("SCRUN_NTASKS", "SCRUN_JOB_NUM_NODES")]
    tasks = max((int(size) for size in sizes if size.isdecimal()), default=1)
    files = Redirected(append=appends(call.others, os.environ))
    known = {"u"}
    if job := job_of(os.environ):
        known |= set("Aabjx")
    name = os.environ.get("SCRUN_JOB_NAME") or os.environ.get("SLURM_JOB_NAME", "")
    facts = facts_of(os.environ, job, name, "", user_name(os.getuid()))
    for number, pattern in sorted(streams_of(call.others, tasks).items()):
        if not pattern:
            os.dup2(1, number)
        elif unknown := letters(pattern) - known:
            if not (number and runs) or (job and unknown & set("Js")):
                letter = min(unknown)
                raise UsageError(f"{pattern}: %{letter} is unknown before the container exists")
            files.use_later(number, pattern)
        else:
            files.use(number, file_name(pattern, facts))
    return files


def _run_here(line: list[str], files: Redirected) -> int:
    from scrun.commands.run_image import run as run_container
    from scrun.model.record import read_record

    def created(directory: str) -> None:
        found = read_record(directory).annotations
        job, nodes = found.get("org.scrun.job_id", ""), found.get("org.scrun.nodes", "")
        name = os.environ.get("SCRUN_JOB_NAME") or os.environ.get("SLURM_JOB_NAME", "")
        facts = facts_of(os.environ, job, name, nodes, user_name(os.getuid()))
        files.name(lambda pattern: file_name(pattern, facts))

    try:
        return run_container(parse(line[1:]), created)
    finally:
        files.discard()


def _run_options(call: Call, *, beside: bool) -> tuple[list[str], str]:
    options, image = options_of(call.container, (os.getuid(), os.getgid()), beside=beside)
    everything, besides = exported(call.others)
    if not everything:
        options.remove("--all-env")
    for variable in besides:
        options += ["--env", variable]
    return options, image


def _is_running(name: str, parsed: Parsed) -> bool:
    from scrun.cli.parse import record_root
    from scrun.core.paths import has_record

    return has_record(f"{record_root(parsed)}/{name}")


def _is_there(name: str, parsed: Parsed) -> bool:
    from scrun.client.images import open_store

    return open_store(parsed).store.names().find(name) is not None


def _batch(call: Call, words: list[str], parsed: Parsed) -> int:
    script = ""
    unreadable: OSError | None = None
    if call.command:
        try:
            with open(call.command[0], encoding="utf-8", errors="surrogateescape") as file:
                script = file.read()
        except OSError as error:
            unreadable = error
    within = batch_options(script)
    wrapped = next((word.value for word in call.others if word.name == "wrap"), None)
    typed = not call.command and wrapped is None
    if typed:
        script = sys.stdin.buffer.read().decode(errors="surrogateescape")
        within = batch_options(script)
        call = Call(call.container, call.others, ["sbatch"], call.given)
    container = {**container_options(within, {}), **call.container}
    if not container and typed:
        same = script.encode(errors="surrogateescape")
        return subprocess.run([_real("sbatch"), *words], input=same, check=False).returncode
    if not container:
        os.execv(path := _real("sbatch"), [path, *words])
    if wrapped is not None:
        script, call = f"#!/bin/sh\n{wrapped}\n", Call(container, call.others, ["wrap"])
    elif unreadable:
        raise unreadable
    call = Call(container, [word for word in call.others if word.name != "wrap"], call.command)
    options, image = options_of(call.container, (os.getuid(), os.getgid()))
    name, *arguments = call.command
    if call.container.get("container-name"):  # what has that name counts when the job begins
        given = [f"--{key}={value}" if value else f"--{key}" for key, value in container.items()]
        run_words = [*words_of(parsed), "shims", "pyxis", _SCRIPT_OF_A_JOB, *given, "--"]
    else:
        run_words = [*words_of(parsed), "run", *options, image]
    content = batch_script(script, name, run_words, arguments)
    others = [part for word in call.others for part in word.words]
    if not any(word.name == "job-name" for word in [*call.others, *within]):
        others += ["--job-name", os.path.basename(name)]
    done = subprocess.run(
        [_real("sbatch"), *others],
        input=content.encode(errors="surrogateescape"),
        check=False,
    )
    return done.returncode
