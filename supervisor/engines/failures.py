"""What an OCI runtime says when it runs nothing, and the endings that follow; for both engines."""

import json
import re

from scrun.core.errors import EngineError, shortened
from scrun.model.states import Ending, not_run, taken
from scrun.supervisor.contracts.engine import Job, Step

# a terminal's last output may end without a newline (see `read_log`)
_ENTRY = re.compile(r'^\{|\{(?=\s*"(?:level|msg|time)":)', re.MULTILINE)
_DECODER = json.JSONDecoder()
# crun: chdir `X`: No such file or directory; later ones: chdir to `X`: …
# runc: chdir to cwd ("X") set in config.json failed: no such file or directory
_DIRECTORY = re.compile(r"\bchdir (?:to )?(?:`|cwd \()")

_NO_NAMESPACE = re.compile(r"\bclone: (?:Operation not permitted|No space left on device)")
_SYSCTLS = "`sysctl kernel.unprivileged_userns_clone=1` or a higher `user.max_user_namespaces`"


def read_log(content: bytes) -> tuple[str, bytes]:
    """Parse what a runtime wrote with `--log-format json`.

    The log is a sequence of JSON values, each on one line (runc, crun) or on several (crun 1.28).
    Returns the message of the last error, or ""; and everything that is not an entry: crun 1.8
    writes the last output of a terminal into the log.
    """
    text = content.decode(errors="surrogateescape")
    error, others, position = "", [], 0
    while (found := _ENTRY.search(text, position)) is not None:
        start = found.start()
        others.append(text[position:start])
        try:
            entry, position = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            entry, position = None, start + 1
        if not isinstance(entry, dict) or not {"msg", "level"} <= entry.keys():
            others.append(text[start:position])
            continue
        position += text.startswith("\n", position)
        if entry["level"] == "error":
            error = str(entry["msg"])
    others.append(text[position:])
    return error, "".join(others).encode(errors="surrogateescape")


def program_failure(text: str) -> int | None:
    """Recognize a runtime's message that the program cannot be run, or not where it should.

    Returns the exit status that shells use (POSIX 2.8.2): 127 not found, 126 not executable; None
    for any other message.
    """
    # crun: executable file `X` not found in $PATH: No such file or directory
    # runc: exec: "X": executable file not found in $PATH; exec: "X": stat X: no such file or …
    about_program = "executable file" in text or "exec: " in text or "open executable" in text
    about_directory = _DIRECTORY.search(text) is not None
    if not (about_program or about_directory):
        return None
    if "o such file or directory" in text or (about_program and "not found" in text):
        return 127
    if "ermission denied" in text or (about_directory and "ot a directory" in text):
        return 126
    return None


def with_remedy(words: str) -> str:
    """Add to a runtime's words, or the shim's, what to do where the kernel refuses something.

    clone(2): EPERM where a site forbids users namespaces, ENOSPC where its limit is reached, as 0
    always is.
    """
    if "oo many open files" in words:
        return f"{words} (`ulimit -n` of who asked counts there, too: raise it)"
    if "/dev/ptmx: Permission denied" in words:
        return f"{words} (users can open no terminals there: `chmod 666 /dev/ptmx /dev/pts/ptmx`)"
    if not _NO_NAMESPACE.search(words):
        return words
    return f"{words} (users can make no namespaces there: let them, by {_SYSCTLS})"


class NotMade(EngineError):
    """The runtime did not create the container.

    Attributes:
        shown: Whether the container's standard error has it.
    """

    def __init__(self, words: str, *, shown: bool) -> None:
        super().__init__(f"the container could not be created: {with_remedy(words)}")
        self.words = words
        self.shown = shown


async def create_and_run(job: Job, step: Step) -> Ending:
    """Create a container, start it, or raise EngineError, and wait for its end."""
    try:
        async with job.created(step) as process:
            await process.start()
            step.running()
            return await process.ended()
    except NotMade as error:
        return not_started(error.words, shown=error.shown)


def not_started(reason: str, *, what: str = "container", shown: bool = False) -> Ending:
    """Return the ending of what the runtime could not start; its error may have been `shown`."""
    text = shortened(f"the {what} could not be started: {with_remedy(reason)}")
    if (status := program_failure(reason)) is not None:
        return not_run(status, text, shown=shown)
    return taken("scrun-failure", text, shown=shown)
