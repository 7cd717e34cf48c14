"""What control groups of version 2 say, whose controllers a machine with version 1 lacks."""

from pathlib import Path

from scrun.supervisor.shim.usage import limit_of, of_cgroups, of_step, together


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


def test_a_limit_that_nobody_asked_for(tmp_path: Path) -> None:
    """DefMemPerNode: 24.11 limits the job's group and the step's `user`, not that of the task."""
    task = tmp_path / "job_1" / "step_0" / "user" / "task_0"
    task.mkdir(parents=True)
    here = {"": str(task)}
    assert limit_of(here) == {}
    texts = {task: "max", task.parent: "max", task.parents[1]: "max", task.parents[2]: "314572800"}
    for group, text in texts.items():
        (group / "memory.max").write_text(f"{text}\n")
    assert limit_of(here) == {"limit": 300 << 20}
    (task.parent / "memory.max").write_text("104857600\n")
    assert limit_of(here) == {"limit": 100 << 20}
    assert limit_of({"": str(tmp_path / "job_1")}) == {}  # of a service, not of a step


def test_a_limit_of_version_1(tmp_path: Path) -> None:
    group = tmp_path / "step_0"
    group.mkdir()
    here = {"memory": str(group), "": str(tmp_path)}
    assert limit_of(here) == {}
    (group / "memory.stat").write_text("cache 1\nhierarchical_memory_limit 104857600\nrss 2\n")
    assert limit_of(here) == {"limit": 100 << 20}
    (group / "memory.stat").write_text("hierarchical_memory_limit 9223372036854771712\n")
    assert limit_of(here) == {}
