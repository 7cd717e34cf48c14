"""What get_item, getenv and the rest answer, by context and callback. spank-lua(8) "get_item"."""

import re
from pathlib import Path

import pytest

from scrun.model.states import exited, killed
from scrun.settings.spank.callbacks import (
    CALLBACKS,
    ITEMS,
    LOCAL_ITEMS,
    REMOTE_ITEMS,
    TASK_ITEMS,
)
from scrun.supervisor.scripts.spank.items import ContextName, JobFacts, state
from scrun.supervisor.scripts.spank.script_stack import environment_of, facts_of_job, wait_status

FACTS = JobFacts("24.11.5", 1000, 100, (4, 5), 7, 2, 3, 4, ("a", "b"), 99, 768)
TASK = "slurm_spank_task_exit"


def refusal(context: ContextName, callback: str, item: str, facts: JobFacts = FACTS) -> str | None:
    told = state(context, f"slurm_spank_{callback}", facts)
    assert (item in told.items) is not (item in told.refused)
    return told.refused.get(item)


@pytest.mark.covers("spank-lua get_item: all items of spank.h")
def test_every_item_of_spank_h() -> None:
    told = state("remote", TASK, FACTS)
    assert {*told.items, *told.refused} == {*ITEMS}
    assert len(ITEMS) == 32
    assert told.refused == {}


@pytest.mark.parametrize("callback", ["init", "init_post_opt", "exit"])
@pytest.mark.parametrize("context", ["local", "allocator"])
def test_before_and_after_the_job(context: ContextName, callback: str) -> None:
    for item in LOCAL_ITEMS:
        assert refusal(context, callback, item) == "Item not available from this callback"
    for item in (*REMOTE_ITEMS, *TASK_ITEMS):
        assert refusal(context, callback, item) == "Valid only in remote context"
    assert refusal(context, callback, "S_SLURM_VERSION") is None


def test_local_user_init() -> None:
    for item in LOCAL_ITEMS:
        assert refusal("allocator", "local_user_init", item) is None
    assert (
        refusal("allocator", "local_user_init", "S_JOB_NODEID") == "Valid only in remote context"
    )


def test_tasks() -> None:
    for item in TASK_ITEMS:
        assert refusal("remote", "user_init", item) == "Not in task context"
    before = JobFacts("22.05.8")
    assert refusal("remote", "task_init", "S_TASK_ID", before) is None
    assert refusal("remote", "task_init", "S_TASK_EXIT_STATUS", before) == "Not in task context"
    assert (
        refusal("remote", "task_init", "S_JOB_PID_TO_LOCAL_ID", before)
        == "Lookup by PID requested, but no tasks running"
    )


def test_slurmd_and_scripts_of_the_job() -> None:
    for item in ITEMS:
        version = item.startswith("S_SLURM_VERSION")
        expected = None if version else "Item not available from this callback"
        assert refusal("slurmd", "slurmd_init", item) == expected
        known = version or item in ("S_JOB_ID", "S_JOB_UID")
        assert refusal("job_script", "job_prolog", item) == (
            None if known else "Item not available from this callback"
        )


@pytest.mark.parametrize(
    ("context", "closed"),
    [
        ("local", {}),
        ("allocator", {}),
        ("remote", {"control": "Valid only in local or allocator context"}),
        (
            "slurmd",
            {
                "job": "Valid only in remote context",
                "control": "Item not available from this callback",
            },
        ),
    ],
)
def test_environments(context: ContextName, closed: dict[str, str]) -> None:
    assert state(context, "slurm_spank_init", FACTS).closed == closed


@pytest.mark.parametrize("callback", CALLBACKS)
def test_when_options_may_be_registered_and_asked_for(callback: str) -> None:
    told = state("allocator", callback, FACTS)
    assert told.registers is (callback == "slurm_spank_init")
    assert told.asks is (callback not in ("slurm_spank_init", *CALLBACKS[1:2], CALLBACKS[11]))
    assert not state("slurmd", callback, FACTS).registers


def test_values() -> None:
    items = state("remote", TASK, FACTS).items
    assert items["S_SLURM_VERSION_MAJOR"] == "24"
    assert items["S_SLURM_VERSION_MINOR"] == "11"
    assert items["S_SLURM_VERSION_MICRO"] == "5"
    assert items["S_JOB_ALLOC_CORES"] == "0-3"
    assert items["S_TASK_PID"] == 99


def test_what_a_job_tells() -> None:
    environment = {"SLURM_NNODES": "2", "SLURM_NTASKS": "4", "SLURM_JOB_CPUS_PER_NODE": "8(x2)"}
    facts = facts_of_job(JobFacts("1"), "42", environment, ["true"])
    assert (facts.job, facts.nodes, facts.tasks, facts.cpus) == (42, 2, 4, 8)
    bare = facts_of_job(JobFacts("1"), "x", {}, [])
    assert (bare.job, bare.nodes, bare.tasks, bare.cpus) == (0, 1, 1, 0)


@pytest.mark.parametrize(
    ("ending", "status"), [(exited(0), 0), (exited(3), 768), (killed(9), 9), (exited(255), 65280)]
)
def test_statuses_as_wait_has_them(ending: object, status: int) -> None:
    assert wait_status(ending) == status  # type: ignore[arg-type]


def test_the_environment_of_a_task(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"ociVersion": "1.0.2", "root": {"path": "rootfs"},'
        ' "process": {"cwd": "/", "args": ["x"], "user": {"uid": 0, "gid": 0},'
        ' "env": ["A=1", "B=2", "A=3"]}}'
    )
    assert environment_of(str(tmp_path), {"B": None, "C": "4"}) == {"A": "3", "C": "4"}


@pytest.mark.covers("spank-lua SPANK LUA API: thirteen functions")
def test_callbacks_are_those_of_the_manual() -> None:
    assert len(CALLBACKS) == 13
    assert all(re.fullmatch(r"slurm_spank_[a-z_]+", name) for name in CALLBACKS)
