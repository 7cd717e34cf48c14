"""What a container takes of a pool's node, and what such a node has."""

import math

import pytest

from scrun.core.errors import SettingsError
from scrun.supervisor.contracts.reuse import Room
from scrun.supervisor.engines.slurm.room import room_of, room_of_node


@pytest.mark.parametrize(
    ("wanted", "room"),
    [
        ({}, Room(1)),
        ({"SCRUN_CPUS_PER_TASK": "3", "SCRUN_MEM_PER_NODE": "512"}, Room(3, 512)),
        ({"SCRUN_CPUS_PER_TASK": "", "SCRUN_MEM_PER_NODE": "2g"}, Room(1, 2048)),
        ({"SCRUN_CPUS_PER_TASK": "4", "SCRUN_MEM_PER_CPU": "512M"}, Room(4, 2048)),
        ({"SCRUN_OVERCOMMIT": "yes", "SCRUN_MEM_PER_CPU": "9"}, Room(0, 9)),
        ({"SCRUN_OVERCOMMIT": "", "SCRUN_CPUS_PER_TASK": "2"}, Room(0)),
        ({"SCRUN_OVERCOMMIT": "no", "SCRUN_CPUS_PER_TASK": "2"}, Room(2)),
        ({"SCRUN_MEM_PER_NODE": "1T"}, Room(1, 1 << 20)),
        ({"SCRUN_MEM_PER_NODE": "512K"}, Room(1, 0.5)),
        ({"SCRUN_MEM_PER_NODE": "0"}, Room(1)),
        # what describes a job has no effect, and so has what leaves a container alone
        ({"SCRUN_PARTITION": "gpu", "SCRUN_TIMELIMIT": "5"}, Room(1)),
        ({"SCRUN_NTASKS": "1", "SCRUN_JOB_NUM_NODES": "1"}, Room(1)),
        ({"SCRUN_MPI_TYPE": "none", "SCRUN_GPUS": "0", "SCRUN_LABELIO": "no"}, Room(1)),
    ],
)
def test_what_a_container_takes(wanted: dict[str, str], room: Room) -> None:
    assert room_of(wanted) == room


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SCRUN_NTASKS", "2"),
        ("SCRUN_JOB_NUM_NODES", "1-2"),
        ("SCRUN_NTASKS_PER_NODE", "2"),
        ("SCRUN_GPUS", "1"),
        ("SCRUN_GRES", "gpu:1"),
        ("SCRUN_TRES_PER_TASK", "gres/gpu=1"),
        ("SCRUN_EXCLUSIVE", "yes"),
        ("SCRUN_LABELIO", "yes"),
        ("SCRUN_MPI_TYPE", "pmix"),
        ("SCRUN_DEPENDENCY", "afterok:1"),
    ],
)
def test_what_no_pool_can_meet(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{variable}={value}: containers of a pool have one"):
        room_of({variable: value})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SCRUN_CPUS_PER_TASK", "0"),
        ("SCRUN_CPUS_PER_TASK", "x"),
        ("SCRUN_CPUS_PER_TASK", "9" * 99),
        ("SCRUN_MEM_PER_NODE", "-1"),
        ("SCRUN_MEM_PER_CPU", "1X"),
        ("SCRUN_MEM_PER_NODE", "9" * 99),
    ],
)
def test_what_is_no_amount(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{variable}={value}: not a "):
        room_of({variable: value})


@pytest.mark.parametrize(
    ("job", "room"),
    [
        ({"SLURM_JOB_CPUS_PER_NODE": "4", "SLURM_MEM_PER_NODE": "900"}, Room(4, 900)),
        ({"SLURM_JOB_CPUS_PER_NODE": "2(x1)", "SLURM_MEM_PER_CPU": "100"}, Room(2, 200)),
        ({"SLURM_JOB_CPUS_PER_NODE": "2"}, Room(2, math.inf)),
        ({"SLURM_JOB_CPUS_PER_NODE": "2", "SLURM_MEM_PER_NODE": "0"}, Room(2, math.inf)),
        ({}, Room(1, math.inf)),
    ],
)
def test_what_a_node_has(job: dict[str, str], room: Room) -> None:
    assert room_of_node(job) == room


def test_what_fits() -> None:
    node = Room(4, 1000)
    assert Room(4, 1000).fits(node)
    assert not Room(5).fits(node)
    assert not Room(1, 1001).fits(node)
    assert not Room(1).fits(node - Room(2) - Room(2))
    assert Room(1).fits(node - Room(2) - Room(2) + Room(2))
