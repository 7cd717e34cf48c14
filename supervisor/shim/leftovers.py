"""Removes what dead shims have left."""

import _signal as signal  # without enum, which takes longer than hello
import os

from .children import TOLD
from .files import remove_left
from .runtime import NAMES, Runtime, installed


def remove_in_a_child(paths: "list[str]", key: bytes) -> None:
    """Remove what they have left, in a child that nobody waits for."""
    programs = {os.path.basename(path): path for path in installed(os.environ.get("PATH", ""))}
    runtimes = [
        [name, *Runtime(programs[name], "").options()[:-1]] for name in NAMES if name in programs
    ]
    if os.fork():
        return
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, *TOLD):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        for fd in os.listdir("/proc/self/fd"):
            if int(fd) > 2:
                _close(int(fd))
        remove_left(paths, runtimes, key)
    finally:
        os._exit(0)


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:  # it was the one that listed them
        pass
