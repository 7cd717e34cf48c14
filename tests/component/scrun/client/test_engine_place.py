"""Slurm's variables, from the engine that waits for the conmon that calls us."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.harness.users import PATH

# what podman does: conmon has an end of a socket, or of a pipe, and none of the variables
ENGINE = """
import os, socket, subprocess, sys
conmon, program, kind = sys.argv[1:]
if kind == "socket":
    ours, theirs = (one.detach() for one in socket.socketpair(type=socket.SOCK_SEQPACKET))
else:
    ours, theirs = os.pipe()
env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ["PYTHONPATH"]}
env["_OCI_SYNCPIPE"] = "99" if kind == "nothing" else str(theirs)
words = [conmon, "-c", '"$0" -c "$1"; exit', sys.executable, program]
subprocess.run(words, env=env, pass_fds=[theirs], check=True)
"""
ASK = """
from scrun.client.supervisor_name import variables_of_engine
print(sorted(variables_of_engine().items()))
"""


@pytest.mark.parametrize("kind", ["socket", "pipe", "nothing"])
@pytest.mark.parametrize("job", ["7", ""])
def test_variables(tmp_path: Path, kind: str, job: str) -> None:
    conmon = shutil.copy("/bin/sh", tmp_path / "conmon")
    env = {"PATH": PATH, "PYTHONPATH": str(CHECKOUT), "HOME": "/", "SLURM_PROCID": "3"}
    env |= {"SLURM_JOB_ID": job, "PMI_RANK": "3", "BIG": "x" * 100_000} if job else {}
    argv = [sys.executable, "-c", ENGINE, str(conmon), ASK, kind]
    said = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout
    found = [(b"PMI_RANK", b"3"), (b"SLURM_JOB_ID", b"7"), (b"SLURM_PROCID", b"3")]
    assert said == f"{found if job and kind != 'nothing' else []}\n"
