"""The parent of a container's first process outlives its own, and writes the status down."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scrun.supervisor.reapers import runtime
from tests.harness.wait import wait_until

_DIES = '(exec setpriv --pdeathsig TERM -- "$@") & read line'


def created(directory: Path, script: str) -> list[str]:
    """What stands for the runtime's `create`: it leaves a process behind, which outlives it."""
    waits = "while kill -0 $$ 2>/dev/null; do sleep 0.01; done"
    return ["/bin/sh", "-c", f"({waits}; {script}) & echo $! >{directory}/pid"]


@pytest.mark.parametrize(
    ("script", "status"), [("exit 7", b"7"), ("kill -9 $(sh -c 'echo $PPID')", b"137")]
)
def test_the_status_is_written_down(tmp_path: Path, script: str, status: bytes) -> None:
    told = os.memfd_create("status")
    line, created_line = os.pipe()
    pid_file = str(tmp_path / "pid")
    words = [str(created_line), str(told), pid_file, "", *created(tmp_path, script)]
    command = [sys.executable, "-I", "-S", runtime.__file__, *words]
    fds = (created_line, told)
    done = subprocess.run(command, pass_fds=fds, timeout=30, check=False, cwd=tmp_path)
    os.close(created_line)
    with open(line, "rb") as pipe, open(told, "rb") as written:
        assert pipe.read() == b"0\n"
        written.seek(0)
        assert int(os.pread(told, 16, 0)) == int(status)  # as an older supervisor reads it
        told_status, user, system, kib = written.read().split()
    assert told_status == status
    assert 0 < float(user) + float(system) < 1
    assert 100 < int(kib) < 100_000
    assert done.returncode == 0


def test_it_outlives_its_parent_when_the_container_is_created(tmp_path: Path) -> None:
    """It is told to die with that before, for an unfinished container has to go."""
    told = os.memfd_create("status")
    line, created_line = os.pipe()
    gate = tmp_path / "gate"
    script = f"until [ -e {gate} ]; do sleep 0.01; done; exit 9"
    pid_file = str(tmp_path / "pid")
    words = [str(created_line), str(told), pid_file, "", *created(tmp_path, script)]
    command = [sys.executable, "-I", "-S", runtime.__file__, *words]
    with subprocess.Popen(
        ["/bin/sh", "-c", _DIES, "sh", *command],
        stdin=subprocess.PIPE,
        pass_fds=(created_line, told),
        cwd=tmp_path,
    ) as parent:
        os.close(created_line)
        with open(line, "rb", buffering=0) as pipe:
            assert pipe.readline() == b"0\n"
        parent.send_signal(signal.SIGKILL)
    gate.touch()
    with open(told, "rb") as written:
        wait_until("its status", lambda: os.pread(written.fileno(), 2, 0) == b"9 ", 20)
