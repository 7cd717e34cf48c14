"""What the shim sees of its children before it reaps them, and of what others name."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scrun.supervisor.shim.processes import fit_limits, handles, is_ending
from scrun.supervisor.shim.space import Space
from scrun.supervisor.staging.survey import read_mounts
from tests.harness.wait import wait_until


def test_a_child_that_is_ending() -> None:
    """Its files go when it is told to end, and not when it is reaped."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    try:
        assert not is_ending(pid)
        os.kill(pid, signal.SIGSTOP)
        wait_until("it is stopped", lambda: ") T " in Path(f"/proc/{pid}/stat").read_text())
        assert not is_ending(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_until("it has ended", lambda: is_ending(pid))
    os.waitpid(pid, 0)
    assert is_ending(pid)


@pytest.mark.covers("security call a mount point or a process what breaks a line")
@pytest.mark.parametrize("name", [b"a\rb", b"SigCgt:\t0", b"a\nb", b"\r", b"x\x85y"])
def test_a_process_whose_name_looks_like_lines(name: bytes) -> None:
    """A container's process calls itself what it wants."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            Path("/proc/self/comm").write_bytes(name)
            os.write(writable, b".")
            time.sleep(60)
        finally:
            os._exit(0)
    try:
        os.read(readable, 1)
        assert handles(pid, signal.SIGUSR1)
        assert not handles(pid, signal.SIGUSR2)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(readable)
        os.close(writable)


@pytest.mark.covers("security call a mount point or a process what breaks a line")
def test_a_mount_point_whose_name_looks_like_lines(tmp_path: Path) -> None:
    """Any user may mount by FUSE, at a directory of any name, and everybody sees that."""
    line = b"50 22 0:40 / %b rw,nosuid - fuse.x x rw,user_id=1\n"
    (tmp_path / "mountinfo").write_bytes(
        line % b"/tmp/a\rb" + line % b"/tmp/\xff\x0b" + line % b"/c"
    )
    space = Space.__new__(Space)
    space.mounts = os.open(tmp_path / "mountinfo", os.O_RDONLY)
    try:
        assert space.points() == {"/tmp/a\rb", "/tmp/\udcff\x0b", "/c"}
    finally:
        os.close(space.mounts)
    mounts = read_mounts(str(tmp_path / "mountinfo"))
    assert [mount.point for mount in mounts] == ["/tmp/a\rb", "/tmp/\udcff\x0b", "/c"]


@pytest.mark.by_root
def test_the_kernel_shows_it_so(tmp_path: Path) -> None:
    (tmp_path / "a\rb").mkdir()
    script = 'mount -t tmpfs none "$1" && cat /proc/self/mountinfo'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path / "a\rb")]
    shown = subprocess.run(command, check=True, capture_output=True).stdout
    (tmp_path / "mountinfo").write_bytes(shown)
    points = [mount.point for mount in read_mounts(str(tmp_path / "mountinfo"))]
    assert str(tmp_path / "a\rb") in points


def test_limits_are_lowered_to_those_of_the_node() -> None:
    """As an ordinary user: setrlimit(2) would refuse the runtime more, and end the container."""
    unlimited = (1 << 64) - 1
    rlimits: list[dict[str, object]] = [
        {"type": "RLIMIT_MEMLOCK", "soft": unlimited, "hard": unlimited},
        {"type": "RLIMIT_NOFILE", "soft": 20, "hard": 30},
        {"type": "RLIMIT_LATER", "soft": 1, "hard": 1},
    ]
    process = {"rlimits": rlimits, "oomScoreAdj": 3}
    before = ["prlimit", "--memlock=4096:8192", "setpriv", "--reuid=54321", "--clear-groups"]
    script = (
        "import json, sys; from scrun.supervisor.shim.processes import fit_limits; "
        f"process = json.loads({json.dumps(process)!r}); fit_limits(process); "
        "print(json.dumps(process))"
    )
    own = int(Path("/proc/self/oom_score_adj").read_text())
    done = subprocess.run(
        [*(before if os.geteuid() == 0 else before[:2]), sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    fitted = json.loads(done.stdout)
    assert fitted["rlimits"][0] == {"type": "RLIMIT_MEMLOCK", "soft": 8192, "hard": 8192}
    assert fitted["rlimits"][1:] == rlimits[1:]
    assert fitted["oomScoreAdj"] == max(3, own)
    fit_limits({})  # nothing was asked for
