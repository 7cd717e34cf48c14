"""The virtual environment that the programs in tools run in. Standard library alone."""

import os
import subprocess
import sys

from tests import CHECKOUT

_SETUP = CHECKOUT / "tools" / "setup"


def enter_environment() -> None:
    """Make a program go on in the virtual environment of its checkout, made ready for tests."""
    done = subprocess.run(
        [_SETUP, "--test"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True
    )
    place = done.stdout.decode().strip()
    if os.path.realpath(sys.prefix) != os.path.realpath(place):
        python = f"{place}/bin/python3"
        os.execv(python, [python, *sys.argv])
