"""Another local user, who tries what a program can try."""

import sys
import textwrap

from tests.harness import users
from tests.harness.program import run_program

_TRY = """
import ctypes, errno, fcntl, os, resource, signal, socket, struct, sys
args = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def attempt():
{body}
try:
    print(attempt())
except OSError as error:
    print(errno.errorcode.get(error.errno, error.errno))
"""


class Stranger:
    """Somebody with an account here, and no business with the containers."""

    def __init__(self) -> None:
        self.user = users.other()

    def tries(self, body: str, *arguments: object) -> str:
        """Run the body of a function in Python; return what it does, or the name of its error."""
        return self.run(
            sys.executable, "-I", "-c", _TRY.format(body=textwrap.indent(body, "    ")),
            *map(str, arguments),
        )  # fmt: skip

    def run(self, *command: str) -> str:
        """Run a command; return what it prints."""
        done = run_program(
            [*self.user.prefix, *command],
            env={"PATH": users.PATH, "LANG": "C.UTF-8"},
            cwd="/",
            errors="surrogateescape",
        )
        assert done.stderr == "", done.stderr
        return done.stdout.rstrip("\n")
