"""What control groups of version 2 say, whose controllers a machine with version 1 lacks."""

from pathlib import Path

from scrun.supervisor.shim.usage import of_cgroups, of_step, together


def test_version_2(tmp_path: Path) -> None:
    group = tmp_path / "step_0" / "task_0"
    group.mkdir(parents=True)
    here = {"": str(group), "name=systemd": "/nowhere"}
    assert of_cgroups(here) == {}
    (group / "cpu.stat").write_text("usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\n")
    assert of_cgroups(here) == {"user": 2.0, "system": 1.0}
    assert of_step(here) == {}
    (group / "memory.peak").write_text("1048576\n")
    memory = {"memory": 1 << 20, "memory_of": "cgroup"}
    assert of_cgroups(here) == {"user": 2.0, "system": 1.0, **memory}
    assert of_step(here) == {**memory, "memory_of": "step"}
    (tmp_path / "memory.peak").write_text("1048576\n")
    assert of_step({"": str(tmp_path)}) == {}  # whoever else is in it
    (group / "cpu.stat").write_text("usage_usec 3000000\n")
    assert of_cgroups(here) == memory


def test_nothing() -> None:
    assert together([]) == of_cgroups({}) == of_step({}) == {}
