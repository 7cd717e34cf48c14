"""What a container takes of a pool's node, and what such a node has."""

import math
from typing import Any

import pytest

from scrun.core.errors import SettingsError
from scrun.supervisor.contracts.reuse import Room, Taken
from scrun.supervisor.engines.slurm.room import (
    PartOfNode,
    gpus_of_node,
    room_of,
    room_of_node,
    why_no_node,
)


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
        ({"SCRUN_GPUS": "2"}, Room(1, 0, 2)),
        ({"SCRUN_GPUS_PER_NODE": "3", "SCRUN_CPUS_PER_TASK": "2"}, Room(2, 0, 3)),
        ({"SCRUN_GRES": "gpu:2"}, Room(1, 0, 2)),
        ({"SCRUN_GRES": "gpu"}, Room(1, 0, 1)),
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
        ("SCRUN_GPUS_PER_SOCKET", "1"),
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


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SCRUN_GPUS", "a100:2"),
        ("SCRUN_GRES", "gpu:a100:2"),
        ("SCRUN_GRES", "gpu:1,shard:2"),
        ("SCRUN_GRES", "fpga:1"),
    ],
)
def test_what_a_pool_does_not_count(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{variable}={value}: a pool counts GPUs"):
        room_of({variable: value})


@pytest.mark.parametrize(
    ("said", "gpus"),
    [
        ("2|0,1|\n", ["0", "1"]),
        ("2||3,4\n", ["3", "4"]),
        ("1|GPU-8f2a||\n", ["GPU-8f2a"]),
        ("2||\n", ["0", "1"]),
        ("2|0|\n", ["0", "1"]),  # of another job, or of nobody's
        ("|0,1|\n", []),  # the caller's
        ("2|a b,c|\n", ["0", "1"]),
        ("1|all|\n", ["0"]),  # to NVIDIA's runtime that is each GPU of the node
        ("1|-1|\n", ["0"]),  # to CUDA that is none
        ("2|0,0|\n", ["0", "1"]),  # the second container would have none
        ("2|0,99999999999999999999|\n", ["0", "1"]),
        ("\n", []),
        ("", []),
        ("x|0|", []),
    ],
)
def test_the_gpus_of_a_node(said: str, gpus: list[str]) -> None:
    assert gpus_of_node(said) == gpus


@pytest.mark.parametrize(
    ("room", "seconds", "limit", "node", "why"),
    [
        (Room(2), 0, None, {"SCRUN_CPUS_PER_TASK": "2"}, ""),
        (Room(3), 0, None, {"SCRUN_CPUS_PER_TASK": "2"}, "its nodes have 2 processors each"),
        (Room(1, 900), 0, None, {}, ""),  # what Slurm gives, nobody knows yet
        (
            Room(1, 900), 0, None, {"SCRUN_MEM_PER_NODE": "800"},
            "its nodes have 1 processors and 800 MiB of memory each",
        ),
        (Room(1, 0, 1), 0, None, {}, "its nodes have 1 processors each"),
        (Room(1, 0, 1), 0, None, {"SCRUN_GPUS": "1"}, ""),
        (Room(1, 0, 1), 0, None, {"SCRUN_GRES": "gpu:a100:2"}, ""),
        (Room(99), 0, None, {"SCRUN_EXCLUSIVE": "yes"}, ""),
        (Room(1), 60, None, {}, "its nodes have no time limit that is known to be long enough"),
        (Room(1), 60, 66, {}, "its nodes have no time limit that is known to be long enough"),
        (Room(1), 60, 67, {}, ""),
        (Room(1), 0, None, {"SCRUN_NTASKS": "4"}, ""),  # a node has one, whatever is usual
    ],
)  # fmt: skip
def test_what_a_node_to_come_has(
    room: Room, seconds: float, limit: float | None, node: dict[str, str], why: str
) -> None:
    assert why_no_node(room, seconds, limit, node) == why


def part(*gpus: str, processors: int = 1, has_gpus: bool = True) -> PartOfNode:
    return PartOfNode(Taken("c", Room(processors, 0, len(gpus)), gpus), 4, has_gpus)


def test_what_a_container_sees_of_gpus() -> None:
    assert part("1", "3").variables["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert {*part().variables.values()} == {"-1"}
    assert part(has_gpus=False).variables == {}


def test_what_a_container_sees_of_processors() -> None:
    assert part(processors=2).processors == {"processors": {"number": 2, "of": 4, "as": "c"}}
    assert part(processors=0).processors == {}


def test_the_gpus_in_config_json() -> None:
    null = {"path": "/dev/null0", "type": "c", "major": 1, "minor": 3}
    named = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
    config: dict[str, Any] = {
        "process": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "A=b"]},
        "linux": {"devices": [null, named], "namespaces": []},
        "mounts": [
            {"destination": "/dev/nvidia0", "source": "/dev/nvidia0", "type": "bind"},
            {"destination": "/dev/nvidiactl", "source": "/dev/nvidiactl", "type": "bind"},
        ],
    }
    assert part(has_gpus=False).fit(config) is config
    fitted = part("2").fit(config)
    assert fitted["process"]["env"] == ["NVIDIA_VISIBLE_DEVICES=2", "A=b"]
    assert fitted["linux"]["devices"] == [null, {**named, "path": "/dev/nvidia2", "minor": 2}]
    assert [mount["source"] for mount in fitted["mounts"]] == ["/dev/nvidiactl", "/dev/nvidia2"]
    without = part().fit(config)
    assert without["process"]["env"][0] == "NVIDIA_VISIBLE_DEVICES=void"
    assert without["linux"]["devices"] == [null]
    assert len(without["mounts"]) == 1
    assert config["linux"]["devices"] == [null, named]
    plain = {"process": {"env": None}}
    assert part("0").fit(plain)["process"] == {"env": []}
