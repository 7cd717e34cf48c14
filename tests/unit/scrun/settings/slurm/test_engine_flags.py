"""What an engine's flags ask for: config.json as podman 4.3.1 and Docker 20.10 write it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.oci.config import parse
from scrun.settings.slurm.request_sources import (
    KINDS,
    Flags,
    named_by,
    nearest,
    read_flags,
    variable_of,
)
from scrun.settings.slurm.requests import TABLE
from tests.harness.limits import limited

CPUS, MEMORY, GPUS = "SCRUN_CPUS_PER_TASK", "SCRUN_MEM_PER_NODE", "SCRUN_GPUS"
HOOK = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"]}


def flags(
    resources: dict[str, Any] | None = None, *, by_flags: bool = True, **members: Any
) -> Flags:
    """Read a config.json; of the members `env` and `devices` are short for those inside."""
    document = {
        "ociVersion": "1.0.2-dev",
        "process": {"args": ["true"], "cwd": "/", "env": members.pop("env", [])},
        "root": {"path": "rootfs"},
        "linux": {"resources": resources, "devices": members.pop("devices", None)},
        **members,
    }
    _, config = parse(msgspec.json.encode(document))
    return read_flags(config, resources=by_flags)


@pytest.mark.parametrize(
    ("cpu", "cpus"),
    [
        ({"quota": 150000, "period": 100000}, "2"),  # --cpus 1.5
        ({"shares": 0, "quota": 150000, "period": 100000}, "2"),  # Docker's
        ({"quota": 150000, "period": 100000, "cpus": "0-1"}, "2"),
        ({"quota": 10000, "period": 100000}, "1"),
        ({"quota": 200000, "period": 100000}, "2"),
        ({"quota": 50000}, "1"),  # --cpu-quota: no period
        ({"quota": 250000}, "3"),
        ({"quota": 250000, "period": 0}, "3"),
        ({"shares": 0}, None),
        ({"cpus": "0-2"}, None),
        ({"quota": -1, "period": 100000}, None),
        ({"quota": 0}, None),
        ({"quota": True}, None),
        ({"quota": "150000"}, None),
        ({"quota": 1 << 70}, None),
        (None, None),
        ("x", None),
    ],
)
def test_cpus(cpu: object, cpus: str | None) -> None:
    found = flags({"cpu": cpu})
    assert found.requests.get(CPUS) == cpus
    assert found.origins.get(CPUS) == ("--cpus, linux.resources.cpu" if cpus else None)


@pytest.mark.parametrize(
    ("memory", "asked"),
    [
        ({"limit": 104857600, "swap": 209715200, "disableOOMKiller": False}, "100M"),
        ({"limit": 104857601}, "101M"),
        ({"limit": 1}, "1M"),
        ({"disableOOMKiller": False}, None),
        ({"limit": 0}, None),
        ({"limit": -1}, None),
        ({"reservation": 104857600}, None),
    ],
)
def test_memory(memory: dict[str, Any], asked: str | None) -> None:
    assert flags({"memory": memory}).requests.get(MEMORY) == asked


@pytest.mark.parametrize(("limit", "told"), [(77, True), (2048, False), (0, False), (-1, False)])
def test_processes(limit: int, told: bool) -> None:
    found = flags({"pids": {"limit": limit}})
    assert found.requests == {}
    expected = f"--pids-limit {limit} is not enforced: Slurm has no such limit"
    assert found.notes == ((expected,) if told else ())


def device(path: object) -> dict[str, Any]:
    return {"path": path, "type": "c", "major": 195, "minor": 0}


def bind(path: str) -> dict[str, Any]:
    return {"destination": path, "type": "bind", "source": path}


@pytest.mark.parametrize(
    ("members", "gpus"),
    [
        ({}, None),
        ({"devices": [device("/dev/nvidia0"), device("/dev/nvidiactl")]}, "1"),
        ({"devices": [device("/dev/nvidia0"), device("/dev/nvidia3")]}, "2"),
        ({"mounts": [bind("/dev/nvidia0"), bind("/dev/nvidia-uvm")]}, "1"),  # rootless
        ({"devices": [device("/dev/nvidia0")], "mounts": [bind("/dev/nvidia0")]}, "1"),
        ({"devices": [device("/dev/null")]}, None),
        ({"env": ["NVIDIA_VISIBLE_DEVICES=0,1"]}, "2"),  # Docker's --gpus 2
        ({"env": ["NVIDIA_VISIBLE_DEVICES=0,GPU-abc"]}, "2"),
        ({"env": ["NVIDIA_VISIBLE_DEVICES=0,0"]}, "1"),
        ({"env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0"]}, "1"),
        ({"env": ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=none"]}, None),
        ({"env": ["NVIDIA_VISIBLE_DEVICES=void"], "hooks": {"prestart": [HOOK]}}, None),
        ({"env": ["NVIDIA_VISIBLE_DEVICES="]}, None),
        ({"env": ["NVIDIA_VISIBLE_DEVICES"]}, None),
        ({"env": ["NVIDIA_VISIBLE_DEVICES=0,1"], "devices": [device("/dev/nvidia0")]}, "1"),
        ({"hooks": {"prestart": [HOOK]}}, None),
    ],
)
def test_gpus(members: dict[str, Any], gpus: str | None) -> None:
    found = flags(**members)
    assert found.requests.get(GPUS) == gpus
    assert found.notes == ()


def test_all_gpus_of_an_image_are_none() -> None:
    """Images of CUDA have the variable, whoever runs them."""
    found = flags(env=["NVIDIA_VISIBLE_DEVICES=all"])
    assert found.requests == {}
    assert "requests no GPU" in found.notes[0]


def test_all_gpus_of_a_flag_are_one() -> None:
    found = flags(env=["NVIDIA_VISIBLE_DEVICES=all"], hooks={"prestart": [HOOK]})
    assert found.requests == {GPUS: "1"}
    assert "--gpus all requests one GPU" in found.notes[0]


def test_switched_off() -> None:
    resources = {"cpu": {"quota": 1}, "memory": {"limit": 1}, "pids": {"limit": 1}}
    members: dict[str, Any] = {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}
    assert flags(resources, **members).requests.keys() == {CPUS, MEMORY, GPUS}
    assert flags(resources, by_flags=False, **members) == Flags()


_TEXT = st.text(max_size=3).filter(lambda text: "\0" not in text)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner),
    max_leaves=5,
)
_LIMITS = st.dictionaries(st.sampled_from(["quota", "period", "limit"]), _JSON)


@given(st.dictionaries(st.sampled_from(["cpu", "memory", "pids"]), _LIMITS | _JSON))
def test_any_resources(resources: dict[str, Any]) -> None:
    assert flags(resources).requests.keys() <= KINDS.keys()


# slurm.* annotations


@pytest.mark.covers("scrun requests: annotations slurm.*, the engine's flags")
@pytest.mark.parametrize(
    ("annotation", "variable"),
    [
        ("slurm.partition", "SCRUN_PARTITION"),
        ("slurm.job_num_nodes", "SCRUN_JOB_NUM_NODES"),
        ("slurm.job-num-nodes", "SCRUN_JOB_NUM_NODES"),
        ("slurm.Cpus-Per-Task", "SCRUN_CPUS_PER_TASK"),
        ("slurm.timelimit", "SCRUN_TIMELIMIT"),
        ("slurm.time", "SCRUN_TIMELIMIT"),
        ("slurm.mem", "SCRUN_MEM_PER_NODE"),
        ("slurm.nodes", "SCRUN_JOB_NUM_NODES"),
        ("slurm.switches", "SCRUN_REQ_SWITCH"),
        ("slurm.account", "SCRUN_ACCOUNT"),  # refused later, as SCRUN_ACCOUNT is
        ("slurm.", None),
        ("slurm.partitoin", None),
        ("slurm.scrun_partition", None),
    ],
)
def test_names(annotation: str, variable: str | None) -> None:
    assert variable_of(annotation) == variable


def test_every_request_has_a_name() -> None:
    for variable, request in TABLE.items():
        assert variable_of(f"slurm.{variable.removeprefix('SCRUN_').lower()}") == variable
        named = variable_of(f"slurm.{request.option.removeprefix('--')}")
        assert named is not None
        assert TABLE[named].option == request.option


def test_what_is_named() -> None:
    annotations = {"slurm.time": "7", "slurm.x": "y", "slurmpartition": "z", "partition": "z"}
    assert named_by(annotations) == {"SCRUN_TIMELIMIT": "7", "slurm.x": "y"}


def test_a_misspelled_name_among_many() -> None:
    """An image's may be tens of thousands; they are read while other containers wait."""
    annotations = {f"slurm.partitoin{number}": "x" for number in range(40_000)}
    with limited(1):
        assert nearest(next(iter(named_by(annotations)))) == " (is it slurm.partition?)"
