"""What a shim says of what a container has used."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.supervisor.shim.conftest import MakeShim, without_crun
from tests.harness import users
from tests.harness.load import MIB, TELL, fill, spin
from tests.harness.shim import Shim
from tests.harness.wait import wait_while


def test_processor_time_and_memory(shim: Shim) -> None:
    """Of a process, of one that it has waited for, and of an `exec`."""
    begun = time.monotonic()
    streams, others = shim.streams(), shim.streams()
    script = f"{spin(1)}; sh -c '{spin(1)}'; {fill(150)}; {TELL}; read end"
    shim.run("a", "sh", "-c", script, streams=streams)
    shim.exec("b", "a", "sh", "-c", f"{spin(0.5)}; {fill(100)}; {TELL}", streams=others)
    assert shim.ended("b") == 0
    shim.write(streams["stdin"], b"\n")
    assert shim.ended("a") == 0
    passed = time.monotonic() - begun
    told = [int(shim.finish(one["stdout"])) / 100 for one in (streams, others)]
    usage = shim.usage["a"]
    assert usage["user"] + usage["system"] == pytest.approx(sum(told), rel=0.05)
    assert sum(told) > 2.5
    assert usage["memory"] == pytest.approx(150 * MIB, rel=0.05)
    assert usage["memory_of"] == "process"
    assert 2 < usage["wall"] <= passed
    assert "b" not in shim.usage


def test_one_that_never_ran(shim: Shim) -> None:
    shim.create("a", "true")
    shim.call("signal", id="a", number=9, all=True)
    assert shim.ended("a") == -9
    assert not shim.usage


def test_a_control_group_of_its_own(make_shim: MakeShim, rootfs: Path) -> None:
    """As root, runc makes one. What nobody waits for counts there as well."""
    shim = make_shim({"PATH": without_crun(rootfs)}, place=())
    assert shim.hello["runtime"].endswith("runc")
    alone = f"{fill(60)}; {spin(1)}; touch /dev/over"
    script = f"setsid sh -c '{alone}' & until [ -e /dev/over ]; do sleep 0.5; done"
    pid = shim.create("a", "sh", "-c", script)["pid"]
    [line] = [
        line for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if "cpuacct" in line
    ]
    group = Path("/sys/fs/cgroup/cpuacct" + line.split(":")[2])
    shim.call("start", id="a")
    assert shim.ended("a") == 0
    usage, seen = shim.usage["a"], int((group / "cpuacct.usage").read_text()) / 1e9
    assert usage["user"] + usage["system"] == pytest.approx(seen, rel=0.05)
    assert seen > 1
    assert usage["memory"] == pytest.approx(60 * MIB, rel=0.05)
    assert usage["memory_of"] == "cgroup"
    assert shim.call("delete", id="a") == {}
    assert not group.exists()


@pytest.fixture
def step() -> Iterator[Path]:
    """A control group as Slurm makes it for a step, which counts its memory."""
    top = Path("/sys/fs/cgroup/memory")
    group = (top if top.exists() else top.parent) / f"scrun-test-{os.getpid()}" / "step_0"
    group.mkdir(parents=True)
    try:
        yield group
    finally:
        wait_while("processes", lambda: (group / "cgroup.procs").read_text())
        group.rmdir()
        group.parent.rmdir()


def test_the_control_group_of_the_step(make_shim: MakeShim, step: Path) -> None:
    """As long as it has had no other container, for it counts all that were there together."""
    enter = ("sh", "-c", f'echo $$ >{step}/cgroup.procs && exec "$@"', "sh")
    shim = make_shim(user=users.ordinary(), place=enter)
    held = f"dd if=/dev/zero of=/dev/stdout bs={60 * MIB} count=1 2>/dev/null | sleep 1"
    for target, whose, mib in (("a", "step", 120), ("b", "process", 60)):
        shim.run(target, "sh", "-c", f"({held}) & ({held}) & wait")
        assert shim.ended(target) == 0
        usage = shim.usage[target]
        assert usage["memory_of"] == whose
        # the shim and crun have some, too
        assert mib - 1 < usage["memory"] / MIB < mib + 25
    shim.end()
