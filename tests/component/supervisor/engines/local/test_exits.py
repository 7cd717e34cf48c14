"""The exit status of a process that somebody else reaps, as an ordinary user sees it."""

import sys

import pytest

from tests import CHECKOUT
from tests.harness.program import run_program

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]

SCRIPT = """
import ctypes, os, signal, sys, threading, time
import trio
from scrun.supervisor.children import persistent
from scrun.supervisor.engines.local.runtime_job import ForeignChild

read = persistent._read

def reaped_meanwhile(*process):
    seen = read(*process)
    if not waited:
        waited.append(os.waitpid(child, 0))
    return seen

waited = []
child = os.fork()
if not child:
    ctypes.CDLL(None).prctl(4, int(sys.argv[1]), 0, 0, 0)  # PR_SET_DUMPABLE
    os.kill(os.getpid(), signal.SIGSTOP)
os.waitpid(child, os.WUNTRACED)
later = sys.argv[2] == "later"
if not later:
    persistent._read = reaped_meanwhile
process = ForeignChild(child)
process.kill()
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
if later:
    threading.Timer(0.2, os.waitpid, (child, 0)).start()
print(trio.run(process.ended).status)
"""


@pytest.mark.parametrize("reaped", ["later", "meanwhile"])
@pytest.mark.parametrize("dumpable", [1, 0])
def test_one_that_was_killed_before_its_program(dumpable: int, reaped: str) -> None:
    """An OCI runtime makes itself undumpable until then: its zombie shows nothing to others."""
    done = run_program(
        [*NOBODY, sys.executable, "-c", SCRIPT, str(dumpable), reaped], cwd=CHECKOUT
    )
    assert (done.stdout, done.stderr) == ("137\n", "")
