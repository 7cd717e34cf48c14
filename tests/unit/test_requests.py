import pytest

from scrun.errors import SettingsError
from scrun.settings.requests import (
    TABLE,
    from_environment,
    salloc_arguments,
    srun_arguments,
)

OLD, NEW, NEWEST = (22, 5), (24, 11), (26, 5)

# srun(1): what only srun has
SRUN_ONLY = """
    CPU_BIND EPILOG EXACT LABELIO MPI_TYPE OPEN_MODE OVERLAP PROLOG SLURMD_DEBUG TASK_EPILOG
    TASK_PROLOG THREADS UNBUFFEREDIO
"""


def test_the_manual_s_variables() -> None:
    assert len(TABLE) == 70
    assert list(TABLE) == [request.variable for request in TABLE.values()]
    assert all(variable.startswith("SCRUN_") for variable in TABLE)


@pytest.mark.parametrize("version", [OLD, NEW, NEWEST])
def test_who_accepts(version: tuple[int, int]) -> None:
    gone = {"TRES_BIND", "TRES_PER_TASK"} if version == OLD else {"POWER"}
    for variable, request in TABLE.items():
        name = variable.removeprefix("SCRUN_")
        assert request.accepted("srun", version) == (name not in gone)
        assert request.accepted("salloc", version) == (name not in gone | set(SRUN_ONLY.split()))


@pytest.mark.parametrize(
    ("requests", "salloc", "srun"),
    [
        ({}, [], []),
        ({"SCRUN_PARTITION": "x y"}, ["--partition=x y"], []),
        ({"SCRUN_PARTITION": ""}, [], []),
        ({"SCRUN_JOB_NUM_NODES": "2"}, ["--nodes=2"], ["--nodes=2"]),
        ({"SCRUN_LABELIO": ""}, [], ["--label"]),
        ({"SCRUN_LABELIO": "Yes"}, [], ["--label"]),
        ({"SCRUN_LABELIO": "0"}, [], []),
        ({"SCRUN_EXCLUSIVE": ""}, ["--exclusive"], []),
        ({"SCRUN_EXCLUSIVE": "user"}, ["--exclusive=user"], []),
        ({"SCRUN_EXCLUSIVE": "no"}, [], []),
        ({"SCRUN_REQ_SWITCH": "1"}, ["--switches=1"], []),
        ({"SCRUN_WAIT4SWITCH": "5", "SCRUN_REQ_SWITCH": "1"}, ["--switches=1@5"], []),
        ({"SCRUN_WAIT4SWITCH": "5"}, [], []),
        ({"SCRUN_JOB_NODELIST": "n[1-2]"}, ["--nodelist=n[1-2]"], []),
        ({"SCRUN_WCKEY": "--uid=0"}, ["--wckey=--uid=0"], []),
    ],
)
def test_arguments(requests: dict[str, str], salloc: list[str], srun: list[str]) -> None:
    assert salloc_arguments(requests, OLD) == salloc
    assert srun_arguments(requests, OLD) == srun


def test_every_request_goes_somewhere() -> None:
    for variable, request in TABLE.items():
        requests = {variable: "1", "SCRUN_REQ_SWITCH": "1"}
        version = OLD if request.known(OLD) else NEW
        arguments = salloc_arguments(requests, version) + srun_arguments(requests, version)
        assert any(argument.split("=")[0] == request.option for argument in arguments)


@pytest.mark.parametrize(
    ("requests", "version", "message"),
    [
        ({"SCRUN_TRES_BIND": "x"}, OLD, "SCRUN_TRES_BIND: Slurm 22.05 has no --tres-bind"),
        ({"SCRUN_POWER": "level"}, NEW, "SCRUN_POWER: Slurm 24.11 has no --power"),
        ({"SCRUN_OVERCOMMIT": "maybe"}, OLD, "SCRUN_OVERCOMMIT=maybe: yes or no"),
        ({"SCRUN_PARTITON": "x"}, OLD, "SCRUN_PARTITON: is no request"),
    ],
)
def test_refused(requests: dict[str, str], version: tuple[int, int], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        salloc_arguments(requests, version)


def test_from_environment() -> None:
    env = {"SCRUN_NTASKS": "2", "SCRUN_ROOT": "/x", "PATH": "/bin", "SLURM_NTASKS": "3"}
    assert from_environment(env) == {"SCRUN_NTASKS": "2"}


def test_an_image_cannot_name_programs_files_or_who_pays() -> None:
    unsafe = (
        "PROLOG EPILOG TASK_PROLOG TASK_EPILOG WORKING_DIR REMOTE_CWD BURST_BUFFER MPI_TYPE"
        " OPEN_MODE NETWORK PROFILE ACCOUNT QOS RESERVATION WCKEY CLUSTERS SLURMD_DEBUG"
    )
    for name in unsafe.split():
        assert not TABLE[f"SCRUN_{name}"].safe
    for name in ("JOB_NUM_NODES", "NTASKS", "MEM_PER_NODE", "TIMELIMIT", "GRES", "PARTITION"):
        assert TABLE[f"SCRUN_{name}"].safe
