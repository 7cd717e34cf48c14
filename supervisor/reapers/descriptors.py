"""Puts descriptors where a runtime's `--preserve-fds` wants them, and becomes the runtime.

Its arguments are their numbers, with commas, and the runtime's command. The first one becomes 3,
and so on. A file of the command that has one of these numbers, `/proc/self/fd/9`, gets another.
"""

import fcntl
import os
import signal
import sys

_FIRST = 3
_OWN = "/proc/self/fd/"


def main(numbers: "list[int]", command: "list[str]") -> None:
    """Become the runtime; raises OSError if no descriptor is left, or there is no such program."""
    beyond = _FIRST + len(numbers)
    command = [_moved(word, beyond) for word in command]
    copies = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, beyond) for number in numbers]
    for number in numbers:
        os.close(number)
    for position, copy in enumerate(copies, _FIRST):
        os.dup2(copy, position)
    for own in (signal.SIGPIPE, signal.SIGXFSZ):  # what Python sets for itself
        signal.signal(own, signal.SIG_DFL)
    os.execv(command[0], command)


def _moved(word: str, beyond: int) -> str:
    number = word[len(_OWN) :] if word.startswith(_OWN) else ""
    if not number.isdigit() or not _FIRST <= int(number) < beyond:
        return word
    return f"{_OWN}{fcntl.fcntl(int(number), fcntl.F_DUPFD, beyond)}"


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1].split(",")], sys.argv[2:])
