"""How many nodes and tasks a container's step has."""

import pytest

from scrun.core.errors import SettingsError
from scrun.supervisor.engines.slurm.layout import (
    OneNode,
    StepLayout,
    check,
    first_node,
    layout_of_own_job,
    layout_within,
    nodes_of_salloc,
)

OLD = OneNode(1, "22.05")
NEW = OneNode(None, "24.11")


def asked(text: str) -> dict[str, str]:
    """Read `NTASKS=2 JOB_NUM_NODES=2`."""
    return {f"SCRUN_{word.split('=')[0]}": word.split("=")[1] for word in text.split()}


def job(nodes: int | None, tasks: int | None = None) -> dict[str, str]:
    found = {"SLURM_JOB_ID": "12"}
    found |= {} if nodes is None else {"SLURM_JOB_NUM_NODES": str(nodes)}
    return found | ({} if tasks is None else {"SLURM_NTASKS": str(tasks)})


@pytest.mark.parametrize(
    ("wanted", "option"),
    [
        ("", ["--nodes=1"]),
        ("CPUS_PER_TASK=4 MEM_PER_NODE=1G", ["--nodes=1"]),
        ("JOB_NUM_NODES= NTASKS= JOB_NODELIST=", ["--nodes=1"]),
        ("JOB_NUM_NODES=2", []),
        ("NTASKS=2", []),
        ("JOB_NODELIST=n[1-2]", []),
    ],
)
def test_one_node_unless_asked_otherwise(wanted: str, option: list[str]) -> None:
    assert nodes_of_salloc(asked(wanted)) == option


@pytest.mark.covers("plugin-api job_step_info_t, slurm_step_layout_t: nodes")
@pytest.mark.parametrize(
    ("wanted", "granted", "layout"),
    [
        ("", job(1), StepLayout(1, 1)),
        ("", {}, StepLayout(1, 1)),
        ("JOB_NUM_NODES=2", job(2), StepLayout(2, 2)),
        ("JOB_NUM_NODES=1-4", job(3), StepLayout(3, 3)),
        ("JOB_NUM_NODES=2 NTASKS=2", job(2), StepLayout(2, 2)),
        ("JOB_NUM_NODES=2 NTASKS=1", job(1), StepLayout(1, 1)),
        ("NTASKS=2", job(2), StepLayout(2, 2)),
        ("JOB_NODELIST=n[1-2]", job(2), StepLayout(2, 2)),
        ("JOB_NODELIST=n[1-2] NTASKS=1", job(2), StepLayout(1, 1)),
        ("JOB_NUM_NODES=2k", job(2048), StepLayout(2048, 2048)),
        ("", {"SLURM_NNODES": "2"}, StepLayout(2, 2)),
        ("GPUS=2 NTASKS_PER_GPU=1", job(2, 2), StepLayout(2, 2)),
    ],
)
@pytest.mark.parametrize("one", [OLD, NEW])
def test_own_job(wanted: str, granted: dict[str, str], layout: StepLayout, one: OneNode) -> None:
    check(asked(wanted), one)
    assert layout_of_own_job(asked(wanted), granted, one) == layout


@pytest.mark.parametrize(
    ("wanted", "granted", "layout"),
    [
        ("NTASKS=4", job(1), StepLayout(4, 1)),
        ("NTASKS_PER_NODE=2", job(1), StepLayout(2, 1)),
        ("JOB_NUM_NODES=2 NTASKS_PER_NODE=3", job(2), StepLayout(6, 2)),
        ("JOB_NUM_NODES=2 NTASKS=5", job(2), StepLayout(5, 2)),
    ],
)
def test_several_on_a_node(wanted: str, granted: dict[str, str], layout: StepLayout) -> None:
    check(asked(wanted), NEW)
    assert layout_of_own_job(asked(wanted), granted, NEW) == layout


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("NTASKS_PER_NODE=2", "^SCRUN_NTASKS_PER_NODE=2: Slurm 22.05 runs one container of a job"),
        ("JOB_NUM_NODES=2 NTASKS=3", "^SCRUN_NTASKS=3: .* is 2; set it to 3$"),
        ("JOB_NUM_NODES=1-2 NTASKS=3", "^SCRUN_NTASKS=3: .* is 1-2; set it to 3$"),
        ("NTASKS=two", "^SCRUN_NTASKS=two: not a number of 1 or more$"),
        ("NTASKS=0", "^SCRUN_NTASKS=0: not a number"),
        ("NTASKS=-1", "a number"),
        ("NTASKS=٣", "a number"),
    ],
)
def test_known_before_the_job(wanted: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check(asked(wanted), OLD)


@pytest.mark.parametrize("wanted", ["NTASKS=3", "NTASKS=2 JOB_NUM_NODES=2k", "NTASKS=2 GPUS=2"])
def test_not_known_before_the_job(wanted: str) -> None:
    check(asked(wanted), OLD)


def test_known_after_the_grant() -> None:
    message = "^3 tasks: .*, and job 12 has 2 nodes: set SCRUN_JOB_NUM_NODES to 3$"
    with pytest.raises(SettingsError, match=message):
        layout_of_own_job(asked("NTASKS=3"), job(2), OLD)
    with pytest.raises(SettingsError, match=r"^2 tasks: .* has 1 node: set"):
        layout_of_own_job(asked("NTASKS_PER_GPU=1 GPUS=2"), job(1, 2), OLD)


@pytest.mark.covers("plugin-api job_step_info_t, slurm_step_layout_t: nodes")
@pytest.mark.parametrize(
    ("wanted", "there", "layout"),
    [
        ("", job(4, 16), StepLayout(1, 1)),
        ("", job(None), StepLayout(1, 1)),
        ("JOB_NUM_NODES=2", job(4, 16), StepLayout(2, 2)),
        ("JOB_NUM_NODES=2-8", job(4), StepLayout(4, 4)),
        ("JOB_NUM_NODES=2-8", job(None), StepLayout(8, 8)),
        ("JOB_NUM_NODES=2 NTASKS=2", job(4), StepLayout(2, 2)),
        ("JOB_NUM_NODES=3 NTASKS=2", job(4), StepLayout(2, 2)),
        ("NTASKS=1", job(4), StepLayout(1, 1)),
        ("NTASKS=2", job(4), StepLayout(2, 2)),
        ("NTASKS=2", job(None), StepLayout(2, 2)),
        ("JOB_NUM_NODES=2", {"SLURM_JOB_ID": "12", "SLURM_NNODES": "x"}, StepLayout(2, 2)),
    ],
)
def test_within_a_job(wanted: str, there: dict[str, str], layout: StepLayout) -> None:
    assert layout_within(asked(wanted), there, OLD) == layout


@pytest.mark.parametrize(
    ("wanted", "layout"),
    [
        ("", StepLayout(1, 1)),
        ("NTASKS=1", StepLayout(1, 1)),
        ("NTASKS=8", StepLayout(8, 2)),
        ("NTASKS_PER_NODE=2", StepLayout(2, 1)),
        ("JOB_NUM_NODES=2 NTASKS_PER_NODE=2", StepLayout(4, 2)),
        ("JOB_NUM_NODES=2 NTASKS=8", StepLayout(8, 2)),
    ],
)
def test_within_a_job_of_a_newer_version(wanted: str, layout: StepLayout) -> None:
    assert layout_within(asked(wanted), job(2), NEW) == layout


@pytest.mark.parametrize(
    ("wanted", "nodes", "message"),
    [
        ("JOB_NUM_NODES=3", 2, "^SCRUN_JOB_NUM_NODES=3: job 12 has 2 nodes; lower it$"),
        ("JOB_NUM_NODES=2-4", 1, "^SCRUN_JOB_NUM_NODES=2-4: job 12 has 1 node; lower it$"),
        ("NTASKS=3", 2, "^3 tasks: .* job 12 has 2 nodes; request at most 2$"),
        ("JOB_NUM_NODES=2k", 2, "^SCRUN_JOB_NUM_NODES=2k: within job 12 it has to be a number$"),
        ("NTASKS=x", 2, "^SCRUN_NTASKS=x: not a number"),
        ("JOB_NUM_NODES=2 NTASKS=3", None, "^3 tasks: .* request at most 2$"),
    ],
)
def test_more_than_the_job_has(wanted: str, nodes: int | None, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        layout_within(asked(wanted), job(nodes), OLD)


@pytest.mark.covers("plugin-api job_step_info_t, slurm_step_layout_t: nodes")
@pytest.mark.parametrize(
    ("layout", "arguments"),
    [
        (StepLayout(), ["--nodes=1", "--ntasks=1"]),
        (StepLayout(4, 2), ["--nodes=2", "--ntasks=4"]),
        (StepLayout(4, None), ["--ntasks=4"]),
    ],
)
def test_arguments(layout: StepLayout, arguments: list[str]) -> None:
    assert layout.arguments == arguments


@pytest.mark.covers("plugin-api slurm_job_info_t: nodes and node_inx; het_job_id")
@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node[1-2]", "node1"),
        ("a,b", "a"),
        ("a[01-03,7],b", "a01"),
        ("a[7,01-03]", "a7"),
        ("rack[2-3]n[10,12]", "rack2n10"),
        ("a[1-2]-ib,c", "a1-ib"),
        ("", ""),
    ],
)
def test_the_first_node_of_a_job(nodes: str, first: str) -> None:
    assert first_node({"SLURM_JOB_NODELIST": nodes}) == first


def test_a_job_of_which_only_the_number_is_known_has_no_first_node() -> None:
    assert first_node({"SLURM_JOB_ID": "7"}) == ""
