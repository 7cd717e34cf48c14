"""scrun cp: copy files out of a running container, or into it.

The image needs no program for it: scrun's own packs or unpacks a tar archive there, and another
one of the same does so here. `-` instead of a path here is the archive itself.

Wire: `exec`, with a command line of `cp` in which the path here is `-`: the archive is standard
input or output.

Errors: the program that fails says why, and the exit status is 1.
"""

import _signal as signal
import contextlib
import os
import subprocess

from scrun.anchor.foreground import stay
from scrun.cli.copied import ARCHIVE, CUT_OFF, INTO, OUT, SAID, Copied, copier, read_copied
from scrun.cli.failure import report_failure
from scrun.cli.grammar import GLOBAL
from scrun.cli.parse import Parsed, as_words
from scrun.client.anchored import Anchored
from scrun.client.find import resolve
from scrun.commands.exec import ask
from scrun.core.errors import SupervisorLost, UsageError
from scrun.core.output import discard
from scrun.protocol.anchor import LOST


def run(parsed: Parsed) -> int:
    copied = read_copied(parsed.operands)
    ours = 1 if copied.is_out else 0
    if copied.local == ARCHIVE and os.isatty(ours):
        raise UsageError("cp: an archive is not for a terminal: redirect it, or name a path")
    parsed.id = copied.container
    container, directory = resolve(parsed)
    argv = [*as_words(GLOBAL, parsed), "cp", "--", *copied.operands(container)]
    local = None if copied.local == ARCHIVE else _begin(copied)
    status = 128 + signal.SIGTERM
    try:
        with Anchored(parsed) as anchored:
            anchored.begin(leave=False)
            failed, answer = ask(anchored, directory, argv)
            discard(ours)  # else this side of the archive never ends
            if failed:
                return report_failure(answer, failed, parsed)
            status = LOST
            with contextlib.suppress(SupervisorLost):
                status = stay(anchored.socket)
    finally:
        discard(ours)
        here = 0 if local is None else local.wait()  # it ends with the archive
    return _conclude(status, here, parsed)


def _begin(copied: Copied) -> "subprocess.Popen[bytes]":
    """Start the program for this side; the archive is our own standard input or output now."""
    here, there = os.pipe()
    try:
        local = subprocess.Popen(
            copier(INTO if copied.is_out else OUT, copied.local),
            stdin=here if copied.is_out else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if copied.is_out else there,
        )
        os.dup2(there if copied.is_out else here, 1 if copied.is_out else 0)
    finally:
        os.close(here)
        os.close(there)
    return local


def _conclude(status: int, here: int, parsed: Parsed) -> int:
    if SAID in (here, status):
        return SAID
    if status == here == 0:
        return 0
    if status in (0, CUT_OFF):
        status = SAID
    return report_failure(b"cp: the copy was cut off: it is not complete", status, parsed)
