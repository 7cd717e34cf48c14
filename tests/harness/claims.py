"""Claims on jobs of pools, as a dead supervisor has left them."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

_MAKE = """
import sys
from scrun.supervisor.containers.claims import Claim
print(Claim(*sys.argv[1:]).name)
"""


def claim_of_the_dead(root: Path, pool: str) -> tuple[str, int]:
    """Make one; return its name, and a descriptor that holds it as a keeper's does."""
    command = [sys.executable, "-c", _MAKE, str(root), pool]
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    name = made.stdout.strip()
    kept = os.open(root / name, os.O_RDWR)
    fcntl.flock(kept, fcntl.LOCK_EX)
    return name, kept
