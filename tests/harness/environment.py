"""The virtual environment that the programs in tools run in. Standard library alone."""

import os
import subprocess
import sys

from tests import CHECKOUT

_SETUP = CHECKOUT / "tools" / "setup"
_CLUSTER = CHECKOUT / "tools" / "slurm-cluster"


def enter_environment(level: str = "") -> None:
    """Make a program go on in the virtual environment of its checkout, made ready for it.

    Without an option of tools/setup, root gets what all tests need, others what they can have.
    """
    level = level or ("--unit" if os.geteuid() else "--test")
    done = subprocess.run(
        [_SETUP, level], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False
    )
    if done.returncode:  # it has said why
        sys.exit(done.returncode)
    place = done.stdout.decode().strip()
    if os.path.realpath(sys.prefix) != os.path.realpath(place):
        python = f"{place}/bin/python3"
        os.execv(python, [python, *sys.argv])


def enter_cluster() -> None:
    """Make a program begin again with a cluster of its own, unless it has one (SLURM_CONF)."""
    if "SLURM_CONF" not in os.environ:
        os.execv(_CLUSTER, [str(_CLUSTER), "with", os.path.abspath(sys.argv[0]), *sys.argv[1:]])
