"""scrun map: run a container for each line of a file, some at once, and note how each ends.

Each line is a process `scrun run` of its own, so all that `run` does in any place it does here.
Its output goes to files that have the line's number. Signals are blocked, and waited for: the
first that ends programs begins nothing more, and is passed on as SIGTERM, which gives a container
five seconds; the next one ends them at once. The kernel sends SIGTERM when this process is killed.

The file `statuses` in the output directory has a line for each end: number, exit status, digest of
what ran. Its lock says that a map uses the directory.

Errors: UsageError names the line at fault, before anything runs; StateError, if the directory
cannot be used; OSError, if a line cannot be begun or noted: what runs then ends by itself.
"""

import errno
import fcntl
import hashlib
import json
import os
import shlex
import signal
import time
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from scrun.cli.columns import columns
from scrun.cli.grammar import is_image
from scrun.cli.parse import Parsed, parse, record_root
from scrun.cli.pools import AUTO
from scrun.client.program import words_of
from scrun.client.progress import clear, is_live, show, show_bar
from scrun.client.supervisor_name import place
from scrun.commands.pool import nodes_of_pools
from scrun.core.errors import StateError, UsageError, described
from scrun.core.output import say
from scrun.core.paths import LIMIT
from scrun.core.text import printable
from scrun.protocol.wire import TO_STDERR
from scrun.pull.get import Bar
from scrun.pull.programs import find

_REQUESTS = {
    "cpus": "cpus-per-task", "gpus": "gpus", "mem": "mem", "nodes": "nodes", "ntasks": "ntasks",
    "partition": "partition", "time": "time",
}  # fmt: skip
_KEYS: dict[str, tuple[type, str]] = {
    "image": (str, "an image, or --image names one"),
    "args": (list, "a list of strings"),
    "env": (dict, "an object with strings"),
    "requests": (dict, "an object with strings or numbers"),
}
_NO_IMAGE = "{0} does not name an image: write docker://{0}, or ./{0} for a directory"
_LONGEST = 128 * 1024
"""Bytes of a word of a command, with its NUL: MAX_ARG_STRLEN of execve(2)."""

Tasks = dict[int, list[str]]
"""By the number of its line, the words after `run` of each."""


def read_tasks(file: str, image: str | None) -> Tasks:
    """Read the lines of a file (`-`: standard input); empty lines and comments are left out."""
    with open(0 if file == "-" else file, "rb", closefd=file != "-") as source:
        content = source.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise UsageError(f"{file}: has more than {LIMIT >> 20} MiB: divide it")
    if image is not None and not is_image("run", image):
        raise UsageError("map: --image: " + _NO_IMAGE.format(image))
    tasks = {}
    for number, line in enumerate(content.removeprefix(BOM_UTF8).split(b"\n"), 1):
        text = os.fsdecode(line).strip()
        try:
            words = _of_object(text, image) if text[:1] == "{" else _of_words(text, image)
            if words:
                _check(words)
                tasks[number] = words
        except (ValueError, RecursionError, UsageError) as error:
            raise UsageError(f"{file}, line {number}: {error}") from None
    return tasks


def _of_words(text: str, image: str | None) -> list[str]:
    words = shlex.split(text, comments=True)
    return [image, *words] if words and image is not None else words


def _of_object(text: str, image: str | None) -> list[str]:
    found: dict[str, Any] = {
        "image": image,
        "args": [],
        "env": {},
        "requests": {},
        **json.loads(text),
    }
    if unknown := found.keys() - _KEYS.keys():
        raise ValueError(f"{min(unknown)!r} is unknown: use {', '.join(_KEYS)}")
    for name, (kind, what) in _KEYS.items():
        value = found[name]
        each = value.values() if isinstance(value, dict) else value
        if not isinstance(value, kind) or not all(type(one) in (str, int) for one in each):
            raise ValueError(f"{name!r} has to be {what}")
    if not is_image("run", image := found["image"]):
        raise ValueError(_NO_IMAGE.format(image))
    if unknown := found["requests"].keys() - _REQUESTS.keys():
        raise ValueError(f"request {min(unknown)!r} is unknown: use {', '.join(_REQUESTS)}")
    words = [f"--{_REQUESTS[name]}={value}" for name, value in found["requests"].items()]
    words += [f"--env={name}={value}" for name, value in found["env"].items()]
    return [*words, image, *map(str, found["args"])]


def _check(words: list[str]) -> None:
    for word in words:
        if "\0" in word or len(os.fsencode(word)) >= _LONGEST:
            raise ValueError("a word has a NUL, or is too long")
    try:
        found = parse(["run", *words])
    except UsageError as error:
        if error.left is None:
            raise
        return  # an option of a site's script, which `run` knows
    if found.command != "run" or found.count("detach"):
        raise ValueError("only `run` is possible here, without --detach")


def digest(words: list[str]) -> str:
    """Tell lines apart."""
    return hashlib.sha256(b"\0".join(map(os.fsencode, words))).hexdigest()[:16]


_HEAD = ("STATUS", "COUNT", "LINES")
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_NOTED = "statuses"
_NOT_ENDED = 256  # no exit status
_MOST, _MOST_UNASKED = 10000, 128
_MOST_RETRIES = 100
_BETWEEN_LINES, _BETWEEN_LOOKS = 30.0, 0.2
"""Seconds between two messages, and between two states of the live line."""
_A_DAY = 86400.0


def run(parsed: Parsed) -> int:
    """Run all lines; return 0 if all have ended with 0, 1 if not, 128 + *n* after a signal."""
    file, image, pool = parsed.operands[0], parsed.text("image"), parsed.text("pool")
    processors = _processors_of(pool, record_root(parsed)) if pool else 0
    usual = min(max(processors, len(os.sched_getaffinity(0))), _MOST_UNASKED)
    at_once = _number(parsed, "jobs", usual, 1, _MOST)
    retries = _number(parsed, "retry", 0, 0, _MOST_RETRIES)
    tasks = read_tasks(file, image)
    stem = "stdin" if file == "-" else os.path.splitext(os.path.basename(file))[0]
    directory = parsed.text("output") or f"map-{stem}.out"
    noted = _open(directory, resume=bool(parsed.count("resume")))
    done, changed = read_noted(noted, tasks)
    if changed:
        _tell(f"{file} has changed: {changed} lines that have run are others now, or gone")
    words = [*words_of(parsed), "run"]
    words[:0] = [find("setpriv"), "--pdeathsig", "TERM", "--"]
    return _Map(file, directory, noted, words, pool).run(tasks, done, at_once, retries)


def _number(parsed: Parsed, name: str, usual: int, least: int, most: int) -> int:
    text = parsed.text(name)
    if text is None:
        return usual
    if not (text.isascii() and text.isdecimal() and least <= int(text[:9]) <= most):
        raise UsageError(f"map: --{name} {text}: a number from {least} to {most} expected")
    return int(text)


def _processors_of(pool: str, root: str) -> int:
    if place().name:
        return 0  # containers use this job
    nodes = [node for node in nodes_of_pools(root) if node["pool"] == pool]
    if not nodes and pool != AUTO:
        raise StateError(f"there is no pool {pool}: start it by 'scrun pool start {pool}'")
    rooms: list[Any] = [node["room"] for node in nodes]
    return sum(int(room["processors"] or 0) for room in rooms if room)


# The output directory


def _open(directory: str, *, resume: bool) -> int:
    """Make the output directory, or take one of `map`'s; return the locked file of statuses."""
    path = os.path.join(directory, _NOTED)
    os.makedirs(directory, exist_ok=True)
    why = ""
    if (owner := os.stat(directory).st_uid) != os.geteuid():
        why = f"belongs to uid {owner}"
    elif os.listdir(directory) and not os.path.lexists(path):
        why = "has files that are not of a map"
    if why:
        raise StateError(f"{directory}: {why}: use another --output")
    noted = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(noted, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        why = "another map uses it: wait for its end"
    else:
        if os.fstat(noted).st_size and not resume:
            why = "has the output of a map: add --resume to go on with that"
    if why:
        raise StateError(f"{directory}: {why}, or use another --output")
    return noted


def read_noted(noted: int, tasks: Tasks) -> tuple[set[int], int]:
    """Return which lines have ended with 0, and how many that ended are other lines now."""
    content = os.pread(noted, os.fstat(noted).st_size, 0)
    if content and not content.endswith(b"\n"):
        os.write(noted, b"\n")
    ended: dict[int, tuple[str, str]] = {}
    for line in content.decode(errors="replace").split("\n")[:-1]:
        number, status, what = (*line.split(" "), "", "")[:3]
        if number.isdecimal() and what:
            ended[int(number)] = (status, what)
    same = {each for each in ended if each in tasks and digest(tasks[each]) == ended[each][1]}
    return {each for each in same if ended[each][0] == "0"}, len(ended) - len(same)


# Containers


class _Map:
    def __init__(
        self, file: str, directory: str, noted: int, words: list[str], pool: str | None
    ) -> None:
        """`words` are those of a command line, up to `run`."""
        self._directory, self._noted, self._words = directory, noted, words
        self._environment = {**os.environ, **({"SCRUN_POOL": pool} if pool else {})}
        # what nohup, or a shell, wants ignored would still arrive while it is blocked
        handled = {each for each in _ENDING if signal.getsignal(each) != signal.SIG_IGN}
        self._signals = {signal.SIGCHLD, *handled}
        self._running: dict[int, int] = {}  # lines by pid
        self._statuses: dict[int, int] = {}
        self._failed = self._stopped_by = 0
        self._failure: OSError | None = None
        self._progress = Progress(file)

    def run(self, tasks: Tasks, done: set[int], at_once: int, retries: int) -> int:
        self._statuses = dict.fromkeys(sorted(done), 0)
        waiting = deque(number for number in tasks if number not in done)
        tries = dict.fromkeys(waiting, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the statuses
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        try:
            while True:
                more = waiting and len(self._running) < at_once and not self._ends
                if more:
                    number = waiting.popleft()
                    self._try(self._begin, number, tasks[number])
                elif not self._running:
                    break
                state = (len(self._statuses), self._failed, len(self._running))
                seconds = self._progress.show(len(tasks), *state)
                # many take long to begin, and a signal does not wait for that
                for number, status in self._wait(0 if more else seconds):
                    tries[number] += 1
                    if status and tries[number] <= retries and not self._ends:
                        waiting.append(number)
                        continue
                    self._statuses[number] = status
                    self._failed += status != 0
                    self._try(self._note, number, tasks[number])
        finally:
            clear()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        say(columns(_HEAD, rows_of(tasks, self._statuses)).encode())
        if self._failure:
            raise self._failure
        return 128 + self._stopped_by if self._stopped_by else int(self._failed > 0)

    @property
    def _ends(self) -> bool:
        return bool(self._stopped_by or self._failure)

    def _try(self, do: Callable[[int, list[str]], None], number: int, words: list[str]) -> None:
        try:
            do(number, words)
        except OSError as error:
            if not self._failure and self._running:
                _tell(f"{described(error)}: no more lines are begun")
            self._failure = self._failure or error

    def _begin(self, number: int, words: list[str]) -> None:
        files: list[int] = []
        try:
            for kind in ("out", "err"):
                path = os.path.join(self._directory, f"{number:03}.{kind}")
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
                files.append(os.open(path, flags, 0o666))
            pid = os.posix_spawn(
                self._words[0],
                [*self._words, *words],
                self._environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    *((os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate(files, 1)),
                ],
                setpgroup=0,  # what a terminal sends is for this process
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # which Python ignores
            )
        finally:
            for fd in files:
                os.close(fd)
        self._running[pid] = number

    def _wait(self, seconds: float) -> list[tuple[int, int]]:
        """Wait for a signal; return the lines that have ended, and their statuses."""
        found = signal.sigtimedwait(self._signals, seconds)
        if found and found.si_signo in _ENDING:
            if not self._stopped_by:
                _tell("no more lines are begun, and what runs is ended; once more ends it at once")
            self._stopped_by = self._stopped_by or found.si_signo
            for pid in self._running:
                os.kill(pid, signal.SIGTERM)
        ended = []
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid in self._running:  # else a child that this process was given
                code = os.waitstatus_to_exitcode(status)
                ended.append((self._running.pop(pid), code if code >= 0 else 128 - code))
        return ended

    def _note(self, number: int, words: list[str]) -> None:
        line = f"{number} {self._statuses[number]} {digest(words)}\n".encode()
        try:
            if os.write(self._noted, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            path = os.path.join(self._directory, _NOTED)
            raise OSError(error.errno, error.strerror, path) from None


class Progress:
    """Shows how far it is: a bar at a terminal, else a line now and then."""

    def __init__(self, file: str) -> None:
        self._name = printable(file)
        self._bar = Bar(self._name, show_bar) if is_live() else None
        self._between = _BETWEEN_LOOKS if self._bar else _BETWEEN_LINES
        self._next = time.monotonic() + (0 if self._bar else _BETWEEN_LINES)
        self._shown = ""

    def show(self, lines: int, ended: int, failed: int, running: int) -> float:
        """Show it if it is time; return in how many seconds it is."""
        text = f"{ended} of {lines} lines, {failed} failed, {running} run"
        if text == self._shown:
            return _A_DAY
        if (left := self._next - time.monotonic()) > 0:
            return left
        self._shown, self._next = text, time.monotonic() + self._between
        if self._bar:
            self._bar.say(ended / lines, text)
        else:
            _tell(f"{self._name}: {text}")
        return _A_DAY


def _tell(text: str) -> None:
    line = f"scrun: {printable(text)}\n"
    show(TO_STDERR + line.encode(errors="backslashreplace"), Parsed())


def rows_of(tasks: Tasks, statuses: Mapping[int, int]) -> list[tuple[str, ...]]:
    """Return a row for each status, that of lines that have not ended last."""
    found: dict[int, list[int]] = {}
    for number in tasks:
        found.setdefault(statuses.get(number, _NOT_ENDED), []).append(number)
    return [
        ("" if status == _NOT_ENDED else str(status), str(len(numbers)), _ranges(numbers))
        for status, numbers in sorted(found.items())
    ]


def _ranges(numbers: list[int]) -> str:
    """Write ascending numbers as `1-3,5`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ",".join("-".join(map(str, each)) for each in found)
